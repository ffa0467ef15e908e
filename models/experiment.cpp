// experiment: runs trials, which are trainings with different options, of one training program. They run in parallel
// over the ranks or one after the other. models/sweep/trials.h describes their output.
#include "ringgrad/models/programs.h"
#include "ringgrad/models/sweep/trials.h"

int main(int argc, char** argv) {
    return rg::run_trials_main(argc, argv,
                               {"experiment",
                                "trains networks with different options, and ranks them by validation accuracy",
                                {&rg::train_cifar, &rg::train_digits, &rg::train_digits_angles}});
}
