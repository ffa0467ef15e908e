// own_sweep: trains own_network with several options, many at a time over the ranks, and ranks them by a metric.
#include "own_network.h"
#include "ringgrad/models/sweep/trials.h"

int main(int argc, char** argv) {
    return rg::run_trials_main(argc, argv,
                               {.name = "own_sweep",
                                .description = "trains my network with several options",
                                .programs = {&example::own_network},
                                .defaults = {"--epochs=5"},
                                .default_grid = {"lr=0.01,0.05", "width=8,16"}});
}
