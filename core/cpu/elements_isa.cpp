// Channel-wise and element-wise loops: batch norm, activations, pooling, the optimizers. Memory bandwidth limits most
// of them. So the loops read and write every value once, except pooling with overlapping windows. With past_cache, a
// loop stores its results past the caches, since they are too large to stay there.
#include "core/cpu/kernels.h"
#include "core/cpu/simd_math.h"

namespace rg::cpu::RG_ISA {

namespace {

/// Calls body(i, j, lanes) for every vector of `count` values, where i is the index of its first value and j is i
/// modulo the period, a multiple of kWidth. Only the last vector can have fewer than kWidth lanes.
template <class Body>
inline __attribute__((always_inline)) void each_periodic_vector(int64_t count, int64_t period, Body body) {
    int64_t i = 0;
    while (i + period <= count)
        for (int64_t j = 0; j < period; j += kWidth, i += kWidth) body(i, j, kWidth);
    for (int64_t j = 0; i < count; j += kWidth, i += kWidth) body(i, j, lanes_at(i, count));
}

/// Stores f(i, j, lanes) at y + i for every vector; see each_periodic_vector(). With past_cache, the stores of whole
/// vectors bypass the caches (stream_store() in simd.h), if y is aligned.
template <class T, class F>
inline __attribute__((always_inline)) void map(T* y, int64_t count, int64_t period, bool past_cache, F f) {
    const bool streams = past_cache && aligned(y);
    each_periodic_vector(count, period, [&](int64_t i, int64_t j, int lanes) {
        if (lanes < kWidth || !streams)
            store_first(y + i, f(i, j, lanes), lanes);
        else
            stream_store(y + i, f(i, j, kWidth));
    });
}

/// Adds kColumns vectors of each row to the sums a and b, each [period]. A row has `period` values, and the vectors
/// begin at value `first` of the row. add(i, j, lanes, sum_a, sum_b) adds the vector at index i to both sums; j is the
/// index within the row. The sums stay in registers over all rows.
template <int kColumns, class Add>
inline __attribute__((always_inline)) void sum_columns(int64_t first, int64_t rows, int64_t period, float* a, float* b,
                                                       Add add) {
    Vec sum_a[kColumns], sum_b[kColumns];
    RG_UNROLL
    for (int v = 0; v < kColumns; ++v) {
        sum_a[v] = load(a + first + v * kWidth);
        sum_b[v] = load(b + first + v * kWidth);
    }
    for (int64_t row = 0; row < rows; ++row) {
        RG_UNROLL
        for (int v = 0; v < kColumns; ++v)
            add(row * period + first + v * kWidth, first + v * kWidth, kWidth, sum_a[v], sum_b[v]);
    }
    RG_UNROLL
    for (int v = 0; v < kColumns; ++v) {
        store(a + first + v * kWidth, sum_a[v]);
        store(b + first + v * kWidth, sum_b[v]);
    }
}

/// Adds all `count` values to the sums a and b like sum_columns(), including an incomplete last row.
template <class Add>
inline __attribute__((always_inline)) void sum_all(int64_t count, int64_t period, float* a, float* b, Add add) {
    const int64_t rows = count / period;
    int64_t j = 0;
    for (; j + 4 * kWidth <= period; j += 4 * kWidth) sum_columns<4>(j, rows, period, a, b, add);
    for (; j + 2 * kWidth <= period; j += 2 * kWidth) sum_columns<2>(j, rows, period, a, b, add);
    for (; j < period; j += kWidth) sum_columns<1>(j, rows, period, a, b, add);
    int64_t i = rows * period;
    for (j = 0; i < count; j += kWidth, i += kWidth) { // the incomplete last row
        Vec sum_a = load(a + j), sum_b = load(b + j);
        add(i, j, lanes_at(i, count), sum_a, sum_b);
        store(a + j, sum_a);
        store(b + j, sum_b);
    }
}

/// Returns v in the first `lanes` lanes and zero in the rest.
inline Vec only_first(Vec v, int lanes) {
    if (lanes == kWidth) return v;
    alignas(64) float values[kWidth];
    store(values, v);
    return load_first(values, lanes);
}

template <class T>
void channel_sums(const T* x, int64_t count, int64_t period, const float* shift, float* sum, float* squares) {
    sum_all(count, period, sum, squares, [=](int64_t i, int64_t j, int lanes, Vec& s, Vec& q) {
        const Vec d = only_first(load_first(x + i, lanes) - load(shift + j), lanes);
        s += d;
        q += d * d;
    });
}

Vec of(double constant) { return splat(float(constant)); }

/// An activation as a type, so that the loops need no branch. value(x) is the activation of x, and gradient(dy, from)
/// is dy times the derivative; RG_ACTIVATIONS defines both, and `from`.
template <Activation::Kind kKind>
struct Kind;
#define RG_KIND(name, from, formula, derivative)                                                                       \
    template <>                                                                                                        \
    struct Kind<Activation::name> {                                                                                    \
        Vec slope;                                                                                                     \
        Vec value(Vec x) const { return formula; }                                                                     \
        Vec gradient(Vec dy, [[maybe_unused]] Vec from) const { return derivative; }                                   \
    };
RG_ACTIVATIONS(RG_KIND)
#undef RG_KIND

/// Loads like load_first(), and prefetches the values 4 KiB (a page) further on. With many instructions per vector, the
/// processor runs only a few vectors ahead, and its own prefetching ends with the page.
template <class Kind, class T>
Vec load_for(Kind, const T* p, int lanes) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + 4096);
    return load_first(p, lanes);
}
/// Does not prefetch: a ReLU takes a single instruction, and often reads results that are still in cache.
template <class T>
Vec load_for(Kind<Activation::relu>, const T* p, int lanes) {
    return load_first(p, lanes);
}

#define RG_CASE(name, ...)                                                                                             \
    case Activation::name: return f(Kind<Activation::name>{splat(activation.slope)});
/// Calls f with the Kind of the activation.
template <class F>
void with_activation(Activation activation, F f) {
    switch (activation.kind) { RG_ACTIVATIONS(RG_CASE) }
}
/// Does the same for an activation that is part of another op.
template <class F>
void with_fusible(Activation activation, F f) {
    switch (activation.kind) {
        RG_FUSIBLE_ACTIVATIONS(RG_CASE)
    default: break;
    }
}
#undef RG_CASE

template <class T>
void affine(const T* x, T* y, int64_t count, int64_t period, const float* scale, const float* shift,
            Activation activation, bool past_cache) {
    with_fusible(activation, [=](auto kind) {
        map(y, count, period, past_cache, [=](int64_t i, int64_t j, int lanes) {
            return kind.value(load_first(x + i, lanes) * load(scale + j) + load(shift + j));
        });
    });
}

template <class T>
void affine_sum(const T* a, const T* b, T* y, int64_t count, int64_t period, const float* scale_a, const float* scale_b,
                const float* shift, Activation activation, bool past_cache) {
    with_fusible(activation, [=](auto kind) {
        map(y, count, period, past_cache, [=](int64_t i, int64_t j, int lanes) {
            return kind.value(load_first(a + i, lanes) * load(scale_a + j) +
                              (load_first(b + i, lanes) * load(scale_b + j) + load(shift + j)));
        });
    });
}

template <class T>
void norm_sums(const T* dy, const T* x, int64_t count, int64_t period, const float* scale, const float* shift,
               const float* mean, Activation activation, float* products, float* gradients) {
    with_fusible(activation, [=](auto kind) {
        sum_all(count, period, products, gradients, [=](int64_t i, int64_t j, int lanes, Vec& product, Vec& gradient) {
            const Vec value = load_first(x + i, lanes), before = value * load(scale + j) + load(shift + j);
            const Vec g = kind.gradient(load_first(dy + i, lanes), before); // 0 in unused lanes
            product += g * (value - load(mean + j));
            gradient += g;
        });
    });
}

template <class T>
void norm_grad(const T* dy, const T* x, T* dx, int64_t count, int64_t period, const float* scale, const float* shift,
               const float* a, const float* b, const float* d, Activation activation, bool past_cache) {
    with_fusible(activation, [=](auto kind) {
        map(dx, count, period, past_cache, [=](int64_t i, int64_t j, int lanes) {
            const Vec value = load_first(x + i, lanes), before = value * load(scale + j) + load(shift + j);
            const Vec g = kind.gradient(load_first(dy + i, lanes), before);
            return g * load(a + j) + (value * load(b + j) + load(d + j));
        });
    });
}

template <class T>
void activation(const T* x, T* y, int64_t count, Activation activation, bool past_cache) {
    with_activation(activation, [=](auto kind) {
        map(y, count, kWidth, past_cache,
            [=](int64_t i, int64_t, int lanes) { return kind.value(load_for(kind, x + i, lanes)); });
    });
}

template <class T>
void activation_grad(const T* dy, const T* from, T* dx, int64_t count, Activation activation, bool past_cache) {
    with_activation(activation, [=](auto kind) {
        map(dx, count, kWidth, past_cache, [=](int64_t i, int64_t, int lanes) {
            return kind.gradient(load_for(kind, dy + i, lanes), load_for(kind, from + i, lanes));
        });
    });
}

template <class T>
void add(const T* a, const T* b, T* y, int64_t count) {
    map(y, count, kWidth, false,
        [=](int64_t i, int64_t, int lanes) { return load_first(a + i, lanes) + load_first(b + i, lanes); });
}

/// Calls f with the function of two vectors.
template <class F>
void with_binary(Binary kind, F f) {
    switch (kind) {
#define RG_CASE(name, value, ...)                                                                                      \
    case Binary::name: return f([](Vec a, Vec b) { return value; });
        RG_BINARIES(RG_CASE)
#undef RG_CASE
    }
}

template <class T>
void binary(const T* a, const T* b, T* y, int64_t count, Binary kind, bool past_cache) {
    with_binary(kind, [=](auto f) {
        map(y, count, kWidth, past_cache,
            [=](int64_t i, int64_t, int lanes) { return f(load_first(a + i, lanes), load_first(b + i, lanes)); });
    });
}

template <class T>
void binary_repeated(const T* a, const float* b, T* y, int64_t count, int64_t period, Binary kind, bool past_cache) {
    with_binary(kind, [=](auto f) {
        map(y, count, period, past_cache,
            [=](int64_t i, int64_t j, int lanes) { return f(load_first(a + i, lanes), load(b + j)); });
    });
}

template <class From, class To>
void convert(const From* x, To* y, int64_t count) {
    map(y, count, kWidth, false, [=](int64_t i, int64_t, int lanes) { return load_first(x + i, lanes); });
}

/// Applies UpdateFactors to the vector that begins at parameter i.
struct VectorFactors {
    const UpdateFactors& all;
    Vec clipped(Vec gradient) const { return all.clip == 1 ? gradient : splat(all.clip) * gradient; }
    Vec rate(Vec lr, int64_t i, int lanes) const { return all.rates ? lr * load_first(all.rates + i, lanes) : lr; }
    Vec decay(Vec by, int64_t i, int lanes) const { return all.decays ? by * load_first(all.decays + i, lanes) : by; }
};

void sgdm(float* p, float* v, const float* g, int64_t count, const SgdmStep& step, const UpdateFactors& all) {
    const Vec lr = splat(step.lr), inertia = splat(step.momentum), decay = splat(step.decay);
    const VectorFactors factors{all};
    const bool nesterov = step.nesterov;
    each_periodic_vector(count, kWidth, [=](int64_t i, int64_t, int lanes) {
        const Vec parameter = load_first(p + i, lanes), shrink = factors.decay(decay, i, lanes);
        const Vec gradient = factors.clipped(load_first(g + i, lanes)) + shrink * parameter;
        const Vec velocity = inertia * load_first(v + i, lanes) + gradient;
        const Vec moved =
            parameter - factors.rate(lr, i, lanes) * (nesterov ? gradient + inertia * velocity : velocity);
        store_first(v + i, velocity, lanes);
        store_first(p + i, moved, lanes);
    });
}

void adam(float* p, float* m, float* v, const float* g, int64_t count, const AdamStep& step, const UpdateFactors& all) {
    const Vec decay = splat(step.decay), m_keep = splat(step.m_keep), m_part = splat(step.m_part),
              v_keep = splat(step.v_keep), v_part = splat(step.v_part), lr = splat(step.rate),
              unbias = splat(step.unbias), epsilon = splat(step.epsilon);
    const VectorFactors factors{all};
    const bool decoupled = step.decoupled;
    each_periodic_vector(count, kWidth, [=](int64_t i, int64_t, int lanes) {
        Vec parameter = load_first(p + i, lanes), gradient = factors.clipped(load_first(g + i, lanes));
        const Vec shrink = factors.decay(decay, i, lanes);
        if (decoupled)
            parameter -= factors.rate(shrink, i, lanes) * parameter;
        else
            gradient += shrink * parameter;
        const Vec mean = m_keep * load_first(m + i, lanes) + m_part * gradient;
        const Vec square = v_keep * load_first(v + i, lanes) + v_part * gradient * gradient;
        const Vec rate = factors.rate(lr, i, lanes);
        store_first(m + i, mean, lanes);
        store_first(v + i, square, lanes);
        store_first(p + i, parameter - rate * mean / (square_root(square) * unbias + epsilon), lanes);
    });
}

float sum_of_squares(const float* x, int64_t count) {
    Vec sums{};
    each_periodic_vector(count, kWidth, [&](int64_t i, int64_t, int lanes) {
        const Vec value = load_first(x + i, lanes);
        sums += value * value;
    });
    float sum = 0;
    for (int j = 0; j < kWidth; ++j) sum += sums[j];
    return sum;
}

int64_t first_non_finite(const float* x, int64_t count) {
    constexpr int kVectors = 8;
    int64_t i = 0;
    for (; i + kVectors * kWidth <= count; i += kVectors * kWidth) { // skip blocks whose values are all finite
        Vec bad{};
        RG_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            const Vec value = load(x + i + v * kWidth);
            bad += value - value; // NaN if the value is not finite, else 0
        }
        float sum = 0;
        for (int j = 0; j < kWidth; ++j) sum += bad[j];
        if (sum != 0) break;
    }
    while (i < count && x[i] - x[i] == 0) ++i;
    return i;
}

struct IndexRange {
    int64_t begin, end;
};
/// Returns the range of the pixels of a window that lie in the image, along one axis.
IndexRange pixels_of(const PoolAxis& axis, int64_t window) {
    const int64_t begin = window * axis.stride - axis.pad, end = begin + axis.window;
    return {begin > 0 ? begin : 0, end < axis.extent ? end : axis.extent};
}
/// Returns the range of the windows that contain a pixel, along one axis.
IndexRange windows_with(const PoolAxis& axis, int64_t pixel) {
    const int64_t padded = pixel + axis.pad, end = padded / axis.stride + 1;
    return {padded < axis.window ? 0 : (padded - axis.window) / axis.stride + 1,
            end < axis.results ? end : axis.results};
}

template <int kVectors>
struct Count {};
/// Covers the channels [c, channels) by groups of 4, 2 or 1 vectors, the largest first. Calls f(first channel, Count of
/// the vectors, lanes) for each group. `lanes` is kWidth, except in a last incomplete vector.
template <int kVectors = 4, class F>
inline __attribute__((always_inline)) void each_group(int64_t c, int64_t channels, F f) {
    for (; channels - c >= kVectors * kWidth; c += kVectors * kWidth) f(c, Count<kVectors>{}, kWidth);
    if constexpr (kVectors > 1)
        each_group<kVectors / 2>(c, channels, f);
    else if (c < channels)
        f(c, Count<1>{}, int(channels - c));
}

template <class T>
void max_pool(const PoolImage& g, int64_t row, const T* x, T* y, uint8_t* position) {
    const int64_t channels = g.c, x_row = g.columns.extent * channels, width = g.columns.window;
    const IndexRange rows = pixels_of(g.rows, row);
    const int64_t top = row * g.rows.stride - g.rows.pad;
    for (int64_t q = 0; q < g.columns.results; ++q) {
        const IndexRange columns = pixels_of(g.columns, q);
        const int64_t left = q * g.columns.stride - g.columns.pad, to = (row * g.columns.results + q) * channels;
        const float first_place = float((rows.begin - top) * width + columns.begin - left);
        each_group(0, channels, [=]<int kVectors>(int64_t c, Count<kVectors>, int lanes) {
            Vec best[kVectors], best_place[kVectors], row_place = splat(first_place);
            RG_UNROLL
            for (int v = 0; v < kVectors; ++v) best[v] = splat(-__builtin_inff()), best_place[v] = row_place;
            for (int64_t i = rows.begin; i < rows.end; ++i, row_place += splat(float(width))) {
                const T* pixel = x + i * x_row + columns.begin * channels + c;
                Vec place = row_place;
                for (int64_t j = columns.begin; j < columns.end; ++j, pixel += channels, place += splat(1)) {
                    RG_UNROLL
                    for (int v = 0; v < kVectors; ++v) {
                        const Vec value = load_first(pixel + v * kWidth, lanes);
                        // A NaN counts as larger than all numbers, and the first NaN of a window stays.
                        const auto keep = (value <= best[v]) | (best[v] != best[v]);
                        best_place[v] = keep ? best_place[v] : place;
                        best[v] = keep ? best[v] : value;
                    }
                }
            }
            RG_UNROLL
            for (int v = 0; v < kVectors; ++v) {
                store_first(y + to + c + v * kWidth, best[v], lanes);
                store_bytes(position + to + c + v * kWidth, best_place[v], lanes);
            }
        });
    }
}

/// Calls f(column, range of the windows that contain the column) for all columns of an image. A range may be empty.
template <class F>
inline __attribute__((always_inline)) void each_column(const PoolAxis& axis, F f) {
    IndexRange windows{0, 0};
    for (int64_t column = 0; column < axis.extent; ++column) {
        const int64_t padded = column + axis.pad;
        while (windows.end < axis.results && windows.end * axis.stride <= padded) ++windows.end;
        while (windows.begin * axis.stride + axis.window <= padded) ++windows.begin;
        f(column, windows);
    }
}

template <class T>
void max_pool_grad(const PoolImage& g, int64_t row, const T* dy, const uint8_t* position, T* dx) {
    const int64_t channels = g.c;
    const IndexRange over_row = windows_with(g.rows, row);
    each_column(g.columns, [&](int64_t column, IndexRange over_column) {
        T* const to = dx + (row * g.columns.extent + column) * channels;
        each_group(0, channels, [&]<int kVectors>(int64_t c, Count<kVectors>, int lanes) {
            Vec sum[kVectors] = {};
            for (int64_t p = over_row.begin; p < over_row.end; ++p)
                for (int64_t q = over_column.begin; q < over_column.end; ++q) {
                    const int64_t from = (p * g.columns.results + q) * channels + c;
                    const int64_t r = row + g.rows.pad - p * g.rows.stride;
                    const int64_t s = column + g.columns.pad - q * g.columns.stride;
                    const Vec zero{}, place = splat(float(r * g.columns.window + s));
                    RG_UNROLL
                    for (int v = 0; v < kVectors; ++v) {
                        const Vec grad = load_first(dy + from + v * kWidth, lanes);
                        sum[v] += load_bytes(position + from + v * kWidth, lanes) == place ? grad : zero;
                    }
                }
            RG_UNROLL
            for (int v = 0; v < kVectors; ++v) store_first(to + c + v * kWidth, sum[v], lanes);
        });
    });
}

/// Returns the factor by which average pooling multiplies the sum of the window in row p and column q of the result.
float share(const PoolImage& g, int64_t p, int64_t q) {
    if (g.count_pad) return 1 / float(g.rows.window * g.columns.window);
    const IndexRange rows = pixels_of(g.rows, p), columns = pixels_of(g.columns, q);
    return 1 / float((rows.end - rows.begin) * (columns.end - columns.begin));
}

template <class T>
void avg_pool(const PoolImage& g, int64_t row, const T* x, T* y) {
    const IndexRange rows = pixels_of(g.rows, row);
    T* to = y + row * g.columns.results * g.c;
    for (int64_t q = 0; q < g.columns.results; ++q, to += g.c) {
        const IndexRange columns = pixels_of(g.columns, q);
        const float scale = share(g, row, q);
        each_group(0, g.c, [&]<int kVectors>(int64_t c, Count<kVectors>, int lanes) {
            // Sums row by row, since in a single sum of a large window the last values would lose their digits.
            Vec sum[kVectors] = {};
            for (int64_t i = rows.begin; i < rows.end; ++i) {
                Vec of_row[kVectors] = {};
                for (int64_t j = columns.begin; j < columns.end; ++j) {
                    RG_UNROLL
                    for (int v = 0; v < kVectors; ++v)
                        of_row[v] += load_first(x + (i * g.columns.extent + j) * g.c + c + v * kWidth, lanes);
                }
                RG_UNROLL
                for (int v = 0; v < kVectors; ++v) sum[v] += of_row[v];
            }
            RG_UNROLL
            for (int v = 0; v < kVectors; ++v) store_first(to + c + v * kWidth, sum[v] * splat(scale), lanes);
        });
    }
}

template <class T>
void avg_pool_grad(const PoolImage& g, int64_t row, const T* dy, T* dx) {
    const IndexRange over_row = windows_with(g.rows, row);
    each_column(g.columns, [&](int64_t column, IndexRange over_column) {
        T* const to = dx + (row * g.columns.extent + column) * g.c;
        each_group(0, g.c, [&]<int kVectors>(int64_t c, Count<kVectors>, int lanes) {
            Vec sum[kVectors] = {};
            for (int64_t p = over_row.begin; p < over_row.end; ++p)
                for (int64_t q = over_column.begin; q < over_column.end; ++q) {
                    const T* const from = dy + (p * g.columns.results + q) * g.c + c;
                    const Vec scale = splat(share(g, p, q));
                    RG_UNROLL
                    for (int v = 0; v < kVectors; ++v) sum[v] += scale * load_first(from + v * kWidth, lanes);
                }
            RG_UNROLL
            for (int v = 0; v < kVectors; ++v) store_first(to + c + v * kWidth, sum[v], lanes);
        });
    });
}

} // namespace

extern const ElementKernels kElements;
#define RG_STORED(T)                                                                                                   \
    {                                                                                                                  \
        channel_sums<T>, affine<T>, affine_sum<T>, norm_sums<T>, norm_grad<T>, activation<T>, activation_grad<T>,      \
            add<T>, binary<T>, binary_repeated<T>, max_pool<T>, max_pool_grad<T>, avg_pool<T>, avg_pool_grad<T>        \
    }
const ElementKernels kElements{
    RG_STORED(float),         RG_STORED(uint16_t),     sgdm, adam, first_non_finite, sum_of_squares,
    convert<uint16_t, float>, convert<float, uint16_t>};
#undef RG_STORED

} // namespace rg::cpu::RG_ISA
