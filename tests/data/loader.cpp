// Tests augmentation against a slow definition, and the loader: the batches are the same for any number of ranks and
// threads and any depth.
#include "core/rng.h"
#include "data/loader.h"
#include "data/resize.h"
#include "tests/image_sets.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <map>
#include <memory>
#include <set>

namespace rg::data {
namespace {

constexpr Normalise kPlain{{0.5f, 0.25f, 0.125f, 0.75f, 0.375f}, {0.5f, 2, 1, 0.3f, 0.7f}};

/// Returns the window at (y0, x0) of an image that is flipped before, if asked. Outside it is black or mirrored.
std::vector<float> view(const ImageSet& set, int64_t i, bool flip, int64_t y0, int64_t x0, int64_t side_h,
                        int64_t side_w, Fill fill) {
    std::vector<float> out;
    const auto mirror = [](int64_t at, int64_t extent) {
        const int64_t period = std::max<int64_t>(1, 2 * extent - 2), m = ((at % period) + period) % period;
        return m < extent ? m : period - m;
    };
    for (int64_t y = 0; y < side_h; ++y)
        for (int64_t x = 0; x < side_w; ++x) {
            int64_t sy = y0 + y, sx = x0 + (flip ? side_w - 1 - x : x);
            const bool outside = sy < 0 || sy >= set.height || sx < 0 || sx >= set.width;
            sy = mirror(sy, set.height), sx = mirror(sx, set.width);
            for (int64_t c = 0; c < set.channels; ++c) {
                const uint8_t byte =
                    outside && fill == Fill::zero ? 0 : set.image(i)[size_t((sy * set.width + sx) * set.channels + c)];
                out.push_back((float(byte) / 255.0f - kPlain.mean[size_t(c)]) / kPlain.deviation[size_t(c)]);
            }
        }
    return out;
}

std::vector<float> augmented(const ImageSet& set, const Augment& augment, uint64_t seed, int64_t epoch, int64_t i) {
    const Augmenter a(set.height, set.width, set.channels, augment, kPlain, set.window);
    std::vector<float> out(size_t(a.height() * a.width() * set.channels) + 2, -99.0f);
    a.apply(set.image(i), a.view(seed, epoch, i), out.data() + 1);
    CHECK(out.front() == -99.0f); // nothing outside of the image is written
    CHECK(out.back() == -99.0f);
    return {out.begin() + 1, out.end() - 1};
}

/// Returns the rest of an epoch from mini-batch `first` on.
Epoch take_epoch(Loader& loader, int64_t epoch, int64_t first = 0) {
    Epoch taken;
    loader.start(epoch, first);
    for (int64_t expected = first; loader.has_next(); ++expected) {
        const Batch batch = loader.next();
        CHECK(batch.index == expected);
        CHECK(batch.epoch == epoch);
        CHECK(batch.labels.extent(0) == batch.x.extent(0));
        taken.add(batch);
    }
    return taken;
}

LoaderOptions options_for(int64_t batch_size) {
    LoaderOptions o;
    o.batch_size = batch_size;
    o.keep_partial = true;
    o.seed = 11;
    o.augment = {.flip = true, .translate_x = 2, .translate_y = 2, .fill = Fill::reflect};
    o.normalise = kPlain;
    return o;
}

TEST_SUITE("data") {
    TEST_CASE("augment: without augmentation, normalises only") {
        for (int64_t channels = 1; channels <= 5; ++channels) {
            const ImageSet set = random_set(3, 5, 4, channels);
            for (int64_t i = 0; i < 3; ++i)
                CHECK(augmented(set, Augment{}, 1, 2, i) == view(set, i, false, 0, 0, 5, 4, Fill::zero));
        }
        const Augmenter cifar(1, 1, 3, Augment{}, kCifar10);
        std::array<float, 3> out;
        cifar.apply(std::array<uint8_t, 3>{0, 128, 255}, cifar.view(0, 0, 0), out.data());
        CHECK(out[0] == (0.0f - 0.4914f) / 0.2470f);
        CHECK(out[1] == (128.0f / 255.0f - 0.4822f) / 0.2435f);
        CHECK(out[2] == doctest::Approx(2.1158f).epsilon(1e-4));
    }

    TEST_CASE("augment: draws every allowed view about equally often") {
        // Find the view by comparison with all views, so that the test does not depend on how numbers are drawn.
        ImageSet set = random_set(1, 6, 7, 3);
        for (const Fill fill : {Fill::zero, Fill::reflect})
            for (const bool crop : {false, true}) {
                const Augment augment{.flip = true, .translate_x = 2, .translate_y = 2, .fill = fill, .crop = crop};
                set.window = crop ? ImageSize{6, 5} : ImageSize{};
                const auto [h, w] = set.input_size();
                std::array<int, 2> flips{};
                std::set<std::array<int64_t, 3>> seen;
                std::array<int, 12> rows{};
                for (int64_t epoch = 0; epoch < 1500; ++epoch) {
                    const std::vector<float> got = augmented(set, augment, 3, epoch, 0);
                    int matches = 0, flipped = 0;
                    for (int64_t y0 = -2; y0 <= 6 - h + 2; ++y0)
                        for (int64_t x0 = -2; x0 <= 7 - w + 2; ++x0)
                            for (const bool flip : {false, true})
                                if (got == view(set, 0, flip, y0, x0, h, w, fill)) {
                                    ++matches;
                                    flipped += flip;
                                    ++rows[size_t(y0 + 2)];
                                    seen.insert({y0, x0, flip});
                                }
                    CHECK(matches >= 1);
                    if (matches == 1) ++flips[size_t(flipped)]; // a symmetric window matches both
                }
                CHECK(seen.size() == size_t((5 + 6 - h) * (5 + 7 - w) * 2));
                CHECK(std::abs(flips[0] - flips[1]) < 200); // 5 standard deviations
                if (!crop)
                    for (int y = 0; y < 5; ++y) CHECK(std::abs(rows[size_t(y)] - 300) < 80);
            }
    }

    TEST_CASE("augment: views depend on seed, epoch and sample; evaluation takes the centre") {
        const ImageSet set = random_set(2, 16, 16, 3);
        const Augment augment{.flip = true, .translate_x = 4, .translate_y = 4};
        Augment without_flip = augment;
        without_flip.flip = false;
        CHECK(augmented(set, augment, 1, 1, 0) == augmented(set, augment, 1, 1, 0));
        int equal_epoch = 0, equal_seed = 0;
        for (int64_t epoch = 0; epoch < 50; ++epoch) {
            equal_epoch += augmented(set, augment, 1, epoch, 0) == augmented(set, augment, 1, epoch + 1, 0);
            equal_seed += augmented(set, augment, 1, epoch, 0) == augmented(set, augment, 2, epoch, 0);
        }
        CHECK(equal_epoch < 5);
        CHECK(equal_seed < 5);
        // Without reflection, the views are the same.
        int same = 0;
        for (int64_t epoch = 0; epoch < 40; ++epoch)
            same += augmented(set, augment, 1, epoch, 0) == augmented(set, without_flip, 1, epoch, 0);
        CHECK(same > 8);
        CHECK(same < 32);
    }

    TEST_CASE("augment: alternating flips mirror a random half of the images, and in the next epoch the others") {
        const ImageSet set = random_set(40, 5, 7, 3);
        int flipped = 0;
        for (int64_t i = 0; i < 40; ++i) {
            const bool flip = augmented(set, {.alternating_flip = true}, 3, 0, i) != augmented(set, {}, 3, 0, i);
            flipped += flip;
            for (int64_t epoch = 0; epoch < 6; ++epoch)
                CHECK(augmented(set, {.alternating_flip = true}, 3, epoch, i) ==
                      view(set, i, flip != (epoch % 2 != 0), 0, 0, 5, 7, Fill::zero));
        }
        CHECK(std::abs(flipped - 20) < 16); // 5 standard deviations
        CHECK_ERROR("one kind of flip, got both", Augmenter(5, 7, 3, {.flip = true, .alternating_flip = true}, kPlain));
    }

    TEST_CASE("augment: the six views of a test image are shifted and mirrored, with weights that add up to 1") {
        const ImageSet set = random_set(1, 5, 7, 3);
        const Augmenter augmenter(5, 7, 3, {.fill = Fill::reflect}, kPlain);
        const std::vector<WeightedView> views = mirrored_and_shifted(7);
        REQUIRE(views.size() == 6);
        std::vector<float> out(5 * 7 * 3);
        float weights = 0;
        for (size_t i = 0; i < 6; ++i) {
            const int64_t shift = std::array<int64_t, 3>{0, -1, 1}[i / 2];
            augmenter.apply(set.image(0), views[i].view, out.data());
            CHECK(out == view(set, 0, i % 2 != 0, shift, shift, 5, 7, Fill::reflect));
            CHECK(views[i].weight == (shift == 0 ? 0.25f : 0.125f));
            weights += views[i].weight;
        }
        CHECK(weights == 1);
    }

    TEST_CASE("augment: flips, translations and crops keep their random numbers") {
        // A run that is resumed, or repeated with a newer version, must get the same images. These are the flips and
        // the first row and column of each window that seed 7 has always given.
        struct Expected {
            bool flip;
            int64_t y0, x0;
        };
        const std::array<Expected, 8> whole = {{{false, 3, 0}, {false, -3, 4}, {false, -4, -3}, {true, 3, -1},
                                                {true, -1, 3}, {false, 4, 1}, {false, -2, 1}, {true, -3, 2}}};
        const std::array<Expected, 8> cropped = {{{false, 3, 1}, {false, -1, 5}, {false, -3, -2}, {true, 5, 0},
                                                  {true, 2, 5}, {false, 5, 1}, {false, -2, 3}, {true, -3, 2}}};
        const ImageSet set = random_set(1, 32, 30, 3);
        for (const bool crop : {false, true}) {
            const Augmenter a(32, 30, 3, {.flip = true, .translate_x = 4, .translate_y = 4, .crop = crop}, kPlain,
                              crop ? ImageSize{28, 28} : ImageSize{});
            std::vector<float> out(size_t(a.height() * a.width() * 3));
            for (size_t i = 0; i < 8; ++i) {
                a.apply(set.image(0), a.view(7, int64_t(i) / 3, 1000 * int64_t(i)), out.data());
                const auto& [flip, y0, x0] = crop ? cropped[i] : whole[i];
                CHECK(out == view(set, 0, flip, y0, x0, a.height(), a.width(), Fill::zero));
            }
        }
    }

    TEST_CASE("augment: vertical flips, and different translations in x and y") {
        const Augmenter a(9, 7, 1, {.flip_vertical = true, .translate_x = 1, .translate_y = 3}, kPlain);
        std::set<std::array<int64_t, 3>> seen;
        for (int64_t i = 0; i < 1000; ++i) {
            const View v = a.view(1, 2, i);
            const bool flipped = v.y_per_row < 0;
            CHECK(v == View{v.y0, int32_t(flipped ? -kPixel : kPixel), 0, v.x0, 0, kPixel});
            CHECK(v.y0 % kPixel == 0);
            CHECK(v.x0 % kPixel == 0);
            seen.insert({flipped, v.y0 / kPixel - (flipped ? 8 : 0), v.x0 / kPixel});
        }
        std::set<std::array<int64_t, 3>> expected;
        for (const int64_t flipped : {0, 1})
            for (int64_t y = -3; y <= 3; ++y)
                for (int64_t x = -1; x <= 1; ++x) expected.insert({flipped, y, x});
        CHECK(seen == expected);
        const Augmenter only_flip(2, 2, 1, {.flip_vertical = true}, {});
        std::set<std::vector<float>> images;
        std::vector<float> out(4);
        for (int64_t i = 0; i < 20; ++i) {
            only_flip.apply(std::array<uint8_t, 4>{0, 51, 102, 153}, only_flip.view(0, 0, i), out.data());
            images.insert(out);
        }
        CHECK(images == std::set<std::vector<float>>{{0, 0.2f, 0.4f, 0.6f}, {0.4f, 0.6f, 0, 0.2f}});
    }

    TEST_CASE("augment: rotation and scale keep the centre, the angle and the factor in their ranges") {
        const int64_t h = 40, w = 30;
        const Augmenter a(h, w, 3, {.rotate = 20, .scale = {0.5, 2}}, kPlain);
        double lowest_angle = 0, highest_angle = 0, lowest = 9, highest = 0;
        for (int64_t i = 0; i < 500; ++i) {
            const View v = a.view(3, 1, i);
            // The steps of rows and columns are orthogonal and of the same length, which is 1 / scale.
            CHECK(v.y_per_row == v.x_per_column);
            CHECK(v.y_per_column == -v.x_per_row);
            const double angle = std::atan2(v.y_per_column, v.x_per_column) * 180 / 3.14159265358979,
                         scale = double(kPixel) / std::hypot(v.y_per_column, v.x_per_column);
            lowest_angle = std::min(lowest_angle, angle), highest_angle = std::max(highest_angle, angle);
            lowest = std::min(lowest, scale), highest = std::max(highest, scale);
            // The centre of the window is between the first and the last pixel, and so is that of the image.
            CHECK(std::abs(v.y(0, 0) + v.y(h - 1, w - 1) - (h - 1) * kPixel) <= 2);
            CHECK(std::abs(v.x(0, 0) + v.x(h - 1, w - 1) - (w - 1) * kPixel) <= 2);
        }
        // 500 numbers leave out 5% at an end with a probability of e^-25. Steps are rounded to 1/65536.
        CHECK(std::abs(lowest_angle + 19) <= 1.001);
        CHECK(std::abs(highest_angle - 19) <= 1.001);
        CHECK(std::abs(lowest - 0.54) <= 0.0401);
        CHECK(std::abs(highest - 1.96) <= 0.0401);
    }

    TEST_CASE("augment: a rotation by 180 degrees and a scale of 2 show the right pixels") {
        // Every angle is drawn from [-180, 180], so compare with the picture that the view's own angle asks for: pixels
        // at a distance from the centre, in a picture whose brightness is 4 * row + column.
        std::vector<uint8_t> pixels;
        for (int64_t y = 0; y < 31; ++y)
            for (int64_t x = 0; x < 33; ++x) pixels.push_back(uint8_t(4 * y + x));
        const ImageSet set{1, 31, 33, 1, pixels, {0}, {"a"}};
        const Augmenter a(31, 33, 1, {.rotate = 180, .scale = {2, 2}, .fill = Fill::reflect}, {});
        std::vector<float> out(31 * 33);
        for (int64_t i = 0; i < 50; ++i) {
            const View v = a.view(1, 1, i);
            const double angle = std::atan2(v.y_per_column, v.x_per_column);
            a.apply(set.image(0), a.view(1, 1, i), out.data());
            for (const double dy : {-10.0, 0.0, 7.0})
                for (const double dx : {-12.0, 0.0, 9.0}) {
                    const double y = 15 + (std::cos(angle) * dy + std::sin(angle) * dx) / 2,
                                 x = 16 + (std::cos(angle) * dx - std::sin(angle) * dy) / 2;
                    const double byte = 255 * double(out[size_t((15 + dy) * 33 + 16 + dx)]);
                    CHECK(std::abs(byte - (4 * y + x)) <= 0.51); // rounded to a byte, from positions in 1/65536
                }
        }
    }

    TEST_CASE("augment: resized crops have the area, the aspect and the place that they may have") {
        const int64_t h = 60, w = 80;
        const Augmenter a(h, w, 3, {.flip = true, .crop_area = {0.1, 0.5}}, kPlain, {32, 24});
        CHECK(a.height() == 32);
        CHECK(a.width() == 24);
        double least = 1, most = 0, narrowest = 9, widest = 0, first_row = 9, last_row = 0;
        for (int64_t i = 0; i < 2000; ++i) {
            const View v = a.view(5, 0, i);
            const double box_h = 32.0 * v.y_per_row / double(kPixel),
                         box_w = 24.0 * std::abs(v.x_per_column) / double(kPixel);
            least = std::min(least, box_h * box_w / (h * w)), most = std::max(most, box_h * box_w / (h * w));
            narrowest = std::min(narrowest, box_w / box_h), widest = std::max(widest, box_w / box_h);
            // The box begins half a step before the first pixel's centre.
            const double top = double(v.y0) / double(kPixel) + 0.5 - box_h / 64,
                         left = double(std::min(v.x(0, 0), v.x(0, 23))) / double(kPixel) + 0.5 - box_w / 48;
            CHECK(std::abs(top - std::round(top)) < 0.01);
            CHECK(std::abs(left - std::round(left)) < 0.01);
            CHECK(top > -0.01);
            CHECK(left > -0.01);
            CHECK(top + box_h < h + 0.01);
            CHECK(left + box_w < w + 0.01);
            first_row = std::min(first_row, top), last_row = std::max(last_row, top + box_h);
        }
        // The sides are rounded to pixels, of which there are at least 19.
        CHECK(std::abs(least - 0.1) < 0.02);
        CHECK(std::abs(most - 0.5) < 0.02);
        CHECK(std::abs(narrowest - 0.75) < 0.05);
        CHECK(std::abs(widest - 1.333) < 0.08);
        CHECK(std::abs(first_row) < 0.01);
        CHECK(std::abs(last_row - h) < 0.01);
        // No box of this area and aspect fits into a narrow image, so it is the largest one in the centre.
        const View narrow = Augmenter(100, 12, 1, {.crop_area = {0.999, 1}}, kPlain).view(0, 0, 0);
        CHECK(narrow.x_per_column == kPixel);
        CHECK(narrow.y_per_row == std::lround(0.16 * double(kPixel))); // 16 rows for 100
        CHECK(std::abs(double(narrow.y(0, 0) + narrow.y(99, 0)) / double(kPixel) - 99) < 0.01);
    }

    TEST_CASE("augment: random windows of an image lie inside it, and the central one is that of fit()") {
        for (const int64_t h : {7, 8})
            for (const int64_t w : {5, 6})
                for (int64_t rows = 1; rows <= h; ++rows)
                    for (int64_t columns = 1; columns <= w; ++columns) {
                        const ImageSet set = random_set(1, h, w, 3);
                        const ImageSize window{rows, columns};
                        const Augmenter cropped(h, w, 3, {.crop = true}, kPlain, window);
                        std::set<std::array<int64_t, 2>> seen;
                        for (int64_t i = 0; i < 400; ++i) {
                            const View v = cropped.view(1, 1, i);
                            CHECK(v == View{.y0 = v.y0, .x0 = v.x0});
                            CHECK((v.y0 % kPixel == 0 && v.y0 >= 0 && v.y(rows - 1, 0) <= (h - 1) * kPixel));
                            CHECK((v.x0 % kPixel == 0 && v.x0 >= 0 && v.x(0, columns - 1) <= (w - 1) * kPixel));
                            seen.insert({v.y0, v.x0});
                        }
                        // Of at most 48 windows, 400 draws leave out one with a probability of 1 %; this seed does not.
                        CHECK(seen.size() == size_t((h - rows + 1) * (w - columns + 1)));

                        // Neither call of fit() resizes, since one extent already fits.
                        const std::span<const uint8_t> pixels = set.image(0);
                        const Image image{w, h, 3, 8, {pixels.begin(), pixels.end()}};
                        const Image centre = fit(fit(image, h, columns), rows, columns);
                        std::vector<float> out(centre.pixels.size()), expected(centre.pixels.size());
                        const Augmenter central(h, w, 3, {}, kPlain, window);
                        central.apply(set.image(0), central.view(1, 1, 0), out.data());
                        Augmenter(rows, columns, 3, {}, kPlain).apply(centre.pixels, View{}, expected.data());
                        CHECK(out == expected);
                    }
    }

    TEST_CASE("augment: rejects impossible options") {
        const auto error = [](int64_t channels, const Augment& augment, Normalise normalise = {}, ImageSize window = {}) {
            return error_of([&] { Augmenter(8, 6, channels, augment, normalise, window); });
        };
        CHECK(error(3, {.translate_x = 5, .translate_y = 7, .fill = Fill::reflect, .crop = true}, {}, {8, 1}).empty());
        CHECK(error(3, {.rotate = 180, .scale = {0.01, 1000}, .crop_area = {0.01, 0.02}}).empty());
        CHECK(contains(error(17, {}), "1 to 16 channels"));
        CHECK(contains(error(3, {.translate_x = 6}), "of 0 to 5 pixels in x, less than the images have, got 6; make "
                                                     "--translate or --translate-x smaller, or --size larger"));
        CHECK(contains(error(3, {.translate_y = 8}), "of 0 to 7 pixels in y, less than the images have, got 8; make "
                                                     "--translate or --translate-y smaller"));
        CHECK(contains(error(3, {.translate_y = -1}), "got -1"));
        for (const ImageSize window : {ImageSize{8, 7}, {9, 6}, {8, 0}, {0, 6}, {-1, 6}})
            CHECK(contains(error(3, {}, {}, window), cat("a window of at most 8x6 pixels, got ", window.height, "x")));
        CHECK(contains(error(3, {.crop = true, .crop_area = {0.5, 1}}), "crop or resized-crop, got both; omit one"));
        CHECK(contains(error(3, {.rotate = 181}), "a rotation by 0 to 180 degrees, got 181"));
        CHECK(contains(error(3, {.rotate = -1}), "got -1"));
        CHECK(contains(error(3, {.rotate = NAN}), "got nan"));
        CHECK(contains(error(3, {.scale = {0, 1}}), "a range of scales above 0 and up to 1000, got 0 to 1"));
        CHECK(contains(error(3, {.scale = {2, 1}}), "got 2 to 1"));
        CHECK(contains(error(3, {.scale = {0.001, 1}}), "at most 8192 pixels long, got 10000; make --size smaller"));
        CHECK(contains(error(3, {.crop_area = {0.5, 1.5}}), "a range of areas above 0 and up to 1, got 0.5 to 1.5"));
        CHECK(contains(error(2, {}, {{}, {1, 0}}), "got 0 (channel 1)"));
        const Augmenter a(2, 2, 1, {}, {});
        float out[4];
        CHECK_THROWS_AS(a.apply(std::array<uint8_t, 3>{}, {}, out), Error);
    }

    TEST_CASE("loader: keeps the file order without shuffling, and gives each sample once with it") {
        const ImageSet set = random_set(23, 3, 3, 1);
        LoaderOptions o = options_for(5);
        o.augment = {};
        o.shuffle = Shuffle::never;
        const auto sample = [&](int64_t i) { return view(set, i, false, 0, 0, 3, 3, Fill::zero); };
        {
            Loader loader(set, o);
            CHECK(loader.batches() == 5);
            const Epoch taken = take_epoch(loader, 1);
            REQUIRE(taken.images.size() == 23);
            for (int64_t i = 0; i < 23; ++i) CHECK(taken.images[size_t(i)] == sample(i));
            CHECK(taken.labels == set.labels);
        }
        o.shuffle = Shuffle::epoch;
        Loader loader(set, o);
        const Epoch first = take_epoch(loader, 1), second = take_epoch(loader, 2);
        CHECK(first.images != second.images);
        const std::vector<int64_t> order = permutation(23, o.seed, 1);
        for (size_t i = 0; i < 23; ++i) {
            CHECK(first.images[i] == sample(order[i]));
            CHECK(first.labels[i] == set.labels[size_t(order[i])]);
        }
        o.batch_size = std::numeric_limits<int64_t>::max(); // all samples
        CHECK(Loader(set, o).batches() == 1);
        o.batch_size = 5;
        o.keep_partial = false;
        Loader whole(set, o);
        CHECK(whole.batches() == 4);
        CHECK(take_epoch(whole, 1).images.size() == 20);
        o.batch_size = 24;
        Loader none(set, o);
        CHECK_ERROR("at least 24 samples for a mini-batch, got 23; make batch_size", none.start(1));
        CHECK_ERROR("expected start() before", none.has_next()); // it did not start
    }

    TEST_CASE("loader: 1 to 5 ranks get their parts of the same batches") {
        const ImageSet set = random_set(33, 4, 4, 3);
        LoaderOptions o = options_for(8); // the last batch has 1 sample, so most ranks get none
        o.threads = 0;
        const Epoch all = epoch_of(set, o, 3, 1);
        for (int ranks = 1; ranks <= 5; ++ranks) {
            CAPTURE(ranks);
            CHECK(epoch_of(set, o, 3, ranks) == all);
            o.parts = ranks;
            for (o.first_part = 0; o.first_part <= ranks; ++o.first_part) { // the last one takes no images
                Loader loader(set, o);
                CHECK(loader.batches() == 5);
                loader.start(3);
                for (int64_t b = 0; b < 5; ++b) {
                    const Batch batch = loader.next();
                    CHECK(batch.global_size == (b < 4 ? 8 : 1));
                    CHECK(batch.size == part_range(batch.global_size, ranks, o.first_part).size());
                }
                CHECK_FALSE(loader.has_next());
            }
        }
    }

    TEST_CASE("loader: gives the same batches for any number of threads and any depth") {
        const ImageSet set = random_set(61, 4, 4, 3);
        LoaderOptions o = options_for(4);
        o.threads = 0;
        Loader plain(set, o);
        const Epoch one = take_epoch(plain, 1), two = take_epoch(plain, 2);
        for (const int threads : {1, 2, 5})
            for (const int depth : {1, 2, 7, 40}) {
                o.threads = threads;
                o.depth = depth;
                Loader loader(set, o);
                INFO("threads ", threads, ", depth ", depth);
                CHECK(take_epoch(loader, 1) == one);
                CHECK(take_epoch(loader, 2) == two);
            }
    }

    TEST_CASE("loader: resumes at a batch, restarts in the middle, and can be destroyed at any time") {
        const ImageSet set = random_set(40, 4, 4, 3);
        LoaderOptions o = options_for(3);
        o.threads = 0;
        Loader plain(set, o);
        const Epoch all = take_epoch(plain, 5);
        for (const int threads : {0, 1, 3}) {
            o.threads = threads;
            o.depth = 3;
            Loader loader(set, o);
            for (const int64_t first : {0, 1, 7, 13, 14}) {
                const Epoch rest = take_epoch(loader, 5, first);
                CHECK(rest.labels ==
                      std::vector<int32_t>(all.labels.begin() + std::min<int64_t>(40, first * 3), all.labels.end()));
                CHECK(rest.images ==
                      decltype(rest.images)(all.images.begin() + std::min<int64_t>(40, first * 3), all.images.end()));
            }
            for (int64_t stop = 0; stop < 14; ++stop) { // abandon other epochs after some batches
                loader.start(stop);
                for (int64_t b = 0; b < stop; ++b) loader.next();
            }
            CHECK(take_epoch(loader, 5) == all);
            for (int64_t stop = 0; stop < 4; ++stop) {
                Loader dropped(set, o);
                if (stop) dropped.start(1);
                for (int64_t b = 1; b < stop; ++b) dropped.next();
            }
        }
    }

    TEST_CASE("loader: next() rethrows an error of a thread") {
        for (const int threads : {0, 1, 3}) {
            ImageSet set = random_set(20, 4, 4, 3);
            LoaderOptions o = options_for(4);
            o.threads = threads;
            auto loader = std::make_unique<Loader>(set, o);
            CHECK_ERROR("expected start() before", loader->has_next());
            CHECK_ERROR("expected start() before", loader->next());
            const int32_t last = set.labels.back(); // no thread reads before start()
            set.labels.pop_back();
            loader->start(1);
            for (int again = 0; again < 3; ++again)
                CHECK_ERROR("was changed while the loader used it (epoch 1, batch 0)", loader->next());
            loader.reset(); // its threads may still read the set
            set.labels.push_back(last);
            loader = std::make_unique<Loader>(set, o);
            CHECK(take_epoch(*loader, 1).images.size() == 20);
            CHECK_ERROR("only while has_next()", loader->next());
            CHECK_ERROR("first batch of 0 to 5, got 6", loader->start(1, 6));
        }
    }

    TEST_CASE("loader: rejects impossible options") {
        ImageSet set = random_set(4, 2, 2, 1);
        const auto error = [&](auto change) {
            LoaderOptions o = options_for(2);
            o.augment = {};
            change(o);
            return error_of([&] { Loader(set, o); });
        };
        CHECK(error([](LoaderOptions&) {}).empty());
        CHECK(contains(error([](LoaderOptions& o) { o.batch_size = 0; }), "at least 1 sample, got 0"));
        CHECK(contains(error([](LoaderOptions& o) { o.first_part = 2; }), "below 1, got 1 from 2"));
        CHECK(contains(error([](LoaderOptions& o) { o.parts = 4, o.first_part = 2, o.own_parts = 3; }),
                       "parts of a mini-batch below 4, got 3 from 2"));
        CHECK(contains(error([](LoaderOptions& o) { o.own_parts = 0; }), "below 1, got 0 from 0"));
        CHECK(contains(error([](LoaderOptions& o) { o.depth = 0; }), "depth >= 1"));
        CHECK(contains(error([](LoaderOptions& o) { o.augment.translate_x = 2; }), "translation"));
        set.labels[3] = 3;
        CHECK(contains(error([](LoaderOptions&) {}), "got 3 (loader, image 3)"));
    }

    TEST_CASE("loader: several parts of each mini-batch, one after another") {
        const ImageSet set = random_set(33, 4, 4, 3);
        for (const int threads : {0, 2}) {
            LoaderOptions o = options_for(8); // the last batch has 1 sample
            o.threads = threads, o.parts = 5;
            std::vector<std::unique_ptr<Loader>> single;
            for (o.first_part = 0; o.first_part < o.parts; ++o.first_part) single.push_back(std::make_unique<Loader>(set, o));
            o.first_part = 1, o.own_parts = 3;
            Loader several(set, o);
            CHECK(several.batches() == 5);
            for (const int64_t first : {0, 3}) {
                for (const auto& loader : single) loader->start(2, first);
                several.start(2, first);
                for (int64_t b = first; b < 5; ++b)
                    for (size_t rank = 0; rank < 5; ++rank) {
                        const Batch one = single[rank]->next();
                        if (rank == 0 || rank == 4) continue;
                        REQUIRE(several.has_next());
                        const Batch part = several.next();
                        CHECK((part.index == b && part.global_size == one.global_size && part.first == one.first));
                        CHECK(same_bits(part.x, one.x));
                        CHECK(same_bits(part.labels, one.labels));
                    }
                CHECK_FALSE(several.has_next());
            }
        }
    }

    TEST_CASE("loader: columns are combined by the index of the sample, on any number of ranks and threads") {
        const ImageSet set = random_set(23, 2, 2, 1);
        const Tensor numbers = Tensor::empty_on_host({23, 2}), classes = Tensor::empty_on_host({23}, DType::i32);
        for (int32_t i = 0; i < 23; ++i) {
            numbers.data<float>()[2 * i] = float(i), numbers.data<float>()[2 * i + 1] = float(-i);
            classes.data<int32_t>()[i] = 100 + i;
        }
        const auto draw = [](const Sample& sample, std::span<float> out) {
            Rng random = sample.random();
            for (float& v : out) v = float(sample.index) + float(0.5 * random.uniform());
        };
        const std::vector<Column> columns{rows(numbers), rows(classes), computed({1, 3}, draw)};
        std::map<int32_t, std::array<float, 3>> drawn; // by index, from the first loader
        for (const bool images : {false, true})
            for (const int ranks : {1, 3})
                for (const int threads : {0, 2}) {
                    LoaderOptions o{
                        .batch_size = 5, .keep_partial = true, .seed = 4, .parts = ranks, .threads = threads};
                    std::set<int32_t> seen;
                    for (o.first_part = 0; o.first_part < ranks; ++o.first_part) {
                        const auto loader =
                            images ? std::make_unique<Loader>(set, o, columns) : std::make_unique<Loader>(columns, o);
                        for (loader->start(2); loader->has_next();) {
                            const Batch batch = loader->next();
                            REQUIRE(batch.columns.size() == 3);
                            CHECK(batch.size == batch.columns[1].extent(0));
                            CHECK(batch.columns[0].shape() == Shape{batch.columns[1].extent(0), 2});
                            CHECK(batch.columns[2].shape() == Shape{batch.columns[1].extent(0), 1, 3});
                            CHECK(batch.x.defined() == images);
                            for (int64_t i = 0; i < batch.columns[1].extent(0); ++i) {
                                const int32_t index = batch.columns[1].data<int32_t>()[i] - 100;
                                CHECK(seen.insert(index).second);
                                CHECK(batch.columns[0].data<float>()[2 * i + 1] == float(-index));
                                std::array<float, 3> values;
                                std::copy_n(batch.columns[2].data<float>() + 3 * i, 3, values.begin());
                                CHECK(drawn.try_emplace(index, values).first->second == values);
                                if (images) CHECK(batch.labels.data<int32_t>()[i] == set.labels[size_t(index)]);
                            }
                        }
                    }
                    CHECK(seen.size() == 23);
                }
        CHECK(drawn[3] != drawn[4]);
    }

    TEST_CASE("loader: a call during another is refused") {
        std::vector<std::string> errors;
        std::optional<Loader> loader;
        Column column = computed({}, [&](const Sample&, std::span<float>) {
            std::thread([&] {
                errors = {error_of([&] { loader->next(); }), error_of([&] { loader->start(1); })};
            }).join();
        });
        column.count = 2;
        loader.emplace(std::vector{column}, LoaderOptions{.batch_size = 1, .threads = 0});
        loader->start(0);
        CHECK_NOTHROW(loader->next());
        CHECK(errors.size() == 2);
        for (const std::string& error : errors) CHECK(contains(error, "Loader: expected one call at a time"));
        CHECK(loader->has_next());
    }

    TEST_CASE("loader: rejects columns that do not fit") {
        const ImageSet set = random_set(4, 2, 2, 1);
        const Tensor three = Tensor::zeros({3, 2}), four = Tensor::zeros({4, 2});
        const auto nothing = [](const Sample&, std::span<float>) {};
        CHECK_ERROR("4 samples in every column, got 3 (column 0)", Loader(set, {}, {rows(three)}));
        CHECK_ERROR("got 3 (column 1)", Loader({rows(four), rows(three)}, {}));
        CHECK_ERROR("make one with rows()", Loader({computed({2}, nothing)}, {}));
        CHECK_ERROR("balanced classes or views", Loader({rows(four)}, {.views = true}));
        CHECK_ERROR("columns with a function", Loader({rows(four), {.extents = {1}}}, {}));
        CHECK_ERROR("got a scalar", rows(Tensor::zeros({})));
    }

    TEST_CASE("normalisation: mean 0 and variance 1 over the set, per channel") {
        ImageSet set = random_set(7, 3, 5, 2);
        std::vector<uint8_t> pixels = pixels_of(set);
        for (size_t i = 1; i < pixels.size(); i += 2) pixels[i] = 51; // the second channel is constant
        set.pixels = pixels;
        const Normalise normalise = normalisation_of(set);
        CHECK(normalise.mean[1] == doctest::Approx(0.2));
        CHECK(normalise.deviation[1] == 1);
        const Augmenter augmenter(3, 5, 2, {}, normalise);
        double sum = 0, squares = 0;
        std::array<float, 30> out;
        for (int64_t i = 0; i < 7; ++i) {
            augmenter.apply(set.image(i), augmenter.view(0, 0, i), out.data());
            for (size_t j = 0; j < 30; j += 2) sum += double(out[j]), squares += double(out[j]) * double(out[j]);
        }
        CHECK(std::abs(sum) < 1e-4 * 105); // 105 values, each with a rounding error of about 1e-7
        CHECK(squares == doctest::Approx(105).epsilon(1e-4));
    }

} // TEST_SUITE

} // namespace
} // namespace rg::data
