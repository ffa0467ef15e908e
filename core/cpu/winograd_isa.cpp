// Winograd convolution F(4x4, 3x3): 36 multiplications for 16 results of a 3x3 filter instead of 144
// (Winograd, 1980; Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016).
//
//   y = A^T [ (G g G^T) . (B^T d B) ] A       d: 6x6 inputs, g: 3x3 filter, y: 4x4 results, .: products of elements
//
// Summed over the input channels, the 36 products are 36 independent matrix products [tiles c] x [c k]. The weight
// gradient is the adjoint and uses the same matrices: dg = G^T [ (A dy A^T) . (B^T d B) ] G.
//
// The interpolation points are 0, +-3/4, +-3/2 and infinity. With the usual points 0, +-1, +-2 the rounding errors
// would be twice as large: for 64 channels, the RMS error relative to the RMS result is 1.3e-6 instead of 6.5e-7. It is
// 2e-7 for direct convolution. All constants below are exact in binary, except kN0, kNb and kNa.
#include "ringgrad/core/cpu/tiles.h"

namespace rg::cpu::RG_ISA {

namespace {

constexpr float kB = 0.75f, kA = 1.5f, kB2 = kB * kB, kA2 = kA * kA;
constexpr float kN0 = 1 / (kA2 * kB2), kNb = 1 / (2 * kB2 * (kB2 - kA2)), kNa = 1 / (2 * kA2 * (kA2 - kB2));

// The one-dimensional transforms, in this order: B^T (6 to 6), A^T (6 to 4), A (4 to 6), G (3 to 6), G^T (6 to 3).

inline void input_1d(const Vec (&d)[6], Vec (&v)[6]) {
    const Vec eb = d[4] - kA2 * d[2], ob = kB * (d[3] - kA2 * d[1]);
    const Vec ea = d[4] - kB2 * d[2], oa = kA * (d[3] - kB2 * d[1]);
    v[0] = kA2 * kB2 * d[0] + (d[4] - (kA2 + kB2) * d[2]);
    v[1] = eb + ob;
    v[2] = eb - ob;
    v[3] = ea + oa;
    v[4] = ea - oa;
    v[5] = kA2 * kB2 * d[1] + (d[5] - (kA2 + kB2) * d[3]);
}

inline void output_1d(const Vec (&m)[6], Vec (&y)[4]) {
    const Vec sb = m[1] + m[2], db = m[1] - m[2], sa = m[3] + m[4], da = m[3] - m[4];
    y[0] = m[0] + sb + sa;
    y[1] = kB * db + kA * da;
    y[2] = kB2 * sb + kA2 * sa;
    y[3] = kB2 * kB * db + (kA2 * kA * da + m[5]);
}

inline void gradient_1d(const Vec (&y)[4], Vec (&z)[6]) {
    const Vec eb = y[0] + kB2 * y[2], ob = kB * (y[1] + kB2 * y[3]);
    const Vec ea = y[0] + kA2 * y[2], oa = kA * (y[1] + kA2 * y[3]);
    z[0] = y[0];
    z[1] = eb + ob;
    z[2] = eb - ob;
    z[3] = ea + oa;
    z[4] = ea - oa;
    z[5] = y[3];
}

inline void filter_1d(const Vec (&g)[3], Vec (&u)[6]) {
    const Vec eb = kNb * (g[0] + kB2 * g[2]), ob = kNb * kB * g[1];
    const Vec ea = kNa * (g[0] + kA2 * g[2]), oa = kNa * kA * g[1];
    u[0] = kN0 * g[0];
    u[1] = eb + ob;
    u[2] = eb - ob;
    u[3] = ea + oa;
    u[4] = ea - oa;
    u[5] = g[2];
}

inline void filter_gradient_1d(const Vec (&u)[6], Vec (&g)[3]) {
    const Vec sb = kNb * (u[1] + u[2]), sa = kNa * (u[3] + u[4]);
    g[0] = kN0 * u[0] + sb + sa;
    g[1] = kNb * kB * (u[1] - u[2]) + kNa * kA * (u[3] - u[4]);
    g[2] = kB2 * sb + (kA2 * sa + u[5]);
}

/// Applies a one-dimensional transform to the columns of an N x N square of vectors, and then to the rows, which gives
/// an M x M square. get(i, j) returns an input, and put(i, j, v) stores a result.
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

/// Returns the number of lanes in the vector that begins at channel i of n.
inline int lanes_at(int64_t i, int64_t n) { return int(n - i < kWidth ? n - i : kWidth); }
inline Vec load_lanes(const float* p, int lanes) { return lanes == kWidth ? load(p) : load_first(p, lanes); }

void input(const WinogradImage& g, const float* padded, float* v, int64_t component) {
    for (int64_t i = 0; i < g.down; ++i)
        for (int64_t j = 0; j < g.across; ++j, v += g.c_step) {
            const float* tile = padded + 4 * i * g.row + 4 * j * g.c;
            for (int64_t c = 0; c < g.c; c += kWidth) {
                const int lanes = lanes_at(c, g.c);
                transform_2d<6, 6>(
                    input_1d, [&](int r, int s) { return load_lanes(tile + r * g.row + s * g.c + c, lanes); },
                    [&](int r, int s, Vec x) { store(v + (r * 6 + s) * component + c, x); });
            }
        }
}

void gradient(const WinogradImage& g, const float* dy, float* z, int64_t component) {
    for (int64_t i = 0; i < g.down; ++i)
        for (int64_t j = 0; j < g.across; ++j, z += g.k_step)
            for (int64_t k = 0; k < g.k; k += kWidth) {
                const int lanes = lanes_at(k, g.k);
                transform_2d<4, 6>(
                    gradient_1d,
                    [&](int r, int s) {
                        const int64_t p = 4 * i + r, q = 4 * j + s;
                        return p < g.p && q < g.q ? load_lanes(dy + (p * g.q + q) * g.k + k, lanes) : Vec{};
                    },
                    [&](int r, int s, Vec x) { store(z + (r * 6 + s) * component + k, x); });
            }
}

void output(const WinogradImage& g, const float* m, int64_t component, int lanes, int channels, const float* bias,
            float* y) {
    for (int64_t i = 0; i < g.down; ++i)
        for (int64_t j = 0; j < g.across; ++j, m += lanes)
            for (int k = 0; k < channels; k += kWidth) {
                const Vec start = load(bias + k);
                const int valid = lanes_at(k, channels);
                transform_2d<6, 4>(
                    output_1d, [&](int r, int s) { return load(m + (r * 6 + s) * component + k); },
                    [&](int r, int s, Vec x) {
                        const int64_t p = 4 * i + r, q = 4 * j + s;
                        if (p >= g.p || q >= g.q) return;
                        float* const to = y + (p * g.q + q) * g.k + k;
                        valid == kWidth ? store(to, x + start) : store_first(to, x + start, valid);
                    });
            }
}

template <int MR, int NV>
void product_tile(const WinogradImage& g, const float* v, const float* u, float* m) {
    Vec acc[MR][NV] = {};
    accumulate<MR, NV>(v, g.c_step, g.c, u, acc);
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int k = 0; k < NV; ++k) store(m + (i * NV + k) * kWidth, acc[i][k]);
    }
}

template <int NV>
void product(const WinogradImage& g, const float* v, int64_t tiles, const float* u, float* m) {
    int64_t t = 0;
    for (; t + kPixels <= tiles; t += kPixels) product_tile<kPixels, NV>(g, v + t * g.c_step, u, m + t * NV * kWidth);
    for (; t < tiles; ++t) product_tile<1, NV>(g, v + t * g.c_step, u, m + t * NV * kWidth);
}

void multiply(const WinogradImage& g, const float* v, int64_t v_component, int64_t tiles, const float* u, int lanes,
              float* m, int64_t m_component) {
    for (int64_t i = 0; i < kComponents; ++i, v += v_component, u += g.c * lanes, m += m_component)
        (lanes == 2 * kWidth ? product<2> : product<1>)(g, v, tiles, u, m);
}

void accumulate_filters(const WinogradImage& g, const float* v, const float* z, int64_t v_component,
                        int64_t z_component, int64_t tiles, float* du) {
    const ConvImage row{1, tiles, g.k_step, 1, g.c, nullptr, 0, g.c_step, 0, 0};
    for (int64_t i = 0; i < kComponents; ++i, v += v_component, z += z_component, du += g.c * g.k_step)
        for (int64_t j = 0; j < g.c; j += kTaps) {
            const int64_t taps = g.c - j < kTaps ? g.c - j : kTaps;
            for (int64_t k = 0; k < g.k_step; k += 2 * kWidth) {
                const WgradTile tile = g.k_step - k > kWidth ? wgrad_tile_of<2>(taps) : wgrad_tile_of<1>(taps);
                tile(row, 1, v + j, z + k, du + j * g.k_step + k);
            }
        }
}

void filter(const float* g, float* u, int64_t component) {
    transform_2d<3, 6>(
        filter_1d, [&](int r, int s) { return load(g + (r * 3 + s) * kWidth); },
        [&](int r, int s, Vec x) { store(u + (r * 6 + s) * component, x); });
}

void filter_gradient(const float* u, int64_t component, float* g) {
    transform_2d<6, 3>(
        filter_gradient_1d, [&](int r, int s) { return load(u + (r * 6 + s) * component); },
        [&](int r, int s, Vec x) { store(g + (r * 3 + s) * kWidth, x); });
}

} // namespace

extern const WinogradKernels kWinograd;
const WinogradKernels kWinograd{input, gradient, multiply, output, accumulate_filters, filter, filter_gradient};

} // namespace rg::cpu::RG_ISA
