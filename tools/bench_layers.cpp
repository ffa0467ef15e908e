// bench_layers measures pooling, GELU, and plain, depthwise, grouped and dilated convolution: the milliseconds of the
// forward pass and of all gradients. tools/bench/layers.py compares them with PyTorch and ONNX Runtime.
#include "core/clock.h"
#include "core/context.h"
#include "core/cpu/cores.h"
#include "core/cpu/thread_pool.h"
#include "core/ops.h"
#include "core/options.h"
#include "core/rng.h"
#include "tools/bounds.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <iostream>
#include <vector>

using namespace rg;

namespace {

struct Settings {
    int64_t threads = 0, rounds = 5, batch = 16;
    std::string precision = "fp32";
    bool depthwise = false, bound = false;
};

Tensor random_tensor(const Shape& shape, DType type) {
    const Tensor values = Tensor::empty(shape);
    Rng random(0, Purpose::synthetic);
    for (float& v : values.span<float>()) v = random.normal();
    return type == DType::f32 ? values : cast(values, type);
}

double median_ms(int64_t rounds, const std::function<void()>& f) {
    std::vector<double> ms;
    f(); // a warm-up, which allocates scratch memory and starts threads
    for (int64_t round = 0; round < rounds; ++round) {
        const double begin = seconds_now();
        f();
        ms.push_back(1e3 * (seconds_now() - begin));
    }
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
}

/// Measures and prints the times of a layer. The functions must write to results that exist already, as in a plan.
void report(const char* name, const Settings& s, const std::function<void()>& forward,
            const std::function<void()>& backward) {
    std::printf("%s forward_ms=%.3f backward_ms=%.3f\n", name, median_ms(s.rounds, forward),
                median_ms(s.rounds, backward));
}

void bench_pool(const Settings& s, const char* name, Op op, Op grad, const Shape& shape, const Pool& pool) {
    const Tensor x = random_tensor(shape, s.precision == "bf16" ? DType::bf16 : DType::f32);
    const auto y = run(op, {x}, Pool2dOp{pool});
    const Tensor dx = Tensor::empty(x.shape(), x.dtype());
    const Pool2dGradOp attrs{pool, shape[1], shape[2]};
    report(
        name, s, [&] { run(op, std::array{x}, Pool2dOp{pool}, y); },
        [&] {
            if (op == op::max_pool2d)
                run(grad, {y[0], {}, {}, {}, {}, y[Pool2dOp::positions]}, attrs, {dx});
            else
                run(grad, {y[0]}, attrs, {dx});
        });
}

void bench_conv(const Settings& s, const char* name, int64_t size, int64_t channels, int64_t kernel, const Conv& conv) {
    const DType type = s.precision == "bf16" ? DType::bf16 : DType::f32;
    const Tensor x = random_tensor({s.batch, size, size, channels}, type),
                 w = random_tensor({channels, kernel, kernel, channels / conv.groups}, DType::f32);
    const auto y = run(op::conv2d, {x, w}, Conv2dOp{.conv = conv});
    const Conv2dGradOp attrs{.conv = conv};
    const auto gradients = run(op::conv2d_grad, {y[0], x, w}, attrs);
    report(
        name, s,
        [&] {
            run(op::conv2d, std::array{x, w}, Conv2dOp{.conv = conv}, y);
        },
        [&] {
            run(op::conv2d_grad, std::array{y[0], x, w}, attrs, gradients);
        });
}

/// Measures depthwise convolutions of the sizes that MobileNetV2 and V3 have. The names say the size of the filters,
/// the number of channels, the width of the images and the stride.
void bench_depthwise(const Settings& s) {
    struct Layer {
        int64_t kernel, channels, size, stride;
    };
    for (const auto& [kernel, channels, size, stride] : std::initializer_list<Layer>{{3, 32, 112, 1},
                                                                                     {3, 96, 112, 2},
                                                                                     {3, 144, 56, 1},
                                                                                     {3, 144, 56, 2},
                                                                                     {3, 192, 28, 1},
                                                                                     {3, 192, 28, 2},
                                                                                     {3, 384, 14, 1},
                                                                                     {3, 576, 14, 1},
                                                                                     {3, 576, 14, 2},
                                                                                     {3, 960, 7, 1},
                                                                                     {5, 96, 56, 2},
                                                                                     {5, 144, 28, 1},
                                                                                     {5, 192, 28, 2},
                                                                                     {5, 384, 14, 1},
                                                                                     {5, 576, 14, 2},
                                                                                     {5, 960, 7, 1}})
        bench_conv(s, cat("depthwise_", kernel, "x", kernel, "_", channels, "_", size, "_", stride).c_str(), size,
                   channels, kernel, {.stride = stride, .pad = same(kernel), .groups = channels});
}

void bench_gelu(const Settings& s, const Shape& shape) {
    const Tensor x = random_tensor(shape, s.precision == "bf16" ? DType::bf16 : DType::f32);
    const Tensor y = Tensor::empty(shape, x.dtype()), dx = Tensor::empty(shape, x.dtype());
    const ActivationOp kind{Activation::gelu};
    report(
        "gelu", s, [&] { run(op::activation, {x}, kind, {y}); },
        [&] {
            run(op::activation_grad, {y, x}, ActivationGradOp{Activation::gelu}, {dx});
        });
}

void bench_all(const Settings& s) {
    const Shape image{16, 112, 112, 64};
    const Pool overlapping{.window = 3, .stride = 2, .pad = 1};
    bench_pool(s, "max_pool_3x3_stride_2", op::max_pool2d, op::max_pool2d_grad, image, overlapping);
    bench_pool(s, "avg_pool_3x3_stride_2", op::avg_pool2d, op::avg_pool2d_grad, image, overlapping);
    bench_pool(s, "max_pool_2x2", op::max_pool2d, op::max_pool2d_grad, image, {2, 2});
    bench_pool(s, "global_avg_pool", op::avg_pool2d, op::avg_pool2d_grad, {64, 7, 7, 2048}, {.window = 7});
    bench_gelu(s, image);
    bench_conv(s, "conv_3x3_32", 32, 32, 3, {.pad = 1});
    bench_conv(s, "conv_3x3_64", 56, 64, 3, {.pad = 1});
    bench_conv(s, "conv_3x3_512", 14, 512, 3, {.pad = 1});
    bench_conv(s, "conv_1x1_64", 56, 64, 1, {});
    bench_conv(s, "depthwise_3x3", 56, 64, 3, {.pad = 1, .groups = 64});
    bench_conv(s, "depthwise_3x3_stride_2", 56, 64, 3, {.stride = 2, .pad = 1, .groups = 64});
    bench_conv(s, "depthwise_3x3_512", 14, 512, 3, {.pad = 1, .groups = 512});
    bench_conv(s, "grouped_3x3_32", 56, 64, 3, {.pad = 1, .groups = 32});
    bench_conv(s, "grouped_3x3_16", 56, 64, 3, {.pad = 1, .groups = 16});
    bench_conv(s, "grouped_3x3_8", 56, 64, 3, {.pad = 1, .groups = 8});
    bench_conv(s, "grouped_3x3_4", 56, 64, 3, {.pad = 1, .groups = 4});
    bench_conv(s, "dilated_3x3", 56, 64, 3, {.pad = 2, .dilation = 2});
}

int run_program(int argc, const char* const* argv) {
    Settings s;
    Options options("bench_layers", "measures pooling, GELU and convolution");
    options.add("threads", &s.threads, "number of threads; 0: one per core").range(0, 1024);
    options.add("rounds", &s.rounds, "number of measurements, of which the median is printed").at_least(1);
    options.add("precision", &s.precision, "number format").one_of({"fp32", "fp32-strict", "bf16"});
    options.add("batch", &s.batch, "images per convolution").at_least(1);
    options.add("depthwise", &s.depthwise, "measure depthwise convolutions of many sizes instead");
    options.add("bound", &s.bound, "print the least time of each convolution by the measured peak rates of this CPU");
    if (!options.parse(argc, argv)) {
        std::cout << options.help_or_version();
        return 0;
    }
    ThreadPool pool(s.threads ? int(s.threads) : available_cores());
    Profile profile;
    const Context context{
        .threads = &pool, .strict_fp32 = s.precision == "fp32-strict", .profile = s.bound ? &profile : nullptr};
    const ContextScope scope(context);
    s.depthwise ? bench_depthwise(s) : bench_all(s);
    if (s.bound) print_bounds(profile, double(s.rounds + 1), false, measure_peaks(pool));
    return 0;
}

} // namespace

int main(int argc, char** argv) { return run_main(argc, argv, run_program); }
