// Decodes a PNG in three steps: reads and checks the chunks, inflates and unfilters the passes, and places the pixels.
// Encodes in two steps: filters the rows, then compresses them.
//
// An image without interlacing is one pass over all pixels. Adam7 has seven passes, each a smaller image. Rows are
// unfiltered in place, widened to whole samples, and copied to the positions of the pass. The encoder filters all rows
// with Paeth and compresses with fixed Huffman codes. That keeps the code small, but files are larger than those of
// most other tools.
#include "data/png.h"

#include "core/control_groups.h"
#include "data/inflate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace rg::data {

namespace {

constexpr uint8_t kSignature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

enum ColourType : uint8_t { kGrey = 0, kRgb = 2, kPalette = 3, kGreyAlpha = 4, kRgba = 6 };

struct Header {
    int64_t width = 0, height = 0;
    int depth = 0, colour = 0;
    bool interlaced = false;

    int samples() const { return colour == kRgb ? 3 : colour == kGreyAlpha ? 2 : colour == kRgba ? 4 : 1; }
    int bits_per_pixel() const { return samples() * depth; }
    size_t row_bytes(int64_t pixels) const { return size_t((pixels * bits_per_pixel() + 7) / 8); }
};

/// Contents of the chunks that the decoder uses. The image data are still compressed.
struct PngContents {
    Header header;
    int entries = 0;                        // number of palette entries
    std::array<uint8_t, 3 * 256> palette{}; // RGB triples; those after the entries are black
    std::vector<uint8_t> alpha;             // alpha of the first palette entries
    std::array<uint16_t, 3> transparent{};  // the transparent colour in tRNS
    bool has_transparency = false;          // there was a tRNS; for grey and RGB only
    std::vector<Bytes> data;                // contents of the IDAT chunks
    std::string damage;                     // see Image::damage
    bool scaled = true;                     // grey samples of less than 8 bits are scaled to 8
    int channels() const {
        const int colours = header.colour == kPalette ? 3 : header.samples();
        return colours + (has_transparency || !alpha.empty());
    }
    /// Returns true if unfiltered rows have the format of Image.
    bool wide() const { return header.colour != kPalette && header.depth >= 8 && !has_transparency; }
};

struct InterlacePass {
    int64_t x0, y0, dx, dy; // first pixel, and steps between pixels
    int64_t columns(int64_t width) const { return width > x0 ? (width - x0 + dx - 1) / dx : 0; }
    int64_t rows(int64_t height) const { return height > y0 ? (height - y0 + dy - 1) / dy : 0; }
};
constexpr InterlacePass kWhole[] = {{0, 0, 1, 1}};
constexpr InterlacePass kAdam7[] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                    {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};

std::span<const InterlacePass> passes(const Header& header) {
    return header.interlaced ? std::span<const InterlacePass>(kAdam7) : std::span<const InterlacePass>(kWhole);
}

constexpr const char* kCutOff = "; the file is cut off, so copy or download it again";

/// Reads the chunks of one file. The offset in an error text is that of the chunk.
class ChunkReader {
public:
    ChunkReader(Bytes bytes, std::string_view name) : bytes_(bytes), name_(name) {}

    PngContents read() {
        check(is_png(bytes_), "expected the PNG signature, got ",
              as_text(bytes_).starts_with("\xFF\xD8\xFF") ? "that of a JPEG" : "something else");
        next();
        check(type_ == "IHDR", "expected IHDR first, got ", type_);
        read_header();
        while (!data_follow()) {
            next();
            check(type_ != "IHDR", "expected one IHDR, got another");
            check(type_ != "IEND", "expected IDAT before IEND, got none");
            if (type_ == "PLTE")
                read_palette();
            else if (type_ == "tRNS")
                read_transparency();
            else
                check(is_ancillary(), "unknown critical chunk ", type_);
        }
        check(c_.header.colour != kPalette || c_.entries > 0, "expected PLTE before IDAT, got none");
        while (data_follow()) {
            next();
            c_.data.push_back(body_);
        }
        try { // the remaining chunks cannot change the pixels
            while (type_ != "IEND") next();
        } catch (const Error& error) {
            c_.damage = error.what();
        }
        return std::move(c_);
    }

private:
    template <class... Parts>
    std::string error_text(const Parts&... parts) const {
        return cat("png: ", parts..., " (", name_, ", offset ", begin_, ")");
    }
    template <class... Parts>
    void check(bool good, const Parts&... parts) const {
        if (!good) fail(error_text(parts...));
    }

    /// Returns true if the next chunk is an IDAT.
    bool data_follow() const { return bytes_.size() - end_ >= 8 && as_text(bytes_.subspan(end_ + 4, 4)) == "IDAT"; }

    bool is_ancillary() const { return type_[0] & 0x20; }

    /// Reads the next chunk. Drops the contents of an ancillary chunk with a wrong CRC.
    void next() {
        begin_ = end_;
        const Bytes rest = bytes_.subspan(begin_);
        check(rest.size() >= 12, "expected a chunk, got the end of the file", kCutOff);
        const size_t length = load_be32(rest.data());
        type_ = as_text(rest.subspan(4, 4));
        for (size_t i = 4; i < 8; ++i)
            check((rest[i] | 32) >= 'a' && (rest[i] | 32) <= 'z', "expected four letters as the type of a chunk");
        check(length <= rest.size() - 12, type_, ": expected ", length, " bytes, got ", rest.size() - 12, kCutOff);
        body_ = rest.subspan(8, length);
        end_ = begin_ + 12 + length;
        const uint32_t wanted = load_be32(rest.data() + 8 + length), got = crc32(rest.subspan(4, length + 4));
        if (wanted == got) return;
        const std::string text = error_text(type_, ": expected CRC ", wanted, ", got ", got);
        if (!is_ancillary()) fail(text);
        c_.damage = text;
        body_ = {};
    }

    void read_header() {
        check(body_.size() == 13, "IHDR: expected 13 bytes, got ", body_.size());
        const int64_t width = load_be32(&body_[0]), height = load_be32(&body_[4]);
        const int depth = body_[8], colour = body_[9];
        check(width > 0 && height > 0 && width <= INT32_MAX && height <= INT32_MAX,
              "IHDR: expected a width and height of 1 to 2^31 - 1, got ", width, " x ", height);
        check(width <= kMaxPixels / height, "IHDR: expected at most ", kMaxPixels, " pixels, got ", width, " x ",
              height);
        check(colour == kGrey || colour == kRgb || colour == kPalette || colour == kGreyAlpha || colour == kRgba,
              "IHDR: expected colour type 0, 2, 3, 4 or 6, got ", colour);
        const bool whole = depth == 8 || (depth == 16 && colour != kPalette);
        const bool part = (depth == 1 || depth == 2 || depth == 4) && (colour == kGrey || colour == kPalette);
        check(whole || part, "IHDR: bit depth ", depth, " is not one of colour type ", colour);
        check(body_[10] == 0, "IHDR: expected compression method 0, got ", int(body_[10]));
        check(body_[11] == 0, "IHDR: expected filter method 0, got ", int(body_[11]));
        check(body_[12] <= 1, "IHDR: expected interlace method 0 or 1, got ", int(body_[12]));
        c_.header = {width, height, depth, colour, body_[12] == 1};
    }

    void read_palette() {
        if (c_.header.colour != kPalette) return;
        check(c_.entries == 0, "expected one PLTE, got another");
        check(!body_.empty() && body_.size() % 3 == 0 && body_.size() <= c_.palette.size(),
              "PLTE: expected 1 to 256 entries of 3 bytes, got ", body_.size(), " bytes");
        c_.entries = int(body_.size() / 3);
        std::copy(body_.begin(), body_.end(), c_.palette.begin());
    }

    /// Reads the first valid tRNS, and ignores others. If the image has a palette, a tRNS is valid only after it.
    void read_transparency() {
        const Header& h = c_.header;
        if (h.colour == kPalette) {
            if (c_.alpha.empty() && body_.size() <= size_t(c_.entries)) c_.alpha.assign(body_.begin(), body_.end());
            return;
        }
        const size_t samples = size_t(h.samples());
        if (h.colour != kGrey && h.colour != kRgb) return;
        if (c_.has_transparency || body_.size() != 2 * samples) return;
        for (size_t i = 0; i < samples; ++i) // bits above the depth should be 0 and are ignored
            c_.transparent[i] = uint16_t((body_[2 * i] << 8 | body_[2 * i + 1]) & ((1 << h.depth) - 1));
        c_.has_transparency = true;
    }

    Bytes bytes_, body_;
    std::string_view name_;
    size_t begin_ = 0, end_ = sizeof kSignature; // where the current chunk begins and ends
    std::string_view type_;                      // four letters, as next() has checked
    PngContents c_;
};

/// The bytes of one pixel, one per lane. A pixel depends on the pixel before it, but its lanes do not depend on each
/// other.
typedef int16_t Lanes __attribute__((vector_size(16)));
typedef uint8_t ByteLanes __attribute__((vector_size(8)));

template <size_t kStep>
Lanes load_pixel(const uint8_t* p) {
    uint64_t word = 0;
    for (size_t k = 0; k < kStep; ++k) word |= uint64_t{p[k]} << 8 * k;
    return __builtin_convertvector(std::bit_cast<ByteLanes>(word), Lanes);
}

/// Stores the lanes, which must be 0 to 255, as bytes.
template <size_t kStep>
void store_pixel(uint8_t* p, Lanes lanes) {
    const uint64_t word = std::bit_cast<uint64_t>(__builtin_convertvector(lanes, ByteLanes));
    std::memcpy(p, &word, kStep);
}

/// Returns the one of a, b and c that is nearest to p = a + b - c; if several are equally near, the first of them. Let
/// lower <= upper be a and b in order. For a c between them, upper is at least as near as c if 3c - a - b <= lower, and
/// lower is at least as near as c if 3c - a - b >= upper. The same comparisons are correct for all other c, so no
/// branch is needed.
template <class T>
T paeth(T a, T b, T c) {
    const T lower = a < b ? a : b, upper = a < b ? b : a, d = 3 * c - a - b;
    const T not_upper = d >= upper ? lower : c;
    return d <= lower ? upper : not_upper;
}

/// Unfilters a row in place. `up` is the row above, all zeros for the first row of a pass. kStep is the number of bytes
/// of a whole pixel, at least 1.
template <size_t kStep>
void unfilter(int filter, uint8_t* row, const uint8_t* up, size_t bytes) {
    const auto each_pixel = [&](const auto& guess) {
        Lanes left{}, corner{}; // previous pixel in this row and in the row above; zeros at the start of the row
        for (size_t i = 0; i < bytes; i += kStep) {
            const Lanes above = load_pixel<kStep>(up + i);
            left = (load_pixel<kStep>(row + i) + guess(left, above, corner)) & 255;
            corner = above;
            store_pixel<kStep>(row + i, left);
        }
    };
    switch (filter) {
    case 1: return each_pixel([](Lanes left, Lanes, Lanes) { return left; });
    case 2:
        for (size_t i = 0; i < bytes; ++i) row[i] = uint8_t(row[i] + up[i]);
        return;
    case 3: return each_pixel([](Lanes left, Lanes above, Lanes) { return (left + above) >> 1; });
    case 4: return each_pixel([](Lanes left, Lanes above, Lanes corner) { return paeth(left, above, corner); });
    }
}

/// Returns the instance of unfilter() for pixels of this many bits.
auto unfilter_for(int bits_per_pixel) {
    switch (bits_per_pixel) {
    case 16: return unfilter<2>;
    case 24: return unfilter<3>;
    case 32: return unfilter<4>;
    case 48: return unfilter<6>;
    case 64: return unfilter<8>;
    default: return unfilter<1>;
    }
}

/// Returns sample i of an unfiltered row.
int sample_at(const uint8_t* row, int64_t i, int depth) {
    if (depth == 8) return row[i];
    if (depth == 16) return row[2 * i] << 8 | row[2 * i + 1];
    const int64_t bit = i * depth;
    return row[bit / 8] >> (8 - depth - bit % 8) & ((1 << depth) - 1);
}

/// Expands an unfiltered row to the format of Image: samples of 8 or 16 bits, palette entries as colours, and an alpha
/// channel if there is transparency. Returns the highest palette index, or -1 if there is no palette.
int widen(const PngContents& c, const uint8_t* row, int64_t pixels, uint8_t* out) {
    const Header& h = c.header;
    const int samples = h.samples();
    int highest = -1;
    if (h.colour == kPalette) {
        for (int64_t x = 0; x < pixels; ++x) {
            const int index = sample_at(row, x, h.depth);
            highest = std::max(highest, index);
            for (size_t k = 0; k < 3; ++k) *out++ = c.palette[size_t(index) * 3 + k];
            if (!c.alpha.empty()) *out++ = size_t(index) < c.alpha.size() ? c.alpha[size_t(index)] : 255;
        }
        return highest;
    }
    if (c.wide()) {
        std::memcpy(out, row, h.row_bytes(pixels));
        return highest;
    }
    const int scale = h.depth < 8 && c.scaled ? 255 / ((1 << h.depth) - 1) : 1;
    for (int64_t x = 0; x < pixels; ++x) {
        bool matches = c.has_transparency;
        for (int k = 0; k < samples; ++k) {
            const int value = sample_at(row, x * samples + k, h.depth);
            matches &= value == c.transparent[size_t(k)];
            if (h.depth == 16) *out++ = uint8_t(value >> 8);
            *out++ = uint8_t(value * scale);
        }
        if (c.has_transparency) out = std::fill_n(out, h.depth == 16 ? 2 : 1, uint8_t(matches ? 0 : 255));
    }
    return highest;
}

/// Returns the inflated image data, as many bytes as the header asks for. `damage`: see inflate_zlib().
std::vector<uint8_t> inflate_data(const PngContents& c, std::string_view name, std::string& damage) {
    size_t expected = 0;
    for (const InterlacePass& pass : passes(c.header))
        if (const int64_t columns = pass.columns(c.header.width))
            expected += size_t(pass.rows(c.header.height)) * (1 + c.header.row_bytes(columns));
    std::vector<uint8_t> combined; // used if there are several IDAT chunks
    if (c.data.size() > 1)
        for (const Bytes part : c.data) combined.insert(combined.end(), part.begin(), part.end());
    std::vector<uint8_t> raw = inflate_zlib(c.data.size() > 1 ? Bytes(combined) : c.data[0], expected,
                                            "IDAT of " + std::string(name), &damage);
    RG_CHECK(raw.size() == expected, "png: expected ", expected, " bytes of image data, got ", raw.size(), " (", name,
             ")");
    return raw;
}

void put_be32(std::vector<uint8_t>& out, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(uint8_t(value >> shift));
}

/// DEFLATE with fixed Huffman codes (RFC 1951, section 3.2.6). The only matches are repetitions of the last byte, as
/// filtered rows have them.
class Deflater {
public:
    std::vector<uint8_t> zlib(Bytes in) {
        out_ = {0x78, 0x01};
        put(3, 3); // last block, fixed codes
        for (size_t i = 0; i < in.size();) {
            size_t length = 0;
            while (i > 0 && length < 257 && i + length < in.size() && in[i + length] == in[i - 1]) ++length;
            if (length < 3) {
                put_literal(in[i++]);
                continue;
            }
            put_repetition(uint32_t(length));
            i += length;
        }
        put_literal(256);
        put(0, 7); // fills up the last byte
        put_be32(out_, adler32(in));
        return std::move(out_);
    }

private:
    void put(uint32_t value, int bits) {
        buffer_ |= uint64_t{value} << count_;
        for (count_ += bits; count_ >= 8; count_ -= 8, buffer_ >>= 8) out_.push_back(uint8_t(buffer_));
    }
    void put_code(uint32_t code, int bits) {
        uint32_t reversed = 0;
        for (int b = 0; b < bits; ++b) reversed = reversed << 1 | (code >> b & 1);
        put(reversed, bits);
    }
    void put_literal(uint32_t symbol) {
        if (symbol < 144) return put_code(0x30 + symbol, 8);
        if (symbol < 256) return put_code(0x190 + symbol - 144, 9);
        if (symbol < 280) return put_code(symbol - 256, 7);
        put_code(0xC0 + symbol - 280, 8);
    }
    void put_repetition(uint32_t length) {
        const uint32_t l = length - 3; // after the first eight, groups of four codes have the same number of extra bits
        const int extra = l < 8 ? 0 : std::bit_width(l) - 3;
        put_literal(uint32_t(257 + 4 * extra) + (l >> extra));
        put(l & ((1u << extra) - 1), extra);
        put(0, 5); // the distance 1
    }

    std::vector<uint8_t> out_;
    uint64_t buffer_ = 0;
    int count_ = 0;
};

void put_chunk(std::vector<uint8_t>& out, const char (&type)[5], Bytes body) {
    put_be32(out, uint32_t(body.size()));
    const size_t begin = out.size();
    out.insert(out.end(), type, type + 4);
    out.insert(out.end(), body.begin(), body.end());
    put_be32(out, crc32(Bytes(out).subspan(begin)));
}

} // namespace

std::shared_ptr<void> reserve_memory(int64_t bytes, std::string_view name) {
    static std::mutex mutex;
    static std::condition_variable released;
    static int64_t reserved = 0; // bytes that all threads have reserved
    if (bytes < 1 << 24) return nullptr;
    std::unique_lock lock(mutex);
    int64_t available = 0;
    released.wait(lock, [&] {
        available = available_memory();
        return reserved == 0 || bytes <= available - reserved;
    });
    RG_CHECK(bytes <= available, "images: expected at most ", available >> 20, " MiB to decode an image, got ",
             bytes >> 20, " (", name, "); make the image smaller");
    reserved += bytes;
    return {&reserved, [bytes](void*) { // not null, so that holders see that they have it
                const std::lock_guard guard(mutex);
                reserved -= bytes;
                released.notify_all();
            }};
}

bool is_png(Bytes bytes) {
    return bytes.size() >= sizeof kSignature && std::equal(std::begin(kSignature), std::end(kSignature), bytes.begin());
}

Image decode_png(Bytes bytes, std::string_view name, PngSamples samples) {
    PngContents c = ChunkReader(bytes, name).read();
    if (samples == PngSamples::stored) {
        if (c.header.colour == kPalette) c.header.colour = kGrey;
        c.alpha.clear(), c.has_transparency = c.scaled = false;
    }
    const Header& h = c.header;
    Image image{h.width, h.height, c.channels(), h.depth == 16 ? 16 : 8, {}, c.damage};
    const auto memory = reserve_memory(2 * h.width * h.height * image.channels * image.bit_depth / 8, name);
    std::vector<uint8_t> raw = inflate_data(c, name, image.damage);
    const size_t pixel_bytes = size_t(image.channels * image.bit_depth / 8), pixels = size_t(h.width * h.height);
    // If only the filter bytes must be removed, the rows are moved within `raw`, without a second buffer.
    const bool in_place = c.wide() && !h.interlaced;
    if (!in_place) image.pixels.resize(pixels * pixel_bytes);
    const auto unfilter_row = unfilter_for(h.bits_per_pixel());
    const std::vector<uint8_t> zeros(h.row_bytes(h.width));
    std::vector<uint8_t> widened(h.interlaced ? size_t(h.width) * pixel_bytes : 0);

    uint8_t* row = raw.data();
    int highest = -1; // the highest palette index so far
    for (const InterlacePass& pass : passes(h)) {
        const int64_t columns = pass.columns(h.width), rows = pass.rows(h.height);
        const size_t row_bytes = h.row_bytes(columns);
        const uint8_t* up = zeros.data();
        for (int64_t r = 0; columns > 0 && r < rows; ++r) {
            const int filter = *row++;
            RG_CHECK(filter <= 4, "png: expected filter 0 to 4, got ", filter, " (", name, ", row ", r,
                     " of the pass)");
            unfilter_row(filter, row, up, row_bytes);
            up = row;
            const size_t position = size_t((pass.y0 + r * pass.dy) * h.width + pass.x0) * pixel_bytes;
            if (in_place) {
                std::memmove(raw.data() + position, row, row_bytes);
                up = raw.data() + position;
            } else if (!h.interlaced) {
                highest = std::max(highest, widen(c, row, columns, image.pixels.data() + position));
            } else {
                highest = std::max(highest, widen(c, row, columns, widened.data()));
                uint8_t* const line = image.pixels.data() + position;
                for (size_t x = 0; x < size_t(columns); ++x)
                    std::memcpy(line + x * size_t(pass.dx) * pixel_bytes, &widened[x * pixel_bytes], pixel_bytes);
            }
            row += row_bytes;
        }
    }
    if (highest >= c.entries)
        image.damage = cat("png: expected palette indices below ", c.entries, ", got ", highest, " (", name, ")");
    if (in_place) {
        raw.resize(pixels * pixel_bytes);
        image.pixels = std::move(raw);
    }
    return image;
}

Image to_u8(const Image& image, int channels) {
    RG_CHECK(channels == 1 || channels == 3, "to_u8: expected 1 or 3 channels, got ", channels);
    if (image.channels == channels && image.bit_depth == 8) return image;
    const int64_t bytes = image.bit_depth / 8, pixels = image.width * image.height;
    const auto sample = [&](const uint8_t* p) { return bytes == 1 ? p[0] : ((p[0] << 8 | p[1]) + 128u) / 257; };
    Image out{image.width, image.height, channels, 8, std::vector<uint8_t>(size_t(pixels * channels))};
    const uint8_t* from = image.pixels.data();
    uint8_t* to = out.pixels.data();
    for (int64_t i = 0; i < pixels; ++i, from += image.channels * bytes) {
        uint32_t colour[3];
        for (int k = 0; k < 3; ++k) colour[k] = sample(from + (image.channels < 3 ? 0 : k * bytes));
        if (channels == 3)
            to = std::copy_n(colour, 3, to);
        else // 0.299, 0.587 and 0.114 in units of 1/65536; grey pixels keep their value
            *to++ = uint8_t((colour[0] * 19595u + colour[1] * 38470u + colour[2] * 7471u + 32768u) >> 16);
    }
    return out;
}

std::vector<uint8_t> encode_png(int64_t width, int64_t height, int channels, Bytes pixels) {
    RG_CHECK(width > 0 && height > 0 && width <= kMaxPixels / height && channels >= 1 && channels <= 4,
             "encode_png: expected 1 to ", kMaxPixels, " pixels of 1 to 4 channels, got ", width, " x ", height, " x ",
             channels);
    const size_t step = size_t(channels), bytes = size_t(width) * step;
    RG_CHECK(pixels.size() == bytes * size_t(height), "encode_png: expected ", bytes * size_t(height), " bytes, got ",
             pixels.size());
    const std::vector<uint8_t> zeros(bytes);
    std::vector<uint8_t> raw;
    raw.reserve((bytes + 1) * size_t(height));
    for (size_t y = 0; y < size_t(height); ++y) {
        const uint8_t *row = pixels.data() + y * bytes, *up = y ? row - bytes : zeros.data();
        raw.push_back(4); // the filter Paeth
        for (size_t i = 0; i < bytes; ++i) {
            const bool first = i < step;
            raw.push_back(uint8_t(row[i] - paeth<int>(first ? 0 : row[i - step], up[i], first ? 0 : up[i - step])));
        }
    }

    static constexpr uint8_t kColour[] = {kGrey, kGreyAlpha, kRgb, kRgba};
    std::vector<uint8_t> header, out(std::begin(kSignature), std::end(kSignature));
    put_be32(header, uint32_t(width));
    put_be32(header, uint32_t(height));
    header.insert(header.end(), {8, kColour[channels - 1], 0, 0, 0});
    put_chunk(out, "IHDR", header);
    put_chunk(out, "IDAT", Deflater().zlib(raw));
    put_chunk(out, "IEND", {});
    return out;
}

} // namespace rg::data
