// Convolution by tiles of bf16: the engine that convolves images, and the weight gradient. Both call the kernels of
// tiles_isa.cpp, which explains the tiles.
//
// T is the type that images are stored as: uint16_t for the bits of bf16, or float. The tiles multiply bf16. A float is
// split into the sum of two bf16, so a float image or filter has two planes, for high and low parts.
#pragma once

#include "core/cpu/conv_engine.h"

namespace rg::cpu {

/// Number of bf16 planes for values of type T.
template <class T>
constexpr int64_t kPlanes = std::is_same_v<T, float> ? 2 : 1;

/// How tiles of pixels cover all windows of an image: row by row, or through the padding columns into the next row.
struct TileCover {
    int64_t tiles;
    int64_t row_step; // windows from one row to the next, with those in the padding columns; 0: row by row
};
/// Returns the cover of p rows of q windows that needs fewer tiles; if both need as many, the one through the padding.
/// One row of a tile holds `pixels` neighbouring windows.
TileCover cover_of(const Padding& padding, int64_t p, int64_t q, PerAxis stride, int64_t pixels);

/// Returns the extents of the weight gradient by tiles. Uses only the extents of `filters`. `planes` is kPlanes<T>.
TileGradient tile_gradient(const Padding& padding, int64_t images, int64_t p, int64_t q, const Filters& filters,
                           int64_t stride, int64_t planes);

/// Holds images [first, first + count) as bf16, padded: one plane, or with T = float the high and the low plane.
/// `slack` zeros follow each image, since a tile reads beyond it: zeros of the filters times a NaN of the next image
/// would be NaN.
template <class T>
class TileImages {
public:
    TileImages(const Padding& padding, int64_t slack, const Images<T>& images, int64_t first, int64_t count);
    const uint16_t* data() const { return values_; }

private:
    Scratch<uint16_t> values_;
};

/// The engine that convolves images [h w c] to results [p q k] by tiles.
template <class T>
class TileEngine {
public:
    using Image = TileImages<T>;
    using Result = T;
    TileEngine(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& filters)
        : TileEngine(padding, p, q, stride, filters, {q, 1}, pixels_per_vector(filters, q, stride.w, kTileSide)) {}
    /// `pixels` is the number of result pixels per row of a tile (see MultiPixelFilters). If it exceeds 1, the results
    /// must be contiguous.
    TileEngine(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& filters, ResultStride out,
               int64_t pixels = 1);

    /// Computes y [count p q k] of images [first, first + count). The bias has bias_values(k) values. A share consists
    /// of tiles of pixels or of filters. If `stats` is not null, adds the values without limits to it; then `share`
    /// must be the default, the whole work.
    void run(const Images<T>& x, int64_t first, int64_t count, const ConvResult<T>& to, Share share = {},
             StatsCollector* stats = nullptr) const;
    /// Returns the number of images per call of run(). A call with several images reads filters that exceed the cache
    /// only once.
    int64_t images_at_once() const { return plane_ * kPlanes<T> < kFiltersInCache ? 1 : 4; }
    /// Does the same as run() for `count` images that are already padded. The first window of the first image begins at
    /// index `from` of `padded`. In y, the results of neighbouring images are y_image values apart.
    void convolve(const Image& padded, int64_t from, int64_t count, const ConvResult<T>& to, int64_t y_image) const;
    /// Returns the number of values that the engine may read beyond a padded image: a tile of pixels, and 32 values of
    /// a filter row.
    int64_t slack() const;

private:
    static constexpr int64_t kFiltersInCache = 512 << 10; // number of bf16 values of filters that the cache holds

    /// Packs the filters f into packed_.
    void pack(const Filters& f);
    /// Chooses the windows and results of each tile (from_ and to_). If row_step is 0, tiles cover each result
    /// row separately, else all windows of the padded image, with row_step windows from one row to the next.
    void place_tiles(int64_t p, int64_t q, int64_t stride, int64_t row_step, ResultStride out);
    void forward(const uint16_t* padded, int64_t count, int64_t y_image, const ConvResult<T>& to, Share share,
                 float* stats) const;

    MultiPixelFilters widened_;
    Padding padding_;
    int64_t y_image_;                // values in a result [p q k]
    int64_t plane_;                  // values in one plane (high or low parts) of the packed filters
    PreparedArray<uint16_t> packed_; // filters in the layout that TileKernels::forward (kernels.h) expects
    Scratch<int32_t> from_, to_;
    TileConv g_;
};

/// Sums the weight gradient over images by tiles. Has the interface of F32Wgrad (conv_grad.cpp). The functions for
/// Winograd's transformed sums, transformed_sums() and transform_sums(), do nothing here. If the weight gradient is
/// large compared with all images, sums per part of the mini-batch would cost more time than the products. Then add()
/// only packs the images, and combine() multiplies all of them at once.
template <class T>
class TileWgrad {
public:
    /// Uses only the extents of `filters`.
    TileWgrad(const Padding& padding, int64_t images, int64_t p, int64_t q, const Filters& filters, int64_t stride);

    int64_t images_at_once() const { return images_at_once_; }
    /// Returns the number of values in the sums of a part of the mini-batch: [padded_k][r s][padded_c] of TileGradient
    /// (kernels.h). Returns 0 if combine() multiplies all images.
    int64_t sums() const { return all_at_end() ? 0 : all_sums(); }
    /// Adds the products of images [first, first + count) of x with dy [count p q k] to `sums`, or only packs the
    /// images for combine(). The last parameter is that of F32Wgrad for transformed sums, and is not used.
    void add(const Images<T>& x, int64_t first, int64_t count, const T* dy, float* sums, float*) const;
    int64_t transformed_sums() const { return 0; }
    void transform_sums(float*, const float*) const {}
    /// Computes dw [k r s c]. Each of `parts` parts of the mini-batch has its own sums; those of the next part begin
    /// `step` values later. Adds them all to those of the first part. If add() has only packed the images, multiplies
    /// the packed images instead.
    void combine(int64_t parts, float* sums, int64_t step, const Tensor& dw) const;

private:
    /// Returns true if add() only packs the images, and combine() multiplies them all.
    bool all_at_end() const { return !g_.add; }
    int64_t all_sums() const { return g_.r * g_.s * g_.padded_c * g_.padded_k; }
    int64_t packed_x() const { return kPlanes<T> * g_.padded_c / kTileSide * g_.block; }
    int64_t packed_dy() const { return kPlanes<T> * g_.padded_k * g_.filter_step; }
    /// Packs image n of x and its dy as image `to` of `pairs` and dyt.
    void pack(const Images<T>& x, int64_t n, const T* dy, int64_t to, uint16_t* pairs, uint16_t* dyt) const;
    /// Fills copy number i of x (see TileGradient) from a plane of a padded image.
    void pack_copy(const uint16_t* plane, int64_t i, uint16_t* copy) const;
    void transpose_dy(const uint16_t* dy, uint16_t* dyt) const;
    void multiply_all(const Tensor& dw) const;
    void copy_to(const float* sums, const Tensor& dw) const;

    Padding padding_;
    int64_t p_, q_, k_, r_, stride_, images_;
    TileGradient g_;
    int64_t c_, images_at_once_, columns_; // channels in a copy of x; images per add(); q, rounded up to an even number
    Scratch<uint16_t> pairs_, dyt_;        // if all_at_end(): packed x and dy of all images
};

} // namespace rg::cpu
