// Gradients of a convolution, with the optional gradient of a batch norm of its result, and the optional sums for the
// batch norm of its input.
//
// With a batch norm of the result, each image is processed once. The gradient of the batch norm, which is the gradient
// dy at the convolution's result, goes to scratch memory. The products of dy with the input are added to the weight
// gradient. The convolution of dy gives the data gradient. The sums that the input's batch norm needs are computed from
// the data gradient and the input while both are in cache. Without a batch norm of the result, the data gradient is
// computed in a pass of its own.
//
// Weight gradients are summed per fixed group of images, and then over the groups in order. Large ones are computed at
// the end instead, from all images (TileWgrad). In both cases, the bits do not depend on the number of threads.
#include "ringgrad/core/cpu/conv_groups.h"
#include "ringgrad/core/cpu/dense.h"
#include "ringgrad/core/cpu/tile_engine.h"
#include "ringgrad/core/ops/conv.h"

namespace rg::cpu {

namespace {

struct Geometry {
    Geometry(const Tensor& x, const Tensor& dy, const Tensor& filters, const Conv& options)
        : images(x.extent(0)),
          c(x.extent(3)),
          k(dy.extent(3)),
          r(filters.extent(1)),
          s(filters.extent(2)),
          p(dy.extent(1)),
          q(dy.extent(2)),
          conv(options),
          padding(padding_of(x, conv.pad)),
          taps(s * filters.extent(3)),
          pixels(pixels_per_vector(filters_of(filters, conv), q, conv.stride.w, isa().width)),
          wide(round_up(pixels * k, isa().width)),
          row_taps((s + (pixels - 1) * conv.stride.w) * filters.extent(3)),
          winograd(pixels == 1 && (conv.groups > 1 || Winograd::fits(filters_of(filters, conv), conv.stride, p, q))) {}
    int64_t x_values() const { return padding.h * padding.w * c; }
    int64_t dy_values() const { return p * q * k; }

    int64_t images, c, k, r, s, p, q;
    Conv conv;
    Padding padding;        // of x
    int64_t taps;           // number of taps in a filter row
    int64_t pixels;         // number of neighbouring results in one vector, see WidenedFilters
    int64_t wide, row_taps; // widened filters: their number, rounded up to whole vectors; taps in a filter row
    bool winograd;          // true: F32Wgrad uses Winograd. It does not pay off where results share a vector
};

/// Sums the weight gradient of a group of images by register tiles or by Winograd. TileWgrad uses tiles of bf16
/// instead.
class F32Wgrad {
public:
    explicit F32Wgrad(const Geometry& g)
        : g_(g),
          winograd_(g.padding, g.p, g.q,
                    {.k = g.k, .r = g.r, .s = g.s, .c = g.c, .dilation = g.conv.dilation, .groups = g.conv.groups}),
          runs_(g.padding, {.k = g.wide,
                            .r = g.r,
                            .s = g.s + (g.pixels - 1) * g.conv.stride.w,
                            .c = g.c,
                            .dilation = g.conv.dilation}),
          direct_(runs_.image(g.p, g.q / g.pixels, g.wide, {g.conv.stride.h, g.pixels * g.conv.stride.w})) {}

    int64_t images_at_once() const { return g_.winograd ? winograd_.images_at_once() : 1; }
    /// Returns the number of values in the sums of a group: [r row_taps wide].
    int64_t sums() const { return g_.r * g_.row_taps * g_.wide; }
    /// Returns the number of values in Winograd's transformed sums. They start at zero; end() transforms them and
    /// stores the result as the sums. Returns 0 without Winograd.
    int64_t transformed() const { return g_.winograd ? winograd_.floats_of_gradient() : 0; }

    template <class T>
    void add(const Images<T>& x, int64_t first, int64_t count, const float* dy, float* dw, float* transformed) const {
        if (g_.winograd) return winograd_.accumulate(x, first, count, dy, transformed);
        const Scratch<float> padded(g_.padding.values()), widened(in_whole_vectors() ? 0 : g_.p * g_.q * g_.wide);
        for (int64_t i = 0; i < count; ++i) {
            g_.padding.copy(x, first + i, padded.data());
            isa().conv->wgrad(direct_, padded, in_whole_vectors(dy + i * g_.dy_values(), widened), dw);
        }
    }
    void end(float* dw, const float* transformed) const {
        if (g_.winograd) winograd_.finish(transformed, dw);
    }

    /// Computes dw [k r taps] from the sums of the groups, in order of the groups.
    void combine(int64_t groups, const float* parts, int64_t part, const Tensor& dw) const {
        // Copies from [r row_taps wide] to [k r taps] in chunks of taps, so that it reads and writes whole cache lines.
        // If several pixels of y share a vector, each has its own taps and lanes; their contributions are added.
        constexpr int64_t kTapsPerChunk = 16;
        float* out = dw.data<float>();
        const int64_t filter_size = g_.r * g_.taps, chunks = (g_.taps + kTapsPerChunk - 1) / kTapsPerChunk;
        parallel(g_.r * chunks, [&](int64_t task) {
            const int64_t row = task / chunks, first = task % chunks * kTapsPerChunk;
            const int64_t count = std::min(kTapsPerChunk, g_.taps - first);
            const Scratch<float> sum(kTapsPerChunk * g_.wide);
            for (int64_t pixel = 0; pixel < g_.pixels; ++pixel) {
                const int64_t from = (row * g_.row_taps + first + pixel * g_.conv.stride.w * g_.c) * g_.wide;
                sum.zeroed();
                for (int64_t group = 0; group < groups; ++group)
                    isa().elements->f32.add(sum, parts + group * part + from, sum, count * g_.wide);
                for (int64_t i = 0; i < g_.k; ++i)
                    for (int64_t tap = 0; tap < count; ++tap) {
                        float& to = out[i * filter_size + row * g_.taps + first + tap];
                        to = (pixel ? to : 0.0f) + sum[tap * g_.wide + pixel * g_.k + i];
                    }
            }
        });
    }

private:
    /// The register tiles read dy in whole vectors. Returns true if the channels of one pixel, or of the `pixels`
    /// results that share a vector, fill whole vectors.
    bool in_whole_vectors() const { return g_.wide == g_.pixels * g_.k; }
    /// Returns dy in whole vectors: dy itself if it has that form, else `widened`, filled with dy and zeros.
    const float* in_whole_vectors(const float* dy, float* widened) const {
        if (in_whole_vectors()) return dy;
        for (int64_t i = 0; i < g_.p * g_.q; ++i) {
            std::memcpy(widened + i * g_.wide, dy + i * g_.k, size_t(g_.k) * sizeof(float));
            std::fill_n(widened + i * g_.wide + g_.k, g_.wide - g_.k, 0.0f);
        }
        return widened;
    }

    Geometry g_;
    Winograd winograd_;
    Runs runs_;
    ConvImage direct_;
};

/// Returns the number of groups of images, each with its own sums. At most 16 threads can work on different groups, but
/// the addition of so few sums costs little. The number depends only on the number of images, so that the bits of
/// the result do not depend on the number of threads.
int64_t groups_of(int64_t images) { return std::min(images, std::clamp<int64_t>(images / 8, 4, 16)); }

/// Inputs of the gradients. T is the type that the images are stored as.
template <class T>
struct GradientInputs {
    Images<T> x;          // input of the convolution, possibly normalised on load
    const T* dy;          // gradient of the convolution's result, or with `norm`, of the normalised result
    const NormGrad* norm; // gradient of the normalisation that follows, or null
    const T* y;           // the convolution's result; only with `norm`
    const T* addend;      // added to the data gradient, or null
};

/// Returns the gradient of the convolution's result for images [first, first + count), as To. This is dy itself if
/// there is no `norm` and dy has type To, else the contents of `scratch`.
template <class T, class To>
const To* make_gradient(const GradientInputs<T>& in, int64_t first, int64_t count, int64_t values, To* scratch) {
    const T *const dy = in.dy + first * values, *const y = in.y ? in.y + first * values : nullptr;
    if constexpr (std::is_same_v<T, To>) {
        if (!in.norm) return dy;
        in.norm->apply(dy, y, scratch, count * values);
    } else {
        const Scratch<T> rounded(in.norm ? values : 0);
        for (int64_t i = 0; i < count; ++i) {
            if (in.norm) in.norm->apply(dy + i * values, y + i * values, rounded.data(), values);
            isa().elements->widen(in.norm ? rounded.data() : dy + i * values, scratch + i * values, values);
        }
    }
    return scratch;
}

/// Computes the gradients. `wgrad` is an F32Wgrad or a TileWgrad, and reads dy as To. `dgrad` writes the data gradient
/// to dx_out, and `sums` collects the sums for the input's batch norm; each may be null.
template <class To, class T, class Wgrad, class Dgrad>
void gradients(const Geometry& g, const GradientInputs<T>& in, const Wgrad& wgrad, const Dgrad* dgrad, T* dx_out,
               NormSums* sums, const Tensor& dw, const Tensor& db) {
    const int64_t groups = groups_of(g.images), period = period_of(g.k);
    const int64_t dw_floats = wgrad.sums(), part_floats = dw_floats + period;
    const Scratch<float> parts(groups * part_floats); // per group: the sums of dw, then db [period]
    const PerChannel zero(g.k, [](int64_t) { return 0.0f; });
    parallel(groups, [&](int64_t group) {
        float *const group_dw = parts + group * part_floats, *const group_db = group_dw + dw_floats;
        std::fill_n(group_dw, part_floats, 0.0f);
        const Scratch<float> transformed(wgrad.transformed());
        transformed.zeroed();
        const int64_t end = g.images * (group + 1) / groups, batch = wgrad.images_at_once();
        const Scratch<To> dy_scratch(in.norm || !std::is_same_v<T, To> ? batch * g.dy_values() : 0);
        const Scratch<float> image_db(2 * period);
        for (int64_t first = g.images * group / groups, count; first < end; first += count) {
            count = std::min(batch, end - first);
            const To* const dy = make_gradient(in, first, count, g.dy_values(), dy_scratch.data());
            wgrad.add(in.x, first, count, dy, group_dw, transformed);
            for (int64_t i = 0; i < count; ++i) {
                float* const sum = image_db.zeroed();
                kernels<To>().channel_sums(dy + i * g.dy_values(), g.dy_values(), period, zero, sum, sum + period);
                isa().elements->f32.add(group_db, sum, group_db, period);
            }
            if (!dgrad) continue;
            T* const out = dx_out + first * g.x_values();
            (*dgrad)(Images<To>{dy, g.p, g.q, g.k}, 0, count, out);
            if (in.addend) kernels<T>().add(out, in.addend + first * g.x_values(), out, count * g.x_values());
            for (int64_t i = 0; sums && i < count; ++i)
                sums->add(first + i, out + i * g.x_values(), in.x.data + (first + i) * g.x_values(), g.x_values());
        }
        wgrad.end(group_dw, transformed);
    });
    wgrad.combine(groups, parts, part_floats, dw);
    for (int64_t i = 0; i < g.k; ++i) {
        float sum = 0;
        for (int64_t group = 0; group < groups; ++group)
            for (int64_t j = i; j < period; j += g.k) sum += parts[group * part_floats + dw_floats + j];
        db.data<float>()[i] = sum;
    }
}

/// Returns true if the weight gradient should take less time by tiles. For bf16 images, tiles replace register tiles
/// always, and Winograd unless winograd_beats_bf16(). For f32 images, they replace Winograd if its transformed sums
/// exceed the cache, and register tiles if the estimate is lower by the margin of method_for(). In strict_fp32, they
/// are never used for f32 images.
template <class T>
bool tiles_are_faster(const Geometry& g, const TileWgrad<T>& tiles) {
    if (!std::is_same_v<T, float>) return !(g.winograd && winograd_beats_bf16(g.k, g.c));
    if (context().strict_fp32 || !isa().tiles->forward_f32) return false;
    if (g.winograd) return Winograd::exceeds_cache(g.k, g.c);
    return tiles.cycles() < 0.8 * 1.3 * double(g.p * (g.q / g.pixels) * g.r * g.row_taps * g.wide) / 32;
}

/// Chooses the engines and computes the gradients. If dx is undefined, computes no data gradient, and does not read w.
template <class T>
void all_gradients(const Geometry& g, const GradientInputs<T>& in, const Tensor& w, const Tensor& dx, NormSums* sums,
                   const Tensor& dw, const Tensor& db) {
    const PaddedBias no_bias({}, g.c);
    T* const dx_out = dx.defined() ? stored<T>(dx) : nullptr;
    const auto run_with = [&]<class To>(To, const auto& wgrad) {
        if (!dx.defined())
            return gradients<To, T, std::remove_cvref_t<decltype(wgrad)>, DataGradient<Direct, T>>(
                g, in, wgrad, nullptr, dx_out, sums, dw, db);
        constexpr bool kRounded = !std::is_same_v<T, float>;
        with_gradient_engine<To>(w, kRounded, g.conv, {g.images, g.p, g.q, g.k}, dx.shape(), [&](const auto& engine) {
            const DataGradient<std::remove_cvref_t<decltype(engine)>, T> dgrad{engine, no_bias.data(), g.x_values()};
            gradients<To>(g, in, wgrad, &dgrad, dx_out, sums, dw, db);
        });
    };
    if (isa().tiles && g.conv.dilation == 1 && g.conv.groups == 1 && g.conv.stride.h == g.conv.stride.w) {
        const TileWgrad<T> tiles(g.padding, g.images, g.p, g.q, g.k, g.r, g.s, g.conv.stride.h);
        if (tiles_are_faster(g, tiles)) return run_with(T{}, tiles);
    }
    run_with(float{}, F32Wgrad(g));
}

/// Computes the data gradient alone, and adds `addend` if that tensor is defined.
void data_gradient(const Tensor& dy, const Tensor& w, const Tensor& addend, const Conv& conv, const Tensor& dx) {
    const PaddedBias no_bias({}, dx.extent(3));
    const int64_t images = dx.extent(0), values = image_values(dx);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        with_gradient_engine<T>(w, !std::is_same_v<T, float>, conv, dy.shape(), dx.shape(), [&](const auto& engine) {
            const DataGradient<std::remove_cvref_t<decltype(engine)>, T> gradient{engine, no_bias.data(), values};
            const int64_t group = engine.images_at_once();
            parallel((images + group - 1) / group, [&](int64_t task) {
                const int64_t first = task * group, count = std::min(group, images - first);
                T* const out = stored<T>(dx) + first * values;
                gradient(images_of<T>(dy), first, count, out);
                if (addend.defined()) kernels<T>().add(out, stored<T>(addend) + first * values, out, count * values);
            });
        });
    });
}

} // namespace

void conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    if (groups::fits(call.in[O::w], a.conv, call.in[O::dy])) return groups::conv2d_grad(call);
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &w = call.in[O::w], &addend = call.in[O::addend];
    const Tensor &y = call.in[O::y], &dw = call.out[O::dw], &dbias = call.out[O::dbias], &dx = call.out[O::dx];
    if (!y.defined() && dense::fits(a.data ? dx : x, w.extent(1), w.extent(2), a.conv)) {
        if (a.filters) dense::wgrad(dy, x, dw, dbias);
        if (a.data) dense::dgrad(dy, w, addend, dx);
        return;
    }
    // Without a batch norm of the result, both gradients read dy from memory, so a common pass would save nothing. In a
    // pass of its own, the data gradient may take more images at once.
    const bool fused = y.defined() && a.data;
    if (a.data && !fused) data_gradient(dy, w, addend, a.conv, dx);
    if (!a.filters) return;
    const Geometry g(x, dy, w, a.conv);
    std::optional<Norm> y_norm, x_norm;
    std::optional<NormGrad> y_grad;
    std::optional<NormSums> sums;
    make_norm(y_norm, call.in.subspan(O::y_stats, 3), a.y_norm);
    make_norm(x_norm, call.in.subspan(O::x_stats, 3), a.x_norm);
    if (y_norm) y_grad.emplace(*y_norm, call.in[O::y_sums], double(y.numel() / g.k));
    if (a.with_sums) sums.emplace(*x_norm, g.images);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        all_gradients<T>(g,
                         {images_of<T>(x, x_norm ? &*x_norm : nullptr), stored<T>(dy), y_grad ? &*y_grad : nullptr,
                          y.defined() ? stored<T>(y) : nullptr, addend.defined() ? stored<T>(addend) : nullptr},
                         w, fused ? dx : Tensor(), sums ? &*sums : nullptr, dw, dbias);
    });
    if (sums) sums->finish(call.out[O::x_dgamma], call.out[O::x_dbeta]);
}

} // namespace rg::cpu
