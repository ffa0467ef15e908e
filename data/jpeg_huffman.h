// Huffman codes of JPEG, and the bits of a scan. data/jpeg.h reads the files.
#pragma once

#include "data/bytes.h"

#include <array>

namespace rg::data {

/// Returns the value of `size` bits, negative if they begin with 0. T.81, figure F.12.
inline int signed_value(uint32_t bits, int size) {
    return int(bits) - (size && !(bits >> (size - 1)) ? (1 << size) - 1 : 0);
}

/// The bits of a scan, without the zero bytes that follow each byte FF. T.81, section F.1.2.3.
struct JpegBits {
    const uint8_t *next = nullptr, *end = nullptr;
    uint64_t buffer = 0; // the next bits, from the top
    int count = 0;       // how many of them are valid
    int padding = 0;     // how many of these are zeros from after the end of the data

    /// Makes at least 32 bits valid.
    void fill() {
        if (count >= 32) return;
        if (end - next >= 8) {
            const uint64_t word = uint64_t{load_be32(next)} << 32 | load_be32(next + 4);
            if (!(word & (~word - 0x0101010101010101u) & 0x8080808080808080u)) { // none of the bytes is FF
                buffer |= word >> count;
                next += (63 - count) >> 3;
                count |= 56;
                return;
            }
        }
        *this = filled_by_bytes(*this);
    }

    /// Takes and returns the struct by value, so that the caller can keep it in registers.
    static JpegBits filled_by_bytes(JpegBits bits) {
        for (; bits.count <= 56; bits.count += 8) {
            uint64_t byte = 0;
            const uint8_t* after = bits.next;
            while (after != bits.end && *after == 0xFF) ++after; // a marker may begin with several
            if (after == bits.next && after != bits.end) {
                byte = *bits.next++;
            } else if (after != bits.end && *after == 0) {
                byte = 0xFF;
                bits.next = after + 1;
            } else {
                bits.padding += 8;
            }
            bits.buffer |= byte << (56 - bits.count);
        }
        return bits;
    }

    uint32_t peek(int n) const { return uint32_t(buffer >> (64 - n)); }
    void drop(int n) {
        buffer <<= n;
        count -= n;
    }
    /// Returns the next n bits, of those that fill() has made valid.
    uint32_t take(int n) {
        const uint32_t bits = uint32_t(buffer >> 1 >> (63 - n));
        drop(n);
        return bits;
    }
    bool overrun() const { return count < padding; }
};

/// A Huffman code. Its symbols are a number of bits in the low four bits, and for AC coefficients a run of zeros in the
/// others. T.81, annex C and sections F.2.2.1 and F.2.2.2.
struct JpegHuffmanCode {
    static constexpr int kIndexBits = 10;
    struct Lookup {
        int16_t value; // the number after the symbol, if bits > 0
        uint8_t symbol;
        uint8_t length : 4; // length of the code; 0 if it is longer than kIndexBits, or invalid
        uint8_t bits : 4;   // length of the code and the number together; 0 if longer than kIndexBits
    };
    std::array<Lookup, 1 << kIndexBits> found{};
    std::array<uint8_t, 256> symbols{};
    std::array<uint32_t, 17> limit{}; // by length: 16 bits below which a code has at most this length
    std::array<int32_t, 17> first{};  // by length: index of the first symbol, minus its code
    bool defined = false;

    /// Sets the code. Returns false if there are more codes than bits for them. counts[i] is the number of codes of i +
    /// 1 bits.
    bool define(Bytes counts, Bytes all_symbols);
    /// Sets a typical code, which files such as the frames of webcams leave out.
    void define_typical(bool ac, bool chrominance);

    /// Reads a symbol, and then as a signed value as many bits as its low four bits say. For bits that are no code,
    /// calls on_bad_code(), and returns 0 as libjpeg does.
    template <class F>
    int take(JpegBits& bits, int& value, const F& on_bad_code) const {
        bits.fill();
        const Lookup entry = found[bits.peek(kIndexBits)];
        value = entry.value;
        if (entry.bits) {
            bits.drop(entry.bits);
            return entry.symbol;
        }
        int length = entry.length, symbol = entry.symbol;
        if (length == 0) {
            const uint32_t next = bits.peek(16);
            length = kIndexBits + 1;
            while (length <= 16 && next >= limit[size_t(length)]) ++length;
            if (length > 16) {
                bits.drop(length);
                on_bad_code();
                return value = 0;
            }
            symbol = symbols[size_t(first[size_t(length)] + int32_t(next >> (16 - length)))];
        }
        bits.drop(length);
        value = signed_value(bits.take(symbol & 15), symbol & 15);
        return symbol;
    }

private:
    void add(uint32_t code, int length, uint8_t symbol);
};

} // namespace rg::data
