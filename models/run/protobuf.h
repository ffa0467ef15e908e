// Encodes fields of protobuf messages: a key with the wire type, then the value. An encoded message is the
// concatenation of its fields.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace rg::protobuf {

/// Returns the bytes of an unsigned integer, little-endian on any machine.
template <class T>
std::string little_endian(T value) {
    std::string bytes;
    for (size_t i = 0; i < sizeof value; ++i) bytes += char(value >> (8 * i) & 0xff);
    return bytes;
}

inline std::string varint(uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += char((value & 0x7f) | 0x80);
    return bytes + char(value);
}
inline std::string key(int field, int type) { return varint(uint64_t(field) << 3 | uint64_t(type)); }

inline std::string int_field(int field, int64_t value) { return key(field, 0) + varint(uint64_t(value)); }
inline std::string float_field(int field, float value) {
    return key(field, 5) + little_endian(std::bit_cast<uint32_t>(value));
}
/// Encodes bytes, a text, or an encoded message.
inline std::string bytes_field(int field, std::string_view value) {
    return key(field, 2) + varint(value.size()) + std::string(value);
}

} // namespace rg::protobuf
