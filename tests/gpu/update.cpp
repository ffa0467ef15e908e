// Updates that are a part of what is replayed, on a device as a part of its graph: what varies is read each time, and
// nothing changes where a value is not finite.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "models/nets/cifar_net.h"
#include "models/run/nan_guard.h"
#include "models/run/optimizer.h"
#include "tests/gpu/executor_device.h"
#include "tests/op_check.h"
#include "tests/parameter_lists.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>

using namespace rg;

namespace {

/// Parameters after some steps of a layer with dropout, each with its own seed, rate and number; the updates are part
/// of what is replayed. Rates and seeds are inputs (Adam) or tensors that are written between the steps (SGDM).
Tensor train_inside(Device* device, bool adam, bool accelerate) {
    const InContext on{{.device = device}};
    Rng random(1, Purpose::test);
    const Tensor x = Tensor::empty_on_host({8, 6}), start = Tensor::empty_on_host({5, 6});
    for (const Tensor& t : {x, start})
        for (float& v : t.span<float>()) v = random.normal();
    const Tensor w = Tensor::empty({5, 6}), dw = Tensor::zeros({5, 6}), m = Tensor::zeros({5, 6}),
                 v = Tensor::zeros({5, 6}), lr = Tensor::zeros({1}), seed = Tensor::zeros({2}, DType::i32);
    w.copy_from(start);
    Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        Tape tape;
        const Tensor h = dropout(linear(in[0], w), 0.4f, adam ? in[1] : seed, 3);
        const Tensor loss = mse_loss(h, Tensor::constant({8, 5}, 1));
        tape.gradients(loss, {{w}}, {{dw}});
        if (adam)
            adam_update(w, m, v, dw, {.weight_decay = 0.01f}, in[2]);
        else
            sgdm_update(w, v, dw, {.weight_decay = 0.01f}, lr);
        return {loss};
    });
    step.enabled = accelerate;
    step.check = accelerate && !device; // which undoes the plain function's updates
    for (int i = 0; i < 5; ++i) {
        const float rate = 0.1f / float(i + 1);
        const Tensor now = seed_tensor(uint64_t(i) << 32 | 7);
        lr.fill(rate);
        seed.copy_from(now);
        if (adam)
            step({x, now, floats({2}, rate, i + 1)}, true);
        else
            step({x}, true);
    }
    return w.to_host().clone();
}

/// Parameters after some steps of Muon, which are replayed or not. One filter tensor has more filters than values in
/// each.
Tensor move_filters(Device* device, bool accelerate) {
    const InContext on{{.device = device}};
    Parameters parameters;
    parameters.add("wide", {4, 2, 3, 5}, Parameters::Entry::Start::random);
    parameters.add("tall", {24, 1, 1, 3}, Parameters::Entry::Start::random);
    parameters.add("bias", {5}, Parameters::Entry::Start::ones);
    for (const char* name : {"wide", "tall"}) parameters.entry(name).scale_free = true;
    parameters.allocate(3, Init::he);
    Optimizer optimizer(parameters, {.kind = OptimizerKind::muon, .nesterov = true});
    const Tensor loss = Tensor::zeros({}), gradients = Tensor::empty_on_host(parameters.values().shape());
    Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        run(op::scale, {in[0]}, ScaleOp{1}, {parameters.gradients()});
        optimizer.update(loss);
        return {scale(loss, 1)};
    });
    step.enabled = accelerate;
    for (int i = 0; i < 4; ++i) {
        Rng random(uint64_t(i), Purpose::test);
        for (float& g : gradients.span<float>()) g = random.normal();
        optimizer.set(0.1, i + 1);
        step({gradients}, true);
    }
    return parameters.values().to_host().clone();
}

struct Trained {
    std::vector<double> losses;
    Tensor parameters, state;
};

/// Steps of a tiny network, each with its rate, of which the third has a NaN in one gradient, as --on-nan skip takes
/// them. With `inside`, the update is a part of what is replayed.
Trained train_skipping(Device* device, bool inside) {
    const InContext on{{.device = device}};
    CifarNet net({.width = 4, .depth = 1});
    Parameters& parameters = net.parameters;
    const OptimizerState optimizer{{"velocity", Tensor::zeros(parameters.values().shape())}};
    const std::vector<Tensor> values = value_list(parameters), gradients = gradient_list(parameters);
    const Tensor all = parameters.gradients(), damage = Tensor::zeros(all.shape()), rate = Tensor::zeros({1}),
                 non_finite_at = Tensor::zeros({}, DType::i32);
    const auto update = [&](const Tensor& loss) {
        run(op::add, {all, damage}, {}, {all});
        first_non_finite(all, loss, non_finite_at);
        sgdm_update(parameters.values(), optimizer[0].value, all, {.momentum = 0.9f}, rate, {non_finite_at});
    };
    Accelerated network([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        Tape tape;
        const Tensor loss = cross_entropy(net.forward(in[0], Mode::train), in[1]);
        tape.gradients(loss, values, gradients);
        if (inside) update(loss);
        return {loss};
    });
    NanGuard guard(OnNan::skip, parameters);
    const Tensor x = Tensor::empty_on_host({1, 32, 32, 3}), labels = Tensor::empty_on_host({1}, DType::i32);
    labels.fill(1);
    Trained result;
    std::string warnings;
    for (int64_t step = 0; step < 4; ++step) {
        Rng random(uint64_t(step), Purpose::test);
        for (float& v : x.span<float>()) v = random.normal();
        const bool bad = step == 2;
        damage.slice(100, {1}).fill(bad ? NAN : 0);
        rate.fill(0.1 / double(step + 1));
        const Tensor values_before = parameters.values().to_host().clone(),
                     velocity_before = optimizer[0].value.to_host().clone(),
                     state_before = parameters.state().to_host().clone();
        const Tensor loss = network({x, labels}, true)[0];
        if (!inside) update(loss);
        result.losses.push_back(double(loss.to_host().data<float>()[0]));
        CHECK(non_finite_at.to_host().data<int32_t>()[0] == (bad ? 100 : -1));
        const std::string warning = guard.handle_non_finite(step + 1, result.losses.back(), non_finite_at);
        CHECK(warning.empty() == !bad);
        warnings += warning;
        CHECK(same_bits(parameters.values().to_host(), values_before) == bad);
        CHECK(same_bits(optimizer[0].value.to_host(), velocity_before) == bad);
        CHECK(same_bits(parameters.state().to_host(), state_before) == bad);
    }
    CHECK(contains(warnings, "step 3: expected finite values, got nan in gradient of"));
    CHECK(network.hit_rate() == doctest::Approx(3.0 / 4)); // one plan, whatever the rate
    result.parameters = parameters.values().to_host().clone();
    result.state = parameters.state().to_host().clone();
    return result;
}

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("device: replays and graphs read the learning rate, the step and the seed of the time") {
        for (const bool adam : {false, true}) {
            CAPTURE(adam);
            ExecutorDevice device;
            const Tensor plain = train_inside(nullptr, adam, false), plain_there = train_inside(&device, adam, false);
            CHECK(same_bits(train_inside(nullptr, adam, true), plain));
            CHECK(device.launches == 0);
            CHECK(same_bits(train_inside(&device, adam, true), plain_there));
            CHECK(device.launches == 4); // each step but the first
            CHECK(differs(plain_there, plain, {1e-5, 1e-4}) == "");
        }
    }

    TEST_CASE("device: muon moves filters as on the CPU") {
        ExecutorDevice device;
        const Tensor here = move_filters(nullptr, false), there = move_filters(&device, false);
        CHECK(same_bits(move_filters(nullptr, true), here));
        CHECK(same_bits(move_filters(&device, true), there));
        CHECK(differs(there, here, {1e-4, 1e-3}) == ""); // products of TF32 on devices
    }

    TEST_CASE("device: an update in a graph and one after it give the same bits, and none where a gradient is NaN") {
        for (const bool there : {false, true}) {
            CAPTURE(there);
            ExecutorDevice device;
            Device* const on = there ? &device : nullptr;
            const Trained inside = train_skipping(on, true), outside = train_skipping(on, false);
            CHECK(inside.losses == outside.losses);
            CHECK(same_bits(inside.parameters, outside.parameters));
            CHECK(same_bits(inside.state, outside.state));
        }
    }
}
