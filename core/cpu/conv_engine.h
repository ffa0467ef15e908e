// Code that the convolution and its gradients share: packed filters, and the engines that convolve images. Engines are
// Direct and Stride2Gradient (here), Winograd (winograd.h) and TileEngine (tile_engine.h). Each defines the type Result
// of its results, and the functions images_at_once() and run(). Direct and TileEngine also define Image, slack() and
// convolve(), which Stride2Gradient needs.
//
// An engine copies one image or a few at a time (padding.h) and convolves them. The copy does all conversions of the
// input. Except in Winograd, the copy also has zeros around the image, so that the kernels need no code for borders.
// Images that need neither are not copied.
//
// kernels.h says what the letters in shapes stand for.
#pragma once

#include "core/cpu/filters.h"
#include "core/cpu/isa.h"
#include "core/cpu/padding.h"
#include "core/cpu/prepared_array.h"

#include <array>
#include <optional>

namespace rg::cpu {

/// Returns the number of neighbouring result pixels that share one vector of `lanes` lanes (see MultiPixelFilters).
/// With few filters, a single pixel would leave lanes idle. Returns 1 in strict_fp32, because zeros in the widened
/// filters would spread a NaN or an infinity of the image to neighbouring results as NaN. Also returns 1 in these
/// cases: the columns are dilated, the stride exceeds the width of the filters, f.k does not divide `lanes`, or the
/// number of pixels does not divide q.
inline int64_t pixels_per_vector(const Filters& f, int64_t q, int64_t stride, int64_t lanes) {
    const int64_t pixels = lanes / f.k;
    const bool fits = pixels > 1 && lanes % f.k == 0 && q % pixels == 0 && stride <= f.s && f.dilation.w == 1;
    return fits && !context().strict_fp32 ? pixels : 1;
}

/// Filters that compute `pixels` neighbouring result pixels at once. Their window covers the windows of all these
/// pixels. Widened filter i * k + j is filter j, shifted to the window of pixel i, with zeros elsewhere. The layout of
/// the results is unchanged.
class MultiPixelFilters {
public:
    MultiPixelFilters(const Filters& f, int64_t pixels, int64_t stride)
        : values_(pixels == 1 ? 0 : pixels * f.k * f.r * width(f, pixels, stride) * f.c), filters_(f) {
        if (pixels == 1) return;
        const int64_t s = width(f, pixels, stride);
        filters_ = contiguous_filters(values_, pixels * f.k, f.r, s, f.c);
        filters_.to_bf16 = f.to_bf16, filters_.dilation = f.dilation;
        if (values_.ready()) return;
        std::fill_n(values_.data(), pixels * f.k * f.r * s * f.c, 0.0f);
        for (int64_t i = 0; i < pixels * f.k; ++i)
            for (int64_t r = 0; r < f.r; ++r)
                for (int64_t tap = 0; tap < f.s * f.c; ++tap)
                    values_[((i * f.r + r) * s + i / f.k * stride) * f.c + tap] = f(i % f.k, r, tap / f.c, tap % f.c);
    }
    const Filters& filters() const { return filters_; }
    static int64_t width(const Filters& f, int64_t pixels, int64_t stride) { return f.s + (pixels - 1) * stride; }

private:
    PreparedArray<float> values_;
    Filters filters_;
};

/// Packs filters in the order in which the register tiles (register_tiles.h) read them: blocks of up to 2 vectors of
/// output channels. For each filter row and each of its taps, a block contains the values of these channels. Zeros
/// follow the last channel.
inline void pack_filters(const Filters& f, float* packed) {
    const int64_t width = isa().width, block = 2 * width, taps = f.s * f.c;
    parallel(divide_up(f.k, block), [&](int64_t b) {
        float* out = packed + b * block * f.r * taps;
        const int64_t channels = std::min(block, round_up(f.k - b * block, width));
        for (int64_t r = 0; r < f.r; ++r)
            for (int64_t tap = 0; tap < taps; ++tap)
                for (int64_t i = 0; i < channels; ++i, ++out)
                    *out = b * block + i < f.k ? f(b * block + i, r, tap / f.c, tap % f.c) : 0;
    });
}

/// Distances between the results of an engine in memory, in pixels: from one row to the next, and from one result of a
/// row to the next.
struct ResultStride {
    int64_t row, pixel;
};

/// The runs of filters: series of taps that multiply contiguous values of a padded image. See ConvImage (kernels.h).
class TapRuns {
public:
    TapRuns(const Padding& padding, const Filters& f)
        : padding_(padding),
          per_row_(f.dilation.w == 1 ? 1 : f.s),
          count_(f.r * per_row_),
          taps_(f.s * f.c / per_row_),
          starts_(count_) {
        for (int64_t i = 0; i < count_; ++i)
            starts_[i] = (i / per_row_ * f.dilation.h * padding.columns + i % per_row_ * f.dilation.w) * f.c;
    }
    /// Describes the convolution of the padded image by k filters, for a kernel: p rows of q windows, `stride` pixels
    /// apart. Leaves y_row and y_step 0.
    ConvImage image(int64_t p, int64_t q, int64_t k, PerAxis stride) const {
        return {.p = p,
                .q = q,
                .k = k,
                .runs = count_,
                .taps = taps_,
                .run_start = starts_,
                .row = stride.h * padding_.columns * padding_.c,
                .step = stride.w * padding_.c};
    }

private:
    Padding padding_;
    int64_t per_row_, count_, taps_;
    Scratch<int64_t> starts_;
};

/// The engine that convolves by register tiles, without a transform.
class Direct {
public:
    using Image = PaddedImages;
    using Result = float;
    Direct(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& f)
        : Direct(padding, p, q, stride, f, {q, 1}, pixels_per_vector(f, q, stride.w, isa().width)) {}
    /// `pixels` is the number of result pixels per vector (see MultiPixelFilters). If it exceeds 1, the results must be
    /// contiguous.
    Direct(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& f, ResultStride out,
           int64_t pixels = 1)
        : widened_(f, pixels, stride.w),
          padding_(padding),
          runs_(padding, widened_.filters()),
          g_(runs_.image(p, q / pixels, pixels * f.k, {stride.h, pixels * stride.w})),
          packed_(round_up(g_.k, isa().width) * g_.runs * g_.taps) {
        g_.y_row = out.row * f.k, g_.y_step = out.pixel * pixels * f.k;
        if (!packed_.ready()) pack_filters(widened_.filters(), packed_);
    }
    int64_t images_at_once() const { return 1; }
    /// Computes y [p q k] = bias + filters * image, for image number `image` of `in`. The bias has bias_values(k)
    /// values. A share consists of rows of the result, or of output channels.
    template <class T>
    void run(const Images<T>& in, int64_t image, int64_t /*count: 1*/, const ConvResult<float>& to,
             Share share = {}) const {
        const Image padded(padding_, slack(), in, image, 1);
        const int64_t block = 2 * isa().width, blocks = divide_up(g_.k, block);
        // If there are more filters than pixels of the result, and enough blocks of them, a share has some of the
        // filters, and reads only these.
        const bool share_filters = blocks >= share.shares && g_.k > g_.p * g_.q;
        const Share of_blocks = share_filters ? share : Share{}, of_rows = share_filters ? Share{} : share;
        const int64_t row = of_rows.begin(g_.p), k = of_blocks.begin(blocks) * block;
        ConvImage part = g_;
        part.p = of_rows.end(g_.p) - row;
        part.k = std::min(g_.k, of_blocks.end(blocks) * block) - k;
        isa().conv->forward(part, padded.data() + row * g_.row, packed_ + k * g_.runs * g_.taps,
                            to.at(row * g_.y_row + k, k));
    }
    /// Computes all results like run(), from an image that is already padded. The first window begins at index `from`
    /// of `padded`.
    void convolve(const Image& padded, int64_t from, int64_t /*count: 1*/, const ConvResult<float>& to,
                  int64_t /*y_image*/) const {
        isa().conv->forward(g_, padded.data() + from, packed_, to);
    }
    /// Returns the number of values that the engine may read beyond the end of a padded image.
    int64_t slack() const { return 0; }

private:
    MultiPixelFilters widened_;
    Padding padding_;
    TapRuns runs_;
    ConvImage g_;
    PreparedArray<float> packed_; // filters, see pack_filters()
};

/// Returns the number of values in the bias that an engine reads: those of the k channels, repeated until their number
/// is a multiple of the most channels that a kernel reads at once, with any instruction set. The repetition serves
/// engines with several result pixels per vector.
inline int64_t bias_values(int64_t k) { return round_up(k, 32); }

/// Computes the data gradient of a convolution with stride 2, by four convolutions of dy with stride 1. The results in
/// rows 2 i + a and columns 2 j + b, for given a and b in {0, 1}, use only every second row and column of the filters.
/// So each of the four convolutions uses about a quarter of the taps, and writes every second pixel of every second
/// row. All four read the same padded image. A single convolution would need a dy with zeros between its pixels. Then
/// three of four products would multiply by zero.
template <class Engine>
class Stride2Gradient {
public:
    using Result = typename Engine::Result;
    /// `rotated` comes from rotated_filters_of(), and `pad` is that of the forward pass. run() maps dy [p q k] to dx
    /// [h w c].
    Stride2Gradient(const Filters& rotated, PerAxis pad, int64_t p, int64_t q, int64_t h, int64_t w)
        : padding_{.h = p, .w = q, .c = rotated.c, .rows = 0, .columns = 0}, values_(h * w * rotated.k) {
        const int64_t r = rotated.r, s = rotated.s;
        const Phase rows[2] = {{r, pad.h, h, 0}, {r, pad.h, h, 1}}, columns[2] = {{s, pad.w, w, 0}, {s, pad.w, w, 1}};
        padding_.top = std::max({int64_t{0}, rows[0].before, rows[1].before});
        padding_.left = std::max({int64_t{0}, columns[0].before, columns[1].before});
        padding_.rows = std::max({padding_.top + p, rows[0].end(padding_.top), rows[1].end(padding_.top)});
        padding_.columns = std::max({padding_.left + q, columns[0].end(padding_.left), columns[1].end(padding_.left)});
        for (const Phase& a : rows)
            for (const Phase& b : columns)
                if (!a.empty() && !b.empty()) add_quarter(rotated, a, b, w);
    }
    int64_t images_at_once() const { return images_at_once_; }
    template <class T>
    void run(const Images<T>& dy, int64_t first, int64_t count, const ConvResult<Result>& to) const {
        const typename Engine::Image padded(padding_, slack_, dy, first, count);
        if (written_ < values_) std::fill_n(to.y, count * values_, Result{});
        for (const Quarter& quarter : quarters_)
            if (quarter.engine)
                quarter.engine->convolve(padded, quarter.first_read, count, to.at(quarter.first_written, 0), values_);
    }

private:
    /// The results 2 i + odd of dx along one axis, i = 0, 1, ... They are computed from a copy of dy with `before`
    /// zeros before its first pixel, or without its first -before pixels if `before` is negative. Result 2 i + odd is
    /// the sum over t of filter tap first + 2 t times pixel i + taps - 1 - t of this copy.
    struct Phase {
        Phase(int64_t kernel, int64_t pad, int64_t extent, int64_t odd_)
            : odd(odd_),
              first((odd + pad) % 2),
              taps((kernel - first + 1) / 2),
              results((extent - odd + 1) / 2),
              before(taps - 1 - (odd + pad - first) / 2) {}
        bool empty() const { return taps <= 0 || results <= 0; }
        int64_t last() const { return first + 2 * (taps - 1); }
        int64_t end(int64_t padded_before) const { return empty() ? 0 : padded_before - before + results + taps - 1; }
        int64_t odd, first, taps, results, before;
    };
    struct Quarter {
        std::optional<Engine> engine;
        int64_t first_read = 0, first_written = 0; // indices of the first value in the padded image, and in dx
    };
    /// Makes the engine for the results of dx that belong to the phase `rows` and the phase `columns`. An image of dx
    /// has rows of w pixels.
    void add_quarter(const Filters& rotated, const Phase& rows, const Phase& columns, int64_t w) {
        Filters taps = rotated;
        taps.data += (rotated.r - 1 - rows.last()) * rotated.step_r + (rotated.s - 1 - columns.last()) * rotated.step_s;
        taps.r = rows.taps, taps.s = columns.taps, taps.step_r *= 2, taps.step_s *= 2;
        Quarter& quarter = quarters_[size_t(2 * rows.odd + columns.odd)];
        quarter.engine.emplace(padding_, rows.results, columns.results, 1, taps, ResultStride{2 * w, 2});
        quarter.first_read =
            ((padding_.top - rows.before) * padding_.columns + padding_.left - columns.before) * taps.c;
        quarter.first_written = (rows.odd * w + columns.odd) * taps.k;
        slack_ = quarter.engine->slack(); // the same for all quarters
        images_at_once_ = std::max(images_at_once_, quarter.engine->images_at_once());
        written_ += rows.results * columns.results * taps.k;
    }
    Padding padding_;
    int64_t values_, written_ = 0, slack_ = 0, images_at_once_ = 1;
    std::array<Quarter, 4> quarters_;
};

} // namespace rg::cpu
