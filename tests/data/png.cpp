// Tests the PNG reader and writer. The test has its own encoder (stored blocks, all filters) for every colour type,
// depth and interlacing. It also tests every violation, truncation and changed byte, which of these leave a file
// readable, and conversions.
#include "core/rng.h"
#include "data/inflate.h"
#include "data/png.h"
#include "tests/temp_dir.h"

#include <array>
#include <doctest/doctest.h>

namespace rg::data {
namespace {

using Vec = std::vector<uint8_t>;

void put32(Vec& out, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(uint8_t(value >> shift));
}

/// Returns the pixels with four channels and the same depth. Missing alpha becomes opaque.
Vec as_rgba(const Image& image) {
    Vec out;
    const size_t bytes = size_t(image.bit_depth / 8), channels = size_t(image.channels);
    for (size_t at = 0; at < image.pixels.size(); at += channels * bytes)
        for (size_t k = 0; k < 4; ++k)
            for (size_t i = 0; i < bytes; ++i) {
                const bool opaque = k == 3 && channels % 2 == 1;
                const size_t from = k == 3 ? channels - 1 : channels < 3 ? 0 : k;
                out.push_back(opaque ? 255 : image.pixels[at + from * bytes + i]);
            }
    return out;
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

Vec join(const std::vector<Vec>& parts) {
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
        if (!interlaced) append_pass(out, 0, 0, 1, 1, filter);
        constexpr int64_t kPasses[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                           {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
        for (const auto& [x0, y0, dx, dy] : kPasses)
            if (interlaced) append_pass(out, x0, y0, dx, dy, filter);
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

Vec with_bad_crc(Vec chunk) {
    chunk.back() ^= 1;
    return chunk;
}

/// Returns a header followed by these chunks.
Vec with(const Vec& header, std::vector<Vec> rest) {
    rest.insert(rest.begin(), header);
    return join(rest);
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
                                INFO("colour ", colour, ", depth ", depth, ", interlaced ", interlaced,
                                     ", transparent ", transparent, ", width ", w);
                                CHECK(image.width == w);
                                CHECK(image.height == h);
                                CHECK(image.bit_depth == (depth == 16 ? 16 : 8));
                                CHECK(image.channels == (colour == 3 ? 3 : samples_of(colour)) + transparent);
                                CHECK(as_rgba(image) == picture.rgba());
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
            {"at most 134217728 pixels", only(ihdr(0x7FFFFFFF, 0x7FFFFFFF, 16, 6))},
            {"at most 134217728 pixels", only(ihdr(16385, 8192, 8, 0))},
            {"colour type 0, 2, 3, 4 or 6, got 5", only(ihdr(2, 2, 8, 5))},
            {"bit depth 3", only(ihdr(2, 2, 3, 0))},
            {"bit depth 4 is not one of colour type 2", only(ihdr(2, 2, 4, 2))},
            {"bit depth 16 is not one of colour type 3", only(ihdr(2, 2, 16, 3))},
            {"compression method", only(ihdr(2, 2, 8, 2, 0, 1))},
            {"filter method", only(ihdr(2, 2, 8, 2, 0, 0, 1))},
            {"interlace method", only(ihdr(2, 2, 8, 2, 2))},
            {"IHDR: expected CRC", only(with_bad_crc(header))},
            {"PLTE: expected CRC", with(indexed, {with_bad_crc(plte), indices, end})},
            {"PLTE: expected CRC", with(header, {with_bad_crc(plte), data, end})}, // although it is not used
            {"IDAT: expected CRC", with(header, {with_bad_crc(data), end})},
            {"IDAT: expected CRC", with(header, {data, with_bad_crc(chunk("IDAT", {})), end})},
            {"four letters", with(header, {chunk("ID1T", {}), data, end})},
            {"unknown critical chunk IDAX", with(header, {chunk("IDAX", {}), data, end})},
            {"expected one PLTE", with(indexed, {plte, plte, indices, end})},
            {"expected PLTE before IDAT, got none", with(indexed, {indices, plte, end})},
            {"1 to 256 entries of 3 bytes, got 10", with(indexed, {chunk("PLTE", Vec(10)), indices, end})},
            {"1 to 256 entries of 3 bytes, got 0", with(indexed, {chunk("PLTE", {}), indices, end})},
            {"1 to 256 entries of 3 bytes, got 771", with(indexed, {chunk("PLTE", Vec(771)), indices, end})},
            {"expected a zlib header", with(header, {chunk("IDAT", {}), chunk("tEXt", {}), data, end})},
            {"expected IDAT before IEND", with(header, {end})},
            {"got the end of the file", with(header, {})},
            {"14 bytes of image data, got 13", with(header, {chunk("IDAT", stored_zlib(Vec(13))), end})},
            // A file claims 2^26 pixels of 8 bytes, but its zlib stream is empty.
            {"of image data, got 0", with(ihdr(8192, 8192, 16, 6), {chunk("IDAT", stored_zlib({})), end})},
            {"filter 0 to 4, got 5", with(header, {chunk("IDAT", stored_zlib(bad_filter)), end})},
        };
        for (const auto& c : cases) {
            const std::string error = png_error(c.file);
            CAPTURE(c.text);
            CHECK(error == Containing{c.text, "t.png"});
        }
    }

    TEST_CASE("png: reads damaged files whose pixels are there, and says what is wrong") {
        const Vec header = ihdr(2, 2, 8, 2), end = chunk("IEND", {}), pixels{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
        const Vec rows{0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 10, 11, 12}, stream = stored_zlib(rows);
        const Vec data = chunk("IDAT", stream), half_chunk = {0, 0, 0, 9, 't', 'E', 'X', 't', 'a'};
        const auto text = [](const char* type) { return with_bad_crc(chunk(type, {'a', 0, 'b'})); };
        const auto only = [&](const Vec& zlib) { return with(header, {chunk("IDAT", zlib), end}); };
        const auto longer = [](Vec bytes, const Vec& more) {
            bytes.insert(bytes.end(), more.begin(), more.end());
            return bytes;
        };
        Vec bad_adler = stream;
        bad_adler.back() ^= 1;
        const struct {
            const char* damage;
            Vec file;
        } cases[] = {
            {"", with(header, {data, end, {'x', 'y'}})}, // any bytes may follow IEND
            {"expected a chunk, got the end of the file", with(header, {data})},
            {"expected a chunk, got the end of the file", with(header, {data, {0, 0, 0}})},
            {"tEXt: expected 9 bytes, got 1; the file is cut off", with(header, {data, half_chunk, {1, 2, 3, 4}})},
            {"four letters", with(header, {data, Vec(40)})},
            {"IEND: expected CRC", with(header, {data, with_bad_crc(end)})},
            {"tEXt: expected CRC", with(header, {text("tEXt"), data, end})},
            {"iTXt: expected CRC", with(header, {text("iTXt"), data, end})},
            {"iCCP: expected CRC", with(header, {text("iCCP"), data, end})},
            {"zTXt: expected CRC", with(header, {data, text("zTXt"), end})},
            {"tRNS: expected CRC", with(header, {with_bad_crc(chunk("tRNS", {0, 1, 0, 2, 0, 3})), data, end})},
            {"at most 14 bytes of output", only(stored_zlib(longer(rows, {0})))},
            {"at most 14 bytes of output", only(stored_zlib(longer(rows, rows)))},
            {"at most 14 bytes of output", only(stored_zlib(longer(rows, Vec(100000))))},
            {"got 1 bytes more", only(longer(stream, {0}))},
            {"got 14 bytes more", with(header, {data, chunk("IDAT", Vec(14)), end})},
            {"expected Adler-32", only(bad_adler)},
            {"expected an Adler-32", only({stream.begin(), stream.end() - 1})},
            {"expected an Adler-32", only({stream.begin(), stream.end() - 4})},
        };
        for (const auto& c : cases) {
            const Image image = decode_png(c.file, "t.png");
            INFO("expected ", c.damage, ", got ", image.damage);
            CHECK(image.damage.empty() == (*c.damage == 0));
            CHECK(contains(image.damage, c.damage));
            CHECK((image.damage.empty() || contains(image.damage, "t.png")));
            CHECK(image.channels == 3);
            CHECK(image.pixels == pixels);
        }
        // Not one byte of the pixels may be missing.
        CHECK(contains(png_error(only({stream.begin(), stream.end() - 5})), "stored block: expected 14 bytes, got 13"));
        // The unused end of a stored block may be missing.
        Vec unused = stored_zlib(longer(rows, {0, 0}));
        unused.resize(unused.size() - 5);
        CHECK(contains(decode_png(only(unused), "t").damage, "at most 14 bytes of output"));

        const Vec palette = chunk("PLTE", {10, 20, 30, 40, 50, 60}), alpha = chunk("tRNS", {7});
        const Vec indices = chunk("IDAT", stored_zlib({0, 0, 1, 0, 2, 255})); // entries 0 and 1 exist
        for (const Vec& transparency : {Vec{}, alpha}) {
            const Image image = decode_png(with(ihdr(2, 2, 8, 3), {palette, transparency, indices, end}), "t.png");
            CHECK(image.damage == "png: expected palette indices below 2, got 255 (t.png)");
            const uint8_t first = transparency.empty() ? 255 : 7;
            CHECK(as_rgba(image) == Vec{10, 20, 30, first, 40, 50, 60, 255, 0, 0, 0, 255, 0, 0, 0, 255});
        }
    }

    TEST_CASE("png: ignores PLTE and tRNS of a wrong length or place") {
        const auto image_of = [](int depth, int colour, const Vec& rows, std::vector<Vec> chunks,
                                 const Vec& after = {}) {
            chunks.insert(chunks.begin(), ihdr(2, 1, depth, colour));
            for (const Vec& part : {chunk("IDAT", stored_zlib(rows)), after, chunk("IEND", {})}) chunks.push_back(part);
            const Image image = decode_png(join(chunks), "t.png");
            CHECK(image.damage.empty());
            return image;
        };
        const Vec plte = chunk("PLTE", {10, 20, 30, 40, 50, 60}); // 2 entries
        for (const int colour : {0, 2, 4, 6}) {
            CAPTURE(colour);
            const int samples = samples_of(colour);
            Vec rows(size_t(1 + 2 * samples));
            for (size_t i = 1; i < rows.size(); ++i) rows[i] = uint8_t(i);
            const Vec pixels(rows.begin() + 1, rows.end());
            for (const Vec& odd : {plte, chunk("PLTE", {}), chunk("PLTE", Vec(10)), chunk("PLTE", Vec(900)),
                                   chunk("tRNS", {}), chunk("tRNS", Vec(1)), chunk("tRNS", Vec(7))}) {
                CHECK(image_of(8, colour, rows, {odd}).pixels == pixels);
                CHECK(image_of(8, colour, rows, {odd, odd}).pixels == pixels);
                CHECK(image_of(8, colour, rows, {}, odd).pixels == pixels);
            }
            for (const size_t length : {2, 6}) {
                const Vec trns = chunk("tRNS", Vec(length, 1));
                CHECK(image_of(8, colour, rows, {}, trns).pixels == pixels);
                const bool valid = (colour == 0 && length == 2) || (colour == 2 && length == 6);
                CHECK(image_of(8, colour, rows, {trns}).channels == samples + valid);
            }
        }
        // The first tRNS counts.
        CHECK(image_of(8, 0, {0, 4, 5}, {chunk("tRNS", {0, 4}), chunk("tRNS", {0, 5})}).pixels == Vec{4, 0, 5, 255});

        // A palette may have up to 256 entries at any depth, and up to as many transparent ones.
        for (const int depth : {1, 2, 4, 8}) {
            CAPTURE(depth);
            Vec colours;
            for (int i = 0; i < 3 * 256; ++i) colours.push_back(uint8_t(i * 7));
            const Vec rows = depth == 8 ? Vec{0, 1, 0} : Vec{0, uint8_t(1 << (8 - depth))}; // entries 1 and 0
            CHECK(image_of(depth, 3, rows, {chunk("PLTE", colours)}).pixels == Vec{21, 28, 35, 0, 7, 14});
            CHECK(image_of(depth, 3, rows, {chunk("PLTE", colours), chunk("tRNS", Vec(256, 9))}).pixels ==
                  Vec{21, 28, 35, 9, 0, 7, 14, 9});
        }
        const Vec rows{0, 0, 1}, opaque{10, 20, 30, 40, 50, 60};
        const Vec one = chunk("tRNS", {7}), two = chunk("tRNS", {8, 9}), three = chunk("tRNS", {1, 2, 3});
        CHECK(image_of(8, 3, rows, {plte, three}).pixels == opaque);
        CHECK(image_of(8, 3, rows, {plte, chunk("tRNS", {})}).pixels == opaque);
        CHECK(image_of(8, 3, rows, {two, plte}).pixels == opaque);
        CHECK(image_of(8, 3, rows, {plte}, two).pixels == opaque);
        CHECK(image_of(8, 3, rows, {plte}, plte).pixels == opaque);
        CHECK(image_of(8, 3, rows, {plte, three, one, two}).pixels == Vec{10, 20, 30, 7, 40, 50, 60, 255});
    }

    TEST_CASE("png: notices every truncation and every changed byte, and never returns wrong pixels") {
        Rng rng(4, Purpose::test);
        for (const Vec& good :
             {Picture(5, 4, 4, 3, true, true, rng).file(), Picture(3, 3, 16, 2, false, true, rng).file(3)}) {
            const auto colours = [](const Image& image) { return to_u8(image, 3).pixels; };
            const Vec expected = colours(decode_png(good, "good"));
            const size_t after_data = good.size() - 12 - (12 + 3); // tEXt and IEND follow
            for (size_t cut = 0; cut < good.size(); ++cut) {
                CAPTURE(cut);
                const Vec bad(good.begin(), good.begin() + int64_t(cut));
                CHECK(png_error(bad).empty() == (cut >= after_data));
                if (cut < after_data) continue;
                const Image image = decode_png(bad, "t");
                CHECK(contains(image.damage, "cut off"));
                CHECK(colours(image) == expected);
            }
            for (size_t i = 0; i < good.size(); ++i)
                for (int change = 1; change < 256; ++change) {
                    Vec bad = good;
                    bad[i] ^= uint8_t(change);
                    Image image;
                    if (!error_of([&] { image = decode_png(bad, "t"); }).empty()) {
                        if (i >= after_data) FAIL_CHECK("refused for byte ", i, ", which follows the pixels");
                        continue;
                    }
                    if (image.damage.empty()) FAIL_CHECK("a change of byte ", i, " was not noticed");
                    if (colours(image) != expected) FAIL_CHECK("byte ", i, " changed the colours");
                }
        }
    }

    TEST_CASE("png: changed bytes with a valid CRC change pixels at most, and are noticed") {
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
                Image image;
                const bool adler = i + 4 >= compressed.size(); // the last 4 bytes are the Adler-32
                const std::string error = error_of([&] { image = decode_png(file, "t"); });
                CAPTURE(i);
                if (adler) CHECK(contains(image.damage, "expected Adler-32"));
                if (!error.empty()) continue;
                CHECK(image.pixels.size() == 7 * 5 * 4);
                if (i < 2 || adler) CHECK(image.pixels == picture.rgba());
                if (image.pixels != picture.rgba()) CHECK(!image.damage.empty());
            }
    }

    TEST_CASE("png: converts between grey, RGB and depths") {
        const Image wide{2, 1, 2, 16, {0x12, 0x34, 0xFF, 0xFF, 0x80, 0x7F, 0x00, 0x80}};
        CHECK(to_u8(wide, 1).pixels == Vec{0x12, 0x80}); // round(4660 / 257) = 18, round(32895 / 257) = 128
        CHECK(to_u8(wide, 3).pixels == Vec{0x12, 0x12, 0x12, 0x80, 0x80, 0x80});
        for (int value = 0; value < 65536; value += 7) {
            const Image one{1, 1, 1, 16, {uint8_t(value >> 8), uint8_t(value)}};
            CHECK(to_u8(one, 1).pixels[0] == (value * 255 + 32767) / 65535);
        }
        const Image rgb{2, 1, 3, 8, {255, 0, 0, 9, 9, 9}};
        CHECK(to_u8(rgb, 1).pixels == Vec{76, 9}); // 0.299 * 255
        CHECK(to_u8(rgb, 3).pixels == rgb.pixels);
        CHECK(to_u8({1, 1, 4, 8, {1, 2, 3, 4}}, 3).pixels == Vec{1, 2, 3});
        CHECK(to_u8({1, 1, 4, 8, {255, 0, 0, 4}}, 1).pixels == Vec{76});
        CHECK(to_u8({1, 1, 2, 8, {5, 6}}, 3).pixels == Vec{5, 5, 5});
        CHECK_THROWS_AS(to_u8(rgb, 2), Error);
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
        CHECK_ERROR("expected 12 bytes, got 11", encode_png(2, 2, 3, Vec(11)));
        CHECK_THROWS_AS(encode_png(0, 2, 3, {}), Error);
    }

} // TEST_SUITE

} // namespace
} // namespace rg::data
