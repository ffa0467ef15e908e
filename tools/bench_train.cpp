// bench_train measures images per second of a training step (forward, loss, backward, update) or of prediction, on
// random data in memory. It prints a line of key=value pairs, to compare with the same line of other frameworks.
#include "core/accelerate.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/cpu/cores.h"
#include "core/cpu/isa.h"
#include "core/cpu/thread_pool.h"
#include "core/options.h"
#include "core/profile.h"
#include "core/rng.h"
#include "core/tape.h"
#include "gpu/device.h"
#include "models/nets/networks.h"
#include "tools/bounds.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <numeric>

using namespace rg;

namespace {

struct Settings {
    std::string net = "cifar", mode = "train", precision = "fp32", device = "cpu";
    int64_t batch = 256, threads = 0, size = 0;
    double seconds = 5;
    bool profile = false, bound = false, accelerate = true, plan = false;
};

/// A network to measure, and the extents of its images.
struct Subject {
    std::unique_ptr<Network> network;
    int64_t side, channels;

    /// Returns the cross-entropy. If the network has a second head, adds a tenth of its mean squared error.
    Tensor loss(const Tensor& x, const Tensor& labels, const Tensor& target) const {
        const std::vector<Tensor> out = network->outputs(x, Mode::train);
        const Tensor loss = cross_entropy(out[0], labels);
        if (out.size() == 1) return loss;
        const Tensor tenth = Tensor::constant({1, 1}, 0.1);
        return add(loss, linear(mse_loss(out[1], target).reshape({1, 1}), tenth).reshape({}));
    }
};

Subject subject(const std::string& name, int64_t side) {
    const bool digits = name.starts_with("digits");
    if (side == 0) side = digits ? 28 : 32;
    const int64_t channels = digits ? 1 : 3;
    return {NetworkChoice({name}).make({side, side, channels, 10}), side, channels};
}

int bench(const Settings& s) {
    ThreadPool pool(s.threads ? int(s.threads) : available_cores());
    Profile profile;
    RG_CHECK(s.device == "cpu" || s.precision != "fp32-strict",
             "bench_train: expected --precision fp32 or bf16 on a GPU, got fp32-strict; choose one of these");
    RG_CHECK(s.device == "cpu" || !s.bound, "bench_train: expected --bound on a CPU, got a GPU; omit it");
    const std::shared_ptr<Device> device = s.device == "cuda" ? gpu::open_device(0) : nullptr;
    Context context{.device = device.get(), .threads = &pool, .strict_fp32 = s.precision == "fp32-strict"};
    const ContextScope scope(context);

    const Subject net = subject(s.net, s.size);
    Parameters& parameters = net.network->parameters;
    const Tensor x = Tensor::empty({s.batch, net.side, net.side, net.channels}),
                 labels = Tensor::empty({s.batch}, DType::i32);
    const Tensor angles = Tensor::zeros({s.batch, 1});
    const Tensor images = Tensor::empty_on_host(x.shape()), classes = Tensor::empty_on_host(labels.shape(), DType::i32);
    Rng random(0, Purpose::synthetic);
    for (float& v : images.span<float>()) v = random.normal();
    for (int32_t& v : classes.span<int32_t>()) v = int32_t(random.uniform_below(10));
    x.copy_from(images);
    labels.copy_from(classes);
    const Tensor velocity = Tensor::zeros(parameters.values().shape()), rate = Tensor::zeros({1});
    const Tensor found = Tensor::zeros({}, DType::i32);
    rate.fill(0.01);
    parameters.begin_step(1); // for dropout; the time of a step does not depend on the seed

    Accelerated network([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
        const Tensor images = cast(in[0], s.precision == "bf16" ? DType::bf16 : DType::f32);
        if (!training) return net.network->outputs(images, Mode::evaluate);
        Tape tape;
        const Tensor loss = net.loss(images, in[1], in[2]);
        tape.gradients(loss, parameters);
        first_non_finite(parameters.gradients(), loss, found);
        sgdm_update(parameters.values(), velocity, parameters.gradients(), {}, rate, {found});
        return {loss};
    });
    network.enabled = s.accelerate;
    network.keep_prepared = s.mode == "infer";
    const auto step = [&] {
        network({x, labels, angles}, s.mode == "train");
        if (device) device->synchronize();
    };
    for (int i = 0; i < 3; ++i) step();
    if (s.profile || s.bound) context.profile = &profile;
    std::vector<double> times;
    for (const double start = seconds_now(); seconds_now() - start < s.seconds || times.size() < 5;) {
        const double begin = seconds_now();
        step();
        times.push_back(seconds_now() - begin);
    }
    const double total = std::accumulate(times.begin(), times.end(), 0.0);

    // Count only conv2d, with 2 operations per multiply-add, and the backward pass as twice the forward pass.
    Profile one;
    context.profile = &one;
    net.network->outputs(x, Mode::evaluate);
    const double flops = one.flops(op::conv2d) * (s.mode == "train" ? 3 : 1);

    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2], best = times.front();
    std::printf("net=%s mode=%s batch=%lld threads=%d precision=%s %s=%s images_per_s=%.1f images_per_s_max=%.1f "
                "ms_per_iter=%.3f ms_per_iter_min=%.3f gflops=%.1f\n",
                s.net.c_str(), s.mode.c_str(), static_cast<long long>(s.batch), pool.size(), s.precision.c_str(),
                device ? "device" : "isa", device ? "cuda" : cpu::isa().name, double(s.batch) / median,
                double(s.batch) / best, median * 1e3, best * 1e3, flops / median * 1e-9);
    if (s.profile) std::printf("\n%s", profile.table(device ? 0 : total, device ? device->rates() : Rates{}).c_str());
    if (s.bound) print_bounds(profile, double(times.size()), network.keep_prepared, measure_peaks(pool));
    if (s.plan) std::printf("\n%s", network.plan({x, labels, angles}, s.mode == "train").table().c_str());
    return 0;
}

int run_program(int argc, const char* const* argv) {
    Settings s;
    Options options("bench_train", "measures training or prediction on random data in memory");
    options.add("net", &s.net, "network, as in models/nets")
        .one_of({"cifar", "digits", "digits-angles", "resnet18", "resnet20", "resnet50", "wrn16-4", "mobilenet_v2",
                 "mobilenet_v3_small", "mobilenet_v3_large"});
    options.add("size", &s.size, "height and width of the images; 0: 32, or 28 for digits").range(0, 4096);
    options.add("mode", &s.mode, "measure training steps or predictions").one_of({"train", "infer"});
    options.add("device", &s.device, "device that computes").one_of({"cpu", "cuda"});
    options.add("batch", &s.batch, "images per mini-batch").at_least(1);
    options.add("threads", &s.threads, "number of threads; 0: one per core").range(0, 1024);
    options
        .add("precision", &s.precision, "number format of activations; fp32-strict: only plain multiply-adds, on CPUs")
        .one_of({"fp32", "fp32-strict", "bf16"});
    options.add("seconds", &s.seconds, "time to measure, at least 5 steps").at_least(0);
    options.add("accelerate", &s.accelerate, "trace the step once, fuse ops, and replay it; off: run op by op");
    options.add("plan-dump", &s.plan, "also print the plan: the ops of a replayed step, and its memory");
    options.add("profile", &s.profile, "print a table of time, GFLOP/s and GB/s per op; on a GPU also its peak rates");
    options.add("bound", &s.bound, "print the least time of each convolution by the measured peak rates of this CPU");
    if (!options.parse(argc, argv)) {
        std::cout << options.help_or_version();
        return 0;
    }
    return bench(s);
}

} // namespace

int main(int argc, char** argv) { return run_main(argc, argv, run_program); }
