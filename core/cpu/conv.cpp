// Convolution: threads, padding and packing around the register tiles of conv_isa.cpp.
//
// Each thread copies one image at a time into a zero-padded scratch image, which stays in its second-level cache, and
// convolves that; so the tiles know no borders, and a copy is the place where other forms of input can enter. The data
// gradient is the same convolution with the filters turned and transposed, over dy spread out by the stride. The
// weight gradient sums per fixed group of images and then over the groups in order: the bits depend on neither the
// number of threads nor their timing.
#include "core/cpu/channels.h"
#include "core/cpu/padding.h"
#include "core/cpu/winograd.h"
#include "core/kernels.h"

#include <optional>

namespace rg::cpu {

namespace {

/// Filters in the order in which the tiles read them: blocks of up to 2 vectors of output channels; in a block, for
/// each filter row and tap, the channels of the block, with zeros beyond the last. Packed anew for each call: it is
/// small beside the work.
class FilterPack {
public:
    /// filter(k, r, tap) for `k` output channels, `rows` filter rows, `taps` columns times input channels.
    template <class F>
    FilterPack(int64_t k, int64_t rows, int64_t taps, F filter) {
        const int64_t width = isa().width, block = 2 * width;
        packed_ = scratch_.ensure(round_up(k, width) * rows * taps);
        parallel((k + block - 1) / block, [&](int64_t b) {
            float* out = packed_ + b * block * rows * taps;
            const int64_t channels = std::min(block, round_up(k - b * block, width));
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t tap = 0; tap < taps; ++tap)
                    for (int64_t i = 0; i < channels; ++i, ++out)
                        *out = b * block + i < k ? filter(b * block + i, r, tap) : 0;
        });
    }
    const float* data() const { return packed_; }

private:
    static thread_local Scratch scratch_;
    float* packed_;
};
thread_local Scratch FilterPack::scratch_;

/// Filters by (output channel, row, column, input channel), wherever they stand in memory.
struct Filters {
    const float* at;
    int64_t k, r, s, c;                     // extents as the convolution sees them
    int64_t step_k, step_r, step_s, step_c; // may be negative: turned filters
    float operator()(int64_t ik, int64_t ir, int64_t is, int64_t ic) const {
        return at[ik * step_k + ir * step_r + is * step_s + ic * step_c];
    }
};

/// out[n] = bias + filters * padded in[n] for all images, by the register tiles alone.
class Direct {
public:
    Direct(const Padding& padding, const ConvImage& g, const Filters& f)
        : padding_(padding), g_(g), filters_(f.k, f.r, f.s * f.c, [&](int64_t k, int64_t r, int64_t tap) {
              return f(k, r, tap / f.c, tap % f.c);
          }) {}
    int64_t images_at_once() const { return 1; }
    void run(const float* in, int64_t, const float* bias, float* out) const {
        float* padded = padded_scratch(padding_);
        padding_.copy(in, padded);
        isa().conv->forward(g_, padded, filters_.data(), bias, out);
    }

private:
    Padding padding_;
    ConvImage g_;
    FilterPack filters_;
};

/// Runs the engine over all images, with the statistics of the result if asked.
template <class Engine>
void each_image_with(const Engine& engine, const Tensor& in, const Tensor& bias, const Tensor& out, const Tensor& stats) {
    const int64_t images = in.extent(0), k = out.extent(3), pixels = out.extent(1) * out.extent(2);
    const int64_t in_floats = in.extent(1) * in.extent(2) * in.extent(3), out_floats = pixels * k;
    std::vector<float> bias_values(size_t(round_up(k, 2 * isa().width)), 0.0f);
    if (bias.defined()) std::copy_n(bias.data<float>(), k, bias_values.begin());
    std::optional<StatsCollector> collector;
    if (stats.defined()) collector.emplace(images, pixels, k);
    const int64_t group = engine.images_at_once();
    parallel((images + group - 1) / group, [&](int64_t task) {
        const int64_t first = task * group, count = std::min(group, images - first);
        float* const result = out.data<float>() + first * out_floats;
        engine.run(in.data<float>() + first * in_floats, count, bias_values.data(), result);
        for (int64_t i = 0; collector && i < count; ++i) collector->add(first + i, result + i * out_floats);
    });
    if (collector) collector->finish(stats);
}

void convolve(const Tensor& in, const Padding& padding, const Filters& filters, int64_t stride, const Tensor& bias,
              const Tensor& out, const Tensor& stats) {
    if (stride == 1 && Winograd::fits(filters.k, filters.r, filters.s, filters.c)) {
        const Winograd engine(padding, out.extent(1), out.extent(2), filters.k, filters);
        return each_image_with(engine, in, bias, out, stats);
    }
    const ConvImage g{out.extent(1), out.extent(2),         filters.k, filters.r, filters.s * filters.c,
                      padding.columns * filters.c, stride, stride * filters.c};
    each_image_with(Direct(padding, g, filters), in, bias, out, stats);
}

} // namespace

void conv2d(const Call& call) {
    const Tensor &x = call.in[0], &w = call.in[1];
    const int64_t k = w.extent(0), r = w.extent(1), s = w.extent(2), c = w.extent(3), pad = call.attrs.pad;
    const Filters filters{w.data<float>(), k, r, s, c, r * s * c, s * c, c, 1};
    const Padding padding{x.extent(1), x.extent(2), c, x.extent(1) + 2 * pad, x.extent(2) + 2 * pad, pad, pad, 1};
    convolve(x, padding, filters, call.attrs.stride, call.in[2], call.out[0], call.attrs.stats ? call.out[1] : Tensor());
}

void conv2d_dgrad(const Call& call) {
    const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
    const int64_t k = w.extent(0), r = w.extent(1), s = w.extent(2), c = w.extent(3), pad = call.attrs.pad;
    // dx[h w c] = sum over r s k of dy[h + pad - r, w + pad - s, k] * w[k r s c]: filters read from their last element.
    const Filters turned{w.data<float>() + (r * s - 1) * c, c, r, s, k, 1, -s * c, -c, r * s * c};
    const Padding padding{dy.extent(1),         dy.extent(2), k,           dx.extent(1) + r - 1,
                          dx.extent(2) + s - 1, r - 1 - pad,  s - 1 - pad, call.attrs.stride};
    convolve(dy, padding, turned, 1, {}, dx, {});
}

namespace {

/// dy as the tiles read it: whole vectors of channels.
const float* widen(const float* dy, int64_t pixels, int64_t k, int64_t wide) {
    static thread_local Scratch scratch;
    if (wide == k) return dy;
    float* out = scratch.ensure(pixels * wide);
    for (int64_t i = 0; i < pixels; ++i) {
        std::memcpy(out + i * wide, dy + i * k, size_t(k) * sizeof(float));
        std::fill_n(out + i * wide + k, wide - k, 0.0f);
    }
    return out;
}

} // namespace

void conv2d_wgrad(const Call& call) {
    const Tensor &dy = call.in[0], &x = call.in[1], &dw = call.out[0], &db = call.out[1];
    const int64_t images = x.extent(0), c = x.extent(3), k = dy.extent(3), r = dw.extent(1), s = dw.extent(2);
    const int64_t pad = call.attrs.pad, stride = call.attrs.stride, taps = s * c, wide = round_up(k, isa().width);
    const int64_t p = dy.extent(1), q = dy.extent(2), x_floats = x.extent(1) * x.extent(2) * c, dy_floats = p * q * k;
    const Padding padding{x.extent(1), x.extent(2), c, x.extent(1) + 2 * pad, x.extent(2) + 2 * pad, pad, pad, 1};
    const bool by_winograd = stride == 1 && Winograd::fits(k, r, s, c);
    const Winograd winograd(padding, p, q, k);
    const ConvImage g{p, q, wide, r, taps, padding.columns * c, stride, stride * c};

    constexpr int64_t kGroups = 16; // of images, each with a sum of its own
    const int64_t groups = std::min(images, kGroups), period = period_of(k);
    const int64_t dw_floats = r * taps * wide, part_floats = dw_floats + period;
    static thread_local Scratch sums;
    float* const parts = sums.ensure(groups * part_floats); // of each group: dw [r taps wide], db [period]
    const PerChannel zero(k, [](int64_t) { return 0.0f; });
    parallel(groups, [&](int64_t group) {
        float *const my_dw = parts + group * part_floats, *const my_db = my_dw + dw_floats;
        std::memset(my_dw, 0, size_t(part_floats) * sizeof(float));
        const int64_t begin = images * group / groups, end = images * (group + 1) / groups;
        const float *image = x.data<float>() + begin * x_floats, *gradient = dy.data<float>() + begin * dy_floats;
        if (by_winograd) {
            static thread_local Scratch transformed;
            float* du = transformed.ensure(winograd.floats_of_gradient());
            std::memset(du, 0, size_t(winograd.floats_of_gradient()) * sizeof(float));
            for (int64_t n = begin, count; n < end; n += count) {
                count = std::min(winograd.images_at_once(), end - n);
                winograd.accumulate(image + (n - begin) * x_floats, gradient + (n - begin) * dy_floats, count, du);
            }
            winograd.finish(du, my_dw);
        } else {
            float* padded = padded_scratch(padding);
            for (int64_t n = 0; n < end - begin; ++n) {
                padding.copy(image + n * x_floats, padded);
                isa().conv->wgrad(g, padded, widen(gradient + n * dy_floats, p * q, k, wide), my_dw);
            }
        }
        std::vector<float> image_db(static_cast<size_t>(period)), unused(static_cast<size_t>(period));
        for (int64_t n = 0; n < end - begin; ++n) {
            std::fill(image_db.begin(), image_db.end(), 0.0f);
            isa().elements->channel_sums(gradient + n * dy_floats, dy_floats, period, zero, image_db.data(), unused.data());
            for (int64_t i = 0; i < period; ++i) my_db[i] += image_db[size_t(i)];
        }
    });

    // Over the groups in order, and from [r taps k] to [k r taps]: some taps at a time, so that both sides of the
    // transposition are touched in whole cache lines.
    constexpr int64_t kTapsAtOnce = 16;
    float* out = dw.data<float>();
    parallel((r * taps + kTapsAtOnce - 1) / kTapsAtOnce, [&](int64_t task) {
        const int64_t first = task * kTapsAtOnce, count = std::min(kTapsAtOnce, r * taps - first);
        static thread_local Scratch scratch;
        float* sum = scratch.ensure(kTapsAtOnce * wide);
        std::fill_n(sum, count * wide, 0.0f);
        for (int64_t group = 0; group < groups; ++group)
            isa().elements->add(sum, parts + group * part_floats + first * wide, sum, count * wide);
        for (int64_t i = 0; i < k; ++i)
            for (int64_t tap = 0; tap < count; ++tap) out[i * r * taps + first + tap] = sum[tap * wide + i];
    });
    for (int64_t i = 0; i < k; ++i) {
        float sum = 0;
        for (int64_t group = 0; group < groups; ++group)
            for (int64_t j = i; j < period; j += k) sum += parts[group * part_floats + dw_floats + j];
        db.data<float>()[i] = sum;
    }
}

} // namespace rg::cpu
