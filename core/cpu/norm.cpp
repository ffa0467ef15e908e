// Batch normalisation and what belongs to it, element-wise ops, the optimizer: threads and shapes around the
// channel-wise loops of elements_isa.cpp.
#include "core/cpu/channels.h"
#include "core/kernels.h"
#include "core/rng.h"

#include <cmath>

namespace rg::cpu {

StatsCollector::StatsCollector(int64_t images, int64_t pixels, int64_t channels)
    : images_(images), pixels_(pixels), channels_(channels), period_(period_of(channels)),
      moments_(size_t(images * 2 * channels)) {}

void StatsCollector::add(int64_t image, const float* values) {
    // Deviations from the image's first pixel: of the order of the spread, so squares do not cancel.
    const PerChannel shift(channels_, [&](int64_t c) { return values[c]; });
    std::vector<float> sum(size_t(period_), 0.0f), squares(size_t(period_), 0.0f);
    isa().elements->channel_sums(values, pixels_ * channels_, period_, shift, sum.data(), squares.data());
    double* mean = &moments_[size_t(image * 2 * channels_)];
    double* deviations = mean + channels_;
    for (int64_t c = 0; c < channels_; ++c) {
        double s = 0, q = 0;
        for (int64_t i = c; i < period_; i += channels_) s += sum[size_t(i)], q += squares[size_t(i)];
        mean[c] = values[c] + s / double(pixels_);
        deviations[c] = std::max(0.0, q - s * s / double(pixels_));
    }
}

void StatsCollector::finish(const Tensor& stats) const {
    float* out = stats.data<float>();
    for (int64_t c = 0; c < channels_; ++c) {
        double mean = 0, deviations = 0;
        for (int64_t n = 0; n < images_; ++n) {
            const double* m = &moments_[size_t(n * 2 * channels_)];
            const double delta = m[c] - mean, before = double(n);
            mean += delta / (before + 1);
            deviations += m[channels_ + c] + delta * delta * double(pixels_) * before / (before + 1);
        }
        out[c] = float(mean);
        out[channels_ + c] = images_ ? float(deviations / double(images_ * pixels_)) : 0;
    }
}

void channel_stats(const Call& call) {
    const Tensor& x = call.in[0];
    const int64_t pixels = x.extent(1) * x.extent(2), c = x.extent(3);
    StatsCollector stats(x.extent(0), pixels, c);
    each_image(x.extent(0), [&](int64_t n) { stats.add(n, x.data<float>() + n * pixels * c); });
    stats.finish(call.out[0]);
}

namespace {

/// Inputs x, stats, gamma, beta of the batch-norm ops, as the affine map per channel that they amount to:
/// x * scale + shift. The forward pass and the masks of the backward passes evaluate the same expression.
struct Affine {
    Affine(std::span<const Tensor> in, float epsilon)
        : x(in[0]), image(x.extent(1) * x.extent(2) * x.extent(3)), c(x.extent(3)), period(period_of(c)),
          mean(in[1].data<float>()), var(mean + c), gamma(in[2].data<float>()), beta(in[3].data<float>()),
          epsilon_(epsilon), scale(c, [&](int64_t i) { return float(gamma[i] * inv_std(i)); }),
          shift(c, [&](int64_t i) { return float(beta[i] - mean[i] * gamma[i] * inv_std(i)); }) {}
    double inv_std(int64_t i) const { return 1 / std::sqrt(double(var[i]) + double(epsilon_)); }

    const Tensor& x;
    int64_t image, c, period; // floats in an image, channels
    const float *mean, *var, *gamma, *beta;

private:
    float epsilon_;

public:
    PerChannel scale, shift;
};

/// Whether a result is larger than what the caches keep until it is read again.
bool past_cache(const Tensor& t) { return t.bytes() >= int64_t{4} << 20; }

} // namespace

void batch_norm(const Call& call) {
    const Affine a(call.in, call.attrs.epsilon);
    each_image(a.x.extent(0), [&](int64_t n) {
        isa().elements->affine(a.x.data<float>() + n * a.image, call.out[0].data<float>() + n * a.image, a.image,
                               a.period, a.scale, a.shift, call.attrs.relu, past_cache(call.out[0]));
    });
}

void batch_norm_sums(const Call& call) {
    const Affine a(call.in.subspan(1), call.attrs.epsilon);
    const float* dy = call.in[0].data<float>();
    const int64_t images = a.x.extent(0);
    const PerChannel mean(a.c, [&](int64_t i) { return a.mean[i]; });
    std::vector<double> parts(size_t(images * 2 * a.c)); // per image: sum of g (x - mean), sum of g
    each_image(images, [&](int64_t n) {
        std::vector<float> dbeta(size_t(a.period), 0.0f), dgamma(size_t(a.period), 0.0f);
        isa().elements->norm_sums(dy + n * a.image, a.x.data<float>() + n * a.image, a.image, a.period, a.scale, a.shift,
                                  mean, call.attrs.relu, dbeta.data(), dgamma.data());
        double* part = &parts[size_t(n * 2 * a.c)];
        for (int64_t i = 0; i < a.period; ++i) {
            part[i % a.c] += dgamma[size_t(i)];
            part[a.c + i % a.c] += dbeta[size_t(i)];
        }
    });
    for (int64_t c = 0; c < a.c; ++c) {
        double dgamma = 0, dbeta = 0;
        for (int64_t n = 0; n < images; ++n) {
            dgamma += parts[size_t(n * 2 * a.c + c)];
            dbeta += parts[size_t(n * 2 * a.c + a.c + c)];
        }
        call.out[0].data<float>()[c] = float(dgamma * a.inv_std(c));
        call.out[1].data<float>()[c] = float(dbeta);
    }
}

// dx = gamma / sigma * (g - sum(g) / count - x^ * sum(g x^) / count) as g * scale + x * b + d; see reference.cpp.
void batch_norm_grad(const Call& call) {
    const Affine a(call.in.subspan(1), call.attrs.epsilon);
    const float *dy = call.in[0].data<float>(), *sums = call.in[5].data<float>();
    const double count = double(a.x.numel() / a.c);
    const auto slope = [&](int64_t i) { return -a.gamma[i] * a.inv_std(i) * a.inv_std(i) * sums[i] / count; };
    const PerChannel b(a.c, [&](int64_t i) { return float(slope(i)); });
    const PerChannel d(a.c, [&](int64_t i) {
        return float(-a.gamma[i] * a.inv_std(i) * sums[a.c + i] / count - slope(i) * a.mean[i]);
    });
    each_image(a.x.extent(0), [&](int64_t n) {
        const int64_t at = n * a.image;
        isa().elements->norm_grad(dy + at, a.x.data<float>() + at, call.out[0].data<float>() + at, a.image, a.period,
                                  a.scale, a.shift, a.scale, b, d, call.attrs.relu, past_cache(call.out[0]));
    });
}

// A few hundred values: the definition is fast enough.
void running_update(const Call& call) { ref::running_update(call); }

namespace {

/// f(first, count) over pieces of a flat run of values, each a multiple of a cache line long.
template <class F>
void each_piece(int64_t count, F f) {
    constexpr int64_t kPiece = 1 << 15;
    parallel((count + kPiece - 1) / kPiece,
             [&](int64_t task) { f(task * kPiece, std::min(kPiece, count - task * kPiece)); });
}

} // namespace

void relu(const Call& call) {
    each_piece(call.in[0].numel(), [&](int64_t at, int64_t count) {
        isa().elements->relu(call.in[0].data<float>() + at, call.out[0].data<float>() + at, count);
    });
}

void relu_grad(const Call& call) {
    each_piece(call.in[0].numel(), [&](int64_t at, int64_t count) {
        isa().elements->relu_grad(call.in[0].data<float>() + at, call.in[1].data<float>() + at,
                                  call.out[0].data<float>() + at, count);
    });
}

void add(const Call& call) {
    each_piece(call.in[0].numel(), [&](int64_t at, int64_t count) {
        isa().elements->add(call.in[0].data<float>() + at, call.in[1].data<float>() + at,
                            call.out[0].data<float>() + at, count);
    });
}

void dropout(const Call& call) {
    const float *x = call.in[0].data<float>(), rate = call.attrs.rate, scale = 1 / (1 - rate);
    float* y = call.out[0].data<float>();
    each_piece(call.in[0].numel(), [&](int64_t at, int64_t count) {
        for (int64_t i = at; i < at + count; ++i)
            y[i] = Rng(call.attrs.seed, Purpose::dropout, 0, uint64_t(i)).uniform() < rate ? 0 : x[i] * scale;
    });
}

void sgdm_update(const Call& call) {
    RG_CHECK(call.out[0].key() == call.in[0].key(), "sgdm_update: works in place");
    const Attrs& a = call.attrs;
    each_piece(call.in[0].numel(), [&](int64_t at, int64_t count) {
        isa().elements->sgdm(call.in[0].data<float>() + at, call.in[1].data<float>() + at,
                             call.in[2].data<float>() + at, count, a.lr, a.momentum, a.weight_decay, a.nesterov);
    });
}

} // namespace rg::cpu
