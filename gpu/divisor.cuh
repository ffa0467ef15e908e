// Division of integers by a divisor that is known at the launch. GPUs have no instruction for integer division. A
// division takes some 20 instructions; Divisor replaces them by 3.
#pragma once

#include "gpu/cuda.cuh"

namespace rg::RG_GPU {

/// A divisor d >= 1. For 0 <= n < 2^31, n / d is (h + n) >> shift, where h is the upper half of the 64-bit product n *
/// factor (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994). A Divisor with d
/// below 1 may be constructed, but must not be used to divide.
class Divisor {
public:
    explicit Divisor(int d) : d_(d) {
        while (int64_t{1} << shift_ < d) ++shift_;
        if (d > 0) factor_ = uint32_t((((int64_t{1} << shift_) - d) << 32) / d + 1);
    }
    __host__ __device__ operator int() const { return d_; }
    friend __device__ __forceinline__ int operator/(int n, const Divisor& d) {
        return int((uint32_t((uint64_t(uint32_t(n)) * d.factor_) >> 32) + uint32_t(n)) >> d.shift_);
    }
    friend __device__ __forceinline__ int operator%(int n, const Divisor& d) { return n - n / d * d.d_; }

private:
    int d_, shift_ = 0;
    uint32_t factor_ = 0;
};

} // namespace rg::RG_GPU
