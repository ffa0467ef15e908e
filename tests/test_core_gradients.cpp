// Gradients: every backward rule against central differences in double, wrong gradients that must be refused, the CPU
// backward against the reference's, a whole network, and batch norm over ranks that share statistics.
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "models/nets/cifar_net.h"
#include "tests/op_check.h"

#include <barrier>
#include <cmath>
#include <doctest/doctest.h>
#include <set>
#include <thread>

namespace rg {
namespace {

const Context kReference{.backend = Backend::reference};
constexpr double kQuick = 1e5, kBearable = 2e6; // GradientCase::work

Tensor random_tensor(const Shape& shape, DType type, uint64_t seed) {
    const Tensor t = Tensor::empty(shape, DType::f64);
    Rng random(seed, Purpose::test);
    for (double& v : t.span<double>()) v = random.normal();
    return t.to(type);
}

Tensor random_labels(int64_t n, int64_t classes, uint64_t seed) {
    const Tensor t = Tensor::empty({n}, DType::i32);
    Rng random(seed, Purpose::test);
    for (int32_t& v : t.span<int32_t>()) v = int32_t(random.below(uint32_t(classes)));
    return t;
}

/// Samples [begin, begin + count) of a batch, in memory of their own.
Tensor part_of(const Tensor& batch, int64_t begin, int64_t count) {
    std::vector<int64_t> extents(batch.shape().extents().begin(), batch.shape().extents().end());
    const int64_t sample = batch.numel() / extents[0];
    extents[0] = count;
    return batch.slice(begin * sample, Shape(extents)).clone();
}

double largest_of(const Tensor& t) {
    double largest = 0;
    for (double v : t.span<double>()) largest = std::max(largest, std::abs(v));
    return largest;
}

Tensor scaled(const Tensor& t, double factor) {
    const Tensor wide = t.to(DType::f64);
    for (double& v : wide.span<double>()) v *= factor;
    return wide.to(t.dtype());
}

/// Ranks as threads. Every rank gives its part and takes the sum, in order of the ranks.
class Ranks {
public:
    /// With so many samples each.
    explicit Ranks(const std::vector<int64_t>& split) : parts_(split.size()), barrier_(std::ptrdiff_t(split.size())) {
        for (int64_t n : split) begins_.push_back(samples_), samples_ += n;
        for (int64_t n : split) shares_.push_back(double(n) / double(samples_));
    }
    const std::vector<double>& shares() const { return shares_; }
    int64_t begin(size_t rank) const { return begins_[rank]; }

    /// f(rank, group) on a thread for each rank.
    template <class F>
    void run(Backend backend, F f) {
        std::vector<std::jthread> threads;
        for (size_t rank = 0; rank < shares_.size(); ++rank)
            threads.emplace_back([this, rank, backend, &f] {
                Group group(*this, rank);
                const Context context{.backend = backend, .sync = &group};
                const ContextScope scope(context);
                f(rank);
            });
    }

private:
    class Group final : public SyncGroup {
    public:
        Group(Ranks& all, size_t rank) : all_(all), rank_(rank) {
            share = all.shares_[rank];
            samples = all.samples_;
        }
        void sum(std::span<double> values) override {
            all_.parts_[rank_].assign(values.begin(), values.end());
            all_.barrier_.arrive_and_wait();
            std::fill(values.begin(), values.end(), 0.0);
            for (const auto& part : all_.parts_)
                for (size_t i = 0; i < values.size(); ++i) values[i] += part[i];
            all_.barrier_.arrive_and_wait();
        }

    private:
        Ranks& all_;
        size_t rank_;
    };

    std::vector<double> shares_;
    std::vector<int64_t> begins_;
    int64_t samples_ = 0;
    std::vector<std::vector<double>> parts_;
    std::barrier<> barrier_;
};

/// What one rank computes of relu(batch_norm(x)) with the distance to a target as the loss.
struct NormStep {
    Tensor stats, loss, dx, dgamma, dbeta;
};

NormStep norm_step(const Tensor& x, const Tensor& gamma, const Tensor& beta, const Tensor& target, bool relu) {
    NormStep step;
    Tape tape;
    step.stats = combine_stats(channel_stats(x));
    step.loss = mse_loss(batch_norm(x, step.stats, gamma, beta, {.relu = relu}), target);
    const Tensor of[] = {x, gamma, beta};
    for (Tensor* t : {&step.dx, &step.dgamma, &step.dbeta})
        *t = Tensor::empty(t == &step.dx ? x.shape() : gamma.shape(), x.dtype());
    const Tensor into[] = {step.dx, step.dgamma, step.dbeta};
    tape.gradients(step.loss, of, into);
    return step;
}

Tensor weighted_sum(std::span<const Tensor> parts, std::span<const double> shares) {
    const Tensor sum = Tensor::zeros(parts[0].shape(), DType::f64);
    for (size_t r = 0; r < parts.size(); ++r) {
        const Tensor wide = parts[r].to(DType::f64);
        for (int64_t i = 0; i < sum.numel(); ++i) sum.data<double>()[i] += shares[r] * wide.data<double>()[i];
    }
    return sum;
}

/// A network away from its initial values, and the loss of a batch.
struct NetworkCase {
    CifarNet net;
    Tensor x, labels;

    NetworkCase(const CifarNet::Options& options, int64_t batch)
        : net(options),
          x(random_tensor({batch, 32, 32, 3}, options.dtype, 5)),
          labels(random_labels(batch, options.classes, 6)) {
        const Tensor noise = random_tensor(net.parameters.values().shape(), DType::f64, 7);
        for (const Parameters::Entry& e : net.parameters.entries())
            for (int64_t i = 0; i < e.value.numel(); ++i)
                e.value.data<double>()[i] += 0.2 * noise.data<double>()[e.offset + i];
    }
    Tensor loss() { return cross_entropy(net.forward(x, Mode::train), labels, 0.1f); }
    Tensor step() {
        Tape tape;
        const Tensor l = loss();
        tape.gradients(l, net.parameters.value_list(), net.parameters.gradient_list());
        return l;
    }
};

} // namespace

TEST_SUITE("core") {
    TEST_CASE("gradients: every differentiable op agrees with central differences, and wrong ones are refused") {
        const ContextScope scope(kReference);
        std::set<Op> judged;
        for (const OpCase& c : op_cases()) {
            if (!GradientCase::possible(c) || GradientCase::work(c) > kBearable) continue;
            // Among many values one lies so close to the kink that a difference steps over it.
            const bool has_kink = c.op == op::batch_norm && c.attrs.as<BatchNormOp>().norm.relu;
            if (has_kink && c.in[0].shape.numel() > 2000) continue;
            const bool quick = GradientCase::work(c) <= kQuick;
            CAPTURE(describe(c));
            const GradientCase check(c);
            const std::vector<Tensor> gradients = check.backward();
            for (size_t i = 0; i < gradients.size(); ++i) {
                if (!gradients[i].defined()) continue;
                CAPTURE(i);
                CHECK(check.judge(i, gradients[i], quick) == "");
                // A case with few values may have a gradient that is truly zero, which nothing scales.
                const double largest = largest_of(gradients[i]);
                if (!quick || (largest < 1e-6 && gradients[i].numel() < 8)) continue;
                CHECK(largest > 1e-6);
                judged.insert(c.op);
                for (double wrong : {1.01, -1.0, 0.0}) {
                    CAPTURE(wrong);
                    CHECK(check.judge(i, scaled(gradients[i], wrong), quick) != "");
                }
                if (gradients[i].numel() > 2000) continue;
                const Tensor one_off = gradients[i].clone(); // wrong in one entry of many
                one_off.data<double>()[one_off.numel() / 2] += 0.01 * largest;
                CHECK(check.judge(i, one_off, quick) != "");
            }
        }
        for (const Op op : kOps) {
            CAPTURE(op->name);
            // A cast rounds on purpose, so differences say nothing about it; the tests of the tape have its gradient.
            if (op != op::cast) CHECK(judged.contains(op) == (op->backward != nullptr));
        }
    }

    TEST_CASE("gradients: the CPU backward agrees with the reference's in f32") {
        std::set<Op> compared;
        for (const OpCase& c : op_cases()) {
            if (!GradientCase::possible(c)) continue;
            // Batch norm of two values takes away all of its gradient but rounding and epsilon.
            if (c.op == op::batch_norm && c.in[0].shape.numel() <= 2 * c.in[0].shape[3]) continue;
            CAPTURE(describe(c));
            const GradientCase check(c, DType::f32);
            const std::vector<Tensor> got = check.backward();
            const ContextScope scope(kReference);
            const std::vector<Tensor> want = check.backward();
            for (size_t i = 0; i < want.size(); ++i) {
                CAPTURE(i);
                if (!want[i].defined()) continue;
                // The loss that makes the gradient in y is itself a rounded difference.
                CHECK(differs(got[i], want[i], {1e-4, 1e-3}) == "");
                compared.insert(c.op);
            }
        }
        for (const Op op : kOps)
            if (op != op::cast) CHECK(compared.contains(op) == (op->backward != nullptr));
    }

    TEST_CASE("gradients: a whole network agrees with central differences in every parameter tensor") {
        const ContextScope scope(kReference);
        for (const CifarNet::Options& options :
             {CifarNet::Options{.width = 2, .depth = 1, .classes = 4, .seed = 3, .dtype = DType::f64},
              CifarNet::Options{.width = 3, .depth = 2, .classes = 10, .seed = 4, .dtype = DType::f64}}) {
            NetworkCase c(options, 2);
            c.step();
            Rng random(8, Purpose::test);
            for (const Parameters::Entry& e : c.net.parameters.entries()) {
                CAPTURE(e.name);
                const double largest = largest_of(e.gradient);
                // The batch mean that follows takes a convolution's bias away again.
                const bool none = e.name.ends_with("conv.bias");
                if (none)
                    CHECK(largest < 1e-12);
                else
                    CHECK(largest > 1e-5);
                for (int trial = 0; trial < (options.depth == 1 ? 3 : 1); ++trial) {
                    const size_t i = random.below(uint32_t(e.value.numel()));
                    CAPTURE(i);
                    double& value = e.value.data<double>()[i];
                    const double kept = value;
                    for (double step : {1e-5, 1e-6}) {
                        double change = 0;
                        for (double sign : {1.0, -1.0}) {
                            value = kept + sign * step;
                            change += sign * c.loss().data<double>()[0];
                        }
                        value = kept;
                        CAPTURE(step);
                        const double error = std::abs(change / (2 * step) - e.gradient.data<double>()[i]);
                        CHECK(error <= (none ? 1e-8 : 1e-8 + 1e-5 * largest));
                    }
                }
            }
        }
    }

    TEST_CASE("gradients: batch norm over ranks with uneven shares is one rank on the joined batch") {
        const std::vector<std::vector<int64_t>> splits = {{2, 4}, {1, 3, 2}, {6}};
        for (Backend backend : {Backend::reference, Backend::cpu})
            for (bool relu : {false, true})
                for (const auto& split : splits) {
                    const DType type = backend == Backend::cpu ? DType::f32 : DType::f64;
                    const Tolerance tolerance = backend == Backend::cpu ? kCancelled : Tolerance{1e-12, 1e-11};
                    CAPTURE(int(backend));
                    CAPTURE(relu);
                    CAPTURE(split.size());
                    const Tensor x = random_tensor({6, 3, 4, 5}, type, 1),
                                 target = random_tensor({6, 3, 4, 5}, type, 2);
                    const Tensor gamma = random_tensor({5}, type, 3), beta = random_tensor({5}, type, 4);
                    for (int64_t i = 0; i < 60; ++i) // the first image has another mean than the rest
                        if (type == DType::f64)
                            x.data<double>()[i] += 3;
                        else
                            x.data<float>()[i] += 3;
                    const Context alone{.backend = backend};
                    NormStep whole;
                    {
                        const ContextScope scope(alone);
                        whole = norm_step(x, gamma, beta, target, relu);
                    }
                    Ranks ranks(split);
                    std::vector<NormStep> parts(split.size());
                    ranks.run(backend, [&](size_t r) {
                        parts[r] = norm_step(part_of(x, ranks.begin(r), split[r]), gamma, beta,
                                             part_of(target, ranks.begin(r), split[r]), relu);
                    });
                    const std::vector<double>& shares = ranks.shares();
                    std::vector<Tensor> losses, dgammas, dbetas;
                    for (size_t r = 0; r < split.size(); ++r) {
                        losses.push_back(parts[r].loss), dgammas.push_back(parts[r].dgamma);
                        dbetas.push_back(parts[r].dbeta);
                        CHECK(differs(parts[r].stats, whole.stats, tolerance) == "");
                        CHECK(same_bits(parts[r].stats, parts[0].stats));
                        const Tensor dx = part_of(whole.dx, ranks.begin(r), split[r]);
                        CHECK(differs(scaled(parts[r].dx, shares[r]), dx, tolerance) == "");
                    }
                    CHECK(differs(weighted_sum(losses, shares), whole.loss, tolerance) == "");
                    CHECK(differs(weighted_sum(dgammas, shares), whole.dgamma, tolerance) == "");
                    CHECK(differs(weighted_sum(dbetas, shares), whole.dbeta, tolerance) == "");
                }
    }

    TEST_CASE("gradients: a network over ranks that share statistics is one rank on the joined batch") {
        const CifarNet::Options options{.width = 2, .depth = 1, .classes = 4, .seed = 3, .dtype = DType::f64};
        NetworkCase whole(options, 3);
        Tensor loss;
        {
            const ContextScope scope(kReference);
            loss = whole.step();
        }
        Ranks ranks({1, 2});
        const std::vector<double>& shares = ranks.shares();
        std::vector<Tensor> losses(2), gradients(2), states(2);
        ranks.run(Backend::reference, [&](size_t r) {
            NetworkCase mine(options, 3);
            mine.x = part_of(mine.x, ranks.begin(r), int64_t(r) + 1);
            mine.labels = part_of(mine.labels, ranks.begin(r), int64_t(r) + 1);
            losses[r] = mine.step();
            gradients[r] = mine.net.parameters.gradients();
            states[r] = mine.net.parameters.state();
        });
        const Tolerance tight{1e-10, 1e-9};
        CHECK(differs(weighted_sum(losses, shares), loss, tight) == "");
        CHECK(differs(weighted_sum(gradients, shares), whole.net.parameters.gradients(), tight) == "");
        CHECK(same_bits(states[0], states[1]));
        CHECK(differs(states[0], whole.net.parameters.state(), tight) == "");
    }
}

} // namespace rg
