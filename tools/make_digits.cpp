// make_digits DIR writes drawn digits as class folders of PNGs with angles.csv (write_digits.h). Its default set is the
// one that train_digits and train_digits_angles draw themselves without --data.
#include "core/options.h"
#include "core/text.h"
#include "data/digits.h"
#include "write_digits.h"

#include <iostream>

int main(int argc, char** argv) {
    return rg::run_main(argc, argv, [](int count, const char* const* arguments) {
        std::vector<std::string> dir;
        int64_t per_class = 1000, seed = 0;
        rg::Options options("make_digits", "draws grey digits of 28 x 28 pixels, each rotated by a known angle");
        options.add_examples({"digits", "few-digits --per-class 100 --seed 1"});
        options.positional("DIR", &dir, "new folder: 0/ to 9/ with PNGs, and angles.csv (file,angle in degrees)", 1, 1);
        options.add("per-class", &per_class, "images of each digit").range(1, 100000);
        options.add("seed", &seed, "seed of all random numbers").at_least(0);
        if (!options.parse(count, arguments)) {
            std::cout << options.help_or_version();
            return 0;
        }
        const rg::data::ImageSet set = rg::data::draw_digits(per_class, uint64_t(seed));
        rg::data::write_digits(dir[0], set);
        std::cout << set.count << " images in " << rg::printable(dir[0]) << "\n";
        return 0;
    });
}
