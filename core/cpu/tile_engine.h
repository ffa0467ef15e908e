// bf16 convolution on tiles: the engine for images and the gradient of the filters, around the kernels of
// tiles_isa.cpp.
#pragma once

#include "core/cpu/conv_engine.h"

namespace rg::cpu {

/// Filters as the tiles take them, rounded to bf16: see TileKernels::forward.
class TilePack {
public:
    explicit TilePack(const Filters& f);
    const uint16_t* data() const { return packed_; }

private:
    Scratch<uint16_t> packed_;
};

/// Convolves images [h w c] into [p q k].
class TileEngine {
public:
    TileEngine(const Padding& padding, int64_t p, int64_t q, int64_t stride, const Filters& filters)
        : TileEngine(padding, p, q, stride, filters, {q, 1}) {}
    TileEngine(const Padding& padding, int64_t p, int64_t q, int64_t stride, const Filters& filters, Spread out);

    /// y [p q k] of image n; bias in whole tiles. stats: null, or where the sums of the result go.
    void run(const Images<uint16_t>& x, int64_t n, const float* bias, bool relu, uint16_t* y,
             StatsCollector* stats) const;
    void run(const Images<uint16_t>& x, int64_t n, int64_t, const float* bias, uint16_t* y) const {
        run(x, n, bias, false, y, nullptr);
    }
    void convolve(const uint16_t* padded, const float* bias, uint16_t* y) const;
    /// Values beyond a padded image that may be read, by a tile of pixels and a run of taps: they must be finite.
    int64_t slack() const;

private:
    /// Row by row, or all pixels of the padded image in one run, whichever takes fewer tiles.
    void place_tiles(int64_t p, int64_t q, int64_t stride, Spread out);

    Padding padding_;
    TilePack filters_;
    Scratch<int32_t> from_, to_;
    TileConv g_;
};

/// Sums the gradient of the filters over images.
class TileFilterGradient {
public:
    TileFilterGradient(const Padding& x_padding, int64_t p, int64_t q, int64_t k, int64_t r, int64_t s, int64_t stride);

    int64_t images_at_once() const { return batch_; }
    /// Values of the sums: [r s k c] in whole tiles of k and c.
    int64_t sums() const { return g_.r * g_.s * g_.c_step * g_.k_step; }
    /// sums += images first .. first + count of x times dy [count p q k].
    void add(const Images<uint16_t>& x, int64_t first, int64_t count, const uint16_t* dy, float* sums) const;
    /// dw [k r s c] = sums.
    void finish(const float* sums, const Tensor& dw) const;

private:
    Padding padding_;
    int64_t p_, q_, k_, r_, stride_;
    int64_t c_, batch_, columns_; // values of a pixel, images at once, pixels of a row: an even number
    TileGradient g_;
};

} // namespace rg::cpu
