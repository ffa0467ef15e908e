// For each column of a matrix [rows][columns], computes two sums over all rows, in a fixed order. Mostly, columns are
// channels and rows are pixels.
//
// In the first kernel, a block sums a slab of 512 rows for 32 columns. A thread takes kWidth neighbouring columns: 8
// columns in every 64th row, or one column in every 8th row. The sums of a column's threads are added first within each
// warp, then in shared memory. The second kernel adds the sums of the slabs in double, and hands the two sums of each
// column to the functor `finish`.
//
// A large batch may have thousands of slabs, but only 32 columns. So a block of the second kernel takes only 8 columns,
// whose 8 floats fill a memory sector of 32 bytes. It has 64 threads per column; a tree reduction adds their sums. More
// than 256 slabs form groups of at most 256. Each group gets its own blocks, and for each 8 columns, the block that
// ends last adds the sums of the groups. Without groups, 32 columns would give 4 blocks, and only 4 SMs would read
// megabytes of sums. With more than 8192 columns, there are enough blocks without groups.
#pragma once

#include "gpu/reduce.cuh"
#include "gpu/scratch.cuh"
#include "gpu/values.cuh"

namespace rg::RG_GPU {

constexpr int kColumns = 32, kRows = 8, kSlabRows = 512;

struct TwoSums {
    float first = 0, second = 0;
};

/// Sums each slab of rows into sums [slabs][2][columns]. term(row, column, sum) adds the two terms of kWidth elements,
/// the first of which is in `column`, to sum[0] to sum[kWidth - 1]. `columns` is a multiple of kWidth. Each element
/// belongs to exactly one call of term(), so term() may also compute and store its elements. A block takes a slab of
/// some columns; the grid has one axis, since the others are short. The launch bound asks for 4 blocks per SM, or 2
/// with 8 columns per thread: without it, the compiler aims at 8 blocks and spills registers.
template <int kWidth, class Term>
__global__ void __launch_bounds__(kColumns* kRows, kWidth == 1 ? 4 : 2)
    column_slab_sums_kernel(int64_t rows, unsigned slabs, int columns, Term term, float* sums) {
    constexpr int kLanes = kColumns / kWidth; // number of threads that share a row
    SHARED(float, partial, 2 * kRows * kColumns);
    const unsigned slab = blockIdx.x % slabs;
    const int thread = int(threadIdx.x), x = thread % kLanes * kWidth;
    const int first_column = int(blockIdx.x / slabs) * kColumns;
    const int64_t begin = int64_t(slab) * kSlabRows, end = begin + kSlabRows < rows ? begin + kSlabRows : rows;
    TwoSums sum[kWidth];
    if (first_column + x < columns)
        for (int64_t row = begin + thread / kLanes; row < end; row += kRows * kWidth) term(row, first_column + x, sum);
    for (int lane_mask = kLanes; lane_mask < 32; lane_mask *= 2) {
        RG_UNROLL
        for (TwoSums& s : sum) {
            s.first += __shfl_xor_sync(0xffffffffu, s.first, lane_mask);
            s.second += __shfl_xor_sync(0xffffffffu, s.second, lane_mask);
        }
    }
    if (thread % 32 < kLanes) {
        float* const of_warp = partial + thread / 32 * kColumns + x;
        RG_UNROLL
        for (int i = 0; i < kWidth; ++i) of_warp[i] = sum[i].first, of_warp[kRows * kColumns + i] = sum[i].second;
    }
    __syncthreads();
    const int y = thread / kColumns, column = first_column + thread % kColumns;
    if (y > 1 || column >= columns) return;
    float total = 0;
    for (int i = 0; i < kRows; ++i) total += partial[(y * kRows + i) * kColumns + thread % kColumns];
    sums[(size_t(slab) * 2 + y) * columns + column] = total;
}

// A block has 8 x 64 = 512 threads. With 1024, a thread would have only 64 registers, and the division in double in
// moments_of() would spill some.
constexpr int kReduceColumns = 8, kReduceRows = 64;

/// A `term` functor for column_sums_reduce_kernel. Adds the sums of a slab, which are stored as sums
/// [slabs][2][columns].
template <class T>
struct SlabSums {
    const T* sums;
    int columns;
    __device__ void operator()(int slab, int column, double& first, double& second) const {
        first += double(sums[size_t(slab) * 2 * columns + column]);
        second += double(sums[(size_t(slab) * 2 + 1) * columns + column]);
    }
};

constexpr unsigned kReduceSlabs = 256;
/// Block (x, y) adds the sums of group y, which has `group_slabs` slabs or fewer, for columns 8 x to 8 x + 7.
/// term(slab, column, first, second) adds the slab's two sums of the column to `first` and `second`.
/// finish(column, first, second) receives the totals. With several groups, their sums pass through `group_sums`
/// [groups][2][columns], and each x has a counter in `arrivals`.
template <class Term, class Finish>
__global__ void __launch_bounds__(kReduceColumns* kReduceRows)
    column_sums_reduce_kernel(int slabs, int group_slabs, int columns, Term term, Finish finish, double* group_sums,
                              unsigned* arrivals) {
    SHARED(double, partial, 2 * kReduceRows * kReduceColumns);
    const int x = int(threadIdx.x) % kReduceColumns, y = int(threadIdx.x) / kReduceColumns;
    const int column = int(blockIdx.x) * kReduceColumns + x, group = int(blockIdx.y), groups = int(gridDim.y);
    double *const firsts = partial + threadIdx.x, *const seconds = firsts + kReduceRows * kReduceColumns;
    const auto add = [&](int begin, int end, const auto& terms) {
        double first = 0, second = 0;
        if (column < columns)
            for (int slab = begin + y; slab < end; slab += kReduceRows) terms(slab, column, first, second);
        *firsts = first, *seconds = second;
        for (int step = kReduceRows / 2; step > 0; step /= 2) {
            __syncthreads();
            if (y >= step) continue;
            *firsts += firsts[step * kReduceColumns];
            *seconds += seconds[step * kReduceColumns];
        }
    };
    add(group * group_slabs, min((group + 1) * group_slabs, slabs), term);
    const bool has_total = y == 0 && column < columns;
    if (groups > 1) {
        double* const sums = group_sums + size_t(group) * 2 * columns + column;
        if (has_total) sums[0] = *firsts, sums[columns] = *seconds;
        if (!is_last_block(arrivals + blockIdx.x, gridDim.y)) return;
        add(0, groups, SlabSums<double>{group_sums, columns});
    }
    if (has_total) finish(column, *firsts, *seconds);
}

/// Returns the mean and the variance of a column's `count` values. `sum` is the sum of (value - shift), and `squares`
/// is the sum of (value - shift)^2. Returns zeros if count is 0.
inline __device__ float2 moments_of(int64_t count, double shift, double sum, double squares) {
    const double n = double(count), mean = count > 0 ? sum / n : 0,
                 variance = count > 0 ? squares / n - mean * mean : 0;
    return make_float2(count > 0 ? float(shift + mean) : 0, variance < 0 ? 0 : float(variance)); // NaN stays NaN
}

/// Adds the sums of any number of slabs, and hands the totals of each column to finish().
template <class Term, class Finish>
void reduce_slabs(unsigned slabs, int64_t columns, const Term& term, const Finish& finish) {
    const unsigned blocks = blocks_for(columns, kReduceColumns);
    const unsigned groups = blocks > kArrivalCounters ? 1 : std::max(1u, blocks_for(slabs, kReduceSlabs));
    const DeviceScratch<double> sums(groups > 1 ? size_t(groups) * 2 * size_t(columns) : 0);
    RG_LAUNCH((column_sums_reduce_kernel<Term, Finish>), dim3(blocks, groups), kReduceColumns * kReduceRows, 0,
              stream(), int(slabs), int(blocks_for(slabs, groups)), int(columns), term, finish, sums,
              arrival_counters());
}

/// Sums the two terms of term() over the rows of a matrix; see column_slab_sums_kernel for kWidth.
/// finish(column, first, second) receives a column's totals.
template <int kWidth, class Term, class Finish>
void sum_columns(int64_t rows, int64_t columns, const Term& term, const Finish& finish) {
    const unsigned slabs = blocks_for(rows, kSlabRows);
    const DeviceScratch<float> sums(size_t(slabs) * 2 * size_t(columns));
    if (slabs > 0)
        RG_LAUNCH((column_slab_sums_kernel<kWidth, Term>), slabs * blocks_for(columns, kColumns), kColumns * kRows, 0,
                  stream(), rows, slabs, int(columns), term, sums);
    reduce_slabs(slabs, columns, SlabSums<float>{sums, int(columns)}, finish);
}

} // namespace rg::RG_GPU
