// Filters of a convolution, as its engines read them: in the order of the forward pass, or rotated.
#pragma once

#include "core/context.h"
#include "core/ops/conv.h"

#include <utility>

namespace rg::cpu {

/// A view of filters in memory, with any distance (step_*) between neighbouring values. Its call operator takes the
/// indices output channel, row, column and input channel. With several groups, call the operator of group(i) instead.
struct Filters {
    const float* data = nullptr;    // null: extents without values
    int64_t k, r, s, c;             // numbers of filters, rows, columns and input channels, of all groups
    int64_t step_k = 0, step_r = 0; // in floats; step_r and step_s are negative for rotated filters
    int64_t step_s = 0, step_c = 0;
    const float* scale = nullptr; // factor per output channel, or null
    bool to_bf16 = false;         // true: rounds the values to bf16
    PerAxis dilation = 1;         // distance between the pixels that neighbouring taps multiply
    int64_t groups = 1;
    float operator()(int64_t ik, int64_t ir, int64_t is, int64_t ic) const {
        float value = data[ik * step_k + ir * step_r + is * step_s + ic * step_c];
        if (scale) value *= scale[ik];
        return to_bf16 ? to_float(rg::to_bf16(value)) : value;
    }
    /// Returns the filters of group number i. Those of a group must be contiguous in memory, after those of the group
    /// before.
    Filters group(int64_t i) const {
        Filters one = *this;
        one.k /= groups, one.c /= groups, one.groups = 1;
        one.data += i * one.k * r * s * one.c;
        if (scale) one.scale += i * one.k;
        return one;
    }
};

/// Returns a view of contiguous values [k r s c].
inline Filters contiguous_filters(const float* data, int64_t k, int64_t r, int64_t s, int64_t c) {
    return {
        .data = data, .k = k, .r = r, .s = s, .c = c, .step_k = r * s * c, .step_r = s * c, .step_s = c, .step_c = 1};
}

/// Returns a view of w [k r s c/groups] as it is, for the forward pass.
inline Filters filters_of(const Tensor& w, const Conv& conv) {
    Filters f = contiguous_filters(w.data<float>(), w.extent(0), w.extent(1), w.extent(2), w.extent(3));
    f.c *= conv.groups, f.dilation = conv.dilation, f.groups = conv.groups;
    return f;
}

/// Returns a view of w for the data gradient: filters rotated by 180 degrees, with input and output channels exchanged.
/// With stride 1, dilation 1 and one group, the data gradient is
/// dx[h, w, c] = sum over r, s, k of dy[h + pad - r, w + pad - s, k] * w[k, r, s, c].
inline Filters rotated_filters_of(const Tensor& w, const Conv& conv) {
    Filters f = filters_of(w, conv);
    f.data += (f.r - 1) * f.step_r + (f.s - 1) * f.step_s; // the last row and column of the first filter
    f.step_r = -f.step_r, f.step_s = -f.step_s;
    std::swap(f.k, f.c), std::swap(f.step_k, f.step_c);
    return f;
}

} // namespace rg::cpu
