// Inflate (RFC 1951): decodes canonical Huffman codes with a primary table, and with secondary tables for long codes.
//
// A table entry describes a symbol completely: the number of bits of its code, and its kind. The kind is a literal, the
// base of a length or distance with a number of extra bits, the end of the block, a pointer to a secondary table, or
// invalid. Bits come from a 64-bit buffer, which is filled by loads of eight bytes while enough input is left. (Entries
// for two literals at once were tried. On photos and on 32 x 32 images, filling them takes as long as they save.)
//
// Decoding has two loops over the same tables. The fast loop runs while input and output have enough room (the output
// has spare room after its limit), so it checks neither within a round. It stops before the end of a block, before an
// invalid code, or if too little room is left, and then checks the limit of the output. The careful loop then decodes
// one symbol, and reports all other errors.
#include "data/inflate.h"

#include "core/stop.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace rg::data {

static_assert(std::endian::native == std::endian::little, "the bit buffer is filled by little-endian loads");

namespace {

struct DecodeEntry {
    uint16_t value = 0; // literal; base of a length or distance; start of a secondary table
    uint8_t bits = 0;   // length of the whole code
    uint8_t kind = 0;   // if below kLiteral: number of extra bits, and `value` is a base
};
constexpr uint8_t kLiteral = 0x10, kEnd = 0x20, kSecondary = 0x40 /* | index bits */, kInvalid = 0x80;

constexpr int kMaxCodeBits = 15, kLiteralIndexBits = 10, kDistanceIndexBits = 8, kMaxMatch = 258;

/// Meanings of the symbols, without the lengths of their codes. RFC 1951, section 3.2.5.
constexpr auto kLiteralSymbols = [] {
    constexpr uint16_t kBase[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                    31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    std::array<DecodeEntry, 288> symbols{};
    for (size_t i = 0; i < 256; ++i) symbols[i] = {uint16_t(i), 0, kLiteral};
    symbols[256] = {0, 0, kEnd};
    for (size_t i = 0; i < 29; ++i) symbols[257 + i] = {kBase[i], 0, uint8_t(i < 8 || i == 28 ? 0 : i / 4 - 1)};
    symbols[286] = symbols[287] = {0, 0, kInvalid};
    return symbols;
}();
constexpr auto kDistanceSymbols = [] {
    std::array<DecodeEntry, 32> symbols{};
    for (unsigned i = 0; i < 4; ++i) symbols[i] = {uint16_t(i + 1), 0, 0};
    for (unsigned i = 4; i < 30; ++i) symbols[i] = {uint16_t(((2 + i % 2) << (i / 2 - 1)) + 1), 0, uint8_t(i / 2 - 1)};
    symbols[30] = symbols[31] = {0, 0, kInvalid};
    return symbols;
}();

struct DecodeTable {
    int index_bits = 0;
    std::vector<DecodeEntry> entries;

    const DecodeEntry& find(uint64_t buffer) const {
        const DecodeEntry& entry = entries[buffer & ((1u << index_bits) - 1)];
        if (!(entry.kind & kSecondary)) return entry;
        return entries[entry.value + ((buffer >> index_bits) & ((1u << (entry.kind & 15)) - 1))];
    }
};

/// `sparse`: the code has unused bit patterns in the way that RFC 1951 (3.2.7) allows for distances: a single symbol of
/// one bit, or no symbol.
enum class CodeState { complete, sparse, too_many, too_few };

/// Returns the lowest `bits` bits of a code in reverse order.
constexpr unsigned reverse(unsigned code, int bits) {
    code = (code & 0x5555) << 1 | (code & 0xAAAA) >> 1;
    code = (code & 0x3333) << 2 | (code & 0xCCCC) >> 2;
    code = (code & 0x0F0F) << 4 | (code & 0xF0F0) >> 4;
    code = (code & 0x00FF) << 8 | code >> 8;
    return code >> (16 - bits);
}

/// Fills `table` for the canonical code with these lengths, and returns complete or sparse. Leaves `table` alone if
/// there are too many or too few codes.
CodeState build_table(DecodeTable& table, int index_bits, std::span<const uint8_t> lengths,
                      std::span<const DecodeEntry> meaning) {
    std::array<int, kMaxCodeBits + 2> count{}, next{};
    for (const uint8_t length : lengths) ++count[length];
    int left = 1, longest = 0;
    for (int bits = 1; bits <= kMaxCodeBits; ++bits) {
        left = 2 * left - count[size_t(bits)];
        if (left < 0) return CodeState::too_many;
        if (count[size_t(bits)]) longest = bits;
        next[size_t(bits) + 1] = (next[size_t(bits)] + count[size_t(bits)]) << 1;
    }
    if (left > 0 && longest > 1) return CodeState::too_few;

    // Stores the codes reversed: they are sent from their highest bit, but the buffer is read from its lowest bit.
    std::array<uint16_t, 288> code;
    std::array<uint8_t, 1 << kLiteralIndexBits> secondary_bits{};
    const unsigned mask = (1u << index_bits) - 1;
    for (size_t i = 0; i < lengths.size(); ++i) {
        const int bits = lengths[i];
        if (bits == 0) continue;
        const unsigned reversed = reverse(unsigned(next[size_t(bits)]++), bits);
        code[i] = uint16_t(reversed);
        if (bits > index_bits)
            secondary_bits[reversed & mask] = std::max(secondary_bits[reversed & mask], uint8_t(bits - index_bits));
    }
    table.index_bits = index_bits;
    table.entries.assign(mask + 1, DecodeEntry{0, 1, kInvalid});
    for (unsigned prefix = 0; longest > index_bits && prefix <= mask; ++prefix)
        if (const int bits = secondary_bits[prefix]) {
            table.entries[prefix] = {uint16_t(table.entries.size()), 0, uint8_t(kSecondary | bits)};
            table.entries.resize(table.entries.size() + (size_t{1} << bits), DecodeEntry{0, 1, kInvalid});
        }
    for (size_t i = 0; i < lengths.size(); ++i) {
        const int bits = lengths[i];
        if (bits == 0) continue;
        DecodeEntry entry = meaning[i];
        entry.bits = uint8_t(bits);
        size_t first = code[i], step = size_t{1} << bits, end = mask + 1;
        if (bits > index_bits) {
            const DecodeEntry& pointer = table.entries[code[i] & mask];
            first = pointer.value + size_t(code[i] >> index_bits);
            step = size_t{1} << (bits - index_bits);
            end = pointer.value + (size_t{1} << (pointer.kind & 15));
        }
        for (size_t index = first; index < end; index += step) table.entries[index] = entry;
    }
    return left > 0 ? CodeState::sparse : CodeState::complete;
}

struct BlockCodes {
    DecodeTable literals, distances;
};

const BlockCodes& fixed_codes() {
    static const BlockCodes codes = [] {
        std::array<uint8_t, 288> literal;
        for (size_t i = 0; i < literal.size(); ++i) literal[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
        std::array<uint8_t, 32> distance;
        distance.fill(5);
        BlockCodes c;
        build_table(c.literals, kLiteralIndexBits, literal, kLiteralSymbols);
        build_table(c.distances, kDistanceIndexBits, distance, kDistanceSymbols);
        return c;
    }();
    return codes;
}

/// Bit buffer. The next `count` bits of the input are the low bits of `buffer`. Bits above these are zeros or already
/// the input bits that follow.
struct BitBuffer {
    Bytes in;
    size_t pos = 0;
    uint64_t buffer = 0;
    int count = 0;

    /// Fills the buffer to at least 56 bits. Requires 8 bytes of input from pos on.
    void fill_fast() {
        uint64_t word;
        std::memcpy(&word, in.data() + pos, 8);
        buffer |= word << count;
        pos += size_t(63 - count) >> 3;
        count |= 56;
    }
    /// Fills the buffer to at least 56 bits if the input has them, but never to 64: fill_fast() cannot shift by 64.
    void fill() {
        if (in.size() - pos >= 8) return fill_fast();
        for (; count < 56 && pos < in.size(); count += 8) buffer |= uint64_t{in[pos++]} << count;
    }
    void drop(int bits) {
        buffer >>= bits;
        count -= bits;
    }
    uint32_t take_unchecked(int bits) {
        const uint32_t value = uint32_t(buffer & ((uint64_t{1} << bits) - 1));
        drop(bits);
        return value;
    }
};

class Inflater {
public:
    Inflater(Bytes in, size_t limit, std::string_view name) : bits_{in}, limit_(limit), name_(name) {}

    /// Decodes one DEFLATE stream from byte `pos` on, appends its contents, and returns the offset after its end.
    size_t run(size_t pos) {
        bits_ = {bits_.in, pos};
        start_ = size_;
        for (bool last = false; !last;) {
            check_stop();
            last = take(1) != 0;
            const uint32_t type = take(2);
            if (type == 0)
                stored_block();
            else if (type == 1)
                coded_block(fixed_codes());
            else if (type == 2)
                coded_block(read_codes());
            else
                bad("expected block type 0, 1 or 2, got 3");
        }
        return offset();
    }

    Bytes contents(size_t from = 0) const { return Bytes(out_).subspan(from, size_ - from); }
    size_t size() const { return size_; }

    std::vector<uint8_t> finish() {
        out_.resize(size_);
        return std::move(out_);
    }

    template <class... Parts>
    [[noreturn]] void bad(const Parts&... parts) const {
        fail("inflate: ", parts..., " (", name_, ", offset ", offset(), ")");
    }

private:
    /// Bytes of room that one round of the fast loop needs. A round reads up to 15 bytes. It writes up to three
    /// literals, or up to two literals, a match, and up to 15 bytes after the match.
    static constexpr size_t kInputRoom = 24, kOutputRoom = kMaxMatch + 32;

    size_t offset() const { return bits_.pos - size_t(bits_.count / 8); }

    uint32_t take(int bits) {
        bits_.fill();
        if (bits > bits_.count) bad("expected more data, got the end of the input");
        return bits_.take_unchecked(bits);
    }

    /// Reads the next symbol. Throws Error if the input ends, or if the bits are no code; `what` names the symbols of
    /// the table in the error text.
    const DecodeEntry& take_symbol(const DecodeTable& table, const char* what) {
        bits_.fill();
        const DecodeEntry& entry = table.find(bits_.buffer);
        if (entry.bits > bits_.count) bad("expected more data, got the end of the input");
        if (entry.kind == kInvalid) bad("got a bit pattern that is no ", what);
        bits_.drop(entry.bits);
        return entry;
    }

    [[noreturn]] void bad_size() const { bad("expected at most ", limit_, " bytes of output, got more"); }

    /// Appends `count` bytes, which write(to, n) writes. Above the limit, lets it write only the first n of them, then
    /// throws Error.
    template <class Write>
    void append(size_t count, Write write) {
        const size_t n = std::min(count, limit_ - size_);
        if (size_ + n > out_.size()) {
            const size_t guess = std::max({2 * out_.size(), 4 * bits_.in.size(), size_ + n});
            const size_t room = std::min(limit_, guess) + kOutputRoom; // lets the fast loop run up to the limit
            out_.reserve(room);                                        // resize() alone may allocate twice as much
            out_.resize(room);
        }
        write(out_.data() + size_, n);
        size_ += n;
        if (n < count) bad_size();
    }

    void stored_block() {
        bits_.drop(bits_.count & 7);
        bits_ = {bits_.in, offset()};
        if (bits_.in.size() - bits_.pos < 4) bad("expected the length of a stored block, got the end of the input");
        const uint8_t* head = bits_.in.data() + bits_.pos;
        const size_t length = size_t(head[0] | head[1] << 8), check = size_t(head[2] | head[3] << 8);
        if ((length ^ check) != 0xFFFF) bad("stored block: the length and its complement do not match");
        bits_.pos += 4;
        const Bytes stored = bits_.in.subspan(bits_.pos, std::min(length, bits_.in.size() - bits_.pos));
        append(stored.size(), [&](uint8_t* to, size_t n) { std::copy_n(stored.data(), n, to); });
        if (stored.size() < length) bad("stored block: expected ", length, " bytes, got ", stored.size());
        bits_.pos += length;
    }

    /// Reads the codes of a block with dynamic Huffman codes. RFC 1951, section 3.2.7.
    const BlockCodes& read_codes() {
        static constexpr uint8_t kOrder[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
        const uint32_t literals = take(5) + 257, distances = take(5) + 1, code_lengths = take(4) + 4;
        if (literals > 286) bad("expected at most 286 literal and length codes, got ", literals);
        if (distances > 30) bad("expected at most 30 distance codes, got ", distances);
        std::array<uint8_t, 19> short_lengths{};
        for (uint32_t i = 0; i < code_lengths; ++i) short_lengths[kOrder[i]] = uint8_t(take(3));
        make_table(lengths_code_, 7, short_lengths, kLiteralSymbols, "code lengths");

        std::array<uint8_t, 286 + 30> lengths{};
        const uint32_t total = literals + distances;
        for (uint32_t i = 0; i < total;) {
            const DecodeEntry& entry = take_symbol(lengths_code_, "code length");
            if (entry.value < 16) {
                lengths[i++] = uint8_t(entry.value);
                continue;
            }
            if (entry.value == 16 && i == 0) bad("got a repeated code length before the first one");
            const uint8_t length = entry.value == 16 ? lengths[i - 1] : 0;
            const uint32_t repeat = entry.value == 16 ? 3 + take(2) : entry.value == 17 ? 3 + take(3) : 11 + take(7);
            if (repeat > total - i) bad("expected ", total, " code lengths, got more");
            std::fill_n(lengths.begin() + i, repeat, length);
            i += repeat;
        }
        if (lengths[256] == 0) bad("expected a code for the end of the block, got none");
        const std::span<const uint8_t> all(lengths);
        make_table(codes_.literals, kLiteralIndexBits, all.first(literals), kLiteralSymbols, "literals and lengths");
        make_table(codes_.distances, kDistanceIndexBits, all.subspan(literals, distances), kDistanceSymbols,
                   "distances");
        return codes_;
    }

    void make_table(DecodeTable& table, int index_bits, std::span<const uint8_t> lengths,
                    std::span<const DecodeEntry> meaning, const char* what) {
        const CodeState state = build_table(table, index_bits, lengths, meaning);
        if (state == CodeState::too_many) bad("the code of the ", what, " has more codes than its lengths allow");
        if (state == CodeState::too_few || (state == CodeState::sparse && &table == &lengths_code_))
            bad("the code of the ", what, " is incomplete");
    }

    /// Decodes literals and matches while neither input nor output can run out. Throws Error above the limit.
    void fast_symbols(const BlockCodes& codes) {
        if (bits_.in.size() < kInputRoom || out_.empty()) return;
        const size_t in_end = bits_.in.size() - kInputRoom, out_end = out_.size() - kOutputRoom;
        BitBuffer bits = bits_;
        uint8_t* const out = out_.data();
        const size_t start = start_;
        size_t position = size_;
        while (bits.pos <= in_end && position <= out_end) {
            bits.fill_fast();
            DecodeEntry entry = codes.literals.find(bits.buffer);
            for (int i = 0; i < 2 && entry.kind == kLiteral; ++i) { // 56 bits hold three codes of at most 15 bits
                bits.drop(entry.bits);
                out[position++] = uint8_t(entry.value);
                entry = codes.literals.find(bits.buffer);
            }
            if (entry.kind == kLiteral) {
                bits.drop(entry.bits);
                out[position++] = uint8_t(entry.value);
                continue;
            }
            if (entry.kind > kLiteral) break;
            bits.fill_fast();
            // A match (two codes with extra bits) needs up to 15 + 5 + 15 + 13 = 48 bits. For an invalid distance, the
            // buffer is restored, so that the careful loop reports the error.
            const uint64_t buffer = bits.buffer;
            const int count = bits.count;
            bits.drop(entry.bits);
            const size_t length = entry.value + bits.take_unchecked(entry.kind);
            const DecodeEntry distance_code = codes.distances.find(bits.buffer);
            bits.drop(distance_code.bits);
            const size_t distance = distance_code.value + bits.take_unchecked(distance_code.kind & 15);
            if (distance_code.kind >= kLiteral || distance > position - start) {
                bits.buffer = buffer;
                bits.count = count;
                break;
            }
            copy_match(out + position, distance, length);
            position += length;
        }
        bits_ = bits;
        size_ = std::min(position, limit_);
        if (position > limit_) bad_size();
    }

    /// Copies a match from earlier output. May write up to 15 bytes after its end.
    static void copy_match(uint8_t* to, size_t distance, size_t length) {
        const uint8_t* from = to - distance;
        if (distance >= 16) {
            for (size_t i = 0; i < length; i += 16) std::memcpy(to + i, from + i, 16);
        } else if (distance == 1) {
            std::memset(to, *from, length);
        } else {
            // The copied bytes have the period `distance`, so any multiple of it is a period too. Copies 8 bytes at a
            // time once a multiple of at least 8 is available.
            size_t period = distance, i = 0;
            while (period < 8) period += distance;
            for (; i < period - distance; ++i) to[i] = from[i];
            for (; i < length; i += 8) std::memcpy(to + i, to + i - period, 8);
        }
    }

    void coded_block(const BlockCodes& codes) {
        for (;;) {
            fast_symbols(codes);
            const DecodeEntry& entry = take_symbol(codes.literals, "literal or length code");
            if (entry.kind == kEnd) return;
            if (entry.kind == kLiteral) {
                append(1, [&](uint8_t* to, size_t n) { std::fill_n(to, n, uint8_t(entry.value)); });
                continue;
            }
            const size_t length = entry.value + take(entry.kind);
            const DecodeEntry& distance_code = take_symbol(codes.distances, "distance code");
            const size_t distance = distance_code.value + take(distance_code.kind);
            if (distance > size_ - start_) bad("expected a distance of at most ", size_ - start_, ", got ", distance);
            append(length, [&](uint8_t* to, size_t n) {
                const uint8_t* const from = to - distance;
                for (size_t i = 0; i < n; ++i) to[i] = from[i];
            });
        }
    }

    BitBuffer bits_;
    size_t limit_;
    std::string_view name_;
    std::vector<uint8_t> out_; // size_ bytes of output, then unused room; empty until the first append()
    size_t size_ = 0, start_ = 0;
    DecodeTable lengths_code_;
    BlockCodes codes_;
};

uint32_t load_le32(const uint8_t* p) {
    return uint32_t{p[3]} << 24 | uint32_t{p[2]} << 16 | uint32_t{p[1]} << 8 | p[0];
}

/// Returns the offset after the header of the member that starts at `begin`. RFC 1952, section 2.3.
size_t skip_gzip_header(Bytes in, size_t begin, std::string_view name) {
    constexpr int kHeaderCrc = 2, kExtra = 4, kName = 8, kComment = 16;
    const auto check = [&](bool good, const char* text, size_t offset) {
        RG_CHECK(good, "inflate: gzip header: ", text, " (", name, ", offset ", offset, ")");
    };
    const char* const truncated = "expected more data, got the end of the input";
    check(in.size() - begin >= 10, truncated, in.size());
    check(is_gzip(in.subspan(begin)), "expected the bytes 1f 8b", begin);
    check(in[begin + 2] == 8, "expected compression method 8", begin + 2);
    const int flags = in[begin + 3];
    check((flags & 0xE0) == 0, "expected the reserved flags to be 0", begin + 3);
    size_t pos = begin + 10;
    if (flags & kExtra) {
        check(in.size() - pos >= 2, truncated, in.size());
        const size_t length = size_t(in[pos] | in[pos + 1] << 8) + 2;
        check(in.size() - pos >= length, truncated, in.size());
        pos += length;
    }
    for (const int text : {kName, kComment}) {
        if (!(flags & text)) continue;
        while (pos < in.size() && in[pos]) ++pos;
        check(pos < in.size(), truncated, in.size());
        ++pos;
    }
    if (flags & kHeaderCrc) {
        check(in.size() - pos >= 2, truncated, in.size());
        const uint32_t crc = crc32(in.subspan(begin, pos - begin)) & 0xFFFF;
        check(crc == uint32_t(in[pos] | in[pos + 1] << 8), "its CRC-16 does not match", pos);
        pos += 2;
    }
    return pos;
}

constexpr auto kCrcTables = [] {
    std::array<std::array<uint32_t, 256>, 8> t{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int k = 0; k < 8; ++k) c = (c & 1 ? 0xEDB88320u : 0) ^ c >> 1;
        t[0][i] = c;
    }
    for (size_t k = 1; k < 8; ++k)
        for (size_t i = 0; i < 256; ++i) t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 255];
    return t;
}();

} // namespace

uint32_t crc32(Bytes bytes) {
    const auto& t = kCrcTables; // eight bytes at a time: table k has the CRCs of a byte and k zero bytes after it
    uint32_t crc = ~0u;
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        uint64_t word;
        std::memcpy(&word, bytes.data() + i, 8);
        word ^= crc;
        crc = 0;
        for (size_t k = 0; k < 8; ++k) crc ^= t[7 - k][word >> 8 * k & 255];
    }
    for (; i < bytes.size(); ++i) crc = t[0][(crc ^ bytes[i]) & 255] ^ crc >> 8;
    return ~crc;
}

uint32_t adler32(Bytes bytes) {
    constexpr size_t kBlock = 5552; // the most bytes whose sums cannot overflow 32 bits
    constexpr size_t kLanes = 16;   // sums per column of 16-byte rows, so that no addition waits for the previous byte
    uint32_t a = 1, b = 0;
    while (!bytes.empty()) {
        Bytes block = bytes.first(std::min(bytes.size(), kBlock));
        bytes = bytes.subspan(block.size());
        uint32_t sum[kLanes] = {}, before[kLanes] = {}; // per column: its sum, and the total of its past sums
        const size_t rows = block.size() / kLanes;
        for (size_t r = 0; r < rows; ++r)
            for (size_t k = 0; k < kLanes; ++k) {
                before[k] += sum[k];
                sum[k] += block[r * kLanes + k];
            }
        b += uint32_t(rows * kLanes) * a;
        for (size_t k = 0; k < kLanes; ++k) {
            b += uint32_t(kLanes) * before[k] + uint32_t(kLanes - k) * sum[k];
            a += sum[k];
        }
        for (const uint8_t byte : block.subspan(rows * kLanes)) {
            a += byte;
            b += a;
        }
        a %= 65521;
        b %= 65521;
    }
    return b << 16 | a;
}

std::vector<uint8_t> inflate_zlib(Bytes in, size_t limit, std::string_view name, std::string* damage) {
    Inflater inflater(in, limit, name);
    if (in.size() < 2) inflater.bad("expected a zlib header, got the end of the input");
    if ((in[0] & 15) != 8) inflater.bad("expected compression method 8, got ", in[0] & 15);
    if (in[0] >> 4 > 7) inflater.bad("expected a window of at most 32 KiB, got 2^", (in[0] >> 4) + 8);
    if ((in[0] << 8 | in[1]) % 31 != 0) inflater.bad("the check bits of the zlib header do not match");
    if (in[1] & 32) inflater.bad("a preset dictionary is not supported");
    try {
        const size_t end = inflater.run(2);
        if (in.size() - end < 4) inflater.bad("expected an Adler-32, got the end of the input");
        const uint32_t wanted = load_be32(in.data() + end), got = adler32(inflater.contents());
        if (wanted != got) inflater.bad("expected Adler-32 ", wanted, ", got ", got);
        if (const size_t more = in.size() - end - 4)
            inflater.bad("expected the end of the stream, got ", more, " bytes more");
    } catch (const Error& error) {
        if (!damage || inflater.size() < limit) throw;
        *damage = error.what();
    }
    return inflater.finish();
}

bool is_gzip(Bytes bytes) { return bytes.size() >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B; }

std::vector<uint8_t> inflate_gzip(Bytes in, size_t limit, std::string_view name) {
    Inflater inflater(in, limit, name);
    // Refuses a decompression bomb before a byte is unpacked if its last four bytes, normally the length modulo 2^32,
    // exceed the limit. Other bombs stop at the limit.
    constexpr size_t kSmallest = 18; // header and trailer
    const uint32_t last = in.size() < kSmallest ? 0 : load_le32(in.data() + in.size() - 4);
    if (last > limit)
        inflater.bad("expected at most ", limit, " bytes of output, got ", last,
                     " by the length at its end; it is larger, or was cut");
    size_t pos = 0;
    do {
        const size_t from = inflater.size();
        pos = inflater.run(skip_gzip_header(in, pos, name));
        if (in.size() - pos < 8) inflater.bad("expected CRC-32 and length, got the end of the input");
        const uint32_t wanted = load_le32(in.data() + pos), length = load_le32(in.data() + pos + 4);
        const uint32_t got = crc32(inflater.contents(from));
        if (wanted != got) inflater.bad("expected CRC-32 ", wanted, ", got ", got);
        if (length != uint32_t(inflater.size() - from))
            inflater.bad("expected a length of ", length, ", got ", inflater.size() - from);
        pos += 8;
    } while (std::ranges::any_of(in.subspan(pos), [](uint8_t byte) {
        return byte != 0;
    })); // tapes and tar pad with zeros, and gzip ignores them
    return inflater.finish();
}

} // namespace rg::data
