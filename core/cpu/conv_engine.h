// What convolution forward and backward share: filters in the kernels' order, and the engines that convolve images.
//
// An engine takes one image or a few at a time, zero-padded, and writes their results; so the kernels know no
// borders, and reading an image is the place where other forms of input enter (padding.h).
#pragma once

#include "core/cpu/winograd.h"

#include <array>
#include <optional>

namespace rg::cpu {

/// Filters by (output channel, row, column, input channel), wherever they stand in memory.
struct Filters {
    const float* at;
    int64_t k, r, s, c;                     // extents as the convolution sees them
    int64_t step_k, step_r, step_s, step_c; // may be negative: turned filters
    const float* scale = nullptr;           // by output channel
    bool to_bf16 = false;                   // operands are rounded to bf16
    float operator()(int64_t ik, int64_t ir, int64_t is, int64_t ic) const {
        float value = at[ik * step_k + ir * step_r + is * step_s + ic * step_c];
        if (scale) value *= scale[ik];
        return to_bf16 ? to_float(rg::to_bf16(value)) : value;
    }
};

/// w [k r s c] as it is: for the convolution itself.
inline Filters filters_of(const Tensor& w) {
    const int64_t k = w.extent(0), r = w.extent(1), s = w.extent(2), c = w.extent(3);
    return {w.data<float>(), k, r, s, c, r * s * c, s * c, c, 1};
}

/// Turned and transposed: for the data gradient. dx[h w c] = sum over r s k of dy[h + pad - r, w + pad - s, k] *
/// w[k r s c], so the filters are read from their last element.
inline Filters turned_filters_of(const Tensor& w) {
    const int64_t k = w.extent(0), r = w.extent(1), s = w.extent(2), c = w.extent(3);
    return {w.data<float>() + (r * s - 1) * c, c, r, s, k, 1, -s * c, -c, r * s * c};
}

/// How many neighbouring results of a row are computed in one vector of `lanes`: with few filters the other lanes would
/// be idle. 1: each for itself, as in strict_fp32, since the zeros in joined filters carry a NaN to neighbours.
inline int64_t joined_pixels(const Filters& f, int64_t q, int64_t stride, int64_t lanes) {
    const int64_t pixels = lanes / f.k;
    const bool fits = pixels > 1 && lanes % f.k == 0 && q % pixels == 0 && stride <= f.s;
    return fits && !context().strict_fp32 ? pixels : 1;
}

/// The filters that make so many results at once: filter i * k + j is filter j, moved to the window of result i in the
/// window of them all, with zeros around it. The results lie as before.
class JoinedFilters {
public:
    JoinedFilters(const Filters& f, int64_t pixels, int64_t stride)
        : values_(pixels == 1 ? 0 : pixels * f.k * f.r * width(f, pixels, stride) * f.c), filters_(f) {
        if (pixels == 1) return;
        values_.zeroed();
        const int64_t s = width(f, pixels, stride);
        for (int64_t i = 0; i < pixels * f.k; ++i)
            for (int64_t r = 0; r < f.r; ++r)
                for (int64_t tap = 0; tap < f.s * f.c; ++tap)
                    values_[((i * f.r + r) * s + i / f.k * stride) * f.c + tap] = f(i % f.k, r, tap / f.c, tap % f.c);
        filters_ = {values_, pixels * f.k, f.r, s, f.c, f.r * s * f.c, s * f.c, f.c, 1, nullptr, f.to_bf16};
    }
    const Filters& filters() const { return filters_; }
    static int64_t width(const Filters& f, int64_t pixels, int64_t stride) { return f.s + (pixels - 1) * stride; }

private:
    Scratch<float> values_;
    Filters filters_;
};

/// Filters in the order in which the tiles read them: blocks of up to 2 vectors of output channels; in a block, for
/// each filter row and tap, the channels of the block, with zeros beyond the last. Packed anew for each call: it is
/// small beside the work.
class FilterPack {
public:
    explicit FilterPack(const Filters& f) : packed_(round_up(f.k, isa().width) * f.r * f.s * f.c) {
        const int64_t width = isa().width, block = 2 * width, taps = f.s * f.c;
        parallel((f.k + block - 1) / block, [&](int64_t b) {
            float* out = packed_ + b * block * f.r * taps;
            const int64_t channels = std::min(block, round_up(f.k - b * block, width));
            for (int64_t r = 0; r < f.r; ++r)
                for (int64_t tap = 0; tap < taps; ++tap)
                    for (int64_t i = 0; i < channels; ++i, ++out)
                        *out = b * block + i < f.k ? f(b * block + i, r, tap / f.c, tap % f.c) : 0;
        });
    }
    const float* data() const { return packed_; }

private:
    Scratch<float> packed_;
};

/// Where an engine puts its results: pixels from one row to the next, and from one pixel to the next.
struct Spread {
    int64_t row, pixel;
};

/// A padded image as the register tiles read it.
class DirectImage {
public:
    DirectImage(const Padding& padding, int64_t) : padding_(padding), values_(padding.values()) {}
    template <class T>
    void copy(const Images<T>& images, int64_t n) {
        padding_.copy(images, n, values_.data());
    }
    const float* data() const { return values_; }

private:
    const Padding& padding_;
    Scratch<float> values_;
};

/// The register tiles alone.
class Direct {
public:
    using Image = DirectImage;
    using Result = float;
    Direct(const Padding& padding, int64_t p, int64_t q, int64_t stride, const Filters& f)
        : Direct(padding, p, q, stride, f, {q, 1}, joined_pixels(f, q, stride, isa().width)) {}
    /// pixels: joined, of results that lie side by side.
    Direct(const Padding& padding, int64_t p, int64_t q, int64_t stride, const Filters& f, Spread out,
           int64_t pixels = 1)
        : joined_(f, pixels, stride),
          padding_(padding),
          g_{p,
             q / pixels,
             pixels * f.k,
             f.r,
             joined_.filters().s * f.c,
             padding.columns * f.c,
             stride,
             pixels * stride * f.c,
             out.row * f.k,
             out.pixel * pixels * f.k},
          filters_(joined_.filters()) {}
    int64_t images_at_once() const { return 1; }
    /// out [p q k] = bias + filters * an image; bias has whole pairs of vectors.
    template <class T>
    void run(const Images<T>& in, int64_t image, int64_t, const float* bias, float* out) const {
        Image padded(padding_, slack());
        padded.copy(in, image);
        convolve(padded, 0, bias, out);
    }
    /// The same from a padded image, from some value of it on.
    void convolve(const Image& padded, int64_t from, const float* bias, float* out) const {
        isa().conv->forward(g_, padded.data() + from, filters_.data(), bias, out);
    }
    /// Values beyond a padded image that may be read.
    int64_t slack() const { return 0; }

private:
    JoinedFilters joined_;
    Padding padding_;
    ConvImage g_;
    FilterPack filters_;
};

/// Bias in whole pairs of vectors, repeated to their end for joined results; zeros if undefined.
class PaddedBias {
public:
    PaddedBias(const Tensor& bias, int64_t k)
        : PaddedBias([&](int64_t i) { return bias.defined() ? bias.data<float>()[i] : 0.0f; }, k) {}
    template <class F>
    PaddedBias(F value, int64_t k) : values_(round_up(k, 2 * isa().width)) {
        for (int64_t i = 0; i < round_up(k, 2 * isa().width); ++i) values_[i] = i < k ? value(i) : values_[i - k];
    }
    const float* data() const { return values_; }

private:
    Scratch<float> values_;
};

/// The data gradient of a convolution with stride 2. The rows 2 i + a and columns 2 j + b of the result meet only every
/// second row and column of the filters: four convolutions of dy with stride 1, with a quarter of the filters each,
/// where dy spread out by the stride would be multiplied by zeros three times out of four. All read one padded image,
/// and write every second pixel.
template <class Engine>
class EverySecond {
public:
    using Result = typename Engine::Result;
    /// w [k r s c]; dy [p q k] -> dx [h w c].
    EverySecond(const Tensor& filters, int64_t pad, int64_t p, int64_t q, int64_t h, int64_t w, bool to_bf16)
        : padding_{p, q, filters.extent(0), 0, 0, 0, 0, 1}, values_(h * w * filters.extent(3)) {
        const int64_t r = filters.extent(1), s = filters.extent(2), c = filters.extent(3), k = padding_.c;
        const Half rows[2] = {{r, pad, h, 0}, {r, pad, h, 1}}, columns[2] = {{s, pad, w, 0}, {s, pad, w, 1}};
        for (const Half& half : rows) padding_.top = std::max(padding_.top, half.before);
        for (const Half& half : columns) padding_.left = std::max(padding_.left, half.before);
        padding_.rows = padding_.top + p, padding_.columns = padding_.left + q;
        for (const Half& half : rows) padding_.rows = std::max(padding_.rows, half.end(padding_.top));
        for (const Half& half : columns) padding_.columns = std::max(padding_.columns, half.end(padding_.left));
        for (const Half& a : rows)
            for (const Half& b : columns) {
                if (a.empty() || b.empty()) continue;
                const float* last = filters.data<float>() + (a.last() * s + b.last()) * c;
                const Filters part{last, c, a.taps, b.taps, k, 1, -2 * s * c, -2 * c, r * s * c, nullptr, to_bf16};
                Part& made = parts_[size_t(2 * a.odd + b.odd)];
                made.engine.emplace(padding_, a.results, b.results, 1, part, Spread{2 * w, 2});
                made.from = ((padding_.top - a.before) * padding_.columns + padding_.left - b.before) * k;
                made.to = (a.odd * w + b.odd) * c;
                slack_ = made.engine->slack(); // the same for all
                written_ += a.results * b.results * c;
            }
    }
    int64_t images_at_once() const { return 1; }
    template <class T>
    void run(const Images<T>& dy, int64_t image, int64_t, const float* bias, Result* dx) const {
        typename Engine::Image padded(padding_, slack_);
        padded.copy(dy, image);
        if (written_ < values_) std::fill_n(dx, values_, Result{});
        for (const Part& part : parts_)
            if (part.engine) part.engine->convolve(padded, part.from, bias, dx + part.to);
    }

private:
    /// Along one axis, the results 2 i + odd: 2 i + odd meets i + before of the padded image's pixels, less t, in
    /// filter tap first + 2 t.
    struct Half {
        Half(int64_t kernel, int64_t pad, int64_t extent, int64_t odd_)
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
    struct Part {
        std::optional<Engine> engine;
        int64_t from = 0, to = 0;
    };
    Padding padding_;
    int64_t values_, written_ = 0, slack_ = 0;
    std::array<Part, 4> parts_;
};

/// Convolves images first .. first + count of `in` with an engine, a few at a time, and hands each result over while
/// it is in cache: done(image, its values as f32, which may be changed). out: where the results of an f32 tensor go;
/// null: into scratch.
template <class Engine, class T, class Done>
void convolve_images(const Engine& engine, const Images<T>& in, int64_t first, int64_t count, const float* bias,
                     int64_t out_values, float* out, Done done) {
    const int64_t batch = engine.images_at_once();
    const Scratch<float> scratch(out ? 0 : std::min(batch, count) * out_values);
    for (int64_t at = first; at < first + count; at += batch) {
        const int64_t n = std::min(batch, first + count - at);
        float* const result = out ? out + at * out_values : scratch.data();
        engine.run(in, at, n, bias, result);
        for (int64_t i = 0; i < n; ++i) done(at + i, result + i * out_values);
    }
}

/// The data gradient by an engine: dx [count h w c] from images first .. first + count of dy.
template <class Engine, class T>
struct DataGradient {
    const Engine& engine;
    const float* zeros; // its bias
    int64_t values;     // of an image
    template <class In>
    void operator()(const Images<In>& dy, int64_t first, int64_t count, T* dx) const {
        if constexpr (std::is_same_v<typename Engine::Result, T>)
            for (int64_t i = 0, n; i < count; i += n) {
                n = std::min(engine.images_at_once(), count - i);
                engine.run(dy, first + i, n, zeros, dx + i * values);
            }
        else
            convolve_images(engine, dy, first, count, zeros, values, nullptr, [&](int64_t i, float* result) {
                isa().elements->narrow(result, dx + (i - first) * values, values);
            });
    }
};

} // namespace rg::cpu
