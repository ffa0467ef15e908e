// The vectors that an all-reduce sums: untyped memory with an element type.
//
// The element type is a value, not a template argument. So the classes of plans and groups are compiled once for all
// types, and only the functions that read elements are templates.
#pragma once

#include "ringgrad/core/base.h"

namespace rg::par {

enum class Element : uint8_t { f32, f64 };

inline size_t size_of(Element type) { return type == Element::f32 ? sizeof(float) : sizeof(double); }

/// The format in which Algorithm::shared passes sums on between nodes; without effect on one node. full: that of the
/// vector. bf16, for f32 only: half the bytes. Each node adds in f32, then rounds the sums that it passes on. All ranks
/// get the same rounded sums.
enum class Wire : uint8_t { full, bf16 };

/// A contiguous vector that is summed in place over the ranks. Does not own the memory.
struct Vector {
    std::byte* data = nullptr;
    size_t count = 0;
    Element type = Element::f32;
    Wire wire = Wire::full;
    size_t bytes() const { return count * size_of(type); }
    bool operator==(const Vector&) const = default;
};

namespace reduce {
template <class T>
void add(std::byte* sum, const std::byte* term, size_t count) {
    T* __restrict s = reinterpret_cast<T*>(sum);
    const T* __restrict t = reinterpret_cast<const T*>(term);
    for (size_t i = 0; i < count; ++i) s[i] += t[i];
}
} // namespace reduce

/// Computes sum[i] += term[i] for `count` elements. The two vectors must not overlap.
inline void add_into(Element type, std::byte* sum, const std::byte* term, size_t count) {
    type == Element::f32 ? reduce::add<float>(sum, term, count) : reduce::add<double>(sum, term, count);
}

} // namespace rg::par
