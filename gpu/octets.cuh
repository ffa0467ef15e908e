// Readers of 8 channels (an octet) of a pixel, built on those of values.cuh, and stores of octets. load(index) starts
// the loads, and transform(loaded) returns the values when the loads have arrived. In bf16, the coefficients of the
// channels stay in registers. In f32, load() does all the work. The last section of this file reads and stores either 8
// channels or one.
#pragma once

#include "gpu/values.cuh"

namespace rg::RG_GPU {

__device__ __forceinline__ uint4 load_16(const bf16* from) { return *reinterpret_cast<const uint4*>(from); }
__device__ __forceinline__ uint4 pack_8(const float (&v)[8]) {
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}
/// 8 values in f32.
struct Octet {
    float v[8];
};
__device__ __forceinline__ void unpack_8(const Octet& octet, float (&v)[8]) {
    RG_UNROLL
    for (int i = 0; i < 8; ++i) v[i] = octet.v[i];
}

/// Reads the octet that begins with channel c, an argument of the constructor. This version is for readers of f32: its
/// load() also transforms. The versions for bf16 follow.
template <class Reader>
struct OctetReader {
    static constexpr int kLoads = 2;
    using Loaded = Octet;
    Reader reader;
    int channel;
    __device__ OctetReader(const Reader& r, int c) : reader(r), channel(c) {}
    __device__ __forceinline__ Loaded load(size_t index) const {
        Octet octet;
        reader.values(index, channel, octet.v);
        return octet;
    }
    __device__ __forceinline__ Octet transform(const Loaded& octet) const { return octet; }
};

template <>
struct OctetReader<Plain<bf16>> {
    static constexpr int kLoads = 1; // loads of 16 bytes per call of load()
    using Loaded = uint4;
    const bf16* x;
    __device__ OctetReader(const Plain<bf16>& reader, int) : x(reader.x) {}
    __device__ __forceinline__ Loaded load(size_t index) const { return load_16(x + index); }
    __device__ __forceinline__ uint4 transform(const Loaded& x_values) const { return x_values; }
};

template <>
struct OctetReader<NormReader<bf16>> {
    static constexpr int kLoads = 1;
    using Loaded = uint4;
    const bf16* x;
    float scale[8], shift[8];
    bool relu;
    __device__ OctetReader(const NormReader<bf16>& reader, int c) : x(reader.x), relu(reader.relu) {
        load_8(reader.scale + c, scale);
        load_8(reader.shift + c, shift);
    }
    __device__ __forceinline__ Loaded load(size_t index) const { return load_16(x + index); }
    /// Rounds after ReLU, while NormReader (values.cuh) rounds before it; both give the same bits. Computes the result
    /// with and without ReLU, and chooses.
    __device__ __forceinline__ uint4 transform(const Loaded& x_values) const {
        float v[8];
        unpack_8(x_values, v);
        RG_UNROLL
        for (int i = 0; i < 8; ++i) v[i] = v[i] * scale[i] + shift[i];
        const uint4 plain = pack_8(v);
        RG_UNROLL
        for (float& value : v) value = relu_of(value);
        const uint4 clamped = pack_8(v); // GPUs can clamp and pack two values by one instruction
        return make_uint4(relu ? clamped.x : plain.x, relu ? clamped.y : plain.y, relu ? clamped.z : plain.z,
                          relu ? clamped.w : plain.w);
    }
};

template <>
struct OctetReader<NormGradReader<bf16>> {
    static constexpr int kLoads = 2;
    struct Loaded {
        uint4 dz, y;
    };
    const bf16 *dz, *y;
    float scale[8], shift[8], b[8], d[8];
    bool relu;
    __device__ OctetReader(const NormGradReader<bf16>& reader, int c) : dz(reader.dz), y(reader.y), relu(reader.relu) {
        load_8(reader.scale + c, scale);
        load_8(reader.shift + c, shift);
        load_8(reader.b + c, b);
        load_8(reader.d + c, d);
    }
    __device__ __forceinline__ Loaded load(size_t index) const { return {load_16(dz + index), load_16(y + index)}; }
    __device__ __forceinline__ uint4 transform(const Loaded& loaded) const {
        const NormGradReader<bf16> reader{dz, y, scale, shift, b, d, relu};
        float v[8], y_values[8];
        unpack_8(loaded.dz, v);
        unpack_8(loaded.y, y_values);
        RG_UNROLL
        for (int i = 0; i < 8; ++i) v[i] = reader.transform(v[i], y_values[i], i);
        return pack_8(v);
    }
};

/// Replaces OctetReader if the number of channels is no multiple of 8. It has no load(): see load_octet().
template <class Reader>
struct SingleValues {
    using Loaded = Octet;
    Reader reader;
    __device__ SingleValues(const Reader& r, int) : reader(r) {}
    __device__ __forceinline__ Octet transform(const Octet& octet) const { return octet; }
};
template <bool kWhole, class Reader>
using OctetSource = std::conditional_t<kWhole, OctetReader<Reader>, SingleValues<Reader>>;

/// Starts the loads of the octet from `index` on, which begins with `channel` of `channels`. If not kWhole, loads
/// single values, and none if not `inside`; those that it does not load are 0.
template <bool kWhole, class Reader>
__device__ __forceinline__ void load_octet(const OctetSource<kWhole, Reader>& source, size_t index, bool inside,
                                           int channel, int channels,
                                           typename OctetSource<kWhole, Reader>::Loaded& loaded) {
    if constexpr (kWhole) {
        loaded = source.load(index);
    } else {
        RG_UNROLL
        for (int j = 0; j < 8; ++j)
            loaded.v[j] = inside && channel + j < channels ? source.reader.value(index + j, channel + j) : 0;
    }
}

/// Returns v, or 8 copies of `other` if `inside` is false.
__device__ __forceinline__ uint4 select(bool inside, uint4 v, float other) {
    const uint32_t pair = pack_bf16(other, other);
    return inside ? v : make_uint4(pair, pair, pair, pair);
}
__device__ __forceinline__ Octet select(bool inside, Octet octet, float other) {
    RG_UNROLL
    for (float& v : octet.v) v = inside ? v : other;
    return octet;
}

/// Stores 8 values. `to` is aligned to 16 bytes.
__device__ __forceinline__ void store_octet(bf16* to, uint4 eight) { *reinterpret_cast<uint4*>(to) = eight; }
template <class T>
__device__ __forceinline__ void store_octet(T* to, const Octet& octet) {
    if constexpr (std::is_same_v<T, bf16>) {
        store_octet(to, pack_8(octet.v));
    } else {
        RG_UNROLL
        for (int j = 0; j < 8; j += 4)
            *reinterpret_cast<float4*>(to + j) = {octet.v[j], octet.v[j + 1], octet.v[j + 2], octet.v[j + 3]};
    }
}

// ---- 8 channels or one ----------------------------------------------------------------------------------------------
// kWidth is the number of neighbouring channels that a thread computes: 8 if the number of channels is a multiple of 8,
// else 1.

/// Reads kWidth values of a pixel, the first of which belongs to channel c, an argument of the constructor.
template <int kWidth, class Reader>
class VectorReader {
public:
    __device__ VectorReader(const Reader& reader, int c) : source_(reader, c), c_(c) {}
    __device__ __forceinline__ void read(size_t index, float (&v)[kWidth]) const {
        if constexpr (kWidth == 8)
            unpack_8(source_.transform(source_.load(index)), v);
        else
            v[0] = source_.reader.value(index, c_);
    }

private:
    OctetSource<kWidth == 8, Reader> source_;
    int c_;
};

/// Stores kWidth values, and sets v to the values as stored, so rounded to T.
template <int kWidth, class T>
__device__ __forceinline__ void store_rounded(T* to, float (&v)[kWidth]) {
    if constexpr (kWidth == 1) {
        v[0] = as_stored(v[0], T{});
        store(to, v[0]);
    } else if constexpr (std::is_same_v<T, bf16>) {
        const uint4 eight = pack_8(v);
        store_octet(to, eight);
        unpack_8(eight, v);
    } else {
        store_octet(to, reinterpret_cast<const Octet&>(v));
    }
}

/// Calls f(Constant<kWidth>).
template <class F>
void with_width(int64_t channels, F f) {
    channels % 8 == 0 ? f(Constant<8>{}) : f(Constant<1>{});
}

} // namespace rg::RG_GPU
