// See jpeg_huffman.h.
#include "data/jpeg_huffman.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace rg::data {

namespace {

/// The typical codes of T.81, section K.3.3, which files such as the frames of webcams leave out: of DC and AC
/// coefficients, of luminance and chrominance. Each has 16 numbers of codes by length, and the first symbols; the other
/// symbols follow in ascending order.
constexpr std::string_view kTypicalCodes[2][2] = {
    {{"\0\1\5\1\1\1\1\1\1\0\0\0\0\0\0\0", 16}, {"\0\3\1\1\1\1\1\1\1\1\1\0\0\0\0\0", 16}},
    {{"\0\2\1\3\3\2\4\3\5\5\4\4\0\0\1\x7d"
      "\x01\x02\x03\x00\x04\x11\x05\x12\x21\x31\x41\x06\x13\x51\x61\x07\x22\x71\x14\x32\x81\x91\xa1\x08\x23\x42"
      "\xb1\xc1\x15\x52\xd1\xf0\x24\x33\x62\x72\x82",
      16 + 37},
     {"\0\2\1\2\4\4\3\4\7\5\4\4\0\1\2\x77"
      "\x00\x01\x02\x03\x11\x04\x05\x21\x31\x06\x12\x41\x51\x07\x61\x71\x13\x22\x32\x81\x08\x14\x42\x91\xa1\xb1"
      "\xc1\x09\x23\x33\x52\xf0\x15\x62\x72\xd1\x0a\x16\x24\x34\xe1\x25\xf1",
      16 + 43}}};

} // namespace

bool JpegHuffmanCode::define(Bytes counts, Bytes all_symbols) {
    *this = {};
    defined = true;
    std::copy(all_symbols.begin(), all_symbols.end(), symbols.begin());
    uint32_t code = 0;
    int index = 0;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        first[size_t(length)] = index - int32_t(code);
        for (int i = 0; i < counts[size_t(length - 1)]; ++i, ++code, ++index) {
            if (code >> length) return false;
            if (length <= kIndexBits) add(code, length, symbols[size_t(index)]);
        }
        limit[size_t(length)] = code << (16 - length);
    }
    return true;
}

void JpegHuffmanCode::define_typical(bool ac, bool chrominance) {
    const std::string_view typical = kTypicalCodes[ac][chrominance];
    const Bytes counts = as_bytes(typical.substr(0, 16));
    std::string all(typical.substr(16));
    const size_t size = size_t(std::accumulate(counts.begin(), counts.end(), 0));
    for (int symbol = 0; all.size() < size; ++symbol) // of AC coefficients, numbers have 1 to 10 bits
        if (const int bits = symbol & 15; !ac || (bits >= 1 && bits <= 10 && all.find(char(symbol)) == all.npos))
            all += char(symbol);
    define(counts, as_bytes(all));
}

/// Fills `found` for all indices that begin with the code.
void JpegHuffmanCode::add(uint32_t code, int length, uint8_t symbol) {
    const int free = kIndexBits - length, size = symbol & 15;
    for (uint32_t rest = 0; rest < 1u << free; ++rest) {
        Lookup& entry = found[code << free | rest];
        entry = {0, symbol, uint8_t(length), 0};
        if (size > free) continue;
        entry.value = int16_t(signed_value(rest >> (free - size), size));
        entry.bits = uint8_t(length + size);
    }
}

} // namespace rg::data
