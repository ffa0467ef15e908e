// Convolution on tiles: the engine for images and the gradient of the filters, around the kernels of tiles_isa.cpp.
//
// T is what images are stored as: uint16_t for the bits of bf16, or float. The tiles multiply bf16; a float is the sum
// of two, and an image or a filter then has two planes, high parts and low parts. The filters' gradient is for bf16
// alone: its operands would have to be laid out twice, which costs more than multiply-adds.
#pragma once

#include "core/cpu/conv_engine.h"

namespace rg::cpu {

/// Rows of a tile, and its columns of f32.
constexpr int64_t kTileSide = 16;

/// Planes of bf16 that a T takes.
template <class T>
constexpr int64_t kPlanes = std::is_same_v<T, float> ? 2 : 1;

/// How an image is convolved.
enum class Method : uint8_t { direct, winograd, tiles };

/// The quickest for images of T: bf16 by tiles where there are any; else by an estimate of the time.
template <class T>
Method method_for(const Padding& padding, int64_t p, int64_t q, int64_t stride, const Filters& filters);

/// Filters as the tiles take them: see TileKernels::forward.
template <class T>
class TilePack {
public:
    explicit TilePack(const Filters& f);
    const uint16_t* data() const { return packed_; }
    int64_t plane() const { return plane_; }

private:
    int64_t plane_; // values
    Scratch<uint16_t> packed_;
};

/// A padded image with zeros behind it, in planes.
template <class T>
class TileImage {
public:
    TileImage(const Padding& padding, int64_t slack);
    void copy(const Images<T>& images, int64_t n);
    const uint16_t* data() const { return values_; }
    static int64_t plane(const Padding& padding, int64_t slack) { return padding.values() + slack; }

private:
    const Padding& padding_;
    int64_t slack_;
    Scratch<uint16_t> values_;
    Scratch<float> whole_;
};

/// Convolves images [h w c] into [p q k].
template <class T>
class TileEngine {
public:
    using Image = TileImage<T>;
    using Result = T;
    TileEngine(const Padding& padding, int64_t p, int64_t q, int64_t stride, const Filters& filters)
        : TileEngine(padding, p, q, stride, filters, {q, 1}, joined_pixels(filters, q, stride, kTileSide)) {}
    /// pixels: joined, of results that lie side by side.
    TileEngine(const Padding& padding, int64_t p, int64_t q, int64_t stride, const Filters& filters, Spread out,
               int64_t pixels = 1);

    /// y [p q k] of image n; bias in whole tiles. stats: null, or where the sums of the result go.
    void run(const Images<T>& x, int64_t n, const float* bias, bool relu, T* y, StatsCollector* stats) const;
    int64_t images_at_once() const { return 1; }
    void run(const Images<T>& x, int64_t n, int64_t, const float* bias, T* y) const {
        run(x, n, bias, false, y, nullptr);
    }
    /// The same from a padded image, from some value of it on.
    void convolve(const Image& padded, int64_t from, const float* bias, T* y) const;
    /// Values beyond a padded image that are read, by a tile of pixels and a run of taps.
    int64_t slack() const;

private:
    /// Row by row, or all windows of the padded image in one run, whichever takes fewer tiles.
    void place_tiles(int64_t p, int64_t q, int64_t stride, int64_t run_row, Spread out);
    void forward(const uint16_t* padded, const TileResult<T>& to) const;

    JoinedFilters joined_;
    Padding padding_;
    TilePack<T> filters_;
    Scratch<int32_t> from_, to_;
    TileConv g_;
};

/// Calls f with the engine for the data gradient of a convolution with filters w: dy [p q k], as images of In, to
/// dx [h w c]. to_bf16: operands are rounded to bf16.
template <class In, class F>
void with_gradient_engine(const Tensor& w, bool to_bf16, int64_t stride, int64_t pad, const Shape& dy, const Shape& dx,
                          F f) {
    const int64_t p = dy[1], q = dy[2], k = dy[3], height = dx[1], width = dx[2], r = w.extent(1), s = w.extent(2);
    if (stride == 2) {
        // Of the four parts, the largest decides.
        const int64_t rows = (r + 1) / 2, columns = (s + 1) / 2, h = (height + 1) / 2, v = (width + 1) / 2;
        const Padding padding{p, q, k, h + rows - 1, v + columns - 1, 0, 0, 1};
        const Filters part{nullptr, dx[3], rows, columns, k, 0, 0, 0, 0};
        if (method_for<In>(padding, h, v, 1, part) == Method::tiles)
            return f(EverySecond<TileEngine<In>>(w, pad, p, q, height, width, to_bf16));
        return f(EverySecond<Direct>(w, pad, p, q, height, width, to_bf16));
    }
    const Padding padding{p, q, k, height + r - 1, width + s - 1, r - 1 - pad, s - 1 - pad, stride};
    Filters turned = turned_filters_of(w);
    turned.to_bf16 = to_bf16;
    switch (method_for<In>(padding, height, width, 1, turned)) {
    case Method::tiles: return f(TileEngine<In>(padding, height, width, 1, turned));
    case Method::winograd: return f(Winograd(padding, height, width, dx[3], turned));
    case Method::direct: return f(Direct(padding, height, width, 1, turned));
    }
}

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
