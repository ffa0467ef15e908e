// What the fuzzers share. Each .cpp beside this file is one: bytes from libFuzzer go to a reader, and what it accepts
// must have the properties that its header promises.
//
// A reader may throw Error, whatever the bytes are. Any other exception, a sanitizer's report, a property that does not
// hold, and more memory than tests/fuzz/run.py allows are findings. Readers with checksums get their input twice: as it
// is, and with right checksums, since no fuzzer guesses those.
#pragma once

#include "data/bytes.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace rg::fuzz {

using data::Bytes;
using Vec = std::vector<uint8_t>;

/// Ends the process, which libFuzzer reports with the input, if a property does not hold.
inline void require(bool holds, const char* property) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", property);
    std::abort();
}

/// What `read` returns, or nothing and the text of its Error.
template <class F>
auto accepted(F&& read, std::string* error = nullptr) -> std::optional<decltype(read())> {
    try {
        return read();
    } catch (const Error& thrown) {
        if (error) *error = thrown.what();
        return {};
    }
}

/// Takes the input apart from its front; zeros behind its end.
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

/// The fuzzer's one function.
void fuzz(Input input);

} // namespace rg::fuzz
