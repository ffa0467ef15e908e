// predict MODEL [FILE|DIR...]: predicts with the model of a training; see run/commands.h.
#include "ringgrad/models/programs.h"
#include "ringgrad/models/run/commands.h"
#include "ringgrad/par/session.h"

int main(int argc, char** argv) {
    return rg::par::run_ranks_main(argc, argv, [&](rg::par::Group& group) {
        return rg::predict_command(group, "predict", {argv + 1, argv + argc},
                                   {&rg::train_cifar, &rg::train_digits, &rg::train_digits_angles});
    });
}
