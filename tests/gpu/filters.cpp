// Filters that a replay on a device rounds to bf16 once, at its beginning: every bit is that of convolutions which
// round them by themselves, whoever has written the parameters since the last step.
#include "core/accelerate.h"
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "models/run/gradient_sum.h"
#include "tests/gpu/executor_device.h"
#include "tests/op_check.h"
#include "tests/thread_link.h"

#include <cmath>
#include <doctest/doctest.h>

using namespace rg;

namespace {

/// Convolutions without batch norm, for a mean squared error: a replay fuses nothing, so single ops have its bits.
struct Net {
    Parameters parameters;
    const Tensor &first = parameters.add("first", {8, 3, 3, 3}, Parameters::Entry::Start::random),
                 &bias = parameters.add("bias", {8}, Parameters::Entry::Start::zeros),
                 &strided = parameters.add("strided", {11, 3, 3, 8}, Parameters::Entry::Start::random),
                 &narrow = parameters.add("narrow", {16, 1, 1, 11}, Parameters::Entry::Start::random),
                 &dense = parameters.add("dense", {4, 256}, Parameters::Entry::Start::random);
    Net() { parameters.allocate(1, Init::he); }
    Tensor forward(const Tensor& x) const {
        Tensor y = relu(conv2d(x, first, bias, {.pad = 1}));
        y = relu(conv2d(y, strided, {}, {.stride = 2, .pad = 1}));
        y = relu(conv2d(y, narrow));
        return linear(cast(y, DType::f32).reshape({x.extent(0), 256}), dense);
    }
};

enum class Way { op_by_op, replayed, graph };

/// What a training has when it stands before step `at`.
struct Standing {
    int at = 0;
    Tensor parameters, m, v;
    std::vector<double> losses;
};

constexpr int kSteps = 7, kBad = 2, kRollback = 5;

/// Steps, each with its image, until `end`. kBad's gradients have a NaN, so that its update is left out; before
/// kRollback the parameters are set back to those before step 1. Ranks that are more than one update after the sum of
/// the gradients, outside of what is replayed.
Standing train(par::Group& group, DType type, bool adam, Way way, Standing from = {}, int end = kSteps) {
    ExecutorDevice device;
    device.captures = way == Way::graph ? ExecutorDevice::Captures::work : ExecutorDevice::Captures::none;
    const InContext on{{.device = &device}};
    Net net;
    Parameters& parameters = net.parameters;
    const Tensor p = parameters.values(), all = parameters.gradients(), m = Tensor::zeros(p.shape()),
                 v = Tensor::zeros(p.shape()), damage = Tensor::zeros(p.shape()), now = Tensor::zeros({2}),
                 found = Tensor::zeros({}, DType::i32);
    const Tensor start = p.to_host().clone();
    if (from.at > 0) p.copy_from(from.parameters), m.copy_from(from.m), v.copy_from(from.v);
    const auto update = [&](const Tensor& loss) {
        run(op::add, {all, damage}, {}, {all});
        first_non_finite(all, loss, found);
        if (adam)
            adam_update(p, m, v, all, {.weight_decay = 0.01f}, now, {found});
        else
            sgdm_update(p, v, all, {.momentum = 0.9f, .nesterov = true}, now.slice(0, {1}), {found});
    };
    Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        Tape tape;
        const Tensor loss = mse_loss(net.forward(cast(in[0], type)), in[1]);
        tape.gradients(loss, parameters);
        if (group.size() == 1) update(loss);
        return {loss};
    });
    step.enabled = way != Way::op_by_op;
    GradientSum sum(group, parameters, par::Algorithm::automatic, false);
    for (; from.at < end; ++from.at) {
        const Tensor x = Tensor::empty_on_host({1, 8, 8, 3}), target = Tensor::empty_on_host({1, 4});
        Rng random(uint64_t(from.at), Purpose::test, 0, uint64_t(group.rank()));
        for (float& value : x.span<float>()) value = random.normal();
        for (float& value : target.span<float>()) value = random.normal();
        now.copy_from(floats({2}, 0.05f, from.at + 1));
        damage.slice(40, {1}).fill(from.at == kBad ? NAN : 0);
        if (from.at == kRollback) p.copy_from(start);
        sum.begin(1.0 / group.size());
        const Tensor before = p.to_host().clone(), loss = step({x, target}, true)[0];
        sum.finish();
        if (group.size() > 1) update(loss);
        CHECK(same_bits(p.to_host(), before) == (from.at == kBad));
        from.losses.push_back(double(loss.to_host().data<float>()[0]));
    }
    if (way != Way::op_by_op) {
        int rounded = 0, converted = 0;
        const Plan& plan = step.plan({Tensor::empty_on_host({1, 8, 8, 3}), Tensor::empty_on_host({1, 4})}, true);
        for (const Step& s : plan.steps()) {
            rounded += s.op == op::cast && s.in[0].key() == p.key();
            converted += (s.op == op::conv2d && s.in[Conv2dOp::w].dtype() != s.in[0].dtype()) ||
                         (s.op == op::conv2d_grad && s.in[Conv2dGradOp::w].dtype() != s.in[0].dtype());
        }
        CHECK(rounded == (type == DType::bf16 ? 1 : 0));
        CHECK(converted == 0);
        CHECK((device.launches > 0) == (way == Way::graph));
    }
    from.parameters = p.to_host().clone(), from.m = m.to_host().clone(), from.v = v.to_host().clone();
    return from;
}

std::vector<Standing> train(int ranks, DType type, bool adam, Way way, const Standing& from = {}, int end = kSteps) {
    std::vector<Standing> all(static_cast<size_t>(ranks));
    par::run_groups(ranks,
                    [&](par::Group& group) { all[size_t(group.rank())] = train(group, type, adam, way, from, end); });
    return all;
}

void check_same(const Standing& a, const Standing& b) {
    CHECK(a.losses == b.losses);
    CHECK(same_bits(a.parameters, b.parameters));
    CHECK(same_bits(a.m, b.m));
    CHECK(same_bits(a.v, b.v));
}

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("device: filters that a replay rounds once give the bits of those that each convolution rounds") {
        for (const auto& training : {std::pair{1, false}, {1, true}, {2, true}}) {
            const int ranks = training.first;
            const bool adam = training.second;
            INFO("adam ", adam, ", ranks ", ranks);
            const std::vector<Standing> plain = train(ranks, DType::bf16, adam, Way::op_by_op);
            CHECK(plain[0].losses[kRollback - 1] != plain[0].losses[kRollback]);
            for (const Way way : {Way::replayed, Way::graph}) {
                CAPTURE(int(way));
                const std::vector<Standing> replayed = train(ranks, DType::bf16, adam, way);
                for (size_t rank = 0; rank < plain.size(); ++rank) check_same(replayed[rank], plain[rank]);
                CHECK(same_bits(replayed.back().parameters, plain[0].parameters));
            }
            if (ranks > 1) continue;
            check_same(train(1, DType::bf16, adam, Way::graph, train(1, DType::bf16, adam, Way::graph, {}, 4)[0])[0],
                       plain[0]);
        }
        check_same(train(1, DType::f32, false, Way::graph)[0], train(1, DType::f32, false, Way::op_by_op)[0]);
    }

    TEST_CASE("device: filters that a replay changes, or that are not aligned, are not rounded ahead") {
        ExecutorDevice device;
        const InContext on{{.device = &device}};
        const Tensor changing = Tensor::zeros({8, 3, 3, 8}), anywhere = Tensor::zeros({67}).slice(3, {8, 1, 1, 8});
        anywhere.fill(1.001);
        Accelerated convolve([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            const Tensor x = cast(in[0], DType::bf16);
            run(op::add, {changing, changing}, {}, {changing});
            return {conv2d(x, changing), conv2d(x, anywhere)};
        });
        const Tensor x = Tensor::empty_on_host({1, 4, 4, 8});
        x.fill(1);
        std::vector<Tensor> plain;
        for (const bool replayed : {false, true}) {
            convolve.enabled = replayed;
            changing.fill(1.001);
            for (size_t i = 0; i < 6; i += 2) {
                const std::span<const Tensor> y = convolve({x});
                for (size_t j = 0; j < 2; ++j) {
                    if (replayed)
                        CHECK(same_bits(y[j].to_host(), plain[i + j]));
                    else
                        plain.push_back(y[j].to_host().clone());
                }
            }
        }
        CHECK_FALSE(same_bits(plain[0], plain[2]));
        for (const Step& step : convolve.plan({x}).steps())
            CHECK((step.op != op::conv2d || step.in[Conv2dOp::w].dtype() == DType::f32));
    }
}
