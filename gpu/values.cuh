// Loads and stores of single values, loads of 4 and 8 values, and readers: functors that transform activations while a
// kernel loads them, for example by batch norm.
//
// Activations are stored as T, which is float or bf16. Statistics and the parameters of batch norm are f32.
#pragma once

#include "core/op.h"
#include "core/ops/activation.h"
#include "gpu/bf16.cuh"
#include "gpu/cuda.cuh"

namespace rg::RG_GPU {

__device__ __forceinline__ float load(const float* from) { return *from; }
__device__ __forceinline__ float load(const bf16* from) { return to_float(*from); }
__device__ __forceinline__ double load(const double* from) { return *from; } // for sums in scratch memory
__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(bf16* to, float value) { *to = to_bf16(value); }
__device__ __forceinline__ void store(double* to, double value) { *to = value; }

/// Loads 4 or 8 values. `from` is aligned to 16 bytes.
__device__ __forceinline__ void load_4(const float* from, float* v) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}
__device__ __forceinline__ void load_8(const float* from, float (&v)[8]) { load_4(from, v), load_4(from + 4, v + 4); }
__device__ __forceinline__ void unpack_8(uint4 bits, float (&v)[8]) {
    const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
    RG_UNROLL
    for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_bf16(pairs[i]);
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
}
__device__ __forceinline__ void load_8(const bf16* from, float (&v)[8]) {
    unpack_8(*reinterpret_cast<const uint4*>(from), v);
}

/// Returns `value` rounded to the second argument's type, as if it had been stored and loaded again.
__device__ __forceinline__ float as_stored(float value, float) { return value; }
__device__ __forceinline__ float as_stored(float value, bf16) { return to_float(to_bf16(value)); }

/// Returns the ReLU of x. NaN stays NaN.
__device__ __forceinline__ float relu_of(float x) { return x <= 0 ? 0 : x; }

// ---- readers --------------------------------------------------------------------------------------------------------
// value(index, channel) reads the value at `index`, which belongs to `channel`. values(index, channel, v) reads the 8
// values from `index` on, which belong to the 8 channels from `channel` on; `channel` is a multiple of 8.

/// Reads an activation unchanged.
template <class T>
struct Plain {
    const T* x;
    __device__ __forceinline__ float value(size_t index, int) const { return load(x + index); }
    __device__ __forceinline__ void values(size_t index, int, float (&v)[8]) const { load_8(x + index, v); }
};

/// Reads x * scale + shift with per-channel coefficients, rounded as if stored as T. Then applies ReLU if `relu`.
template <class T>
struct NormReader {
    const T* x;
    const float *scale, *shift;
    bool relu;
    __device__ __forceinline__ float transform(float x_value, int c) const {
        const float v = as_stored(x_value * scale[c] + shift[c], T{});
        return relu ? relu_of(v) : v;
    }
    __device__ __forceinline__ float value(size_t index, int c) const { return transform(load(x + index), c); }
    __device__ __forceinline__ void values(size_t index, int c, float (&v)[8]) const {
        float scales[8], shifts[8];
        load_8(x + index, v), load_8(scale + c, scales), load_8(shift + c, shifts);
        const NormReader of_8{x, scales, shifts, relu};
        RG_UNROLL
        for (int i = 0; i < 8; ++i) v[i] = of_8.transform(v[i], i);
    }
};

/// Reads the gradient with respect to batch norm's input y: scale * g + b * y + d with per-channel coefficients. dz is
/// the gradient with respect to batch norm's output. g is dz, but if `relu` is set, 0 where the ReLU gave 0.
template <class T>
struct NormGradReader {
    const T *dz, *y;
    const float *scale, *shift, *b, *d;
    bool relu;
    __device__ __forceinline__ float transform(float g, float y_value, int c) const {
        if (relu && y_value * scale[c] + shift[c] <= 0) g = 0;
        return scale[c] * g + b[c] * y_value + d[c];
    }
    __device__ __forceinline__ float value(size_t index, int c) const {
        return transform(load(dz + index), load(y + index), c);
    }
    __device__ __forceinline__ void values(size_t index, int c, float (&v)[8]) const {
        float ys[8];
        load_8(dz + index, v), load_8(y + index, ys);
        RG_UNROLL
        for (int half = 0; half < 8; half += 4) { // loading all coefficients at once takes too many registers
            float scales[4], shifts[4], bs[4], ds[4];
            load_4(scale + c + half, scales), load_4(shift + c + half, shifts);
            load_4(b + c + half, bs), load_4(d + c + half, ds);
            const NormGradReader of_4{dz, y, scales, shifts, bs, ds, relu};
            RG_UNROLL
            for (int i = 0; i < 4; ++i) v[half + i] = of_4.transform(v[half + i], ys[half + i], i);
        }
    }
};

// ---- host -----------------------------------------------------------------------------------------------------------

/// Returns true for ReLU, false for none. is_fusible() (core/ops/elements.h) allows no other activation on a device.
inline bool is_relu(Activation activation) {
    RG_CHECK(activation.kind <= Activation::relu, "expected ReLU or no activation in an op on a device, got another");
    return activation.kind == Activation::relu;
}

/// Returns the address of the tensor's values, or null if the tensor is undefined.
template <class T>
T* pointer(const Tensor& t) {
    return t.defined() ? reinterpret_cast<T*>(t.bytes_data()) : nullptr;
}

/// Calls f with a value of the type in which t is stored: bf16 or float.
template <class F>
void with_stored(const Tensor& t, F f) {
    t.dtype() == DType::bf16 ? f(bf16{}) : f(0.0f);
}

/// The type of an argument that passes a constant to a generic function.
template <int I>
using Constant = std::integral_constant<int, I>;

inline unsigned blocks_for(int64_t work, int64_t per_block) { return unsigned((work + per_block - 1) / per_block); }

} // namespace rg::RG_GPU
