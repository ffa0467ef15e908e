// Batch norm, element-wise ops and the optimizers: distributes the loops of elements_isa.cpp over threads and images.
#include "core/cpu/norm.h"
#include "core/context.h"
#include "core/kernels.h"
#include "core/rng.h"

#include <atomic>
#include <optional>

namespace rg::cpu {

StatsCollector::StatsCollector(int64_t images, int64_t pixels, int64_t channels)
    : images_(images), pixels_(pixels), channels_(channels), moments_(images * 2 * channels) {}

template <class T>
void StatsCollector::add(int64_t image, const T* values) {
    const int64_t period = period_of(channels_);
    const Scratch<float> first(channels_), sums(2 * period);
    // Sum deviations from the first pixel. They are about as small as the standard deviation, so the subtraction of
    // squares in add_sums() does not cancel.
    if constexpr (std::is_same_v<T, float>)
        std::copy_n(values, channels_, first.data());
    else
        isa().elements->widen(values, first, channels_);
    const PerChannel shift(channels_, [&](int64_t c) { return first[c]; });
    float *const sum = sums.zeroed(), *const squares = sum + period;
    kernels<T>().channel_sums(values, pixels_ * channels_, period, shift, sum, squares);
    for (int64_t i = channels_; i < period; ++i) {
        sum[i % channels_] += sum[i];
        squares[i % channels_] += squares[i];
    }
    add_sums(image, channels_, first, sum, squares);
}
template void StatsCollector::add<float>(int64_t, const float*);
template void StatsCollector::add<uint16_t>(int64_t, const uint16_t*);

void StatsCollector::combine(double pixels_before, double pixels, double mean, double squares, double& all_mean,
                             double& all_squares) {
    const double delta = mean - all_mean, fraction = pixels / (pixels_before + pixels);
    all_mean += delta * fraction;
    all_squares += squares + delta * delta * pixels_before * fraction;
}

void StatsCollector::add_sums(int64_t image, int64_t lanes, const float* shift, const float* sum,
                              const float* squares) {
    double *const mean = moments_ + image * 2 * channels_, *const deviations = mean + channels_;
    std::fill_n(mean, 2 * channels_, 0.0);
    const double pixels = double(pixels_ * channels_ / lanes);
    for (int64_t i = 0; i < lanes; ++i)
        combine(double(i / channels_) * pixels, pixels, shift[i] + double(sum[i]) / pixels,
                std::max(0.0, squares[i] - double(sum[i]) * sum[i] / pixels), mean[i % channels_],
                deviations[i % channels_]);
}

void StatsCollector::finish(const Tensor& stats) const {
    const Scratch<double> totals(2 * channels_);
    double *const mean = totals.zeroed(), *const deviations = mean + channels_;
    for (int64_t n = 0; n < images_; ++n) {
        const double* m = moments_ + n * 2 * channels_;
        for (int64_t c = 0; c < channels_; ++c)
            combine(double(n * pixels_), double(pixels_), m[c], m[channels_ + c], mean[c], deviations[c]);
    }
    for (int64_t c = 0; c < channels_; ++c) {
        stats.data<float>()[c] = float(mean[c]);
        stats.data<float>()[channels_ + c] = images_ ? float(deviations[c] / double(images_ * pixels_)) : 0;
    }
}

namespace {

/// Returns the number of values in an image of t [n h w c].
int64_t image_values(const Tensor& t) { return t.extent(1) * t.extent(2) * t.extent(3); }

} // namespace

void channel_stats(const Call& call) {
    const Tensor& x = call.in[0];
    const int64_t values = image_values(x), c = x.extent(3);
    StatsCollector stats(x.extent(0), values / c, c);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        each_image(x.extent(0), [&](int64_t n) { stats.add(n, stored<T>(x) + n * values); });
    });
    stats.finish(call.out[0]);
}

void batch_norm(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon, call.attrs.relu);
    const int64_t values = image_values(x);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        each_image(x.extent(0), [&](int64_t n) {
            norm.apply(stored<T>(x) + n * values, stored<T>(y) + n * values, values, past_cache(y));
        });
    });
}

void batch_norm_sums(const Call& call) {
    const Tensor &dy = call.in[0], &x = call.in[1];
    const Norm norm(call.in[2], call.in[3], call.in[4], call.attrs.epsilon, call.attrs.relu);
    NormSums sums(norm, x.extent(0));
    const int64_t values = image_values(x);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        each_image(x.extent(0),
                   [&](int64_t n) { sums.add(n, stored<T>(dy) + n * values, stored<T>(x) + n * values, values); });
    });
    sums.finish(call.out[0], call.out[1]);
}

void batch_norm_grad(const Call& call) {
    const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
    const Norm norm(call.in[2], call.in[3], call.in[4], call.attrs.epsilon, call.attrs.relu);
    const NormGrad grad(norm, call.in[5], double(x.numel() / norm.c));
    const int64_t values = image_values(x);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        each_image(x.extent(0), [&](int64_t n) {
            const int64_t offset = n * values;
            grad.apply(stored<T>(dy) + offset, stored<T>(x) + offset, stored<T>(dx) + offset, values, past_cache(dx));
        });
    });
}

void norm_add(const Call& call) {
    const Tensor &a = call.in[0], &b = call.in[4], &y = call.out[0];
    const int64_t c = a.extent(3), values = image_values(a);
    std::optional<Norm> norms[2];
    for (size_t i : {size_t(0), size_t(1)})
        if (call.in[4 * i + 1].defined())
            norms[i].emplace(call.in[4 * i + 1], call.in[4 * i + 2], call.in[4 * i + 3], call.attrs.epsilon, false);
    const auto scale_of = [&](int i) {
        return PerChannel(c, [&](int64_t k) { return norms[i] ? norms[i]->scale[k] : 1.0f; });
    };
    const PerChannel scale_a = scale_of(0), scale_b = scale_of(1), shift(c, [&](int64_t k) {
        return (norms[0] ? norms[0]->shift[k] : 0.0f) + (norms[1] ? norms[1]->shift[k] : 0.0f);
    });
    with_stored(a, [&](auto t) {
        using T = decltype(t);
        each_image(a.extent(0), [&](int64_t n) {
            const int64_t offset = n * values;
            kernels<T>().affine_sum(stored<T>(a) + offset, stored<T>(b) + offset, stored<T>(y) + offset, values,
                                    period_of(c), scale_a, scale_b, shift, call.attrs.relu, past_cache(y));
        });
    });
}

void norm_add_grad(const Call& call) {
    const Tensor &dy = call.in[0], &y = call.in[1], &dx = call.out[0];
    const int64_t values = image_values(dy);
    std::optional<Norm> norms[2];
    std::optional<NormSums> sums[2];
    for (size_t i : {size_t(0), size_t(1)}) {
        const auto x = call.in.subspan(2 + 4 * i, 4);
        if (!x[0].defined()) continue;
        norms[i].emplace(x[1], x[2], x[3], call.attrs.epsilon, false);
        sums[i].emplace(*norms[i], dy.extent(0));
    }
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        each_image(dy.extent(0), [&](int64_t n) {
            const int64_t offset = n * values;
            kernels<T>().relu_grad(stored<T>(dy) + offset, stored<T>(y) + offset, stored<T>(dx) + offset, values);
            for (size_t i : {size_t(0), size_t(1)})
                if (sums[i]) sums[i]->add(n, stored<T>(dx) + offset, stored<T>(call.in[2 + 4 * i]) + offset, values);
        });
    });
    for (size_t i : {size_t(0), size_t(1)})
        if (sums[i]) sums[i]->finish(call.out[1 + 2 * i], call.out[2 + 2 * i]);
}

// These ops process a few hundred values once per layer, so they use one thread.

void running_update(const Call& call) {
    const SyncGroup* group = context().sync;
    const int64_t images = group ? group->samples : call.attrs.height, size = call.out[0].numel();
    const double count = double(images * call.attrs.width), momentum = call.attrs.rate;
    float* running = call.out[0].data<float>();
    for (int64_t i = 0; i < size; ++i) {
        const double unbias = i >= size / 2 && count > 1 ? count / (count - 1) : 1;
        running[i] = float((1 - momentum) * running[i] + momentum * call.in[1].data<float>()[i] * unbias);
    }
}

void rank_stats(const Call& call) { ref::rank_stats(call); }

void rank_sums(const Call& call) {
    if (context().sync) return ref::rank_sums(call);
    const int64_t c = call.in[0].numel();
    for (size_t i : {0, 1}) std::copy_n(call.in[i].data<float>(), c, call.out[0].data<float>() + int64_t(i) * c);
}

namespace {

/// Calls f(begin, count) for chunks of `count` values, in parallel. A chunk is a whole number of cache lines.
template <class F>
void each_chunk(int64_t count, F f) {
    constexpr int64_t kChunk = 1 << 15;
    parallel((count + kChunk - 1) / kChunk,
             [&](int64_t task) { f(task * kChunk, std::min(kChunk, count - task * kChunk)); });
}

/// Calls the kernel that pick() returns, kernel(a, y, count) or kernel(a, b, y, count), for all values of the tensors.
template <class Pick>
void map(const Call& call, Pick pick) {
    with_stored(call.out[0], [&](auto t) {
        using T = decltype(t);
        const auto kernel = pick(kernels<T>());
        each_chunk(call.out[0].numel(), [&](int64_t begin, int64_t count) {
            if constexpr (requires { kernel(stored<T>(call.in[0]), stored<T>(call.out[0]), count); })
                kernel(stored<T>(call.in[0]) + begin, stored<T>(call.out[0]) + begin, count);
            else
                kernel(stored<T>(call.in[0]) + begin, stored<T>(call.in[1]) + begin, stored<T>(call.out[0]) + begin,
                       count);
        });
    });
}

} // namespace

void relu(const Call& call) {
    map(call, [](const auto& k) { return k.relu; });
}
void relu_grad(const Call& call) {
    map(call, [](const auto& k) { return k.relu_grad; });
}
void add(const Call& call) {
    map(call, [](const auto& k) { return k.add; });
}

void cast(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    each_chunk(x.numel(), [&](int64_t begin, int64_t count) {
        if (x.dtype() == y.dtype())
            std::memcpy(y.bytes_data() + begin * size_of(y.dtype()), x.bytes_data() + begin * size_of(x.dtype()),
                        size_t(count * size_of(x.dtype())));
        else if (x.dtype() == DType::bf16)
            isa().elements->widen(stored<uint16_t>(x) + begin, stored<float>(y) + begin, count);
        else
            isa().elements->narrow(stored<float>(x) + begin, stored<uint16_t>(y) + begin, count);
    });
}

void slice(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    const int64_t size = size_of(x.dtype());
    each_chunk(y.numel(), [&](int64_t begin, int64_t count) {
        std::memcpy(y.bytes_data() + begin * size, x.bytes_data() + (call.attrs.begin + begin) * size,
                    size_t(count * size));
    });
}

void slice_grad(const Call& call) {
    const Tensor &dy = call.in[0], &dx = call.out[0];
    const int64_t size = size_of(dy.dtype()), dy_begin = call.attrs.begin, dy_end = dy_begin + dy.numel();
    each_chunk(dx.numel(), [&](int64_t begin, int64_t count) {
        const int64_t end = begin + count;
        const int64_t copy_begin = std::clamp(dy_begin, begin, end), copy_end = std::clamp(dy_end, begin, end);
        std::memset(dx.bytes_data() + begin * size, 0, size_t((copy_begin - begin) * size));
        if (copy_end > copy_begin)
            std::memcpy(dx.bytes_data() + copy_begin * size, dy.bytes_data() + (copy_begin - dy_begin) * size,
                        size_t((copy_end - copy_begin) * size));
        std::memset(dx.bytes_data() + copy_end * size, 0, size_t((end - copy_end) * size));
    });
}

void dropout(const Call& call) {
    const float rate = call.attrs.rate, scale = 1 / (1 - rate);
    const bool narrow = call.in[0].dtype() == DType::bf16;
    const uint64_t seed = seed_of(call.in[1].data<int32_t>());
    each_chunk(call.in[0].numel(), [&](int64_t begin, int64_t count) {
        for (int64_t i = begin; i < begin + count; ++i) {
            const bool dropped = Rng(seed, Purpose::dropout, call.attrs.stream, uint64_t(i)).uniform() < rate;
            if (narrow)
                call.out[0].data<bf16>()[i] = to_bf16(dropped ? 0 : to_float(call.in[0].data<bf16>()[i]) * scale);
            else
                call.out[0].data<float>()[i] = dropped ? 0 : call.in[0].data<float>()[i] * scale;
        }
    });
}

namespace {

void expect_in_place(const char* op, const Call& call) {
    for (size_t i = 0; i < call.out.size(); ++i)
        RG_CHECK(call.out[i].key() == call.in[i].key(), op, ": expected the first ", call.out.size(),
                 " inputs as outputs, got other tensors; the op works in place");
}

} // namespace

void sgdm_update(const Call& call) {
    expect_in_place("sgdm_update", call);
    if (found_non_finite(call.in[4])) return;
    const Attrs& a = call.attrs;
    const float lr = *call.in[3].data<float>();
    each_chunk(call.in[0].numel(), [&](int64_t begin, int64_t count) {
        isa().elements->sgdm(call.in[0].data<float>() + begin, call.in[1].data<float>() + begin,
                             call.in[2].data<float>() + begin, count, lr, a.momentum, a.weight_decay, a.nesterov);
    });
}

void adam_update(const Call& call) {
    expect_in_place("adam_update", call);
    if (found_non_finite(call.in[5])) return;
    const Attrs& a = call.attrs;
    const double lr = call.in[4].data<float>()[0], t = call.in[4].data<float>()[1];
    const AdamStep step{.decay = a.weight_decay,
                        .m_part = float(1 - a.beta1),
                        .v_keep = float(a.beta2),
                        .v_part = float(1 - a.beta2),
                        .rate = float(lr / (1 - std::pow(a.beta1, t))),
                        .unbias = float(1 / std::sqrt(1 - std::pow(a.beta2, t))),
                        .epsilon = a.epsilon};
    each_chunk(call.in[0].numel(), [&](int64_t begin, int64_t count) {
        isa().elements->adam(call.in[0].data<float>() + begin, call.in[1].data<float>() + begin,
                             call.in[2].data<float>() + begin, call.in[3].data<float>() + begin, count, step);
    });
}

void first_non_finite(const Call& call) {
    const int64_t size = call.in[0].numel();
    const float* x = call.in[0].data<float>();
    std::atomic<int64_t> first{size};
    each_chunk(size, [&](int64_t begin, int64_t count) {
        if (begin > first) return;
        const int64_t non_finite = begin + isa().elements->first_non_finite(x + begin, count);
        if (non_finite == begin + count) return;
        int64_t smallest = first;
        while (non_finite < smallest && !first.compare_exchange_weak(smallest, non_finite)) {}
    });
    const bool bad_loss = call.in[1].defined() && !std::isfinite(*call.in[1].data<float>());
    *call.out[0].data<int32_t>() = first < size || bad_loss ? int32_t(first) : -1;
}

} // namespace rg::cpu
