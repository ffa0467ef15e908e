// Tests the PNG reader and writer. The test has its own encoder (stored blocks, all filters) for every colour type,
// depth and interlacing. It also tests every violation, truncation and changed byte, and conversions.
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/rng.h"
#include "ringgrad/data/inflate.h"
#include "ringgrad/data/png.h"
#include "ringgrad/tests/temp_dir.h"

#include <array>
#include <cstdlib>
#include <doctest/doctest.h>

namespace rg::data {
namespace {

using Vec = std::vector<uint8_t>;

void put32(Vec& out, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(uint8_t(value >> shift));
}

Vec chunk(const std::string& type, const Vec& body) {
    Vec out, covered(type.begin(), type.end());
    covered.insert(covered.end(), body.begin(), body.end());
    put32(out, uint32_t(body.size()));
    out.insert(out.end(), covered.begin(), covered.end());
    put32(out, crc32(covered));
    return out;
}

Vec stored_zlib(const Vec& raw) {
    Vec out{0x78, 0x01};
    size_t at = 0;
    do {
        const size_t n = std::min<size_t>(raw.size() - at, 65535);
        for (const size_t v : {size_t(at + n == raw.size()), n & 255, n >> 8, ~n & 255, ~n >> 8 & 255})
            out.push_back(uint8_t(v));
        out.insert(out.end(), raw.begin() + int64_t(at), raw.begin() + int64_t(at + n));
        at += n;
    } while (at < raw.size());
    put32(out, adler32(raw));
    return out;
}

Vec join(std::initializer_list<Vec> parts) {
    Vec out{0x89, 'P', 'N', 'G', 13, 10, 26, 10};
    for (const Vec& part : parts) out.insert(out.end(), part.begin(), part.end());
    return out;
}

Vec ihdr(uint32_t w, uint32_t h, int depth, int colour, int interlace = 0, int compression = 0, int filter = 0) {
    Vec body;
    put32(body, w);
    put32(body, h);
    for (const int v : {depth, colour, compression, filter, interlace}) body.push_back(uint8_t(v));
    return chunk("IHDR", body);
}

int samples_of(int colour) { return std::array{1, 0, 3, 1, 2, 0, 4}[size_t(colour)]; }

/// Makes a random image as samples [h w samples], and its file.
struct Picture {
    int64_t w, h;
    int depth, colour;
    bool interlaced, transparent;
    std::vector<int> samples, key; // key: the transparent colour
    Vec palette, alpha;

    Picture(int64_t w_, int64_t h_, int depth_, int colour_, bool interlaced_, bool transparent_, Rng& rng)
        : w(w_), h(h_), depth(depth_), colour(colour_), interlaced(interlaced_), transparent(transparent_) {
        const uint32_t entries = colour == 3 ? std::max(2u, (1u << depth) * 3 / 4) : 0;
        for (uint32_t i = 0; i < 3 * entries; ++i) palette.push_back(uint8_t(rng.next()));
        for (uint32_t i = 0; transparent && i < entries / 2; ++i) alpha.push_back(uint8_t(rng.next()));
        const int n = samples_of(colour);
        // Use few different values, so that the transparent colour and similar colours occur.
        std::array<int, 3> values;
        for (int& v : values) v = int(rng.uniform_below(entries ? entries : 1u << depth));
        for (int64_t i = 0; i < w * h * n; ++i) samples.push_back(values[rng.uniform_below(3)]);
        if (transparent && colour != 3) key.assign(samples.begin(), samples.begin() + n);
    }

    int at(int64_t y, int64_t x, int k) const { return samples[size_t((y * w + x) * samples_of(colour) + k)]; }

    /// Returns the filtered rows of the pixels (x0 + i * dx, y0 + j * dy). The filter changes with each row.
    void append_pass(Vec& raw, int64_t x0, int64_t y0, int64_t dx, int64_t dy, int& filter) const {
        const int n = samples_of(colour);
        const size_t step = size_t(std::max(1, n * depth / 8));
        Vec up;
        for (int64_t y = y0; y < h && x0 < w; y += dy) {
            Vec row;
            int used = 0;
            for (int64_t x = x0; x < w; x += dx)
                for (int k = 0; k < n; ++k)
                    for (int b = depth - 1; b >= 0; --b, ++used) {
                        if (used % 8 == 0) row.push_back(0);
                        row.back() = uint8_t(row.back() | (at(y, x, k) >> b & 1) << (7 - used % 8));
                    }
            up.resize(row.size());
            raw.push_back(uint8_t(filter));
            for (size_t i = 0; i < row.size(); ++i) {
                const int a = i < step ? 0 : row[i - step], b = up[i], c = i < step ? 0 : up[i - step], p = a + b - c;
                const int paeth = std::abs(p - a) <= std::abs(p - b) && std::abs(p - a) <= std::abs(p - c) ? a
                                  : std::abs(p - b) <= std::abs(p - c)                                     ? b
                                                                                                           : c;
                raw.push_back(uint8_t(row[i] - std::array{0, a, b, (a + b) / 2, paeth}[size_t(filter)]));
            }
            up = row;
            filter = (filter + 1) % 5;
        }
    }

    Vec raw(int filter) const {
        Vec out;
        if (!interlaced) {
            append_pass(out, 0, 0, 1, 1, filter);
            return out;
        }
        append_pass(out, 0, 0, 8, 8, filter);
        append_pass(out, 4, 0, 8, 8, filter);
        append_pass(out, 0, 4, 4, 8, filter);
        append_pass(out, 2, 0, 4, 4, filter);
        append_pass(out, 0, 2, 2, 4, filter);
        append_pass(out, 1, 0, 2, 2, filter);
        append_pass(out, 0, 1, 1, 2, filter);
        return out;
    }

    Vec file(int first_filter = 0) const {
        Vec trns = alpha;
        for (const int v : key) trns.insert(trns.end(), {uint8_t(v >> 8), uint8_t(v)});
        const Vec data = stored_zlib(raw(first_filter));
        const auto half = data.begin() + int64_t(data.size() / 2);
        return join({ihdr(uint32_t(w), uint32_t(h), depth, colour, interlaced), chunk("gAMA", {0, 0, 177, 143}),
                     palette.empty() ? Vec{} : chunk("PLTE", palette), trns.empty() ? Vec{} : chunk("tRNS", trns),
                     chunk("IDAT", {data.begin(), half}), chunk("IDAT", {}), chunk("IDAT", {half, data.end()}),
                     chunk("tEXt", {'a', 0, 'b'}), chunk("IEND", {})});
    }

    /// Returns RGBA as the specification defines it, with 8 bits or 16 bits big-endian.
    Vec rgba() const {
        Vec out;
        const int top = depth == 16 ? 65535 : 255;
        for (int64_t y = 0; y < h; ++y)
            for (int64_t x = 0; x < w; ++x) {
                std::array<int, 4> p;
                const int first = at(y, x, 0);
                if (colour == 3) {
                    for (size_t k = 0; k < 3; ++k) p[k] = palette[size_t(first) * 3 + k];
                    p[3] = size_t(first) < alpha.size() ? alpha[size_t(first)] : 255;
                } else {
                    const bool grey = colour == 0 || colour == 4;
                    for (int k = 0; k < 3; ++k)
                        p[size_t(k)] = int(int64_t{at(y, x, grey ? 0 : k)} * top / ((1 << depth) - 1));
                    p[3] = colour >= 4 ? at(y, x, grey ? 1 : 3) : top;
                    bool same = !key.empty();
                    for (size_t k = 0; k < key.size(); ++k) same = same && at(y, x, int(k)) == key[k];
                    if (same) p[3] = 0;
                }
                for (const int v : p) {
                    if (depth == 16) out.push_back(uint8_t(v >> 8));
                    out.push_back(uint8_t(v));
                }
            }
        return out;
    }
};

std::string png_error(const Vec& bytes) {
    return error_of([&] { decode_png(bytes, "t.png"); });
}

/// Returns a header followed by these chunks.
Vec with(const Vec& header, std::initializer_list<Vec> rest) {
    Vec out = join({header});
    for (const Vec& part : rest) out.insert(out.end(), part.begin(), part.end());
    return out;
}

TEST_SUITE("data") {
    TEST_CASE("png: reads every colour type, depth, interlacing and transparency") {
        Rng rng(3, Purpose::test);
        for (const int colour : {0, 2, 3, 4, 6})
            for (const int depth : {1, 2, 4, 8, 16}) {
                if ((colour == 3 && depth == 16) || (colour != 0 && colour != 3 && depth < 8)) continue;
                for (const bool interlaced : {false, true})
                    for (const bool transparent : {false, true}) {
                        if (transparent && colour >= 4) continue;
                        for (const auto& size : {std::pair{1, 1}, {2, 9}, {5, 3}, {8, 8}, {17, 13}, {33, 10}}) {
                            const int w = size.first, h = size.second;
                            const Picture picture(w, h, depth, colour, interlaced, transparent, rng);
                            for (int filter = 0; filter < 5; ++filter) { // the filter of the first row
                                const Image image = decode_png(picture.file(filter), "t.png");
                                CAPTURE(colour);
                                CAPTURE(depth);
                                CAPTURE(interlaced);
                                CAPTURE(transparent);
                                CAPTURE(w);
                                CHECK(image.width == w);
                                CHECK(image.height == h);
                                CHECK(image.bit_depth == (depth == 16 ? 16 : 8));
                                CHECK(image.channels == (colour == 3 ? 3 : samples_of(colour)) + transparent);
                                CHECK(to_rgba(image).pixels == picture.rgba());
                            }
                        }
                    }
            }
    }

    TEST_CASE("png: has a message for each violation") {
        const Vec header = ihdr(2, 2, 8, 2), end = chunk("IEND", {}), data = chunk("IDAT", stored_zlib(Vec(14))),
                  plte = chunk("PLTE", Vec(9));
        const Vec indexed = ihdr(2, 2, 8, 3), indices = chunk("IDAT", stored_zlib(Vec(6)));
        REQUIRE(png_error(with(header, {data, end})).empty());
        REQUIRE(png_error(with(indexed, {plte, indices, end})).empty());
        const auto only = [&](const Vec& head) { return with(head, {data, end}); };
        Vec bad_filter(14);
        bad_filter[7] = 5;
        Vec bad_crc = with(header, {data, end});
        bad_crc.back() ^= 1;
        const struct {
            const char* text;
            Vec file;
        } cases[] = {
            {"PNG signature", {1, 2, 3}},
            {"got the end of the file", join({})},
            {"expected IHDR first, got IDAT", only(data)},
            {"expected one IHDR", with(header, {header, data, end})},
            {"IHDR: expected 13 bytes", only(chunk("IHDR", Vec(12)))},
            {"width and height", only(ihdr(0, 2, 8, 2))},
            {"width and height", only(ihdr(2, 0x80000000u, 8, 2))},
            {"at most 67108864 pixels", only(ihdr(0x7FFFFFFF, 0x7FFFFFFF, 16, 6))},
            {"at most 67108864 pixels", only(ihdr(8193, 8192, 8, 0))},
            {"colour type 0, 2, 3, 4 or 6, got 5", only(ihdr(2, 2, 8, 5))},
            {"bit depth 3", only(ihdr(2, 2, 3, 0))},
            {"bit depth 4 is not one of colour type 2", only(ihdr(2, 2, 4, 2))},
            {"bit depth 16 is not one of colour type 3", only(ihdr(2, 2, 16, 3))},
            {"compression method", only(ihdr(2, 2, 8, 2, 0, 1))},
            {"filter method", only(ihdr(2, 2, 8, 2, 0, 0, 1))},
            {"interlace method", only(ihdr(2, 2, 8, 2, 2))},
            {"expected CRC", bad_crc},
            {"four letters", with(header, {chunk("ID1T", {}), data, end})},
            {"unknown critical chunk IDAX", with(header, {chunk("IDAX", {}), data, end})},
            {"expected one PLTE", with(header, {plte, plte, data, end})},
            {"expected PLTE before IDAT", with(header, {data, plte, end})},
            {"expected PLTE before IDAT, got none", with(indexed, {indices, end})},
            {"PLTE is not allowed in colour type 0", with(ihdr(2, 2, 8, 0), {plte, indices, end})},
            {"entries of 3 bytes, got 10", with(indexed, {chunk("PLTE", Vec(10)), indices, end})},
            {"1 to 4 entries", with(ihdr(2, 2, 2, 3), {chunk("PLTE", Vec(15)), indices, end})},
            {"expected PLTE before tRNS", with(indexed, {chunk("tRNS", Vec(1)), plte, indices, end})},
            {"expected PLTE before tRNS", with(header, {chunk("tRNS", Vec(6)), plte, data, end})},
            {"expected one tRNS", with(header, {chunk("tRNS", Vec(6)), chunk("tRNS", Vec(6)), data, end})},
            {"expected tRNS before IDAT", with(header, {data, chunk("tRNS", Vec(6)), end})},
            {"tRNS: expected 6 bytes, got 2", with(header, {chunk("tRNS", Vec(2)), data, end})},
            {"tRNS: expected 1 to 3 bytes, got 4", with(indexed, {plte, chunk("tRNS", Vec(4)), indices, end})},
            {"tRNS is not allowed in colour type 6", with(ihdr(2, 2, 8, 6), {chunk("tRNS", Vec(6)), data, end})},
            {"IDAT chunks in a row", with(header, {chunk("IDAT", {}), chunk("tEXt", {}), data, end})},
            {"expected IDAT before IEND", with(header, {end})},
            {"IEND: expected no contents", with(header, {data, chunk("IEND", {0})})},
            {"got the end of the file", with(header, {data})},
            {"14 bytes of image data, got 13", with(header, {chunk("IDAT", stored_zlib(Vec(13))), end})},
            {"at most 14 bytes", with(header, {chunk("IDAT", stored_zlib(Vec(15))), end})},
            {"filter 0 to 4, got 5", with(header, {chunk("IDAT", stored_zlib(bad_filter)), end})},
            {"palette indices below 3, got 3",
             with(indexed, {plte, chunk("IDAT", stored_zlib({0, 0, 1, 0, 2, 3})), end})},
        };
        for (const auto& c : cases) {
            const std::string error = png_error(c.file);
            CAPTURE(c.text);
            CAPTURE(error);
            CHECK(contains(error, c.text));
            CHECK(contains(error, "t.png"));
        }
        // Any bytes may follow IEND.
        Vec longer = with(header, {data, end});
        longer.insert(longer.end(), {'x', 'y'});
        CHECK(png_error(longer).empty());
        CHECK(contains(error_of([] { read_png("/nonexistent/a.png"); }), "/nonexistent/a.png"));
    }

    TEST_CASE("png: rejects every truncation and every changed byte") {
        Rng rng(4, Purpose::test);
        for (const Vec& good :
             {Picture(5, 4, 4, 3, true, true, rng).file(), Picture(3, 3, 16, 2, false, true, rng).file(3)}) {
            REQUIRE(png_error(good).empty());
            for (size_t cut = 0; cut < good.size(); ++cut) {
                CAPTURE(cut);
                CHECK(!png_error({good.begin(), good.begin() + int64_t(cut)}).empty());
            }
            for (size_t i = 0; i < good.size(); ++i)
                for (int change = 1; change < 256; ++change) {
                    Vec bad = good;
                    bad[i] ^= uint8_t(change);
                    if (!png_error(bad).empty()) continue;
                    CAPTURE(i);
                    CHECK_MESSAGE(false, "a changed byte was not noticed");
                }
        }
    }

    TEST_CASE("png: changed bytes with a valid CRC change pixels at most") {
        Rng rng(5, Purpose::test);
        const Picture picture(7, 5, 8, 6, true, false, rng);
        const Vec compressed = [&] { // use the writer, which makes Huffman codes
            const Vec file = encode_png(7, 5, 4, picture.rgba());
            return Vec(file.begin() + 41, file.end() - 16);
        }();
        for (size_t i = 0; i < compressed.size(); ++i)
            for (int change = 1; change < 256; ++change) {
                Vec bad = compressed;
                bad[i] ^= uint8_t(change);
                const Vec file = join({ihdr(7, 5, 8, 6), chunk("IDAT", bad), chunk("IEND", {})});
                Vec pixels;
                if (!error_of([&] { pixels = decode_png(file, "t").pixels; }).empty()) continue;
                CAPTURE(i);
                CHECK(pixels.size() == 7 * 5 * 4);
                CHECK(i + 4 < compressed.size()); // the last 4 bytes are the Adler-32
                if (i < 2) CHECK(pixels == picture.rgba());
            }
    }

    TEST_CASE("png: a small file cannot claim much memory") {
        // A file claims 2^26 pixels of 8 bytes, but its zlib stream is empty.
        const Vec file = join({ihdr(8192, 8192, 16, 6), chunk("IDAT", stored_zlib({})), chunk("IEND", {})});
        CHECK(contains(png_error(file), "of image data, got 0"));
    }

    TEST_CASE("png: converts between grey, RGB and depths") {
        const Image wide{2, 1, 2, 16, {0x12, 0x34, 0xFF, 0xFF, 0x80, 0x7F, 0x00, 0x80}};
        CHECK(to_rgba(wide).pixels ==
              Vec{0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0xFF, 0xFF, 0x80, 0x7F, 0x80, 0x7F, 0x80, 0x7F, 0, 0x80});
        CHECK(to_u8(wide, 2).pixels == Vec{0x12, 0xFF, 0x80, 0x00}); // round(4660 / 257) = 18, round(32895 / 257) = 128
        for (int value = 0; value < 65536; value += 7) {
            const Image one{1, 1, 1, 16, {uint8_t(value >> 8), uint8_t(value)}};
            CHECK(to_u8(one, 1).pixels[0] == (value * 255 + 32767) / 65535);
        }
        const Image rgb{2, 1, 3, 8, {255, 0, 0, 9, 9, 9}};
        CHECK(to_u8(rgb, 1).pixels == Vec{76, 9}); // 0.299 * 255
        CHECK(to_u8(rgb, 2).pixels == Vec{76, 255, 9, 255});
        CHECK(to_u8(rgb, 3).pixels == rgb.pixels);
        CHECK(to_u8(rgb, 4).pixels == Vec{255, 0, 0, 255, 9, 9, 9, 255});
        CHECK(to_u8({1, 1, 4, 8, {1, 2, 3, 4}}, 3).pixels == Vec{1, 2, 3});
        CHECK(to_u8({1, 1, 2, 8, {5, 6}}, 4).pixels == Vec{5, 5, 5, 6});
        CHECK_THROWS_AS(to_u8(rgb, 5), Error);
    }

    TEST_CASE("png: reads back what it wrote") {
        Rng rng(6, Purpose::test);
        for (int channels = 1; channels <= 4; ++channels)
            for (const auto& [w, h] : {std::pair{1, 1}, {3, 7}, {64, 40}, {1, 300}, {300, 1}}) {
                for (const int kind : {0, 1, 2}) { // noise, a gradient, one colour
                    Vec pixels(size_t(w * h * channels));
                    for (size_t i = 0; i < pixels.size(); ++i)
                        pixels[i] = uint8_t(kind == 0 ? rng.next() : kind == 1 ? i / 7 + i % 3 * 40 : 77);
                    const Vec file = encode_png(w, h, channels, pixels);
                    const Image image = decode_png(file, "t");
                    CHECK(image.channels == channels);
                    CHECK(image.width == w);
                    CHECK(image.pixels == pixels);
                    if (kind == 2 && w == 64) CHECK(file.size() < 400);
                }
            }
        CHECK(contains(error_of([] { encode_png(2, 2, 3, Vec(11)); }), "expected 12 bytes, got 11"));
        CHECK_THROWS_AS(encode_png(0, 2, 3, {}), Error);
        const TempDir dir;
        write_png(dir / "a.png", 1, 2, 1, Vec{3, 4});
        CHECK(read_png(dir / "a.png").pixels == Vec{3, 4});
        CHECK_THROWS_AS(write_png(dir / "no/a.png", 1, 2, 1, Vec{3, 4}), Error);
    }

} // TEST_SUITE

} // namespace
} // namespace rg::data
