// Defines the exception type Error, the check macro RG_CHECK and the text builder cat().
//
// By convention, an error message names those of the following parts that apply, in this order: the operation, the
// expected value, the actual value, the context (tensor, file and offset, rank), and a hint. Checks stay on in release
// builds. They are cheap, since nearly all run once per call or per sample, and not once per element of a tensor.
#pragma once

#include "ringgrad/core/scope.h"

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace rg {

/// Reports every failure that a user can cause or must know about. main() catches it and prints one line.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Concatenates the printed forms of all arguments.
template <class... Parts>
std::string cat(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

/// While a LayerScope exists, fail() and RG_CHECK append " (layer NAME)" to their messages on this thread. The name
/// must outlive the LayerScope, which keeps only a reference.
class LayerScope {
public:
    explicit LayerScope(const std::string& name) : layer_(Scope::current().layer, &name) {}
    /// Returns " (layer NAME)" for the innermost LayerScope of this thread, or an empty text if there is none.
    static std::string note() {
        const std::string* const layer = Scope::current().layer;
        return layer ? cat(" (layer ", *layer, ")") : "";
    }

private:
    Setting<const std::string*> layer_;
};

/// Throws Error with the concatenated parts, followed by LayerScope::note().
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    throw Error(cat(parts..., LayerScope::note()));
}

} // namespace rg

/// RG_CHECK(condition, parts...) calls fail(parts...) if the condition is false.
#define RG_CHECK(condition, ...)                                                                                       \
    do {                                                                                                               \
        if (!(condition)) [[unlikely]]                                                                                 \
            ::rg::fail(__VA_ARGS__);                                                                                   \
    } while (0)
