// The vectors that an all-reduce sums: untyped memory with an element type.
//
// The element type is a value, not a template argument. So the algorithms are compiled once for all types, and only the
// functions that read elements are templates.
#pragma once

#include "core/base.h"
#include "core/bf16.h"

#include <algorithm>
#include <span>

namespace rg::par {

/// The types of the elements of vectors. Bytes are sent, and never added.
enum class Element : uint8_t { f32, f64, bf16, byte };

inline size_t size_of(Element type) {
    constexpr size_t kSizes[] = {sizeof(float), sizeof(double), sizeof(bf16), 1};
    return kSizes[size_t(type)];
}

/// The format in which vectors of f32 travel in messages. full: f32. bf16: half the bytes. Each rank rounds its vector,
/// or the sum that its node has added in f32, and rounds each sum of two. All ranks get the same rounded sums.
enum class Wire : uint8_t { full, bf16 };

/// A contiguous vector that is summed in place over the ranks. Does not own the memory.
struct Vector {
    std::byte* data = nullptr;
    size_t count = 0;
    Element type = Element::f32;
    size_t bytes() const { return count * size_of(type); }
    /// Returns the elements [begin, end).
    Vector subvector(size_t begin, size_t end) const { return {data + begin * size_of(type), end - begin, type}; }
};

namespace reduce {
template <class T>
void add(std::byte* sum, const std::byte* term, size_t count) {
    T* __restrict s = reinterpret_cast<T*>(sum);
    const T* __restrict t = reinterpret_cast<const T*>(term);
    for (size_t i = 0; i < count; ++i)
        if constexpr (std::is_same_v<T, bf16>)
            s[i] = to_bf16(to_float(s[i]) + to_float(t[i]));
        else
            s[i] += t[i];
}
} // namespace reduce

/// Computes sum[i] += term[i] for `count` elements. The two vectors must not overlap.
inline void add_into(Element type, std::byte* sum, const std::byte* term, size_t count) {
    if (type == Element::f32) return reduce::add<float>(sum, term, count);
    type == Element::f64 ? reduce::add<double>(sum, term, count) : reduce::add<bf16>(sum, term, count);
}

/// Multiplies the values by `fraction`. If that is 0, sets them to 0, even those that are NaN.
template <class T>
void weigh(std::span<T> values, double fraction) {
    if (fraction == 0) // 0 * NaN would be NaN
        std::fill(values.begin(), values.end(), T(0));
    else
        for (T& v : values) v = T(v * T(fraction));
}

} // namespace rg::par
