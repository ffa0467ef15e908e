// The main() of each training program. Meson defines RG_PROGRAM as the name of the program's object, for example
// train_cifar (models/run/program.h).
#include "ringgrad/models/run/program.h"
#include "ringgrad/par/session.h"

int main(int argc, char** argv) {
    return rg::par::run_ranks_main(argc, argv, [&](rg::par::Group& group) {
        rg::Trial trial;
        return rg::RG_PROGRAM.run(group, {argv + 1, argv + argc}, trial);
    });
}
