// Every op on every case of op_cases.h: the CPU kernels of the instruction set in use against the reference, buffers
// guarded on both sides, outputs that start as NaN, the same bits again and with any number of threads. And what the
// reference itself must give at points where the answer is known.
//
// RG_ISA chooses the instruction set for a whole process; running the suite once for each tries them all.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/cpu/isa.h"
#include "core/cpu/thread_pool.h"
#include "core/formatted.h"
#include "core/ops.h"
#include "core/profile.h"
#include "core/rng.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>
#include <functional>
#include <set>
#include <tuple>

namespace rg {
TEST_SUITE("core") {
    TEST_CASE("ops: pooling that leaves rows or columns out has to be asked for") {
        const Tensor x = Tensor::zeros({2, 6, 8, 3});
        CHECK(error_of([&] { avg_pool2d(x, {6, 6}); }) ==
              "avg_pool2d: expected windows of 6x6 with stride 6x6 to cover x, got 0 rows and 2 columns left over of "
              "[2 6 8 3]; Pool::drop_rest leaves them out");
        CHECK_ERROR("got 1 rows and 1 columns left over", max_pool2d(x, {3, 2}));
        CHECK(avg_pool2d(x, {.window = 6, .stride = 6, .drop_rest = true}).shape() == Shape{2, 1, 1, 3});
        CHECK(max_pool2d(x, {.window = 3, .stride = 2, .drop_rest = true}).shape() == Shape{2, 2, 3, 3});
        CHECK(max_pool2d(x, {4, 2}).shape() == Shape{2, 2, 3, 3});
        CHECK(avg_pool2d(x, {1, 3}).shape() == Shape{2, 2, 3, 3}); // gaps between windows, and one behind the last
        CHECK(max_pool2d(x, {.window = {3, 2}, .stride = {2, 3}, .pad = {1, 0}}).shape() == Shape{2, 3, 3, 3});
        CHECK(max_pool2d(x, {.window = 3, .stride = 2, .pad = 1}).shape() == Shape{2, 3, 4, 3}); // drops only padding
        CHECK(contains(error_of([&] { avg_pool2d(x, {1, 4}); }), "got 1 rows") == false);
        CHECK(contains(error_of([&] { avg_pool2d(x, {2, 4}); }), "columns") == false);
    }

    TEST_CASE("ops: every op has cases") {
        std::set<Op> seen;
        for (const OpCase& c : op_cases()) {
            CAPTURE(describe(c));
            seen.insert(c.op);
            CHECK(c.in.size() == c.op->inputs.size());
        }
        for (const Op op : kOps) {
            CAPTURE(op->name);
            CHECK(seen.contains(op));
        }
    }

    TEST_CASE("ops: the kernels agree with the reference, within their buffers, bit for bit on any number of threads") {
        MESSAGE("instruction set: ", std::string(cpu::isa().name));
        ThreadPool two(2), three(3);
        for (const OpCase& c : op_cases()) {
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const KernelRun want = run_kernel(c, in, Backend::reference, 16);
            CHECK(want.error == "");
            const KernelRun first = run_kernel(c, in, Backend::cpu, 16);
            CHECK(first.error == "");
            REQUIRE(first.results.size() == want.results.size());
            // Algorithms that transform their inputs carry a NaN to results that it has no part in; strict ones do not.
            const bool special =
                c.tolerance == kConvolved && (c.in[0].draw == Draw::special || c.in[1].draw == Draw::special);
            for (size_t i = 0; i < want.results.size() && !special; ++i) {
                CAPTURE(i);
                CHECK(differs(first.results[i], want.results[i], c.tolerance) == "");
            }
            const Context strict{.strict_fp32 = true};
            {
                const ContextScope scope(strict);
                const KernelRun plain = run_kernel(c, in, Backend::cpu, 16);
                CHECK(plain.error == "");
                for (size_t i = 0; i < want.results.size(); ++i)
                    CHECK(differs(plain.results[i], want.results[i],
                                  c.tolerance == kConvolved || c.tolerance == kNormConvolved ? kSummed : c.tolerance) ==
                          "");
            }
            // Once more the same way, then on more threads; an odd margin moves every buffer off its alignment.
            int64_t margin = 16;
            for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
                const InContext on{{.threads = pool}};
                CAPTURE(pool ? pool->size() : 1);
                const KernelRun again = run_kernel(c, in, Backend::cpu, margin);
                CHECK(again.error == "");
                for (size_t i = 0; i < want.results.size(); ++i) CHECK(same_bits(again.results[i], first.results[i]));
                margin = 19;
            }
        }
    }

    TEST_CASE("ops: an output that has the memory of an input, as its row allows, gets the same bits") {
        std::set<std::pair<Op, int>> tried;
        for (const OpCase& c : op_cases()) {
            if (c.op->may_be == OpRow{}.may_be) continue;
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            for (const Alias& alias : allowed_aliases(c, in))
                for (const Backend backend : {Backend::reference, Backend::cpu}) {
                    if (backend == Backend::reference && in[0].numel() > 2000) continue; // it is slow
                    CAPTURE(alias.out);
                    CAPTURE(alias.in);
                    const KernelRun want = run_kernel(c, in, backend, 16), got = run_kernel(c, in, backend, 16, alias);
                    CHECK(got.error == "");
                    for (size_t i = 0; i < want.results.size(); ++i)
                        CHECK(same_bits(got.results[i], want.results[i]));
                    tried.insert({c.op, alias.out * kMaxInputs + alias.in});
                }
        }
        for (const Op op : kOps)
            for (int o = 0; o < op->outputs; ++o)
                for (int i = 0; i < kMaxInputs; ++i) {
                    CAPTURE(op->name);
                    if (op == op::conv2d) continue; // its running statistics are for plans on a device
                    CHECK((tried.contains({op, o * kMaxInputs + i}) || !(op->may_be[size_t(o)] >> i & 1)));
                }
    }

    TEST_CASE("ops: more threads than rows of an image compute the same bits") {
        const Tensor x = random_tensor({1, 1, 2048, 32}, DType::f32, 1), w = random_tensor({32, 1, 3, 32}, DType::f32, 2);
        const auto run_on = [&](ThreadPool* pool) {
            const InContext on{{.threads = pool}};
            return conv2d(x, w, {}, {.pad = {0, 1}});
        };
        ThreadPool three(3);
        CHECK(same_bits(run_on(&three), run_on(nullptr)));
    }

    TEST_CASE("ops: an op computes each image alone with the same bits, where its row says so") {
        std::set<Op> tried;
        for (const OpCase& c : op_cases()) {
            if (!c.op->images) continue;
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const int64_t n = in[0].shape().rank() ? in[0].extent(0) : 0;
            const bool batches = std::ranges::all_of(in, [&](const Tensor& t) { // b of a binary op may be smaller
                return !t.defined() || !(c.op->images & input_bit(int(&t - in.data()))) ||
                       (t.shape().rank() > 1 && t.extent(0) == n);
            });
            if (n == 0 || !batches) continue;
            const std::vector<Tensor> want = run_kernel(c, in, Backend::cpu, 16).results;
            for (const int64_t image : {int64_t{0}, n / 2, n - 1}) {
                const auto only_image = [&](const Tensor& t) {
                    std::vector<int64_t> extents(t.shape().extents().begin(), t.shape().extents().end());
                    extents[0] = 1;
                    return t.slice(image * (t.numel() / n), Shape(std::span<const int64_t>(extents)));
                };
                std::vector<Tensor> one = in;
                for (size_t i = 0; i < one.size(); ++i)
                    if (c.op->images & input_bit(int(i)) && one[i].defined()) one[i] = only_image(one[i]);
                const std::vector<Tensor> got = run_kernel(c, one, Backend::cpu, 16).results;
                for (size_t o = 0; o < want.size(); ++o)
                    if (c.op->images & output_bit(int(o)) && want[o].numel() > 0)
                        CHECK(same_bits(got[o], only_image(want[o])));
            }
            tried.insert(c.op);
        }
        for (const Op op : kOps) CHECK((tried.contains(op) || !op->images));
    }

    TEST_CASE("ops: run() refuses an output in the memory of an input or another output, unless its row allows it") {
        std::set<std::tuple<Op, uint32_t, std::vector<bool>>> tried; // each op with each set of inputs
        for (const OpCase& c : op_cases()) {
            std::vector<bool> present;
            for (const Input& i : c.in) present.push_back(i.draw != Draw::absent && i.shape.numel() > 1);
            if (!tried.insert({c.op, c.narrow, present}).second) continue;
            CAPTURE(describe(c));
            const OpRow& row = *c.op;
            const std::vector<Tensor> drawn = draw_inputs(c, DType::f32);
            const OutputSpecs specs = infer(row, drawn, c.attrs);
            const DryRun nothing_executes;
            std::vector<Tensor> in, out;
            for (const Tensor& t : drawn) in.push_back(t.defined() ? Tensor::empty(t.shape(), t.dtype()) : Tensor());
            for (size_t o = 0; o < size_t(row.outputs); ++o)
                out.push_back(int(o) < row.in_place ? in[o] : Tensor::empty(specs[o].shape, specs[o].dtype));
            CHECK(error_of([&] { run(c.op, in, c.attrs, out); }) == "");
            const auto refuse = [&](size_t o, std::string other, std::span<const Tensor> from, size_t i, int64_t shift) {
                if (!from[i].defined() || from[i].bytes() <= shift || out[o].bytes() == 0 || int(o) < row.in_place)
                    return;
                std::vector<Tensor> into = out;
                const Tensor block = Tensor::empty({from[i].bytes() + out[o].bytes()}, DType::u8);
                std::vector<Tensor> inputs = in;
                (from.data() == in.data() ? inputs : into)[i] = from[i].rebased_on(block);
                into[o] = out[o].rebased_on(block.slice(shift, {block.bytes() - shift}));
                CHECK(error_of([&] { run(c.op, inputs, c.attrs, into); }) ==
                      Containing{std::string(row.name) + ": expected", "output", std::to_string(o), other});
            };
            for (size_t o = 0; o < out.size(); ++o) {
                for (size_t i = 0; i < in.size(); ++i) {
                    const std::string name = cat("input ", row.inputs[i].name);
                    const bool allowed = row.may_be[o] >> i & 1 && in[i].defined() && in[i].bytes() == out[o].bytes();
                    if (!allowed) refuse(o, name, in, i, 0);
                    refuse(o, name, in, i, 1);
                    if (int(o) >= row.in_place || !in[i].defined() || in[i].bytes() == 0 || out[o].bytes() == 0) continue;
                    std::vector<Tensor> inputs = in, into = out;
                    if (i == o) // an update to another tensor
                        into[o] = Tensor::empty(specs[o].shape, specs[o].dtype);
                    else // the memory that is updated is also that of another input
                        inputs[i] = in[i].rebased_on(in[o].whole());
                    if (i != o && int(i) < row.in_place) into[i] = inputs[i];
                    CHECK(error_of([&] { run(c.op, inputs, c.attrs, into); }) ==
                          Containing{std::string(row.name) + ": expected", int(i) < row.in_place ? "" : name,
                                     i == o ? "works in place" : "share no memory"});
                }
                for (size_t other = size_t(row.in_place); other < o; ++other) refuse(o, cat("outputs ", other), out, other, 0);
            }
        }
    }

    TEST_CASE("ops: strict_fp32 multiplies and adds as the definition does") {
        // Algorithms that transform their inputs carry a NaN to results that it has no part in.
        std::vector<OpCase> cases;
        add_conv(cases, {2, 9, 10, 32, 32, 3, 3, 1, 1});
        add_conv(cases, {1, 6, 7, 32, 32, 3, 3, 1, 1, false, false, Draw::normal, 1, 4});
        const InContext strict{{.strict_fp32 = true}};
        for (const OpCase& c : cases) {
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const bool gradient_of_filters = c.op == op::conv2d_grad && c.attrs.as<Conv2dGradOp>().filters;
            in[gradient_of_filters ? Conv2dGradOp::x : 0].data<float>()[0] = NAN; // in the image that is convolved
            const KernelRun want = run_kernel(c, in, Backend::reference, 16), got = run_kernel(c, in, Backend::cpu, 16);
            for (size_t i = 0; i < want.results.size(); ++i)
                CHECK(differs(got.results[i], want.results[i], c.tolerance) == "");
        }
    }

    TEST_CASE("ops: both backends give the answers that can be worked out by hand") {
        for (Backend backend : {Backend::reference, Backend::cpu}) {
            CAPTURE(int(backend));
            const Context on{.backend = backend};
            const ContextScope scope(on);
            using List = Floats;
            const Tensor x = floats({1, 3, 3, 1}, 1, 2, 3, 4, 5, 6, 7, 8, 9);
            // Cross-correlation: the filter is not turned. Taps (0, 0) and (1, 2) of 2x3.
            const Tensor w = floats({1, 2, 3, 1}, 10, 0, 0, 0, 0, 1);
            CHECK(list(conv2d(x, w, floats({1}, 0.5))) == List{16.5, 49.5});
            CHECK(conv2d(x, w).shape() == Shape{1, 2, 1, 1});
            CHECK(list(conv2d(x, w, {}, {.stride = 2, .pad = 1})) == List{2, 0, 8 + 0, 50});
            CHECK(list(conv2d(x, w, {}, {.pad = 1, .dilation = {2, 1}})) == List{5, 6, 0, 8, 19, 20, 0, 40, 50});
            const Tensor two_channels = floats({1, 1, 2, 2}, 1, 10, 2, 20), taps = floats({2, 1, 2, 1}, 1, 3, 5, 7);
            CHECK(list(conv2d(two_channels, taps, {}, {.groups = 2})) == List{1 + 6, 50 + 140});
            const Tensor pairs = floats({4, 1, 1, 1}, 1, 2, 3, 4);
            CHECK(list(conv2d(two_channels, pairs, {}, {.groups = 2})) == List{1, 2, 30, 40, 2, 4, 60, 80});
            CHECK(list(linear(floats({2, 2}, 1, 2, 3, 4), floats({3, 2}, 1, 0, 0, 1, 1, 1), floats({3}, 0, 0, 10))) ==
                  List{1, 2, 13, 3, 4, 17});
            CHECK(list(channel_stats(floats({2, 1, 2, 2}, 1, 10, 3, 10, 5, 10, 7, 10))) == List{4, 10, 5, 0});
            const float inf = INFINITY;
            const auto loss = [](const Tensor& t) { return double(list(t)[0]); };
            // A logit of -inf, or a class of weight 0, that is not the label, adds nothing.
            const Tensor class_0 = integers({1}, 0);
            CHECK(loss(cross_entropy(floats({1, 3}, 1, 0, -inf), class_0)) == doctest::Approx(std::log1p(std::exp(-1))));
            CHECK(loss(cross_entropy(floats({1, 3}, 1, 0, -inf), class_0, 0.3f, floats({3}, 1, 1, 0))) ==
                  doctest::Approx(0.8 * std::log1p(std::exp(-1)) + 0.1 * (1 + std::log1p(std::exp(-1)))));
            CHECK(loss(cross_entropy(floats({1, 2}, 1e30f, 1e30f), class_0)) == doctest::Approx(std::log(2)));
            CHECK(loss(binary_cross_entropy(floats({1, 2}, inf, -inf), floats({1, 2}, 1, 0))) == 0);
            // beta1 = 0 leaves nothing of the gradient of the step before.
            const Tensor p = floats({1}, 0), m = floats({1}, 0), v = floats({1}, 0);
            adam_update(p, m, v, floats({1}, 1e5f), {.beta1 = 0}, floats({2}, 1e-3, 1));
            adam_update(p, m, v, floats({1}, 1e-5f), {.beta1 = 0}, floats({2}, 1e-3, 2));
            CHECK(double(m.data<float>()[0]) == doctest::Approx(1e-5));
            const auto [y, stats] = conv2d_stats(x, floats({1, 1, 1, 1}, 2), floats({1}, 1));
            CHECK(list(stats)[0] == doctest::Approx(11));
            CHECK(list(stats)[1] == doctest::Approx(4 * 60.0 / 9));
            const Tensor norm = floats({2, 1}, 4, 8.99999);
            CHECK(list(batch_norm(floats({1, 1, 2, 1}, 1, 10), norm, floats({1}, 3), floats({1}, 2)))[1] ==
                  doctest::Approx(8));
            CHECK(list(batch_norm(floats({1, 1, 2, 1}, 1, 10), norm, floats({1}, 3), floats({1}, 2),
                                  {.activation = Activation::relu}))[0] == 0);
            // A picture of 2 x 2 pixels: turned by a quarter, and flipped both ways; between pixels; outside.
            constexpr auto one = int32_t(kPixel);
            const auto shown = [&](std::array<int32_t, 6> view, bool reflect, int64_t height, int64_t width) {
                const uint8_t bytes[] = {0, 51, 102, 204};
                List values =
                    list(augment(Tensor::of<uint8_t>({1, 2, 2, 1}, bytes), Tensor::zeros({1}, DType::i32),
                                 Tensor::of<int32_t>({1, 6}, view), floats({2, 1}, 0, 1), {height, width, reflect}));
                for (auto& value : values) value = std::round(value * 255); // a byte again
                return values;
            };
            CHECK(shown({0, 0, one, one, -one, 0}, false, 2, 2) == List{51, 204, 0, 102});
            CHECK(shown({one, -one, 0, one, 0, -one}, false, 2, 2) == List{204, 102, 51, 0});
            // 25.5 is rounded up to 26; (0 + 51 + 102 + 204) / 4 = 89.25.
            CHECK(shown({0, one / 2, 0, one / 2, 0, 0}, false, 2, 1) == List{26, 89});
            // The outer half of an edge pixel has its value, and what follows is black.
            CHECK(shown({0, 0, 0, -one / 2 - 1, 0, one / 2}, false, 1, 6) == List{0, 0, 25, 51, 51, 0});
            // The mirrored image goes on: pixels 1 0 1 0 1 of row 0, and half of the way between them.
            CHECK(shown({0, 0, 0, -one, 0, one}, true, 1, 5) == List{51, 0, 51, 0, 51});
            CHECK(shown({0, 0, 0, -one, 0, one / 4}, true, 1, 3) == List{51, 38, 26});
            // First of equal values; a row and a column that no window holds.
            const auto pooled = run(op::max_pool2d, {floats({1, 3, 2, 1}, 5, 5, 5, 5, 9, 9)},
                                    Pool2dOp{{.window = 2, .stride = 2, .drop_rest = true}});
            CHECK(list(pooled[0]) == List{5});
            CHECK(pooled[1].data<uint8_t>()[0] == 0);
            CHECK(list(avg_pool2d(x, {2, 1})) == List{3, 4, 6, 7});
            CHECK(list(avg_pool2d(x, {.window = {1, 2}, .stride = {2, 1}, .drop_rest = true})) ==
                  List{1.5, 2.5, 7.5, 8.5});
            const Pool padded{.window = 2, .stride = 2, .pad = 1}, unpadded{2, 2, 1, false};
            CHECK(list(avg_pool2d(x, padded)) == List{0.25, 1.25, 2.75, 7});
            CHECK(list(avg_pool2d(x, unpadded)) == List{1, 2.5, 5.5, 7});
            CHECK(list(global_avg_pool(floats({2, 1, 2, 2}, 1, 10, 3, 20, 5, 30, 7, 40))) == List{2, 15, 6, 35});
            // Negative values lose against no padding, and the position counts from the window's start.
            const auto negative = run(op::max_pool2d, {floats({1, 2, 2, 1}, -4, -3, -2, -1)}, Pool2dOp{padded});
            CHECK(list(negative[0]) == List{-4, -3, -2, -1});
            CHECK(list(negative[1].to(DType::f32)) == List{3, 2, 1, 0});
            const Tensor labels = integers({1}, 1), even = floats({1, 4}, 7, 7, 7, 7);
            CHECK(loss(cross_entropy(even, labels)) == doctest::Approx(std::log(4.0)));
            CHECK(loss(cross_entropy(floats({1, 2}, 0, 1000), labels)) == 0);
            CHECK(loss(cross_entropy(floats({1, 2}, 0, 0), labels, 0.5f)) == doctest::Approx(std::log(2.0)));
            CHECK(loss(cross_entropy(floats({1, 2}, 0, 10), labels, 0.2f)) ==
                  doctest::Approx(std::log(1 + std::exp(-10.0)) + 1));
            CHECK(list(softmax(floats({1, 2}, 1000, 1000))) == List{0.5, 0.5});
            // Weights 3 and 1: (3 * log(4) + 1 * log(4 / 3)) / (3 + 1), as torch.nn.CrossEntropyLoss(weight) has it.
            const Tensor odds = floats({2, 2}, 0, std::log(3.0), 0, std::log(3.0)), weights = floats({2}, 3, 1);
            const Tensor two = integers({2}, 0, 1);
            const double weighted = (3 * std::log(4.0) + std::log(4.0 / 3)) / 4;
            CHECK(loss(cross_entropy(odds, two, 0, weights)) == doctest::Approx(weighted));
            // With smoothing 0.5, a sample has the targets 0.75 and 0.25, or 0.25 and 0.75, times the weights 3 and 1.
            CHECK(loss(cross_entropy(odds, two, 0.5f, weights)) == doctest::Approx(weighted));
            // Sample weights multiply the losses log(4) and log(4 / 3); the mean divides by 2, also with class weights.
            const Tensor of_samples = floats({2}, 0.5, 2);
            const double plain = 0.5 * std::log(4.0) / 2 + std::log(4.0 / 3);
            CHECK(loss(cross_entropy(odds, two, 0, {}, of_samples)) == doctest::Approx(plain));
            CHECK(loss(cross_entropy(odds, two, 0, weights, of_samples)) == doctest::Approx(plain + std::log(4.0) / 2));
            CHECK(list(binary_cross_entropy(floats({4}, 0, 0, 1000, -1000), floats({4}, 0, 0.3, 0.5, 0))) ==
                  List{float(std::log(2.0) / 2 + 500.0 / 4)});
            // Large logits keep all digits of a small loss, and do not overflow.
            for (const float sign : {1.0f, -1.0f}) {
                const auto one = [&](float logit, double target) {
                    const Tensor targets = floats({1}, sign < 0 ? 1 - target : target);
                    return loss(binary_cross_entropy(floats({1}, sign * logit), targets));
                };
                CHECK(one(40, 1) / std::log1p(std::exp(-40.0)) == doctest::Approx(1));
                CHECK(one(40, 0) == doctest::Approx(40));
                CHECK(one(1e4f, 1) == 0);
                CHECK(one(1e4f, 0) == doctest::Approx(1e4));
            }
            CHECK(list(layer_norm(floats({2, 3}, 1, 2, 3, 40, 40, 70), floats({3}, 1, 1, 10), floats({3}, 0, 1, 0))) ==
                  List{-1.224745f, 1, 12.24745f, -0.707107f, 0.292893f, 14.14214f});
            CHECK(list(layer_norm(floats({2, 1}, 7, -3), floats({1}, 5), floats({1}, 2))) == List{2, 2});
            CHECK(list(mse_loss(floats({2}, 1, 5), floats({2}, 2, 2))) == List{5});
            CHECK(list(sub(floats({2}, 1, 5), floats({2}, 2, 3))) == List{-1, 2});
            CHECK(list(mul(floats({2}, 1, 5), floats({2}, 2, 3))) == List{2, 15});
            const Tensor table = floats({2, 3}, 1, 2, 3, 4, 5, 6), row = floats({3}, 1, 2, 4);
            const Tensor column = floats({2, 1}, 2, 4), nothing = Tensor::zeros({0, 3});
            CHECK(list(table * row) == List{1, 4, 12, 4, 10, 24});
            CHECK(list(row - table) == List{0, 0, 1, -3, -3, -2});
            CHECK(list(table / column) == List{0.5, 1, 1.5, 1, 1.25, 1.5});
            CHECK(list(column / table) == List{2, 1, 2 * (1 / 3.0f), 1, 4 * (1 / 5.0f), 4 * (1 / 6.0f)});
            const Tensor one_row = floats({1, 3}, 1, 2, 3);
            CHECK(list(row - one_row) == List{0, 0, 1});
            CHECK((row * one_row).shape() == Shape{1, 3});
            CHECK((column * floats({2, 1, 1, 1}, 1, 10)).shape() == Shape{2, 1, 1, 1});
            CHECK((nothing * row).shape() == nothing.shape());
            CHECK((row / nothing).shape() == nothing.shape());
            CHECK(list(maximum(column, table)) == List{2, 2, 3, 4, 5, 6});
            CHECK(list(minimum(table, row)) == List{1, 2, 3, 1, 2, 4});
            for (const auto f : {maximum, minimum}) {
                CHECK(std::isnan(list(f(floats({1}, NAN), floats({1}, 1)))[0]));
                CHECK(std::isnan(list(f(floats({1}, 1), floats({1}, NAN)))[0]));
            }
            CHECK(list(clamp(row, 1.5f, 3)) == List{1.5, 2, 3});
            CHECK(list(2 * row - 1 + row / 2 - (3 - row)) == List{-0.5, 3, 10});
            CHECK(list(-(1 / row)) == List{-1, -0.5, -0.25});
            CHECK(list(sum(table, {0})) == List{5, 7, 9});
            CHECK(sum(table, {0}).shape() == Shape{1, 3});
            CHECK(list(mean(table, {-1})) == List{2, 5});
            CHECK(list(mean(table, {1, 0})) == List{3.5});
            CHECK(list(sum(table, {})) == list(table));
            // A gate per image and channel, as in squeeze and excitation; and sums over axes that are no neighbours.
            const Tensor pixels = floats({2, 1, 2, 2}, 1, 2, 3, 4, 5, 6, 7, 8), gates = floats({2, 2}, 1, 10, 100, 0);
            CHECK(list(pixels * gates) == List{1, 20, 3, 40, 500, 0, 700, 0});
            CHECK(list(gates * pixels) == List{1, 20, 3, 40, 500, 0, 700, 0});
            CHECK(list(sum(pixels, {0, 3})) == List{14, 22});
            CHECK(list(concat({floats({2, 1}, 1, 4), floats({2, 2}, 2, 3, 5, 6)})) == List{1, 2, 3, 4, 5, 6});
            CHECK(list(sum(x)) == List{45});
            CHECK(list(mean(x)) == List{5});
            CHECK(list(sum(floats({3}, 1e10, 1, -1e10))) == List{1});
            for (const Tensor& none : {sum(Tensor::zeros({0, 3})), mean(Tensor::zeros({0, 3}))}) {
                CHECK(none.shape() == Shape{});
                CHECK(list(none) == List{0});
            }
        }
    }

    TEST_CASE("ops: statistics of a large image keep their digits") {
        const Tensor x = Tensor::empty({1, 512, 512, 4});
        Rng random(1, Purpose::test);
        for (float& v : x.span<float>()) v = 3 + random.normal();
        const Tensor stats = channel_stats(x);
        const InContext reference{{.backend = Backend::reference}};
        CHECK(differs(stats, channel_stats(x), {3e-7, 1e-6}) == "");
    }

    TEST_CASE("ops: the mean of a large window keeps its digits") {
        // Above 8192, a single sum in f32 would round each further 0.1 to 0.0996.
        const Tensor mean = avg_pool2d(Tensor::constant({1, 512, 512, 3}, 0.1), {512, 512});
        for (const float value : mean.span<float>()) CHECK(value == doctest::Approx(0.1).epsilon(1e-4));
    }

    TEST_CASE("ops: a sum with a ReLU is for images, and ends if they have no channels") {
        const Tensor none = Tensor::zeros({2, 3, 3, 0}), flat = Tensor::zeros({2, 5});
        CHECK_ERROR("add: a", run(op::add, {flat, flat}, AddOp{.activation = Activation::relu}));
        Accelerated fused([](auto in, bool) { return std::vector{relu(add(in[0], in[1]))}; });
        CHECK(fused({none, none})[0].shape() == none.shape());
    }

    TEST_CASE("ops: activations are accurate, and follow PyTorch for large values, infinities and NaN") {
        struct Case {
            Activation::Kind kind;
            double (*value)(double);
            double at_minus_infinity, at_infinity, ulps;
        };
        const Case cases[] = {
            {Activation::relu, [](double x) { return std::max(0.0, x); }, 0, INFINITY, 0},
            {Activation::leaky_relu, [](double x) { return x < 0 ? 0.25 * x : x; }, -INFINITY, INFINITY, 0},
            {Activation::relu6, [](double x) { return std::clamp(x, 0.0, 6.0); }, 0, 6, 0},
            {Activation::gelu, [](double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }, NAN, INFINITY, 8},
            {Activation::silu, [](double x) { return x / (1 + std::exp(-x)); }, NAN, INFINITY, 4},
            {Activation::hardswish, [](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); }, NAN, INFINITY, 2},
            {Activation::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 0, 1, 4},
            {Activation::hardsigmoid, [](double x) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); }, 0, 1, 2},
            {Activation::tanh, [](double x) { return std::tanh(x); }, -1, 1, 4},
            {Activation::softplus, [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }, 0,
             INFINITY, 3},
            {Activation::exp, [](double x) { return double(float(std::exp(x))); }, 0, INFINITY, 2},
            {Activation::log, [](double x) { return std::log(x); }, NAN, INFINITY, 2},
            {Activation::sqrt, [](double x) { return std::sqrt(x); }, NAN, INFINITY, 1},
            {Activation::abs, [](double x) { return std::abs(x); }, INFINITY, INFINITY, 0},
            {Activation::square, [](double x) { return x * x; }, INFINITY, INFINITY, 1},
            {Activation::reciprocal, [](double x) { return 1 / x; }, 0, 0, 1}};
        CHECK(std::size(cases) + 1 == std::size(kActivations)); // all but `none`
        const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
        for (const Case& c : cases) {
            CAPTURE(int(c.kind));
            const Tensor x = Tensor::empty_on_host({20003}), y = Tensor::empty_on_host({20003});
            float* const values = x.data<float>();
            for (int i = 0; i < 10001; ++i) { // dense in [-100, 100], and near 0
                values[2 * i] = float(i - 5000) / 50;
                values[2 * i + 1] = float(i - 5000) * 1e-4f;
            }
            const float smallest = 0x1p-149f, largest = 0x1.fffffep127f;
            values[0] = smallest, values[2] = 0x1.8p-127f, values[4] = 0x1p-126f, values[6] = -0.0f;
            if (c.kind == Activation::log || c.kind == Activation::sqrt) values[8] = largest;
            values[20000] = -INFINITY, values[20001] = INFINITY, values[20002] = NAN;
            // Calls the kernel directly: a perturbation would exceed the tolerance.
            const ActivationOp attrs{{c.kind, 0.25f}};
            op::activation->cpu({attrs, {{x}}, {{y}}});
            double worst = 0;
            for (int i = 0; i < 20000; ++i) {
                const double want = c.value(values[i]), got = y.data<float>()[i];
                if (!std::isfinite(want) || !std::isfinite(got)) {
                    if (!same(double(float(want)), got)) worst = INFINITY;
                    continue;
                }
                // Results below the normal numbers have fewer digits. The exponent of gelu, x^2 / 2, is rounded.
                const double unit = std::max(std::abs(want) * 0x1p-23, 0x1p-126);
                const double rounded_exponent = c.kind == Activation::gelu ? 0.5 * values[i] * values[i] : 0;
                worst = std::max(worst, std::abs(got - want) / unit - rounded_exponent);
            }
            CHECK(worst <= c.ulps);
            CHECK(same(y.data<float>()[20000], c.at_minus_infinity));
            CHECK(same(y.data<float>()[20001], c.at_infinity));
            CHECK(std::isnan(y.data<float>()[20002]));
        }
    }

    TEST_CASE("ops: an activation so large that its stores bypass the caches has the bits of its parts") {
        for (const DType type : {DType::f32, DType::bf16}) {
            const int64_t count = (4 << 20) / size_of(type) + 5, part = 1001;
            Tensor x = Tensor::empty({count});
            for (int64_t i = 0; i < count; ++i) x.data<float>()[i] = float(i % 1999 - 999) / 128;
            x = cast(x, type);
            const ActivationGradOp grad{Activation::gelu};
            const Tensor y = gelu(x), dx = run(op::activation_grad, {x, x}, grad)[0];
            for (int64_t begin = 0; begin < count; begin += part) {
                const Shape shape{std::min(part, count - begin)};
                const Tensor values = x.slice(begin, shape);
                CAPTURE(begin);
                REQUIRE(same_bits(y.slice(begin, shape), gelu(values)));
                REQUIRE(same_bits(dx.slice(begin, shape), run(op::activation_grad, {values, values}, grad)[0]));
            }
        }
    }

    TEST_CASE("ops: a convolution so large that its stores bypass the caches has the bits of its images") {
        constexpr int64_t k = 64, side = 256;
        const Tensor gamma = Tensor::constant({k}, 1), beta = Tensor::constant({k}, 0.125),
                     stats = Tensor::zeros({2, k});
        stats.slice(k, {k}).fill(1); // the variances
        const auto values = [](const Shape& shape) {
            const Tensor t = Tensor::empty(shape);
            for (int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = float(i * 7919 % 1999 - 999) / 1024;
            return t;
        };
        for (const DType type : {DType::f32, DType::bf16})
            for (const int64_t c : {2, 8}) { // direct convolution and Winograd, or tiles
                const int64_t images = 16 / size_of(type); // 64 MiB of results
                const Tensor x = cast(values({images, side, side, c}), type), w = values({k, 3, 3, c});
                const Conv2dOp conv{.conv = {.pad = 1}, .y_norm = BatchNorm{.activation = Activation::relu}};
                const auto convolve = [&](const Tensor& in) {
                    return run(op::conv2d, {in, w, {}, {}, {}, {}, stats, gamma, beta}, conv)[Conv2dOp::y];
                };
                const Tensor y = convolve(x);
                for (int64_t i = 0; i < images; ++i) {
                    CAPTURE(i);
                    const int64_t pixels = side * side;
                    const Tensor one = convolve(x.slice(i * pixels * c, {1, side, side, c}));
                    REQUIRE(same_bits(y.slice(i * pixels * k, one.shape()), one));
                }
            }
    }

    TEST_CASE("ops: orthogonalised moves singular values close to 1") {
        for (const Shape& shape : {Shape{5, 5}, Shape{3, 70}, Shape{33, 4}, Shape{1, 6}, Shape{6, 1}}) {
            CAPTURE(shape.str());
            const auto k = size_t(shape[0]), m = size_t(shape[1]);
            Rng random(5, Purpose::test);
            const Tensor x = Tensor::zeros(shape);
            for (float& value : x.span<float>()) value = 100 * random.normal();
            // The polynomial of Newton-Schulz in double: y = a y + b (y y^T) y + c (y y^T)^2 y
            std::vector<double> y(x.span<float>().begin(), x.span<float>().end());
            const auto rows_times = [&](const std::vector<double>& from) { // returns y y^T from
                std::vector<double> square(k * k), result(k * m);
                for (size_t i = 0; i < k; ++i)
                    for (size_t j = 0; j < k; ++j)
                        for (size_t c = 0; c < m; ++c) square[i * k + j] += y[i * m + c] * y[j * m + c];
                for (size_t i = 0; i < k; ++i)
                    for (size_t j = 0; j < k; ++j)
                        for (size_t c = 0; c < m; ++c) result[i * m + c] += square[i * k + j] * from[j * m + c];
                return result;
            };
            double squares = 0;
            for (const double value : y) squares += value * value;
            for (double& value : y) value /= std::sqrt(squares);
            for (int step = 0; step < 3; ++step) {
                const std::vector<double> once = rows_times(y), twice = rows_times(once);
                for (size_t i = 0; i < y.size(); ++i) y[i] = 3.4445 * y[i] - 4.7750 * once[i] + 2.0315 * twice[i];
            }
            const Tensor result = orthogonalised(x);
            for (size_t i = 0; i < y.size(); ++i) // values of at most 1; the polynomial enlarges errors
                CHECK(double(result.span<float>()[i]) == doctest::Approx(y[i]).epsilon(1e-4).scale(1));
        }
        CHECK_ERROR("orthogonalised: expected a matrix, got [4]", orthogonalised(Tensor::zeros({4})));
    }

    TEST_CASE("ops: updates as PyTorch defines them") {
        for (Backend backend : {Backend::reference, Backend::cpu}) {
            CAPTURE(int(backend));
            const InContext on{{.backend = backend}};
            Tensor p = floats({1}, 2), v = floats({1}, 1);
            const Tensor g = floats({1}, 0.5);
            sgdm_update(p, v, g, {.lr = 0.1f, .momentum = 0.5f, .weight_decay = 0.25f});
            CHECK(v.data<float>()[0] == doctest::Approx(1.5)); // 0.5 * 1 + (0.5 + 0.25 * 2)
            CHECK(p.data<float>()[0] == doctest::Approx(1.85));
            p = floats({1}, 2), v = floats({1}, 1);
            sgdm_update(p, v, g, {.lr = 0.1f, .momentum = 0.5f, .weight_decay = 0.25f, .nesterov = true});
            CHECK(p.data<float>()[0] == doctest::Approx(2 - 0.1 * (1 + 0.5 * 1.5)));
            const Tensor running = floats({2, 1}, 1, 1);
            update_running(running, floats({2, 1}, 3, 4), 5, 1, 0.1f);
            CHECK(running.data<float>()[0] == doctest::Approx(1.2));
            CHECK(running.data<float>()[1] == doctest::Approx(0.9 + 0.1 * 4 * 5 / 4));
            update_running(running, floats({2, 1}, 1.2, 1), 1, 1, 1); // a single value has no unbiased variance
            CHECK(running.data<float>()[1] == doctest::Approx(1));
        }
    }

    TEST_CASE("ops: Adam is the formula in double, and what torch.optim.Adam makes of the same gradients") {
        struct Run {
            AdamOptions options;
            std::array<double, 4> p, m, v; // after 4 steps of torch.optim.Adam (PyTorch 1.13)
        };
        const Run runs[] = {{{},
                             {1.9530863761901855, -0.9275769591331482, 0.23741646111011505, -0.165355384349823},
                             {-0.0095500024035573, 0.1962750107049942, 7.84900039434433e-05, 0.203000009059906},
                             {0.001325314398854971, 0.004870313219726086, 1.2996402842802013e-09, 0.01023100782185793}},
                            {{.beta1 = 0.8, .beta2 = 0.99, .epsilon = 1e-3f, .weight_decay = 0.25f},
                             {1.731774091720581, -0.8983315229415894, 0.07590977847576141, -0.1607142984867096},
                             {0.26824429631233215, 0.25319236516952515, 0.050746094435453415, 0.316177636384964},
                             {0.021009089425206184, 0.04263460263609886, 0.00034929081448353827, 0.10077159851789474}}};
        const float gradients[4][4] = {
            {0.5f, -0.25f, 1e-4f, 0}, {-1, -0.5f, 2e-4f, 3}, {0.25f, 2, -5e-4f, -1}, {0.125f, 0.75f, 1e-3f, 0.5f}};
        const float lr[] = {0.1f, 0.1f, 0.05f, 0.2f};
        for (Backend backend : {Backend::reference, Backend::cpu})
            for (const Run& r : runs) {
                CAPTURE(int(backend));
                CAPTURE(r.options.weight_decay);
                const InContext on{{.backend = backend}};
                const Tensor p = floats({4}, 2, -1, 0.5, 0), m = Tensor::zeros({4}), v = Tensor::zeros({4});
                double power1 = 1, power2 = 1, p_i[] = {2, -1, 0.5, 0}, m_i[4] = {}, v_i[4] = {};
                for (size_t t = 0; t < 4; ++t) {
                    const AdamOptions& options = r.options;
                    adam_update(p, m, v, Tensor::of<float>({4}, gradients[t]), options,
                                floats({2}, double(lr[t]), double(t + 1)));
                    power1 *= options.beta1, power2 *= options.beta2;
                    for (size_t i = 0; i < 4; ++i) {
                        const double g = gradients[t][i] + options.weight_decay * p_i[i];
                        m_i[i] = options.beta1 * m_i[i] + (1 - options.beta1) * g;
                        v_i[i] = options.beta2 * v_i[i] + (1 - options.beta2) * g * g;
                        p_i[i] -= lr[t] * (m_i[i] / (1 - power1)) /
                                  (std::sqrt(v_i[i] / (1 - power2)) + double(options.epsilon));
                        CHECK(p.data<float>()[i] == doctest::Approx(p_i[i]).epsilon(1e-5));
                    }
                }
                for (size_t i = 0; i < 4; ++i) {
                    CHECK(p.data<float>()[i] == doctest::Approx(r.p[i]).epsilon(1e-5));
                    CHECK(m.data<float>()[i] == doctest::Approx(r.m[i]).epsilon(1e-5).scale(0));
                    CHECK(v.data<float>()[i] == doctest::Approx(r.v[i]).epsilon(1e-5).scale(0));
                }
            }
    }

    TEST_CASE("ops: the first value that is not finite, wherever it is, on any number of threads") {
        ThreadPool pool(3);
        const InContext on{{.threads = &pool}};
        const Tensor x = Tensor::zeros({3, 40001});
        const auto first = [&] { return first_non_finite(x).data<int32_t>()[0]; };
        x.fill(-3e38);
        CHECK(first() == -1);
        const Tensor loss = Tensor::zeros({});
        for (const float value : {-INFINITY, NAN, 3e38f}) { // it stands behind the others
            loss.fill(value);
            CHECK(first_non_finite(x, loss).data<int32_t>()[0] == (value == 3e38f ? -1 : 120003));
        }
        loss.fill(NAN);
        const float bad[] = {NAN, INFINITY, -INFINITY};
        for (const int32_t at : {120002, 120001, 90000, 65536, 65535, 32767, 130, 17, 15, 1, 0}) { // the others stay
            x.data<float>()[at] = bad[at % 3];
            CHECK(first() == at);
            CHECK(first_non_finite(x, loss).data<int32_t>()[0] == at);
        }
        CHECK(first_non_finite(Tensor::zeros({0})).data<int32_t>()[0] == -1);
    }

    TEST_CASE("ops: dropout keeps the share it should, is a function of its seed, and keeps the mean") {
        const Tensor x = Tensor::empty({100, 100});
        x.fill(1);
        const Tensor seed = seed_tensor(5), y = dropout(x, 0.3f, seed);
        double sum = 0, zeros = 0;
        for (float v : y.span<float>()) {
            CHECK_UNARY(v == 0 || v == doctest::Approx(1 / (1 - 0.3f)).epsilon(1e-5));
            sum += v, zeros += v == 0;
        }
        CHECK(zeros / 1e4 == doctest::Approx(0.3).epsilon(0.05));
        CHECK(sum / 1e4 == doctest::Approx(1).epsilon(0.03));
        CHECK(same_bits(dropout(x, 0.3f, seed), y));
        CHECK_FALSE(same_bits(dropout(x, 0.3f, seed_tensor(6)), y));
        CHECK_FALSE(same_bits(dropout(x, 0.3f, seed_tensor(5 + (uint64_t(1) << 40))), y));
        // Layers that share a seed: masks of their own, which agree where chance has it.
        const Tensor other = dropout(x, 0.3f, seed, 1);
        double both = 0;
        for (size_t i = 0; i < 10000; ++i) both += y.span<float>()[i] == 0 && other.span<float>()[i] == 0;
        CHECK(both / 1e4 == doctest::Approx(0.09).epsilon(0.1));
    }

    TEST_CASE("ops: a wrong argument is named") {
        struct Case {
            const char* message; // the whole one, or a part of it
            std::function<void()> call;
        };
        const Tensor x = Tensor::zeros({2, 5, 5, 3}), w = Tensor::zeros({4, 3, 3, 3});
        const Tensor i = integers({2}, 0, 0), wrong = integers({2}, 0, 4);
        const Tensor in_groups = Tensor::zeros({6, 3, 3, 1}), stats = Tensor::zeros({2, 3}), scalar = Tensor::zeros({});
        const Tensor two = Tensor::zeros({2}), three = Tensor::zeros({3}), four = Tensor::zeros({4});
        const Tensor five = Tensor::zeros({5}), scores = Tensor::zeros({2, 4}), dy = Tensor::zeros({2, 2, 2, 3});
        const Tensor images = Tensor::zeros({4, 5, 5, 3}, DType::u8), views = Tensor::zeros({2, 6}, DType::i32);
        const Tensor lr = Tensor::zeros({1}), v = x.clone(), g = x.clone(), s = x.clone();
        const Tensor half = cast(x, DType::bf16); // activations alone may be bf16
        const Case whole[] = {
            {"conv2d: w has c=32, x has c=3", [&] { conv2d(x, Tensor::zeros({4, 3, 3, 32})); }},
            {"conv2d: x needs 4 extents, got [2 25 3]", [&] { conv2d(x.reshape({2, 25, 3}), w); }},
            {"conv2d: x is undefined", [&] { conv2d({}, w); }},
            {"conv2d: b needs shape [4], got [3]", [&] { conv2d(x, w, three); }},
            {"conv2d: expected groups that divide c=3 of x and k=4 of w, got 2",
             [&] { conv2d(x, w, {}, {.groups = 2}); }},
            {"conv2d: w has c=3, x has c=3 in 3 groups",
             [&] { conv2d(x, Tensor::zeros({6, 3, 3, 3}), {}, {.groups = 3}); }},
            {"conv2d: w is f64, expected f32", [&] { conv2d(x, w.to(DType::f64)); }},
            {"linear: w has c=4, x has c=5", [&] { linear(Tensor::zeros({2, 5}), Tensor::zeros({3, 4})); }},
            {"add: expected a shape that repeats along neighbouring axes of [2 5 5 3], got [4 3 3 3]; reshape one of them",
             [&] { add(x, w); }},
            {"sub: expected a shape that repeats along neighbouring axes of [2 5 5 3], got [4 3 3 3]; reshape one of them",
             [&] { sub(x, w); }},
            {"mul: expected a shape that repeats along neighbouring axes of [2 5 5 3], got [4 3 3 3]; reshape one of them",
             [&] { mul(x, w); }},
            {"div: expected a shape that repeats along neighbouring axes of [2 5 5 3], got [2 1 5 1]; reshape one of them",
             [&] { div(x, Tensor::zeros({2, 1, 5, 1})); }},
            {"maximum: expected a shape that repeats along neighbouring axes of [2 5 5 3], got [3 3]; reshape one of "
             "them",
             [&] { maximum(Tensor::zeros({3, 3}), x); }},
            {"binary: b is bf16, expected f32; cast() it", [&] { minimum(x, half); }},
            {"clamp: expected low <= high, got 2 and 1; exchange them", [&] { clamp(x, 2, 1); }},
            {"clamp: expected low <= high, got nan and 1; exchange them", [&] { clamp(x, NAN, 1); }},
            {"sum: expected axes in [-4, 4), got 4", [&] { sum(x, {0, 4}); }},
            {"mean: expected axes in [-4, 4), got -5", [&] { mean(x, {-5}); }},
            {"sum: x is undefined", [&] { sum({}, {0}); }},
            {"concat: expected tensors that differ only in the last extent, got [2 5 5 3] and [4 3 3 3]; make the "
             "other extents the same",
             [&] { concat({x, w}); }},
            {"concat: x1 is undefined", [&] { concat({x, {}, x}); }},
            {"concat: x1 is bf16, expected f32; cast() it", [&] { concat({x, cast(x, DType::bf16)}); }},
            {"concat: expected 1 to 12 tensors, got 13; concatenate them in groups",
             [&] { concat(std::vector<Tensor>(13, x)); }},
            {"sum: x is i32, expected f32", [&] { mean(i); }},
            {"global_avg_pool: expected x, got an undefined tensor", [&] { global_avg_pool({}); }},
            {"global_avg_pool: x needs 4 extents, got [2 5]", [&] { global_avg_pool(Tensor::zeros({2, 5})); }},
            {"cross_entropy: weights needs shape [4], got [3]", [&] { cross_entropy(scores, i, 0, three); }},
            {"cross_entropy: sample_weights needs shape [2], got [4]", [&] { cross_entropy(scores, i, 0, {}, four); }},
            {"layer_norm: gamma needs shape [3], got [5]", [&] { layer_norm(x, five, five); }},
            {"layer_norm: beta needs shape [3], got [5]", [&] { layer_norm(x, three, five); }},
            {"layer_norm: x is i32, expected f32", [&] { layer_norm(i, i, i); }},
            {"layer_norm: x needs 2 or 4 extents, got [2 3 4]",
             [&] { layer_norm(Tensor::zeros({2, 3, 4}), four, four); }},
            {"layer_norm: x needs at least one channel, got [2 0]",
             [&] { layer_norm(Tensor::zeros({2, 0}), Tensor::zeros({0}), Tensor::zeros({0})); }},
            {"cross_entropy: label 4 of sample 1 lies outside [0, 4)", [&] { cross_entropy(scores, wrong); }},
            {"conv2d: w is f64, expected f32", [&] { conv2d(half, w.to(DType::f64)); }},
            {"softmax: expected x with at least one column, got [2 0]", [&] { softmax(Tensor::zeros({2, 0})); }},
            {"augment: views needs shape [2 18], got [2 3]",
             [&] { augment(images, i, Tensor::zeros({2, 3}, DType::i32), stats, {5, 5}); }},
            {"augment: views needs shape [2 36], got [2 6]",
             [&] { augment(images, Tensor::zeros({2, 2}, DType::i32), views, stats, {5, 5}); }},
            {"augment: indices needs shape [2 2], got [2 3]",
             [&] { augment(images, Tensor::zeros({2, 3}, DType::i32), views, stats, {5, 5}); }},
            {"augment: index 4 of sample 1 lies outside [0, 4)", [&] { augment(images, wrong, views, stats, {5, 5}); }},
            {"activation: expected a finite slope of at least 0, got -0.1", [&] { leaky_relu(x, -0.1f); }},
            {"batch_norm: expected an activation that can be part of other ops, got silu; call activation()",
             [&] { run(op::batch_norm, {x, stats, three, three}, BatchNormOp{BatchNorm{.activation = Activation::silu}}); }},
            {"batch_norm: expected a finite slope of at least 0, got -1",
             [&] { batch_norm(x, stats, three, three, {.activation = {Activation::leaky_relu, -1}}); }},
            {"add: expected an activation that can be part of other ops, got tanh; call activation()",
             [&] { run(op::add, {x, x}, AddOp{.activation = Activation::tanh}); }},
            {"activation: takes 1 inputs, got 2", [&] { run(op::activation, {x, x}); }},
            {"sgdm_update: expected output 1 to share no memory with input gradients, got tensors that do; pass another "
             "tensor, or none",
             [&] { sgdm_update(x, v, v, {}); }},
            {"sgdm_update: lr needs shape [1], got [2]", [&] { run(op::sgdm_update, {x, v, g, floats({2}, 1, 2)}); }},
            {"sgdm_update: non_finite_at needs shape [], got [2]", [&] { sgdm_update(x, v, g, {}, lr, {i}); }},
            {"sgdm_update: non_finite_at is f32, expected i32", [&] { sgdm_update(x, v, g, {}, lr, {scalar}); }},
            {"rescale: expected both step and lr, or neither, got one", [&] { run(op::rescale, {x, scalar, x}); }},
            {"rescale: norm needs shape [], got [1]", [&] { rescale(x, lr, 1); }},
            {"first_non_finite: loss needs shape [], got [1]", [&] { first_non_finite(x, lr); }},
            {"adam_update: lr_and_step is i32, expected f32", [&] { adam_update(x, v, s, g, {}, i); }},
            {"dropout: seed is f32, expected i32", [&] { dropout(x, 0.5f, two); }},
            {"dropout: the stream lies below 2^24, got 16777216", [&] { dropout(x, 0.5f, i, 1 << 24); }},
        };
        for (const Case& c : whole) {
            CAPTURE(c.message);
            CHECK(error_of(c.call) == c.message);
        }
        const Case parts[] = {
            {"the window (9) exceeds the padded input (7)",
             [&] { conv2d(x, Tensor::zeros({4, 9, 9, 3}), {}, {.pad = 1}); }},
            {"stride 0", [&] { conv2d(x, w, {}, {.stride = 0}); }},
            {"dilation 0 are not possible", [&] { conv2d(x, w, {}, {.dilation = {1, 0}}); }},
            {"the window (7) exceeds the padded input (5)", [&] { conv2d(x, w, {}, {.pad = {0, 1}, .dilation = 3}); }},
            {"of w, got 0", [&] { conv2d(x, w, {}, {.groups = 0}); }},
            {"conv2d: expected no fused steps with groups=3, got one",
             [&] {
                 infer(*op::conv2d, {{x, in_groups, {}, stats, three, three, {}, {}, {}}},
                       Conv2dOp{.conv = {.groups = 3}});
             }},
            {"conv2d_grad: expected no fused steps with groups=3, got one",
             [&] {
                 infer(*op::conv2d_grad,
                       {{Tensor::zeros({2, 3, 3, 6}), x, in_groups, x, {}, {}, {}, {}, {}, {}, {}, {}}},
                       Conv2dGradOp{.conv = {.groups = 3}});
             }},
            {"padding -1", [&] { conv2d(x, w, {}, {.pad = -1}); }},
            {"activation: x is i32", [&] { relu(i); }},
            {"elements are f64, not f32", [&] { relu(Tensor::zeros({3}, DType::f64)); }},
            {"got [2 5 5 3] and [2 25 3]", [&] { concat({x, x.reshape({2, 25, 3})}); }},
            {"got [] and []", [&] { concat({scalar}); }},
            {"tensors, got 0", [&] { concat(std::vector<Tensor>()); }},
            {"got 3 from channel 1", [&] { run(op::concat_grad, {x}, ConcatGradOp{1, 3}); }},
            {"stats needs shape [2 3], got [2 4]", [&] { batch_norm(x, Tensor::zeros({2, 4}), w, w); }},
            {"max_pool2d: the window (6) exceeds", [&] { max_pool2d(x, {6, 1}); }},
            {"expected windows of at most 256 pixels, got 17x16",
             [&] { max_pool2d(Tensor::zeros({1, 17, 16, 1}), {.window = {17, 16}}); }},
            {"max_pool2d: expected less padding than the window 2x2, got 2x0",
             [&] { max_pool2d(x, {.window = 2, .pad = {2, 0}}); }},
            {"max_pool2d: expected less padding than the window 2x2, got 0x2",
             [&] { max_pool2d(x, {.window = 2, .pad = {0, 2}}); }},
            {"padding -1, dilation 1 are not possible", [&] { avg_pool2d(x, {.window = 2, .pad = -1}); }},
            {"avg_pool2d: window 2, stride 0", [&] { avg_pool2d(x, {2, 0}); }},
            {"labels needs shape [3], got [2]", [&] { cross_entropy(Tensor::zeros({3, 4}), i); }},
            {"labels is f32, expected i32", [&] { cross_entropy(scores, two); }},
            {"label smoothing lies in [0, 1)", [&] { cross_entropy(scores, i, 1.0f); }},
            {"binary_cross_entropy: targets needs shape", [&] { binary_cross_entropy(x, w); }},
            {"target -0.5 of element 0 lies outside", [&] { binary_cross_entropy(two, Tensor::constant({2}, -0.5)); }},
            {"target 1.5 of element 0 lies outside", [&] { binary_cross_entropy(two, Tensor::constant({2}, 1.5)); }},
            {"of element 0 lies outside [0, 1]", [&] { binary_cross_entropy(two, Tensor::constant({2}, NAN)); }},
            {"layer_norm: epsilon is at least 0, got -1", [&] { layer_norm(x, three, three, -1); }},
            {"conv2d: w is bf16, expected f32", [&] { conv2d(half, cast(w, DType::bf16)); }},
            {"batch_norm: gamma is bf16, expected f32",
             [&] { batch_norm(half, stats, cast(three, DType::bf16), three); }},
            {"expected f32; cast() it", [&] { softmax(cast(scores, DType::bf16)); }},
            {"cast: x is i32", [&] { cast(i, DType::f32); }},
            {"cast: to u8 is not possible", [&] { cast(x, DType::u8); }},
            {"conv2d_grad: x is bf16, expected f32",
             [&] { run(op::conv2d_grad, {Tensor::zeros({2, 3, 3, 4}), half, w}, Conv2dGradOp{}); }},
            {"avg_pool2d_grad: dy needs shape [2 2 2 3], got [2 5 5 3]",
             [&] { run(op::avg_pool2d_grad, {x}, Pool2dGradOp{{2, 2}, 5, 5}); }},
            {"positions is f32, expected u8",
             [&] { run(op::max_pool2d_grad, {dy, {}, {}, {}, {}, dy}, Pool2dGradOp{{2, 2}, 5, 5}); }},
            {"cross_entropy_grad: the gradient of the loss needs one element",
             [&] { run(op::cross_entropy_grad, {scores, i, {}, {}, scores}); }},
            {"mse_loss_grad: the gradient of the loss needs one element",
             [&] { run(op::mse_loss_grad, {scores, scores, scores}); }},
            {"target is f64, expected f32", [&] { mse_loss(scores, scores.to(DType::f64)); }},
            {"the probability lies in [0, 1), got 1", [&] { dropout(x, 1.0f, i); }},
            {"augment: images is f32, expected u8", [&] { augment(x, i, views, stats, {5, 5}); }},
            {"augment: views is f32, expected i32", [&] { augment(images, i, stats, stats, {5, 5}); }},
            {"augment: expected a window of at least 1 x 1, got 0 x 5",
             [&] { augment(images, i, views, stats, {0, 5}); }},
            {"got inf", [&] { leaky_relu(x, INFINITY); }},
            {"activation: expected output 0 of f32 [2 5 5 3], got f32 [4 3 3 3]",
             [&] { run(op::activation, {x}, {}, {w}); }},
            {"sgdm_update: expected input parameters as output 0", [&] { run(op::sgdm_update, {x, v, g, lr, {}}); }},
            {"sgdm_update: gradients needs shape", [&] { sgdm_update(x, v, w, {}); }},
            {"beta1 and beta2 lie in [0, 1), got 0.9 and 1", [&] { adam_update(x, v, s, g, {.beta2 = 1}, two); }},
        };
        for (const Case& c : parts) {
            const std::string error = error_of(c.call);
            CAPTURE(c.message);
            CHECK(error == Containing{c.message});
        }
    }

    TEST_CASE("profile counts calls and arithmetic") {
        Profile profile;
        const InContext timed{{.profile = &profile}};
        const Tensor x = Tensor::zeros({2, 5, 5, 3}), w = Tensor::zeros({4, 3, 3, 3});
        conv2d(x, w);
        conv2d(x, w, {}, {.pad = 1});
        relu(x);
        CHECK(profile.flops(op::conv2d) == 2 * (2 * 3 * 3 * 4 + 2 * 5 * 5 * 4) * 27);
        CHECK(profile.flops(op::activation) == 150);
        const std::string table = profile.table(1.0);
        CHECK(table == Containing{"conv2d                      2", "(outside of ops)"});
        CHECK_FALSE(contains(table, "batch_norm"));
    }

    TEST_CASE("profile says how each convolution is computed, and why") {
        Profile profile;
        const InContext strict{{.strict_fp32 = true, .profile = &profile}}; // the same on all CPUs
        const Tensor x = Tensor::zeros({2, 8, 8, 16});
        for (int call = 0; call < 2; ++call) conv2d(x, Tensor::zeros({16, 3, 3, 16}));
        conv2d(x, Tensor::zeros({16, 3, 3, 1}), {}, {.groups = 16});
        conv2d(x, Tensor::zeros({32, 1, 1, 8}), {}, {.groups = 2});
        linear(Tensor::zeros({8, 512}), Tensor::zeros({10, 512}));
        const std::string table = profile.table();
        const auto line = [](const char* w, const char* method) { return formatted("w %-20s f32   %s", w, method); };
        for (const std::string& expected :
             {line("[16 3 3 16]", "direct          (fp32-strict"), line("[16 3 3 1]", "depthwise       (one filter"),
              line("[32 1 1 8]", "group by group  (groups of"), line("[16 1 1 8]", "direct"),
              line("[10 1 1 512]", "dense           (1x1")})
            CHECK(table == Containing{expected});
        CHECK(table.find("[16 3 3 16]") == table.rfind("[16 3 3 16]"));
    }

    TEST_CASE("profile counts and times the calls of each convolution") {
        Profile profile;
        const InContext strict{{.strict_fp32 = true, .profile = &profile}};
        const Tensor x = Tensor::zeros({2, 8, 8, 16}), w = Tensor::zeros({16, 3, 3, 16});
        for (int call = 0; call < 2; ++call) conv2d(x, w);
        const Tensor y = conv2d(x, w, {}, {.stride = 2});
        relu(x);
        run(op::conv2d_grad, {y, x, w}, Conv2dGradOp{.conv = {.stride = 2}});
        REQUIRE(profile.noted().size() == 3);
        for (size_t i = 0; i < 3; ++i) {
            CAPTURE(i);
            const auto& [notes, totals] = profile.noted()[i];
            CHECK(notes.size() == (i < 2 ? 1 : 2));
            CHECK(notes[0].y == (i < 1 ? Shape{2, 6, 6, 16} : Shape{2, 3, 3, 16}));
            CHECK(totals.calls == (i < 1 ? 2 : 1));
            CHECK(totals.seconds > 0);
        }
        const std::string table = profile.table();
        CHECK(table == Containing{"\nconv2d                      2 "});
        CHECK(table == Containing{"\nconv2d_grad: dw             1 "});
        CHECK(table == Containing{"\nconv2d_grad: dx                      0.000  x [2 8 8 16]"});
    }
}

} // namespace rg
