// Convolution, alone and with normalisation before or after it: threads around the engines of conv_engine.h.
//
// Each thread takes an image or a few through all that is to be done with them while they stay in its second-level
// cache: padding (with normalisation on the way), convolution, statistics of the result, ReLU, rounding.
#include "core/cpu/dense.h"
#include "core/cpu/tile_engine.h"
#include "core/kernels.h"

#include <optional>

namespace rg::cpu {

namespace {

/// What happens to each image of the result.
struct After {
    const Tensor& y;
    StatsCollector* stats = nullptr;
    bool relu = false;

    template <class T>
    void operator()(int64_t n, float* values, T* out) const {
        const int64_t count = y.extent(1) * y.extent(2) * y.extent(3);
        if (relu) isa().elements->f32.relu(values, values, count);
        if (stats) stats->add(n, values);
        if constexpr (!std::is_same_v<T, float>) isa().elements->narrow(values, out + n * count, count);
    }
};

template <class Engine, class T>
void run(const Engine& engine, const Images<T>& x, const float* bias, const After& after) {
    const Tensor& y = after.y;
    const int64_t images = y.extent(0), values = y.extent(1) * y.extent(2) * y.extent(3),
                  group = engine.images_at_once();
    T* const out = stored<T>(y);
    float* const direct = std::is_same_v<T, float> ? reinterpret_cast<float*>(out) : nullptr;
    parallel((images + group - 1) / group, [&](int64_t task) {
        const int64_t first = task * group, count = std::min(group, images - first);
        convolve_images(engine, x, first, count, bias, values, direct,
                        [&](int64_t n, float* result) { after(n, result, out); });
    });
}

/// The engine that suits the extents, over all images.
template <class T>
void convolve(const Images<T>& x, const Padding& padding, Filters filters, int64_t stride, const float* bias,
              const After& after) {
    const int64_t p = after.y.extent(1), q = after.y.extent(2);
    if constexpr (!std::is_same_v<T, float>)
        if (isa().tiles) {
            const TileEngine engine(padding, p, q, stride, filters);
            return parallel(after.y.extent(0), [&](int64_t n) {
                engine.run(x, n, bias, after.relu, stored<T>(after.y) + n * p * q * filters.k, after.stats);
            });
        }
    filters.to_bf16 = !std::is_same_v<T, float>;
    if (stride == 1 && Winograd::fits(filters.k, filters.r, filters.s, filters.c))
        run(Winograd(padding, p, q, filters.k, filters), x, bias, after);
    else
        run(Direct(padding, p, q, stride, filters), x, bias, after);
}

/// x and w by their places among the inputs; norm: of x on the way in; out[0], and out[1] if statistics are wanted.
void forward(const Call& call, const Tensor& x, const Tensor& w, const PaddedBias& bias, const Norm* norm,
             const float* scale) {
    const int64_t pad = call.attrs.pad;
    const Padding padding{x.extent(1),           x.extent(2), x.extent(3), x.extent(1) + 2 * pad,
                          x.extent(2) + 2 * pad, pad,         pad,         1};
    Filters filters = filters_of(w);
    filters.scale = scale;
    const Tensor& y = call.out[0];
    std::optional<StatsCollector> stats;
    if (call.attrs.stats) stats.emplace(y.extent(0), y.extent(1) * y.extent(2), y.extent(3));
    const After after{y, stats ? &*stats : nullptr, scale && call.attrs.relu};
    with_stored(x, [&](auto t) {
        convolve(images_of<decltype(t)>(x, norm), padding, filters, call.attrs.stride, bias.data(), after);
    });
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

// The normalisation of the result goes into the filters and the bias.
void conv2d_norm(const Call& call) {
    const Tensor& w = call.in[1];
    const Norm norm(call.in[3], call.in[4], call.in[5], call.attrs.epsilon, call.attrs.relu);
    const PaddedBias bias(call.in[2], w.extent(0));
    for (int64_t k = 0; k < norm.c; ++k) bias.data()[k] = bias.data()[k] * norm.scale[k] + norm.shift[k];
    forward(call, call.in[0], w, bias, nullptr, norm.scale);
}

void conv2d_dgrad(const Call& call) {
    const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
    if (dense::fits(dx, w.extent(1), w.extent(2), call.attrs)) return dense::data(dy, w, dx);
    const int64_t r = w.extent(1), s = w.extent(2), pad = call.attrs.pad;
    const Padding padding{dy.extent(1),         dy.extent(2), dy.extent(3), dx.extent(1) + r - 1,
                          dx.extent(2) + s - 1, r - 1 - pad,  s - 1 - pad,  call.attrs.stride};
    const PaddedBias none({}, dx.extent(3));
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        if (call.attrs.stride == 2 && std::is_same_v<T, float>)
            return run(
                EverySecond<Direct, float>(w, pad, dy.extent(1), dy.extent(2), dx.extent(1), dx.extent(2), false),
                images_of<T>(dy), none.data(), After{dx});
        convolve(images_of<T>(dy), padding, turned_filters_of(w), 1, none.data(), After{dx});
    });
}

} // namespace rg::cpu
