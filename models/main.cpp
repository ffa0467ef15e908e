// The main() of each training program. Meson defines RG_PROGRAM as the name of the program's object, for example
// train_cifar (models/programs.h).
#include "ringgrad/models/programs.h"

int main(int argc, char** argv) { return rg::run_training_main(argc, argv, rg::RG_PROGRAM); }
