// Decodes a JPEG in three steps: Huffman codes to blocks of 8 x 8 coefficients, blocks to planes of samples, and planes
// to rows of pixels.
//
// A sequential file has each block once, so its samples are computed at once. A progressive file has each coefficient
// in several scans, so all blocks are kept until the end.
#include "data/jpeg.h"

#include "core/stop.h"
#include "data/jpeg_huffman.h"
#include "data/jpeg_pixels.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace rg::data {

namespace {

/// Position of a coefficient in its block, by its place in the file. T.81, figure A.6.
constexpr auto kZigzag = [] {
    std::array<uint8_t, 64> order{};
    size_t k = 0;
    for (int diagonal = 0; diagonal < 15; ++diagonal)
        for (int i = std::max(0, diagonal - 7); i <= std::min(7, diagonal); ++i, ++k) {
            const int row = diagonal % 2 ? i : diagonal - i;
            order[k] = uint8_t(8 * row + diagonal - row);
        }
    return order;
}();

constexpr int kSof0 = 0xC0, kSof1 = 0xC1, kSof2 = 0xC2, kDht = 0xC4, kRst0 = 0xD0, kSoi = 0xD8, kEoi = 0xD9,
              kSos = 0xDA, kDqt = 0xDB, kDri = 0xDD, kApp0 = 0xE0, kApp1 = 0xE1, kApp14 = 0xEE, kTem = 0x01;

/// Returns the name of the kind of file that has this marker, or nullptr if the decoder reads it. T.81, table B.1.
const char* unsupported_kind(int marker) {
    if (marker == 0xC3 || marker == 0xCB) return "a lossless file";
    if (marker == 0xC9 || marker == 0xCA || marker == 0xCC) return "arithmetic coding";
    const bool hierarchical = (marker >= 0xC5 && marker <= 0xC7) || (marker >= 0xCD && marker <= 0xCF);
    return hierarchical || marker == 0xDE ? "a hierarchical file" : nullptr;
}

/// The largest number of blocks in all scans per byte of the file. The limit is needed because a scan of few bytes may
/// take time for all blocks. A block counts more in a scan that refines AC coefficients. An image of one colour has 8
/// blocks per byte, and a progressive file about 10 scans.
constexpr int64_t kMostBlocksPerByte = 128;

int load_be16(const uint8_t* p) { return p[0] << 8 | p[1]; }

constexpr const char* kTruncated = "; the file is cut off, so copy or download it again";

constexpr int kNone = -1;

struct Component : JpegPlane {
    int id = 0, table = 0;             // table: index of the quantization table
    int64_t columns = 0, rows = 0;     // in blocks
    std::array<uint16_t, 64> steps{};  // the quantization table, in zigzag order
    std::vector<int16_t> coefficients; // of a progressive file: 64 per block, in zigzag order
    std::array<int, 64> known_bits{};  // of a progressive file: lowest bit that was read, or kNone
    const JpegHuffmanCode *dc = nullptr, *ac = nullptr;
    int16_t prediction = 0; // the last DC coefficient
};

class JpegDecoder {
public:
    JpegDecoder(Bytes bytes, std::string_view name) : bytes_(bytes), name_(name) {}

    Image decode() {
        check(is_jpeg(bytes_), "expected the start of a JPEG, got something else");
        pos_ = 2;
        for (int marker = next_marker(); marker != kEoi; marker = next_marker()) {
            if ((marker >= kRst0 && marker <= kSoi) || marker == kTem) continue; // these have no contents
            check(bytes_.size() - pos_ >= 2, "expected a segment, got the end of the file", kTruncated);
            const size_t length = size_t(load_be16(&bytes_[pos_]));
            check(length >= 2, "expected a segment of at least 2 bytes, got ", length);
            check(length <= bytes_.size() - pos_, "expected a segment of ", length, " bytes, got ",
                  bytes_.size() - pos_, kTruncated);
            body_ = bytes_.subspan(pos_ + 2, length - 2);
            pos_ += length;
            read_segment(marker);
        }
        check(!components_.empty(), "expected a frame header before the end marker, got none");
        for (const Component& c : components_)
            check(!c.samples.empty(), "expected image data of ", components_.size(), " components, got fewer");
        if (progressive_) write_all_blocks();
        std::vector<const JpegPlane*> planes;
        for (const Component& c : components_) planes.push_back(&c);
        Image image = jpeg_image(width_, height_, colours(), planes);
        if (orientation_ != 1) image = oriented(image, orientation_);
        image.damage = damage_;
        return image;
    }

private:
    template <class... Parts>
    std::string error_text(const Parts&... parts) const {
        return cat("jpeg: ", parts..., " (", name_, ", offset ", pos_, ")");
    }
    template <class... Parts>
    void check(bool good, const Parts&... parts) const {
        if (!good) fail(error_text(parts...));
    }
    /// Keeps the first violation that does not end the decoding.
    template <class... Parts>
    void check_undamaged(bool good, const Parts&... parts) {
        if (!good && damage_.empty()) damage_ = error_text(parts...);
    }

    /// Returns the next marker. Skips the bytes before it, as libjpeg does. T.81, section B.1.1.2.
    int next_marker() {
        const auto skip = [&](bool ff) {
            while (pos_ < bytes_.size() && (bytes_[pos_] == 0xFF) == ff) ++pos_;
        };
        for (;;) {
            skip(false);
            skip(true);
            check(pos_ < bytes_.size(), "expected a marker, got the end of the file", kTruncated);
            if (const int marker = bytes_[pos_++]) return marker;
        }
    }

    void read_segment(int marker) {
        if (const char* kind = unsupported_kind(marker))
            check(false, "expected a baseline or progressive file with Huffman codes, got ", kind, "; convert it");
        const std::string_view text = as_text(body_);
        switch (marker) {
        case kSof0:
        case kSof1:
        case kSof2: return read_frame(marker == kSof2);
        case kDht: return read_huffman_codes();
        case kDqt: return read_quantization();
        case kSos: return read_scan();
        case kDri:
            check(body_.size() == 2, "restart interval: expected 2 bytes, got ", body_.size());
            restart_interval_ = load_be16(&body_[0]);
            return;
        case kApp0: jfif_ |= text.starts_with(std::string_view("JFIF\0", 5)); return;
        case kApp1:
            if (text.starts_with(std::string_view("Exif\0\0", 6))) read_exif(body_.subspan(6));
            return;
        case kApp14: // Adobe Technical Note 5116, section 18
            if (text.starts_with("Adobe") && body_.size() >= 12) adobe_transform_ = body_[11];
            return;
        }
    }

    /// T.81, section B.2.2.
    void read_frame(bool progressive) {
        check(components_.empty(), "expected one frame header, got another");
        check(body_.size() >= 6 && body_.size() == 6 + 3 * size_t{body_[5]}, "frame header: unexpected length ",
              body_.size());
        check(body_[0] == 8, "expected samples of 8 bits, got ", int(body_[0]), "; convert it");
        height_ = load_be16(&body_[1]), width_ = load_be16(&body_[3]);
        check(width_ > 0, "expected a width of at least 1, got 0");
        check(height_ > 0, "expected a height in the frame header, got 0; a height after the image is not supported");
        check(width_ <= kMaxPixels / height_, "expected at most ", kMaxPixels, " pixels, got ", width_, " x ", height_);
        const int count = body_[5];
        check(count == 1 || count == 3 || count == 4, "expected 1, 3 or 4 components, got ", count);
        progressive_ = progressive;
        for (const uint8_t* p = &body_[6]; p != body_.data() + body_.size(); p += 3) {
            Component c;
            c.id = p[0], c.h = p[1] >> 4, c.v = p[1] & 15, c.table = p[2];
            check(c.h >= 1 && c.h <= 4 && c.v >= 1 && c.v <= 4, "expected sampling factors of 1 to 4, got ", c.h, " x ",
                  c.v);
            check(c.table <= 3, "expected quantization table 0 to 3, got ", c.table);
            h_max_ = std::max(h_max_, c.h), v_max_ = std::max(v_max_, c.v);
            components_.push_back(std::move(c));
        }
        const auto divided = [](int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; };
        mcu_columns_ = divided(width_, 8 * h_max_), mcu_rows_ = divided(height_, 8 * v_max_);
        for (Component& c : components_) { // T.81, section A.1.1
            c.width = divided(width_ * c.h, h_max_), c.height = divided(height_ * c.v, v_max_);
            c.columns = divided(c.width, 8), c.rows = divided(c.height, 8);
            c.stride = 8 * mcu_columns_ * c.h;
        }
    }

    /// T.81, section B.2.4.1.
    void read_quantization() {
        for (Bytes rest = body_; !rest.empty();) {
            const int wide = rest[0] >> 4, table = rest[0] & 15;
            const size_t bytes = wide ? 128 : 64;
            check(wide <= 1 && table <= 3, "expected quantization table 0 to 3, got ", table);
            check(rest.size() > bytes, "quantization table: expected ", bytes, " bytes, got ", rest.size() - 1);
            for (size_t k = 0; k < 64; ++k)
                steps_[size_t(table)][k] = uint16_t(wide ? load_be16(&rest[1 + 2 * k]) : rest[1 + k]);
            has_steps_[size_t(table)] = true;
            rest = rest.subspan(1 + bytes);
        }
    }

    /// T.81, section B.2.4.2.
    void read_huffman_codes() {
        for (Bytes rest = body_; !rest.empty();) {
            const int ac = rest[0] >> 4, table = rest[0] & 15;
            check(ac <= 1 && table <= 3, "expected Huffman table 0 to 3, got ", table);
            check(rest.size() >= 17, "Huffman table: expected 16 counts, got ", rest.size() - 1);
            size_t count = 0;
            for (const uint8_t n : rest.subspan(1, 16)) count += n;
            check(count <= 256 && rest.size() >= 17 + count, "Huffman table: expected ", count, " symbols, got ",
                  rest.size() - 17);
            const Bytes symbols = rest.subspan(17, count);
            for (const uint8_t symbol : symbols)
                check(ac || symbol <= 15, "Huffman table: expected DC symbols of 0 to 15, got ", int(symbol));
            check(codes_[size_t(ac)][size_t(table)].define(rest.subspan(1, 16), symbols),
                  "Huffman table: more codes than their lengths allow");
            rest = rest.subspan(17 + count);
        }
    }

    /// Reads the orientation from the first directory of a TIFF file. Ignores what is invalid, as other programs do.
    /// Exif 2.32, section 4.6.2.
    void read_exif(Bytes tiff) {
        if (tiff.size() < 8 || exif_) return;
        exif_ = true;
        const bool little = tiff[0] == 'I';
        const auto number = [&](size_t at, int bytes) {
            size_t value = 0;
            for (int i = 0; i < bytes; ++i) value = value << 8 | tiff[at + size_t(little ? bytes - 1 - i : i)];
            return value;
        };
        const size_t begin = number(4, 4);
        if (begin > tiff.size() - 2) return;
        const size_t count = std::min(number(begin, 2), (tiff.size() - begin - 2) / 12);
        for (size_t at = begin + 2; at < begin + 2 + 12 * count; at += 12) {
            const size_t value = number(at + 8, 2);
            if (number(at, 2) == 0x112 && number(at + 2, 2) == 3 && value >= 1 && value <= 8) orientation_ = int(value);
        }
    }

    /// T.81, sections B.2.3 and G.1.1.1.
    void read_scan() {
        check(!components_.empty(), "expected a frame header before a scan, got none");
        const size_t count = body_.empty() ? 0 : body_[0];
        check(count >= 1 && count <= 4 && body_.size() == 4 + 2 * count, "scan header: unexpected length ",
              body_.size());
        first_ = 0, last_ = 63, high_ = 0, low_ = 0;
        if (progressive_) {
            const uint8_t* p = &body_[1 + 2 * count];
            first_ = p[0], last_ = p[1], high_ = p[2] >> 4, low_ = p[2] & 15;
            check(first_ <= last_ && last_ <= 63 && (first_ ? count == 1 : last_ == 0) && low_ <= 13 &&
                      (high_ == 0 || high_ == low_ + 1),
                  "scan header: invalid coefficients ", first_, " to ", last_, ", bits ", high_, " and ", low_);
        }
        scan_.clear();
        int blocks = 0;
        for (size_t i = 0; i < count; ++i) {
            const int id = body_[1 + 2 * i], dc = body_[2 + 2 * i] >> 4, ac = body_[2 + 2 * i] & 15;
            const auto c = std::find_if(components_.begin(), components_.end(), [&](auto& c) { return c.id == id; });
            check(c != components_.end() && std::find(scan_.begin(), scan_.end(), &*c) == scan_.end(),
                  "scan header: unexpected component ", id);
            check(dc <= 3 && ac <= 3, "expected Huffman tables 0 to 3, got ", dc, " and ", ac);
            for (const size_t kind : {0, 1})
                if (const auto table = size_t(kind ? ac : dc); table < 2 && !codes_[kind][table].defined)
                    codes_[kind][table].define_typical(kind, table);
            c->dc = &codes_[0][size_t(dc)], c->ac = &codes_[1][size_t(ac)];
            check((first_ || high_ || c->dc->defined) && (last_ == 0 || c->ac->defined), "expected Huffman tables ", dc,
                  " and ", ac, " before the scan, got none");
            if (c->samples.empty()) start(*c);
            for (int k = first_; progressive_ && k <= last_; ++k) { // each bit comes once, and the DC coefficient first
                int& low = c->known_bits[size_t(k)];
                check_undamaged(low == (high_ ? high_ : kNone) && (k == 0 || c->known_bits[0] != kNone),
                                "scan header: bit ", low_, " of coefficient ", k, " does not continue earlier scans");
                low = low_;
            }
            blocks += c->h * c->v;
            scan_.push_back(&*c);
        }
        check(count == 1 || blocks <= 10, "expected at most 10 blocks per MCU, got ", blocks);
        decode_scan(count == 1 ? scan_[0]->columns : mcu_columns_, count == 1 ? scan_[0]->rows : mcu_rows_,
                    count == 1 ? 1 : blocks);
    }

    /// Allocates memory for a component. Each of its blocks takes at least one bit of this scan.
    void start(Component& c) {
        check(has_steps_[size_t(c.table)], "expected quantization table ", c.table, " before the scan, got none");
        check(c.columns * c.rows <= int64_t(8 * (bytes_.size() - pos_)), "expected at least one bit for each of ",
              c.columns * c.rows, " blocks, got ", bytes_.size() - pos_, " bytes", kTruncated);
        if (!memory_) memory_ = reserve_memory(width_ * height_ * (progressive_ ? 18 : 10), name_);
        c.steps = steps_[size_t(c.table)];
        c.known_bits.fill(kNone);
        const size_t samples = size_t(c.stride * 8 * mcu_rows_ * c.v);
        if (progressive_) c.coefficients.resize(samples);
        c.samples.assign(samples, 128); // the value of blocks that are lost
    }

    /// Decodes the MCUs of a scan, which are single blocks if the scan has one component. T.81, section A.2.2.
    void decode_scan(int64_t columns, int64_t rows, int blocks) {
        const bool one = scan_.size() == 1;
        const auto decode_block = !progressive_ ? &JpegDecoder::sequential_block
                                  : !first_     ? (high_ ? &JpegDecoder::refine_dc : &JpegDecoder::first_dc)
                                                : (high_ ? &JpegDecoder::refine_ac : &JpegDecoder::first_ac);
        blocks_ += columns * rows * blocks * (1 + (high_ ? (last_ - first_) / 16 : 0));
        check(blocks_ <= kMostBlocksPerByte * std::ssize(bytes_), "expected at most ", kMostBlocksPerByte,
              " blocks of all scans for each of ", bytes_.size(), " bytes, got more; save it with fewer scans");
        start_interval();
        lost_ = false;
        int64_t left = restart_interval_;
        for (int64_t y = 0, restarts = 0; y < rows; ++y) {
            check_stop();
            for (int64_t x = 0; x < columns; ++x, --left) {
                if (restart_interval_ && left == 0) {
                    left = restart_interval_;
                    end_interval();
                    if (find_restart(kRst0 + int(restarts++ % 8))) lost_ = false;
                    start_interval();
                }
                if (lost_) continue;
                for (Component* c : scan_) {
                    const int h = one ? 1 : c->h, v = one ? 1 : c->v;
                    for (int j = 0; j < v; ++j)
                        for (int i = 0; i < h; ++i) (this->*decode_block)(*c, x * h + i, y * v + j);
                }
            }
        }
        end_interval();
    }

    /// Moves behind the restart marker before the next interval and returns true, or stops before another marker and
    /// returns false if the data of the interval are missing. Like libjpeg (jpeg_resync_to_restart), skips markers of
    /// earlier intervals, stops before those of the next two, and takes others for the expected one.
    bool find_restart(int expected) {
        for (;;) {
            const int marker = next_marker(), ahead = (marker - expected) & 7;
            if (marker == expected) return true;
            check_undamaged(false, "expected restart marker ", expected, ", got marker ", marker);
            const bool is_restart = marker >= kRst0 && marker < kSoi;
            if (is_restart ? ahead <= 2 : marker >= kSof0) {
                pos_ -= 2;
                return false;
            }
            if (is_restart && ahead < 6) return true;
        }
    }

    void start_interval() {
        bits_ = {bytes_.data() + pos_, bytes_.data() + bytes_.size()};
        end_of_band_ = 0;
        for (Component* c : scan_) c->prediction = 0;
    }
    void end_interval() { pos_ = size_t(bits_.next - bytes_.data()); }

    /// Ends a block, after which `bits` are left. If zeros have replaced missing bits, throws Error at the end of the
    /// file; before a marker, all later blocks of the interval are lost.
    void end_block(const JpegBits& bits) {
        bits_ = bits;
        if (!bits.overrun()) return;
        end_interval();
        check(bits.next != bits.end, "expected more image data, got the end of the file", kTruncated);
        check_undamaged(false, "expected more image data, got a marker");
        lost_ = true;
    }
    void note_bad_code(const JpegBits& bits) {
        pos_ = size_t(bits.next - bytes_.data());
        check_undamaged(false, "got bits that are no Huffman code, or too many coefficients");
    }

    int take_symbol(JpegBits& bits, const JpegHuffmanCode& code, int& value) {
        return code.take(bits, value, [&] { note_bad_code(bits); });
    }

    int16_t* coefficients(Component& c, int64_t x, int64_t y) {
        return &c.coefficients[size_t(8 * (y * c.stride + 8 * x))];
    }
    uint8_t* samples(Component& c, int64_t x, int64_t y) { return &c.samples[size_t(8 * (y * c.stride + x))]; }

    /// Decodes a block of a sequential scan (T.81, section F.2.2).
    void sequential_block(Component& c, int64_t x, int64_t y) {
        JpegBits bits = bits_;
        int16_t* const block = block_.data();
        int value, k = 0, last = 0;
        take_symbol(bits, *c.dc, value);
        c.prediction = int16_t(c.prediction + value);
        block[0] = int16_t(c.prediction * c.steps[0]);
        while (k < 63) {
            const int symbol = take_symbol(bits, *c.ac, value), size = symbol & 15;
            if (size == 0 && symbol != 0xF0) break;
            k += (symbol >> 4) + 1;
            if (size == 0) continue;
            if (k > 63) note_bad_code(bits), k = 63;
            block[kZigzag[size_t(k)]] = int16_t(value * c.steps[size_t(k)]);
            last = k;
        }
        end_block(bits);
        write_jpeg_block(block, last == 0, samples(c, x, y), c.stride);
        std::memset(block, 0, last ? sizeof block_ : sizeof block[0]);
    }

    /// T.81, section G.1.2.1.
    void first_dc(Component& c, int64_t x, int64_t y) {
        int value;
        take_symbol(bits_, *c.dc, value);
        end_block(bits_);
        c.prediction = int16_t(c.prediction + value);
        coefficients(c, x, y)[0] = int16_t(c.prediction * (1 << low_));
    }

    void refine_dc(Component& c, int64_t x, int64_t y) {
        bits_.fill();
        if (bits_.take(1)) coefficients(c, x, y)[0] |= int16_t(1 << low_);
        end_block(bits_);
    }

    /// Reads how many blocks, this one included, have no more values in the band. T.81, section G.1.2.2.
    int64_t take_end_of_band(int symbol) {
        bits_.fill();
        return int64_t{1} << (symbol >> 4) | bits_.take(symbol >> 4);
    }

    void first_ac(Component& c, int64_t x, int64_t y) {
        if (end_of_band_ > 0) {
            --end_of_band_;
            return;
        }
        int16_t* const block = coefficients(c, x, y);
        for (int k = first_, value; k <= last_; ++k) {
            const int symbol = take_symbol(bits_, *c.ac, value), size = symbol & 15;
            if (size == 0 && symbol != 0xF0) {
                end_of_band_ = take_end_of_band(symbol) - 1;
                break;
            }
            k += symbol >> 4;
            if (size == 0) continue;
            if (k > last_) note_bad_code(bits_), k = std::min(k, 63);
            block[k] = int16_t(value * (1 << low_));
        }
        end_block(bits_);
    }

    /// Coefficients that are not zero get one bit more, and those that become 1 or -1 are placed between them. T.81,
    /// section G.1.2.3.
    void refine_ac(Component& c, int64_t x, int64_t y) {
        int16_t* const block = coefficients(c, x, y);
        int k = first_;
        // Moves k behind `zeros` zeros, to the next one, and refines the other coefficients on the way.
        const auto refine = [&](int zeros) {
            for (; k <= last_; ++k) {
                if (uint64_t four = 1; zeros >= 4 && k + 3 <= last_) { // most of them are zero
                    std::memcpy(&four, block + k, sizeof four);
                    if (four == 0) {
                        zeros -= 4, k += 3;
                        continue;
                    }
                }
                if (block[k] == 0) {
                    if (zeros-- == 0) break;
                    continue;
                }
                bits_.fill();
                if (bits_.take(1)) block[k] = int16_t(block[k] + (block[k] < 0 ? -1 : 1) * (1 << low_));
            }
        };
        while (end_of_band_ == 0 && k <= last_) {
            int value;
            const int symbol = take_symbol(bits_, *c.ac, value), size = symbol & 15;
            if (size == 0 && symbol != 0xF0) {
                end_of_band_ = take_end_of_band(symbol);
                break;
            }
            refine(symbol >> 4);
            if (k > last_ && size) note_bad_code(bits_), k = std::min(k, 63);
            if (size) block[k] = int16_t(value * (1 << low_));
            ++k;
        }
        if (end_of_band_ > 0) {
            refine(64); // the rest of the band
            --end_of_band_;
        }
        end_block(bits_);
    }

    void write_all_blocks() {
        for (Component& c : components_)
            for (int64_t y = 0; y < c.rows; ++y) {
                check_stop();
                for (int64_t x = 0; x < c.columns; ++x) {
                    const int16_t* const from = coefficients(c, x, y);
                    int16_t block[64], others = 0;
                    for (size_t k = 0; k < 64; ++k) {
                        block[kZigzag[k]] = int16_t(from[k] * c.steps[k]);
                        if (k > 0) others |= from[k];
                    }
                    write_jpeg_block(block, others == 0, samples(c, x, y), c.stride);
                }
            }
    }

    /// JFIF 1.02, page 2, and Adobe Technical Note 5116, section 18. Without either, libjpeg looks at the identifiers.
    JpegColours colours() const {
        if (components_.size() == 1) return JpegColours::grey;
        if (components_.size() == 4) return adobe_transform_ > 0 ? JpegColours::ycck : JpegColours::cmyk;
        if (jfif_) return JpegColours::ycc;
        if (adobe_transform_ >= 0) return adobe_transform_ ? JpegColours::ycc : JpegColours::rgb;
        const bool rgb = components_[0].id == 'R' && components_[1].id == 'G' && components_[2].id == 'B';
        return rgb ? JpegColours::rgb : JpegColours::ycc;
    }

    Bytes bytes_, body_; // the file, and the contents of the latest segment
    std::string_view name_;
    std::shared_ptr<void> memory_;
    size_t pos_ = 0;
    int64_t width_ = 0, height_ = 0, mcu_columns_ = 0, mcu_rows_ = 0;
    int h_max_ = 1, v_max_ = 1;
    bool progressive_ = false, jfif_ = false, exif_ = false;
    int orientation_ = 1, adobe_transform_ = -1;
    std::vector<Component> components_;
    std::array<std::array<uint16_t, 64>, 4> steps_{};
    std::array<bool, 4> has_steps_{};
    std::array<std::array<JpegHuffmanCode, 4>, 2> codes_; // of DC and AC coefficients
    int64_t restart_interval_ = 0;

    std::vector<Component*> scan_;
    int first_ = 0, last_ = 0, high_ = 0, low_ = 0; // Ss, Se, Ah and Al of T.81
    int64_t blocks_ = 0;                            // of all scans; see kMostBlocksPerByte
    std::string damage_;                            // as in Image
    bool lost_ = false;                             // the data up to the next restart marker are missing
    JpegBits bits_;
    std::array<int16_t, 64> block_{}; // zeros between two blocks
    int64_t end_of_band_ = 0;         // blocks that have no more values in the band
};

} // namespace

bool is_jpeg(Bytes bytes) { return as_text(bytes).starts_with("\xFF\xD8\xFF"); }

Image decode_jpeg(Bytes bytes, std::string_view name) { return JpegDecoder(bytes, name).decode(); }

} // namespace rg::data
