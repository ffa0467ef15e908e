// Tests the JPEG decoder with files of libjpeg-turbo, whose pixels must be those of Pillow, with truncated and changed
// files, and with a message for each violation. Tests the arithmetic against formulas.
#include "core/atomic_file.h"
#include "core/rng.h"
#include "data/inflate.h"
#include "data/jpeg.h"
#include "data/jpeg_pixels.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <doctest/doctest.h>

namespace rg::data {
namespace {

using Vec = std::vector<uint8_t>;

struct JpegFile {
    const char* name;
    int64_t width, height;
    int channels;
    uint32_t crc; // CRC-32 of the pixels
};

/// The files in tests/data/jpeg, which libjpeg-turbo 2.1.5 has written. The CRCs are those of the pixels in Pillow 9.4,
/// after exif_transpose() and convert("RGB").
const JpegFile kFiles[] = {
    {"baseline-420", 19, 13, 3, 0x45B9D859},
    {"progressive-420", 19, 13, 3, 0x45B9D859},
    {"grey", 11, 9, 1, 0xF9F06CB4},
    {"restarts-422", 21, 17, 3, 0xD22E492B}, // a restart marker after each MCU
    {"scans-440", 10, 21, 3, 0xE0D3FA39},    // one component per scan
    {"411", 37, 7, 3, 0xE7A15363},
    {"rgb", 9, 8, 3, 0x6EB2D9E7},
    {"progressive-cmyk", 7, 9, 3, 0xC45B0B77},
    {"ycck-420", 18, 15, 3, 0xACB88BB4},
    {"16-bit-quantization", 17, 9, 3, 0x8A482550},
    {"grey-noise", 13, 9, 1, 0x67EE6ADC}, // codes of up to 16 bits
    {"orientation-6", 6, 11, 3, 0x9E44134C},
    {"no-huffman-tables", 19, 13, 3, 0xF7031A96}, // as in the frames of webcams
};

Vec file_named(const std::string& name) {
    const std::string bytes = read_file(cat(RG_JPEG_DIR "/", name, ".jpg")); // the build defines the folder
    return {bytes.begin(), bytes.end()};
}

std::string jpeg_error(const Vec& bytes) {
    return error_of([&] { decode_jpeg(bytes, "t.jpg"); });
}

/// Returns the offset of the segment with this marker.
size_t segment_at(const Vec& file, int marker) {
    for (size_t at = 2; at + 4 < file.size() && file[at] == 0xFF; at += 2 + size_t(file[at + 2] << 8 | file[at + 3]))
        if (file[at + 1] == marker) return at;
    fail("no marker ", marker);
}

/// Returns the file with a byte of a segment set; offset 0 is the byte FF of the marker.
Vec with_byte(Vec file, int marker, size_t offset, int value) {
    file[segment_at(file, marker) + offset] = uint8_t(value);
    return file;
}

Vec without_segment(Vec file, int marker) {
    const size_t at = segment_at(file, marker), length = 2 + size_t(file[at + 2] << 8 | file[at + 3]);
    file.erase(file.begin() + int64_t(at), file.begin() + int64_t(at + length));
    return file;
}

Vec with_bytes_at(Vec file, size_t at, const Vec& bytes) {
    file.insert(file.begin() + int64_t(at), bytes.begin(), bytes.end());
    return file;
}

constexpr int kSof0 = 0xC0, kDht = 0xC4, kSos = 0xDA, kDqt = 0xDB;

TEST_SUITE("data") {
    TEST_CASE("jpeg: has the pixels of Pillow") {
        for (const JpegFile& file : kFiles) {
            CAPTURE(file.name);
            const Vec bytes = file_named(file.name);
            CHECK(is_jpeg(bytes));
            const Image image = decode_jpeg(bytes, "t.jpg");
            CHECK(image.width == file.width);
            CHECK(image.height == file.height);
            CHECK(image.channels == file.channels);
            CHECK(image.bit_depth == 8);
            CHECK(crc32(image.pixels) == file.crc);
        }
        CHECK(!is_jpeg({}));
        CHECK(!is_jpeg(Vec{0x89, 'P', 'N', 'G'}));
    }

    TEST_CASE("jpeg: applies each orientation") {
        const Vec file = file_named("orientation-6");
        const size_t value = segment_at(file, 0xE1) + 4 + 6 + 8 + 2 + 12 + 9;
        REQUIRE(file[value] == 6);
        const auto turned = [&](int orientation) {
            Vec changed = file;
            changed[value] = uint8_t(orientation);
            return decode_jpeg(changed, "t.jpg");
        };
        const Image plain = turned(1);
        CHECK(turned(0).pixels == plain.pixels);
        CHECK(turned(9).pixels == plain.pixels);
        const int64_t w = plain.width, h = plain.height;
        for (int orientation = 2; orientation <= 8; ++orientation) {
            CAPTURE(orientation);
            const Image image = turned(orientation);
            REQUIRE(image.width == (orientation < 5 ? w : h));
            bool same = true;
            for (int64_t y = 0; y < h; ++y)
                for (int64_t x = 0; x < w; ++x) {
                    // Moves the sides of the stored image as the table in Exif 2.32, section 4.6.4, says.
                    const std::array<std::array<int64_t, 2>, 9> target = {
                        {{}, {x, y}, {w - 1 - x, y}, {w - 1 - x, h - 1 - y}, {x, h - 1 - y}, // orientations 0 to 4
                         {y, x}, {h - 1 - y, x}, {h - 1 - y, w - 1 - x}, {y, w - 1 - x}}};
                    const auto [to_x, to_y] = target[size_t(orientation)];
                    for (int64_t k = 0; k < 3; ++k)
                        same &= image.pixels[size_t((to_y * image.width + to_x) * 3 + k)] ==
                                plain.pixels[size_t((y * w + x) * 3 + k)];
                }
            CHECK(same);
        }
    }

    TEST_CASE("jpeg: the inverse DCT rounds almost like an exact one") {
        Rng rng(7, Purpose::test);
        Vec all;
        constexpr double kPi = 3.14159265358979323846;
        for (int round = 0; round < 300; ++round) {
            int16_t block[64] = {};
            const int count = 1 + round % 64;
            for (int i = 0; i < count; ++i) {
                const uint32_t k = rng.uniform_below(64);
                block[k] = int16_t(int(rng.uniform_below(601)) - 300);
            }
            uint8_t samples[64];
            write_jpeg_block(block, false, samples, 8);
            all.insert(all.end(), samples, samples + 64);
            for (int y = 0; y < 8; ++y)
                for (int x = 0; x < 8; ++x) {
                    double sum = 128; // T.81, section A.3.3
                    for (int v = 0; v < 8; ++v)
                        for (int u = 0; u < 8; ++u)
                            sum += block[8 * v + u] * (u ? 1 : std::sqrt(0.5)) * (v ? 1 : std::sqrt(0.5)) / 4 *
                                   std::cos((2 * x + 1) * u * kPi / 16) * std::cos((2 * y + 1) * v * kPi / 16);
                    CHECK(std::abs(samples[8 * y + x] - std::clamp(sum, 0.0, 255.0)) < 0.6);
                }
        }
        CHECK(crc32(all) == 0x08C3243D);         // few samples show how the factors are rounded
        for (int dc = -1200; dc <= 1200; ++dc) { // the shortcut gives the same samples
            const int16_t block[64] = {int16_t(dc)};
            uint8_t quick[64], slow[64];
            write_jpeg_block(block, true, quick, 8);
            write_jpeg_block(block, false, slow, 8);
            CHECK(std::equal(quick, quick + 64, slow));
        }
    }

    TEST_CASE("jpeg: converts every chroma to RGB") {
        JpegPlane planes[3];
        for (int k = 0; k < 3; ++k) {
            planes[k].width = planes[k].stride = 256, planes[k].height = 256;
            for (int y = 0; y < 256; ++y)
                for (int x = 0; x < 256; ++x) planes[k].samples.push_back(uint8_t(k == 0 ? 100 : k == 1 ? y : x));
        }
        const JpegPlane* const pointers[] = {&planes[0], &planes[1], &planes[2]};
        const Image image = jpeg_image(256, 256, JpegColours::ycc, pointers);
        bool same = true;
        for (int y = 0; y < 256; ++y)
            for (int x = 0; x < 256; ++x) { // the factors 1.402, 0.344136, 0.714136 and 1.772 in units of 1/65536
                const int cb = y - 128, cr = x - 128;
                const int wanted[] = {91881 * cr, -22554 * cb - 46802 * cr, 116130 * cb};
                for (int k = 0; k < 3; ++k)
                    same &= image.pixels[size_t((y * 256 + x) * 3 + k)] ==
                            std::clamp(100 + ((wanted[k] + 32768) >> 16), 0, 255);
            }
        CHECK(same);
    }

    TEST_CASE("jpeg: skips bytes between segments and after the end") {
        const Vec good = file_named("baseline-420");
        const Image image = decode_jpeg(good, "t.jpg");
        Vec changed =
            with_bytes_at(good, segment_at(good, kSof0), {1, 2, 0xFF, 0, 0xFF, 0xFF}); // the last is a fill byte
        changed = with_bytes_at(changed, segment_at(good, kDqt), {0xFF, 0xFE, 0, 4, 'h', 'i'});
        changed = with_bytes_at(changed, changed.size() - 2, {9, 9});
        changed = with_bytes_at(changed, changed.size(), {0xFF, 0xD8, 3});
        CHECK(decode_jpeg(changed, "t.jpg").pixels == image.pixels);
    }

    TEST_CASE("jpeg: has a message for each violation") {
        const Vec good = file_named("baseline-420"), progressive = file_named("progressive-420"),
                  no_tables = without_segment(good, kDht);
        const Vec end{0xFF, 0xD9};
        const struct {
            const char* text;
            Vec file;
        } cases[] = {
            {"start of a JPEG", {0x89, 'P', 'N', 'G'}},
            {"got a lossless file", with_byte(good, kSof0, 1, 0xC3)},
            {"got a lossless file", with_byte(good, kSof0, 1, 0xCB)},
            {"got a hierarchical file", with_byte(good, kSof0, 1, 0xC5)},
            {"got a hierarchical file", with_byte(good, kSof0, 1, 0xDE)},
            {"got arithmetic coding", with_byte(good, kSof0, 1, 0xC9)},
            {"got arithmetic coding", with_byte(good, kSof0, 1, 0xCA)},
            {"samples of 8 bits, got 12", with_byte(with_byte(good, kSof0, 4, 12), kSof0, 1, 0xC1)},
            {"a height after the image is not supported", with_byte(good, kSof0, 6, 0)},
            {"expected a width", with_byte(good, kSof0, 8, 0)},
            {"at most 134217728 pixels, got 65299 x 65293", with_byte(with_byte(good, kSof0, 5, 255), kSof0, 7, 255)},
            {"at least one bit for each", with_byte(with_byte(good, kSof0, 5, 20), kSof0, 7, 20)},
            {"frame header: unexpected length 15", with_byte(good, kSof0, 9, 2)},
            {"sampling factors of 1 to 4, got 5 x 1", with_byte(good, kSof0, 11, 0x51)},
            {"sampling factors of 1 to 4, got 1 x 0", with_byte(good, kSof0, 11, 0x10)},
            {"at most 10 blocks per MCU, got 18", with_byte(good, kSof0, 11, 0x44)},
            {"expected quantization table 0 to 3, got 4", with_byte(good, kSof0, 12, 4)},
            {"expected quantization table 3 before the scan", with_byte(good, kSof0, 12, 3)},
            {"expected quantization table 0 to 3, got 7", with_byte(good, kDqt, 4, 7)},
            {"quantization table: expected 128 bytes, got 64", with_byte(good, kDqt, 4, 0x10)},
            {"expected Huffman table 0 to 3, got 4", with_byte(good, kDht, 4, 4)},
            {"more codes than their lengths allow", with_byte(with_byte(good, kDht, 5, 3), kDht, 6, 0)},
            {"DC symbols of 0 to 15, got 16", with_byte(good, kDht, 21, 16)},
            {"expected Huffman tables 2 and 2 before the scan", with_byte(no_tables, kSos, 6, 0x22)},
            {"expected a frame header before a scan", without_segment(good, kSof0)},
            {"expected one frame header", with_bytes_at(good, segment_at(good, kSos), {0xFF, 0xC0, 0, 2})},
            {"expected a frame header before the end", {0xFF, 0xD8, 0xFF, 0xD9}},
            {"scan header: unexpected component 9", with_byte(good, kSos, 5, 9)},
            {"scan header: unexpected component 1", with_byte(good, kSos, 7, 1)},
            {"expected Huffman tables 0 to 3, got 4", with_byte(good, kSos, 6, 0x40)},
            {"scan header: unexpected length", with_byte(good, kSos, 4, 2)},
            {"image data of 3 components, got fewer", with_bytes_at(good, segment_at(good, kSos), end)},
            {"restart interval: expected 2 bytes", with_bytes_at(good, 2, {0xFF, 0xDD, 0, 3, 1})},
            {"expected a segment of at least 2 bytes, got 1", with_bytes_at(good, 2, {0xFF, 0xFE, 0, 1})},
            {"expected a marker, got the end of the file; the file is cut off", Vec(good.begin(), good.end() - 2)},
            {"scan header: invalid coefficients 0 to 5", with_byte(progressive, kSos, 12, 5)},
            {"scan header: invalid coefficients 1 to 0", with_byte(progressive, kSos, 11, 1)},
            {"bits 3 and 1", with_byte(progressive, kSos, 13, 0x31)},
            {"bits 0 and 14", with_byte(progressive, kSos, 13, 14)},
        };
        for (const auto& c : cases) {
            const std::string error = jpeg_error(c.file);
            INFO("text ", std::string(c.text), ", error ", error);
            CHECK(contains(error, c.text));
            CHECK((contains(error, "t.jpg") && error.find('\n') == std::string::npos));
        }
    }

    TEST_CASE("jpeg: decodes damaged files to the pixels of Pillow") {
        const Vec good = file_named("baseline-420"), restarts = file_named("restarts-422"),
                  progressive = file_named("progressive-420");
        const size_t data = segment_at(good, kSos) + 14;
        constexpr std::array<uint8_t, 2> kSecond = {0xFF, 0xD1};
        const auto second = std::search(restarts.begin(), restarts.end(), kSecond.begin(), kSecond.end());
        REQUIRE(second != restarts.end());
        const auto with_marker = [&](int marker) {
            Vec changed = restarts;
            changed[size_t(second - restarts.begin()) + 1] = uint8_t(marker);
            return changed;
        };
        Vec no_marker = restarts, flipped = good, short_end(good.begin(), good.begin() + int64_t(data) + 60);
        no_marker.erase(no_marker.begin() + (second - restarts.begin()), no_marker.begin() + (second - restarts.begin()) + 2);
        flipped[data + 40] ^= 255;
        short_end.insert(short_end.end(), {0xFF, 0xD9});
        Vec lost_blocks = file_named("grey"); // all but the first of four
        lost_blocks.erase(lost_blocks.begin() + int64_t(segment_at(lost_blocks, kSos)) + 14, lost_blocks.end() - 2);
        const struct {
            const char* damage;
            Vec file;
            uint32_t crc;
        } cases[] = {
            {"got marker 213", with_marker(0xD5), 0xD22E492B}, // stands for the right one
            {"got marker 210", with_marker(0xD2), 0x00B11A7A}, // of the interval after the next
            {"got marker 208", with_marker(0xD0), 0xADCFD5FF}, // of an interval before
            {"got marker 210", no_marker, 0xADCFD5FF},
            {"no Huffman code", with_bytes_at(good, data, Vec(64, 0xFE)), 0xD08374BD},
            {"no Huffman code", flipped, 0xF565B3E1},
            {"expected more image data, got a marker", short_end, 0x13CB1DF6},
            {"expected more image data, got a marker", lost_blocks, 0x6877E886},
            {"does not continue earlier scans", with_byte(progressive, kSos, 13, 0x21), 0},
        };
        for (const auto& c : cases) {
            const Image image = decode_jpeg(c.file, "t.jpg");
            CHECK(image.damage == Containing{c.damage, "t.jpg"});
            if (c.crc) CHECK(crc32(image.pixels) == c.crc);
        }
        CHECK(decode_jpeg(good, "t.jpg").damage.empty());
    }

    TEST_CASE("jpeg: bounds the scans by the size of the file") {
        // 32768 blocks of one colour in scans of 14 bytes, each for one bit of a coefficient
        const auto with_scans = [](int count) {
            Vec file{0xFF, 0xD8, 0xFF, kDqt, 0, 67, 0};
            file.insert(file.end(), 64, 1);
            const auto add = [&](const Vec& bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); };
            add({0xFF, 0xC2, 0, 11, 8, 4, 0, 8, 0, 1, 1, 0x11, 0}); // 1024 rows of 2048 pixels
            for (const int code : {0, 0x10}) {
                add({0xFF, kDht, 0, 20, uint8_t(code), 1});
                file.insert(file.end(), 15, 0);
                file.push_back(code ? 0xE0 : 0); // no coefficients in the next 16384 blocks
            }
            add({0xFF, kSos, 0, 8, 1, 1, 0, 0, 0, 0});
            file.insert(file.end(), 32768 / 8, 0);
            for (int i = 0; i < count; ++i) {
                const int low = 13 - i / 63;
                add({0xFF, kSos, 0, 8, 1, 1, 0, uint8_t(1 + i % 63), uint8_t(1 + i % 63),
                     uint8_t((low < 13 ? (low + 1) << 4 : 0) | low), 0, 0, 0, 0});
            }
            add({0xFF, 0xD9});
            return file;
        };
        const Image image = decode_jpeg(with_scans(12), "t.jpg");
        CHECK(image.damage.empty());
        CHECK(std::ranges::all_of(image.pixels, [](uint8_t byte) { return byte == 128; }));
        CHECK(jpeg_error(with_scans(100)) == Containing{"at most 128 blocks of all scans for each of", "t.jpg"});
    }

    TEST_CASE("jpeg: rejects every truncation, and survives every changed byte") {
        for (const char* name : {"baseline-420", "progressive-420", "restarts-422"}) {
            CAPTURE(name);
            const Vec good = file_named(name);
            for (size_t cut = 0; cut < good.size(); ++cut) {
                CAPTURE(cut);
                const std::string error = jpeg_error({good.begin(), good.begin() + int64_t(cut)});
                CHECK(contains(error, cut < 3 ? "start of a JPEG" : "the file is cut off"));
            }
            for (size_t i = 0; i < good.size(); ++i)
                for (const int change : {1, 2, 16, 0x80, 0xFF}) {
                    Vec bad = good;
                    bad[i] ^= uint8_t(change);
                    Image image;
                    if (!error_of([&] { image = decode_jpeg(bad, "t"); }).empty()) continue;
                    CHECK(image.pixels.size() == size_t(image.width * image.height * image.channels));
                }
        }
    }

} // TEST_SUITE

} // namespace
} // namespace rg::data
