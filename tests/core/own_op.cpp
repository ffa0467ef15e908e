// Tests that an op from outside of the tree, which is not in RG_OPS, works like the others: with tapes, plans,
// profiles, bf16, and on a device with and without a kernel for it. The op computes factor * x^3.
#include "core/accelerate.h"
#include "core/ops.h"
#include "core/ops/reference.h"
#include "core/profile.h"
#include "core/tape.h"
#include "tests/host_device.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"
#include "tests/temp_dir.h"

#include <doctest/doctest.h>

using namespace rg;

namespace {

struct CubeOp {
    enum In { x };
    float factor = 1;
};
struct CubeGradOp {
    enum In { dy, x };
    float factor = 1;
};

OutputSpecs infer_cube(std::span<const Tensor> in, const Attrs&) { return {{{in[0].shape(), in[0].dtype()}}}; }

void cube_reference(const Call& call) {
    ref::Values x = ref::read(call.in[CubeOp::x]);
    for (double& v : x) v = call.attrs.as<CubeOp>().factor * v * v * v;
    ref::write(call.out[0], x);
}

void cube_grad_reference(const Call& call) {
    ref::Values dx = ref::read(call.in[CubeGradOp::dy]);
    const ref::Values x = ref::read(call.in[CubeGradOp::x]);
    for (size_t i = 0; i < dx.size(); ++i) dx[i] *= 3 * call.attrs.as<CubeGradOp>().factor * x[i] * x[i];
    ref::write(call.out[0], dx);
}

// The CPU kernels are called with f32 and with bf16.

void cube_cpu(const Call& call) {
    const Tensor y = call.in[CubeOp::x].to(DType::f32);
    for (float& v : y.span<float>()) v = call.attrs.as<CubeOp>().factor * v * v * v;
    call.out[0].copy_from(y.to(call.out[0].dtype()));
}

void cube_grad_cpu(const Call& call) {
    const Tensor dx = call.in[CubeGradOp::dy].to(DType::f32), x = call.in[CubeGradOp::x].to(DType::f32);
    for (int64_t i = 0; i < dx.numel(); ++i)
        dx.data<float>()[i] *= 3 * call.attrs.as<CubeGradOp>().factor * x.data<float>()[i] * x.data<float>()[i];
    call.out[0].copy_from(dx.to(call.out[0].dtype()));
}

constexpr Argument kCubeInputs[] = {{"x"}};
constexpr Argument kCubeGradInputs[] = {{"dy"}, {"x"}};

const OpRow kCubeGrad{.name = "cube_grad", .reference = cube_grad_reference, .cpu = cube_grad_cpu, .infer = infer_cube,
                      .inputs = kCubeGradInputs};

void backward_cube(BackwardContext& b) {
    const CubeGradOp attrs{b.attrs().as<CubeOp>().factor};
    b.give(CubeOp::x, run(&kCubeGrad, {b.dy(), b.in(CubeOp::x)}, attrs, {b.into(CubeOp::x)})[0]);
}

void check_cube(const Call& call) {
    for (const double v : ref::read(call.in[CubeOp::x])) RG_CHECK(v < 1e6, "cube: expected x below 1e6, got ", v);
}

const OpRow kCube{.name = "cube", .reference = cube_reference, .cpu = cube_cpu, .infer = infer_cube,
                  .inputs = kCubeInputs, .backward = backward_cube, .saves = input_bit(CubeOp::x), .check = check_cube};

int launches = 0;                 // of the kernel for GPUs
void cube_gpu(const Call& call) { // the memory of HostDevice is host memory
    ++launches;
    const float factor = call.attrs.as<CubeOp>().factor;
    const auto* x = reinterpret_cast<const float*>(call.in[0].bytes_data());
    for (int64_t i = 0; i < call.in[0].numel(); ++i)
        reinterpret_cast<float*>(call.out[0].bytes_data())[i] = factor * x[i] * x[i] * x[i];
}

Tensor random_on_host(const Shape& shape, uint64_t seed) {
    const Context host;
    const ContextScope scope(host);
    return random_tensor(shape, DType::f32, seed);
}

/// Three steps of gradient descent on the squared distance of cube(x w^T) to a target.
struct Steps {
    Tensor w;
    std::vector<float> losses;
};

Steps train(const OpRow& cube, DType type, bool replayed) {
    const Tensor w = Tensor::empty({4, 5}), dw = Tensor::zeros(w.shape()), velocity = Tensor::zeros(w.shape());
    w.copy_from(random_on_host(w.shape(), 1));
    const Tensor x = Tensor::empty({6, 5}), target = Tensor::empty({6, 4});
    x.copy_from(random_on_host(x.shape(), 2)), target.copy_from(random_on_host(target.shape(), 3));
    Accelerated step(
        [&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            Tape tape;
            const Tensor y = run(&cube, {cast(linear(in[0], w), type)}, CubeOp{0.5f})[0];
            const Tensor loss = mse_loss(cast(y, DType::f32), in[1]);
            tape.gradients(loss, std::array{w}, std::array{dw});
            return {loss};
        },
        replayed);
    Steps steps;
    for (int i = 0; i < 3; ++i) {
        steps.losses.push_back(step({x, target}, true)[0].to_host().data<float>()[0]);
        sgdm_update(w, velocity, dw, {.lr = 0.002f});
    }
    steps.w = w.to_host().clone();
    return steps;
}

} // namespace

TEST_SUITE("core") {
    TEST_CASE("own op: the kernels agree, and its gradient agrees with central differences") {
        for (const DType type : {DType::f32, DType::bf16}) {
            const OpCase c{&kCube, {{{3, 7}, Draw::away}}, CubeOp{0.5f}, kRounded, type == DType::bf16 ? 1u : 0u};
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const Tensor want = run_kernel(c, in, Backend::reference, 16).results[0],
                         got = run_kernel(c, in, Backend::cpu, 16).results[0];
            CHECK(got.dtype() == type);
            CHECK(differs(got, want, type == DType::bf16 ? kNarrow : kRounded) == "");
        }
        const OpCase c{&kCube, {{{3, 7}, Draw::away}}, CubeOp{0.5f}};
        const InContext reference{{.backend = Backend::reference}};
        REQUIRE(GradientCase::possible(c));
        const GradientCase check(c);
        CHECK(check.judge(0, check.backward()[0], true) == "");
    }

    TEST_CASE("own op: trains in a plan as without one, on the host and on a device") {
        OpRow with_gpu = kCube;
        with_gpu.gpu = cube_gpu;
        for (const DType type : {DType::f32, DType::bf16}) {
            CAPTURE(int(type));
            const Tolerance tolerance = type == DType::bf16 ? kNarrow : kSummed;
            const Steps plain = train(kCube, type, false), replayed = train(kCube, type, true);
            CHECK(differs(replayed.w, plain.w, tolerance) == "");
            CHECK(plain.losses[2] < plain.losses[0]);
            for (const auto captures : {HostDevice::Captures::work, HostDevice::Captures::fail}) {
                HostDevice device;
                device.captures = captures;
                const InContext on{{.device = &device}};
                for (const bool plan : {false, true})
                    CHECK(differs(train(kCube, type, plan).w, plain.w, tolerance) == "");
                if (type == DType::bf16) continue; // cube_gpu is for f32
                launches = 0;
                CHECK(differs(train(with_gpu, type, true).w, plain.w, tolerance) == "");
                CHECK(launches == 3);
            }
        }
    }

    TEST_CASE("own op: is named in profiles and errors") {
        Profile profile;
        const Context on{.profile = &profile};
        const ContextScope scope(on);
        train(kCube, DType::f32, true);
        CHECK(contains(profile.table(1, {}), "\ncube_grad "));
        CHECK(contains(profile.table(1, {}), "\ncube "));
        CHECK(error_of([] { run(&kCube, {Tensor::zeros({2}, DType::i32)}); }) == "cube: x is i32, expected f32");
        const Tensor large = Tensor::constant({2}, 2e6);
        CHECK(error_of([&] { run(&kCube, {large}, CubeOp{}); }) == "cube: expected x below 1e6, got 2e+06");
        OpRow incomplete = kCube;
        incomplete.cpu = nullptr;
        CHECK(error_of([&] { run(&incomplete, {Tensor::zeros({2})}, CubeOp{}); }) ==
              "cube: expected a row with reference, cpu and infer, got one without; define all three");
        HostDevice device; // without a kernel for it, the op runs on the host, where its values can be checked
        const InContext on_device{{.device = &device}};
        const Tensor there = Tensor::empty({2});
        there.copy_from(large);
        CHECK_ERROR("cube: expected x below 1e6", run(&kCube, {there}, CubeOp{}));
    }
}
