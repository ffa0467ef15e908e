// Tests drawn digits: the angles, folders of digits, and targets of images.
#include "tools/write_digits.h"
#include "core/atomic_file.h"
#include "data/digits.h"
#include "data/loader.h"
#include "models/run/load_data.h"
#include "tests/image_sets.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <numeric>
#include <set>

namespace rg::data {
namespace {

/// Returns the set on which the digit programs train.
TrainTest digits_at(const std::string& path, int64_t seed) {
    DataOptions options;
    options.path = path, options.seed = seed;
    TrainTest sets;
    par::run_groups(1, [&](par::Group& group) { sets = load_digits(group, options); });
    return sets;
}

/// Returns the angle of the long axis of the ink, in degrees counter-clockwise from upright.
double axis(std::span<const uint8_t> image) {
    double n = 0, mx = 0, my = 0, xx = 0, yy = 0, xy = 0;
    for (int pass = 0; pass < 2; ++pass)
        for (int y = 0; y < kDigitSide; ++y)
            for (int x = 0; x < kDigitSide; ++x) {
                const double ink = image[size_t(y * kDigitSide + x)];
                if (pass == 0) {
                    n += ink, mx += ink * x, my += ink * y;
                } else {
                    const double dx = x - mx / n, dy = y - my / n;
                    xx += ink * dx * dx, yy += ink * dy * dy, xy += ink * dx * dy;
                }
            }
    return 0.5 * std::atan2(2 * xy, yy - xx) * 180 / 3.14159265358979323846;
}

/// Returns grey images of one pixel. Pixel and target are the number of the image.
ImageSet numbered(int64_t count) {
    std::vector<uint8_t> pixels(static_cast<size_t>(count));
    std::iota(pixels.begin(), pixels.end(), uint8_t(0));
    ImageSet set{count, 1, 1, 1, pixels, {}, {"even", "odd"}};
    for (int64_t i = 0; i < count; ++i) {
        set.labels.push_back(int32_t(i % 2));
        set.targets.push_back(float(i));
    }
    set.target_names = {"number"};
    return set;
}

bool targets_fit(const ImageSet& set) {
    bool fit = int64_t(set.targets.size()) == set.count;
    for (int64_t i = 0; fit && i < set.count; ++i) fit = float(set.image(i)[0]) == set.targets[size_t(i)];
    return fit;
}

TEST_SUITE("data") {
    TEST_CASE("digits: an image depends only on seed, class and number") {
        const ImageSet few = draw_digits(3, 5), more = draw_digits(7, 5), other = draw_digits(3, 6);
        few.check("digits");
        CHECK(few.count == 30);
        CHECK(few.classes == std::vector<std::string>{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
        for (int64_t i = 0; i < few.count; ++i) {
            const int64_t j = i / 3 * 7 + i % 3;
            CHECK(few.labels[size_t(i)] == i / 3);
            CHECK(std::ranges::equal(few.image(i), more.image(j)));
            CHECK(few.targets[size_t(i)] == more.targets[size_t(j)]);
            CHECK_FALSE(std::ranges::equal(few.image(i), other.image(i)));
        }
    }

    TEST_CASE("digits: the targets are the angles of rotation of the images") {
        const ImageSet set = draw_digits(300, 1);
        const auto [low, high] = std::minmax_element(set.targets.begin(), set.targets.end());
        CHECK(*low >= -kMaxDigitAngle);
        CHECK(*high <= kMaxDigitAngle);
        CHECK(*high - *low > 85);
        // A one and a zero are long, so their axis gives the angle, apart from slant and serif.
        for (const int64_t digit : {0, 1}) {
            double sum = 0, squares = 0;
            for (int64_t i = digit * 300; i < digit * 300 + 300; ++i) {
                const double error = axis(set.image(i)) - double(set.targets[size_t(i)]);
                sum += error, squares += error * error;
            }
            CAPTURE(digit);
            CHECK(std::abs(sum / 300) < 4);
            CHECK(std::sqrt(squares / 300) < 8);
        }
        // Each image has as much ink as a digit.
        for (int64_t i = 0; i < set.count; ++i) {
            const auto lit = std::ranges::count_if(set.image(i), [](uint8_t v) { return v > 90; });
            CHECK(lit >= 12);
            CHECK(lit <= 260);
        }
    }

    TEST_CASE("digits: a folder loads as the same set, with its angles") {
        const TempDir dir;
        const ImageSet set = draw_digits(12, 2);
        write_digits(dir / "set", set);
        const ImageSet back = read_image_folder(dir / "set", 1);
        CHECK(back.classes == set.classes);
        CHECK(back.labels == set.labels);
        CHECK(pixels_of(back) == pixels_of(set));
        CHECK(back.targets == set.targets);
        CHECK_ERROR("new or empty", write_digits(dir / "set", set));

        // A tenth of each class is for testing (1 of 12). Another seed selects other images.
        const TrainTest a = digits_at(dir / "set", 3), again = digits_at(dir / "set", 3);
        CHECK(count_per_label(a.test) == std::vector<int64_t>(10, 1));
        CHECK(count_per_label(a.train) == std::vector<int64_t>(10, 11));
        CHECK(pixels_of(a.test) == pixels_of(again.test));
        CHECK(a.train.targets == again.train.targets);
        CHECK(pixels_of(digits_at(dir / "set", 4).test) != pixels_of(a.test));
        CHECK(contains(a.source, "110 + 10 images 28x28x1"));
        for (const char* name : {"wide/0/a.png", "wide/0/b.png"})
            write_image(dir / name, 29, 28, 1, std::vector<uint8_t>(29 * 28));
        CHECK_ERROR("[28 28 1], got [28 29 1]", digits_at(dir / "wide", 0));
    }

    TEST_CASE("image folder: rejects every violation of angles.csv") {
        const TempDir dir;
        for (const char* name : {"a/1.png", "a/2.png", "b/x,y.png"}) write_image(dir / name, 1, 1, 1, {0});
        const auto read = [&](const std::string& table) {
            write_file_atomic(dir / "angles.csv", table);
            return read_image_folder(dir.path(), 1).targets;
        };
        CHECK(read_image_folder(dir.path(), 1).targets.empty());
        // Accepts lines in any order, both line ends, extra lines, and names with a comma.
        CHECK(read("file,angle\r\nb/x,y.png,3\r\na/2.png,-2.5\r\na/1.png,1e1\r\nc/1.png,7") ==
              std::vector<float>{10, -2.5f, 3});
        const auto error = [&](const std::string& table) { return error_of([&] { read(table); }); };
        CHECK(contains(error("file,angle\na/1.png,1\na/2.png,2\n"), "line for b/x,y.png in angles.csv, got none"));
        for (const char* line : {"a/1.png,", "a/1.png", ",5", "a/1.png,five"})
            CHECK(contains(error(cat("file,angle\na/2.png,1\n", line, "\nb/x,y.png,1\n")), "angles.csv, line 3"));
        CHECK(contains(error("file,angle\na/1.png,1\na/1.png,1\n"), "second one"));
        CHECK(contains(error(""), "got none"));
    }

    TEST_CASE("image set: targets stay with their images") {
        const ImageSet set = numbered(40);
        CHECK(targets_fit(set));
        CHECK(targets_fit(subset(set, std::vector<int64_t>{7, 3, 39})));
        const TrainTest sets = split_sets(set, 0.25, {"1"}, "numbers");
        CHECK(sets.test.count == 10);
        CHECK(targets_fit(sets.train));
        CHECK(targets_fit(sets.test));

        const Epoch epoch = epoch_of(set, {.batch_size = 16, .keep_partial = true}, 1, 3);
        REQUIRE(epoch.images.size() == 40);
        REQUIRE(epoch.targets.size() == 40);
        for (size_t i = 0; i < 40; ++i) CHECK(std::lround(255 * epoch.images[i][0]) == std::lround(epoch.targets[i]));
        CHECK(std::multiset<float>(epoch.targets.begin(), epoch.targets.end()) ==
              std::multiset<float>(set.targets.begin(), set.targets.end()));

        ImageSet bad = set;
        bad.targets.pop_back();
        CHECK_ERROR("expected 1 targets for each of 40 images, got 39 (bad)", bad.check("bad"));
        bad.targets.push_back(NAN);
        CHECK_ERROR("finite target, got nan (image 39)", Loader(bad, {}));
    }
}

} // namespace
} // namespace rg::data
