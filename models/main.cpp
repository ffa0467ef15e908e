// The main() of each training program. Meson defines RG_PROGRAM as the program's name.
#include "models/run/program.h"
#include "par/session.h"

int main(int argc, char** argv) {
    return rg::par::run_ranks_main(argc, argv, [&](rg::par::Group& group) {
        rg::Trial trial;
        return rg::RG_PROGRAM.run(group, {argv + 1, argv + argc}, trial);
    });
}
