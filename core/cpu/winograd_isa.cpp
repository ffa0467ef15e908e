// Winograd convolution F(4x4, 3x3): 36 multiplications for 16 results of a 3x3 filter instead of 144
// (Winograd, 1980; Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016).
//
//   y = A^T [ (G g G^T) . (B^T d B) ] A       d: 6x6 inputs, g: 3x3 filter, y: 4x4 results, .: products of elements
//
// A tile is a square of 4x4 results. Summed over the c input channels, for k output channels, the 36 products become 36
// independent matrix products [tiles c] x [c k]. The weight gradient is the adjoint and uses the same matrices:
// dg = G^T [ (A dy A^T) . (B^T d B) ] G.
//
// The interpolation points are 0, +-3/4, +-3/2 and infinity. With the usual points 0, +-1, +-2 and infinity, the
// rounding errors would be twice as large. For 64 channels of normally distributed values, the RMS error relative to
// the RMS result is 8e-7 instead of 1.7e-6. It is 4e-7 for direct convolution. All constants below are exact in binary,
// except kN0, kNb and kNa.
#include "core/cpu/register_tiles.h"

namespace rg::cpu::RG_ISA {

namespace {

constexpr float kB = 0.75f, kA = 1.5f, kB2 = kB * kB, kA2 = kA * kA;
constexpr float kN0 = 1 / (kA2 * kB2), kNb = 1 / (2 * kB2 * (kB2 - kA2)), kNa = 1 / (2 * kA2 * (kA2 - kB2));

// The next five functions multiply a vector by a matrix, in this order: B^T (6 to 6 values), A^T (6 to 4), A (4 to 6),
// G (3 to 6), G^T (6 to 3).

inline void transform_input_1d(const Vec (&d)[6], Vec (&v)[6]) {
    const Vec eb = d[4] - kA2 * d[2], ob = kB * (d[3] - kA2 * d[1]);
    const Vec ea = d[4] - kB2 * d[2], oa = kA * (d[3] - kB2 * d[1]);
    v[0] = kA2 * kB2 * d[0] + (d[4] - (kA2 + kB2) * d[2]);
    v[1] = eb + ob;
    v[2] = eb - ob;
    v[3] = ea + oa;
    v[4] = ea - oa;
    v[5] = kA2 * kB2 * d[1] + (d[5] - (kA2 + kB2) * d[3]);
}

inline void transform_output_1d(const Vec (&m)[6], Vec (&y)[4]) {
    const Vec sb = m[1] + m[2], db = m[1] - m[2], sa = m[3] + m[4], da = m[3] - m[4];
    y[0] = m[0] + sb + sa;
    y[1] = kB * db + kA * da;
    y[2] = kB2 * sb + kA2 * sa;
    y[3] = kB2 * kB * db + (kA2 * kA * da + m[5]);
}

inline void transform_gradient_1d(const Vec (&y)[4], Vec (&z)[6]) {
    const Vec eb = y[0] + kB2 * y[2], ob = kB * (y[1] + kB2 * y[3]);
    const Vec ea = y[0] + kA2 * y[2], oa = kA * (y[1] + kA2 * y[3]);
    z[0] = y[0];
    z[1] = eb + ob;
    z[2] = eb - ob;
    z[3] = ea + oa;
    z[4] = ea - oa;
    z[5] = y[3];
}

inline void transform_filter_1d(const Vec (&g)[3], Vec (&u)[6]) {
    const Vec eb = kNb * (g[0] + kB2 * g[2]), ob = kNb * kB * g[1];
    const Vec ea = kNa * (g[0] + kA2 * g[2]), oa = kNa * kA * g[1];
    u[0] = kN0 * g[0];
    u[1] = eb + ob;
    u[2] = eb - ob;
    u[3] = ea + oa;
    u[4] = ea - oa;
    u[5] = g[2];
}

inline void transform_filter_gradient_1d(const Vec (&u)[6], Vec (&g)[3]) {
    const Vec sb = kNb * (u[1] + u[2]), sa = kNa * (u[3] + u[4]);
    g[0] = kN0 * u[0] + sb + sa;
    g[1] = kNb * kB * (u[1] - u[2]) + kNa * kA * (u[3] - u[4]);
    g[2] = kB2 * sb + (kA2 * sa + u[5]);
}

/// Applies a one-dimensional transform (N to M values) to the columns of an N x N square of vectors, and then to the
/// rows. The result is an M x M square. get(i, j) returns the input in row i and column j, and put(i, j, v) stores a
/// result.
template <int N, int M, class Get, class Put>
inline __attribute__((always_inline)) void transform_2d(void (*transform)(const Vec (&)[N], Vec (&)[M]), Get get,
                                                        Put put) {
    Vec half[N][M];
    RG_UNROLL
    for (int j = 0; j < N; ++j) {
        Vec column[N];
        RG_UNROLL
        for (int i = 0; i < N; ++i) column[i] = get(i, j);
        transform(column, half[j]);
    }
    RG_UNROLL
    for (int i = 0; i < M; ++i) {
        Vec line[N], result[M];
        RG_UNROLL
        for (int j = 0; j < N; ++j) line[j] = half[j][i];
        transform(line, result);
        RG_UNROLL
        for (int j = 0; j < M; ++j) put(i, j, result[j]);
    }
}

// The transforms of a vector of channels of a tile are functions that are not inlined. If they were, then in the loop
// over tiles the compiler would keep 36 addresses in memory, and increment each of them for every tile. A tile is whole
// if all its pixels are inside the image, and it has a whole vector of channels.

/// Transforms a tile of x. Pixels outside the window are zero.
template <bool kWhole>
__attribute__((noinline)) void input_tile(const WinogradImage& g, const WinogradWindow& in, const float* x, int lanes,
                                          float* v, int64_t component) {
    transform_2d<6, 6>(
        transform_input_1d,
        [&](int r, int s) {
            const float* const from = x + r * g.x_row + s * g.x_pixel;
            if (kWhole) return load(from);
            const bool inside = in.top <= r && r < in.bottom && in.left <= s && s < in.right;
            return load_first(from, inside ? lanes : 0);
        },
        [&](int r, int s, Vec value) { store(v + (r * 6 + s) * component, value); });
}

/// Loads a cache line of each of 4 pixels in kRows rows into the cache. The processor itself prefetches only contiguous
/// memory, and the rows are far apart.
template <int kRows>
inline __attribute__((always_inline)) void prefetch(const float* first, int64_t row, int64_t pixel) {
    for (int r = 0; r < kRows; ++r)
        for (int s = 0; s < 4; ++s) __builtin_prefetch(first + r * row + s * pixel);
}

void input(const WinogradImage& g, const WinogradWindow& window, const float* x, float* v, int64_t component) {
    WinogradWindow in = window;
    for (int64_t j = 0; j < g.across; ++j, in.left -= 4, in.right -= 4, x += 4 * g.x_pixel, v += g.padded_c) {
        const bool inside = in.top <= 0 && in.bottom >= 6 && in.left <= 0 && in.right >= 6;
        for (int64_t c = 0; c < g.c; c += kWidth) {
            if (c % kLine == 0) prefetch<6>(x + 14 * g.x_pixel + c, g.x_row, g.x_pixel);
            const int lanes = lanes_at(c, g.c);
            (inside && lanes == kWidth ? input_tile<true> : input_tile<false>)(g, in, x + c, lanes, v + c, component);
        }
    }
}

/// Transforms a tile of dy. From the first pixel of the tile on, dy has `rows` rows of `columns` pixels. The tile uses
/// at most 4 rows of 4 pixels; where dy has fewer, the missing pixels count as zero.
template <bool kWhole>
__attribute__((noinline)) void gradient_tile(const WinogradImage& g, int64_t rows, int64_t columns, const float* dy,
                                             int lanes, float* z, int64_t component) {
    transform_2d<4, 6>(
        transform_gradient_1d,
        [&](int r, int s) {
            const float* const from = dy + r * g.y_row + s * g.y_pixel;
            return kWhole ? load(from) : load_first(from, r < rows && s < columns ? lanes : 0);
        },
        [&](int r, int s, Vec x) { store(z + (r * 6 + s) * component, x); });
}

void gradient(const WinogradImage& g, int64_t rows, int64_t columns, const float* dy, float* z, int64_t component) {
    for (int64_t j = 0; j < g.across; ++j, columns -= 4, dy += 4 * g.y_pixel, z += g.padded_k) {
        if (g.k < g.y_pixel) prefetch<4>(dy + 12 * g.y_pixel, g.y_row, g.y_pixel);
        for (int64_t k = 0; k < g.k; k += kWidth) {
            const int lanes = lanes_at(k, g.k);
            const bool whole = rows >= 4 && columns >= 4 && lanes == kWidth;
            (whole ? gradient_tile<true> : gradient_tile<false>)(g, rows, columns, dy + k, lanes, z + k, component);
        }
    }
}

/// Computes a tile of y from the products m [36][kLanes]. From the first pixel of the tile on, y has `rows` rows of
/// `columns` pixels, which may be more than the 4 of the tile.
template <int kLanes, bool kWhole>
__attribute__((noinline)) void output_tile(const WinogradImage& g, int64_t rows, int64_t columns, const float* m,
                                           int lanes, const ConvResult<float>& to) {
    const Vec bias = load(to.bias), least = splat(to.limits.least), most = splat(to.limits.most);
    transform_2d<6, 4>(
        transform_output_1d, [&](int r, int s) { return load(m + (r * 6 + s) * kLanes); },
        [&](int r, int s, Vec x) {
            float* const y = to.y + r * g.y_row + s * g.y_pixel;
            const Vec result = clamp(x + bias, least, most);
            if (kWhole)
                store(y, result);
            else if (r < rows && s < columns)
                store_first(y, result, lanes);
        });
}

template <int kLanes>
void output_row(const WinogradImage& g, int64_t rows, int64_t columns, const float* m, int channels,
                const ConvResult<float>& to) {
    for (int64_t j = 0; j < g.across; ++j, columns -= 4, m += kComponents * kLanes) {
        const ConvResult<float> results = to.at(4 * j * g.y_pixel, 0);
        if (channels < g.y_pixel) prefetch<4>(results.y + 12 * g.y_pixel, g.y_row, g.y_pixel);
        for (int k = 0; k < channels; k += kWidth) {
            const int lanes = lanes_at(k, channels);
            const bool whole = rows >= 4 && columns >= 4 && lanes == kWidth;
            (whole ? output_tile<kLanes, true> : output_tile<kLanes, false>)(g, rows, columns, m + k, lanes,
                                                                             results.at(k, k));
        }
    }
}

void output(const WinogradImage& g, int64_t rows, int64_t columns, const float* m, int lanes, int channels,
            const ConvResult<float>& to) {
    (lanes == kWidth ? output_row<kWidth> : output_row<2 * kWidth>)(g, rows, columns, m, channels, to);
}

template <int MR, int NV>
void product_tile(const WinogradImage& g, const float* v, const float* u, Prefetch ahead, float* m) {
    Vec acc[MR][NV] = {};
    const float* tile[MR < kBases ? MR : kBases];
    RG_UNROLL
    for (int i = 0; i < MR && i < kBases; ++i) tile[i] = v + i * g.padded_c;
    accumulate<MR, NV>(tile, kBases * g.padded_c, g.c, u, ahead, acc);
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int k = 0; k < NV; ++k) store(m + (i * kComponents * NV + k) * kWidth, acc[i][k]);
    }
}

using ProductTile = void (*)(const WinogradImage&, const float*, const float*, Prefetch, float*);

template <int NV, int MR = kLongest<NV>>
ProductTile product_tile_of(int64_t tiles) {
    if constexpr (MR > 1)
        if (tiles < MR) return product_tile_of<NV, MR - 1>(tiles);
    return product_tile<MR, NV>;
}

template <int NV>
void products(const WinogradImage& g, const float* v, int64_t v_component, int64_t tiles, const float* u, float* m) {
    const EvenParts parts(tiles, kLongest<NV>);
    const ProductTile product = product_tile_of<NV>(parts.shortest), longer = product_tile_of<NV>(parts.longest());
    for (int64_t i = 0; i < kComponents; ++i, v += v_component, u += g.c * NV * kWidth, m += NV * kWidth)
        for (int64_t part = 0, t = 0; part < parts.count; t += parts.length(part), ++part)
            (part < parts.longer ? longer : product)(g, v + t * g.padded_c, u,
                                                     prefetch_share<NV>(u, g.c, part, parts.count),
                                                     m + t * kComponents * NV * kWidth);
}

void multiply(const WinogradImage& g, const float* v, int64_t v_component, int64_t tiles, const float* u, int lanes,
              float* m) {
    (lanes == 2 * kWidth ? products<2> : products<1>)(g, v, v_component, tiles, u, m);
}

void accumulate_filters(const WinogradImage& g, const float* v, const float* z, int64_t v_component,
                        int64_t z_component, int64_t tiles, float* du) {
    const ConvImage row{.p = 1,
                        .q = tiles,
                        .k = g.padded_k,
                        .runs = 1,
                        .taps = g.c,
                        .run_start = nullptr,
                        .row = 0,
                        .step = g.padded_c};
    for (int64_t i = 0; i < kComponents; ++i, v += v_component, z += z_component, du += g.c * g.padded_k)
        for (int64_t k = 0; k < g.padded_k; k += 2 * kWidth) {
            const bool two = g.padded_k - k > kWidth;
            const EvenParts parts(g.c, two ? kTaps : 2 * kTaps);
            for (int64_t part = 0, c = 0; part < parts.count; c += parts.length(part), ++part) {
                const int64_t taps = parts.length(part);
                (two ? wgrad_tile_of<2>(taps) : wgrad_tile_of<1>(taps))(row, 1, v + c, z + k, du + c * g.padded_k + k);
            }
        }
}

void filter(const float* g, float* u, int64_t component) {
    transform_2d<3, 6>(
        transform_filter_1d, [&](int r, int s) { return load(g + (r * 3 + s) * kWidth); },
        [&](int r, int s, Vec x) { store(u + (r * 6 + s) * component, x); });
}

void filter_gradient(const float* u, int64_t component, float* g) {
    transform_2d<6, 3>(
        transform_filter_gradient_1d, [&](int r, int s) { return load(u + (r * 6 + s) * component); },
        [&](int r, int s, Vec x) { store(g + (r * 3 + s) * kWidth, x); });
}

} // namespace

extern const WinogradKernels kWinograd;
const WinogradKernels kWinograd{input, gradient, multiply, output, accumulate_filters, filter, filter_gradient};

} // namespace rg::cpu::RG_ISA
