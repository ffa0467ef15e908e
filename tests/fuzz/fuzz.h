// Defines the code that all fuzzers share. Each .cpp in this folder is a fuzzer: it passes bytes of libFuzzer to a
// reader, and checks that accepted values have the properties that the reader's header states.
//
// A reader may throw Error for any bytes. Findings are any other exception, a sanitizer's report, a property that does
// not hold, and more memory than tests/fuzz/run.py allows. Readers of checksums get each input twice: unchanged, and
// with correct checksums, since a fuzzer does not guess those.
#pragma once

#include "data/bytes.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace rg::fuzz {

using data::Bytes;
using Vec = std::vector<uint8_t>;

/// Ends the process if a property does not hold. libFuzzer then reports the input.
inline void require(bool holds, const char* property) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", property);
    std::abort();
}

/// Returns the result of `read`, or nothing and the text of its Error.
template <class F>
auto accepted(F&& read, std::string* error = nullptr) -> std::optional<decltype(read())> {
    try {
        return read();
    } catch (const Error& thrown) {
        if (error) *error = thrown.what();
        return {};
    }
}

/// Consumes the input from its front. After its end, all bytes are zero.
class Input {
public:
    explicit Input(Bytes bytes) : left_(bytes) {}
    bool empty() const { return left_.empty(); }
    uint8_t byte() {
        if (left_.empty()) return 0;
        const uint8_t value = left_[0];
        left_ = left_.subspan(1);
        return value;
    }
    uint32_t below(uint32_t n) { return (uint32_t{byte()} << 8 | byte()) % n; }
    Bytes bytes(size_t most) {
        const Bytes taken = left_.first(std::min(most, left_.size()));
        left_ = left_.subspan(taken.size());
        return taken;
    }
    Bytes rest() { return bytes(left_.size()); }
    std::string text(size_t most = SIZE_MAX) { return std::string(data::as_text(bytes(most))); }

private:
    Bytes left_;
};

inline void append(Vec& to, Bytes bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }
inline void append_be32(Vec& to, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) to.push_back(uint8_t(value >> shift));
}

/// Each fuzzer defines this function.
void fuzz(Input input);

} // namespace rg::fuzz
