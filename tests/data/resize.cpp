// Tests resampling: values worked out by hand, a slow formula in double for random sizes, crops, and errors.
// tools/compare_images.py compares with Pillow.
#include "core/rng.h"
#include "data/resize.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg::data {
namespace {

Image image_of(int64_t height, int64_t width, int channels, std::vector<uint8_t> pixels) {
    return {width, height, channels, 8, std::move(pixels)};
}

Image random_image(int64_t height, int64_t width, int channels) {
    Rng rng(3, Purpose::test, 0, uint64_t(height * 1000 + width));
    std::vector<uint8_t> pixels(size_t(height * width * channels));
    for (uint8_t& byte : pixels) byte = uint8_t(rng.next());
    return image_of(height, width, channels, pixels);
}

/// Returns the mean of values[i] with the weights max(0, 1 - |distance| / reach), where the distance goes from source
/// pixel i to the centre of `position`.
double resampled_value(const std::vector<double>& values, int64_t position, int64_t extent) {
    const double scale = double(values.size()) / double(extent), centre = (double(position) + 0.5) * scale;
    double sum = 0, weights = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        const double weight = std::max(0.0, 1 - std::abs(double(i) + 0.5 - centre) / std::max(1.0, scale));
        sum += weight * values[i];
        weights += weight;
    }
    return sum / weights;
}

/// Returns the result of resize() before rounding. It rounds to a byte in between, as resize() does.
std::vector<double> slow_resize(const Image& image, int64_t height, int64_t width) {
    std::vector<double> out;
    for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x)
            for (int64_t c = 0; c < image.channels; ++c) {
                std::vector<double> column;
                for (int64_t row = 0; row < image.height; ++row) {
                    std::vector<double> values;
                    for (int64_t i = 0; i < image.width; ++i)
                        values.push_back(image.pixels[size_t((row * image.width + i) * image.channels + c)]);
                    column.push_back(std::floor(resampled_value(values, x, width) + 0.5));
                }
                out.push_back(resampled_value(column, y, height));
            }
    return out;
}

/// Returns rows [y, y + height) and columns [x, x + width).
std::vector<uint8_t> cut(const Image& image, int64_t y, int64_t x, int64_t height, int64_t width) {
    std::vector<uint8_t> out;
    for (int64_t row = y; row < y + height; ++row) {
        const auto begin = image.pixels.begin() + (row * image.width + x) * image.channels;
        out.insert(out.end(), begin, begin + width * image.channels);
    }
    return out;
}

} // namespace

TEST_SUITE("data") {
    TEST_CASE("resize: values worked out by hand") {
        // To half of the size, the pixels around a centre have the weights 1 3 3 1; at an edge, 3 3 1 remain.
        const Image row = image_of(1, 6, 1, {0, 8, 16, 80, 160, 240});
        // (3*0 + 3*8 + 16) / 7, (8 + 3*16 + 3*80 + 160) / 8, (80 + 3*160 + 3*240) / 7
        CHECK(resize(row, 1, 3).pixels == std::vector<uint8_t>{6, 57, 183});
        const Image column = image_of(6, 1, 1, row.pixels);
        CHECK(resize(column, 3, 1).pixels == std::vector<uint8_t>{6, 57, 183});
        // To twice the size, a pixel and its neighbour have the weights 3 and 1; the edge has no neighbour.
        CHECK(resize(image_of(1, 2, 2, {0, 200, 100, 40}), 1, 4).pixels ==
              std::vector<uint8_t>{0, 200, 25, 160, 75, 80, 100, 40});
        // Both axes: each pass rounds, the horizontal one first, 0.5 upwards: (3*1 + 1*0) / 4 -> 1, then (3*1) / 4
        // -> 1.
        CHECK(resize(image_of(2, 2, 1, {1, 0, 0, 0}), 4, 4).pixels ==
              std::vector<uint8_t>{1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    }

    TEST_CASE("resize: 1-pixel images, and constant images of every number of channels") {
        for (int channels = 1; channels <= 16; ++channels) {
            std::vector<uint8_t> pixel, expected;
            for (int c = 0; c < channels; ++c) pixel.push_back(uint8_t(255 - 16 * c));
            for (int i = 0; i < 5 * 3; ++i) expected.insert(expected.end(), pixel.begin(), pixel.end());
            const Image grown = resize(image_of(1, 1, channels, pixel), 5, 3);
            CHECK(grown.height == 5);
            CHECK(grown.width == 3);
            CHECK(grown.channels == channels);
            CHECK(grown.pixels == expected);
            CHECK(resize(grown, 1, 1).pixels == pixel);
            CHECK(resize(grown, 5, 3).pixels == expected);
        }
        CHECK(resize(image_of(1, 2, 1, {0, 1}), 1, 1).pixels == std::vector<uint8_t>{1}); // 0.5 is rounded up
    }

    TEST_CASE("resize: equals a slow formula in double") {
        struct Size {
            int64_t height, width, to_height, to_width;
        };
        for (const auto& size : {Size{9, 13, 4, 5}, {5, 4, 9, 13}, {9, 13, 9, 6}, {9, 13, 20, 13}, {17, 3, 2, 7},
                                 {1, 40, 3, 7}, {40, 1, 1, 1}, {7, 7, 7, 7}, {30, 31, 29, 32}})
            for (const int channels : {1, 2, 3, 4, 5}) {
                INFO("height ", size.height, ", width ", size.width, ", channels ", channels);
                const Image image = random_image(size.height, size.width, channels);
                const Image resized = resize(image, size.to_height, size.to_width);
                const std::vector<double> expected = slow_resize(image, size.to_height, size.to_width);
                REQUIRE(resized.pixels.size() == expected.size());
                double largest = 0;
                for (size_t i = 0; i < expected.size(); ++i)
                    largest = std::max(largest, std::abs(expected[i] - resized.pixels[i]));
                // The last rounding is off by 0.5. The horizontal pass may round a tie the other way, since the weights
                // have 22 bits; then one row is off by 1.
                CHECK(largest <= 1.5);
            }
    }

    TEST_CASE("resize: fit covers the size and crops the centre") {
        const Image image = random_image(20, 31, 3);
        CHECK(fit(image, 20, 31).pixels == image.pixels);
        // One factor of 0.5: 31 -> 15 columns, of which columns 2 to 11 remain (2.5 is rounded to the even number).
        CHECK(fit(image, 10, 10).pixels == cut(resize(image, 10, 15), 0, 2, 10, 10));
        // Room of 3: 1.5 is rounded to 2.
        CHECK(fit(image, 10, 12).pixels == cut(resize(image, 10, 15), 0, 2, 10, 12));
        // The width decides: 31 -> 62, 20 -> 40 rows, of which rows 4 to 35 remain.
        CHECK(fit(image, 32, 62).pixels == cut(resize(image, 40, 62), 4, 0, 32, 62));
        CHECK(fit(image, 64, 3).pixels == cut(resize(image, 64, 99), 0, 48, 64, 3));
        const Image tall = random_image(31, 20, 1), fitted = fit(tall, 10, 10);
        CHECK(fitted.pixels == cut(resize(tall, 15, 10), 2, 0, 10, 10));
        CHECK(fitted.height == 10);
        CHECK(fitted.width == 10);
        // Resized as a whole, this image would take 200 GB.
        CHECK(fit(image_of(1 << 20, 1, 1, std::vector<uint8_t>(1 << 20, 7)), 448, 448).pixels ==
              std::vector<uint8_t>(448 * 448, 7));
    }

    TEST_CASE("resize: refuses sizes and images that it cannot handle") {
        const Image image = random_image(4, 4, 3);
        for (const auto f : {resize, fit}) {
            CHECK_ERROR("expected a size of 1 to 134217728 pixels, got 0 x 4", f(image, 0, 4));
            CHECK_THROWS_AS(f(image, 4, 0), Error);
            CHECK_THROWS_AS(f(image, 4, -1), Error);
            CHECK_THROWS_AS(f(image, 1 << 20, 1 << 20), Error);
            Image deep = image;
            deep.bit_depth = 16;
            CHECK_ERROR("8 bits and 1 to 16 channels", f(deep, 2, 2));
            CHECK_THROWS_AS(f(random_image(2, 2, 17), 2, 2), Error);
            CHECK_THROWS_AS(f(Image{}, 2, 2), Error);
            Image cut_off = image;
            cut_off.pixels.pop_back();
            CHECK_ERROR("got 47 bytes", f(cut_off, 2, 2));
        }
    }
}

} // namespace rg::data
