// Convolution, possibly fused with batch norms. It applies the batch norm of its input while it copies the input, and
// multiplies a batch norm of its result, with known statistics, into filters and bias. The result has p x q pixels and
// k channels.
//
// Distributes the images over threads. An engine convolves them: Direct (conv_engine.h), Depthwise (depthwise.h),
// Winograd (winograd.h) or TileEngine (tile_engine.h). The engines call the kernels of conv_isa.cpp, depthwise_isa.cpp,
// winograd_isa.cpp and tiles_isa.cpp. conv_groups.cpp and dense.cpp take over some convolutions. conv_choice.cpp
// chooses between all of these. conv_grad.cpp computes gradients with the same engines.
//
// Usually a thread does all the work on one image or a few, while they stay in its second-level cache: the copy of the
// input, convolution, activation or statistics of the result, rounding.
#include "core/cpu/conv_choice.h"
#include "core/cpu/dense.h"
#include "core/cpu/depthwise.h"
#include "core/cpu/tile_engine.h"
#include "core/cpu/winograd.h"

namespace rg::cpu {

namespace {

/// Least number of bytes of a result that tiles store past the caches. The next op can often read a smaller result from
/// the last-level cache. Element-wise ops, which only wait for memory, have a lower limit: past_cache() in norm.h.
constexpr int64_t kPastCache = 64 << 20;

/// Says what an op does with the results [p q k] of each image: an activation or statistics, and rounding to the type
/// of y. The kernels of the engines apply ReLU and ReLU6 themselves. The others take a pass over results in the cache.
struct Epilogue {
    const Tensor& y;
    int64_t p, q, k;
    StatsCollector* stats = nullptr;
    Activation activation = {};
    int64_t values() const { return p * q * k; }
    Limits limits() const {
        if (activation.kind == Activation::relu) return {.least = 0};
        return activation.kind == Activation::relu6 ? Limits{0, 6} : Limits{};
    }
    bool takes_pass() const { return activation.kind && limits().least < 0; }
};

/// Calls convolve(first, count, result, share) for all chunks of up to `chunk` images. The results go to `out`, or to
/// scratch memory if `out` is null. Then calls done(index of the first value in y, results, count), where it has work
/// to do. A thread does all this for a whole chunk, while the chunk is in its cache. But if no statistics are needed,
/// shares_of() may let several threads share each chunk. `products` is the number of multiply-adds per image.
template <class R, class Convolve, class Done>
void convolve_chunks(const Epilogue& epilogue, int64_t chunk, double products, R* out, Convolve convolve, Done done) {
    const int64_t images = epilogue.y.extent(0), chunks = divide_up(images, chunk), values = epilogue.values();
    const auto count_of = [&](int64_t first) { return std::min(chunk, images - first); };
    const bool finishes = !out || epilogue.takes_pass();
    const int64_t shares = epilogue.stats ? 1 : shares_of(chunks, products * double(count_of(0)));
    if (shares == 1)
        return parallel(chunks, [&](int64_t task) {
            const int64_t first = task * chunk, count = count_of(first);
            const Scratch<R> scratch(out ? 0 : count * values);
            R* const result = out ? out + first * values : scratch.data();
            convolve(first, count, result, Share{});
            if (finishes) done(first * values, result, count * values);
        });
    const Scratch<R> scratch(out ? 0 : images * values);
    R* const results = out ? out : scratch.data();
    parallel(chunks * shares, [&](int64_t task) {
        const int64_t first = task / shares * chunk;
        convolve(first, count_of(first), results + first * values, Share{task % shares, shares});
    });
    if (finishes)
        each_chunk(images * values, [&](int64_t begin, int64_t count) { done(begin, results + begin, count); });
}

/// Convolves all images with `engine`, and does to the results what `epilogue` says.
template <class Engine, class T>
void convolve_with(const Engine& engine, const Images<T>& x, const float* bias, const Epilogue& epilogue,
                   double products) {
    using R = typename Engine::Result;
    constexpr bool kRows = std::is_same_v<Engine, Depthwise>;                  // the engine itself computes statistics
    constexpr bool kCollects = kRows || std::is_same_v<Engine, TileEngine<T>>; // it does, at least of small images
    constexpr bool kRounds = !std::is_same_v<T, R>;
    R* in_place = nullptr; // y, if the engine can write to it directly
    if constexpr (!kRounds) in_place = stored<T>(epilogue.y);
    StatsCollector* const stats = epilogue.stats;
    const bool collects = kCollects && stats && (kRows || epilogue.p * epilogue.q <= StatsCollector::kPart);
    const bool past = in_place && collects && epilogue.y.bytes() >= kPastCache;
    convolve_chunks(
        epilogue, engine.images_at_once(), products, in_place,
        [&](int64_t first, int64_t count, R* result, Share share) {
            const ConvResult<R> to{result, bias, epilogue.limits(), past};
            if constexpr (kCollects)
                engine.run(x, first, count, to, share, collects ? stats : nullptr);
            else
                engine.run(x, first, count, to, share);
            for (int64_t i = 0; stats && !collects && i < count; ++i)
                stats->add(first + i, result + i * epilogue.values());
        },
        [&](int64_t begin, R* results, int64_t count) {
            if (epilogue.takes_pass()) kernels<R>().activation(results, results, count, epilogue.activation, false);
            if constexpr (kRounds) isa().elements->narrow(results, stored<T>(epilogue.y) + begin, count);
        });
}

/// Convolves all images with the engine for `method`.
template <class T>
void convolve(Method method, const Images<T>& x, const Padding& padding, Filters filters, PerAxis stride,
              const float* bias, const Epilogue& epilogue) {
    const int64_t p = epilogue.p, q = epilogue.q;
    const double products = double(p * q * filters.k * filters.r * filters.s * filters.c / filters.groups);
    if (method == Method::tiles)
        return convolve_with(TileEngine<T>(padding, p, q, stride, filters), x, bias, epilogue, products);
    filters.to_bf16 = !std::is_same_v<T, float>;
    if (method == Method::winograd)
        convolve_with(Winograd(padding, p, q, filters), x, bias, epilogue, products);
    else if (method == Method::depthwise)
        convolve_with(Depthwise(padding, p, q, stride, filters), x, bias, epilogue, products);
    else
        convolve_with(Direct(padding, p, q, stride, filters), x, bias, epilogue, products);
}

} // namespace

void conv2d(const Call& call) {
    using O = Conv2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &w = call.in[O::w], &b = call.in[O::bias], &y = call.out[O::y];
    const OptionalNorm x_norm(a.x_norm.given(call.in));
    const BatchNormTensors y_norm = a.y_norm.given(call.in);
    const bool alone = !x_norm && !y_norm && !a.with_stats;
    const Method method =
        method_for({Pass::forward, x.shape(), w.shape(), y.shape(), a.conv, x.dtype(), x.dtype(), alone});
    if (method == Method::group_by_group) return group_by_group::conv2d(call);
    if (method == Method::dense) return dense::forward(x, w, b, y);
    const int64_t k = w.extent(0), p = y.extent(1), q = y.extent(2);
    Filters filters = filters_of(w, a.conv);
    const PreparedArray<float> bias(bias_values(k));
    std::optional<AffineNorm> affine;
    if (!bias.ready()) { // otherwise the filters are ready, too
        // Multiply the scale of the result's batch norm into the filters, and its scale and shift into the bias.
        if (y_norm) filters.scale = affine.emplace(y_norm).scale;
        for (int64_t i = 0; i < k; ++i) {
            bias[i] = b.defined() ? b.data<float>()[i] : 0;
            if (affine) bias[i] = bias[i] * affine->scale[i] + affine->shift[i];
        }
        for (int64_t i = k; i < bias_values(k); ++i) bias[i] = bias[i - k];
    }
    std::optional<StatsCollector> stats;
    if (a.with_stats) stats.emplace(y.extent(0), p * q, k);
    const Epilogue epilogue{y, p, q, k, stats ? &*stats : nullptr, y_norm ? a.y_norm.activation : Activation()};
    with_stored(x, [&]<class T>(T) {
        convolve(method, images_of<T>(x, x_norm ? &*x_norm : nullptr), padding_of(x.shape(), a.conv.pad), filters,
                 a.conv.stride, bias, epilogue);
    });
    if (stats) stats->finish(call.out[O::stats]);
}

} // namespace rg::cpu
