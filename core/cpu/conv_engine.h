// Code that the convolution and its gradients share: packed filters, and the engines that convolve images.
//
// An engine convolves zero-padded images, one or a few at a time. So its kernels need no code for borders, and all
// conversions of the input happen when an image is copied into its padded form (padding.h).
#pragma once

#include "ringgrad/core/cpu/winograd.h"

#include <array>
#include <optional>

namespace rg::cpu {

/// A view of filters in memory, with any distance (step_*) between neighbouring values. The indices are output channel,
/// row, column and input channel.
struct Filters {
    const float* data;
    int64_t k, r, s, c;                     // extents in the convolution
    int64_t step_k, step_r, step_s, step_c; // distances in floats; negative for rotated filters
    const float* scale = nullptr;           // factor per output channel, or null
    bool to_bf16 = false;                   // true: rounds the values to bf16
    PerAxis dilation = 1;                   // distance between the pixels that neighbouring taps multiply
    float operator()(int64_t ik, int64_t ir, int64_t is, int64_t ic) const {
        float value = data[ik * step_k + ir * step_r + is * step_s + ic * step_c];
        if (scale) value *= scale[ik];
        return to_bf16 ? to_float(rg::to_bf16(value)) : value;
    }
};

/// Returns a view of w [k r s c] as it is, for the forward pass.
inline Filters filters_of(const Tensor& w, PerAxis dilation) {
    const int64_t k = w.extent(0), r = w.extent(1), s = w.extent(2), c = w.extent(3);
    return {w.data<float>(), k, r, s, c, r * s * c, s * c, c, 1, nullptr, false, dilation};
}

/// Returns a view of w that is rotated by 180 degrees, with input and output channels exchanged, for the data gradient:
/// dx[h w c] = sum over r s k of dy[h + pad - r, w + pad - s, k] * w[k r s c] for stride 1. The view begins at the last
/// row and column of the first filter.
inline Filters rotated_filters_of(const Tensor& w, PerAxis dilation) {
    const int64_t k = w.extent(0), r = w.extent(1), s = w.extent(2), c = w.extent(3);
    return {w.data<float>() + (r * s - 1) * c, c, r, s, k, 1, -s * c, -c, r * s * c, nullptr, false, dilation};
}

/// Returns the number of neighbouring results of a row that share one vector of `lanes`. With few filters, a single
/// result would leave lanes idle. Returns 1 in strict_fp32, because zeros in the widened filters would turn a NaN or an
/// infinity of the image into a NaN in neighbouring results. Returns 1 with dilated columns, whose windows interleave.
inline int64_t pixels_per_vector(const Filters& f, int64_t q, int64_t stride, int64_t lanes) {
    const int64_t pixels = lanes / f.k;
    const bool fits = pixels > 1 && lanes % f.k == 0 && q % pixels == 0 && stride <= f.s && f.dilation.w == 1;
    return fits && !context().strict_fp32 ? pixels : 1;
}

/// Filters that compute `pixels` neighbouring results at once, in a window that covers all of their windows. Filter
/// i * k + j is filter j at the position of result i, with zeros around it. The layout of the results is unchanged.
class WidenedFilters {
public:
    WidenedFilters(const Filters& f, int64_t pixels, int64_t stride)
        : values_(pixels == 1 ? 0 : pixels * f.k * f.r * width(f, pixels, stride) * f.c), filters_(f) {
        if (pixels == 1) return;
        values_.zeroed();
        const int64_t s = width(f, pixels, stride);
        for (int64_t i = 0; i < pixels * f.k; ++i)
            for (int64_t r = 0; r < f.r; ++r)
                for (int64_t tap = 0; tap < f.s * f.c; ++tap)
                    values_[((i * f.r + r) * s + i / f.k * stride) * f.c + tap] = f(i % f.k, r, tap / f.c, tap % f.c);
        filters_ = {values_, pixels * f.k, f.r, s, f.c, f.r * s * f.c, s * f.c, f.c, 1, nullptr, f.to_bf16, f.dilation};
    }
    const Filters& filters() const { return filters_; }
    static int64_t width(const Filters& f, int64_t pixels, int64_t stride) { return f.s + (pixels - 1) * stride; }

private:
    Scratch<float> values_;
    Filters filters_;
};

/// Filters in the order in which the register tiles read them. A block has up to 2 vectors of output channels. It
/// contains these channels for each filter row and tap, with zeros after the last channel. Every call of the op packs
/// the filters again; that costs little compared with the convolution.
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

/// Distances between the results of an engine in memory, in pixels: from one row to the next, and from one result of a
/// row to the next.
struct ResultStride {
    int64_t row, pixel;
};

/// Holds a padded image for the register tiles.
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

/// The runs of widened filters in a padded image, for ConvImage.
class Runs {
public:
    Runs(const Padding& padding, const Filters& f)
        : per_row_(f.dilation.w == 1 ? 1 : f.s), count_(f.r * per_row_), taps_(f.s * f.c / per_row_), starts_(count_) {
        for (int64_t i = 0; i < count_; ++i)
            starts_[i] = (i / per_row_ * f.dilation.h * padding.columns + i % per_row_ * f.dilation.w) * f.c;
    }
    int64_t count() const { return count_; }
    int64_t taps() const { return taps_; }
    const int64_t* starts() const { return starts_; }

private:
    int64_t per_row_, count_, taps_;
    Scratch<int64_t> starts_;
};

/// The engine that convolves by register tiles, without a transform.
class Direct {
public:
    using Image = DirectImage;
    using Result = float;
    Direct(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& f)
        : Direct(padding, p, q, stride, f, {q, 1}, pixels_per_vector(f, q, stride.w, isa().width)) {}
    /// `pixels` is the number of results per vector. If it exceeds 1, the results must be contiguous.
    Direct(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& f, ResultStride out,
           int64_t pixels = 1)
        : widened_(f, pixels, stride.w),
          padding_(padding),
          runs_(padding, widened_.filters()),
          g_{p,
             q / pixels,
             pixels * f.k,
             runs_.count(),
             runs_.taps(),
             runs_.starts(),
             stride.h * padding.columns * f.c,
             pixels * stride.w * f.c,
             out.row * f.k,
             out.pixel * pixels * f.k},
          filters_(widened_.filters()) {}
    int64_t images_at_once() const { return 1; }
    /// Computes out [p q k] = bias + filters * image. The bias fills whole pairs of vectors (see PaddedBias).
    template <class T>
    void run(const Images<T>& in, int64_t image, int64_t, const float* bias, float* out) const {
        Image padded(padding_, slack());
        padded.copy(in, image);
        convolve(padded, 0, bias, out);
    }
    /// Does the same with an image that is already padded, and that begins at value `from`.
    void convolve(const Image& padded, int64_t from, const float* bias, float* out) const {
        isa().conv->forward(g_, padded.data() + from, filters_.data(), bias, out);
    }
    /// Returns the number of values after a padded image that the engine may read.
    int64_t slack() const { return 0; }

private:
    WidenedFilters widened_;
    Padding padding_;
    Runs runs_;
    ConvImage g_;
    FilterPack filters_;
};

/// Holds the bias, repeated until it fills whole pairs of vectors, so that it serves several results per vector. An
/// undefined bias is zero.
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

/// Computes the data gradient of a convolution with stride 2, by four convolutions of dy with stride 1. The results in
/// rows 2 i + a and columns 2 j + b use only every second row and column of the filters. So each of the four uses a
/// quarter of the taps and writes every second pixel of every second row. All of them read one padded image. A single
/// convolution would need a dy with zeros between its pixels, and multiply by these zeros in three of four products.
template <class Engine>
class Stride2Gradient {
public:
    using Result = typename Engine::Result;
    /// `filters` is [k r s c]. run() maps dy [p q k] to dx [h w c].
    Stride2Gradient(const Tensor& filters, PerAxis pad, int64_t p, int64_t q, int64_t h, int64_t w, bool to_bf16)
        : padding_{p, q, filters.extent(0), 0, 0, 0, 0, 1}, values_(h * w * filters.extent(3)) {
        const int64_t r = filters.extent(1), s = filters.extent(2), c = filters.extent(3), k = padding_.c;
        const Phase rows[2] = {{r, pad.h, h, 0}, {r, pad.h, h, 1}}, columns[2] = {{s, pad.w, w, 0}, {s, pad.w, w, 1}};
        for (const Phase& phase : rows) padding_.top = std::max(padding_.top, phase.before);
        for (const Phase& phase : columns) padding_.left = std::max(padding_.left, phase.before);
        padding_.rows = padding_.top + p, padding_.columns = padding_.left + q;
        for (const Phase& phase : rows) padding_.rows = std::max(padding_.rows, phase.end(padding_.top));
        for (const Phase& phase : columns) padding_.columns = std::max(padding_.columns, phase.end(padding_.left));
        for (const Phase& a : rows)
            for (const Phase& b : columns) {
                if (a.empty() || b.empty()) continue;
                const float* last = filters.data<float>() + (a.last() * s + b.last()) * c;
                const Filters taps{last, c, a.taps, b.taps, k, 1, -2 * s * c, -2 * c, r * s * c, nullptr, to_bf16};
                Part& part = parts_[size_t(2 * a.odd + b.odd)];
                part.engine.emplace(padding_, a.results, b.results, 1, taps, ResultStride{2 * w, 2});
                part.from = ((padding_.top - a.before) * padding_.columns + padding_.left - b.before) * k;
                part.to = (a.odd * w + b.odd) * c;
                slack_ = part.engine->slack(); // the same for all parts
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
    /// Describes the results 2 i + odd along one axis. They need `before` zeros before the first pixel of dy (if
    /// negative, they skip pixels). Result 2 i + odd multiplies filter tap first + 2 t by pixel i + taps - 1 - t of
    /// this padded dy.
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
    struct Part {
        std::optional<Engine> engine;
        int64_t from = 0, to = 0; // index of the first value that the part reads in the padded image, and writes in dx
    };
    Padding padding_;
    int64_t values_, written_ = 0, slack_ = 0;
    std::array<Part, 4> parts_;
};

/// Convolves images [first, first + count) of `in`, a few at a time. While the result of an image is in cache, calls
/// done(image, result), which may change the result. The results go to `out`, or to scratch memory if it is null.
template <class Engine, class T, class Done>
void convolve_images(const Engine& engine, const Images<T>& in, int64_t first, int64_t count, const float* bias,
                     int64_t out_values, float* out, Done done) {
    const int64_t batch = engine.images_at_once();
    const Scratch<float> scratch(out ? 0 : std::min(batch, count) * out_values);
    for (int64_t image = first; image < first + count; image += batch) {
        const int64_t n = std::min(batch, first + count - image);
        float* const result = out ? out + image * out_values : scratch.data();
        engine.run(in, image, n, bias, result);
        for (int64_t i = 0; i < n; ++i) done(image + i, result + i * out_values);
    }
}

/// Computes the data gradient dx [count h w c] from images [first, first + count) of dy, with an engine.
template <class Engine, class T>
struct DataGradient {
    const Engine& engine;
    const float* zeros; // bias of the engine
    int64_t values;     // values in an image of dx
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
