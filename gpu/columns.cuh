// Sums over the rows of a matrix [rows][columns], two per column, in a fixed order: of channels over pixels.
//
// A block adds up a slab of rows for 32 columns, each thread every 8th row; the 8 threads of a column meet in shared
// memory. A second kernel adds the slabs in order, in double, and hands each column's two sums to `finish`.
#pragma once

#include "gpu/scratch.cuh"
#include "gpu/values.cuh"

namespace rg::RG_GPU {

constexpr int kColumns = 32, kRows = 8, kSlab = 512;

struct TwoSums {
    float first = 0, second = 0;
};

/// term(row, column, sums) adds an element's terms.
template <class Term>
__global__ void __launch_bounds__(kColumns* kRows) sum_slabs(int64_t rows, int columns, Term term, float* sums) {
    SHARED(float, partial, 2 * kRows * kColumns);
    const int x = int(threadIdx.x) % kColumns, y = int(threadIdx.x) / kColumns;
    const int column = int(blockIdx.y) * kColumns + x;
    const int64_t begin = int64_t(blockIdx.x) * kSlab, end = begin + kSlab < rows ? begin + kSlab : rows;
    TwoSums sum;
    if (column < columns)
        for (int64_t row = begin + y; row < end; row += kRows) term(row, column, sum);
    partial[y * kColumns + x] = sum.first;
    partial[(kRows + y) * kColumns + x] = sum.second;
    __syncthreads();
    if (y > 1 || column >= columns) return;
    float all = 0;
    for (int i = 0; i < kRows; ++i) all += partial[(y * kRows + i) * kColumns + x];
    sums[(size_t(blockIdx.x) * 2 + y) * columns + column] = all;
}

template <class Finish>
__global__ void add_slabs(int slabs, int columns, const float* sums, Finish finish) {
    const int column = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= columns) return;
    double first = 0, second = 0;
    for (int i = 0; i < slabs; ++i) {
        first += double(sums[size_t(i) * 2 * columns + column]);
        second += double(sums[(size_t(i) * 2 + 1) * columns + column]);
    }
    finish(column, first, second);
}

template <class Term, class Finish>
void sum_columns(int64_t rows, int64_t columns, const Term& term, const Finish& finish) {
    const unsigned slabs = blocks_for(rows, kSlab);
    const Scratch<float> sums(size_t(slabs) * 2 * size_t(columns));
    if (slabs > 0)
        RG_LAUNCH(sum_slabs<Term>, dim3(slabs, blocks_for(columns, kColumns)), kColumns * kRows, 0, stream(), rows,
                  int(columns), term, sums);
    RG_LAUNCH(add_slabs<Finish>, blocks_for(columns, 64), 64, 0, stream(), int(slabs), int(columns), sums, finish);
}

} // namespace rg::RG_GPU
