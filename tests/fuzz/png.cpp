// Fuzzes decode_png with unchanged files, files with correct CRCs, and valid images. Decoded images have the size that
// the header states, and survive our encoder.
#include "data/png.h"
#include "data/inflate.h"
#include "tests/fuzz/fuzz.h"

#include <array>

namespace rg::fuzz {
namespace {

using namespace rg::data;

constexpr size_t kSignature = 8, kWidthAt = 16, kHeightAt = 20, kHeaderEnd = 24;
constexpr uint64_t kPixels = 1 << 10; // larger images take more time, but run no other code

void check_image(const Image& image, int64_t width, int64_t height) {
    require(image.width == width && image.height == height, "the size of the header");
    require(image.channels >= 1 && image.channels <= 4 && (image.bit_depth == 8 || image.bit_depth == 16), "the form");
    const size_t samples = size_t(width * height * image.channels);
    require(image.pixels.size() == samples * size_t(image.bit_depth / 8), "the number of samples");
    if (samples > 512 || image.pixels[0] % 8) return; // the encoder takes far longer than the decoder
    const int channels = (width + height) % 2 ? 1 : 3;
    const Image u8 = to_u8(image, channels);
    const Image again = decode_png(encode_png(width, height, channels, u8.pixels), "again");
    require(again.pixels == u8.pixels && again.channels == channels, "what we encode is what we decode");
}

void fuzz_file(Bytes bytes) {
    const auto at = [&](size_t offset) { return bytes.size() < kHeaderEnd ? 0 : load_be32(&bytes[offset]); };
    const uint64_t width = at(kWidthAt), height = at(kHeightAt), pixels = width * height;
    if (pixels > kPixels && pixels <= uint64_t(kMaxPixels)) return;
    const auto image = accepted([&] { return decode_png(bytes, "fuzz"); });
    require(!image || pixels <= kPixels, "kMaxPixels");
    if (image) check_image(*image, int64_t(width), int64_t(height));
}

/// Returns the file with correct CRCs in all of its chunks.
Vec repaired(Bytes bytes) {
    Vec out(bytes.begin(), bytes.end());
    for (size_t at = kSignature; at + 12 <= out.size();) {
        const size_t length = load_be32(&out[at]);
        if (length > out.size() - at - 12) break;
        const uint32_t crc = crc32(Bytes(out).subspan(at + 4, length + 4));
        for (size_t i = 0; i < 4; ++i) out[at + 8 + length + i] = uint8_t(crc >> (24 - 8 * i));
        at += 12 + length;
    }
    return out;
}

void append_chunk(Vec& out, const char* type, Bytes body) {
    append_be32(out, uint32_t(body.size()));
    append(out, as_bytes(type));
    append(out, body);
    out.resize(out.size() + 4); // repaired() sets the CRC
}

/// Returns a valid image with form and samples from the input.
void fuzz_picture(Input& input) {
    constexpr std::array<std::array<int, 2>, 15> kForms = {{ // colour, depth
        {0, 1}, {0, 2}, {0, 4}, {0, 8}, {0, 16}, {2, 8}, {2, 16}, {3, 1},
        {3, 2}, {3, 4}, {3, 8}, {4, 8}, {4, 16}, {6, 8}, {6, 16}}};
    const auto [colour, depth] = kForms[input.byte() % kForms.size()];
    const uint32_t width = 1 + input.byte() % 12, height = 1 + input.byte() % 12;
    const uint8_t flags = input.byte();
    const bool interlaced = flags & 1, transparent = flags & 2 && (colour == 0 || colour == 2 || colour == 3);
    const size_t parts = 1 + (flags >> 2) % 4;
    const int samples = colour == 2 ? 3 : colour == 4 ? 2 : colour == 6 ? 4 : 1;

    Vec palette;
    if (colour == 3)
        for (int i = 0; i < 3 << depth; ++i) palette.push_back(uint8_t(i * 37));
    Vec key;
    for (int i = 0; transparent && i < (colour == 3 ? 1 << depth : 2 * samples); ++i) key.push_back(input.byte());

    const Bytes content = input.rest();
    size_t next = 0;
    Vec rows;
    constexpr uint32_t kPasses[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, // x0 y0 dx dy
                                        {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    for (int pass = 0; pass < (interlaced ? 7 : 1); ++pass) {
        const uint32_t x0 = interlaced ? kPasses[pass][0] : 0, y0 = interlaced ? kPasses[pass][1] : 0;
        const uint32_t dx = interlaced ? kPasses[pass][2] : 1, dy = interlaced ? kPasses[pass][3] : 1;
        if (x0 >= width) continue;
        const size_t bytes = ((width - x0 + dx - 1) / dx * size_t(samples * depth) + 7) / 8;
        for (uint32_t y = y0; y < height; y += dy)
            for (size_t i = 0; i <= bytes; ++i) {
                const uint8_t byte = content.empty() ? uint8_t(i) : content[next++ % content.size()];
                rows.push_back(i ? byte : byte % 5); // the filter
            }
    }
    Vec header, zlib{0x78, 0x01, 0x01}, file{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    for (const size_t value : {rows.size(), ~rows.size()}) // one stored block has at most 12 x (12 x 8 + 7) bytes
        for (int shift = 0; shift < 16; shift += 8) zlib.push_back(uint8_t(value >> shift));
    append(zlib, rows);
    append_be32(zlib, adler32(rows));
    append_be32(header, width);
    append_be32(header, height);
    for (const int byte : {depth, colour, 0, 0, int(interlaced)}) header.push_back(uint8_t(byte));
    append_chunk(file, "IHDR", header);
    if (!palette.empty()) append_chunk(file, "PLTE", palette);
    if (!key.empty()) append_chunk(file, "tRNS", key);
    for (size_t i = 0; i < parts; ++i) {
        const size_t begin = zlib.size() * i / parts, end = zlib.size() * (i + 1) / parts;
        append_chunk(file, "IDAT", Bytes(zlib).subspan(begin, end - begin));
    }
    append_chunk(file, "IEND", {});
    check_image(decode_png(repaired(file), "picture"), width, height);
}

} // namespace

void fuzz(Input input) {
    const int mode = input.byte() % 3;
    if (mode == 2) return fuzz_picture(input);
    const Bytes file = input.rest();
    fuzz_file(mode ? Bytes(repaired(file)) : file);
}

} // namespace rg::fuzz
