// sweep_cifar: `train_cifar sweep` with trials of its own, networks of depth 1 to 4 that cost about the same per image.
// A fraction of the training images is held out to choose the best network; only this network sees the test set.
#include "ringgrad/models/programs.h"
#include "ringgrad/models/sweep/trials.h"

int main(int argc, char** argv) {
    return rg::run_trials_main(argc, argv,
                               {.name = "sweep_cifar",
                                .command = "sweep_cifar",
                                .description = "trains networks for CIFAR-10 with different options, and tests the "
                                               "best; without --grid and --table, networks of depth 1 to 4 with width "
                                               "16 / sqrt(depth)",
                                .program = &rg::train_cifar,
                                .defaults = {"--batch-size=128", "--lr=0.05", "--epochs=30"},
                                .default_table = "depth,width\n1,16\n2,11\n3,9\n4,8\n"});
}
