// Convolution, with the optional batch norm of its input or its result. Distributes the images over threads. An engine
// of conv_engine.h, winograd.h or tile_engine.h convolves them.
//
// A thread processes one image or a few completely, while they stay in its second-level cache: padding (with
// normalisation), convolution, statistics of the result, ReLU, rounding, max pooling.
#include "ringgrad/core/ops/conv.h"
#include "ringgrad/core/cpu/conv_groups.h"
#include "ringgrad/core/cpu/dense.h"
#include "ringgrad/core/cpu/pool.h"
#include "ringgrad/core/cpu/tile_engine.h"

namespace rg::cpu {

namespace {

/// Processes each image [p q k] of the convolution's result (statistics, ReLU, max pooling), and writes it to y.
struct Epilogue {
    const Tensor& y;
    int64_t p, q, k;
    StatsCollector* stats = nullptr;
    bool relu = false;
    int64_t window = 1; // window and stride of max pooling; 1: no pooling
    int64_t values() const { return p * q * k; }

    template <class T>
    T* image(int64_t n) const {
        return stored<T>(y) + n * (p / window) * (q / window) * k;
    }
    /// Pools image n, whose values are already rounded to T, into y.
    template <class T>
    void pool(int64_t n, const T* rounded) const {
        max_pool_image(rounded, p, q, k, window, image<T>(n));
    }
    /// Processes image n of the convolution's f32 result. If T is float, `convolved` may already be in y.
    template <class T>
    void finish(int64_t n, float* convolved) const {
        if (relu) isa().elements->f32.activation(convolved, convolved, values(), Activation::relu, 0);
        if (stats) stats->add(n, convolved);
        if constexpr (std::is_same_v<T, float>) {
            if (window > 1) pool(n, convolved);
        } else if (window > 1) {
            const Scratch<T> rounded(values());
            isa().elements->narrow(convolved, rounded, values());
            pool(n, rounded.data());
        } else {
            isa().elements->narrow(convolved, image<T>(n), values());
        }
    }
};

template <class Engine, class T>
void run(const Engine& engine, const Images<T>& x, const float* bias, const Epilogue& epilogue) {
    const int64_t images = epilogue.y.extent(0), group = engine.images_at_once();
    float* in_place = nullptr; // y, if the engine can write to it directly: f32 without pooling
    if constexpr (std::is_same_v<T, float>)
        if (epilogue.window == 1) in_place = epilogue.image<float>(0);
    parallel((images + group - 1) / group, [&](int64_t task) {
        const int64_t first = task * group, count = std::min(group, images - first);
        convolve_images(engine, x, first, count, bias, epilogue.values(), in_place,
                        [&](int64_t n, float* result) { epilogue.finish<T>(n, result); });
    });
}

/// Convolves all images with the fastest engine for these extents.
template <class T>
void convolve(const Images<T>& x, const Padding& padding, Filters filters, PerAxis stride, const float* bias,
              const Epilogue& epilogue) {
    const Method method = method_for<T>(padding, epilogue.p, epilogue.q, stride, filters);
    if (method == Method::tiles) {
        const TileEngine<T> engine(padding, epilogue.p, epilogue.q, stride, filters);
        return parallel(epilogue.y.extent(0), [&](int64_t n) {
            if (epilogue.window == 1)
                return engine.run(x, n, bias, epilogue.relu, epilogue.image<T>(n), epilogue.stats);
            const Scratch<T> result(epilogue.values());
            engine.run(x, n, bias, epilogue.relu, result.data(), epilogue.stats);
            epilogue.pool(n, result.data());
        });
    }
    filters.to_bf16 = !std::is_same_v<T, float>;
    if (method == Method::winograd)
        run(Winograd(padding, epilogue.p, epilogue.q, filters.k, filters), x, bias, epilogue);
    else
        run(Direct(padding, epilogue.p, epilogue.q, stride, filters), x, bias, epilogue);
}

} // namespace

void conv2d(const Call& call) {
    using O = Conv2dOp;
    const auto& a = call.attrs.as<O>();
    if (a.conv.groups > 1) return groups::conv2d(call);
    const Tensor &x = call.in[O::x], &w = call.in[O::w], &b = call.in[O::bias], &y = call.out[O::y];
    std::optional<Norm> x_norm, y_norm;
    make_norm(x_norm, call.in.subspan(O::x_stats, 3), a.x_norm);
    make_norm(y_norm, call.in.subspan(O::y_stats, 3), a.y_norm);
    if (dense::fits(x, w.extent(1), w.extent(2), a.conv) && !x_norm && !y_norm && !a.with_stats)
        return dense::forward(x, w, b, y);
    const PerAxis stride = a.conv.stride, pad = a.conv.pad, dilation = a.conv.dilation;
    const Padding padding{
        x.extent(1), x.extent(2), x.extent(3), x.extent(1) + 2 * pad.h, x.extent(2) + 2 * pad.w, pad.h, pad.w, 1};
    const int64_t k = w.extent(0), p = (padding.rows - dilation.h * (w.extent(1) - 1) - 1) / stride.h + 1,
                  q = (padding.columns - dilation.w * (w.extent(2) - 1) - 1) / stride.w + 1;
    // The batch norm of the result goes into the filters and the bias.
    Filters filters = filters_of(w, dilation);
    if (y_norm) filters.scale = y_norm->scale;
    const auto bias_of = [&](int64_t i) {
        const float value = b.defined() ? b.data<float>()[i] : 0;
        return y_norm ? value * y_norm->scale[i] + y_norm->shift[i] : value;
    };
    const PaddedBias bias(bias_of, k);
    std::optional<StatsCollector> stats;
    if (a.with_stats) stats.emplace(y.extent(0), p * q, k);
    const Epilogue epilogue{y, p, q, k, stats ? &*stats : nullptr, y_norm && a.y_norm.relu, a.pool};
    with_stored(x, [&](auto t) {
        convolve(images_of<decltype(t)>(x, x_norm ? &*x_norm : nullptr), padding, filters, stride, bias.data(),
                 epilogue);
    });
    if (stats) stats->finish(call.out[O::stats]);
}

} // namespace rg::cpu
