// Convolution by tiles of bf16: the engine that convolves images, and the weight gradient. Both call the kernels of
// tiles_isa.cpp, which explains the tiles.
//
// T is the type that images are stored as: uint16_t for the bits of bf16, or float. The tiles multiply bf16. A float is
// split into the sum of two bf16, so a float image or filter has two planes, for high and low parts.
#pragma once

#include "core/cpu/conv_engine.h"
#include "core/cpu/winograd.h"

namespace rg::cpu {

/// Number of bf16 planes for values of type T.
template <class T>
constexpr int64_t kPlanes = std::is_same_v<T, float> ? 2 : 1;

/// The ways to convolve an image.
enum class Method : uint8_t { direct, winograd, tiles };

/// Returns true if Winograd in f32, where it is applicable, takes less time than products of bf16 for k filters of c
/// channels. This is so with AVX512-BF16 while the transformed filters fit the cache, but never with AMX. On a Zen 5,
/// Winograd then computes 1.05 to 1.4 times as many results in the same time. isa().tiles must not be null.
inline bool winograd_beats_bf16(int64_t k, int64_t c) {
    return !isa().tiles->forward_f32 && !Winograd::exceeds_cache(k, c);
}

// The choice between tiles and f32 arithmetic for f32 images compares estimates of the cycles per image. Their factors
// are fitted to measurements with AMX: 3 x 3 and 5 x 5 filters, 8 x 8 to 32 x 32 pixels, 1 to 128 channels.

/// Returns the estimated cycles of `products` products of two tiles of f32. Each consists of three products of tiles of
/// bf16, which take 24 cycles each.
inline double tile_cycles(int64_t products) { return 3 * 24 * double(products); }
/// Returns the estimated cycles of multiply-adds of f32 in register tiles. A core executes at most 32 of them per
/// cycle; the factor 1.3 is fitted.
inline double direct_cycles(int64_t multiply_adds) { return 1.3 * double(multiply_adds) / 32; }
/// Returns true if tiles should be chosen. Two hardware threads of a core share one tile unit, so the estimate for
/// tiles must be below 80 % of the other.
inline bool tiles_win(double tiles, double others) { return tiles < 0.8 * others; }

/// Returns the method that should be fastest for images of type T. bf16 images use tiles if the instruction set has
/// them, unless the filters are dilated or in groups, or Winograd is faster. For float images, the function compares
/// estimates of the time, and never chooses tiles in strict_fp32. Filters in groups come here only if Winograd is
/// applicable; see conv_groups.h.
template <class T>
Method method_for(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& filters);

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
    /// `pixels` is the number of result pixels per row of a tile (see WidenedFilters). If it exceeds 1, the results
    /// must be contiguous.
    TileEngine(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& filters, ResultStride out,
               int64_t pixels = 1);

    /// Computes y [count p q k] of images [first, first + count). The bias comes from PaddedBias. A share consists of
    /// tiles of pixels or of filters. If `stats` is not null, adds the values before ReLU to it; then `share` must be
    /// the default, the whole work.
    void run(const Images<T>& x, int64_t first, int64_t count, const ConvResult<T>& to, Share share = {},
             StatsCollector* stats = nullptr) const;
    /// Returns the number of images per call of run(). A call with several images reads filters that exceed the cache
    /// only once.
    int64_t images_at_once() const { return plane_ * kPlanes<T> < kFiltersInCache ? 1 : 4; }
    /// Does the same as run() for `count` images that are already padded. The first window of the first image begins at
    /// index `from` of `padded`. In y, the results of neighbouring images are y_image values apart.
    void convolve(const Image& padded, int64_t from, int64_t count, const ConvResult<T>& to, int64_t y_image) const;
    /// Returns the number of values that the engine may read beyond a padded image: a tile of pixels and a run of taps.
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

    WidenedFilters widened_;
    Padding padding_;
    int64_t y_image_;                // values in a result [p q k]
    int64_t plane_;                  // values in a plane of the packed filters
    PreparedArray<uint16_t> packed_; // filters in the layout that TileKernels::forward (kernels.h) expects
    Scratch<int32_t> from_, to_;
    TileConv g_;
};

/// Sums the weight gradient over images by tiles. Has the interface of F32Wgrad (conv_grad.cpp). The functions for
/// Winograd's transformed sums, transformed() and end(), do nothing here. If the weight gradient is large compared with
/// all images, sums per part of the mini-batch would cost more time than the products. Then add() only packs the
/// images, and combine() multiplies all of them at once.
template <class T>
class TileWgrad {
public:
    /// Uses only the extents of `filters`.
    TileWgrad(const Padding& padding, int64_t images, int64_t p, int64_t q, const Filters& filters, int64_t stride);

    int64_t images_at_once() const { return images_at_once_; }
    /// Returns the number of values in the sums of a part of the mini-batch: [k_step][r s][c_step] of TileGradient
    /// (kernels.h). Returns 0 if combine() multiplies all images.
    int64_t sums() const { return all_at_end() ? 0 : all_sums(); }
    /// Adds the products of images [first, first + count) of x with dy [count p q k] to `sums`, or only packs the
    /// images for combine(). The last parameter is that of F32Wgrad for transformed sums, and is not used.
    void add(const Images<T>& x, int64_t first, int64_t count, const T* dy, float* sums, float*) const;
    int64_t transformed() const { return 0; }
    void end(float*, const float*) const {}
    /// Computes dw [k r s c]. Each of `parts` parts of the mini-batch has its own sums; those of the next part begin
    /// `step` values later. Adds them all to those of the first part. If add() has only packed the images, multiplies
    /// the packed images instead.
    void combine(int64_t parts, float* sums, int64_t step, const Tensor& dw) const;
    /// Returns an estimate of the cycles per image for T = float; see tile_cycles().
    double cycles() const;

private:
    TileGradient geometry(int64_t s);
    /// Returns true if add() only packs the images, and combine() multiplies them all.
    bool all_at_end() const { return !g_.add; }
    int64_t all_sums() const { return g_.r * g_.s * g_.c_step * g_.k_step; }
    int64_t packed_x() const { return kPlanes<T> * g_.c_step / kTileSide * g_.block; }
    int64_t packed_dy() const { return kPlanes<T> * g_.k_step * g_.line; }
    /// Packs image n of x and its dy as image `to` of `pairs` and dyt.
    void pack(const Images<T>& x, int64_t n, const T* dy, int64_t to, uint16_t* pairs, uint16_t* dyt) const;
    /// Fills copy number i of x (see TileGradient) from a plane of a padded image.
    void pack_copy(const uint16_t* plane, int64_t i, uint16_t* copy) const;
    void transpose_dy(const uint16_t* dy, uint16_t* dyt) const;
    void multiply_all(const Tensor& dw) const;
    void copy_to(const float* sums, const Tensor& dw) const;

    Padding padding_;
    int64_t p_, q_, k_, r_, stride_, images_;
    int64_t c_, images_at_once_, columns_; // channels in a copy of x; images per add(); q, rounded up to an even number
    int64_t remainders_;                   // number of remainders of filter rows modulo stride
    TileGradient g_;                       // initialised after the members above, since geometry() sets some of them
    Scratch<uint16_t> pairs_, dyt_;        // if all_at_end(): packed x and dy of all images
};

} // namespace rg::cpu
