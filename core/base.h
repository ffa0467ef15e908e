// The one exception type, the check macro and text building that every other file relies on.
//
// Message order: operation, what was expected, what was got, context (tensor, file and offset, rank),
// then a hint. Checks stay on in release builds: they run once per call, never per element.
#pragma once

#include "core/scope.h"

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace rg {

/// Every failure that a user can cause or must hear about. `main` catches it once and prints one line.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Concatenates anything that a stream can print.
template <class... Parts>
std::string cat(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

/// While one exists, errors on this thread end with "(layer NAME)". The name outlives it.
class LayerScope {
public:
    explicit LayerScope(const std::string& name) : before_(std::exchange(Scope::current().layer, &name)) {}
    ~LayerScope() { Scope::current().layer = before_; }
    LayerScope(const LayerScope&) = delete;
    LayerScope& operator=(const LayerScope&) = delete;
    /// " (layer NAME)", or nothing.
    static std::string note() {
        const std::string* const layer = Scope::current().layer;
        return layer ? cat(" (layer ", *layer, ")") : "";
    }

private:
    const std::string* before_;
};

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    throw Error(cat(parts..., LayerScope::note()));
}

} // namespace rg

/// RG_CHECK(condition, parts...): throws rg::Error with the concatenated parts when the condition is false.
#define RG_CHECK(condition, ...)                                                                                       \
    do {                                                                                                               \
        if (!(condition)) [[unlikely]]                                                                                 \
            ::rg::fail(__VA_ARGS__);                                                                                   \
    } while (0)
