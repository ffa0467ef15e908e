// Tests the tape: sums of gradients, their destinations, memory, errors, and dry runs.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/ops.h"
#include "core/tape.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>
#include <functional>
#include <limits>
#include <thread>

namespace rg {
namespace {

using List = Floats;

Tensor row_of(std::initializer_list<float> values) {
    return Tensor::of<float>({int64_t(values.size())}, std::span<const float>(values.begin(), values.size()));
}
/// Returns a tensor of NaNs, which a gradient must overwrite.
Tensor unset(const Shape& shape) {
    const Tensor t = Tensor::empty(shape);
    t.fill(std::numeric_limits<double>::quiet_NaN());
    return t;
}
/// Returns half the sum of the squares of 2 or 8 values. Its gradient is the values.
Tensor half_squares(const Tensor& y) {
    const Tensor twice = y.numel() == 8 ? add(y, y) : y;
    return mse_loss(twice, Tensor::zeros(y.shape()));
}

/// Returns the mean of all values. Unlike the losses, which compute in double, it needs no scratch memory.
Tensor mean_of(const Tensor& square) { return avg_pool2d(square, {square.extent(1), 1}); }

} // namespace

TEST_SUITE("core") {
    TEST_CASE("tape: adds both gradients of a tensor in two roles, and rejects a tensor listed twice") {
        const Tensor x = Tensor::of<float>({1, 2, 1, 1}, std::span<const float>(List{1, 3})), g = row_of({2});
        const Tensor stats = Tensor::of<float>({2, 1}, std::span<const float>(List{2, 1})), dg = unset({1});
        {
            Tape tape; // y = g (x^ + 1) with x^ = -1, 1, so the mean is g and its derivative is 1
            const Tensor y = batch_norm(x, stats, g, g, {.epsilon = 0, .frozen = true});
            tape.gradients(avg_pool2d(y.reshape({1, 1, 2, 1}).reshape({1, 2, 1, 1}), {1, 2}), {{g}}, {{dg}});
            CHECK(list(dg)[0] == doctest::Approx(0)); // pooling takes only the first pixel: g (-1 + 1)
        }
        {
            Tape tape;
            const std::vector<Tensor> twice{g, g}, into{unset({1}), unset({1})};
            CHECK_ERROR("got tensor 1 twice", tape.gradients(relu(g), twice, into));
        }
    }

    TEST_CASE("tape: two threads cannot compute the gradients of one network at the same time") {
        Parameters parameters;
        const Tensor& w = parameters.add("w", {1}, Parameters::Entry::Start::ones);
        parameters.allocate(1, Init::he);
        const auto gradients = [&] {
            Tape tape;
            tape.gradients(half_squares(w), parameters);
        };
        {
            const auto other_thread = parameters.differentiator.call("Network");
            CHECK_ERROR("Network: expected one call at a time", gradients());
        }
        CHECK_NOTHROW(gradients());
    }

    TEST_CASE("ops: reject empty extents, and take an empty batch") {
        const Tensor none = Tensor::empty({0, 4, 4, 2});
        CHECK(channel_stats(none).shape() == Shape{2, 2});
        CHECK(linear(Tensor::empty({0, 3}), Tensor::zeros({5, 3})).shape() == Shape{0, 5});
        CHECK_ERROR("empty extent", channel_stats(Tensor::empty({2, 0, 4, 2})));
        CHECK_ERROR("empty extent", channel_stats(Tensor::empty({2, 4, 4, 0})));
        CHECK_ERROR("k=0", conv2d(Tensor::empty({2, 4, 4, 1}), Tensor::empty({0, 1, 1, 1})));
        const Pool pool{.window = 2, .stride = 2, .pad = 1}; // one of its windows would fit into the padding alone
        CHECK(max_pool2d(none, pool).shape() == Shape{0, 3, 3, 2});
        CHECK_ERROR("empty extent", max_pool2d(Tensor::empty({1, 0, 4, 2}), pool));
        CHECK_ERROR("empty extent", avg_pool2d(Tensor::empty({1, 4, 0, 2}), pool));
    }

    TEST_CASE("tape: assigns the first contribution to a gradient and adds the others") {
        const Tensor x = row_of({1, -2}), dx = unset({2});
        {
            Tape tape;
            tape.gradients(half_squares(add(add(x, x), x)), {{x}}, {{dx}}); // y = 3 x
            CHECK(list(dx) == List{9, -18});
        }
        {
            Tape tape; // y = relu(x) + x + relu(x)
            const Tensor r = relu(x);
            tape.gradients(half_squares(add(add(r, x), r)), {{x}}, {{dx}});
            CHECK(list(dx) == List{9, -2});
        }
        {
            Tape tape; // two ops use an intermediate, one of them much later
            const Tensor y = add(x, x), z = relu(relu(relu(y)));
            tape.gradients(half_squares(add(y, z)), {{x}}, {{dx}});
            CHECK(list(dx) == List{16, -8});
        }
    }

    TEST_CASE("tape: treats a reshaped view as the same value") {
        const Tensor x = row_of({1, -2, 3, 4, 5, 6, 7, 8}), dx = unset({8});
        Tape tape;
        const Tensor y = add(x, x);
        const Tensor z = add(y.reshape({2, 4}), x.reshape({2, 4})); // 3 x
        tape.gradients(half_squares(z), {{x}}, {{dx}});
        CHECK(list(dx) == List{9, -18, 27, 36, 45, 54, 63, 72});
    }

    TEST_CASE("tape: gives gradients of intermediates and of the loss, and zeros for independent tensors") {
        const Tensor x = row_of({1, -2}), unused = row_of({5, 5, 5}), dx = unset({2}), dy = unset({2});
        const Tensor none = unset({3}), dl = unset({}), side = unset({2});
        Tape tape;
        const Tensor y = add(x, x), loss = half_squares(y), after = relu(x);
        tape.gradients(loss, {{x, unused, y, loss, after}}, {{dx, none, dy, dl, side}});
        CHECK(list(dy) == List{2, -4});
        CHECK(list(dx) == List{4, -8});
        CHECK(list(none) == List{0, 0, 0});
        CHECK(list(dl) == List{1});
        CHECK(list(side) == List{0, 0});
    }

    TEST_CASE("tape: does not compute gradients that nobody needs") {
        const Tensor x = Tensor::zeros({1, 4, 4, 3}), w = Tensor::zeros({2, 3, 3, 3}), dw = unset({2, 3, 3, 3});
        Tape tape;
        const Tensor loss = mse_loss(conv2d(x, w), Tensor::zeros({1, 2, 2, 2}));
        const int64_t before = live_bytes();
        reset_peak_bytes();
        tape.gradients(loss, {{w}}, {{dw}});
        // The memory holds 1, dy and db, but not dx with 48 floats.
        CHECK(peak_bytes() - before < 48 * 4);
        CHECK(list(dw) == List(54, 0));
    }

    TEST_CASE("tape: NoTape pauses recording, tapes nest, and each thread has its own") {
        CHECK(Tape::active() == nullptr);
        const Tensor x = row_of({1, -2}), dx = unset({2});
        Tape outer;
        CHECK(Tape::active() == &outer);
        const Tensor y = add(x, x);
        {
            const NoTape pause;
            CHECK(Tape::active() == nullptr);
            { const NoTape again; }
            relu(y);
        }
        CHECK(Tape::active() == &outer);
        {
            Tape inner;
            CHECK(Tape::active() == &inner);
            inner.gradients(half_squares(relu(x)), {{x}}, {{dx}});
            CHECK(list(dx) == List{1, 0});
            CHECK(Tape::active() == &outer); // the inner tape is used up
        }
        CHECK(Tape::active() == &outer);
        const Tape* elsewhere = &outer;
        std::jthread([&] { elsewhere = Tape::active(); }).join();
        CHECK(elsewhere == nullptr);
        Tensor detached;
        {
            const NoTape pause;
            detached = add(y, y); // a constant for the tape
        }
        outer.gradients(half_squares(add(y, detached)), {{x}}, {{dx}});
        CHECK(list(dx) == List{12, -24});
        const Tensor again = half_squares(y);
        CHECK_ERROR("the first call of this tape", outer.gradients(again, {{x}}, {{dx}}));
        CHECK(list(dx) == List{12, -24});
    }

    TEST_CASE("tape: an outer tape throws for gradients through the ops of an inner one") {
        const Tensor x = row_of({1, -2}), dx = unset({2});
        Tape outer;
        const Tensor y = add(x, x);
        Tensor hidden;
        {
            Tape inner;
            hidden = add(y, y);
        }
        CHECK_ERROR("comes from add; compute it before the inner Tape begins",
                    outer.gradients(half_squares(add(y, hidden)), {{x}}, {{dx}}));
    }

    TEST_CASE("tape: throws for an input for which its op has no gradient") {
        const Tensor x = Tensor::zeros({1, 2, 2, 1}), stats = Tensor::zeros({2, 1}), gamma = Tensor::zeros({1}),
                     beta = Tensor::zeros({1}), dgamma = unset({1}), dstats = unset({2, 1});
        Tape tape;
        const Tensor y = batch_norm(x, stats, gamma, beta, {.frozen = true});
        const Tensor loss = mse_loss(y, Tensor::zeros({1, 2, 2, 1}));
        CHECK_ERROR("expected inputs for which batch_norm has a gradient, got its input 1",
                    tape.gradients(loss, {{gamma, stats}}, {{dgamma, dstats}}));
    }

    TEST_CASE("tape: throws if the statistics of a batch norm are those of another tensor") {
        const Tensor x = Tensor::constant({2, 2, 2, 1}, 3), z = Tensor::constant({2, 2, 2, 1}, 2), one = row_of({1});
        const Tensor running = Tensor::constant({2, 1}, 1), dx = unset(x.shape()), dz = unset(z.shape());
        const auto differentiate = [&](const std::function<Tensor()>& f) {
            Tape tape;
            tape.gradients(half_squares(f()), std::array{x, z}, std::array{dx, dz});
        };
        const char* const kError = "gradients: expected inputs for which batch_norm has a gradient, got its input 1; make "
                                   "it a constant under NoTape";
        CHECK_NOTHROW(differentiate([&] { return batch_norm(x, channel_stats(x), one, one); }));
        CHECK_NOTHROW(differentiate([&] { return batch_norm(x, combine_stats(channel_stats(x)), one, one); }));
        CHECK_THROWS_WITH(differentiate([&] { return batch_norm(x, channel_stats(z), one, one); }), kError);
        CHECK_THROWS_WITH(differentiate([&] { return batch_norm(x, channel_stats(add(x, z)), one, one); }), kError);
        // Running statistics are constants, even if they were updated on the way.
        CHECK_NOTHROW(differentiate([&] {
            update_running(running, channel_stats(x), 2, 4, 0.1f);
            return batch_norm(x, running, one, one, {.frozen = true});
        }));
    }

    TEST_CASE("tape: writes gradients directly into their destinations") {
        const Tensor x = Tensor::zeros({2, 6, 6, 3}), target = Tensor::zeros({2, 4, 4, 4});
        const Tensor w = Tensor::zeros({4, 3, 3, 3}), b = row_of({1, 2, 3, 4});
        const Tensor flat = unset({128}), dw = flat.slice(4, {4, 3, 3, 3}), db = flat.slice(116, {4});
        for (int users : {1, 2}) { // with the same filters twice, the second contribution is added in place
            CAPTURE(users);
            flat.fill(std::numeric_limits<double>::quiet_NaN());
            Tape tape;
            Tensor y = conv2d(x, w, b);
            for (int i = 1; i < users; ++i) y = add(y, conv2d(x, w, b));
            tape.gradients(mse_loss(y, target), {{w, b}}, {{dw, db}});
            const float scale = users == 1 ? 1.0f : 4.0f; // both y and its gradient double
            for (int64_t k = 0; k < 4; ++k)
                CHECK(db.data<float>()[k] == doctest::Approx(scale * 2 * float(k + 1) * 32 / 128));
            CHECK(list(dw) == List(108, 0));
            for (int64_t i : {0, 3, 112, 115, 120, 127}) CHECK(std::isnan(flat.data<float>()[i]));
        }
    }

    TEST_CASE("tape: refuses a destination in the memory of a value that an op saved") {
        const Tensor x = row_of({1, 2, 3, 4}), w = row_of({1, 1, 1, 1}), wide = Tensor::zeros({8});
        const auto error = [&](const Tensor& read, const Tensor& destination) {
            Tape tape;
            const Tensor y = tanh(mul(mul(x, w), read));
            return error_of([&] { tape.gradients(sum(y), {{w}}, {{destination.defined() ? destination : y}}); });
        };
        const Tensor part = wide.slice(2, {4});
        CHECK(error(wide.slice(4, {4}), wide.slice(0, {4})) == "");
        CHECK(error(part, wide.slice(0, {4})) == "gradients: expected destinations apart from the values that ops have "
                                                 "saved, got destination 0 in the memory of one that binary saved; give it its own memory");
        CHECK_ERROR("that binary saved", fail(error(wide.slice(0, {4}), part)));
        CHECK_ERROR("that binary saved", fail(error(wide.slice(0, {4}), x)));
        CHECK_ERROR("that activation saved", fail(error(wide.slice(0, {4}), {})));
    }

    TEST_CASE("tape: frees memory during the walk, and all of it at the end") {
        constexpr int64_t kBytes = 4 * 4096;
        const Tensor x = Tensor::zeros({1, 64, 64, 1}), dx = unset({1, 64, 64, 1});
        const int64_t before = live_bytes();
        {
            Tape tape;
            Tensor y = x;
            for (int i = 0; i < 10; ++i) y = relu(y);
            CHECK(live_bytes() == before + 10 * kBytes); // each op saves its result
            Tensor loss = mean_of(y);
            y = {};
            reset_peak_bytes();
            const int64_t held = live_bytes();
            tape.gradients(loss, {{x}}, {{dx}});
            CHECK(peak_bytes() <= held + 2 * kBytes + 64); // never more than two gradients at a time
            loss = {};
            CHECK(live_bytes() == before);
        }
        for (const Activation::Kind kind : {Activation::leaky_relu, Activation::gelu, Activation::tanh}) {
            CAPTURE(int(kind));
            const Tape tape;
            Tensor y = add(x, x);
            y = activation(y, kind);
            CHECK(live_bytes() == before + (kind == Activation::gelu ? 2 : 1) * kBytes); // only gelu saves its input
        }
        {
            Tape tape;
            Tensor y = x;
            for (int i = 0; i < 10; ++i) y = avg_pool2d(y, {1, 1}); // saves nothing, but each op has a gradient
            const Tensor loss = mean_of(y);
            y = {};
            const int64_t held = live_bytes();
            CHECK(held < before + 64);
            reset_peak_bytes();
            tape.gradients(loss, {{x}}, {{dx}});
            CHECK(peak_bytes() <= held + 2 * kBytes + 64);
        }
        {
            const Tape tape;
            Tensor y = add(x, x);
            for (int i = 0; i < 10; ++i) y = add(y, x);
            CHECK(live_bytes() == before + kBytes); // an addition saves nothing
        }
        CHECK(live_bytes() == before);
    }

    TEST_CASE("tape: a dry run executes nothing and counts the memory of a real run") {
        const Tensor x = Tensor::zeros({1, 8, 8, 3}), w = Tensor::zeros({5, 3, 3, 3}), dw = unset({5, 3, 3, 3});
        const Tensor gamma = unset({5});
        const auto step = [&] {
            const int64_t before = live_bytes();
            reset_peak_bytes();
            {
                Tape tape;
                const auto [y, stats] = conv2d_stats(x, w, {}, {.pad = 1});
                const Tensor z = batch_norm(y, combine_stats(stats), gamma, gamma);
                const Tensor one_filter = Tensor::zeros({1, 1, 1, 5});
                tape.gradients(mean_of(conv2d(relu(add(z, y)), one_filter)), {{w}}, {{dw}});
            }
            CHECK(live_bytes() == before);
            return peak_bytes() - before;
        };
        int64_t dry;
        {
            const DryRun scope;
            dry = step();
            CHECK(std::isnan(dw.data<float>()[0]));
            const Tensor y = relu(x);
            CHECK(y.shape() == x.shape());
            CHECK_ERROR("while a function is traced", y.data<float>());
            CHECK_ERROR("w has c=4", conv2d(x, Tensor::empty({1, 1, 1, 4}))); // a dry run checks shapes too
        }
        CHECK(dry == step());
        CHECK(dry > 0);
    }

    TEST_CASE("tape: a cast returns the gradient in the type of its input") {
        const Tensor x = row_of({1, -2.5}), dx = unset({2});
        Tape tape;
        const Tensor y = cast(cast(x, DType::bf16), DType::f32);
        tape.gradients(half_squares(y), {{x}}, {{dx}});
        CHECK(dx.data<float>()[0] == 1);
        CHECK(dx.data<float>()[1] == -2.5f);
    }

    TEST_CASE("tape: gradients flow through slice() to its part only") {
        const Tensor x = row_of({1, -2, 3, 4, 5, 6, 7, 8}), dx = unset({2, 4});
        for (const bool replayed : {false, true}) {
            CAPTURE(replayed);
            const Tensor rows = x.reshape({2, 4});
            dx.fill(std::numeric_limits<double>::quiet_NaN());
            Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
                Tape tape;
                const Tensor y = add(rows, in[0]), second = slice(y, 2, {2}), first = slice(y, 0, {1, 2});
                CHECK(first.shape() == Shape{1, 2});
                const Tensor loss = mse_loss(add(first.reshape({2}), second), Tensor::constant({2}, 0));
                tape.gradients(loss, {{rows}}, {{dx}});
                return {loss};
            });
            step.enabled = replayed;
            CHECK(step({Tensor::zeros({2, 4})})[0].data<float>()[0] == doctest::Approx(10).epsilon(1e-5)); // 4 and 2
            CHECK(list(dx) == List{4, 2, 4, 2, 0, 0, 0, 0});
        }
        CHECK_ERROR("expected elements of [0, 8), got 4 from element 5", slice(x, 5, {2, 2}));
        CHECK_ERROR("expected elements of [0, 8), got 2 from element -1", slice(x, -1, {2}));
        CHECK_ERROR("expected elements of [0, 8)", x.slice(INT64_MAX, {2}));
    }

    TEST_CASE("tape: throws if a gradient would have to flow through a copy or a view") {
        const Tensor x = row_of({1, -2, 3, 4, 5, 6, 7, 8}), dx = unset({8});
        const auto error = [&](const std::function<Tensor(const Tensor&)>& f) {
            return error_of([&] {
                Tape tape;
                const Tensor z = f(add(x, x));
                tape.gradients(mse_loss(z, Tensor::zeros(z.shape())), {{x}}, {{dx}});
            });
        };
        CHECK(error([](const Tensor& y) { return y.slice(2, {4}); }) ==
              "gradients: expected input 0 of mse_loss to come from ops that have gradients, got one that comes from "
              "a view of a part (Tensor::slice()); use slice() of core/ops.h, or ask for the gradient of the view, or "
              "make a constant under NoTape");
        const struct {
            const char* part;
            std::function<Tensor(const Tensor& y)> f;
        } cases[] = {
            {"Tensor::slice()", [](const Tensor& y) { return y.slice(0, {4}); }},
            {"Tensor::slice()", [&](const Tensor&) { return x.slice(2, {4}); }},
            {"Tensor::slice()", [](const Tensor& y) { return y.slice(0, {4}).clone(); }},
            {"input 0 of activation", [](const Tensor& y) { return relu(y.slice(2, {4})); }},
            {"input 0 of activation", [](const Tensor& y) { return relu(relu(y.slice(2, {4}))); }},
            {"Tensor::clone(); use the tensor itself", [](const Tensor& y) { return y.clone(); }},
            {"Tensor::clone()", [](const Tensor& y) { return y.clone().slice(0, {4}); }},
            {"Tensor::clone()", [&](const Tensor&) { return x.clone(); }},
            {"Tensor::to(); use cast()", [](const Tensor& y) { return y.to(DType::f32); }},
            {"input 1 of add", [](const Tensor& y) { return add(y, y.clone()); }}, // a part of the gradient is blocked
            {"Tensor::copy_from()",
             [](const Tensor& y) {
                 const Tensor z = Tensor::empty(y.shape());
                 z.copy_from(y);
                 return z;
             }},
            {"Tensor::copy_from()",
             [](const Tensor& y) {
                 y.slice(0, {2}).copy_from(Tensor::zeros({2}));
                 return y;
             }},
            {"Tensor::copy_from()", // overwrites two results by one copy, and then uses the second
             [](const Tensor& y) {
                 const Tensor flat = Tensor::empty({16}), first = flat.slice(0, {8}), second = flat.slice(8, {8});
                 for (const Tensor& part : {first, second}) run(op::add, std::array{y, y}, {}, std::array{part});
                 flat.copy_from(Tensor::zeros({16}));
                 return second;
             }},
            // Ops without a backward rule block gradients, and results other than the first one.
            {"channel_stats; it has no gradient for this result",
             [](const Tensor& y) {
                 return channel_stats(y.reshape({1, 2, 2, 2}));
             }},
            {"conv2d; it has no gradient for this result",
             [](const Tensor& y) {
                 return conv2d_stats(y.reshape({1, 2, 2, 2}), Tensor::zeros({1, 1, 1, 2})).stats;
             }},
            {"input 1",
             [](const Tensor& y) {
                 const Tensor other = Tensor::zeros({1, 2, 2, 2}), one = Tensor::constant({2}, 1);
                 return batch_norm(other, channel_stats(y.reshape({1, 2, 2, 2})), one, one);
             }},
        };
        for (const auto& c : cases) CHECK(error(c.f) == Containing{c.part});
        CHECK(error([](const Tensor& y) { return y.slice(0, {8}); }) == ""); // the whole value
        CHECK(contains(error_of([] { // overwrites a requested tensor and a result by one copy, and then uses the result
                           const Tensor flat = Tensor::zeros({16}), w = flat.slice(0, {8}), y = flat.slice(8, {8});
                           Tape tape;
                           run(op::add, std::array{w, w}, {}, std::array{y});
                           flat.copy_from(Tensor::zeros({16}));
                           tape.gradients(mse_loss(y, Tensor::zeros({8})), {{w}}, {{unset({8})}});
                       }),
                       "Tensor::copy_from()"));
        CHECK(contains(error_of([&] {
                           Tape tape;
                           tape.gradients(half_squares(x).clone(), {{x}}, {{dx}});
                       }),
                       "Tensor::clone(); use the tensor itself"));
        CHECK(contains(error_of([&] { // asks for the gradients of a tensor and of its copy
                           Tape tape;
                           const Tensor copy = x.clone();
                           tape.gradients(half_squares(copy), {{x, copy}}, {{dx, unset({8})}});
                       }),
                       "expected tensors apart, got one that comes from another through Tensor::clone()"));
        CHECK(contains(error_of([&] { // asks for that of a part of the copy
                           Tape tape;
                           const Tensor part = x.clone().slice(0, {4});
                           tape.gradients(half_squares(part), {{x, part}}, {{dx, unset({4})}});
                       }),
                       "expected tensors apart"));
        CHECK(contains(error_of([&] { // copies a tensor into a part of another
                           Tape tape;
                           const Tensor both = Tensor::zeros({16});
                           both.slice(0, {8}).copy_from(x);
                           tape.gradients(half_squares(both), {{x, both}}, {{dx, unset({16})}});
                       }),
                       "expected tensors apart, got one that comes from another through Tensor::copy_from()"));
        // A view of a flat buffer of parameters blocks the buffer's gradient.
        const Tensor flat = row_of({1, -2, 3, 4}), dflat = unset({4}), w = flat.slice(2, {2});
        CHECK(contains(error_of([&] {
                           Tape tape;
                           tape.gradients(half_squares(w), {{flat}}, {{dflat}});
                       }),
                       "ask for the gradient of the view"));
    }

    TEST_CASE("tape: allows copies and views through which no gradient flows") {
        const Tensor x = row_of({1, -2, 3, 4, 5, 6, 7, 8}), dx = unset({8}), before = Tensor::zeros({8});
        const auto gradient = [&](const std::function<Tensor(const Tensor&)>& f) {
            Tape tape;
            const Tensor y = add(x, x);
            const Tensor loss = mse_loss(add(add(y, y), f(y)), Tensor::zeros(y.shape())); // of 4 x if f is 0
            tape.gradients(loss, {{x}}, {{dx}});
            return list(dx);
        };
        const List plain{4, -8, 12, 16, 20, 24, 28, 32};
        CHECK(gradient([](const Tensor& y) { return Tensor::zeros(y.shape()); }) == plain);
        CHECK(gradient([](const Tensor& y) { // copies that are only read
                  const Tensor seen = y.clone();
                  CHECK(y.to(DType::f64).data<double>()[7] == doctest::Approx(16));
                  CHECK(y.to_host().slice(7, {1}).data<float>()[0] == doctest::Approx(16));
                  CHECK(mse_loss(relu(seen.slice(2, {4})), y.slice(2, {4})).data<float>()[0] == 0);
                  return Tensor::zeros(y.shape());
              }) == plain);
        CHECK(gradient([](const Tensor& y) { // a constant, so the loss has 4 x - 2 x
                  const NoTape pause;
                  const Tensor negative = Tensor::zeros(y.shape());
                  for (int64_t i = 0; i < 8; ++i) negative.data<float>()[i] = -y.clone().data<float>()[i];
                  return negative;
              }) == List{2, -4, 6, 8, 10, 12, 14, 16});
        CHECK(gradient([&](const Tensor& y) { // a tensor is read, and then keeps y for the next step
                  const Tensor last = relu(before.slice(0, {8}));
                  before.copy_from(y);
                  return last;
              }) == plain);
        CHECK(before.data<float>()[7] == doctest::Approx(16));
        before.fill(0);
        CHECK(gradient([&](const Tensor& y) { // a copy is overwritten before it is read
                  const Tensor kept = y.clone();
                  kept.copy_from(before);
                  return kept;
              }) == plain);
        // Without images, the loss still depends on the parameters.
        const Tensor w = Tensor::zeros({3, 4}), dw = unset({3, 4});
        Tape tape;
        tape.gradients(mse_loss(linear(Tensor::empty({0, 4}), w), Tensor::empty({0, 3})), {{w}}, {{dw}});
        CHECK(list(dw) == List(12, 0));
    }

    TEST_CASE("tape: throws for copies, views and unwritten values in a traced function") {
        const Tensor w = row_of({1, -2}), dw = unset({2});
        const auto error = [&](const std::function<Tensor(const Tensor&)>& f) {
            return error_of([&] {
                Accelerated traced([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
                    Tape tape;
                    const Tensor loss = mse_loss(f(in[0]), Tensor::constant({2}, 0));
                    tape.gradients(loss, {{w}}, {{dw}});
                    return {loss};
                });
                traced({row_of({3, 4})});
            });
        };
        CHECK(error([&](const Tensor& x) { return add(x, w); }) == "");
        CHECK(contains(error([&](const Tensor& x) {
                           const Tensor y = add(w, x), all = mse_loss(y, Tensor::constant({2}, 0)).reshape({1});
                           return linear(all.reshape({1, 1}), y.slice(0, {1, 1})).reshape({1}).slice(0, {1});
                       }),
                       "mse_loss"));
        CHECK(contains(error([&](const Tensor& x) { return add(x, add(w, x)).clone(); }), "is traced"));
        CHECK(contains(error([&](const Tensor& x) { return add(x, w.clone()); }), "is traced"));
        const Tensor kept = row_of({5, 6});
        CHECK(
            contains(error([&](const Tensor& x) { return kept.copy_from(w), add(x, w); }),
                     "copy_from: expected only ops in a traced function, got a copy of [2], which replays would "
                     "not repeat; copy before or after the function"));
        CHECK(list(kept) == List{5, 6});
        CHECK(contains(error([&](const Tensor& x) { return add(add(x, w), Tensor::zeros({2})); }),
                       "accelerate: expected add to read the result of an op of the function, got [2]"));
        const Tensor filled = Tensor::zeros({2});
        Accelerated filling([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            filled.fill(0);
            return {add(in[0], filled)};
        });
        CHECK_ERROR("fill: expected only ops in", filling({Tensor::zeros({2})}));
    }

    TEST_CASE("tape: names what is wrong in a call of gradients()") {
        const Tensor x = row_of({1, -2});
        Tape tape;
        const Tensor y = add(x, x);
        CHECK_ERROR("a loss with one element, got [2]", tape.gradients(y, {{x}}, {{x}}));
        CHECK_ERROR("gradients: expected a loss", tape.gradients({}, {{x}}, {{x}}));
        const Tensor loss = half_squares(y);
        CHECK_ERROR("expected 1 destinations, got 0", tape.gradients(loss, {{x}}, {}));
        CHECK_ERROR("expected destination 0 of f32 [2] like its tensor, got f32 [3]",
                    tape.gradients(loss, {{x}}, {{unset({3})}}));
        CHECK_ERROR("an undefined destination 0", tape.gradients(loss, {{x}}, {{Tensor()}}));
        CHECK_ERROR("an undefined tensor 0", tape.gradients(loss, {{Tensor()}}, {{x}}));
        CHECK_ERROR("got f64 [2]", tape.gradients(loss, {{x}}, {{x.to(DType::f64)}}));
        const Tensor dx = unset({2}), both = unset({3});
        CHECK_ERROR("tensor 0 and destination 0, which do", tape.gradients(loss, {{x}}, {{x}}));
        CHECK_ERROR("destination 0 and destination 1, which do",
                    tape.gradients(loss, {{x, y}}, {{both.slice(0, {2}), both.slice(1, {2})}}));
        tape.gradients(loss, {{x}}, {{dx}}); // none of the errors has used up the tape
        CHECK(list(dx) == List{4, -8});
    }

    TEST_CASE("tape: throws if the loss depends on none of the tensors") {
        const Tensor x = row_of({1, -2}), w = row_of({3, 4}), dx = unset({2}), dw = unset({2});
        const char* const none = "got one that depends on none of the 2; compute it from them while the tape exists";
        {
            Tape tape;
            const Tensor loss = half_squares(row_of({5, 6}));
            CHECK_ERROR(none, tape.gradients(loss, {{x, w}}, {{dx, dw}}));
        }
        {
            const Tensor y = add(x, w); // before the tape exists
            Tape tape;
            CHECK_ERROR(none, tape.gradients(half_squares(y), {{x, w}}, {{dx, dw}}));
        }
        Tape tape;
        tape.gradients(half_squares(x), {{x, w}}, {{dx, dw}});
        CHECK(list(dx) == List{1, -2});
        CHECK(list(dw) == List{0, 0});
    }

    TEST_CASE("tape: refuses the gradient of a tensor that an op changes in place") {
        const Tensor w = Tensor::constant({2}, 3), dw = unset({2});
        for (const bool adds : {true, false}) {
            Tape tape;
            adds ? run(op::add, {w, Tensor::constant({2}, 1)}, {}, {w}) : run(op::scale, {w}, ScaleOp{0.5f}, {w});
            const Tensor loss = sum(w);
            CHECK_ERROR("changes in place; do so under NoTape", tape.gradients(loss, {{w}}, {{dw}}));
        }
        Tape tape;
        {
            const NoTape pause;
            run(op::add, {w, Tensor::constant({2}, 1)}, {}, {w});
        }
        tape.gradients(sum(w), {{w}}, {{dw}});
        CHECK(list(dw) == List{1, 1});
    }
}

} // namespace rg
