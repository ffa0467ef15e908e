// Host model of gpu/mma.cuh, which documents these functions. Each is a collective of all 32 lanes.
//
// The lane that passes the address of an ldmatrix row also reads the row, in this header, so that sanitizers attribute
// the access to its thread.
#pragma once

#include "tests/simt/executor.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace rg::simt {

#define RG_SIMT_HERE Site site = Site::here(__builtin_FILE(), __builtin_LINE())

/// Rounds a sum towards zero, as tensor cores do.
inline float truncate(double sum) {
    const float nearest = float(sum);
    const bool rounded_away = std::abs(double(nearest)) > std::abs(sum);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) - rounded_away);
}

void mma_bf16_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], RG_SIMT_HERE);

/// Throws Error unless the lane's row is aligned to 16 bytes and within a shared array.
void check_matrix_row(const void* row, Site site);
/// Distributes the rows that lanes have read: result[i] receives the lane's elements of matrix i.
void distribute_rows(uint32_t (&result)[4], const uint32_t (&row)[4], bool transposed, Site site);

inline void ldmatrix(uint32_t (&result)[4], const void* shared_row, bool transposed, Site site) {
    uint32_t row[4];
    check_matrix_row(shared_row, site);
    std::memcpy(row, shared_row, sizeof row);
    distribute_rows(result, row, transposed, site);
}

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, RG_SIMT_HERE) { ldmatrix(r, row, false, site); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, RG_SIMT_HERE) { ldmatrix(r, row, true, site); }

#undef RG_SIMT_HERE

} // namespace rg::simt
