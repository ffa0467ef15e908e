// Gradients of a convolution, with the optional gradient of a batch norm of its result, and the optional sums for the
// batch norm of its input.
//
// With a batch norm of the result, each image is processed once. The gradient of the batch norm, which is the gradient
// dy at the convolution's result, goes to scratch memory. The products of dy with the input are added to the weight
// gradient. The convolution of dy gives the data gradient. The sums that the input's batch norm needs are computed from
// the data gradient and the input while both are in cache. Without a batch norm of the result, the data gradient is
// computed in a pass of its own.
//
// Weight gradients are summed over fixed parts of the mini-batch, and then over the parts in order. Large ones are
// computed at the end instead, from all images (TileWgrad). In both cases, the bits do not depend on the number of
// threads.
#include "core/cpu/conv_choice.h"
#include "core/cpu/dense.h"
#include "core/cpu/depthwise.h"
#include "core/cpu/tile_engine.h"
#include "core/cpu/winograd.h"

namespace rg::cpu {

namespace {

/// The geometry of a convolution, and of its weight gradient by register tiles.
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
          padding(padding_of(x.shape(), conv.pad)),
          taps(s * filters.extent(3)),
          pixels(pixels_per_vector(extents(), q, conv.stride.w, isa().width)),
          wide(round_up(pixels * k, isa().width)),
          row_taps((s + (pixels - 1) * conv.stride.w) * filters.extent(3)) {}
    int64_t x_values() const { return padding.h * padding.w * c; }
    int64_t dy_values() const { return p * q * k; }
    /// Returns the filters without their values.
    Filters extents() const {
        return {.k = k, .r = r, .s = s, .c = c, .dilation = conv.dilation, .groups = conv.groups};
    }

    int64_t images, c, k, r, s, p, q;
    Conv conv;
    Padding padding;        // position of the input x in its padded copy
    int64_t taps;           // number of values in a filter row
    int64_t pixels;         // number of neighbouring results in one vector, see MultiPixelFilters
    int64_t wide, row_taps; // MultiPixelFilters: their number, rounded up to whole vectors; values in a filter row
};

/// Sums the weight gradient of a part of the mini-batch by register tiles or by Winograd. TileWgrad uses tiles of bf16
/// instead.
class F32Wgrad {
public:
    F32Wgrad(const Geometry& g, bool by_winograd)
        : g_(g),
          by_winograd_(by_winograd),
          winograd_(g.padding, g.p, g.q, g.extents()),
          runs_(g.padding, {.k = g.wide,
                            .r = g.r,
                            .s = g.s + (g.pixels - 1) * g.conv.stride.w,
                            .c = g.c,
                            .dilation = g.conv.dilation}),
          direct_(runs_.image(g.p, g.q / g.pixels, g.wide, {g.conv.stride.h, g.pixels * g.conv.stride.w})) {}

    int64_t images_at_once() const { return by_winograd_ ? winograd_.images_at_once() : 1; }
    /// Returns the number of values in the sums of a part: [r row_taps wide].
    int64_t sums() const { return g_.r * g_.row_taps * g_.wide; }
    /// Returns the number of values in Winograd's transformed sums, or 0 without Winograd. The caller sets them to 0
    /// before the first add(). transform_sums() computes the sums from them.
    int64_t transformed_sums() const { return by_winograd_ ? winograd_.floats_of_gradient() : 0; }

    template <class T>
    void add(const Images<T>& x, int64_t first, int64_t count, const float* dy, float* dw, float* transformed) const {
        if (by_winograd_) return winograd_.accumulate(x, first, count, dy, transformed);
        const Scratch<float> widened(dy_fills_vectors() ? 0 : g_.p * g_.q * g_.wide);
        for (int64_t i = 0; i < count; ++i) {
            const PaddedImages padded(g_.padding, 0, x, first + i, 1);
            isa().conv->wgrad(direct_, padded.data(), in_whole_vectors(dy + i * g_.dy_values(), widened), dw);
        }
    }
    void transform_sums(float* dw, const float* transformed) const {
        if (by_winograd_) winograd_.transform_gradient(transformed, dw);
    }

    /// Computes dw [k r taps] from the sums of all parts, in order. The sums of the next part begin `step` values
    /// later.
    void combine(int64_t parts, const float* sums, int64_t step, const Tensor& dw) const {
        const int64_t chunks = divide_up(g_.taps, kTapsPerChunk);
        parallel(g_.r * chunks, [&](int64_t task) {
            combine_taps(parts, sums, step, task / chunks, task % chunks * kTapsPerChunk, dw.data<float>());
        });
    }

private:
    /// The register tiles read dy in whole vectors. Returns true if the channels of one pixel, or of the `pixels`
    /// results that share a vector, fill whole vectors.
    bool dy_fills_vectors() const { return g_.wide == g_.pixels * g_.k; }
    /// Returns dy in whole vectors: dy itself if it has that form, else `widened`, filled with dy and zeros.
    const float* in_whole_vectors(const float* dy, float* widened) const {
        if (dy_fills_vectors()) return dy;
        for (int64_t i = 0; i < g_.p * g_.q; ++i) {
            std::memcpy(widened + i * g_.wide, dy + i * g_.k, size_t(g_.k) * sizeof(float));
            std::fill_n(widened + i * g_.wide + g_.k, g_.wide - g_.k, 0.0f);
        }
        return widened;
    }

    /// Number of taps that are copied at once from [r row_taps wide] to [k r taps], so that the copy reads and writes
    /// whole cache lines.
    static constexpr int64_t kTapsPerChunk = 16;
    /// Computes dw like combine(), for a chunk of taps of filter row `row`, from tap `first` on. If several pixels of y
    /// share a vector, each has its own taps and lanes; their contributions are added.
    void combine_taps(int64_t parts, const float* sums, int64_t step, int64_t row, int64_t first, float* dw) const {
        const int64_t count = std::min(kTapsPerChunk, g_.taps - first);
        const Scratch<float> sum(kTapsPerChunk * g_.wide);
        for (int64_t pixel = 0; pixel < g_.pixels; ++pixel) {
            const int64_t from = (row * g_.row_taps + first + pixel * g_.conv.stride.w * g_.c) * g_.wide;
            sum.zeroed();
            for (int64_t part = 0; part < parts; ++part)
                isa().elements->f32.add(sum, sums + part * step + from, sum, count * g_.wide);
            for (int64_t i = 0; i < g_.k; ++i)
                for (int64_t tap = 0; tap < count; ++tap) {
                    float& to = dw[(i * g_.r + row) * g_.taps + first + tap];
                    to = (pixel ? to : 0.0f) + sum[tap * g_.wide + pixel * g_.k + i];
                }
        }
    }

    Geometry g_;
    bool by_winograd_; // false: register tiles
    Winograd winograd_;
    TapRuns runs_;
    ConvImage direct_;
};

/// Returns the number of parts of the mini-batch, each with its own sums. At most 16 threads can work on different
/// parts, but the addition of so few sums costs little. The number depends only on the number of images, so that the
/// bits of the result do not depend on the number of threads.
int64_t parts_of(int64_t images) { return std::min(images, std::clamp<int64_t>(images / 8, 4, 16)); }

/// Inputs of the gradients. T is the type that the images are stored as.
template <class T>
struct GradientInputs {
    Images<T> x;          // input of the convolution, possibly normalised on load
    const T* dy;          // gradient of the convolution's result, or with `norm`, of the normalised result
    const NormGrad* norm; // gradient of the normalisation that follows, or null
    const T* y;           // the convolution's result; only with `norm`
    const T* addend;      // added to the data gradient, or null
};

/// Results of the gradients. dx may be undefined, and `sums` null.
struct GradientResults {
    const Tensor &dw, &dbias;
    const Tensor dx;
    NormSums* sums; // for the batch norm of the convolution's input
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

/// Adds the gradients of images [begin, end) to the sums dw, which has wgrad.sums() values, and db [period_of(k)].
/// Unless `dgrad` is nullptr, calls dgrad(dy, first, count) for a few images at a time; its dy begins at image `first`.
template <class To, class T, class Wgrad, class Dgrad>
void add_gradients(const Geometry& g, const GradientInputs<T>& in, int64_t begin, int64_t end, const Wgrad& wgrad,
                   const Dgrad& dgrad, float* dw, float* db) {
    const int64_t most = wgrad.images_at_once(), values = g.dy_values(), period = period_of(g.k);
    const Scratch<float> transformed(wgrad.transformed_sums()), image_db(2 * period);
    const Scratch<To> dy_scratch(in.norm || !std::is_same_v<T, To> ? most * values : 0);
    const PerChannel zero(g.k, [](int64_t) { return 0.0f; });
    transformed.zeroed();
    for (int64_t first = begin, count; first < end; first += count) {
        count = std::min(most, end - first);
        const To* const dy = make_gradient(in, first, count, values, dy_scratch.data());
        wgrad.add(in.x, first, count, dy, dw, transformed);
        for (int64_t i = 0; i < count; ++i) {
            float* const sum = image_db.zeroed();
            kernels<To>().channel_sums(dy + i * values, values, period, zero, sum, sum + period);
            isa().elements->f32.add(db, sum, db, period);
        }
        if constexpr (!std::is_null_pointer_v<Dgrad>) dgrad(dy, first, count);
    }
    wgrad.transform_sums(dw, transformed);
}

/// Computes dw and dbias. `wgrad` is an F32Wgrad, a Depthwise or a TileWgrad that reads dy as To. add_gradients() calls
/// `dgrad`, unless that is nullptr.
template <class To, class T, class Wgrad, class Dgrad>
void gradients(const Geometry& g, const GradientInputs<T>& in, const Wgrad& wgrad, const Dgrad& dgrad,
               const GradientResults& out) {
    const int64_t parts = parts_of(g.images), period = period_of(g.k), step = wgrad.sums() + period;
    const Scratch<float> sums(parts * step); // for each part of the mini-batch: sums of dw, then of dbias [period]
    float* const db = sums + wgrad.sums();
    parallel(parts, [&](int64_t part) {
        std::fill_n(sums + part * step, step, 0.0f);
        add_gradients<To>(g, in, g.images * part / parts, g.images * (part + 1) / parts, wgrad, dgrad,
                          sums + part * step, db + part * step);
    });
    wgrad.combine(parts, sums, step, out.dw);
    for (int64_t i = 0; i < g.k; ++i) {
        float sum = 0;
        for (int64_t part = 0; part < parts; ++part)
            for (int64_t j = i; j < period; j += g.k) sum += db[part * step + j];
        out.dbias.data<float>()[i] = sum;
    }
}

/// Calls f with the engine of `method` for the data gradient of a convolution with filters w. The engine maps dy,
/// stored as In, to dx. With to_bf16, it rounds the filters to bf16. TileEngine<float> may ignore to_bf16, since it
/// multiplies each filter as the sum of two bf16.
template <class In, class F>
void with_gradient_engine(Method method, const Tensor& w, bool to_bf16, const Conv& conv, const Shape& dy,
                          const Shape& dx, F f) {
    const int64_t p = dy[1], q = dy[2], height = dx[1], width = dx[2];
    Filters rotated = rotated_filters_of(w, conv);
    rotated.to_bf16 = to_bf16;
    const Padding padding = dgrad_padding(dx, w.shape(), dy, conv);
    if (method == Method::depthwise) return f(Depthwise(padding, height, width, 1, rotated));
    if (conv.stride == 2 && conv.dilation == 1) {
        if (method == Method::tiles) return f(Stride2Gradient<TileEngine<In>>(rotated, conv.pad, p, q, height, width));
        return f(Stride2Gradient<Direct>(rotated, conv.pad, p, q, height, width));
    }
    if (method == Method::tiles) return f(TileEngine<In>(padding, height, width, 1, rotated));
    if (method == Method::winograd) return f(Winograd(padding, height, width, rotated));
    f(Direct(padding, height, width, 1, rotated));
}

/// Computes the data gradient dx [count h w c], an image of which has `values` values, from images [first, first +
/// count) of dy. `engine` maps dy to dx; its bias is `zeros`. Adds `addend` to dx unless that is null.
template <class Engine, class In, class T>
void data_gradient(const Engine& engine, const float* zeros, const Images<In>& dy, int64_t first, int64_t count,
                   int64_t values, const T* addend, T* dx) {
    using Result = typename Engine::Result;
    constexpr bool kInPlace = std::is_same_v<Result, T>;
    const int64_t most = engine.images_at_once();
    const Scratch<Result> scratch(kInPlace ? 0 : std::min(most, count) * values);
    for (int64_t i = 0, n; i < count; i += n) {
        n = std::min(most, count - i);
        if constexpr (kInPlace) {
            engine.run(dy, first + i, n, {dx + i * values, zeros});
        } else {
            engine.run(dy, first + i, n, {scratch, zeros});
            isa().elements->narrow(scratch, dx + i * values, n * values);
        }
    }
    if (addend) kernels<T>().add(dx, addend, dx, count * values);
}

/// The argument dgrad of add_gradients(). Computes dx for a few images, and adds their part of the input batch norm's
/// dgamma and dbeta to GradientResults::sums, unless that is null.
template <class Engine, class T>
struct FusedDgrad {
    const Engine& engine;
    const Geometry& g;
    const GradientInputs<T>& in;
    const GradientResults& out;
    const float* zeros;

    template <class To>
    void operator()(const To* dy, int64_t first, int64_t count) const {
        const int64_t values = g.x_values(), begin = first * values;
        T* const dx = stored<T>(out.dx) + begin;
        data_gradient(engine, zeros, Images<To>{dy, g.p, g.q, g.k}, 0, count, values,
                      in.addend ? in.addend + begin : nullptr, dx);
        for (int64_t i = 0; out.sums && i < count; ++i)
            out.sums->add(first + i, dx + i * values, in.x.data + begin + i * values, values);
    }
};

/// Computes the weight gradient with `wgrad`, which reads dy as To. If dx is defined, computes the data gradient in the
/// same pass over dy, by the method `data`. Otherwise does not read w.
template <class To, class T, class Wgrad>
void gradients_with(const Wgrad& wgrad, Method data, const Geometry& g, const GradientInputs<T>& in, const Tensor& w,
                    const GradientResults& out) {
    if (!out.dx.defined()) return gradients<To>(g, in, wgrad, nullptr, out);
    const Scratch<float> zeros(bias_values(g.c));
    zeros.zeroed();
    const Shape dy{g.images, g.p, g.q, g.k};
    with_gradient_engine<To>(data, w, std::is_same_v<T, uint16_t>, g.conv, dy, out.dx.shape(), [&](const auto& engine) {
        const FusedDgrad<std::decay_t<decltype(engine)>, T> dgrad{engine, g, in, out, zeros};
        gradients<To>(g, in, wgrad, dgrad, out);
    });
}

/// Computes the weight gradient by the method `filters`, and if dx is defined, the data gradient by the method `data`.
template <class T>
void all_gradients(Method filters, Method data, const Geometry& g, const GradientInputs<T>& in, const Tensor& w,
                   const GradientResults& out) {
    if (filters == Method::tiles) {
        const TileWgrad<T> tiles(g.padding, g.images, g.p, g.q, g.extents(), g.conv.stride.h);
        return gradients_with<T>(tiles, data, g, in, w, out);
    }
    if (filters == Method::depthwise)
        return gradients_with<float>(Depthwise(g.padding, g.p, g.q, g.conv.stride, g.extents()), data, g, in, w, out);
    gradients_with<float>(F32Wgrad(g, filters == Method::winograd), data, g, in, w, out);
}

/// Computes the data gradient alone, and adds `addend` if that tensor is defined.
void data_gradient_alone(Method method, const Tensor& dy, const Tensor& w, const Tensor& addend, const Conv& conv,
                         const Tensor& dx) {
    const Scratch<float> zeros(bias_values(dx.extent(3)));
    zeros.zeroed();
    const int64_t images = dx.extent(0), values = image_values(dx);
    with_stored(dy, [&]<class T>(T) {
        const auto run = [&](const auto& engine) {
            const int64_t chunk = engine.images_at_once();
            parallel(divide_up(images, chunk), [&](int64_t task) {
                const int64_t first = task * chunk;
                data_gradient(engine, zeros, images_of<T>(dy), first, std::min(chunk, images - first), values,
                              addend.defined() ? stored<T>(addend) + first * values : nullptr,
                              stored<T>(dx) + first * values);
            });
        };
        with_gradient_engine<T>(method, w, std::is_same_v<T, uint16_t>, conv, dy.shape(), dx.shape(), run);
    });
}

} // namespace

void conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &w = call.in[O::w], &addend = call.in[O::addend];
    const Tensor &y = call.in[O::y], &dw = call.out[O::dw], &dbias = call.out[O::dbias], &dx = call.out[O::dx];
    // Without a batch norm of the result, a common pass would only spare a second read of dy from memory. In a pass of
    // its own, the data gradient may take more images at once.
    const bool fused = y.defined() && a.data;
    const auto method_of = [&](Pass pass, DType read) {
        const Shape& images = (a.data ? dx : x).shape();
        return method_for({pass, images, w.shape(), dy.shape(), a.conv, dy.dtype(), read, !y.defined()});
    };
    const Method filters = a.filters ? method_of(Pass::wgrad, dy.dtype()) : Method::direct;
    // In a common pass, the data gradient reads dy in the type that the weight gradient reads.
    const DType read = fused && filters != Method::tiles ? DType::f32 : dy.dtype();
    const Method data = a.data ? method_of(Pass::dgrad, read) : filters;
    // Each of these two methods is chosen for both gradients, or for neither.
    if (data == Method::group_by_group) return group_by_group::conv2d_grad(call);
    if (data == Method::dense) {
        if (a.filters) dense::wgrad(dy, x, dw, dbias);
        if (a.data) dense::dgrad(dy, w, addend, dx);
        return;
    }
    if (a.data && !fused) data_gradient_alone(data, dy, w, addend, a.conv, dx);
    if (!a.filters) return;
    const Geometry g(x, dy, w, a.conv);
    const OptionalNorm y_norm(a.y_norm.given(call.in)), x_norm(a.x_norm.given(call.in));
    std::optional<NormGrad> y_grad;
    std::optional<NormSums> sums;
    if (y_norm) y_grad.emplace(*y_norm, call.in[O::y_sums], double(y.numel() / g.k));
    if (a.with_sums) sums.emplace(*x_norm, g.images);
    with_stored(x, [&]<class T>(T) {
        const GradientInputs<T> in{images_of<T>(x, x_norm ? &*x_norm : nullptr), stored<T>(dy),
                                   y_grad ? &*y_grad : nullptr, y.defined() ? stored<T>(y) : nullptr,
                                   addend.defined() ? stored<T>(addend) : nullptr};
        all_gradients(filters, data, g, in, w, {dw, dbias, fused ? dx : Tensor(), sums ? &*sums : nullptr});
    });
    if (sums) sums->finish(call.out[O::x_dgamma], call.out[O::x_dbeta]);
}

} // namespace rg::cpu
