// 3x3 convolution with stride 1 by Winograd F(4x4, 3x3): forward, data gradient (a forward pass with rotated filters)
// and weight gradient. winograd_isa.cpp explains the mathematics, winograd.cpp the use of the caches.
#pragma once

#include "core/cpu/filters.h"
#include "core/cpu/kernels.h"
#include "core/cpu/padding.h"
#include "core/cpu/prepared_array.h"

namespace rg::cpu {

/// An engine (see conv_engine.h) that convolves with filters of 3 x 3 taps and stride 1. A result [p q k] has p rows, q
/// columns and k channels.
class Winograd {
public:
    using Result = float;
    /// Returns true if the engine can compute a convolution with these filters and this stride.
    static bool applicable(const Filters& filters, PerAxis stride);
    /// Returns the number of tiles of 4 x 4 results that cover results [p q].
    static int64_t tiles_of_image(int64_t p, int64_t q, PerAxis dilation);

    /// p and q are the extents of the result. Without values in `filters`, the engine computes weight gradients only.
    Winograd(const Padding& padding, int64_t p, int64_t q, const Filters& filters);

    /// Returns the number of images per call: enough for efficient products, but few enough for the cache.
    int64_t images_at_once() const { return images_at_once_; }
    /// Computes y [images p q k] = bias + filters * in, for images [first, first + images). `images` is at most
    /// images_at_once(). A share consists of rows of tiles, or of output channels.
    template <class T>
    void run(const Images<T>& in, int64_t first, int64_t images, const ConvResult<float>& to, Share share = {}) const;
    /// Adds the contribution of images [first, first + images) to the transformed weight gradient du, which has
    /// floats_of_gradient() floats. dy [images p q k] begins at image `first`.
    template <class T>
    void accumulate(const Images<T>& in, int64_t first, int64_t images, const float* dy, float* du) const;
    int64_t floats_of_gradient() const { return bundles_ * bundle_floats(); }
    /// Transforms du to dw [3 taps k], where taps = 3 * c / groups, and k is rounded up to whole vectors.
    void transform_gradient(const float* du, float* dw) const;

private:
    /// A row of tiles. With dilation d, neighbouring pixels of a tile are d pixels apart.
    struct TileRow {
        int64_t x, y;          // index of the first value in the images (it may lie in the padding), and in the results
        int64_t rows, columns; // numbers of results from the first one of the row of tiles to the end of the image
        WinogradWindow window; // the inputs that lie in the image
    };
    TileRow tile_row(int64_t i) const;
    int64_t tile_rows_of_image() const { return dilation_.h * dilation_.w * down_; }
    /// Returns the number of floats in the transformed filters of one of the bundles_.
    int64_t bundle_floats() const { return kComponents * g_.c * g_.padded_k; }
    void pack(const Filters& filters);
    /// Splits a share of the rows of tiles of all images into pieces of at most tile_rows_at_once_. Calls
    /// f(bundle, begin, end) for each piece, rows [begin, end), and each of the bundles_.
    template <class F>
    void for_each_tile_row_block(int64_t images, Share share, F f) const;

    Padding whole_;      // the input, without zeros around it
    int64_t top_, left_; // zeros above the image, and left of it
    PerAxis dilation_;
    int64_t p_, q_, down_;     // extents of the result; rows of tiles in one of dilation_.h * dilation_.w sub-images
    int64_t groups_, bundles_; // groups of channels; bundles of groups that are computed together (winograd.cpp)
    int64_t tile_rows_at_once_, images_at_once_; // most rows of tiles in a piece; images per call
    WinogradImage g_;                            // geometry of a bundle
    PreparedArray<float> u_; // transformed filters; per bundle: blocks [36][c][lanes] of up to 2 vectors of lanes
};

} // namespace rg::cpu
