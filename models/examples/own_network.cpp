// own_network: see own_network.h.
#include "own_network.h"
#include "ringgrad/models/training_main.h"

int main(int argc, char** argv) { return rg::run_training_main(argc, argv, example::own_network); }
