// make_digits DIR: drawn digits as class folders of PNGs and angles.csv (data/digits.h), for any program that reads
// such folders. train_digits and train_digits_angles draw the same set for themselves when they are given no data.
#include "core/options.h"
#include "core/text.h"
#include "data/digits.h"

#include <iostream>

int main(int argc, char** argv) {
    return rg::run_main(argc, argv, [](int count, const char* const* arguments) {
        std::vector<std::string> dir;
        int64_t per_class = 1000, seed = 0;
        rg::Options options("make_digits", "draws grey digits of 28 x 28, each turned by a known angle");
        options.positional("DIR", &dir, "folder to make: 0/ to 9/ with PNGs, and angles.csv (file,angle in degrees)", 1,
                           1);
        options.add("per-class", &per_class, "images of each digit").range(1, 100000);
        options.add("seed", &seed, "of everything that is random").at_least(0);
        if (!options.parse(count, arguments)) {
            std::cout << options.help();
            return 0;
        }
        const rg::data::ImageSet set = rg::data::draw_digits(per_class, uint64_t(seed));
        rg::data::write_digits(dir[0], set);
        std::cout << set.count << " images in " << rg::printable(dir[0]) << "\n";
        return 0;
    });
}
