// Shuffles and votes, with which the lanes of a warp exchange values without memory.
//
// Each is a collective of exactly the lanes in the mask. All of them must call it. A shuffle must not read from a lane
// outside of the mask, since on a GPU the value is undefined. Only __syncwarp orders memory accesses.
#pragma once

#include "tests/simt/executor.h"

#include <cstring>
#include <type_traits>

namespace rg::simt {

enum class Shuffle { index, up, down, exclusive_or };

/// Returns `bits` of the lane that mode and operand select, within segments of `width` lanes.
uint64_t shuffle(Shuffle mode, unsigned mask, uint64_t bits, int operand, int width, Site site);
/// Returns one bit per lane, set if the lane is in the mask and its predicate is true.
unsigned ballot(const char* name, unsigned mask, bool predicate, Site site);
void warp_barrier(unsigned mask, Site site);

template <class T>
T shuffle_value(Shuffle mode, unsigned mask, T value, int operand, int width, Site site) {
    static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = shuffle(mode, mask, bits, operand, width, site);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

} // namespace rg::simt

#define RG_SIMT_HERE ::rg::simt::Site site = ::rg::simt::Site::here(__builtin_FILE(), __builtin_LINE())

inline void __syncwarp(unsigned mask = 0xffffffffu, RG_SIMT_HERE) { rg::simt::warp_barrier(mask, site); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, RG_SIMT_HERE) {
    return rg::simt::shuffle_value(rg::simt::Shuffle::index, mask, value, source, width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, RG_SIMT_HERE) {
    return rg::simt::shuffle_value(rg::simt::Shuffle::up, mask, value, int(delta), width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, RG_SIMT_HERE) {
    return rg::simt::shuffle_value(rg::simt::Shuffle::down, mask, value, int(delta), width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, RG_SIMT_HERE) {
    return rg::simt::shuffle_value(rg::simt::Shuffle::exclusive_or, mask, value, lane_mask, width, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, RG_SIMT_HERE) {
    return rg::simt::ballot("__ballot_sync", mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, RG_SIMT_HERE) {
    return rg::simt::ballot("__any_sync", mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, RG_SIMT_HERE) {
    return rg::simt::ballot("__all_sync", mask, predicate != 0, site) == mask;
}

#undef RG_SIMT_HERE
