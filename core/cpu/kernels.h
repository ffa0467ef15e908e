// Declares the kernels that are compiled once per instruction set, and the table of pointers to them (IsaKernels).
// isa.h chooses the table that the process uses.
//
// Brackets contain the extents of an array, outermost first. The letters stand for n images, h x w pixels, c input and
// k output channels, p x q result pixels, filters of r x s pixels.
//
// A kernel runs in one thread, on plain pointers. It processes a part of the work, such as an image or a series of
// elements. The callers (conv.cpp, norm.cpp and so on) handle threads, shapes and memory.
#pragma once

#include "core/ops/activation.h"

#include <stdint.h>

// Do not include headers that contain code here; simd.h says why.

namespace rg::cpu {

/// A convolution of one zero-padded image. A tap is one value of a filter. A run is a series of taps that multiply
/// contiguous values of the image: a filter row, or if columns are dilated, one pixel of a filter row. Distances are in
/// floats.
struct ConvImage {
    int64_t p, q, k;          // extents of the result, or of the part of it that a call computes
    int64_t runs, taps;       // number of runs in a filter, and of taps in a run
    const int64_t* run_start; // [runs]: distance in the image from the start of a window to the start of each run
    int64_t row, step;        // distances in the image between the windows of vertical, and of horizontal neighbours
    int64_t y_row = 0, y_step = 0; // forward only: distances in the result between vertical, and horizontal neighbours
};

/// Limits of a result, which hold for none, ReLU or ReLU6. A NaN stays NaN.
struct Limits {
    float least = -__builtin_inff(), most = __builtin_inff();
};
/// Says where a convolution writes its results, and what it does to them first.
template <class T> // float, or uint16_t for the bits of bf16
struct ConvResult {
    T* y;
    const float* bias; // one value per output channel, in whole vectors
    Limits limits = {};
    bool past_cache = false; // true: whole cache lines of y are stored past the caches, by stream_store() of simd.h
    /// Returns the part that begins at index `value` of y and channel `channel` of the bias. Always inline, since
    /// kernels must not call functions that other files define (simd.h).
    [[gnu::always_inline]] ConvResult at(int64_t value, int64_t channel) const {
        return {y + value, bias + channel, limits, past_cache};
    }
};

struct ConvKernels {
    /// Computes y[p q k] = bias + sum over all taps of image * filter. pack_filters() (conv_engine.h) makes `packed`.
    void (*forward)(const ConvImage&, const float* padded, const float* packed, const ConvResult<float>&);
    /// Adds the weight gradient: dw[runs taps k] += sum over result pixels of image * dy[p q k]. k is a multiple of the
    /// vector width.
    void (*wgrad)(const ConvImage&, const float* padded, const float* dy, float* dw);
};

/// Winograd convolution F(4x4, 3x3); winograd_isa.cpp explains it and its matrices. The result consists of tiles of 4 x
/// 4 pixels. A transformed tile or filter has 36 components. In the arguments v, z, u and du of WinogradKernels, all
/// values of one component form an array: [tiles padded_c] in v, [tiles padded_k] in z. `component` and `*_component`
/// are the distances from the start of one such array to the next. All distances are in floats.
struct WinogradImage {
    int64_t across; // number of tiles in a row of tiles
    int64_t c, k;   // number of input and output channels; with groups, those of the groups that are computed together
    int64_t padded_c, padded_k; // c and k, rounded up to whole vectors
    int64_t x_row, x_pixel;     // distances between neighbouring rows and pixels of a tile, in the image
    int64_t y_row, y_pixel;     // the same distances in the result
};
/// The inputs of a row of tiles that lie in the image: rows [top, bottom) and columns [left, right), counted from the
/// first of the 6 x 6 inputs of the first tile. The other inputs are padding.
struct WinogradWindow {
    int64_t top, bottom, left, right;
};
constexpr int64_t kComponents = 36;

struct WinogradKernels {
    /// Transforms the 6 x 6 inputs d of each tile of a row: v = B^T d B. x points to the first input of the first tile.
    /// Pixels outside the window are not read, and count as zero.
    void (*input)(const WinogradImage&, const WinogradWindow&, const float* x, float* v, int64_t component);
    /// Transforms the gradient of the results of a row of tiles: z = A dy A^T, the adjoint of output(). dy has
    /// `rows` rows of `columns` pixels; beyond them, the gradient counts as zero.
    void (*gradient)(const WinogradImage&, int64_t rows, int64_t columns, const float* dy, float* z, int64_t component);
    /// Computes the matrix products m = v u of all components, for `lanes` output channels (one or two vectors).
    /// m is [tiles][36][lanes], u is [36][c][lanes].
    void (*multiply)(const WinogradImage&, const float* v, int64_t v_component, int64_t tiles, const float* u,
                     int lanes, float* m);
    /// Computes the results of a row of tiles, y = A^T m A + bias, for the first `channels` of `lanes` output channels.
    /// y and bias point to the first of these channels. Writes no more than `rows` rows of `columns` pixels of y.
    void (*output)(const WinogradImage&, int64_t rows, int64_t columns, const float* m, int lanes, int channels,
                   const ConvResult<float>&);
    /// Computes du [36][c][padded_k] += v^T z for each component, with v from input() and z from gradient().
    void (*accumulate)(const WinogradImage&, const float* v, const float* z, int64_t v_component, int64_t z_component,
                       int64_t tiles, float* du);
    /// Transforms as many filters as a vector has lanes, g[r * 3 + s][lane]: u = G g G^T.
    void (*filter)(const float* g, float* u, int64_t component);
    /// Computes g = G^T u G, the adjoint of filter().
    void (*filter_gradient)(const float* u, int64_t component, float* g);
};

/// The windows of pooling along one axis of an image.
struct PoolAxis {
    int64_t extent, results; // numbers of pixels and of windows
    int64_t window, stride, pad;
};
struct PoolImage {
    PoolAxis rows, columns;
    int64_t c;
    bool count_pad; // true: averages divide by the window's area; false: by the part of it inside the image
};

/// Kernels for values that are stored as T: float, or uint16_t for the bits of bf16. Arithmetic and per-channel
/// arguments are f32. `count` values are contiguous. For kernels with a `period`, the first value is of channel 0, and
/// the channel of a value is its index modulo the number of channels. Per-channel arguments have `period` values, a
/// common multiple of channels and vector width. So any number of channels runs at full width. PerChannel (channels.h)
/// makes such arguments.
template <class T>
struct StoredKernels {
    /// Computes sum += x - shift and squares += (x - shift)^2, each [period].
    void (*channel_sums)(const T* x, int64_t count, int64_t period, const float* shift, float* sum, float* squares);
    /// Computes y, the activation of x * scale + shift. Set past_cache for a y that is too large to stay in the caches.
    /// Then stores bypass the caches, if y is aligned to whole vectors and stream_store() (simd.h) can do so.
    void (*affine)(const T* x, T* y, int64_t count, int64_t period, const float* scale, const float* shift,
                   Activation activation, bool past_cache);
    /// Computes y, the activation of a * scale_a + b * scale_b + shift.
    void (*affine_sum)(const T* a, const T* b, T* y, int64_t count, int64_t period, const float* scale_a,
                       const float* scale_b, const float* shift, Activation activation, bool past_cache);
    /// Computes products += g * (x - mean) and gradients += g, each [period]. g is dy times the derivative of
    /// the activation at x * scale + shift. Then dbeta of a channel is the sum of its `gradients`, and dgamma
    /// that of its `products`, divided by sqrt(variance + epsilon).
    void (*norm_sums)(const T* dy, const T* x, int64_t count, int64_t period, const float* scale, const float* shift,
                      const float* mean, Activation activation, float* products, float* gradients);
    /// Computes dx = a * g + b * x + d, with g as in norm_sums.
    void (*norm_grad)(const T* dy, const T* x, T* dx, int64_t count, int64_t period, const float* scale,
                      const float* shift, const float* a, const float* b, const float* d, Activation activation,
                      bool past_cache);

    void (*activation)(const T* x, T* y, int64_t count, Activation activation, bool past_cache);
    /// Computes dx = dy * derivative of the activation. `from` is x or y, as in RG_ACTIVATIONS.
    void (*activation_grad)(const T* dy, const T* from, T* dx, int64_t count, Activation activation, bool past_cache);
    void (*add)(const T* a, const T* b, T* y, int64_t count);
    void (*binary)(const T* a, const T* b, T* y, int64_t count, Binary kind, bool past_cache);
    /// Takes b from `period` values, which repeat.
    void (*binary_repeated)(const T* a, const float* b, T* y, int64_t count, int64_t period, Binary kind,
                            bool past_cache);
    /// Computes row `row` of the result y of max pooling the image x. `position` gets the place of each maximum in its
    /// window: row in the window * width of the window + column in the window.
    void (*max_pool)(const PoolImage&, int64_t row, const T* x, T* y, uint8_t* position);
    /// Computes row `row` of the image's gradient dx from the gradient dy of its max pooling.
    void (*max_pool_grad)(const PoolImage&, int64_t row, const T* dy, const uint8_t* position, T* dx);
    /// Computes row `row` of the result y of average pooling the image x.
    void (*avg_pool)(const PoolImage&, int64_t row, const T* x, T* y);
    /// Computes row `row` of the image's gradient dx from the gradient dy of its average pooling.
    void (*avg_pool_grad)(const PoolImage&, int64_t row, const T* dy, T* dx);
};

/// Factors of one optimizer step, for SGD and Adam. A null pointer means that all factors are 1.
struct UpdateFactors {
    float clip;                  // multiplies all gradients
    const float *rates, *decays; // one per parameter: multiply the learning rate and the weight decay
    UpdateFactors at(int64_t begin) const {
        return {clip, rates ? rates + begin : nullptr, decays ? decays + begin : nullptr};
    }
};
/// Constants of one step of SGD.
struct SgdmStep {
    float lr, momentum, decay;
    bool nesterov;
};
/// Constants of one Adam step: m = m_keep * m + m_part * g, v = v_keep * v + v_part * g^2 and
/// p -= rate * m / (sqrt(v) * unbias + epsilon). Here p is the parameter and g its gradient plus decay * p. If
/// `decoupled`, g is the gradient alone, and p -= decay * p comes first. UpdateFactors apply in addition.
struct AdamStep {
    float decay, m_keep, m_part, v_keep, v_part, rate, unbias, epsilon;
    bool decoupled;
};

struct ElementKernels {
    StoredKernels<float> f32;
    StoredKernels<uint16_t> bf16;
    void (*sgdm)(float* p, float* v, const float* g, int64_t count, const SgdmStep& step, const UpdateFactors& factors);
    void (*adam)(float* p, float* m, float* v, const float* g, int64_t count, const AdamStep& step,
                 const UpdateFactors& factors);
    /// Returns the index of the first NaN or infinity, or `count` if there is none.
    int64_t (*first_non_finite)(const float* x, int64_t count);
    /// Returns the sum of the squares.
    float (*sum_of_squares)(const float* x, int64_t count);
    void (*widen)(const uint16_t* x, float* y, int64_t count);
    void (*narrow)(const float* x, uint16_t* y, int64_t count); // rounds to nearest, ties to even
};

/// Layer norm of `rows` rows of c values, see norm_isa.cpp. Values are stored as in StoredKernels.
template <class T>
struct RowNormKernels {
    void (*forward)(const T* x, T* y, int64_t rows, int64_t c, const float* gamma, const float* beta, float epsilon);
    /// Computes dx, and adds the gradients of gamma and beta to dgamma [c] and dbeta [c].
    void (*backward)(const T* dy, const T* x, T* dx, int64_t rows, int64_t c, const float* gamma, float epsilon,
                     float* dgamma, float* dbeta);
};
struct NormKernels {
    RowNormKernels<float> f32;
    RowNormKernels<uint16_t> bf16;
};

constexpr int kTileSide = 16;                         // rows in a tile; f32 values, or pairs of bf16, in a row
constexpr int64_t kTileRun = 32;                      // bf16 values in a row of a tile
constexpr int64_t kTileValues = kTileSide * kTileRun; // bf16 values in a tile

/// A convolution of `images` images by tiles; see tiles_isa.cpp. A tile of results has TileKernels::pixels pixels of 16
/// channels. Values are bf16, or f32 as the sum of a high and a low bf16. For f32, images and filters have two
/// planes, high and low. The result is then the sum of the products high * high, high * low and low * high.
struct TileConv {
    int64_t k, r;        // number of filters, and of rows in a filter
    int64_t pairs;       // number of pairs of taps in a filter row; if a tap is left over, a zero completes its pair
    int64_t runs;        // number of runs of 16 pairs in a filter row; in the filters, zeros complete the last run
    int64_t row, step;   // values from a padded row to the next, and from a window to that of the next pixel in the row
    int64_t tiles;       // number of tiles of pixels in an image
    const int32_t* from; // [tiles]: index of the first value of the window of each tile's first pixel
    const int32_t* to;   // [tiles][pixels]: index of the output pixel of each row of a tile; -1 means none
    int64_t low = 0, low_w;     // f32: values from the high plane to the low plane, in the images and in the filters
    int64_t k_begin = 0, k_end; // the call computes filters [k_begin, k_end): multiples of 32, but k_end may be k
    int64_t images = 1;
    int64_t image = 0, y_image = 0; // values from one padded image to the next, and from one result to the next
};
/// The weight gradient of `images` images by tiles; see tiles_isa.cpp. x is the padded input, rearranged: it has
/// one part, called copy, for each pair of a remainder (filter row modulo stride) and a filter column. A copy contains
/// the pixels that the taps of these filter rows and this column multiply, in the order of the result pixels. For f32,
/// x and dy have two planes; see TileConv. With few channels, the taps of a filter row count as channels, and s is 1.
struct TileGradient {
    int64_t images, r, s, stride;
    int64_t padded_c, padded_k; // number of channels and of filters, rounded up to multiples of 16
    int64_t runs;               // number of runs of 32 result pixels in an image
    int64_t filter_step;        // values of dy from one filter to the next
    int64_t row;                // values of x from one row of pixels to the next
    int64_t copy;               // values of x from one copy to the next
    int64_t block, image;       // values of x from one tile of 16 channels to the next, and from one image to the next
    int64_t low_x, low_dy;      // values from the high plane to the low plane; 0: there is one plane
    int64_t columns;            // padded_c / 16 * s * r: number of taps times tiles of 16 channels
    bool add;                   // true: adds to the sums; false: overwrites them
};

/// The most columns of the weight gradient that a call of TileKernels::accumulate computes. A column is a tap of 16
/// channels.
constexpr int kTileColumns = 6;

struct TileKernels {
    int pixels; // number of pixels in a tile
    /// Convolve padded images. The filters are packed as
    /// [pairs of tiles of 16 filters][r][runs][1 or 2 tiles][16 pairs of taps][16 filters][2]. forward_f32 is null if
    /// three products of bf16 take longer than the multiply-adds of f32 with this instruction set. `stats` is null if
    /// no statistics are needed, else [images][3][channels], with the channels rounded up to a multiple of 16: the
    /// first pixel's value (shift), the sum of the deviations from `shift`, and the sum of their squares. These are
    /// statistics of the values without limits.
    void (*forward)(const TileConv&, const uint16_t* padded, const uint16_t* packed, const ConvResult<uint16_t>&,
                    float* stats);
    void (*forward_f32)(const TileConv&, const uint16_t* padded, const uint16_t* packed, const ConvResult<float>&,
                        float* stats);
    /// Transposes `count` filters of up to 32 taps, `step` values apart, to out [32 taps][16 filters]. Zeros take the
    /// place of missing filters. Rows of `out` from `taps` on become zero or stay unchanged, so clear `out` first.
    void (*transpose_taps)(const float* filters, int64_t step, int64_t count, int64_t taps, float* out);
    /// Packs taps [32][16 filters], times scale [16], as `forward` expects a tile: the high parts and, unless `low` is
    /// null, the low parts.
    void (*pack)(const float* taps, const float* scale, uint16_t* high, uint16_t* low);
    /// Splits x into the sum of two bf16, high + low. The relative error is at most 2^-17, except near the limits of
    /// the range of f32.
    void (*split)(const float* x, int64_t count, uint16_t* high, uint16_t* low);
    /// Transposes pixels [count c] to out [c, rounded up to tiles of 16][filter_step]. Zeros extend the `count` values
    /// of a channel to a multiple of 32.
    void (*transpose)(const uint16_t* pixels, int64_t count, int64_t c, uint16_t* out, int64_t filter_step);
    /// Copies `count` pixels of c values, `step` values apart, to out [tiles of 16 channels][pairs of pixels][16][2].
    /// The tiles of `out` begin `block` values apart. Zeros follow the last pixel until there are `pairs` pairs.
    void (*interleave)(const uint16_t* pixels, int64_t count, int64_t step, int64_t c, int64_t pairs, uint16_t* out,
                       int64_t block);
    /// Computes sums [padded_k][r s][padded_c] over all pixels of dy times x, where transpose() made dy and
    /// interleave() made x. Computes only filters [k, k + filters) and up to kTileColumns columns from `column` on. k
    /// and `filters` are multiples of 16. The index of a column is (tile of channels * s + filter column) * r + filter
    /// row.
    void (*accumulate)(const TileGradient&, int64_t k, int64_t filters, int64_t column, const uint16_t* dy,
                       const uint16_t* x, float* sums);
};

/// A fully connected layer with c inputs and k outputs, y [n k] = x [n c] w [k c]^T + bias [k]; see dense_isa.cpp.
struct DenseKernels {
    /// Computes the outputs [first, end) of y [n k].
    void (*forward)(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* x, const float* w,
                    const float* bias, float* y);
    /// Compute the columns [first, end) of dx [n c] (dgrad), or of dw [k c] (wgrad).
    void (*dgrad)(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* dy, const float* w,
                  float* dx);
    void (*wgrad)(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* dy, const float* x,
                  float* dw);
};

/// Values that `taps` neighbouring taps of a filter row multiply, for the first result of a DepthwiseRow.
struct DepthwiseSource {
    const float* x; // the value of the first tap
    int64_t w;      // index of the first tap in the filters, or in their gradient
};
/// Results at equal distances in a row of a depthwise convolution, which use the same taps. Distances are in floats.
struct DepthwiseRow {
    int64_t q, c;                   // number of results, and of channels
    int64_t rows, taps;             // number of sources, and of taps in each: 1, 3 or 5
    const DepthwiseSource* sources; // [rows]
    int64_t step, y_step;           // from one result to the next: in x, and in y
    int64_t tap_step, w_step;       // from one tap of a source to the next: in x, and in the filters
    /// The numbers of pixels that the taps of the first and of the last result would read beyond the borders of x. If
    /// one is not 0, `step` is `tap_step`. DepthwiseSource::x is the first value that is not beyond the border.
    int64_t left = 0, right = 0;
};
/// Filters and their gradient have whole vectors of channels.
struct DepthwiseKernels {
    /// Computes y = bias + sum over taps of w * x.
    void (*forward)(const DepthwiseRow&, const float* w, const ConvResult<float>&);
    /// Adds the weight gradient to dw, which has the layout of w. dy has that of y.
    void (*wgrad)(const DepthwiseRow&, const float* dy, float* dw);
};

struct IsaKernels {
    const char* name;
    int width; // number of floats in a vector
    const ConvKernels* conv;
    const WinogradKernels* winograd;
    const ElementKernels* elements;
    const DenseKernels* dense;
    const DepthwiseKernels* depthwise;
    const NormKernels* norm;
    const TileKernels* tiles = nullptr; // convolution by products of bf16; null if the set has no instructions for them
};

} // namespace rg::cpu
