// Fully connected layers with many inputs c, few samples n and few outputs k: y [n k] = x [n c] w [k c]^T and its
// gradients. x, w and their gradients are contiguous along c, so all three kernels loop along c, and no operand is
// packed.
#include "core/cpu/simd.h"

#include "core/cpu/kernels.h"

namespace rg::cpu::RG_ISA {

namespace {

constexpr int kRows = kRegisters == 32 ? 4 : 2; // number of samples, and of outputs, in a tile of dot products
constexpr int kSums = kRegisters == 32 ? 5 : 2; // number of rows of results in a tile of weighted sums
constexpr int kAcross = 4;                      // number of vectors along c in a tile of weighted sums

/// Computes y[i][j] = bias[j] + <x[i], w[j]> for MR samples and NR outputs.
template <int MR, int NR>
void dots(int64_t c, int64_t k, const float* x, const float* w, const float* bias, float* y) {
    Vec acc[MR][NR] = {};
    const auto add = [&](int64_t i, int lanes) __attribute__((always_inline)) {
        Vec b[NR];
        RG_UNROLL
        for (int n = 0; n < NR; ++n) b[n] = load_first(w + n * c + i, lanes);
        RG_UNROLL
        for (int m = 0; m < MR; ++m) {
            const Vec a = load_first(x + m * c + i, lanes);
            RG_UNROLL
            for (int n = 0; n < NR; ++n) acc[m][n] += a * b[n];
        }
    };
    int64_t i = 0;
    for (; i + kWidth <= c; i += kWidth) add(i, kWidth);
    if (i < c) add(i, int(c - i));
    // Without unrolling, g++ would keep the sums in memory, and store each after every multiply-add.
    RG_UNROLL
    for (int m = 0; m < MR; ++m) {
        RG_UNROLL
        for (int n = 0; n < NR; ++n) y[m * k + n] = bias[n] + sum_of(acc[m][n]);
    }
}

/// Computes NR outputs of all samples, while the weights of these outputs are in cache.
template <int NR>
void dots_of_samples(int64_t samples, int64_t c, int64_t k, const float* x, const float* w, const float* bias,
                     float* y) {
    int64_t i = 0;
    for (; i + kRows <= samples; i += kRows) dots<kRows, NR>(c, k, x + i * c, w, bias, y + i * k);
    for (; i < samples; ++i) dots<1, NR>(c, k, x + i * c, w, bias, y + i * k);
}

void forward(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* x, const float* w,
             const float* bias, float* y) {
    int64_t j = first;
    for (; j + kRows <= end; j += kRows) dots_of_samples<kRows>(n, c, k, x, w + j * c, bias + j, y + j);
    for (; j < end; ++j) dots_of_samples<1>(n, c, k, x, w + j * c, bias + j, y + j);
}

/// Computes out[i] = sum over j < terms of factors[j * step + i * next] * rows[j], for R rows of results and V vectors
/// along c.
template <int R, int V>
void combine(int64_t c, int lanes, int64_t terms, const float* factors, int64_t step, int64_t next, const float* rows,
             float* out) {
    Vec acc[R][V] = {};
    for (int64_t j = 0; j < terms; ++j) {
        Vec row[V];
        RG_UNROLL
        for (int v = 0; v < V; ++v) row[v] = load_first(rows + j * c + v * kWidth, lanes);
        RG_UNROLL
        for (int i = 0; i < R; ++i) {
            const Vec factor = splat(factors[j * step + i * next]);
            RG_UNROLL
            for (int v = 0; v < V; ++v) acc[i][v] += factor * row[v];
        }
    }
    RG_UNROLL
    for (int i = 0; i < R; ++i) {
        RG_UNROLL
        for (int v = 0; v < V; ++v) store_first(out + i * c + v * kWidth, acc[i][v], lanes);
    }
}

/// Computes R rows of the sums of combine(), at the positions [first, end) along c. The rows are far apart in memory,
/// so each call of combine() but the last few reads several cache lines of every row.
template <int R>
void combine_rows(int64_t first, int64_t end, int64_t c, int64_t terms, const float* factors, int64_t step,
                  int64_t next, const float* rows, float* out) {
    int64_t i = first;
    for (; i + kAcross * kWidth <= end; i += kAcross * kWidth)
        combine<R, kAcross>(c, kWidth, terms, factors, step, next, rows + i, out + i);
    for (; i < end; i += kWidth) combine<R, 1>(c, lanes_at(i, end), terms, factors, step, next, rows + i, out + i);
}

void combine_all(int64_t first, int64_t end, int64_t c, int64_t results, int64_t terms, const float* factors,
                 int64_t step, int64_t next, const float* rows, float* out) {
    int64_t i = 0;
    for (; i + kSums <= results; i += kSums)
        combine_rows<kSums>(first, end, c, terms, factors + i * next, step, next, rows, out + i * c);
    for (; i < results; ++i) combine_rows<1>(first, end, c, terms, factors + i * next, step, next, rows, out + i * c);
}

void dgrad(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* dy, const float* w, float* dx) {
    combine_all(first, end, c, n, k, dy, 1, k, w, dx);
}

void wgrad(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* dy, const float* x, float* dw) {
    combine_all(first, end, c, k, n, dy, k, 1, x, dw);
}

} // namespace

extern const DenseKernels kDense;
const DenseKernels kDense{forward, dgrad, wgrad};

} // namespace rg::cpu::RG_ISA
