// Convolution, alone or fused with a normalisation of its input or its result. Distributes the images over threads. An
// engine of conv_engine.h convolves them.
//
// A thread processes one image or a few completely, while they stay in its second-level cache: padding (with
// normalisation), convolution, statistics of the result, ReLU, rounding, max pooling.
#include "core/cpu/dense.h"
#include "core/cpu/pool.h"
#include "core/cpu/tile_engine.h"
#include "core/kernels.h"

#include <optional>

namespace rg::cpu {

namespace {

/// Processes each image [p q k] of the convolution's result, and writes it to y.
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
    /// Pools values that are already rounded.
    template <class T>
    void pool(int64_t n, const T* rounded) const {
        max_pool_image(rounded, p, q, k, window, image<T>(n));
    }
    /// Processes the convolution's f32 values, which may already be in y.
    template <class T>
    void finish(int64_t n, float* convolved) const {
        if (relu) isa().elements->f32.relu(convolved, convolved, values());
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
    float* in_place = nullptr; // the engine writes f32 results without pooling directly to y
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
void convolve(const Images<T>& x, const Padding& padding, Filters filters, int64_t stride, const float* bias,
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

/// Convolves x with w and writes call.out: the result, and its statistics if attrs.stats is set. With `norm`, x is
/// normalised on load. `scale` multiplies the filters of each output channel.
void forward(const Call& call, const Tensor& x, const Tensor& w, const PaddedBias& bias, const Norm* norm,
             const float* scale) {
    const int64_t pad = call.attrs.pad;
    const Padding padding{x.extent(1),           x.extent(2), x.extent(3), x.extent(1) + 2 * pad,
                          x.extent(2) + 2 * pad, pad,         pad,         1};
    Filters filters = filters_of(w);
    filters.scale = scale;
    const Tensor& y = call.out[0];
    const int64_t stride = call.attrs.stride, p = (padding.rows - w.extent(1)) / stride + 1,
                  q = (padding.columns - w.extent(2)) / stride + 1;
    std::optional<StatsCollector> stats;
    if (call.attrs.stats) stats.emplace(y.extent(0), p * q, y.extent(3));
    const Epilogue epilogue{y,
                            p,
                            q,
                            y.extent(3),
                            stats ? &*stats : nullptr,
                            scale && call.attrs.relu,
                            std::max<int64_t>(1, call.attrs.window)};
    with_stored(
        x, [&](auto t) { convolve(images_of<decltype(t)>(x, norm), padding, filters, stride, bias.data(), epilogue); });
    if (stats) stats->finish(call.out[1]);
}

} // namespace

void conv2d(const Call& call) {
    const Tensor &x = call.in[0], &w = call.in[1];
    if (dense::fits(x, w.extent(1), w.extent(2), call.attrs) && !call.attrs.stats)
        return dense::forward(x, w, call.in[2], call.out[0]);
    forward(call, x, w, PaddedBias(call.in[2], w.extent(0)), nullptr, nullptr);
}

void norm_conv2d(const Call& call) {
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon, call.attrs.relu);
    const Tensor& w = call.in[4];
    forward(call, call.in[0], w, PaddedBias(call.in[5], w.extent(0)), &norm, nullptr);
}

// Folds the normalisation of the result into the filters and the bias.
void conv2d_norm(const Call& call) {
    const Tensor& w = call.in[1];
    const Norm norm(call.in[3], call.in[4], call.in[5], call.attrs.epsilon, call.attrs.relu);
    const Tensor& b = call.in[2];
    const PaddedBias bias(
        [&](int64_t k) { return (b.defined() ? b.data<float>()[k] : 0) * norm.scale[k] + norm.shift[k]; }, norm.c);
    forward(call, call.in[0], w, bias, nullptr, norm.scale);
}

void conv2d_dgrad(const Call& call) {
    const Tensor &dy = call.in[0], &w = call.in[1], &addend = call.in[2], &dx = call.out[0];
    if (dense::fits(dx, w.extent(1), w.extent(2), call.attrs)) return dense::dgrad(dy, w, addend, dx);
    const PaddedBias no_bias({}, dx.extent(3));
    const int64_t images = dx.extent(0), values = dx.extent(1) * dx.extent(2) * dx.extent(3);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        with_gradient_engine<T>(
            w, !std::is_same_v<T, float>, call.attrs.stride, call.attrs.pad, dy.shape(), dx.shape(),
            [&](const auto& engine) {
                const DataGradient<std::remove_cvref_t<decltype(engine)>, T> gradient{engine, no_bias.data(), values};
                const int64_t group = engine.images_at_once();
                parallel((images + group - 1) / group, [&](int64_t task) {
                    const int64_t first = task * group, count = std::min(group, images - first);
                    T* const out = stored<T>(dx) + first * values;
                    gradient(images_of<T>(dy), first, count, out);
                    if (addend.defined())
                        kernels<T>().add(out, stored<T>(addend) + first * values, out, count * values);
                });
            });
    });
}

} // namespace rg::cpu
