// The kernels that are compiled once per instruction set, behind one table that is chosen at start.
//
// They work on one image or one run of elements, in one thread, on plain pointers; threading, packing and shapes are
// the callers' (conv.cpp, norm.cpp, ...).
#pragma once

#include <stdint.h>

// No other headers: see simd.h.

namespace rg::cpu {

/// A convolution of one zero-padded image. Taps are the s*c values of one filter row: contiguous in the image, too.
struct ConvImage {
    int64_t p, q, k;       // extents of the result
    int64_t r, taps;       // filter rows; filter columns times channels
    int64_t row;           // floats from one padded row to the next
    int64_t stride;        // padded rows from one result row to the next
    int64_t step;          // floats from one output pixel's window to the next
    int64_t y_row, y_step; // forward: floats from one row of the result, and from one pixel, to the next
};

struct ConvKernels {
    /// y[p q k] = bias + sum over r, taps of image * filter, for filters packed as FilterPack says (conv.cpp).
    void (*forward)(const ConvImage&, const float* padded, const float* packed, const float* bias, float* y);
    /// dw[r taps k] += image * dy[p q k]; k is a multiple of the width.
    void (*wgrad)(const ConvImage&, const float* padded, const float* dy, float* dw);
};

/// Winograd convolution F(4x4, 3x3), see winograd_isa.cpp. An image falls into tiles of 4 x 4 results; a tile has 36
/// components, each [tiles c_step] or [tiles k_step] with `component` floats from one to the next.
struct WinogradImage {
    int64_t p, q;           // extents of the result
    int64_t across, down;   // tiles
    int64_t c, k;           // channels in and out
    int64_t c_step, k_step; // the same, rounded up to whole vectors
    int64_t row;            // floats from one padded row to the next
};
constexpr int64_t kComponents = 36;

struct WinogradKernels {
    /// v = B^T d B of the padded image's tiles.
    void (*input)(const WinogradImage&, const float* padded, float* v, int64_t component);
    /// z = A dy A^T: what the output transform makes of the gradient of an image [p q k].
    void (*gradient)(const WinogradImage&, const float* dy, float* z, int64_t component);
    /// m = v * u per component, for `lanes` output channels (one or two vectors): m [36][tiles][lanes], u
    /// [36][c][lanes].
    void (*multiply)(const WinogradImage&, const float* v, int64_t v_component, int64_t tiles, const float* u,
                     int lanes, float* m, int64_t m_component);
    /// y [p q k] = A^T m A + bias, for the first `channels` of `lanes` output channels; y and bias point at them.
    void (*output)(const WinogradImage&, const float* m, int64_t component, int lanes, int channels, const float* bias,
                   float* y);
    /// du [36][c][k_step] += v^T z per component, each with its own component stride.
    void (*accumulate)(const WinogradImage&, const float* v, const float* z, int64_t v_component, int64_t z_component,
                       int64_t tiles, float* du);
    /// u = G g G^T for one vector of filters: g[r * 3 + s][width] -> u, `component` floats from one to the next.
    void (*filter)(const float* g, float* u, int64_t component);
    /// g = G^T u G, the same backwards.
    void (*filter_gradient)(const float* u, int64_t component, float* g);
};

/// Work on runs of values whose channel is their position modulo the number of channels. Per-channel arguments are
/// expanded to `period` values, a common multiple of channels and width (see PerChannel), so that any number of
/// channels runs at full width. Counts need not be multiples of anything; runs start at channel 0. Values are stored
/// as T: float, or uint16_t for the bits of bf16; arithmetic and per-channel arguments are f32.
template <class T>
struct StoredKernels {
    /// sum += x - shift, squares += (x - shift)^2, each [period].
    void (*channel_sums)(const T* x, int64_t count, int64_t period, const float* shift, float* sum, float* squares);
    /// y = x * scale + shift, then ReLU if asked. past_cache: y is too large to be found in cache again.
    void (*affine)(const T* x, T* y, int64_t count, int64_t period, const float* scale, const float* shift, bool relu,
                   bool past_cache);
    /// y = a * scale_a + b * scale_b + shift, then ReLU if asked.
    void (*affine_sum)(const T* a, const T* b, T* y, int64_t count, int64_t period, const float* scale_a,
                       const float* scale_b, const float* shift, bool relu, bool past_cache);
    /// With g = dy, or 0 where x * scale + shift <= 0 if relu: dbeta += g, dgamma += g * (x - mean), each [period].
    void (*norm_sums)(const T* dy, const T* x, int64_t count, int64_t period, const float* scale, const float* shift,
                      const float* mean, bool relu, float* dbeta, float* dgamma);
    /// dx = a * g + b * x + d, g as above.
    void (*norm_grad)(const T* dy, const T* x, T* dx, int64_t count, int64_t period, const float* scale,
                      const float* shift, const float* a, const float* b, const float* d, bool relu, bool past_cache);

    void (*relu)(const T* x, T* y, int64_t count);
    void (*relu_grad)(const T* dy, const T* y, T* dx, int64_t count);
    void (*add)(const T* a, const T* b, T* y, int64_t count);
    /// One output pixel of max pooling: y = the largest of window x window vectors of channels, at = its position.
    void (*max_window)(const T* x, int64_t row, int64_t window, int64_t channels, T* y, uint8_t* at);
    /// Its gradient: dx += dy at the position.
    void (*max_window_grad)(const T* dy, const uint8_t* at, int64_t row, int64_t window, int64_t channels, T* dx);
    /// The same for averages: y = scale * sum, dx += scale * dy.
    void (*sum_window)(const T* x, int64_t row, int64_t window, int64_t channels, float scale, T* y);
    void (*sum_window_grad)(const T* dy, int64_t row, int64_t window, int64_t channels, float scale, T* dx);
};

/// A step of Adam, ready for use: the moments move by their parts of the gradient and its square, and
/// p -= rate * m / (sqrt(v) * unbias + epsilon).
struct AdamStep {
    float decay, m_part, v_keep, v_part, rate, unbias, epsilon;
};

struct ElementKernels {
    StoredKernels<float> f32;
    StoredKernels<uint16_t> bf16;
    void (*sgdm)(float* p, float* v, const float* g, int64_t count, float lr, float momentum, float decay,
                 bool nesterov);
    void (*adam)(float* p, float* m, float* v, const float* g, int64_t count, const AdamStep& step);
    /// Where the first NaN or infinity is; count: there is none.
    int64_t (*first_non_finite)(const float* x, int64_t count);
    void (*widen)(const uint16_t* x, float* y, int64_t count);
    void (*narrow)(const float* x, uint16_t* y, int64_t count); // to nearest even
};

/// A convolution by tiles of 16 pixels; see tiles_isa.cpp. Extents count values; rows and steps as in ConvImage.
/// Values are bf16, or f32 as the sum of two bf16: then images and filters have two planes, and of the four products
/// those with a high part are added up.
struct TileConv {
    int64_t k, r;        // filters, filter rows
    int64_t runs;        // of 32 taps in a filter row, the last filled up with zero filters
    int64_t row, step;   // values from one padded row to the next, from one output pixel's window to the next
    int64_t tiles;       // of an image
    const int32_t* from; // [tiles]: where the window of a tile's first pixel begins
    const int32_t* to;   // [tiles][16]: the output pixels; -1: none
    int64_t low, low_w;  // from the plane of high parts to that of low parts: of the image, of the filters
};
template <class T> // float, or uint16_t for the bits of bf16
struct TileResult {
    T* y;              // [p q k]
    const float* bias; // [k], in whole tiles
    bool relu;
    /// Null, or per channel, in whole tiles: the first pixel's value, and sums of deviations from it and their squares.
    float *shift, *sum, *squares;
};
/// The filters' gradient of `images` images. x lies there once for each (row of taps modulo stride, column of taps):
/// the pixels that this tap meets, by result pixel.
struct TileGradient {
    int64_t images, r, s, stride;
    int64_t c_step, k_step; // channels and filters in whole tiles
    int64_t runs;           // of 32 result pixels of an image
    int64_t line;           // values of dy from one filter to the next
    int64_t row;            // values of x from one row of pixels to the next
    int64_t copy;           // from one copy to the next
    int64_t block, image;   // from one tile of channels to the next, from one image to the next
};

struct TileKernels {
    /// packed: [tiles of k in pairs][r][runs][1 or 2 tiles][16 pairs of taps][16 filters][2].
    void (*forward)(const TileConv&, const uint16_t* padded, const uint16_t* packed, const TileResult<uint16_t>&);
    void (*forward_f32)(const TileConv&, const uint16_t* padded, const uint16_t* packed, const TileResult<float>&);
    /// x = high + low, but for 2^-17 of it.
    void (*split)(const float* x, int64_t count, uint16_t* high, uint16_t* low);
    /// [count c] -> [c in whole tiles][line], zeros from count to a multiple of 32.
    void (*transpose)(const uint16_t* pixels, int64_t count, int64_t c, uint16_t* out, int64_t line);
    /// `count` pixels of c values, `step` apart -> [tiles of c][pairs][16][2], `block` values from one tile to the
    /// next; zeros beyond the last pixel.
    void (*interleave)(const uint16_t* pixels, int64_t count, int64_t step, int64_t c, int64_t pairs, uint16_t* out,
                       int64_t block);
    /// acc [r s k_step c_step] += over all pixels dy, transposed, times x, interleaved.
    void (*accumulate)(const TileGradient&, const uint16_t* dy, const uint16_t* x, float* acc);
};

/// A fully connected layer, y [n k] = x [n c] w [k c]^T; see dense_isa.cpp.
struct DenseKernels {
    void (*forward)(int64_t n, int64_t c, int64_t k, const float* x, const float* w, const float* bias, float* y);
    /// Inputs [first, end) of dx [n c] and of dw [k c].
    void (*data)(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* dy, const float* w,
                 float* dx);
    void (*filters)(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* dy, const float* x,
                    float* dw);
};

struct IsaKernels {
    const char* name;
    int width; // floats in a vector
    const ConvKernels* conv;
    const WinogradKernels* winograd;
    const ElementKernels* elements;
    const DenseKernels* dense;
    const TileKernels* tiles = nullptr; // bf16 convolution; null: there are no tiles
};

/// Whether this processor, operating system and build run the instruction set of that name.
bool supports(const char* name);

/// The table in use: the best that this processor runs, or what RG_ISA (portable, avx2, avx512, amx) asks for.
/// Throws when RG_ISA names something unknown or something that this processor lacks.
const IsaKernels& isa();

/// Why something better was not chosen, if the processor has it but the operating system refuses it; else empty.
const char* isa_note();

} // namespace rg::cpu
