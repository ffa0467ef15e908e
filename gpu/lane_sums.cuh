// Per-channel statistics of a convolution's results, accumulated in registers. The results of a warp are spread over
// its lanes: 4 neighbouring lanes (a quad) hold all N channels of a pixel. Moments::add() adds all of the lane's
// channels of one more pixel, and TermSums::add() adds 8 of them. merge() with lane masks 4, 8 and 16 combines the 8
// quads. After that, each of the first 4 lanes stores the totals of its channels to [2][N]. N is 32 or 64.
#pragma once

#include "gpu/norm.cuh"

namespace rg::RG_GPU {

constexpr unsigned kAllLanes = 0xffffffffu;

/// Mean and sum of squared deviations per channel, over the pixels that a lane has counted (Welford, 1962). mean[c] and
/// squares[c] of a lane belong to channel 8 (c / 2) + 2 quarter + c % 2, with quarter = lane % 4.
template <int N>
struct Moments {
    static constexpr int K = N / 4;
    int count = 0;
    float mean[K] = {}, squares[K] = {};
    /// Counts one more pixel, and returns its weight in the means.
    __device__ __forceinline__ float next_weight() { return __fdividef(1, float(++count)); }
    __device__ __forceinline__ void add(const float (&values)[K], float weight) {
        RG_UNROLL
        for (int c = 0; c < K; ++c) {
            const float d = values[c] - mean[c];
            mean[c] += d * weight;
            squares[c] += d * (values[c] - mean[c]);
        }
    }
    /// Merges with the lane whose index differs in the bit lane_mask. Both lanes have counted the same number of
    /// pixels.
    __device__ __forceinline__ void merge(int lane_mask) {
        RG_UNROLL
        for (int c = 0; c < K; ++c) {
            const float d = __shfl_xor_sync(kAllLanes, mean[c], lane_mask) - mean[c];
            squares[c] += __shfl_xor_sync(kAllLanes, squares[c], lane_mask) + d * d * float(count) * 0.5f;
            mean[c] += d * 0.5f;
        }
        count *= 2;
    }
    __device__ __forceinline__ void store(float* to, int quarter) const {
        RG_UNROLL
        for (int c = 0; c < K; ++c) {
            to[c / 2 * 8 + 2 * quarter + c % 2] = mean[c];
            to[N + c / 2 * 8 + 2 * quarter + c % 2] = squares[c];
        }
    }
};

/// The sums that batch norm's gradient needs (NormTerms). sums[c] of a lane belongs to channel
/// 32 (c / 8) + 8 quarter + c % 8, with quarter = lane % 4.
template <int N>
struct TermSums {
    TwoSums sums[N / 4];
    /// Adds the terms of the 8 channels of a pixel that begin at channel 32 octet + 8 quarter. `dy` and `x` hold 8 bf16
    /// values each. The coefficients of `terms` must be aligned to 16 bytes.
    __device__ __forceinline__ void add(const NormTerms<bf16>& terms, int octet, int quarter, uint4 dy, uint4 x) {
        float dy_values[8], x_values[8];
        unpack_8(dy, dy_values);
        unpack_8(x, x_values);
        float scale[8], shift[8], mean[8];
        load_8(terms.scale + 32 * octet + 8 * quarter, scale);
        load_8(terms.shift + 32 * octet + 8 * quarter, shift);
        load_8(terms.mean + 32 * octet + 8 * quarter, mean);
        const NormTerms<bf16> octet_terms{terms.x, scale, shift, mean, terms.relu};
        RG_UNROLL
        for (int i = 0; i < 8; ++i) octet_terms.add_of(dy_values[i], x_values[i], i, sums[8 * octet + i]);
    }
    __device__ __forceinline__ void merge(int lane_mask) {
        RG_UNROLL
        for (TwoSums& sum : sums) {
            sum.first += __shfl_xor_sync(kAllLanes, sum.first, lane_mask);
            sum.second += __shfl_xor_sync(kAllLanes, sum.second, lane_mask);
        }
    }
    __device__ __forceinline__ void store(float* to, int quarter) const {
        RG_UNROLL
        for (int c = 0; c < N / 4; ++c) {
            to[c / 8 * 32 + 8 * quarter + c % 8] = sums[c].first;
            to[N + c / 8 * 32 + 8 * quarter + c % 8] = sums[c].second;
        }
    }
};

} // namespace rg::RG_GPU
