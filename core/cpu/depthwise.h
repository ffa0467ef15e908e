// The engine of depthwise convolutions, see conv_engine.h: one filter per channel. It reads plain images of f32 where
// they are, row by row, and copies no more than a few rows of others, to convert them. depthwise_isa.cpp has its loops.
#pragma once

#include "core/cpu/conv_engine.h"

namespace rg::cpu {

/// Gives the rows of image `image` of `images` as f32.
template <class T>
class ImageRows {
public:
    /// At most `alive` successive rows are in use at the same time.
    ImageRows(const Images<T>& images, int64_t image, int64_t alive)
        : images_(images), image_(image), alive_(alive), held_(alive), copies_(is_plain() ? 0 : alive * row_) {
        std::fill_n(held_.data(), alive, -1);
    }
    const float* row(int64_t i) const {
        if constexpr (std::is_same_v<T, float>)
            if (is_plain()) return images_.data + image_ * images_.values() + i * row_;
        float* const copy = copies_ + i % alive_ * row_;
        if (std::exchange(held_[i % alive_], i) != i) images_.read(image_, i * row_, row_, copy);
        return copy;
    }

private:
    bool is_plain() const { return std::is_same_v<T, float> && !images_.norm; }
    const Images<T>& images_;
    int64_t image_, alive_, row_ = images_.w * images_.c;
    Scratch<int64_t> held_; // the numbers of the rows in `copies_`
    Scratch<float> copies_;
};

/// One axis of a convolution, or of its data gradient.
struct ConvAxis {
    int64_t extent, results, taps, stride, before, dilation;
    int64_t spacing; // distance between the pixels of the image in its padded form, see Padding
    /// Returns the pixel of the image that a tap multiplies for a result, or -1 if there is none.
    int64_t pixel(int64_t result, int64_t tap) const {
        const int64_t at = result * stride + tap * dilation - before;
        return at >= 0 && at % spacing == 0 && at / spacing < extent ? at / spacing : -1;
    }
};

class Depthwise {
public:
    using Result = float;
    /// Arguments are those of the other engines. Without values in `f`, the engine computes weight gradients only.
    Depthwise(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& f)
        : rows_{padding.h, p, f.r, stride.h, padding.top, f.dilation.h, padding.spacing.h},
          columns_{padding.w, q, f.s, stride.w, padding.left, f.dilation.w, padding.spacing.w},
          c_(f.c),
          step_(round_up(f.c, isa().width)),
          stretches_(q),
          packed_(f.data ? sums() : 0) {
        for (int64_t first = 0; first < std::min(columns_.spacing, q); ++first)
            for (int64_t column = first; column < q; column += columns_.spacing) add_column(column, column == first);
        if (!f.data || packed_.ready()) return;
        std::fill_n(packed_.data(), sums(), 0.0f);
        for (int64_t i = 0; i < c_; ++i)
            for (int64_t tap = 0; tap < f.r * f.s; ++tap)
                packed_[tap * step_ + i] = f.group(i)(0, tap / f.s, tap % f.s, 0);
    }
    int64_t images_at_once() const { return 1; }

    /// Computes y [p q c] = bias + filters * image, for image number `image` of `in`. The bias comes from PaddedBias. A
    /// share consists of rows of the result. If `stats` is not null, adds the results to it, a few rows at a time; then
    /// `share` must be the default, the whole work.
    template <class T>
    void run(const Images<T>& in, int64_t image, int64_t /*count: 1*/, const ConvResult<float>& to, Share share = {},
             StatsCollector* stats = nullptr) const {
        constexpr int64_t kPixels = 128; // statistics are faster from many pixels, and from a near cache
        int64_t counted = 0;             // rows whose statistics are known
        const auto convolve = [&](const DepthwiseRow& row, int64_t result) {
            isa().depthwise->forward(row, packed_, to.at(result, 0));
        };
        each_row(in, image, share, convolve, [&](int64_t done) {
            const int64_t q = columns_.results, pixels = (done - counted) * q;
            if (!stats || (pixels < kPixels && done < rows_.results)) return;
            stats->add(image, counted * q, pixels, to.y + counted * q * c_);
            counted = done;
        });
    }

    // The weight gradient, as conv_grad.cpp sums it.

    /// Returns the number of floats in the filters, and in their gradient: [r s c], with c in whole vectors.
    int64_t sums() const { return rows_.taps * columns_.taps * step_; }
    int64_t transformed() const { return 0; }
    template <class T>
    void add(const Images<T>& in, int64_t image, int64_t /*count: 1*/, const float* dy, float* dw, float*) const {
        const auto accumulate = [&](const DepthwiseRow& row, int64_t result) {
            isa().depthwise->wgrad(row, dy + result, dw);
        };
        each_row(in, image, {}, accumulate, [](int64_t) {});
    }
    void end(float*, const float*) const {}
    /// Computes dw [c r s] from the sums of all parts, in order. The sums of the next part begin `step` values later.
    void combine(int64_t parts, const float* sums, int64_t step, const Tensor& dw) const {
        const int64_t taps = rows_.taps * columns_.taps;
        for (int64_t i = 0; i < c_ * taps; ++i) {
            float sum = 0;
            for (int64_t part = 0; part < parts; ++part) sum += sums[part * step + i % taps * step_ + i / taps];
            dw.data<float>()[i] = sum;
        }
    }

private:
    /// Results of a row that use the same taps, ConvAxis::spacing apart. Most rows have a long stretch in the middle,
    /// and short ones at the borders, where some taps lie in the padding.
    struct Stretch {
        int64_t first, count;        // results
        int64_t tap, taps, tap_step; // the first tap, the number of taps, and the distance between them
    };
    /// Adds a column of the result to the last stretch, or to a new one if its taps differ or `apart` is true.
    void add_column(int64_t column, bool apart) {
        Stretch own{column, 1, 0, 0, 1};
        for (int64_t tap = 0; tap < columns_.taps; ++tap)
            if (columns_.pixel(column, tap) >= 0) {
                if (own.taps == 0) own.tap = tap;
                if (own.taps == 1) own.tap_step = tap - own.tap;
                ++own.taps;
            }
        if (!apart && stretches_[count_ - 1].tap == own.tap && stretches_[count_ - 1].taps == own.taps)
            ++stretches_[count_ - 1].count;
        else
            stretches_[count_++] = own;
    }

    /// Calls f(stretch, index of its first result) for all stretches in a share of the rows of the result, and
    /// after_row(number of the next row) after those of each row.
    template <class T, class F, class AfterRow>
    void each_row(const Images<T>& in, int64_t image, Share share, F f, AfterRow after_row) const {
        const ImageRows<T> rows(in, image, std::min(in.h, (rows_.taps - 1) * rows_.dilation + 1));
        const Scratch<DepthwiseSource> sources(rows_.taps * columns_.taps), own(rows_.taps);
        for (int64_t p = share.begin(rows_.results); p < share.end(rows_.results); ++p) {
            int64_t count = 0;
            for (int64_t r = 0; r < rows_.taps; ++r)
                if (const int64_t i = rows_.pixel(p, r); i >= 0)
                    own[count++] = {rows.row(i), r * columns_.taps * step_};
            for (int64_t i = 0; i < count_; ++i) {
                const Stretch& s = stretches_[i];
                // The kernels take 1, 3 or 5 taps together.
                const int64_t together = s.taps == 3 || s.taps == 5 ? s.taps : 1;
                const auto pixel = [&](int64_t tap) { return columns_.pixel(s.first, s.tap + tap * s.tap_step); };
                DepthwiseRow row{.q = s.count,
                                 .c = c_,
                                 .rows = 0,
                                 .taps = together,
                                 .sources = sources,
                                 .step = columns_.stride * c_,
                                 .y_step = columns_.spacing * c_,
                                 .tap_step = together > 1 ? (pixel(1) - pixel(0)) * c_ : 0,
                                 .w_step = s.tap_step * step_};
                for (int64_t r = 0; r < count; ++r)
                    for (int64_t tap = 0; tap < s.taps; tap += together)
                        sources[row.rows++] = {own[r].x + pixel(tap) * c_,
                                               own[r].w + (s.tap + tap * s.tap_step) * step_};
                f(row, (p * columns_.results + s.first) * c_);
            }
            after_row(p + 1);
        }
    }

    ConvAxis rows_, columns_;
    int64_t c_, step_, count_ = 0; // channels, also in whole vectors; number of stretches
    Scratch<Stretch> stretches_;
    PreparedArray<float> packed_; // filters, see sums()
};

} // namespace rg::cpu
