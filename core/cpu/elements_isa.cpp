// Channel-wise and element-wise loops: batch norm, ReLU, pooling, the optimizer. All are bound by memory, so each
// touches every value once, and results that are too large to be found in cache again bypass it.
#include "core/cpu/simd.h"

#include "core/cpu/isa.h"

namespace rg::cpu::RG_ISA {

namespace {

bool aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % (kWidth * 4) == 0; }

/// Calls body(i, j, first lanes) for every vector of a run, i its position, j that position modulo the period.
/// All but the last call are for full vectors.
template <class Body>
inline __attribute__((always_inline)) void each_vector(int64_t count, int64_t period, Body body) {
    int64_t i = 0;
    while (i + period <= count)
        for (int64_t j = 0; j < period; j += kWidth, i += kWidth) body(i, j, kWidth);
    for (int64_t j = 0; i < count; j += kWidth, i += kWidth) body(i, j, int(count - i < kWidth ? count - i : kWidth));
}

/// y = f(i, j, lanes), the results at position i, for every vector; past the caches if asked and possible.
template <class F>
inline __attribute__((always_inline)) void map(float* y, int64_t count, int64_t period, bool past, F f) {
    const bool past_cache = past && aligned(y);
    each_vector(count, period, [&](int64_t i, int64_t j, int lanes) {
        if (lanes < kWidth)
            store_first(y + i, f(i, j, lanes), lanes);
        else if (past_cache)
            stream(y + i, f(i, j, kWidth));
        else
            store(y + i, f(i, j, kWidth));
    });
}

/// Sums of kColumns neighbouring vectors over all rows of `period` values, held in registers.
template <int kColumns>
void sum_columns(const float* x, int64_t rows, int64_t period, const float* shift, float* sum, float* squares) {
    Vec s[kColumns], q[kColumns], at[kColumns];
    RG_UNROLL
    for (int v = 0; v < kColumns; ++v) {
        s[v] = load(sum + v * kWidth);
        q[v] = load(squares + v * kWidth);
        at[v] = load(shift + v * kWidth);
    }
    for (int64_t row = 0; row < rows; ++row, x += period) {
        RG_UNROLL
        for (int v = 0; v < kColumns; ++v) {
            const Vec d = load(x + v * kWidth) - at[v];
            s[v] += d;
            q[v] += d * d;
        }
    }
    RG_UNROLL
    for (int v = 0; v < kColumns; ++v) {
        store(sum + v * kWidth, s[v]);
        store(squares + v * kWidth, q[v]);
    }
}

void channel_sums(const float* x, int64_t count, int64_t period, const float* shift, float* sum, float* squares) {
    const int64_t rows = count / period;
    int64_t j = 0;
    for (; j + 4 * kWidth <= period; j += 4 * kWidth)
        sum_columns<4>(x + j, rows, period, shift + j, sum + j, squares + j);
    for (; j + 2 * kWidth <= period; j += 2 * kWidth)
        sum_columns<2>(x + j, rows, period, shift + j, sum + j, squares + j);
    for (; j < period; j += kWidth) sum_columns<1>(x + j, rows, period, shift + j, sum + j, squares + j);
    for (int64_t i = rows * period; i < count; ++i) {
        const float d = x[i] - shift[i - rows * period];
        sum[i - rows * period] += d;
        squares[i - rows * period] += d * d;
    }
}

template <bool kRelu>
void affine_as(const float* x, float* y, int64_t count, int64_t period, const float* scale, const float* shift,
               bool past_cache) {
    map(y, count, period, past_cache, [=](int64_t i, int64_t j, int lanes) {
        const Vec v = load_first(x + i, lanes) * load(scale + j) + load(shift + j);
        return kRelu ? relu(v) : v;
    });
}

void affine(const float* x, float* y, int64_t count, int64_t period, const float* scale, const float* shift, bool relu,
            bool past_cache) {
    (relu ? affine_as<true> : affine_as<false>)(x, y, count, period, scale, shift, past_cache);
}

template <bool kRelu>
inline __attribute__((always_inline)) Vec masked(const float* dy, Vec x, Vec scale, Vec shift, int lanes) {
    const Vec g = load_first(dy, lanes);
    return kRelu ? where_positive(x * scale + shift, g) : g;
}

template <bool kRelu>
void norm_sums_as(const float* dy, const float* x, int64_t count, int64_t period, const float* scale,
                  const float* shift, const float* mean, float* dbeta, float* dgamma) {
    each_vector(count, period, [=](int64_t i, int64_t j, int lanes) {
        const Vec value = load_first(x + i, lanes);
        const Vec g = masked<kRelu>(dy + i, value, load(scale + j), load(shift + j), lanes);
        store(dbeta + j, load(dbeta + j) + g);
        store(dgamma + j, load(dgamma + j) + g * (value - load(mean + j)));
    });
}

void norm_sums(const float* dy, const float* x, int64_t count, int64_t period, const float* scale, const float* shift,
               const float* mean, bool relu, float* dbeta, float* dgamma) {
    (relu ? norm_sums_as<true> : norm_sums_as<false>)(dy, x, count, period, scale, shift, mean, dbeta, dgamma);
}

template <bool kRelu>
void norm_grad_as(const float* dy, const float* x, float* dx, int64_t count, int64_t period, const float* scale,
                  const float* shift, const float* a, const float* b, const float* d, bool past_cache) {
    map(dx, count, period, past_cache, [=](int64_t i, int64_t j, int lanes) {
        const Vec value = load_first(x + i, lanes);
        const Vec g = masked<kRelu>(dy + i, value, load(scale + j), load(shift + j), lanes);
        return g * load(a + j) + (value * load(b + j) + load(d + j));
    });
}

void norm_grad(const float* dy, const float* x, float* dx, int64_t count, int64_t period, const float* scale,
               const float* shift, const float* a, const float* b, const float* d, bool relu, bool past_cache) {
    (relu ? norm_grad_as<true> : norm_grad_as<false>)(dy, x, dx, count, period, scale, shift, a, b, d, past_cache);
}

void relu_of(const float* x, float* y, int64_t count) {
    map(y, count, kWidth, false, [=](int64_t i, int64_t, int lanes) { return relu(load_first(x + i, lanes)); });
}

void relu_grad(const float* dy, const float* y, float* dx, int64_t count) {
    map(dx, count, kWidth, false,
        [=](int64_t i, int64_t, int lanes) { return where_positive(load_first(y + i, lanes), load_first(dy + i, lanes)); });
}

void add(const float* a, const float* b, float* y, int64_t count) {
    map(y, count, kWidth, false, [=](int64_t i, int64_t, int lanes) { return load_first(a + i, lanes) + load_first(b + i, lanes); });
}

void sgdm(float* p, float* v, const float* g, int64_t count, float lr, float momentum, float decay, bool nesterov) {
    const Vec rate = splat(lr), inertia = splat(momentum), shrink = splat(decay);
    each_vector(count, kWidth, [=](int64_t i, int64_t, int lanes) {
        const Vec parameter = load_first(p + i, lanes), gradient = load_first(g + i, lanes) + shrink * parameter;
        const Vec velocity = inertia * load_first(v + i, lanes) + gradient;
        const Vec moved = parameter - rate * (nesterov ? gradient + inertia * velocity : velocity);
        store_first(v + i, velocity, lanes);
        store_first(p + i, moved, lanes);
    });
}

void max_window(const float* x, int64_t row, int64_t window, int64_t channels, float* y, uint8_t* at) {
    for (int64_t c = 0; c < channels; c += kWidth) {
        const int lanes = int(channels - c < kWidth ? channels - c : kWidth);
        Vec best = load_first(x + c, lanes), place{};
        for (int64_t r = 0; r < window; ++r)
            for (int64_t s = r == 0 ? 1 : 0; s < window; ++s) {
                const Vec v = load_first(x + r * row + s * channels + c, lanes);
                const auto larger = (v > best) | ((v != v) & (best == best)); // the first NaN wins and stays
                place = larger ? splat(float(r * window + s)) : place;
                best = larger ? v : best;
            }
        store_first(y + c, best, lanes);
        store_bytes(at + c, place, lanes);
    }
}

void max_window_grad(const float* dy, const uint8_t* at, int64_t row, int64_t window, int64_t channels, float* dx) {
    for (int64_t c = 0; c < channels; c += kWidth) {
        const int lanes = int(channels - c < kWidth ? channels - c : kWidth);
        const Vec g = load_first(dy + c, lanes), place = load_bytes(at + c, lanes);
        for (int64_t r = 0; r < window; ++r)
            for (int64_t s = 0; s < window; ++s) {
                float* cell = dx + r * row + s * channels + c;
                const Vec zero{}, position = splat(float(r * window + s));
                store_first(cell, load_first(cell, lanes) + (place == position ? g : zero), lanes);
            }
    }
}

void sum_window_grad(const float* __restrict dy, int64_t row, int64_t window, int64_t channels, float scale,
                     float* __restrict dx) {
    for (int64_t r = 0; r < window; ++r)
        for (int64_t s = 0; s < window; ++s) {
            float* cell = dx + r * row + s * channels;
            for (int64_t c = 0; c < channels; ++c) cell[c] += scale * dy[c];
        }
}

void sum_window(const float* x, int64_t row, int64_t window, int64_t channels, float scale, float* y) {
    for (int64_t c = 0; c < channels; c += kWidth) {
        const int lanes = int(channels - c < kWidth ? channels - c : kWidth);
        Vec sum{};
        for (int64_t r = 0; r < window; ++r)
            for (int64_t s = 0; s < window; ++s) sum += load_first(x + r * row + s * channels + c, lanes);
        store_first(y + c, sum * splat(scale), lanes);
    }
}

} // namespace

extern const ElementKernels kElements;
const ElementKernels kElements{channel_sums, affine,     norm_sums,       norm_grad,  relu_of,        relu_grad, add,
                               sgdm,         max_window, max_window_grad, sum_window, sum_window_grad};

} // namespace rg::cpu::RG_ISA
