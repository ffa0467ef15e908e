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
        if (columns_.stride == 1 && columns_.dilation == 1 && columns_.spacing == 1 && (f.s == 3 || f.s == 5)) {
            const int64_t beyond = q + f.s - 1 - padding.left - padding.w;
            stretches_[count_++] = {0, q, 0, f.s, 1, std::max<int64_t>(0, padding.left), std::max<int64_t>(0, beyond)};
        } else {
            for (int64_t first = 0; first < std::min(columns_.spacing, q); ++first)
                for (int64_t column = first; column < q; column += columns_.spacing)
                    add_column(column, column == first);
        }
        if (!f.data || packed_.ready()) return;
        std::fill_n(packed_.data(), sums(), 0.0f);
        // Some channels at a time, so that reads and writes stay in the same cache lines.
        constexpr int64_t kChannels = 16;
        for (int64_t i = 0; i < c_; i += kChannels)
            for (int64_t tap = 0; tap < f.r * f.s; ++tap) {
                const float* const from = f.data + tap / f.s * f.step_r + tap % f.s * f.step_s;
                for (int64_t j = i; j < std::min(i + kChannels, c_); ++j) {
                    const float value = from[j * f.r * f.s] * (f.scale ? f.scale[j] : 1);
                    packed_[tap * step_ + j] = f.to_bf16 ? to_float(to_bf16(value)) : value;
                }
            }
    }
    int64_t images_at_once() const { return 1; }

    /// Computes y [p q c] = bias + filters * image, for image number `image` of `in`. The bias has bias_values(c)
    /// values. A share consists of rows of the result. If `stats` is not null, adds the results to it, a few rows at a
    /// time; then `share` must be the default, the whole work.
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
    int64_t transformed_sums() const { return 0; }
    template <class T>
    void add(const Images<T>& in, int64_t image, int64_t /*count: 1*/, const float* dy, float* dw, float*) const {
        const auto accumulate = [&](const DepthwiseRow& row, int64_t result) {
            isa().depthwise->wgrad(row, dy + result, dw);
        };
        each_row(in, image, {}, accumulate, [](int64_t) {});
    }
    void transform_sums(float*, const float*) const {}
    /// Computes dw [c r s] from the sums of all parts, in order. The sums of the next part begin `step` values later.
    void combine(int64_t parts, const float* of_parts, int64_t step, const Tensor& dw) const {
        const Scratch<float> total(sums());
        total.zeroed();
        for (int64_t part = 0; part < parts; ++part)
            isa().elements->f32.add(total, of_parts + part * step, total, sums());
        const int64_t taps = rows_.taps * columns_.taps;
        for (int64_t i = 0; i < c_ * taps; ++i) dw.data<float>()[i] = total[i % taps * step_ + i / taps];
    }

private:
    /// Results of a row that use the same taps, ConvAxis::spacing apart. Usually there is a long stretch in the middle,
    /// and short ones at the borders, where some taps lie in the padding. But if the kernels can leave out such taps
    /// themselves, one stretch has all results.
    struct Stretch {
        int64_t first, count;        // results
        int64_t tap, taps, tap_step; // the first tap, the number of taps, and the distance between them
        int64_t left = 0, right = 0; // of DepthwiseRow
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

    /// Calls f(stretch, index of its first result) for the stretches of each row in a share of the rows of the result,
    /// and then after_row(number of the next row).
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
                const int64_t first = std::max<int64_t>(0, columns_.pixel(s.first, s.tap)) * c_;
                DepthwiseRow row{.q = s.count,
                                 .c = c_,
                                 .rows = 0,
                                 .taps = together,
                                 .sources = sources,
                                 .step = columns_.stride * c_,
                                 .y_step = columns_.spacing * c_,
                                 .tap_step = s.tap_step * columns_.dilation / columns_.spacing * c_,
                                 .w_step = s.tap_step * step_,
                                 .left = s.left,
                                 .right = s.right};
                for (int64_t r = 0; r < count; ++r)
                    for (int64_t tap = 0; tap < s.taps; tap += together)
                        sources[row.rows++] = {own[r].x + first + tap * row.tap_step,
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
