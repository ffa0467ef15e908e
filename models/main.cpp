// The main() of the training programs in models/programs.h. Meson compiles it once for each of them, with RG_PROGRAM as
// the name of its object, for example train_cifar.
#include "models/programs.h"

int main(int argc, char** argv) { return rg::run_training_main(argc, argv, rg::RG_PROGRAM); }
