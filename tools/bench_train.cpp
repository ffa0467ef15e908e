// bench_train: images per second of a training step (forward, loss, backward, update) or of prediction, on random data
// that is already in memory. One line of key=value pairs, made to stand beside the same line of other frameworks.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/cpu/isa.h"
#include "core/cpu/thread_pool.h"
#include "core/options.h"
#include "core/profile.h"
#include "core/rng.h"
#include "core/tape.h"
#include "models/cifar_net.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

using namespace rg;

namespace {

struct Settings {
    std::string net = "cifar", mode = "train", precision = "fp32";
    int64_t batch = 256, threads = 0;
    double seconds = 5;
    bool profile = false, accelerate = true, plan = false;
};

/// "cifar" (or A) is the default network; D1 to D4 have that depth and width round(16 / sqrt(depth)).
CifarNet::Options network(const std::string& name) {
    if (name[0] != 'D') return {};
    const int64_t depth = name[1] - '0';
    return {.width = std::lround(16 / std::sqrt(double(depth))), .depth = depth};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int bench(const Settings& s) {
    ThreadPool pool(s.threads ? int(s.threads) : available_cores());
    Profile profile;
    Context context{.threads = &pool, .strict_fp32 = s.precision == "fp32-strict"};
    const ContextScope scope(context);

    CifarNet net(network(s.net));
    Parameters& parameters = net.parameters;
    const Tensor x = Tensor::empty({s.batch, 32, 32, 3}), labels = Tensor::empty({s.batch}, DType::i32);
    Rng random(0, Purpose::synthetic);
    for (float& v : x.span<float>()) v = random.normal();
    for (int32_t& v : labels.span<int32_t>()) v = int32_t(random.below(10));
    const Tensor velocity = Tensor::zeros(parameters.values().shape());
    const std::vector<Tensor> values = parameters.value_list(), gradients = parameters.gradient_list();

    Accelerated network([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
        const Tensor images = cast(in[0], s.precision == "bf16" ? DType::bf16 : DType::f32);
        if (!training) return {net.forward(images, Mode::evaluate)};
        Tape tape;
        const Tensor loss = cross_entropy(net.forward(images, Mode::train), in[1]);
        tape.gradients(loss, values, gradients);
        return {loss};
    });
    network.enabled = s.accelerate;
    const auto step = [&] {
        network({x, labels}, s.mode == "train");
        if (s.mode == "infer") return;
        sgdm_update(parameters.values(), velocity, parameters.gradients(), {.lr = 0.01f});
    };
    for (int i = 0; i < 3; ++i) step();
    if (s.profile) context.profile = &profile;
    std::vector<double> times;
    for (const auto start = std::chrono::steady_clock::now(); seconds_since(start) < s.seconds || times.size() < 5;) {
        const auto begin = std::chrono::steady_clock::now();
        step();
        times.push_back(seconds_since(begin));
    }
    double total = 0;
    for (double t : times) total += t;

    // Arithmetic of a step: 2 operations per multiply-add, the backward pass twice the forward pass.
    Profile one;
    context.profile = &one;
    { const NoTape pause; net.forward(x, Mode::evaluate); }
    const double flops = one.flops(Op::conv2d) * (s.mode == "train" ? 3 : 1);

    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2], best = times.front();
    std::printf("net=%s mode=%s batch=%lld threads=%d precision=%s isa=%s images_per_s=%.1f images_per_s_max=%.1f "
                "ms_per_iter=%.3f ms_per_iter_min=%.3f gflops=%.1f\n",
                s.net.c_str(), s.mode.c_str(), static_cast<long long>(s.batch), pool.size(), s.precision.c_str(),
                cpu::isa().name, double(s.batch) / median, double(s.batch) / best, median * 1e3, best * 1e3,
                flops / median * 1e-9);
    if (s.profile) std::printf("\n%s", profile.table(total).c_str());
    if (s.plan) std::printf("\n%s", network.plan({x, labels}, s.mode == "train").table().c_str());
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    try {
        Settings s;
        Options options("bench_train", "measures training or prediction, with random data in memory");
        options.add("net", &s.net, "network: cifar (also A): width 32, depth 4; D1 to D4: narrow, of that depth")
            .one_of({"cifar", "A", "D1", "D2", "D3", "D4"});
        options.add("mode", &s.mode, "a whole training step, or prediction").one_of({"train", "infer"});
        options.add("batch", &s.batch, "images per step").at_least(1);
        options.add("threads", &s.threads, "threads; 0: one per core").range(0, 1024);
        options.add("precision", &s.precision, "arithmetic").one_of({"fp32", "fp32-strict", "bf16"});
        options.add("seconds", &s.seconds, "how long to measure, at least 5 steps").at_least(0);
        options.add("accelerate", &s.accelerate, "trace, fuse and replay; --no-accelerate: op by op");
        options.add("plan-dump", &s.plan, "add the plan that is replayed");
        options.add("profile", &s.profile, "add a table: time, GFLOP/s and GB/s per op");
        if (!options.parse(argc, argv)) {
            std::cout << options.help();
            return 0;
        }
        return bench(s);
    } catch (const std::exception& e) {
        std::cerr << "bench_train: " << e.what() << "\n";
        return 1;
    }
}
