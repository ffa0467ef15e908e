// Tests gradients: every backward rule against central differences in double, also with wrong gradients that must be
// rejected; the CPU's gradients against the reference's; and batch norm over ranks that share statistics.
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"

#include <doctest/doctest.h>
#include <set>

namespace rg {
namespace {

const Context kReference{.backend = Backend::reference};
constexpr double kQuick = 1e5, kBearable = 2e6; // GradientCase::work

Tensor scaled(const Tensor& t, double factor) {
    const Tensor wide = t.to(DType::f64);
    for (double& v : wide.span<double>()) v *= factor;
    return wide.to(t.dtype());
}

/// The results of one rank for the activation of batch_norm(x), with the distance to a target as the loss.
struct NormStep {
    Tensor stats, loss, dx, dgamma, dbeta;
};

NormStep norm_step(const Tensor& x, const Tensor& gamma, const Tensor& beta, const Tensor& target,
                   Activation activation) {
    NormStep step;
    Tape tape;
    step.stats = combine_stats(channel_stats(x));
    step.loss = mse_loss(batch_norm(x, step.stats, gamma, beta, {.activation = activation}), target);
    const Tensor of[] = {x, gamma, beta};
    for (Tensor* t : {&step.dx, &step.dgamma, &step.dbeta})
        *t = Tensor::empty(t == &step.dx ? x.shape() : gamma.shape(), x.dtype());
    const Tensor into[] = {step.dx, step.dgamma, step.dbeta};
    tape.gradients(step.loss, of, into);
    return step;
}

} // namespace

TEST_SUITE("core") {
    TEST_CASE("gradients: every differentiable op agrees with central differences, and wrong gradients do not") {
        const ContextScope scope(kReference);
        std::set<Op> judged;
        for (const OpCase& c : op_cases()) {
            if (!GradientCase::possible(c) || GradientCase::work(c) > kBearable) continue;
            // Among many values, one is so close to the kink of an activation that a difference steps over it.
            const bool has_kink = c.op == op::batch_norm && c.attrs.as<BatchNormOp>().norm.activation.kind;
            if (has_kink && c.in[0].shape.numel() > 2000) continue;
            const bool quick = GradientCase::work(c) <= kQuick;
            CAPTURE(describe(c));
            const GradientCase check(c);
            const std::vector<Tensor> gradients = check.backward();
            for (size_t i = 0; i < gradients.size(); ++i) {
                if (!gradients[i].defined()) continue;
                CAPTURE(i);
                CHECK(check.judge(i, gradients[i], quick) == "");
                // With few values, a gradient may be exactly zero, and scaling does not make it wrong.
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
            // A cast rounds on purpose, so differences do not apply. tape.cpp tests its gradient.
            if (op != op::cast) CHECK(judged.contains(op) == (op->backward != nullptr));
        }
    }

    TEST_CASE("gradients: those of the CPU agree with those of the reference in f32") {
        std::set<Op> compared;
        for (const OpCase& c : op_cases()) {
            if (!GradientCase::possible(c)) continue;
            // Batch norm of two values has a gradient of zero apart from rounding and epsilon.
            if (c.op == op::batch_norm && c.in[0].shape.numel() <= 2 * c.in[0].shape[3]) continue;
            CAPTURE(describe(c));
            const GradientCase check(c, DType::f32);
            const std::vector<Tensor> got = check.backward();
            const ContextScope scope(kReference);
            const std::vector<Tensor> want = check.backward();
            for (size_t i = 0; i < want.size(); ++i) {
                CAPTURE(i);
                if (!want[i].defined()) continue;
                // The gradient in y is itself a rounded difference.
                CHECK(differs(got[i], want[i], {1e-4, 1e-3}) == "");
                compared.insert(c.op);
            }
        }
        for (const Op op : kOps)
            if (op != op::cast) CHECK(compared.contains(op) == (op->backward != nullptr));
    }

    TEST_CASE("gradients: batch norm over ranks with uneven fractions equals one rank on the whole batch") {
        const std::vector<std::vector<int64_t>> splits = {{2, 4}, {1, 3, 2}, {6}};
        for (Backend backend : {Backend::reference, Backend::cpu})
            for (const Activation::Kind kind : {Activation::none, Activation::relu, Activation::hardswish})
                for (const auto& split : splits) {
                    const DType type = backend == Backend::cpu ? DType::f32 : DType::f64;
                    const Tolerance tolerance = backend == Backend::cpu ? kCancelled : Tolerance{1e-12, 1e-11};
                    CAPTURE(int(backend));
                    CAPTURE(int(kind));
                    CAPTURE(split.size());
                    const Tensor x = random_tensor({6, 3, 4, 5}, type, 1),
                                 target = random_tensor({6, 3, 4, 5}, type, 2);
                    const Tensor gamma = random_tensor({5}, type, 3), beta = random_tensor({5}, type, 4);
                    for (int64_t i = 0; i < 60; ++i) // the first image has another mean than the others
                        if (type == DType::f64)
                            x.data<double>()[i] += 3;
                        else
                            x.data<float>()[i] += 3;
                    const Context alone{.backend = backend};
                    NormStep whole;
                    {
                        const ContextScope scope(alone);
                        whole = norm_step(x, gamma, beta, target, kind);
                    }
                    SyncRanks ranks(split);
                    std::vector<NormStep> parts(split.size());
                    ranks.run(backend, [&](size_t r) {
                        parts[r] = norm_step(part_of(x, ranks.begin(r), split[r]), gamma, beta,
                                             part_of(target, ranks.begin(r), split[r]), kind);
                    });
                    const std::vector<double>& fractions = ranks.fractions();
                    std::vector<Tensor> losses, dgammas, dbetas;
                    for (size_t r = 0; r < split.size(); ++r) {
                        losses.push_back(parts[r].loss), dgammas.push_back(parts[r].dgamma);
                        dbetas.push_back(parts[r].dbeta);
                        CHECK(differs(parts[r].stats, whole.stats, tolerance) == "");
                        CHECK(same_bits(parts[r].stats, parts[0].stats));
                        const Tensor dx = part_of(whole.dx, ranks.begin(r), split[r]);
                        CHECK(differs(scaled(parts[r].dx, fractions[r]), dx, tolerance) == "");
                    }
                    CHECK(differs(weighted_sum(losses, fractions), whole.loss, tolerance) == "");
                    CHECK(differs(weighted_sum(dgammas, fractions), whole.dgamma, tolerance) == "");
                    CHECK(differs(weighted_sum(dbetas, fractions), whole.dbeta, tolerance) == "");
                }
    }
}

} // namespace rg
