// Sums over the rows of a matrix [rows][columns], two per column, in a fixed order: of channels over pixels.
//
// A block adds up a slab of rows for 32 columns, each thread every 8th row; the 8 threads of a column meet in shared
// memory. A second kernel adds what the slabs have left, in double, and hands each column's two sums to `finish`. Of a
// large batch there are thousands of slabs and 32 columns: so a block has 64 threads for each of 8 columns, which fill
// the 32 bytes that memory gives at a time, and their sums meet in a tree; and of more than 256 slabs each 256 have
// blocks of their own, or 4 multiprocessors would read megabytes.
#pragma once

#include "gpu/scratch.cuh"
#include "gpu/values.cuh"

namespace rg::RG_GPU {

constexpr int kColumns = 32, kRows = 8, kSlab = 512;

struct TwoSums {
    float first = 0, second = 0;
};

/// term(row, column, sums) adds an element's terms; it is called once for each, so it may make the element, too. At
/// least 4 blocks of a multiprocessor: for the 8 that the compiler is after, it would spill registers.
template <class Term>
__global__ void __launch_bounds__(kColumns* kRows, 4) sum_slabs(int64_t rows, int columns, Term term, float* sums) {
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

constexpr int kAddColumns = 8, kAddRows = 64; // of 1024 threads each has 64 registers: a division in double spills

/// term(slab, column, first, second) adds to a column's sums what a slab has of them. Of all slabs, or of the 256 with
/// the number of this block.
constexpr int kAddSlabs = 256;
template <class Term, class Finish>
__global__ void __launch_bounds__(kAddColumns* kAddRows) add_slabs(int slabs, int columns, Term term, Finish finish) {
    SHARED(double, partial, 2 * kAddRows * kAddColumns);
    const int x = int(threadIdx.x) % kAddColumns, y = int(threadIdx.x) / kAddColumns;
    const int column = int(blockIdx.x) * kAddColumns + x;
    const int begin = int(blockIdx.y) * kAddSlabs, end = begin + kAddSlabs < slabs ? begin + kAddSlabs : slabs;
    double first = 0, second = 0;
    if (column < columns)
        for (int slab = begin + y; slab < end; slab += kAddRows) term(slab, column, first, second);
    double *const firsts = partial + threadIdx.x, *const seconds = firsts + kAddRows * kAddColumns;
    *firsts = first, *seconds = second;
    for (int step = kAddRows / 2; step > 0; step /= 2) {
        __syncthreads();
        if (y >= step) continue;
        *firsts += firsts[step * kAddColumns];
        *seconds += seconds[step * kAddColumns];
    }
    if (y == 0 && column < columns) finish(column, *firsts, *seconds);
}

/// stats [2 columns]: mean and variance of `count` values of a column, from the sums of their distances from `shift`
/// and of the squares of these. Zeros, of none.
inline __device__ void store_moments(float* stats, int columns, int column, int64_t count, double shift, double sum,
                                     double squares) {
    const double n = double(count), mean = count > 0 ? sum / n : 0,
                 variance = count > 0 ? squares / n - mean * mean : 0;
    stats[column] = count > 0 ? float(shift + mean) : 0;
    stats[columns + column] = variance < 0 ? 0 : float(variance); // a NaN stays
}

/// sums [slabs][2][columns], as sum_slabs leaves them.
template <class T>
struct SlabSums {
    const T* sums;
    int columns;
    __device__ void operator()(int slab, int column, double& first, double& second) const {
        first += double(sums[size_t(slab) * 2 * columns + column]);
        second += double(sums[(size_t(slab) * 2 + 1) * columns + column]);
    }
};

/// sums [number of blocks][2][columns], of add_slabs for another one.
struct StoreSums {
    double* sums;
    int columns;
    __device__ void operator()(int column, double first, double second) const {
        double* const to = sums + size_t(blockIdx.y) * 2 * columns + column;
        to[0] = first, to[columns] = second;
    }
};

template <class Term, class Finish>
void add_up(unsigned slabs, int64_t columns, const Term& term, const Finish& finish) {
    const dim3 grid(blocks_for(columns, kAddColumns), slabs > 0 ? blocks_for(slabs, kAddSlabs) : 1);
    if (grid.y == 1) {
        RG_LAUNCH((add_slabs<Term, Finish>), grid, kAddColumns * kAddRows, 0, stream(), int(slabs), int(columns), term,
                  finish);
        return;
    }
    const Scratch<double> sums(size_t(grid.y) * 2 * size_t(columns));
    RG_LAUNCH((add_slabs<Term, StoreSums>), grid, kAddColumns * kAddRows, 0, stream(), int(slabs), int(columns), term,
              StoreSums{sums, int(columns)});
    add_up(grid.y, columns, SlabSums<double>{sums, int(columns)}, finish);
}

template <class Term, class Finish>
void sum_columns(int64_t rows, int64_t columns, const Term& term, const Finish& finish) {
    const unsigned slabs = blocks_for(rows, kSlab);
    const Scratch<float> sums(size_t(slabs) * 2 * size_t(columns));
    if (slabs > 0)
        RG_LAUNCH(sum_slabs<Term>, dim3(slabs, blocks_for(columns, kColumns)), kColumns * kRows, 0, stream(), rows,
                  int(columns), term, sums);
    add_up(slabs, columns, SlabSums<float>{sums, int(columns)}, finish);
}

} // namespace rg::RG_GPU
