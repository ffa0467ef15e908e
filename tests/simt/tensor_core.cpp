// Implements the lane maps of gpu/mma.cuh. The last lane to arrive gathers whole matrices and distributes the results.
#include "tests/simt/tensor_core.h"

#include "core/bf16.h"
#include "tests/simt/shared.h"

#include <bit>

namespace rg::simt {
namespace {

struct Fragments {
    float* d;
    const uint32_t *a, *b;
};

/// A row of 8 columns as one vector. These products take most of the executor's time.
typedef double Row __attribute__((vector_size(8 * sizeof(double))));

/// d += a b, with a of 16 x 16 and b of 16 x 8. Not instrumented, since sanitizers would slow it down and find nothing.
__attribute__((no_sanitize("address", "undefined"))) void multiply_add(Row (&d)[16], const double (&a)[16][16],
                                                                       const Row (&b)[16]) {
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k) d[row] += a[row][k] * b[k]; // products are exact: at most 16 mantissa bits
}

/// Calls f(value, row, column) for each element of d, in whichever lane it is.
template <class F>
void for_each_sum(void* const (&data)[kWarp], F f) {
    for (int lane = 0; lane < kWarp; ++lane) {
        float* const d = static_cast<const Fragments*>(data[lane])->d;
        for (int i = 0; i < 4; ++i) f(d[i], lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
    }
}

float bf16_of(uint32_t pair, int half) { return to_float(bf16{uint16_t(pair >> 16 * half)}); }

void mma_bf16(void* const (&data)[kWarp], unsigned, int) {
    double a[16][16];
    Row b[16], d[16];
    for (int lane = 0; lane < kWarp; ++lane) {
        const Fragments& f = *static_cast<const Fragments*>(data[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = bf16_of(f.a[i], half);
            for (int i = 0; i < 2; ++i) b[2 * t + i * 8 + half][g] = bf16_of(f.b[i], half);
        }
    }
    for_each_sum(data, [&](float value, int row, int column) { d[row][column] = value; });
    multiply_add(d, a, b);
    for_each_sum(data, [&](float& value, int row, int column) { value = truncate(d[row][column]); });
}

struct Rows {
    const uint32_t* row; // row lane % 8 of matrix lane / 8
    uint32_t* result;
};

/// Distributes elements to lanes.
void distribute(void* const (&data)[kWarp], unsigned, int transposed) {
    const auto element = [&](int matrix, int row, int column) {
        const uint32_t pair = static_cast<const Rows*>(data[8 * matrix + row])->row[column / 2];
        return pair >> 16 * (column % 2) & 0xffff;
    };
    for (int lane = 0; lane < kWarp; ++lane)
        for (int m = 0; m < 4; ++m) {
            const int g = lane / 4, t = lane % 4;
            static_cast<const Rows*>(data[lane])->result[m] =
                transposed ? element(m, 2 * t, g) | element(m, 2 * t + 1, g) << 16
                           : element(m, g, 2 * t) | element(m, g, 2 * t + 1) << 16;
        }
}

} // namespace

void mma_bf16_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Site site) {
    Fragments fragments{d, a, b};
    warp_collective({.name = "mma_bf16_16x8x16", .combine = mma_bf16}, kAllLanes, &fragments, site);
}

void check_matrix_row(const void* row, Site site) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fail_here(site, "ldmatrix: the row is not aligned to 16 bytes");
    if (!in_shared(row, 16)) fail_here(site, "ldmatrix: the row is not within a shared array");
}

void distribute_rows(uint32_t (&result)[4], const uint32_t (&row)[4], bool transposed, Site site) {
    Rows rows{row, result};
    const char* const name = transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4";
    warp_collective({.name = name, .argument = transposed, .combine = distribute}, kAllLanes, &rows, site);
}

} // namespace rg::simt
