// The kernels that are compiled once per instruction set, behind one table that is chosen at start.
//
// They work on one image or one run of elements, in one thread, on plain pointers; threading, packing and shapes are
// the callers' (conv.cpp, norm.cpp, ...). All tensors f32.
#pragma once

#include <stdint.h>

// No other headers: see simd.h.

namespace rg::cpu {

/// A convolution of one zero-padded image. Taps are the s*c values of one filter row: contiguous in the image, too.
struct ConvImage {
    int64_t p, q, k; // extents of the result
    int64_t r, taps; // filter rows; filter columns times channels
    int64_t row;     // floats from one padded row to the next
    int64_t stride;  // padded rows from one result row to the next
    int64_t step;    // floats from one output pixel's window to the next
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
    /// m = v * u per component, for `lanes` output channels (one or two vectors): m [36][tiles][lanes], u [36][c][lanes].
    void (*multiply)(const WinogradImage&, const float* v, int64_t v_component, int64_t tiles, const float* u, int lanes,
                     float* m, int64_t m_component);
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
/// channels runs at full width. Counts need not be multiples of anything; runs start at channel 0.
struct ElementKernels {
    /// sum += x - shift, squares += (x - shift)^2, each [period].
    void (*channel_sums)(const float* x, int64_t count, int64_t period, const float* shift, float* sum, float* squares);
    /// y = x * scale + shift, then ReLU if asked. past_cache: y is too large to be found in cache again.
    void (*affine)(const float* x, float* y, int64_t count, int64_t period, const float* scale, const float* shift,
                   bool relu, bool past_cache);
    /// With g = dy, or 0 where x * scale + shift <= 0 if relu: dbeta += g, dgamma += g * (x - mean), each [period].
    void (*norm_sums)(const float* dy, const float* x, int64_t count, int64_t period, const float* scale,
                      const float* shift, const float* mean, bool relu, float* dbeta, float* dgamma);
    /// dx = a * g + b * x + d, g as above.
    void (*norm_grad)(const float* dy, const float* x, float* dx, int64_t count, int64_t period, const float* scale,
                      const float* shift, const float* a, const float* b, const float* d, bool relu, bool past_cache);

    void (*relu)(const float* x, float* y, int64_t count);
    void (*relu_grad)(const float* dy, const float* y, float* dx, int64_t count);
    void (*add)(const float* a, const float* b, float* y, int64_t count);
    void (*sgdm)(float* p, float* v, const float* g, int64_t count, float lr, float momentum, float decay, bool nesterov);
    /// One output pixel of max pooling: y = the largest of window x window vectors of channels, at = its position.
    void (*max_window)(const float* x, int64_t row, int64_t window, int64_t channels, float* y, uint8_t* at);
    /// Its gradient: dx += dy at the position.
    void (*max_window_grad)(const float* dy, const uint8_t* at, int64_t row, int64_t window, int64_t channels, float* dx);
    /// The same for averages: y = scale * sum, dx += scale * dy.
    void (*sum_window)(const float* x, int64_t row, int64_t window, int64_t channels, float scale, float* y);
    void (*sum_window_grad)(const float* dy, int64_t row, int64_t window, int64_t channels, float scale, float* dx);
};

struct IsaKernels {
    const char* name;
    int width; // floats in a vector
    const ConvKernels* conv;
    const WinogradKernels* winograd;
    const ElementKernels* elements;
};

/// Whether this processor, operating system and build run the instruction set of that name.
bool supports(const char* name);

/// The table in use: the best that this processor runs, or what RG_ISA (portable, avx2, avx512) asks for.
/// Throws when RG_ISA names something unknown or something that this processor lacks.
const IsaKernels& isa();

} // namespace rg::cpu
