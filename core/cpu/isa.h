// Declares the kernels that are compiled once per instruction set. The program chooses the table of one instruction set
// at the first call of isa().
//
// A kernel processes one image or one run of elements, in one thread, with plain pointers. The callers (conv.cpp,
// norm.cpp and so on) handle threads, packing and shapes.
#pragma once

#include "ringgrad/core/ops/activation.h"

#include <stdint.h>

// No headers that contain code: see simd.h.

namespace rg::cpu {

/// A convolution of one zero-padded image. A run consists of taps that multiply contiguous values of the image: all
/// taps of a filter row, or with dilated columns only those of one pixel. Distances are in floats.
struct ConvImage {
    int64_t p, q, k;          // extents of the result
    int64_t runs, taps;       // number of runs in a filter, and of taps in a run
    const int64_t* run_start; // [runs] in the image, from a window's first value to those of its runs
    int64_t row, step;        // in the image, from one result row's windows to the next, and from pixel to pixel
    int64_t y_row, y_step;    // forward: in the result, from one row to the next, and from pixel to pixel
};

struct ConvKernels {
    /// Computes y[p q k] = bias + sum over runs, taps of image * filter. FilterPack (conv_engine.h) makes `packed`.
    void (*forward)(const ConvImage&, const float* padded, const float* packed, const float* bias, float* y);
    /// Adds the weight gradient of the image: dw[runs taps k] += image * dy[p q k]. k is a multiple of the vector
    /// width.
    void (*wgrad)(const ConvImage&, const float* padded, const float* dy, float* dw);
};

/// Winograd convolution F(4x4, 3x3), see winograd_isa.cpp. An image consists of tiles of 4 x 4 results. A transformed
/// tile has 36 components. Each component is an array [tiles c_step] or [tiles k_step]. `component` is the number of
/// floats from the start of one array to the next.
struct WinogradImage {
    int64_t p, q;           // extents of the result
    int64_t across, down;   // number of tiles in a row, and of rows of tiles
    int64_t c, k;           // number of input and output channels
    int64_t c_step, k_step; // c and k, rounded up to whole vectors
    int64_t row;            // floats from one padded row to the next
};
constexpr int64_t kComponents = 36;

struct WinogradKernels {
    /// Transforms the tiles of a padded image: v = B^T d B.
    void (*input)(const WinogradImage&, const float* padded, float* v, int64_t component);
    /// Transforms the gradient of an image [p q k]: z = A dy A^T, the adjoint of the output transform.
    void (*gradient)(const WinogradImage&, const float* dy, float* z, int64_t component);
    /// Computes the matrix product m = v u of each component, for `lanes` output channels (one or two vectors).
    /// m is [36][tiles][lanes], u is [36][c][lanes].
    void (*multiply)(const WinogradImage&, const float* v, int64_t v_component, int64_t tiles, const float* u,
                     int lanes, float* m, int64_t m_component);
    /// Computes y [p q k] = A^T m A + bias for the first `channels` of `lanes` output channels. y and bias point to the
    /// first of these channels.
    void (*output)(const WinogradImage&, const float* m, int64_t component, int lanes, int channels, const float* bias,
                   float* y);
    /// Computes du [36][c][k_step] += v^T z for each component. v_component and z_component are the distances
    /// between the components of v and of z.
    void (*accumulate)(const WinogradImage&, const float* v, const float* z, int64_t v_component, int64_t z_component,
                       int64_t tiles, float* du);
    /// Transforms one vector of filters g[r * 3 + s][width]: u = G g G^T.
    void (*filter)(const float* g, float* u, int64_t component);
    /// Computes g = G^T u G, the adjoint of the filter transform.
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
    bool count_pad; // true: average pooling divides by the size of the window; false: by its pixels in the image
};

/// Kernels for runs of values that start at channel 0. The channel of a value is its index in the run modulo the number
/// of channels. Per-channel arguments have `period` values, a common multiple of channels and vector width (see
/// PerChannel), so that any number of channels runs at full width. `count` can be any number. Values are
/// stored as T: float, or uint16_t for the bits of bf16. Arithmetic and per-channel arguments are f32.
template <class T>
struct StoredKernels {
    /// Computes sum += x - shift and squares += (x - shift)^2, each [period].
    void (*channel_sums)(const T* x, int64_t count, int64_t period, const float* shift, float* sum, float* squares);
    /// Computes y = x * scale + shift, then ReLU if `relu`. With past_cache, the stores bypass the caches, for a y that
    /// is too large to stay in them.
    void (*affine)(const T* x, T* y, int64_t count, int64_t period, const float* scale, const float* shift, bool relu,
                   bool past_cache);
    /// Computes y = a * scale_a + b * scale_b + shift, then ReLU if `relu`.
    void (*affine_sum)(const T* a, const T* b, T* y, int64_t count, int64_t period, const float* scale_a,
                       const float* scale_b, const float* shift, bool relu, bool past_cache);
    /// Computes dbeta += g and dgamma += g * (x - mean), each [period]. g is dy; if `relu`, g is 0 where
    /// x * scale + shift <= 0.
    void (*norm_sums)(const T* dy, const T* x, int64_t count, int64_t period, const float* scale, const float* shift,
                      const float* mean, bool relu, float* dbeta, float* dgamma);
    /// Computes dx = a * g + b * x + d, with g as in norm_sums.
    void (*norm_grad)(const T* dy, const T* x, T* dx, int64_t count, int64_t period, const float* scale,
                      const float* shift, const float* a, const float* b, const float* d, bool relu, bool past_cache);

    void (*activation)(const T* x, T* y, int64_t count, Activation kind, float slope);
    /// Computes dx = dy * derivative; see ActivationGradOp.
    void (*activation_grad)(const T* dy, const T* from, T* dx, int64_t count, Activation kind, float slope);
    void (*add)(const T* a, const T* b, T* y, int64_t count);
    void (*sub)(const T* a, const T* b, T* y, int64_t count);
    void (*mul)(const T* a, const T* b, T* y, int64_t count);
    /// Computes row `row` of the result of max pooling, for an image x and its result y. `position` gets row * width +
    /// column of each maximum in its window.
    void (*max_pool)(const PoolImage&, int64_t row, const T* x, T* y, uint8_t* position);
    /// Computes row `row` of dx, for the gradient dy of an image's result.
    void (*max_pool_grad)(const PoolImage&, int64_t row, const T* dy, const uint8_t* position, T* dx);
    /// Do the same for average pooling.
    void (*avg_pool)(const PoolImage&, int64_t row, const T* x, T* y);
    void (*avg_pool_grad)(const PoolImage&, int64_t row, const T* dy, T* dx);
};

/// Holds the factors that all updates share: that of the gradients, and those of the learning rate and the weight
/// decay, one per parameter. A null pointer means that all are 1.
struct UpdateFactors {
    float clip;
    const float *rates, *decays;
    UpdateFactors at(int64_t begin) const {
        return {clip, rates ? rates + begin : nullptr, decays ? decays + begin : nullptr};
    }
};
/// Constants of one step of SGD.
struct SgdmStep {
    float lr, momentum, decay;
    bool nesterov;
};
/// Constants of one Adam step: m += m_part * (g - m), v = v_keep * v + v_part * g^2, with g the gradient after weight
/// decay, and p -= rate * m / (sqrt(v) * unbias + epsilon). If `decoupled`, p -= decay * p takes the place of the decay
/// of g.
struct AdamStep {
    float decay, m_part, v_keep, v_part, rate, unbias, epsilon;
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
    /// Computes dx, and adds to dgamma [c] and dbeta [c].
    void (*backward)(const T* dy, const T* x, T* dx, int64_t rows, int64_t c, const float* gamma, float epsilon,
                     float* dgamma, float* dbeta);
};
struct NormKernels {
    RowNormKernels<float> f32;
    RowNormKernels<uint16_t> bf16;
};

/// A convolution by tiles of 16 pixels; see tiles_isa.cpp. Values are bf16, or f32 as the sum of a high and a low bf16.
/// For f32, images and filters have two planes, high and low, and the result is the sum of three products of planes:
/// all but low times low.
struct TileConv {
    int64_t k, r;        // number of filters, and of rows in a filter
    int64_t runs;        // number of runs of 32 taps in a filter row; zeros fill the last run of the filters
    int64_t row, step;   // values from one padded row to the next, and from one output pixel's window to the next
    int64_t tiles;       // number of tiles in an image
    const int32_t* from; // [tiles]: first value of the window of each tile's first pixel
    const int32_t* to;   // [tiles][16]: the output pixel of each row of a tile; -1 means none
    int64_t low, low_w;  // values from the high plane to the low plane, in the image and in the filters
};
template <class T> // float, or uint16_t for the bits of bf16
struct TileResult {
    T* y;              // [p q k]
    const float* bias; // [k rounded up to whole tiles]
    bool relu;
    /// Null if no statistics are needed. Else one value for each channel, rounded up to whole tiles: the first pixel's
    /// value (shift), the sum of the deviations from it (sum), and the sum of their squares (squares).
    float *shift, *sum, *squares;
};
/// The weight gradient of `images` images. There is one copy of x for each remainder (filter row modulo stride) and
/// each filter column. A copy contains the pixels that the taps of these rows and this column multiply, in the order of
/// the result pixels.
struct TileGradient {
    int64_t images, r, s, stride;
    int64_t c_step, k_step; // number of channels and of filters, rounded up to whole tiles
    int64_t runs;           // number of runs of 32 result pixels in an image
    int64_t line;           // values of dy from one filter to the next
    int64_t row;            // values of x from one row of pixels to the next
    int64_t copy;           // values of x from one copy to the next
    int64_t block, image;   // values of x from one tile of channels to the next, and from one image to the next
};

struct TileKernels {
    /// Convolve a padded image. The filters are packed as
    /// [pairs of tiles of k][r][runs][1 or 2 tiles][16 pairs of taps][16 filters][2].
    void (*forward)(const TileConv&, const uint16_t* padded, const uint16_t* packed, const TileResult<uint16_t>&);
    void (*forward_f32)(const TileConv&, const uint16_t* padded, const uint16_t* packed, const TileResult<float>&);
    /// Splits x into high + low, with a relative error of at most 2^-17.
    void (*split)(const float* x, int64_t count, uint16_t* high, uint16_t* low);
    /// Transposes pixels [count c] to out [c rounded up to whole tiles][line]. Zeros fill each line from `count` to a
    /// multiple of 32.
    void (*transpose)(const uint16_t* pixels, int64_t count, int64_t c, uint16_t* out, int64_t line);
    /// Copies `count` pixels of c values, `step` values apart, to out [tiles of c][pairs][16][2], with `block` values
    /// from one tile to the next. Zeros follow the last pixel.
    void (*interleave)(const uint16_t* pixels, int64_t count, int64_t step, int64_t c, int64_t pairs, uint16_t* out,
                       int64_t block);
    /// Adds to acc [r s k_step c_step] the sum over all pixels of dy times x, where transpose() made dy and
    /// interleave() made x.
    void (*accumulate)(const TileGradient&, const uint16_t* dy, const uint16_t* x, float* acc);
};

/// A fully connected layer, y [n k] = x [n c] w [k c]^T + bias [k]; see dense_isa.cpp.
struct DenseKernels {
    void (*forward)(int64_t n, int64_t c, int64_t k, const float* x, const float* w, const float* bias, float* y);
    /// Compute the columns [first, end) of dx [n c], or of dw [k c]. A column belongs to one of the c inputs.
    void (*dgrad)(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* dy, const float* w,
                  float* dx);
    void (*wgrad)(int64_t n, int64_t c, int64_t k, int64_t first, int64_t end, const float* dy, const float* x,
                  float* dw);
};

/// A tap of a convolution in groups: where a row's first result finds its value in the image, and its filter values.
struct LaneTap {
    int64_t image, filter; // in floats
};
/// Neighbouring results of a convolution in groups, which use the same taps. The image has in lane i the value that
/// result channel i multiplies; see conv_groups.cpp. Distances are in floats.
struct LaneRow {
    int64_t q, lanes;     // number of results, and of channels in a result
    int64_t count;        // number of taps
    const LaneTap* taps;  // [count]
    int64_t step, y_step; // in the image and in the result, from one result to the next
};
/// The channels of a pixel that the lanes of a vector hold: lane i holds channel first + place[i].
struct LaneSources {
    int32_t first, reach; // `reach` exceeds all places
    int32_t place[16];
};
struct LaneKernels {
    /// Computes y = bias + sum over taps of w * image. The filter values of a tap, and the bias, fill whole vectors.
    void (*forward)(const LaneRow&, const float* image, const float* w, const float* bias, float* y);
    /// Adds the weight gradient to dw, which has the layout of w.
    void (*wgrad)(const LaneRow&, const float* image, const float* dy, float* dw);
    /// Copies channels of each pixel [channels] to the lanes of `count` floats.
    void (*spread)(const float* from, int64_t pixels, int64_t channels, const LaneSources*, int64_t count, float* to);
};

struct IsaKernels {
    const char* name;
    int width; // number of floats in a vector
    const ConvKernels* conv;
    const WinogradKernels* winograd;
    const ElementKernels* elements;
    const DenseKernels* dense;
    const LaneKernels* lanes;
    const NormKernels* norm;
    const TileKernels* tiles = nullptr; // convolution by AMX tiles; null without AMX
};

/// Returns true if this CPU, operating system and build support the instruction set of that name.
bool supports(const char* name);

/// Returns the table in use: that of the best instruction set that this CPU supports, or of the one that the
/// environment variable RG_ISA names (portable, avx2, avx512, amx). Throws Error if RG_ISA names one that is unknown or
/// unsupported.
const IsaKernels& isa();

/// Returns a text for the user if the operating system refuses the AMX tiles of this CPU, else an empty text.
const char* isa_note();

} // namespace rg::cpu
