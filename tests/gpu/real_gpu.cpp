// Tests every op on a real GPU against the reference, a plan's graph against single launches, and the other functions
// of core/device.h. Skips everything if there is no GPU: the suite simt runs the same kernels on the executor.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "data/loader.h"
#include "gpu/device.h"
#include "models/nets/cifar_net.h"
#include "models/run/gradient_sum.h"
#include "tests/gpu/other_process.h"
#include "tests/image_sets.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"
#include "tests/training_step.h"

#include <array>
#include <cstdlib>
#include <doctest/doctest.h>

using namespace rg;

namespace {

std::vector<Tensor> run_there(const OpCase& c, std::span<const Tensor> host_inputs) {
    const OpRow& r = *c.op;
    std::vector<Tensor> in(host_inputs.begin(), host_inputs.end()), out(static_cast<size_t>(r.outputs));
    const OutputSpecs specs = infer(r, host_inputs, c.attrs);
    for (Tensor& t : in)
        if (t.defined()) {
            const Tensor host = t;
            t = Tensor::empty(host.shape(), host.dtype());
            t.copy_from(host);
        }
    for (size_t i = 0; i < out.size(); ++i)
        out[i] = int(i) < r.in_place ? in[i] : Tensor::empty(specs[i].shape, specs[i].dtype);
    execute(c.op, {c.attrs, in, out});
    std::vector<Tensor> results;
    for (const Tensor& t : out) results.push_back(t.to_host().clone());
    return results;
}

/// Returns the first GPU. If there is none, prints the reason and returns null.
std::shared_ptr<Device> first_gpu() {
    const gpu::FoundGpus found = gpu::find_devices();
    if (found.gpus.empty()) {
        MESSAGE("skipped: ", found.why_none);
        return nullptr;
    }
    std::shared_ptr<Device> device = gpu::open_device(found.gpus[0].index);
    MESSAGE(device->name());
    return device;
}

Tensor numbers(int64_t count, uint64_t seed) {
    const Tensor t = Tensor::empty_on_host({count});
    Rng random(seed, Purpose::test);
    for (float& v : t.span<float>()) v = random.normal();
    return t;
}

/// Says whether a plan launches its ops one by one, or from the second step on as one graph or several graphs.
enum class Launches : uint8_t { ops, graph, graphs };
/// Trains a small network for some steps on the current device and returns its parameters.
Tensor train_on_device(DType type, Launches launches) {
    CifarNet net({.width = 32, .depth = 2});
    Parameters& parameters = net.parameters;
    const Tensor velocity = Tensor::zeros(parameters.values().shape()), rate = Tensor::zeros({1}),
                 found = Tensor::zeros({}, DType::i32);
    Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        Tape tape;
        const Tensor loss = cross_entropy(net.forward(cast(in[0], type), Mode::train), in[1]);
        tape.gradients(loss, parameters);
        first_non_finite(parameters.gradients(), loss, found);
        sgdm_update(parameters.values(), velocity, parameters.gradients(), {}, rate, {found});
        return {loss};
    });
    if (launches == Launches::graphs) step.after_step = [](const Plan&, size_t s) { return s % 5 == 2; };
    constexpr int64_t kImages = 20;
    for (int i = 0; i < 6; ++i) {
        if (launches == Launches::ops) step.clear_cache(); // a plan becomes a graph in its second replay
        const Tensor labels = Tensor::empty_on_host({kImages}, DType::i32);
        for (int64_t j = 0; j < kImages; ++j) labels.data<int32_t>()[j] = int32_t((j * 7 + i) % 10);
        rate.fill(0.1 / (i + 1));
        step({numbers(kImages * 3072, uint64_t(i)).reshape({kImages, 32, 32, 3}), labels}, true);
    }
    return parameters.values().to_host();
}

/// Returns the gradients after each of some steps, summed over the ranks. With `early`, their sum runs during backward.
std::vector<Tensor> sum_there(par::Group& group, bool early) {
    const std::shared_ptr<Device> device = gpu::open_device(0);
    const InContext on{{.device = device.get()}};
    CifarNet net({.width = 32, .depth = 2}); // has several gradient buckets
    Accelerated network = training_step(net);
    GradientSum sum(group, net.parameters, par::Algorithm::automatic, false);
    if (early) network.after_step = [&](const Plan& plan, size_t step) { return sum.after_step(plan, step); };
    constexpr int64_t kImages = 20;
    const Tensor labels = Tensor::empty_on_host({kImages}, DType::i32);
    labels.fill(3);
    std::vector<Tensor> sums;
    for (int i = 0; i < 8; ++i) {
        const Tensor x = numbers(kImages * 3072, uint64_t(2 * i + group.rank())).reshape({kImages, 32, 32, 3});
        sum.begin(group.rank() == 0 ? 0.25 : 0.75);
        network({x, labels}, true);
        sum.finish();
        sums.push_back(net.parameters.gradients().to_host());
    }
    return sums;
}

/// Returns random multiples of 1/16 from -15/16 to 1, on the current device. bf16 holds them exactly. With `positive`,
/// adds 1.5 to each.
Tensor sixteenths(const Shape& shape, DType type, uint64_t seed, bool positive = false) {
    const Tensor values = Tensor::empty_on_host(shape);
    float* const data = values.data<float>();
    for (int64_t i = 0; i < values.numel(); ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX generator
        data[i] = float(int(seed >> 59) - 15) / 16 + (positive ? 1.5f : 0.0f);
    }
    return values.to(type).to_device();
}

/// A convolution of c channels with k square filters.
struct Layer {
    int64_t c, k, width, filter = 3, stride = 1;
};
struct LayerCase {
    Op op;
    Attrs attrs;
    std::vector<Tensor> in;
};

/// Returns ops with this layer that together use all Hopper kernels for it. `values` holds enough random values.
std::vector<LayerCase> cases_of(const Layer& layer, int64_t images, const Tensor& values) {
    using F = Conv2dOp;
    using G = Conv2dGradOp;
    const int64_t height = layer.width == 16 ? 32 : 16, c = layer.c, k = layer.k;
    const Conv conv{.stride = layer.stride, .pad = layer.filter / 2};
    const auto results = [&](int64_t extent) { return (extent - 1) / layer.stride + 1; };
    const Shape to{images, results(height), results(layer.width), k};
    const Tensor x = values.slice(0, {images, height, layer.width, c}), dy = values.slice(8 * 101, to);
    const BatchNorm norm{.activation = Activation::relu};
    const auto with_norm = [&](std::vector<Tensor> in, auto place, const Tensor& of) {
        const int64_t channels = of.extent(3);
        place.set(in, Operand{of,
                              {sixteenths({2, channels}, DType::f32, 7, true), // mean and variance
                               sixteenths({channels}, DType::f32, 8), sixteenths({channels}, DType::f32, 9), norm}});
        return in;
    };
    std::vector<Tensor> forward(op::conv2d->inputs.size()), backward(op::conv2d_grad->inputs.size());
    forward[F::x] = x, forward[F::w] = sixteenths({k, layer.filter, layer.filter, c}, DType::f32, 2);
    forward[F::bias] = sixteenths({k}, DType::f32, 3);
    backward[G::dy] = dy, backward[G::x] = x, backward[G::w] = forward[F::w];
    std::vector<Tensor> through_norm = with_norm(backward, G().y_norm, values.slice(8 * 1009, to));
    through_norm[G::y_sums] = sixteenths({2, k}, DType::f32, 6);
    if (c < 32) // a first layer needs no gradient of its images
        return {{op::conv2d, F{.conv = conv, .with_stats = true}, forward},
                {op::conv2d_grad, G{.conv = conv, .data = false, .y_norm = norm}, through_norm}};
    return {{op::conv2d, F{.conv = conv, .with_stats = true}, forward},
            {op::conv2d, F{.conv = conv, .with_stats = true, .x_norm = norm}, with_norm(forward, F().x_norm, x)},
            {op::conv2d_grad, G{.conv = conv}, backward},
            {op::conv2d_grad, G{.conv = conv, .y_norm = norm}, through_norm},
            {op::conv2d_grad, G{.conv = conv, .with_sums = true, .y_norm = norm, .x_norm = norm},
             with_norm(through_norm, G().x_norm, x)}};
}

/// Checks that two devices, which share their memory, compute the same with layers on so many images.
void check_same_layers(Device& device, Device& other, int64_t images) {
    const InContext on{{.device = &device}};
    const Tensor values = sixteenths({images * 16 * 32 * 64 + 8 * 1009}, DType::bf16, 1);
    // First some layers for the kernels with packed images (packed_images.cuh). Then all layers of KernelFamily::hopper,
    // for conv_hopper.cu and conv_grad_hopper.cu.
    std::vector<Layer> layers = {
        {64, 64, 9}, {128, 128, 9, 3, 2}, {64, 128, 9, 1}, {128, 64, 10, 1, 2}, {24, 64, 9}, {3, 64, 10, 7, 2}};
    for (const int64_t c : {32, 64, 128})
        for (const int64_t k : {32, 64, 128})
            for (const int64_t width : {8, 16, 32})
                if (std::max(c, k) < 128 || (std::min(c, k) > 32 && width == 8)) layers.push_back({c, k, width});
    for (const Layer& layer : layers)
        for (const LayerCase& one : cases_of(layer, images, values)) {
            CAPTURE(one.op->name);
            CAPTURE(one.in[0].shape().str());
            CAPTURE(one.in[one.op == op::conv2d ? size_t(Conv2dOp::w) : size_t(Conv2dGradOp::w)].shape().str());
            device.synchronize(); // the inputs
            std::vector<Tensor> results[2];
            for (Device* const computes : {&device, &other}) {
                std::vector<Tensor>& out = results[computes == &other];
                const OutputSpecs specs = infer(*one.op, one.in, one.attrs);
                for (int i = 0; i < one.op->outputs; ++i)
                    out.push_back(Tensor::empty(specs[size_t(i)].shape, specs[size_t(i)].dtype));
                const InContext there{{.device = computes}};
                computes->kernel(one.op)({one.attrs, one.in, out});
                computes->synchronize();
            }
            for (size_t i = 0; i < results[0].size(); ++i) {
                CAPTURE(i);
                const Tensor want = cast(results[0][i], DType::f32), got = cast(results[1][i], DType::f32);
                const float size = mse_loss(want, Tensor::zeros(want.shape())).to_host().data<float>()[0];
                // Rounding to bf16 changes less than 1 % of the Euclidean norm. Never true for NaN.
                CHECK(mse_loss(got, want).to_host().data<float>()[0] <= 1e-4f * size);
            }
        }
}

} // namespace

TEST_SUITE("gpu") {
    TEST_CASE("gpu: a plan's graph and its single launches give the same bits") {
        const std::shared_ptr<Device> device = first_gpu();
        if (!device) return;
        const InContext on{{.device = device.get()}};
        const Tensor x = Tensor::empty({1000}), y = Tensor::empty({1000});
        x.copy_from(numbers(1000, 1));
        const auto work = [&] { run(op::add, {x, x}, {}, {y}); };
        work();
        const std::unique_ptr<Device::KernelGraph> graph = device->capture(work);
        if (!graph) {
            MESSAGE("skipped: launches are plain (RG_SYNC)");
            return;
        }
        x.copy_from(numbers(1000, 2));
        graph->launch(); // reads the current values
        CHECK(y.to_host().data<float>()[999] == 2 * numbers(1000, 2).data<float>()[999]);
        CHECK_THROWS_WITH_AS(device->capture([&] { work(), fail("half way"); }), "half way", Error);
        CHECK_THROWS_AS(device->capture([&] { work(), device->synchronize(); }), Error); // a graph cannot contain this
        work();                                                                          // still works
        CHECK(y.to_host().data<float>()[999] == 2 * numbers(1000, 2).data<float>()[999]);
        for (const DType type : {DType::f32, DType::bf16}) {
            CAPTURE(name_of(type));
            const Tensor ops = train_on_device(type, Launches::ops);
            CHECK(same_bits(train_on_device(type, Launches::graph), ops));
            CHECK(same_bits(train_on_device(type, Launches::graphs), ops));
        }
    }

    TEST_CASE("gpu: uploads any size, and moves chunks to the host and back between ops") {
        const std::shared_ptr<Device> device = first_gpu();
        if (!device) return;
        const InContext on{{.device = device.get()}};
        constexpr int64_t kCount = (int64_t{5} << 20) + 3; // 20 MiB, more than is in flight at a time
        const Tensor host = numbers(kCount, 3), x = Tensor::empty({kCount});
        Tensor passing = host.clone();
        x.copy_from(passing);
        passing.fill(0); // allowed while the copy is in flight
        CHECK(same_bits(x.to_host(), host));

        const Tensor here = Tensor::empty_on_host({kCount});
        std::vector<size_t> ends; // counted in values
        for (size_t end = 0; end < size_t(kCount); ends.push_back(end))
            end = std::min(size_t(kCount), end + (size_t{1} << 18) + 5);
        std::vector<size_t> byte_ends;
        for (const size_t end : ends) byte_ends.push_back(4 * end);
        const auto trip = device->round_trip(here.bytes_data(), x.bytes_data(), byte_ends);
        for (int step = 0; step < 3; ++step) {
            for (size_t i = 0, begin = 0; i < ends.size(); begin = ends[i++]) {
                const Tensor piece = x.slice(int64_t(begin), {int64_t(ends[i] - begin)});
                run(op::add, {piece, piece}, {}, {piece}); // doubles this chunk while others are in flight
                trip->download(i);
            }
            for (size_t i = 0, begin = 0; i < ends.size(); begin = ends[i++]) {
                trip->wait(i);
                for (float& v : here.span<float>().subspan(begin, ends[i] - begin)) v += 1;
                trip->upload(i);
            }
        }
        run(op::add, {x, x}, {}, {x});
        const Tensor got = x.to_host();
        int64_t wrong = 0;
        for (int64_t i = 0; i < kCount; ++i) {
            float want = host.data<float>()[i];
            for (int step = 0; step < 3; ++step) want = want + want + 1;
            wrong += got.data<float>()[i] != want + want;
        }
        CHECK(wrong == 0);
    }

    TEST_CASE("gpu: sums vectors, and copies, while ops go on") {
        const std::shared_ptr<Device> device = first_gpu();
        if (!device) return;
        const InContext on{{.device = device.get()}};
        constexpr int64_t kCount = 1'000'003, kPitch = 1'000'004;
        const Tensor host = numbers(3 * kPitch, 4), x = Tensor::empty({3 * kPitch}), busy = Tensor::zeros({1 << 24});
        x.copy_from(host);
        const auto vector = [&](int64_t i) { return x.slice(i * kPitch, {kPitch}).bytes_data(); };
        const auto trip = device->round_trip(nullptr, x.bytes_data(), {size_t(x.bytes())});
        run(op::add, {x, x}, {}, {x});
        trip->download(0);
        for (int i = 0; i < 100; ++i) run(op::add, {busy, busy}, {}, {busy});
        trip->wait(0);
        device->sum(std::array{vector(0), vector(1), vector(2)}, std::array{vector(0), vector(2)}, size_t(kCount));
        const Tensor copy = Tensor::empty_on_host({kPitch});
        device->transfer(copy.bytes_data(), vector(2), size_t(copy.bytes()));
        trip->upload(0);
        run(op::add, {x, x}, {}, {x});
        const std::span<const float> before = host.span<float>(), after = x.to_host().span<float>();
        int64_t wrong = 0;
        for (size_t i = 0; i < size_t(kCount); ++i) {
            const float a = 2 * before[i], b = 2 * before[kPitch + i], sum = a + b + 2 * before[2 * kPitch + i];
            wrong += copy.span<float>()[i] != sum || after[i] != 2 * sum || after[kPitch + i] != 2 * b ||
                     after[2 * kPitch + i] != 2 * sum;
        }
        CHECK(wrong == 0);
    }

    TEST_CASE("gpu: processes sum in each other's memory") {
        const std::shared_ptr<Device> device = first_gpu();
        if (!device) return;
        const EnvironmentVariable shared("RG_PEER_MEMORY", "1"); // both use the same GPU
        OtherProcess other("gpu: processes sum*");
        sum_between_processes(*device, other);
    }

    TEST_CASE("gpu: images that threads copy with each mini-batch are those of the set, while ops go on") {
        const std::shared_ptr<Device> device = first_gpu();
        if (!device) return;
        const InContext on{{.device = device.get()}};
        const data::ImageSet set = data::random_set(2048, 64, 64, 3); // 24 MiB; a mini-batch has 3 MiB
        const Tensor all = data::resident(set), busy = Tensor::zeros({1 << 24});
        data::LoaderOptions options{.batch_size = 256, .augment = {.flip = true}, .threads = 2, .views = true};
        data::Loader resident(set, options);
        options.upload = true;
        data::Loader copied(set, options);
        const Tensor statistics = copied.augmenter().statistics();
        CHECK(device->free_bytes() > 0);
        std::vector<Tensor> results[2]; // compared in the end, so that no step waits for the device
        for (const int64_t first : {0, 3, 5})
            for (resident.start(1, first), copied.start(1, first); copied.has_next();) {
                for (int i = 0; i < 20; ++i) run(op::add, {busy, busy}, {}, {busy});
                const data::Batch a = resident.next(), b = copied.next();
                results[0].push_back(augment(all, a.indices.to_device(), a.views.to_device(), statistics, {64, 64}));
                results[1].push_back(augment(b.images, b.indices.to_device(), b.views.to_device(), statistics, {64, 64}));
            }
        for (size_t i = 0; i < results[0].size(); ++i) CHECK(same_bits(results[0][i].to_host(), results[1][i].to_host()));
    }

    TEST_CASE("gpu: gradients summed during backward and after it have the same bits") {
        if (!first_gpu()) return;
        par::run_groups(2, [](par::Group& group) {
            const std::vector<Tensor> late = sum_there(group, false), early = sum_there(group, true);
            for (size_t step = 0; step < late.size(); ++step) CHECK(same_bits(early[step], late[step]));
        });
    }

    TEST_CASE("gpu: names the requested and the available memory if there is not enough") {
        const std::shared_ptr<Device> device = first_gpu();
        if (!device) return;
        CHECK_ERROR("expected 1073741824 MiB", device->allocate(size_t{1} << 50));
        void* const memory = device->allocate(1 << 20); // still works
        device->release(memory);
        device->synchronize();
    }

    // The cases of ops below have fewer tiles than a GPU has SMs. Here, each block computes at least ten tiles. So it
    // uses each of its stages, at most four, at least twice.
    TEST_CASE("gpu: the Hopper kernels agree with the portable ones where a block computes many tiles") {
        const std::shared_ptr<Device> device = first_gpu();
        if (!device) return;
        if (!contains(device->name(), "hopper")) {
            MESSAGE("skipped: the device does not use the Hopper kernels");
            return;
        }
        const EnvironmentVariable kernels("RG_GPU_KERNELS", "portable");
        const std::shared_ptr<Device> portable = gpu::open_device(gpu::find_devices().gpus[0].index);
        check_same_layers(*portable, *device, 660); // 5 images for each SM of an H100
    }

    TEST_CASE("gpu ops: kernels agree with the reference, and repeat their results bit for bit") {
        const std::shared_ptr<Device> device = first_gpu();
        if (!device) return;
        const Context on{.device = device.get()};
        for (const OpCase& c : op_cases()) {
            const bool convolves = c.op == op::conv2d || c.op == op::conv2d_grad;
            if (convolves && (c.in[0].draw == Draw::special || c.in[1].draw == Draw::special)) continue; // planes.cuh
            if (only_on_cpus(c)) continue;
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const KernelRun want = run_kernel(c, in, Backend::reference, 64);
            const ContextScope scope(on);
            const std::vector<Tensor> got = run_there(c, in), again = run_there(c, in);
            REQUIRE(got.size() == want.results.size());
            for (size_t i = 0; i < got.size(); ++i) {
                CAPTURE(i);
                CHECK(differs(got[i], want.results[i], c.tolerance) == "");
                CHECK(same_bits(again[i], got[i]));
            }
        }
    }
}
