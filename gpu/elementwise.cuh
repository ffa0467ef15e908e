// Kernels that compute each value of a tensor on its own. A functor computes the values. Profiles show its name as a
// template argument of elementwise_kernel or elementwise_groups_kernel.
#pragma once

#include "gpu/octets.cuh"
#include "gpu/scratch.cuh"

#include <algorithm>

namespace rg::RG_GPU {

constexpr int kThreads = 256;

/// Calls f(i) for every i < count.
template <class F>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(int64_t count, F f) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) f(i);
}

template <class F>
void elementwise(int64_t count, const F& f) {
    if (count > 0) RG_LAUNCH(elementwise_kernel<F>, blocks_for(count, kThreads), kThreads, 0, stream(), count, f);
}

/// Calls f.at<kWidth>(i) for each group of kWidth values, where i is the index of the first of them. `count` is a
/// multiple of kWidth.
template <int kWidth, class F>
__global__ void __launch_bounds__(kThreads) elementwise_groups_kernel(int64_t count, F f) {
    const int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
    if (i < count) f.template at<kWidth>(i);
}
/// Calls f.at<8>(i) for each octet of values if the tensors are aligned to 16 bytes and `row` is a multiple of 8. Else
/// calls f.at<1>(i) for each value. `row` is the number of values with consecutive channels, and `count` a multiple of
/// it. In bf16, an octet takes one load of 16 bytes; loads of 2 bytes lose half of the memory's rate.
template <class F>
void elementwise_groups(int64_t count, int64_t row, std::initializer_list<const void*> tensors, const F& f) {
    if (count == 0) return;
    const bool aligned = std::all_of(tensors.begin(), tensors.end(),
                                     [](const void* t) { return reinterpret_cast<uintptr_t>(t) % 16 == 0; });
    const auto launch_kernel = [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        RG_LAUNCH((elementwise_groups_kernel<kWidth, F>), blocks_for(count, kThreads * kWidth), kThreads, 0, stream(),
                  count, f);
    };
    with_width(aligned ? row : 1, launch_kernel);
}

/// For elementwise_groups(): stores f of each value that `x` reads.
template <class T, class Reader, class F>
struct Map {
    Reader x;
    T* y;
    int channels; // channels of y; 1 if `x` does not depend on the channel
    F f;
    template <int kWidth>
    __device__ void at(int64_t i) const {
        float v[kWidth];
        VectorReader<kWidth, Reader>(x, int(i % channels)).read(size_t(i), v);
        RG_UNROLL
        for (float& each : v) each = f(each);
        store_rounded(y + i, v);
    }
};
struct Identity {
    __device__ float operator()(float v) const { return v; }
};

/// For elementwise_groups(): stores f of each pair of values that `a` and `b` read.
template <class T, class ReaderA, class ReaderB, class F>
struct Combine {
    ReaderA a;
    ReaderB b;
    T* y;
    int channels;
    F f;
    template <int kWidth>
    __device__ void at(int64_t i) const {
        const int channel = int(i % channels);
        float v[kWidth], other[kWidth];
        VectorReader<kWidth, ReaderA>(a, channel).read(size_t(i), v);
        VectorReader<kWidth, ReaderB>(b, channel).read(size_t(i), other);
        RG_UNROLL
        for (int j = 0; j < kWidth; ++j) v[j] = f(v[j], other[j]);
        store_rounded(y + i, v);
    }
};

} // namespace rg::RG_GPU
