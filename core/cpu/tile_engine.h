// Convolution by AMX tiles: the engine that convolves images, and the weight gradient. Both call the kernels of
// tiles_isa.cpp.
//
// T is the type that images are stored as: uint16_t for the bits of bf16, or float. The tiles multiply bf16. A float is
// split into the sum of two bf16, so a float image or filter has two planes, for high and low parts. The weight
// gradient is for bf16 only: for float, making the layouts of both planes of each operand would cost more than the
// tiles save.
#pragma once

#include "ringgrad/core/cpu/conv_engine.h"
#include "ringgrad/core/ops/conv.h"

namespace rg::cpu {

/// Number of rows in a tile, and also of f32 values in each row.
constexpr int64_t kTileSide = 16;

/// Number of bf16 planes for values of type T.
template <class T>
constexpr int64_t kPlanes = std::is_same_v<T, float> ? 2 : 1;

/// The ways to convolve an image.
enum class Method : uint8_t { direct, winograd, tiles };

/// Returns the method that should be fastest for images of T. With AMX, bf16 images use tiles, unless the filters are
/// dilated. For float images, the function compares estimates of the time.
template <class T>
Method method_for(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& filters);

/// Filters in the layout that TileKernels::forward expects.
template <class T>
class TilePack {
public:
    explicit TilePack(const Filters& f);
    const uint16_t* data() const { return packed_; }
    int64_t plane() const { return plane_; }

private:
    int64_t plane_; // number of values in a plane
    Scratch<uint16_t> packed_;
};

/// Holds the planes of a padded image, each with zeros after its end.
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

/// The engine that convolves images [h w c] to results [p q k] by tiles.
template <class T>
class TileEngine {
public:
    using Image = TileImage<T>;
    using Result = T;
    TileEngine(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& filters)
        : TileEngine(padding, p, q, stride, filters, {q, 1}, pixels_per_vector(filters, q, stride.w, kTileSide)) {}
    /// `pixels` is the number of results per row of a tile. If it exceeds 1, the results must be contiguous.
    TileEngine(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& filters, ResultStride out,
               int64_t pixels = 1);

    /// Computes y [p q k] of image n, with ReLU if `relu`. The bias fills whole tiles. Adds the values before ReLU to
    /// `stats`, unless that is null.
    void run(const Images<T>& x, int64_t n, const float* bias, bool relu, T* y, StatsCollector* stats) const;
    int64_t images_at_once() const { return 1; }
    void run(const Images<T>& x, int64_t n, int64_t, const float* bias, T* y) const {
        run(x, n, bias, false, y, nullptr);
    }
    /// Does the same with an image that is already padded, and that begins at value `from`.
    void convolve(const Image& padded, int64_t from, const float* bias, T* y) const;
    /// Returns the number of values after a padded image that the engine may read: a tile of pixels and a run of taps.
    int64_t slack() const;

private:
    /// Fills from_ and to_. Tiles cover either each row separately, or the whole padded image in one run, whichever
    /// takes fewer tiles.
    void place_tiles(int64_t p, int64_t q, int64_t stride, int64_t run_row, ResultStride out);
    void forward(const uint16_t* padded, const TileResult<T>& to) const;

    WidenedFilters widened_;
    Padding padding_;
    TilePack<T> filters_;
    Scratch<int32_t> from_, to_;
    TileConv g_;
};

/// Calls f with the engine for the data gradient of a convolution with filters w. The engine maps dy [p q k], stored as
/// In, to dx [h w c]. With to_bf16, the engine rounds the filters to bf16.
template <class In, class F>
void with_gradient_engine(const Tensor& w, bool to_bf16, const Conv& conv, const Shape& dy, const Shape& dx, F f) {
    const int64_t p = dy[1], q = dy[2], k = dy[3], height = dx[1], width = dx[2], r = w.extent(1), s = w.extent(2);
    if (conv.stride == 2 && conv.dilation == 1) {
        // The largest of the four parts determines the method.
        const int64_t rows = (r + 1) / 2, columns = (s + 1) / 2, h = (height + 1) / 2, v = (width + 1) / 2;
        const Padding padding{p, q, k, h + rows - 1, v + columns - 1, 0, 0, 1};
        const Filters part{nullptr, dx[3], rows, columns, k, 0, 0, 0, 0};
        if (method_for<In>(padding, h, v, 1, part) == Method::tiles)
            return f(Stride2Gradient<TileEngine<In>>(w, conv.pad, p, q, height, width, to_bf16));
        return f(Stride2Gradient<Direct>(w, conv.pad, p, q, height, width, to_bf16));
    }
    const int64_t below = (r - 1) * conv.dilation.h, right = (s - 1) * conv.dilation.w;
    const Padding padding{p, q, k, height + below, width + right, below - conv.pad.h, right - conv.pad.w, conv.stride};
    Filters rotated = rotated_filters_of(w, conv.dilation);
    rotated.to_bf16 = to_bf16;
    switch (method_for<In>(padding, height, width, 1, rotated)) {
    case Method::tiles: return f(TileEngine<In>(padding, height, width, 1, rotated));
    case Method::winograd: return f(Winograd(padding, height, width, dx[3], rotated));
    case Method::direct: return f(Direct(padding, height, width, 1, rotated));
    }
}

/// Sums the weight gradient over images by tiles. It has no transformed sums (see F32Wgrad in conv_grad.cpp).
class TileWgrad {
public:
    TileWgrad(const Padding& x_padding, int64_t p, int64_t q, int64_t k, int64_t r, int64_t s, int64_t stride);

    int64_t images_at_once() const { return batch_; }
    /// Returns the number of values in the sums [r s k c], with k and c rounded up to whole tiles.
    int64_t sums() const { return g_.r * g_.s * g_.c_step * g_.k_step; }
    /// Adds the products of images [first, first + count) of x with dy [count p q k] to `sums`.
    void add(const Images<uint16_t>& x, int64_t first, int64_t count, const uint16_t* dy, float* sums, float*) const;
    int64_t transformed() const { return 0; }
    void end(float*, const float*) const {}
    /// Adds the sums of all groups, `part` values apart, to those of the first, and copies them to dw [k r s c].
    void combine(int64_t groups, float* sums, int64_t part, const Tensor& dw) const;

private:
    Padding padding_;
    int64_t p_, q_, k_, r_, stride_;
    int64_t c_, batch_, columns_; // channels in a copy of x, images per call, pixels in a row (made even)
    TileGradient g_;
};

} // namespace rg::cpu
