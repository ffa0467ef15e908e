// The ops of batch norm and layer norm: their rows in the op table (core/op.h) and their reference implementations.
#include "core/ops/norm.h"

#include "core/context.h"
#include "core/ops/reference.h"
#include "core/ops/rules.h"

namespace rg {

RG_NORM_OPS(RG_DECLARE_KERNELS)

bool expect_norm(const char* op, int64_t channels, const BatchNormTensors& norm) {
    const int defined = norm.stats.defined() + norm.gamma.defined() + norm.beta.defined();
    if (defined == 0) return false;
    RG_CHECK(defined == 3, op, ": expected statistics, gamma and beta of a batch norm, got only some of them");
    expect_shape(op, "stats", norm.stats, {2, channels});
    expect_shape(op, "gamma", norm.gamma, {channels});
    expect_shape(op, "beta", norm.beta, {channels});
    expect_fusible(op, norm.options.activation);
    return true;
}

namespace {

OutputSpecs infer_channel_stats(In in, const Attrs&) {
    const Tensor& x = in[ChannelStatsOp::x];
    expect_image("channel_stats", "x", x);
    return {{{{2, x.extent(3)}, precise(x)}}};
}

OutputSpecs infer_combine_stats(In in, const Attrs&) {
    expect_rank("combine_stats", "stats", in[CombineStatsOp::stats], 2);
    return like(in[CombineStatsOp::stats]);
}

OutputSpecs infer_batch_norm(In in, const Attrs& attrs) {
    const Operand operand = attrs.as<BatchNormOp>().norm.operand(in);
    expect_image("batch_norm", "x", operand.x);
    expect_norm("batch_norm", operand.x.extent(3), operand.norm);
    return like(operand.x);
}

OutputSpecs infer_batch_norm_grad_sums(In in, const Attrs& attrs) {
    const auto [x, norm] = attrs.as<BatchNormGradSumsOp>().norm.operand(in);
    expect_image("batch_norm_grad_sums", "x", x);
    expect_norm("batch_norm_grad_sums", x.extent(3), norm);
    expect_shape("batch_norm_grad_sums", "dy", in[BatchNormGradSumsOp::dy], x.shape());
    return {{{{x.extent(3)}, precise(x)}, {{x.extent(3)}, precise(x)}}};
}

OutputSpecs infer_combine_sums(In in, const Attrs&) {
    const Tensor& dgamma = in[CombineSumsOp::dgamma];
    expect_rank("combine_sums", "dgamma", dgamma, 1);
    expect_shape("combine_sums", "dbeta", in[CombineSumsOp::dbeta], dgamma.shape());
    return {{{{2, dgamma.numel()}, dgamma.dtype()}}};
}

OutputSpecs infer_batch_norm_grad(In in, const Attrs& attrs) {
    const auto [x, norm] = attrs.as<BatchNormGradOp>().norm.operand(in);
    expect_image("batch_norm_grad", "x", x);
    expect_norm("batch_norm_grad", x.extent(3), norm);
    expect_shape("batch_norm_grad", "dy", in[BatchNormGradOp::dy], x.shape());
    expect_shape("batch_norm_grad", "sums", in[BatchNormGradOp::sums], {2, x.extent(3)});
    return like(x);
}

OutputSpecs infer_running_update(In in, const Attrs& attrs) {
    const auto& a = attrs.as<RunningUpdateOp>();
    expect_rank("running_update", "stats", in[RunningUpdateOp::stats], 2);
    expect_shape("running_update", "running", in[RunningUpdateOp::running], in[RunningUpdateOp::stats].shape());
    RG_CHECK(a.images >= 0 && a.pixels >= 0, "running_update: ", a.images, " images of ", a.pixels, " values");
    return like(in[RunningUpdateOp::running]);
}

/// Checks x and gamma of a layer norm and returns the number of channels.
int64_t expect_layer_norm(const char* op, const Tensor& x, const Tensor& gamma) {
    const int rank = x.shape().rank();
    RG_CHECK(rank == 2 || rank == 4, op, ": x needs 2 or 4 extents, got ", x.shape().str());
    const int64_t channels = x.extent(rank - 1);
    RG_CHECK(channels >= 1, op, ": x needs at least one channel, got ", x.shape().str());
    expect_shape(op, "gamma", gamma, {channels});
    return channels;
}

OutputSpecs infer_layer_norm(In in, const Attrs&) {
    const Tensor& x = in[LayerNormOp::x];
    expect_shape("layer_norm", "beta", in[LayerNormOp::beta],
                 {expect_layer_norm("layer_norm", x, in[LayerNormOp::gamma])});
    return like(x);
}

OutputSpecs infer_layer_norm_grad(In in, const Attrs&) {
    const Tensor& x = in[LayerNormGradOp::x];
    const int64_t channels = expect_layer_norm("layer_norm_grad", x, in[LayerNormGradOp::gamma]);
    expect_shape("layer_norm_grad", "dy", in[LayerNormGradOp::dy], x.shape());
    return {{{x.shape(), x.dtype()}, {{channels}, precise(x)}, {{channels}, precise(x)}}};
}

void backward_layer_norm(BackwardContext& b) {
    using O = LayerNormOp;
    using Grad = LayerNormGradOp;
    const auto gradients = run(op::layer_norm_grad, {b.dy(), b.in(O::x), b.in(O::gamma)},
                               Grad{b.attrs().as<O>().epsilon}, {b.into(O::x), b.into(O::gamma), b.into(O::beta)});
    if (b.wants(O::x)) b.give(O::x, gradients[Grad::dx]);
    if (b.wants(O::gamma)) b.give(O::gamma, gradients[Grad::dgamma]);
    if (b.wants(O::beta)) b.give(O::beta, gradients[Grad::dbeta]);
}

void backward_batch_norm(BackwardContext& b) {
    using O = BatchNormOp;
    const Tensor &x = b.in(O::x), &stats = b.in(O::stats), &gamma = b.in(O::gamma), &beta = b.in(O::beta);
    const BatchNorm& norm = b.attrs().as<O>().norm;
    const auto gradients = run(op::batch_norm_grad_sums, {b.dy(), x, stats, gamma, beta}, BatchNormGradSumsOp{norm},
                               {b.into(O::gamma), b.into(O::beta)});
    const Tensor &dgamma = gradients[BatchNormGradSumsOp::dgamma], &dbeta = gradients[BatchNormGradSumsOp::dbeta];
    if (b.wants(O::gamma)) b.give(O::gamma, dgamma);
    if (b.wants(O::beta)) b.give(O::beta, dbeta);
    if (norm.frozen)
        b.takes_as_constant(O::stats);
    else
        b.covers(O::stats, O::x);
    if (!b.wants(O::x)) return;
    const Tensor sums = norm.frozen ? Tensor::constant({2, gamma.numel()}, 0, gamma.dtype())
                                    : run(op::combine_sums, {dgamma, dbeta})[0];
    b.give(O::x,
           run(op::batch_norm_grad, {b.dy(), x, stats, gamma, beta, sums}, BatchNormGradOp{norm}, {b.into(O::x)})[0]);
}

constexpr Argument kChannelStats[] = {{"x"}};
constexpr Argument kCombineStats[] = {{"stats", Type::precise}};
constexpr Argument kBatchNorm[] = {{"x"}, {"stats", Type::precise}, {"gamma", Type::precise}, {"beta", Type::precise}};
constexpr Argument kBatchNormGradSums[] = {
    {"dy"}, {"x"}, {"stats", Type::precise}, {"gamma", Type::precise}, {"beta", Type::precise}};
constexpr Argument kCombineSums[] = {{"dgamma", Type::precise}, {"dbeta", Type::precise}};
constexpr Argument kBatchNormGrad[] = {{"dy"},
                                       {"x"},
                                       {"stats", Type::precise},
                                       {"gamma", Type::precise},
                                       {"beta", Type::precise},
                                       {"sums", Type::precise}};
constexpr Argument kRunningUpdate[] = {{"running", Type::precise}, {"stats", Type::precise}};
constexpr Argument kLayerNorm[] = {{"x"}, {"gamma", Type::precise}, {"beta", Type::precise}};
constexpr Argument kLayerNormGrad[] = {{"dy"}, {"x"}, {"gamma", Type::precise}};

} // namespace

RG_ROW(channel_stats, .inputs = kChannelStats);
RG_ROW(combine_stats, .inputs = kCombineStats);
RG_ROW(batch_norm, .inputs = kBatchNorm, .may_be = {1 << BatchNormOp::x},
       .images = input_bit(BatchNormOp::x) | output_bit(0), .backward = backward_batch_norm,
       .saves = input_bit(BatchNormOp::x) | input_bit(BatchNormOp::stats) | input_bit(BatchNormOp::gamma) |
                input_bit(BatchNormOp::beta));
RG_ROW(batch_norm_grad_sums, .inputs = kBatchNormGradSums, .outputs = 2);
RG_ROW(combine_sums, .inputs = kCombineSums);
RG_ROW(batch_norm_grad, .inputs = kBatchNormGrad, .may_be = {1 << BatchNormGradOp::dy | 1 << BatchNormGradOp::x});
RG_ROW(running_update, .inputs = kRunningUpdate, .in_place = 1);
RG_ROW(layer_norm, .inputs = kLayerNorm, .images = input_bit(LayerNormOp::x) | output_bit(0),
       .backward = backward_layer_norm, .saves = input_bit(LayerNormOp::x) | input_bit(LayerNormOp::gamma));
RG_ROW(layer_norm_grad, .inputs = kLayerNormGrad, .outputs = 3);

// ---- functions -----------------------------------------------------------------------------------------------------

Tensor channel_stats(const Tensor& x) { return run(op::channel_stats, {x})[0]; }

Tensor combine_stats(const Tensor& stats) { return context().sync ? run(op::combine_stats, {stats})[0] : stats; }

void update_running(const Tensor& running, const Tensor& stats, int64_t images, int64_t pixels, float momentum) {
    run(op::running_update, {running, stats}, RunningUpdateOp{images, pixels, momentum}, {running});
}

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, float epsilon) {
    RG_CHECK(epsilon >= 0, "layer_norm: epsilon is at least 0, got ", epsilon);
    return run(op::layer_norm, {x, gamma, beta}, LayerNormOp{epsilon})[0];
}

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

namespace {

/// Computes the batch norm of single elements: hat(i) returns x^ = (x - mean) / sqrt(variance + epsilon), and value(i)
/// returns the activation of gamma * x^ + beta.
struct BatchNormElements {
    explicit BatchNormElements(const Operand& operand)
        : x_(read(operand.x)),
          stats_(read(operand.norm.stats)),
          gamma_(read(operand.norm.gamma)),
          beta_(read(operand.norm.beta)),
          attrs_(operand.norm.options) {}
    size_t size() const { return x_.size(); }
    size_t channels() const { return gamma_.size(); }
    double scale(size_t c) const { return 1 / std::sqrt(stats_[channels() + c] + attrs_.epsilon); }
    double hat(size_t i) const { return (x_[i] - stats_[i % channels()]) * scale(i % channels()); }
    double value(size_t i) const { return activated(attrs_.activation, before_activation(i)); }
    /// Returns the gradient with respect to gamma * x^ + beta, where dy is that with respect to value(i).
    double gradient(size_t i, double dy) const {
        return activation_gradient(attrs_.activation, dy, before_activation(i));
    }
    double gamma(size_t c) const { return gamma_[c]; }

private:
    double before_activation(size_t i) const { return gamma_[i % channels()] * hat(i) + beta_[i % channels()]; }

    Values x_, stats_, gamma_, beta_;
    BatchNorm attrs_;
};

} // namespace

Tensor normalised(const Operand& operand) {
    const Tensor& x = operand.x;
    if (!operand.norm) return x;
    const BatchNormElements normalised(operand);
    Values y(normalised.size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = normalised.value(i);
    const Tensor result = Tensor::empty_on_host(x.shape(), x.dtype());
    write(result, y);
    return result;
}

void norm_sums(const Tensor& dy, const Operand& x, const Tensor& dgamma, const Tensor& dbeta) {
    const Values dy_values = read(dy);
    const BatchNormElements normalised(x);
    const size_t channels = normalised.channels();
    Values gamma_sums(channels, 0.0), beta_sums(channels, 0.0);
    for (size_t i = 0; i < dy_values.size(); ++i) {
        const double g = normalised.gradient(i, dy_values[i]);
        gamma_sums[i % channels] += g * normalised.hat(i);
        beta_sums[i % channels] += g;
    }
    write(dgamma, gamma_sums);
    write(dbeta, beta_sums);
}

// Uses the closed form of Ioffe and Szegedy (2015), section 3:
//   dx = gamma / sigma * (g - sum(g) / count - x^ * sum(g x^) / count)
// Here sigma = sqrt(variance + epsilon) and x^ = (x - mean) / sigma. g is dy times the derivative of the activation.
// The sums are over all values of a channel.
//
// If ranks share statistics, the loss is the sum of f_j * (loss of rank j), where f_j is the fraction of the mini-batch
// that rank j computes. combine_sums weights the sums by f_j, and `count` is the number of values per channel on this
// rank. So dx is the gradient of the whole loss, divided by this rank's f_j. The sum of the gradients over the ranks
// multiplies by f_j (par/aggregate.h).
void norm_grad(const Tensor& dy, const Operand& x, const Tensor& sums, const Tensor& dx) {
    const Values dy_values = read(dy), sum_values = read(sums);
    const BatchNormElements normalised(x);
    const size_t channels = normalised.channels();
    const double count = double(normalised.size() / channels);
    Values result(normalised.size());
    for (size_t i = 0; i < result.size(); ++i) {
        const size_t c = i % channels;
        const double g = normalised.gradient(i, dy_values[i]);
        result[i] = normalised.gamma(c) * normalised.scale(c) *
                    (g - sum_values[channels + c] / count - normalised.hat(i) * sum_values[c] / count);
    }
    write(dx, result);
}

Values moments(const Values& x, size_t channels) {
    Values stats(2 * channels, 0.0);
    const double count = double(x.size() / channels);
    for (size_t i = 0; i < x.size(); ++i) stats[i % channels] += x[i] / count;
    for (size_t i = 0; i < x.size(); ++i) {
        const double d = x[i] - stats[i % channels];
        stats[channels + i % channels] += d * d / count;
    }
    return stats;
}

void channel_stats(const Call& call) {
    const Tensor& x = call.in[ChannelStatsOp::x];
    write(call.out[0], moments(read(x), size_t(x.extent(3))));
}

void batch_norm(const Call& call) {
    write(call.out[0], read(normalised(call.attrs.as<BatchNormOp>().norm.operand(call.in))));
}

void batch_norm_grad_sums(const Call& call) {
    using O = BatchNormGradSumsOp;
    norm_sums(call.in[O::dy], call.attrs.as<O>().norm.operand(call.in), call.out[O::dgamma], call.out[O::dbeta]);
}

void batch_norm_grad(const Call& call) {
    using O = BatchNormGradOp;
    norm_grad(call.in[O::dy], call.attrs.as<O>().norm.operand(call.in), call.in[O::sums], call.out[0]);
}

// Sums f * mean and f * (variance + mean^2) over the ranks, where f is a rank's fraction of the mini-batch. In double,
// subtracting the square of the total mean is accurate enough, so the deviations need no second all-reduce.
void combine_stats(const Call& call) {
    Values moments = read(call.in[CombineStatsOp::stats]);
    SyncGroup* group = context().sync;
    const size_t c = moments.size() / 2;
    if (group) {
        for (size_t i = 0; i < c; ++i) {
            moments[c + i] = group->fraction * (moments[c + i] + moments[i] * moments[i]);
            moments[i] *= group->fraction;
        }
        group->sum(moments);
        for (size_t i = 0; i < c; ++i) moments[c + i] = std::max(0.0, moments[c + i] - moments[i] * moments[i]);
    }
    write(call.out[0], moments);
}

// Sums dgamma and dbeta over all ranks, weighted by each rank's fraction; the comment of norm_grad() explains why.
void combine_sums(const Call& call) {
    const Values dgamma = read(call.in[CombineSumsOp::dgamma]), dbeta = read(call.in[CombineSumsOp::dbeta]);
    SyncGroup* group = context().sync;
    const double fraction = group ? group->fraction : 1;
    Values sums;
    for (const Values* values : {&dgamma, &dbeta})
        for (const double v : *values) sums.push_back(fraction * v);
    if (group) group->sum(sums);
    write(call.out[0], sums);
}

void running_update(const Call& call) {
    const auto& a = call.attrs.as<RunningUpdateOp>();
    const SyncGroup* group = context().sync;
    const double count = double((group ? group->samples : a.images) * a.pixels), momentum = a.momentum;
    const int64_t size = call.out[0].numel();
    with_precise(call.out[0], [&]<class T>(T) {
        const T* const stats = call.in[RunningUpdateOp::stats].data<T>();
        T* const running = call.out[0].data<T>(); // in place
        for (int64_t i = 0; i < size; ++i) {
            const double unbias = i >= size / 2 && count > 1 ? count / (count - 1) : 1; // only of the variances
            running[i] = T((1 - momentum) * running[i] + momentum * stats[i] * unbias);
        }
    });
}

namespace {

/// Normalises row number `row` of x [rows c] in place, and returns 1 / sqrt(variance + epsilon) of the row.
double normalise_row(Values& x, size_t row, size_t c, double epsilon) {
    double mean = 0, variance = 0;
    for (size_t i = row * c; i < (row + 1) * c; ++i) mean += x[i] / double(c);
    for (size_t i = row * c; i < (row + 1) * c; ++i) variance += (x[i] - mean) * (x[i] - mean) / double(c);
    const double scale = 1 / std::sqrt(variance + epsilon);
    for (size_t i = row * c; i < (row + 1) * c; ++i) x[i] = (x[i] - mean) * scale;
    return scale;
}

} // namespace

void layer_norm(const Call& call) {
    using O = LayerNormOp;
    Values y = read(call.in[O::x]);
    const Values gamma = read(call.in[O::gamma]), beta = read(call.in[O::beta]);
    const size_t c = gamma.size();
    for (size_t row = 0; row < y.size() / c; ++row) normalise_row(y, row, c, call.attrs.as<O>().epsilon);
    for (size_t i = 0; i < y.size(); ++i) y[i] = gamma[i % c] * y[i] + beta[i % c];
    write(call.out[0], y);
}

// dx = scale * (g - mean(g) - x^ * mean(g * x^)), where x^ = (x - mean) * scale is the normalised x, g = gamma * dy,
// scale = 1 / sqrt(variance + epsilon), and all means are over the channels.
void layer_norm_grad(const Call& call) {
    using O = LayerNormGradOp;
    const Values dy = read(call.in[O::dy]), gamma = read(call.in[O::gamma]);
    Values hat = read(call.in[O::x]);
    const size_t c = gamma.size();
    Values dx(hat.size()), dgamma(c, 0.0), dbeta(c, 0.0);
    for (size_t row = 0; row < hat.size() / c; ++row) {
        const double scale = normalise_row(hat, row, c, call.attrs.as<O>().epsilon);
        double g_mean = 0, product_mean = 0;
        for (size_t j = 0; j < c; ++j) {
            const size_t i = row * c + j;
            g_mean += gamma[j] * dy[i] / double(c);
            product_mean += gamma[j] * dy[i] * hat[i] / double(c);
            dgamma[j] += dy[i] * hat[i];
            dbeta[j] += dy[i];
        }
        for (size_t j = 0; j < c; ++j) {
            const size_t i = row * c + j;
            dx[i] = scale * (gamma[j] * dy[i] - g_mean - hat[i] * product_mean);
        }
    }
    write(call.out[O::dx], dx);
    write(call.out[O::dgamma], dgamma);
    write(call.out[O::dbeta], dbeta);
}

} // namespace ref

// These ops process only a few values per channel.
RG_RUN_REFERENCE(running_update)
RG_RUN_REFERENCE(combine_stats)

} // namespace rg
