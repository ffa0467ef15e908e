// The results of a block of a convolution kernel, from shared memory to global memory: bias, ReLU, the sum with another
// gradient, and sums per channel. For conv.cu and conv_packed_hopper.cu.
#pragma once

#include "gpu/norm.cuh"
#include "gpu/octets.cuh"

namespace rg::RG_GPU {

/// The operations on a result before a kernel stores it.
template <class T>
struct ConvEpilogue {
    const float* bias = nullptr; // null if there is none
    bool relu = false;
    const T* addend = nullptr; // added to a data gradient; null if there is none
    /// Receives partials [number of partials][2][out_c]; null if none are needed. A partial holds two values for each
    /// channel, computed from the results of some of the pixels. In the forward pass, they are the mean and the sum of
    /// squared deviations. In the data gradient, they are the two sums of `terms`.
    float* partials = nullptr;
    NormTerms<T> terms = {};
};

/// 8 values of a tensor of type T, as loaded.
template <class T>
using EightOf = typename OctetReader<Plain<T>>::Loaded;

__device__ __forceinline__ EightOf<float> eight_of(const float (&v)[8], float) {
    Octet octet;
    RG_UNROLL
    for (int i = 0; i < 8; ++i) octet.v[i] = v[i];
    return octet;
}
__device__ __forceinline__ EightOf<bf16> eight_of(const float (&v)[8], bf16) { return pack_8(v); }

/// Loads the 8 values from `index` on. If not `whole`, loads only the first `count` one by one; the others are 0.
template <class T>
__device__ __forceinline__ EightOf<T> load_eight(const T* from, size_t index, bool whole, int count) {
    if (whole) return OctetReader<Plain<T>>({from}, 0).load(index);
    float v[8];
    RG_UNROLL
    for (int i = 0; i < 8; ++i) v[i] = i < count ? load(from + index + i) : 0;
    return eight_of(v, T{});
}

/// A tile of kPixels x kN results in shared memory, which the first kThreads threads of the block store to a tensor.
template <int kPixels, int kN, int kThreads>
struct ResultTile {
    // A padding of 16 bytes puts 8 neighbouring pixels (threads) into different banks.
    static constexpr int kPitch = kN + 4, kSumPitch = 2 * kN + 4;
    static constexpr int kSumsPerChannel = kThreads / (kN / 8); // threads that have the same channels
    /// Bytes of shared memory, which holds the results [pixel][kPitch] and then the threads' sums.
    static constexpr int kBytes = (kPixels * kPitch + kSumsPerChannel * kSumPitch) * int(sizeof(float));

    /// Applies `e` to the results and stores them. The whole block calls this after the barrier that follows the last
    /// store to `results`. `first_out` is the channel of the first column, and numbers[pixel] the number of the pixel
    /// in `out`, or -1 if it is outside of the images. If e.partials is not null, the block stores its partial there,
    /// as number `partial`. count_pixels() returns how many pixels have a number.
    template <bool kDgrad, class T, class Count>
    static __device__ __forceinline__ void finish(const ConvEpilogue<T>& e, int out_c, int first_out, float* results,
                                                  const int* numbers, const Count& count_pixels, unsigned partial,
                                                  T* __restrict__ out) {
        // A thread takes 8 channels of every kStep-th pixel, and adds up their terms of the statistics.
        constexpr int kStep = kSumsPerChannel, kBatch = 4;
        static_assert(kPixels % (kBatch * kStep) == 0);
        float* const sums = results + kPixels * kPitch;
        const int thread = int(threadIdx.x), in_tile = thread % (kN / 8) * 8, out_channel = first_out + in_tile;
        const int count = out_c - out_channel;
        const bool whole = out_c % 8 == 0, takes_part = thread < kThreads;
        const auto load_coefficients = [&](const float* from, float(&v)[8]) {
            RG_UNROLL
            for (int j = 0; j < 8; ++j) v[j] = from && j < count ? from[out_channel + j] : 0;
        };
        float bias[8], scale[8], shift[8], mean[8], origin[8];
        load_coefficients(e.bias, bias);
        if constexpr (kDgrad) {
            load_coefficients(e.terms.scale, scale), load_coefficients(e.terms.shift, shift);
            load_coefficients(e.terms.mean, mean);
        } else {
            // Sums deviations from the tile's first pixel, not values: their squares are smaller and lose fewer digits.
            unpack_8(load_eight(results, in_tile, true, 8), origin);
            RG_UNROLL
            for (float& each : origin) each = numbers[0] >= 0 ? each : 0;
        }
        const NormTerms<T> terms{e.terms.x, scale, shift, mean, e.terms.relu};
        TwoSums channel_sums[8];
        for (int begin = thread / (kN / 8); begin < kPixels && count > 0 && takes_part; begin += kBatch * kStep) {
            EightOf<T> addend[kBatch] = {}, x[kBatch] = {};
            if constexpr (kDgrad) {
                RG_UNROLL
                for (int i = 0; i < kBatch; ++i) {
                    const size_t index = size_t(max(numbers[begin + i * kStep], 0)) * out_c + out_channel;
                    if (e.addend) addend[i] = load_eight(e.addend, index, whole, count);
                    if (e.partials) x[i] = load_eight(e.terms.x, index, whole, count);
                }
            }
            RG_UNROLL
            for (int i = 0; i < kBatch; ++i) {
                const int number = numbers[begin + i * kStep];
                float v[8], other[8];
                load_8(results + (begin + i * kStep) * kPitch + in_tile, v);
                if constexpr (kDgrad) {
                    unpack_8(addend[i], other);
                    RG_UNROLL
                    for (int j = 0; j < 8; ++j) v[j] += other[j];
                    if (e.partials && number >= 0) {
                        unpack_8(eight_of(v, T{}), v);
                        unpack_8(x[i], other);
                        RG_UNROLL
                        for (int j = 0; j < 8; ++j) terms.add_of(v[j], other[j], j, channel_sums[j]);
                    }
                } else {
                    RG_UNROLL
                    for (int j = 0; j < 8; ++j) {
                        const float d = number >= 0 ? v[j] - origin[j] : 0;
                        channel_sums[j].first += d, channel_sums[j].second += d * d;
                        v[j] += bias[j];
                        if (e.relu) v[j] = relu_of(v[j]);
                    }
                }
                if (number < 0) continue;
                T* const to = out + size_t(number) * out_c + out_channel;
                if (whole) {
                    store_octet(to, eight_of(v, T{}));
                } else {
                    RG_UNROLL
                    for (int j = 0; j < 8; ++j)
                        if (j < count) store(to + j, v[j]);
                }
            }
        }
        if (!e.partials) return;
        if (takes_part) {
            Octet first, second;
            RG_UNROLL
            for (int j = 0; j < 8; ++j) first.v[j] = channel_sums[j].first, second.v[j] = channel_sums[j].second;
            store_octet(sums + thread / (kN / 8) * kSumPitch + in_tile, first);
            store_octet(sums + thread / (kN / 8) * kSumPitch + kN + in_tile, second);
        }
        __syncthreads(); // the sums are in shared memory
        const int channel = first_out + thread;
        if (thread >= kN || channel >= out_c) return;
        TwoSums total;
        for (int i = 0; i < kStep; ++i) {
            total.first += sums[i * kSumPitch + thread];
            total.second += sums[i * kSumPitch + kN + thread];
        }
        if constexpr (!kDgrad) { // the terms were deviations from the first pixel, or from 0 if it lies in no image
            const float mean_deviation = total.first / float(max(count_pixels(), 1));
            const float squares = total.second - total.first * mean_deviation;
            total = {(numbers[0] >= 0 ? results[thread] : 0) + mean_deviation + (e.bias ? e.bias[channel] : 0),
                     squares < 0 ? 0 : squares};
        }
        float* const to = e.partials + size_t(partial) * 2 * out_c + channel;
        to[0] = total.first, to[out_c] = total.second;
    }
};

} // namespace rg::RG_GPU
