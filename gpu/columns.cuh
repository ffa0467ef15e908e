// For each column of a matrix [rows][columns], computes two sums over all rows, in a fixed order. Columns are channels,
// rows are pixels.
//
// In the first kernel, a block sums a slab of 512 rows for 32 columns. Each thread takes every 8th row of a column, and
// the sums of the column's 8 threads are added in shared memory. The second kernel adds the sums of the slabs in
// double, and hands the two sums of each column to the functor `finish`.
//
// A large batch may have thousands of slabs, but only 32 columns. So a block of the second kernel takes only 8 columns,
// whose 8 floats fill a memory sector of 32 bytes. It has 64 threads per column; a tree reduction adds their sums. If
// there are more than 256 slabs, each group of 256 gets its own blocks, and the second kernel runs again on the sums of
// the groups. Without these groups, 32 columns would give 4 blocks, and only 4 SMs would read megabytes of sums.
#pragma once

#include "ringgrad/gpu/scratch.cuh"
#include "ringgrad/gpu/values.cuh"

namespace rg::RG_GPU {

constexpr int kColumns = 32, kRows = 8, kSlabRows = 512;

struct TwoSums {
    float first = 0, second = 0;
};

/// Sums each slab of rows into sums [slabs][2][columns]. term(row, column, sum) adds an element's two terms to `sum`.
/// The kernel calls term() once for each element, so term() may also compute and store the element. The launch bound
/// asks for 4 blocks per SM: without the bound, the compiler aims at 8 blocks and spills registers.
template <class Term>
__global__ void __launch_bounds__(kColumns* kRows, 4)
    column_slab_sums_kernel(int64_t rows, int columns, Term term, float* sums) {
    SHARED(float, partial, 2 * kRows * kColumns);
    const int x = int(threadIdx.x) % kColumns, y = int(threadIdx.x) / kColumns;
    const int column = int(blockIdx.y) * kColumns + x;
    const int64_t begin = int64_t(blockIdx.x) * kSlabRows, end = begin + kSlabRows < rows ? begin + kSlabRows : rows;
    TwoSums sum;
    if (column < columns)
        for (int64_t row = begin + y; row < end; row += kRows) term(row, column, sum);
    partial[y * kColumns + x] = sum.first;
    partial[(kRows + y) * kColumns + x] = sum.second;
    __syncthreads();
    if (y > 1 || column >= columns) return;
    float total = 0;
    for (int i = 0; i < kRows; ++i) total += partial[(y * kRows + i) * kColumns + x];
    sums[(size_t(blockIdx.x) * 2 + y) * columns + column] = total;
}

// A block has 8 x 64 = 512 threads. With 1024, a thread would have only 64 registers, and the division in double in
// store_moments() would spill some.
constexpr int kReduceColumns = 8, kReduceRows = 64;

constexpr int kReduceSlabs = 256;
/// Block (x, y) adds the sums of group y, which has at most 256 slabs, for columns 8 x to 8 x + 7.
/// term(slab, column, first, second) adds the slab's two sums of the column to `first` and `second`.
/// finish(column, first, second) receives the totals.
template <class Term, class Finish>
__global__ void __launch_bounds__(kReduceColumns* kReduceRows)
    column_sums_reduce_kernel(int slabs, int columns, Term term, Finish finish) {
    SHARED(double, partial, 2 * kReduceRows * kReduceColumns);
    const int x = int(threadIdx.x) % kReduceColumns, y = int(threadIdx.x) / kReduceColumns;
    const int column = int(blockIdx.x) * kReduceColumns + x;
    const int begin = int(blockIdx.y) * kReduceSlabs, end = begin + kReduceSlabs < slabs ? begin + kReduceSlabs : slabs;
    double first = 0, second = 0;
    if (column < columns)
        for (int slab = begin + y; slab < end; slab += kReduceRows) term(slab, column, first, second);
    double *const firsts = partial + threadIdx.x, *const seconds = firsts + kReduceRows * kReduceColumns;
    *firsts = first, *seconds = second;
    for (int step = kReduceRows / 2; step > 0; step /= 2) {
        __syncthreads();
        if (y >= step) continue;
        *firsts += firsts[step * kReduceColumns];
        *seconds += seconds[step * kReduceColumns];
    }
    if (y == 0 && column < columns) finish(column, *firsts, *seconds);
}

/// Stores the mean and the variance of a column's `count` values to stats [2][columns]. `sum` is the sum of
/// (value - shift), and `squares` is the sum of (value - shift)^2. Stores zeros if count is 0.
inline __device__ void store_moments(float* stats, int columns, int column, int64_t count, double shift, double sum,
                                     double squares) {
    const double n = double(count), mean = count > 0 ? sum / n : 0,
                 variance = count > 0 ? squares / n - mean * mean : 0;
    stats[column] = count > 0 ? float(shift + mean) : 0;
    stats[columns + column] = variance < 0 ? 0 : float(variance); // keeps NaN
}

/// A `term` functor for column_sums_reduce_kernel. Reads sums [slabs][2][columns].
template <class T>
struct SlabSums {
    const T* sums;
    int columns;
    __device__ void operator()(int slab, int column, double& first, double& second) const {
        first += double(sums[size_t(slab) * 2 * columns + column]);
        second += double(sums[(size_t(slab) * 2 + 1) * columns + column]);
    }
};

/// A `finish` functor for column_sums_reduce_kernel. Stores sums [groups of slabs][2][columns] for the next reduction.
struct StoreSums {
    double* sums;
    int columns;
    __device__ void operator()(int column, double first, double second) const {
        double* const column_sums = sums + size_t(blockIdx.y) * 2 * columns + column;
        column_sums[0] = first, column_sums[columns] = second;
    }
};

/// Adds the sums of any number of slabs and hands them to finish(). With more than 256 slabs, launches several kernels.
template <class Term, class Finish>
void reduce_slabs(unsigned slabs, int64_t columns, const Term& term, const Finish& finish) {
    const dim3 grid(blocks_for(columns, kReduceColumns), slabs > 0 ? blocks_for(slabs, kReduceSlabs) : 1);
    if (grid.y == 1) {
        RG_LAUNCH((column_sums_reduce_kernel<Term, Finish>), grid, kReduceColumns * kReduceRows, 0, stream(),
                  int(slabs), int(columns), term, finish);
        return;
    }
    const Scratch<double> sums(size_t(grid.y) * 2 * size_t(columns));
    RG_LAUNCH((column_sums_reduce_kernel<Term, StoreSums>), grid, kReduceColumns * kReduceRows, 0, stream(), int(slabs),
              int(columns), term, StoreSums{sums, int(columns)});
    reduce_slabs(grid.y, columns, SlabSums<double>{sums, int(columns)}, finish);
}

/// Sums the two terms of term() over the rows of a matrix. finish(column, first, second) receives a column's totals.
template <class Term, class Finish>
void sum_columns(int64_t rows, int64_t columns, const Term& term, const Finish& finish) {
    const unsigned slabs = blocks_for(rows, kSlabRows);
    const Scratch<float> sums(size_t(slabs) * 2 * size_t(columns));
    if (slabs > 0)
        RG_LAUNCH(column_slab_sums_kernel<Term>, dim3(slabs, blocks_for(columns, kColumns)), kColumns * kRows, 0,
                  stream(), rows, int(columns), term, sums);
    reduce_slabs(slabs, columns, SlabSums<float>{sums, int(columns)}, finish);
}

} // namespace rg::RG_GPU
