// Every CUDA kernel, thread by thread on the executor: over the cases of op_cases.h against the reference, with guards
// around every buffer, and the same bits in whatever order the threads run.
#include "core/context.h"
#include "core/profile.h"
#include "core/text.h"
#include "gpu/conv_choice.cuh"
#include "gpu/deadline.h"
#include "gpu/kernels.h"
#include "models/nets/cifar_net.h"
#include "tests/gpu/executor_device.h"
#include "tests/op_check.h"
#include "tests/random_program.h"
#include "tests/simt/executor.h"
#include "tests/simt/sanitizers.h"
#include "tests/sync_ranks.h"
#include "tests/temp_dir.h"
#include "tests/training_step.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <doctest/doctest.h>
#include <map>
#include <sys/syscall.h>
#include <tuple>
#include <unistd.h>

using namespace rg;

static std::atomic<int> yields = 0;
/// Replaces the function of the C library, to count its calls.
extern "C" int sched_yield() noexcept { return ++yields, int(::syscall(SYS_sched_yield)); }

namespace {

// simt-ops leaves out convolutions of more products, since smaller ones launch the same kernels.
constexpr double kProducts = 1e6;
constexpr double kProductsOfBoth = 1e5; // see repeats()

/// f32 is multiplied in two parts (planes.cuh), of which an infinity has none: it becomes a NaN in convolutions.
bool infinite_products(const OpCase& c) {
    const bool convolves = c.op == op::conv2d || c.op == op::conv2d_grad;
    return convolves && (c.in[0].draw == Draw::special || c.in[1].draw == Draw::special);
}

/// How many terms the kernels of a convolution sum in one place; 0: another op.
int64_t terms(const OpCase& c) {
    const auto per = [&](size_t input, int extent) { return c.in[input].shape.numel() / c.in[input].shape[extent]; };
    if (c.op == op::conv2d) return per(Conv2dOp::w, 0);
    if (c.op != op::conv2d_grad) return 0;
    return c.attrs.as<Conv2dGradOp>().data ? per(Conv2dGradOp::w, 3) : per(Conv2dGradOp::dy, 3);
}

/// Returns the number of products of a convolution in one direction, or 0 for other ops.
double products(const OpCase& c) {
    if (c.op != op::conv2d && c.op != op::conv2d_grad) return 0;
    const bool forward = c.op == op::conv2d;
    const Shape& w = c.in[forward ? size_t(Conv2dOp::w) : size_t(Conv2dGradOp::w)].shape;
    const Shape& pixels = c.in[forward ? size_t(Conv2dOp::x) : size_t(Conv2dGradOp::dy)].shape;
    return double(pixels[0] * pixels[1] * pixels[2]) * double(w.numel());
}

/// True if every case shall run; test.sh --all sets the variable.
bool run_all() {
    static const bool kAll = std::getenv("RG_SIMT_ALL") != nullptr;
    return kAll;
}

/// Returns true for a large case of both gradients without fused steps. Other cases launch the same kernels, since a
/// gradient's kernels do not depend on the other gradient.
bool repeats(const OpCase& c) {
    if (c.op != op::conv2d_grad || c.in[Conv2dGradOp::y].draw != Draw::absent) return false;
    const auto& a = c.attrs.as<Conv2dGradOp>();
    return a.data && a.filters && products(c) > kProductsOfBoth;
}

/// The cases of the ops whose names begin with one of these words; all ops without the variable. plant_faults.py sets it.
bool is_wanted(const OpCase& c) {
    const char* const words = std::getenv("RG_SIMT_OPS");
    return !words || std::ranges::any_of(split(words, ' '), [&](const std::string& word) {
        return std::string_view(c.op->name).starts_with(word);
    });
}

/// All that they can; with ThreadSanitizer, which takes its time, the least of each op and type: four, and of
/// convolutions four more that go round the loop over their tiles more than once.
std::vector<OpCase> cases_to_run() {
    std::vector<OpCase> cases = op_cases();
    std::erase_if(cases, [](const OpCase& c) { return infinite_products(c) || only_on_cpus(c) || !is_wanted(c); });
    if (!run_all()) std::erase_if(cases, [](const OpCase& c) { return repeats(c) || products(c) > kProducts; });
    if (!simt::kTsan) return cases;
    std::erase_if(cases, [](const OpCase& c) { return c.in[0].shape.numel() == 0; });
    std::stable_sort(cases.begin(), cases.end(),
                     [](const OpCase& a, const OpCase& b) { return GradientCase::work(a) < GradientCase::work(b); });
    std::map<std::tuple<Op, bool, bool>, int> taken;
    std::erase_if(cases, [&](const OpCase& c) { return ++taken[{c.op, c.narrow != 0, terms(c) > 64}] > 4; });
    return cases;
}

bool among(const std::vector<std::string>& launched, const char* kernel) {
    return std::any_of(launched.begin(), launched.end(), [&](const auto& name) { return contains(name, kernel); });
}

/// Whether sums that are to be taken while a gradient is made had a pass of their own.
bool summed_apart(const OpCase& c, const std::vector<std::string>& launched) {
    const auto has = [&](size_t input) { return c.in[input].draw != Draw::absent; };
    const bool pooled = (c.op == op::max_pool2d_grad || c.op == op::avg_pool2d_grad) && has(Pool2dGradOp::x);
    return (c.op == op::conv2d_grad && c.attrs.as<Conv2dGradOp>().with_sums &&
            among(launched, "column_slab_sums_kernel")) ||
           (pooled && among(launched, "pool2d_grad_kernel"));
}

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("simt ops: the kernels agree with the reference, within their buffers, in every order of threads") {
        for (const OpCase& c : cases_to_run()) {
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const KernelRun want = run_kernel(c, in, Backend::reference, 64);
            std::vector<Tensor> first;
            for (const simt::Order order : {simt::Order::forward, simt::Order::reverse, simt::Order::shuffled}) {
                // Blocks of a large case run the text that those of a small one run: once will do. So it does with
                // sanitizers: where the order of threads moves an access, it changes bits, which needs none, and a
                // race is one in any order.
                const bool once = simt::kAsan || simt::kTsan || GradientCase::work(c) > 3e4;
                if (order != simt::Order::forward && once) continue;
                CAPTURE(int(order));
                simt::settings().order = order;
                simt::take_launched();
                const KernelRun got = run_kernel(c, in, gpu_on_host::kernel(c.op), 64);
                CHECK(got.error == "");
                CHECK_FALSE(summed_apart(c, simt::take_launched()));
                REQUIRE(got.results.size() == want.results.size());
                for (size_t i = 0; i < want.results.size(); ++i) {
                    CAPTURE(i);
                    if (first.size() <= i) {
                        CHECK(differs(got.results[i], want.results[i], c.tolerance) == "");
                        first.push_back(got.results[i]);
                    } else {
                        CHECK(same_bits(got.results[i], first[i]));
                    }
                }
                if (order != simt::Order::forward) continue;
                for (const Alias& alias : allowed_aliases(c, in)) {
                    const KernelRun aliased = run_kernel(c, in, gpu_on_host::kernel(c.op), 64, alias);
                    CHECK(aliased.error == "");
                    for (size_t i = 0; i < first.size(); ++i) CHECK(same_bits(aliased.results[i], first[i]));
                }
            }
        }
        simt::settings() = {};
    }

    TEST_CASE("simt ops: in a plan, kernels that compute statistics also compute what the readers need of them") {
        const Tensor x = random_tensor({3, 8, 8, 3}, DType::f32, 1), labels = random_labels(3, 10, 2);
        const Tensor host_w = random_tensor({8, 3, 3, 3}, DType::f32, 3),
                     host_gamma = random_tensor({8}, DType::f32, 4);
        ExecutorDevice device;
        const InContext on{{.device = &device}};
        CifarNet net({.width = 8, .depth = 2});
        Accelerated train = training_step(net);
        train.check = true; // compares losses, gradients and running statistics with those of single ops
        CHECK_NOTHROW(train({x, labels}, true));
        train.check = false;
        simt::take_launched();
        train({x, labels}, true);
        const std::vector<std::string> launched = simt::take_launched();
        CHECK(among(launched, "column_sums_reduce_kernel"));
        CHECK_FALSE(among(launched, "batch_norm"));

        // Statistics whose gamma is computed after the convolution
        const Tensor w = host_w.to_device(), gamma = host_gamma.to_device();
        Accelerated late([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            const auto [y, stats] = conv2d_stats(in[0], w);
            return {max_pool2d(batch_norm(y, stats, scale(gamma, 2), gamma), {.window = 2, .stride = 2})};
        });
        late.check = true;
        CHECK_NOTHROW(late({x}));
        for (const Step& s : late.plan({x}).steps())
            CHECK((s.op != op::conv2d || s.out[Conv2dOp::stats].extent(0) == 2));
    }

    TEST_CASE("simt ops: in a plan of a random program, the kernels compute what they compute alone") {
        for (uint64_t seed = 1; seed <= programs_to_test(simt::kTsan || simt::kAsan ? 2 : 8); ++seed) {
            CAPTURE(seed);
            ExecutorDevice device;
            const InContext on{{.device = &device}};
            CHECK(plan_differs(seed, DType::f32, 1e-3) == "");
            CHECK(plan_differs(seed, DType::bf16, 0.4) == ""); // as in tests/core/programs.cpp
        }
    }

    TEST_CASE("simt ops: sums of many rows or columns have launches that a GPU takes, and add all blocks") {
        struct Launches final : simt::Interceptor {
            std::vector<simt::Launch> all;
            std::vector<std::byte> memory = std::vector<std::byte>(size_t{1} << 25);
            void launch(simt::Launch l) override { all.push_back(std::move(l)); }
            void* scratch(size_t) override { return memory.data(); }
            unsigned* counters() override { return reinterpret_cast<unsigned*>(memory.data()); }
        } launches;
        const Setting<simt::Interceptor*> nothing_runs(simt::interceptor, &launches);
        const auto on_host = [](const Shape& shape) { return Tensor::empty_on_host(shape); };
        gpu_on_host::kernel(op::sum)(
            {SumOp{.shape = {17}}, std::array{on_host({600000, 17}), Tensor()}, std::array{on_host({17})}});
        REQUIRE(launches.all.size() == 2);
        CHECK(launches.all[1].grid.x == 1);
        std::vector<Tensor> in(op::conv2d_grad->inputs.size()), out(size_t(op::conv2d_grad->outputs));
        in[Conv2dGradOp::dy] = on_host({1, 1, 1, 2050}), in[Conv2dGradOp::x] = on_host({1, 1, 1, 2048});
        in[Conv2dGradOp::w] = out[Conv2dGradOp::dw] = on_host({2050, 1, 1, 1024});
        gpu_on_host::kernel(op::conv2d_grad)({Conv2dGradOp{.conv = {.groups = 2}, .data = false}, in, out});
        for (const simt::Launch& launch : launches.all) CHECK(launch.grid.y <= 65535);
    }

    TEST_CASE("simt: the products that a GPU is measured by are all made, and counted") {
        std::vector<float> out(2 * kMultiplyThreads);
        CHECK(gpu_on_host::multiply(out.data(), 2, 3) == 2.0 * kMultiplyThreads / 32 * 3 * 8 * 4096);
        CHECK(out == std::vector<float>(out.size(), 3 * 8 * 4 * 16));
    }

    TEST_CASE("simt: a wait for a GPU ends after its deadline") {
        int calls = 0;
        CHECK(gpu::ends_within(60, [&] { return ++calls == 3; }));
        CHECK(calls == 3);
        CHECK_FALSE(gpu::ends_within(0.01, [] { return false; }));
        // Yields the core to others. On a busy one, a wait may sleep instead, since its first 20 ms are over at once.
        const int before = yields;
        for (int i = 0; i < 100 && yields == before; ++i) gpu::ends_within(0.01, [] { return false; });
        CHECK(yields > before);
    }

    TEST_CASE("simt ops: a convolution runs the kernels that the table chooses, and says why") {
        using gpu_on_host::KernelFamily;
        const gpu::GpuTraits before = gpu_on_host::settable_gpu_traits();
        struct Layer {
            bool hopper, bf16, dx; // dx: the gradients include that of x
            Shape x, w;
            Conv conv;
            KernelFamily family, of_gradients;
            const char *kernel, *of_dw;
        };
        constexpr auto kGroups = KernelFamily::groups, kLinear = KernelFamily::linear, kHopper = KernelFamily::hopper,
                       kPacked = KernelFamily::packed, kPortable = KernelFamily::portable;
        const Layer layers[] = {
            {true, true, true, {1, 4, 4, 4}, {4, 3, 3, 2}, {.pad = 1, .groups = 2}, kGroups, kGroups, "elementwise_kernel<F>", "column_slab_sums_kernel"},
            {true, false, true, {3, 1, 1, 20}, {16, 1, 1, 20}, {}, kLinear, kLinear, "linear_forward_kernel", "linear_wgrad_kernel"},
            {true, false, true, {3, 1, 1, 20}, {17, 1, 1, 20}, {}, kPortable, kPortable, "conv2d_forward_kernel", "conv2d_wgrad_kernel"},
            {true, true, true, {1, 8, 8, 32}, {32, 3, 3, 32}, {.pad = 1}, kHopper, kHopper, "conv2d_forward_hopper_kernel", "conv2d_wgrad_hopper_kernel"},
            {true, false, true, {1, 8, 8, 32}, {32, 3, 3, 32}, {.pad = 1}, kPortable, kPortable, "conv2d_forward_kernel", "conv2d_wgrad_kernel"},
            {false, true, true, {1, 8, 8, 32}, {32, 3, 3, 32}, {.pad = 1}, kPortable, kPortable, "conv2d_forward_kernel", "conv2d_wgrad_kernel"},
            {true, true, true, {1, 8, 8, 64}, {64, 3, 3, 64}, {.stride = 2, .pad = 1}, kPacked, kPacked, "conv2d_forward_packed_hopper_kernel", "conv2d_wgrad_packed_hopper_kernel"},
            {true, true, true, {1, 8, 8, 24}, {64, 3, 3, 24}, {.pad = 1}, kPacked, kPacked, "conv2d_forward_packed_hopper_kernel", "conv2d_wgrad_packed_hopper_kernel"},
            {true, true, true, {1, 8, 8, 24}, {64, 1, 1, 24}, {}, kPacked, kPortable, "conv2d_forward_packed_hopper_kernel", "conv2d_wgrad_kernel"},
            {true, true, false, {1, 8, 8, 3}, {64, 3, 3, 3}, {.pad = 1}, kPacked, kPacked, "conv2d_forward_packed_hopper_kernel", "conv2d_wgrad_packed_hopper_kernel"},
            {true, true, true, {1, 8, 8, 3}, {64, 3, 3, 3}, {.pad = 1}, kPacked, kPortable, "conv2d_forward_packed_hopper_kernel", "conv2d_wgrad_kernel"},
            {true, true, true, {1, 8, 8, 96}, {32, 3, 3, 96}, {.pad = 1}, kPortable, KernelFamily::hopper_wgrad, "conv2d_forward_kernel", "conv2d_wgrad_hopper_kernel"},
            {true, true, true, {1, 8, 8, 8}, {64, 3, 3, 8}, {.pad = 8, .dilation = 8}, kPortable, kPortable, "conv2d_forward_kernel", "conv2d_wgrad_kernel"},
        };
        for (const Layer& l : layers) {
            gpu_on_host::settable_gpu_traits() = {.sm_count = 2, .hopper_kernels = l.hopper};
            const DType type = l.bf16 ? DType::bf16 : DType::f32;
            Profile profile;
            const Context profiled{.profile = &profile};
            const ContextScope profile_scope(profiled);
            const auto run = [&](Op op, const Attrs& attrs, std::vector<Tensor> in, auto choose) {
                in.resize(op->inputs.size());
                const OutputSpecs specs = infer(*op, in, attrs);
                std::vector<Tensor> out(size_t(op->outputs));
                for (size_t i = 0; i < out.size(); ++i) out[i] = Tensor::empty(specs[i].shape, specs[i].dtype);
                const Call call{attrs, in, out};
                simt::take_launched();
                gpu_on_host::kernel(op)(call);
                return choose(call);
            };
            const Tensor x = Tensor::zeros(l.x, type), w = Tensor::zeros(l.w);
            Tensor dy;
            {
                const Context plain;
                const ContextScope scope(plain);
                dy = conv2d(x, w, {}, l.conv);
            }
            const auto choice = run(op::conv2d, Conv2dOp{.conv = l.conv}, {x, w}, gpu_on_host::choose_conv2d);
            CAPTURE(choice.reason);
            CHECK(choice.family == l.family);
            profile.add(op::conv2d, 0, 0, 0); // ends the op to which the notes belong
            CHECK(profile.table() ==
                  Containing({x.shape().str(), w.shape().str(), l.bf16 ? "bf16" : "f32", choice.reason}));
            CHECK(among(simt::take_launched(), l.kernel));
            const auto gradients = run(op::conv2d_grad, Conv2dGradOp{.conv = l.conv, .data = l.dx}, {dy, x, w},
                                       gpu_on_host::choose_conv2d_grad);
            CAPTURE(gradients.reason);
            CHECK(gradients.family == l.of_gradients);
            CHECK(among(simt::take_launched(), l.of_dw));
        }
        gpu_on_host::settable_gpu_traits() = before;
    }

    // One block that uses its stages several times, blocks with different numbers of tiles, and blocks of one tile.
    TEST_CASE("simt ops: the kernels for Hopper GPUs agree with the reference in every order of threads") {
        using gpu_on_host::settable_gpu_traits;
        const gpu::GpuTraits before = settable_gpu_traits();
        int tried = 0, packed = 0;
        for (const OpCase& c : op_cases()) {
            if (simt::kTsan && (tried || GradientCase::work(c) > 1e7)) continue;
            settable_gpu_traits() = {.sm_count = std::array{4, 1, 16}[size_t(tried % 3)], .hopper_kernels = true};
            if (!c.narrow || (c.op != op::conv2d && c.op != op::conv2d_grad) || infinite_products(c)) continue;
            if (only_on_cpus(c) || (!run_all() && repeats(c))) continue;
            const Shape& w = c.in[c.op == op::conv2d ? size_t(Conv2dOp::w) : size_t(Conv2dGradOp::w)].shape;
            if (w[0] % 32 || w[1] % 2 == 0) continue;
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            std::vector<Tensor> first;
            // Cases take the second order in turn; with RG_SIMT_ALL all three.
            std::vector<simt::Settings> orders{{}, {simt::Order::reverse, 1, true}, {simt::Order::shuffled}};
            if (!run_all()) orders.erase(orders.begin() + 1 + tried % 2);
            for (const simt::Settings& settings : orders) {
                simt::settings() = settings;
                simt::take_launched();
                const KernelRun got = run_kernel(c, in, gpu_on_host::kernel(c.op), 64);
                const std::vector<std::string> launched = simt::take_launched();
                if (!among(launched, "hopper_kernel")) break;
                packed += first.empty() && among(launched, "packed_hopper_kernel");
                CHECK(got.error == "");
                CHECK_FALSE(summed_apart(c, launched));
                CAPTURE(int(settings.order));
                const KernelRun want = first.empty() ? run_kernel(c, in, Backend::reference, 64) : KernelRun{first, ""};
                for (size_t i = 0; i < want.results.size(); ++i) {
                    CAPTURE(i);
                    if (first.empty())
                        CHECK(differs(got.results[i], want.results[i], c.tolerance) == "");
                    else
                        CHECK(same_bits(got.results[i], want.results[i]));
                }
                if (first.empty()) ++tried, first = got.results;
                if (simt::kTsan || simt::kAsan) break; // once will do, as above
            }
        }
        CHECK(tried >= (simt::kTsan ? 1 : 30));
        CHECK(packed >= (simt::kTsan ? 0 : 20));
        settable_gpu_traits() = before;
        simt::settings() = {};
    }

    TEST_CASE("simt ops: the kernels for Hopper GPUs count all tiles of all blocks in statistics") {
        const gpu::GpuTraits before = gpu_on_host::settable_gpu_traits();
        gpu_on_host::settable_gpu_traits() = {.sm_count = 16, .hopper_kernels = true};
        struct Layer {
            const char* kernel;
            int64_t width, c, dilation;
        };
        // A tile per image: 4 of the 16 blocks have two, the others one. And packed images, where a tile ends in the
        // second of the zeros behind a row.
        for (const Layer& layer : {Layer{"forward_hopper_kernel", 8, 32, 1}, Layer{"packed_hopper_kernel", 5, 64, 2}}) {
            const int64_t images = 20, c = layer.c;
            const Tensor x = Tensor::zeros({images, 8, layer.width, c}), w = Tensor::zeros({c, 3, 3, c});
            for (int64_t i = 0; i < x.numel(); ++i)
                x.data<float>()[i] = float(i / (8 * layer.width * c)); // the number of the image
            for (int64_t k = 0; k < c; ++k) w.data<float>()[((k * 3 + 1) * 3 + 1) * c + k] = 1; // y = x
            ExecutorDevice device;
            const InContext on{{.device = &device}};
            simt::take_launched();
            const Conv conv{.pad = layer.dilation, .dilation = layer.dilation};
            const Tensor moments = conv2d_stats(x.to(DType::bf16).to_device(), w.to_device(), {}, conv).stats.to_host();
            CHECK(among(simt::take_launched(), layer.kernel));
            for (int64_t k = 0; k < c; ++k) {
                CHECK(moments.data<float>()[k] == doctest::Approx(9.5).epsilon(1e-5)); // of 0 to 19
                CHECK(moments.data<float>()[c + k] == doctest::Approx(33.25).epsilon(1e-5));
            }
        }
        gpu_on_host::settable_gpu_traits() = before;
    }

    // The first cell of the second tile of packed images is no pixel of the result, and reads the last column.
    TEST_CASE("simt ops: the kernels for Hopper GPUs leave pixels that no filter reads out of statistics") {
        const gpu::GpuTraits before = gpu_on_host::settable_gpu_traits();
        gpu_on_host::settable_gpu_traits() = {.sm_count = 4, .hopper_kernels = true};
        const int64_t width = 86, c = 64, k = 128;
        const Tensor x = Tensor::zeros({1, 9, width, c}), w = Tensor::zeros({k, 3, 3, c});
        for (int64_t i = 0; i < x.numel(); ++i)
            x.data<float>()[i] = i / c % width == width - 1 ? INFINITY : float(i / c % 2); // y = 0 in each pixel
        for (int64_t i = 0; i < k; ++i) w.data<float>()[((i * 3 + 1) * 3 + 0) * c] = 1;
        ExecutorDevice device;
        const InContext on{{.device = &device}};
        simt::take_launched();
        const Tensor moments =
            conv2d_stats(x.to(DType::bf16).to_device(), w.to_device(), {}, {.stride = 2}).stats.to_host();
        CHECK(among(simt::take_launched(), "packed_hopper_kernel"));
        for (int64_t i = 0; i < 2 * k; ++i) CHECK(moments.data<float>()[i] == 0);
        gpu_on_host::settable_gpu_traits() = before;
    }
}
