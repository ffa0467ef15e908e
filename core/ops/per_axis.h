// Defines PerAxis: an option of convolution or pooling that may differ between the two axes of an image.
#pragma once

#include <cstdint>

namespace rg {

/// A value for the vertical axis (h) and one for the horizontal axis (w) of an image. A single number stands for both.
struct PerAxis {
    constexpr PerAxis(int64_t both) : h(both), w(both) {} // implicit: callers write {.stride = 2}
    constexpr PerAxis(int64_t h_, int64_t w_) : h(h_), w(w_) {}
    int64_t h, w;
    bool operator==(const PerAxis&) const = default;
};

} // namespace rg
