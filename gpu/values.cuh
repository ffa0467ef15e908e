// What the kernels share: values as they are stored and as they are computed with, runs of 8 of them, and
// what happens to an activation on its way from memory into a kernel.
//
// Activations are stored as T, float or bf16; arithmetic, statistics and parameters are f32.
#pragma once

#include "core/op_table.h"
#include "gpu/bf16.cuh"
#include "gpu/cuda.cuh"

namespace rg::RG_GPU {

__device__ __forceinline__ float load(const float* at) { return *at; }
__device__ __forceinline__ float load(const bf16* at) { return to_float(*at); }
__device__ __forceinline__ void store(float* at, float value) { *at = value; }
__device__ __forceinline__ void store(bf16* at, float value) { *at = to_bf16(value); }

/// v = the 4 or 8 values at `at`, which is aligned to 16 bytes.
__device__ __forceinline__ void load_4(const float* at, float* v) {
    const float4 four = *reinterpret_cast<const float4*>(at);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}
__device__ __forceinline__ void load_8(const float* at, float (&v)[8]) { load_4(at, v), load_4(at + 4, v + 4); }
__device__ __forceinline__ void unpack_8(uint4 bits, float (&v)[8]) {
    const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
    RG_UNROLL
    for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_bf16(pairs[i]);
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
}
__device__ __forceinline__ void load_8(const bf16* at, float (&v)[8]) {
    unpack_8(*reinterpret_cast<const uint4*>(at), v);
}

__device__ __forceinline__ void clear(float (&v)[8]) {
    RG_UNROLL
    for (float& value : v) value = 0;
}

/// The value that memory of type T would give back.
__device__ __forceinline__ float as_stored(float value, float) { return value; }
__device__ __forceinline__ float as_stored(float value, bf16) { return to_float(to_bf16(value)); }

/// 0 for what ReLU cuts off; a NaN stays.
__device__ __forceinline__ float relu_of(float x) { return x <= 0 ? 0 : x; }

// ---- what a kernel reads: value(at, channel), and 8 of them whose first is at `at` --------------------------------
// Of 8 values the first channel is a multiple of 8, and coefficients are loaded as they are, 4 at a time.

/// An activation as it is.
template <class T>
struct Plain {
    const T* x;
    __device__ __forceinline__ float value(size_t at, int) const { return load(x + at); }
    __device__ __forceinline__ void values(size_t at, int, float (&v)[8]) const { load_8(x + at, v); }
};

/// Normalised: x * scale + shift by channel, then ReLU if asked; rounded as if it had been stored.
template <class T>
struct Normalised {
    const T* x;
    const float *scale, *shift;
    bool relu;
    __device__ __forceinline__ float of(float x_value, int c) const {
        const float v = as_stored(x_value * scale[c] + shift[c], T{});
        return relu ? relu_of(v) : v;
    }
    __device__ __forceinline__ float value(size_t at, int c) const { return of(load(x + at), c); }
    __device__ __forceinline__ void values(size_t at, int c, float (&v)[8]) const {
        float scales[8], shifts[8];
        load_8(x + at, v), load_8(scale + c, scales), load_8(shift + c, shifts);
        const Normalised here{x, scales, shifts, relu};
        RG_UNROLL
        for (int i = 0; i < 8; ++i) v[i] = here.of(v[i], i);
    }
};

/// The gradient past batch norm: scale * g + b * y + d by channel, where g is dz, or 0 where ReLU had cut off.
template <class T>
struct NormGradient {
    const T *dz, *y;
    const float *scale, *shift, *b, *d;
    bool relu;
    __device__ __forceinline__ float of(float g, float y_value, int c) const {
        if (relu && y_value * scale[c] + shift[c] <= 0) g = 0;
        return scale[c] * g + b[c] * y_value + d[c];
    }
    __device__ __forceinline__ float value(size_t at, int c) const { return of(load(dz + at), load(y + at), c); }
    __device__ __forceinline__ void values(size_t at, int c, float (&v)[8]) const {
        float ys[8];
        load_8(dz + at, v), load_8(y + at, ys);
        RG_UNROLL
        for (int half = 0; half < 8; half += 4) { // all coefficients at once would be too many registers
            float scales[4], shifts[4], bs[4], ds[4];
            load_4(scale + c + half, scales), load_4(shift + c + half, shifts);
            load_4(b + c + half, bs), load_4(d + c + half, ds);
            const NormGradient here{dz, y, scales, shifts, bs, ds, relu};
            RG_UNROLL
            for (int i = 0; i < 4; ++i) v[half + i] = here.of(v[half + i], ys[half + i], i);
        }
    }
};

// ---- host -----------------------------------------------------------------------------------------------------------

/// A tensor's memory as kernels take it.
template <class T>
T* pointer(const Tensor& t) {
    return t.defined() ? reinterpret_cast<T*>(t.bytes_data()) : nullptr;
}

/// Calls f with a value of the type that t is stored as.
template <class F>
void with_stored(const Tensor& t, F f) {
    if (t.dtype() == DType::bf16)
        f(bf16{});
    else
        f(0.0f);
}

inline unsigned blocks_for(int64_t work, int64_t per_block) { return unsigned((work + per_block - 1) / per_block); }

} // namespace rg::RG_GPU
