// accelerate: a replay computes what the plain function does, wherever its inputs lie; errors of functions that cannot
// be replayed. tests/models/accelerate.cpp has the tests with whole networks.
#include "core/accelerate.h"
#include "core/ops.h"
#include "core/tape.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"
#include "tests/temp_dir.h"

#include <doctest/doctest.h>
#include <thread>

using namespace rg;

namespace {

Tensor random(const Shape& shape, uint64_t seed) { return random_tensor(shape, DType::f32, seed); }

/// Returns true if the step has this input, which may be an optional one that fusing gave it.
bool has(const Step& step, size_t input) { return step.in[input].defined(); }

} // namespace

TEST_SUITE("core") {
    TEST_CASE("accelerate: parameters that are used several times get the sum of their gradients") {
        const std::vector<Tensor> of{random({8, 3, 3, 8}, 1), random({8}, 2), random({8}, 3)};
        const std::vector<Tensor> into{Tensor::zeros({8, 3, 3, 8}), Tensor::zeros({8}), Tensor::zeros({8})};
        Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            Tape tape;
            Tensor x = in[0];
            for (int i = 0; i < 3; ++i) {
                const WithStats y = conv2d_stats(x, of[0], {}, {.pad = 1});
                x = batch_norm(y.y, y.stats, of[1], of[2], {.activation = Activation::relu});
            }
            const Tensor loss = mse_loss(x, in[1]);
            tape.gradients(loss, of, into);
            return {loss};
        });
        step.check = true;
        CHECK_NOTHROW(step({random({4, 6, 6, 8}, 4), random({4, 6, 6, 8}, 5)}, true));
        for (const Step& s : step.plan({random({4, 6, 6, 8}, 4), random({4, 6, 6, 8}, 5)}, true).steps())
            CHECK((s.op != op::conv2d_grad || has(s, Conv2dGradOp::y_stats)));
    }

    TEST_CASE("accelerate: the gradient of a tensor that a convolution and another op read is right in any memory") {
        const Tensor x = floats({1, 1, 3, 1}, 1, 2, 3), w = floats({1, 1, 1, 1}, 5), outside = Tensor::zeros(x.shape());
        for (const bool intermediate : {false, true})
            for (const Tensor& given : {Tensor(), outside}) {
                Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
                    const Tensor dx = given.defined() ? given : Tensor::empty(x.shape());
                    Tape tape;
                    const Tensor v = intermediate ? scale(in[0], 3) : in[0];
                    const Tensor y = conv2d(v, w);                        // its gradient is computed last
                    tape.gradients(sum(add(y, mul(v, v))), {{v}}, {{dx}}); // 5 v + v^2
                    return {dx};
                });
                const Floats want = intermediate ? Floats{11, 17, 23} : Floats{7, 9, 11}; // 5 + 2 v
                CHECK(list(step({x})[0]) == want);
                step.enabled = false;
                CHECK(list(step({x})[0]) == want);
            }
    }

    TEST_CASE("accelerate: a result may be an input of the next call; memory that the function writes may not") {
        const Tensor w = random({2, 3, 3, 2}, 1), x = random({1, 5, 5, 2}, 2), kept = Tensor::zeros({100});
        const Tensor part = kept.slice(0, {50}).reshape(x.shape()), rest = kept.slice(50, {50}).reshape(x.shape());
        Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            run(op::scale, {in[1]}, ScaleOp{2}, {part});
            return {conv2d(in[0], w, {}, {.pad = 1}), add(in[0], in[1])};
        });
        std::vector<Tensor> plain{x, x}, replayed{x, x};
        for (int i = 0; i < 3; ++i) {
            const auto results = step(replayed);
            replayed.assign(results.rbegin(), results.rend()); // each is read after the other is written
            plain = {add(plain[0], plain[1]), conv2d(plain[0], w, {}, {.pad = 1})};
            for (size_t j : {0, 1}) CHECK(differs(replayed[j], plain[j], kConvolved) == "");
        }
        CHECK_NOTHROW(step({x, rest}));
        CHECK_ERROR("does not write its inputs, got input 1 where scale writes", step({x, part}));
    }

    TEST_CASE("accelerate: a result may be the input of a call that evicts its plan") {
        const auto make = [] { // an Accelerated can be moved
            Accelerated step([](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
                return {scale(in[0], training ? 3.f : 2.f)};
            });
            step.cache_size = 1;
            return step;
        };
        std::vector<Accelerated> steps;
        steps.push_back(make());
        Tensor x = Tensor::zeros({1000});
        x.fill(1);
        CHECK(steps[0](steps[0]({x}, false), true)[0].span<float>()[999] == doctest::Approx(6));
        CHECK(steps[0].occupancy() == 1);
        CHECK(steps[0].planned_bytes() >= 4000);
    }

    TEST_CASE("accelerate: a view of a value is not taken for the value") {
        const Tensor gamma = random({5}, 1), beta = random({5}, 2), stats = Tensor::zeros({2, 5});
        stats.fill(0.5);
        const Tensor w = random({5, 3, 3, 5}, 3), dense = random({4, 6 * 6 * 5}, 4);
        const auto normalised = [&](const Tensor& x) { return batch_norm(x, channel_stats(x), gamma, beta); };
        const auto convolved = [&](const Tensor& x) { return conv2d(x, w, {}, {.pad = 1}); };
        const auto fixed = [&](const Tensor& x) { return batch_norm(x, stats, gamma, beta, {.frozen = true}); };
        const std::function<Tensor(const Tensor&)> functions[] = {
            [&](const Tensor& x) {
                return linear(normalised(x).reshape({4, 6 * 6 * 5}), dense);
            },
            [&](const Tensor& x) {
                return convolved(normalised(x).slice(6 * 6 * 5, {2, 6, 6, 5}));
            },
            [&](const Tensor& x) {
                return max_pool2d(normalised(x).reshape({4, 4, 9, 5}), {.window = 2, .stride = 2, .drop_rest = true});
            },
            [&](const Tensor& x) {
                return fixed(convolved(x).slice(6 * 6 * 5, {2, 6, 6, 5}));
            },
            [&](const Tensor& x) {
                return max_pool2d(fixed(convolved(x)).reshape({4, 4, 9, 5}),
                                  {.window = 2, .stride = 2, .drop_rest = true});
            }};
        const Tensor x = random({4, 6, 6, 5}, 5);
        for (const auto& f : functions) {
            Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {f(in[0])}; });
            CHECK(differs(step({x})[0], f(x), kConvolved) == "");
        }
    }

    TEST_CASE("accelerate: a function that reads a value while it is traced is told so, and nothing is kept") {
        const Tensor x = Tensor::zeros({4});
        Accelerated peeking([](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            const Tensor y = relu(in[0]);
            return {y.data<float>()[0] > 0 ? y : add(y, y)};
        });
        CHECK_ERROR("values do not exist while a function is traced", peeking({x}));
        CHECK(peeking.occupancy() == 0);
        CHECK_FALSE(DryRun::active());
        CHECK(relu(x).data<float>()[0] == 0); // ops execute again
        Accelerated identity([](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {in[0]}; });
        CHECK_ERROR("not be one of its inputs", identity({x}));
        CHECK_ERROR("expected defined inputs", identity({Tensor()}));
    }

    TEST_CASE("accelerate: inputs may lie anywhere, also be views, and are not held") {
        Accelerated twice([](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            return {add(in[0].reshape({2, 2}), in[0].reshape({2, 2})).reshape({4})};
        });
        const Tensor all = floats({8}, 1, 2, 3, 4, 5, 6, 7, 8);
        CHECK(differs(twice({all.slice(0, {4})})[0], floats({4}, 2, 4, 6, 8), kRounded) == "");
        CHECK(differs(twice({all.slice(3, {4})})[0], floats({4}, 8, 10, 12, 14), kRounded) == "");
        CHECK(differs(twice({all.slice(4, {4}).clone()})[0], floats({4}, 10, 12, 14, 16), kRounded) == "");
        const int64_t live = live_bytes();
        {
            const Tensor large = Tensor::zeros({1 << 20});
            Accelerated sum(
                [](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {mse_loss(in[0], in[0])}; });
            sum({large});
        }
        CHECK(live_bytes() == live);
    }

    TEST_CASE("accelerate: plans of all sizes share one arena, and compute the same after it has grown") {
        const Tensor w = random({256, 256}, 1);
        const auto f = [&](const Tensor& x) { return linear(relu(linear(relu(linear(x, w)), w)), w.slice(0, {1, 256})); };
        Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {f(in[0])}; });
        const auto check = [&](int64_t n) {
            const Tensor x = random({n, 256}, uint64_t(n));
            CHECK(differs(step({x})[0], f(x), kConvolved) == "");
        };
        const int64_t before = live_bytes();
        int64_t results = 0, inputs = 0; // live_bytes() counts placeholders of inputs, which have no memory
        for (int64_t n = 1; n <= 32; ++n) check(n), results += (4 * n + 63) / 64 * 64, inputs += n * 256 * 4;
        for (int64_t n = 32; n > 0; n -= 3) check(n);
        const int64_t arena = step.plan({random({32, 256}, 1)}).arena_bytes();
        CHECK(arena >= 32 * 256 * 4);
        CHECK(step.planned_bytes() == arena + results);
        CHECK(live_bytes() - before == arena + results + inputs);
        CHECK(step.hit_rate() > 0);
    }

    TEST_CASE("accelerate: several objects share one arena, as large as the largest plan of all needs") {
        const Tensor w = random({256, 256}, 1);
        const auto f = [&](const Tensor& x) { return linear(relu(linear(relu(linear(x, w)), w)), w.slice(0, {1, 256})); };
        const auto function = [&](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {f(in[0])}; };
        Accelerated first(function), second(function), alone(function);
        second.share_memory(first);
        const std::array both{&std::as_const(first), &std::as_const(second)};
        const auto input = [](int64_t n) { return random({n, 256}, uint64_t(n)); };
        int64_t results = 0;
        for (const int64_t n : {2, 8, 4, 32, 16}) { // the first, then the second needs the largest arena
            Accelerated& one = n == 8 || n == 32 ? second : first;
            for (Accelerated* const step : {&one, &alone})
                CHECK(differs((*step)({input(n)})[0], f(input(n)), kConvolved) == "");
            results += (4 * n + 63) / 64 * 64;
            CHECK(Accelerated::planned_bytes(both) == alone.planned_bytes());
        }
        CHECK(first.plan({input(2)}).arena().key().id == second.plan({input(8)}).arena().key().id);
        const int64_t arena = alone.plan({input(32)}).arena_bytes();
        CHECK(Accelerated::planned_bytes(both) == arena + results);
        CHECK((first.plans() == 3 && second.plans() == 2));
        for (const int64_t n : {2, 8}) CHECK(differs((n == 2 ? first : second)({input(n)})[0], f(input(n)), kConvolved) == "");
        CHECK_ERROR("expected no plans yet, got 2", second.share_memory(alone));
        std::string error; // as of one object, a call during another
        first.after_step = [&](const Plan&, size_t) {
            error = error_of([&] { second({input(8)}); });
            return false;
        };
        first({input(2)});
        CHECK(contains(error, "expected one call at a time"));
        first.clear_cache(), second.clear_cache();
        {
            const DryRun without_memory; // as in check_planned_memory()
            for (const int64_t n : {32, 8}) (n == 32 ? second : first).plan({Tensor::empty_on_host({n, 256})});
            CHECK(Accelerated::planned_bytes(both) == arena + 4 * 32 + 64);
        }
    }

    TEST_CASE("accelerate: each plan is one miss, also one that was made ahead, so N calls give 1 - 1 / N") {
        for (const bool ahead : {false, true}) {
            Accelerated twice(
                [](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {add(in[0], in[0])}; });
            const Tensor x = Tensor::zeros({4}), y = Tensor::zeros({5});
            for (int i = 0; i < 3 && ahead; ++i) twice.plan({x}), twice.plan({y});
            CHECK(twice.hit_rate() == 0);
            for (int n = 1; n <= 4; ++n) {
                twice({x});
                CHECK(twice.hit_rate() == (n - 1.0) / n);
            }
            for (int n = 0; n < 4; ++n) twice({y}), twice.plan({x});
            CHECK(twice.hit_rate() == 6.0 / 8);
            twice.cache_size = 1;
            twice.plan({x}); // the plan for y goes
            twice({x});
            CHECK(twice.hit_rate() == 7.0 / 9);
            twice({y});
            CHECK(twice.hit_rate() == 7.0 / 10);
            twice.cache_size = 0;
            CHECK_ERROR("expected a cache_size of at least 1, got 0", twice({y}));
        }
    }

    TEST_CASE("accelerate: a prediction of many images computes a few at a time, with the same bits") {
        const Tensor filters = random({16, 3, 3, 4}, 1), weights = random({10, 16 * 256}, 2);
        const Tensor gamma = random({16}, 3), beta = random({16}, 4);
        bool mixes = false, returns_pooled = true;
        Accelerated predict([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            Tensor x = conv2d(in[0], filters, {}, {.pad = 1});
            if (mixes) x = batch_norm(x, run(op::channel_stats, {x})[0], gamma, beta, {});
            const Tensor pooled = max_pool2d(x, {4, 4});
            const Tensor y = linear(pooled.reshape({x.extent(0), 16 * 256}), weights);
            return {y, returns_pooled ? pooled : y};
        });
        const auto check = [&](int64_t n) {
            const Tensor x = random({n, 64, 64, 4}, 5);
            const auto results = predict({x});
            const std::vector<Tensor> got{results[0].clone(), results[1].clone()};
            predict.enabled = false;
            const auto plain = predict({x});
            predict.enabled = true;
            for (size_t i = 0; i < 2; ++i)
                CHECK((mixes ? differs(got[i], plain[i], kConvolved) == "" // fused ops round
                             : same_bits(got[i], plain[i])));
            return predict.plan({x}).steps().size();
        };
        const size_t steps = check(4);
        CHECK(check(72) > steps); // 23.6 MB are read and written: chunks of 12 and 24 images
        const Tensor few = random({4, 64, 64, 4}, 6), many = random({72, 64, 64, 4}, 6);
        CHECK(predict.plan({many}).arena_bytes() < 72 * predict.plan({few}).arena_bytes() / 8);
        for (const bool keeps : {false, true}) { // what was prepared from the old values must not count
            predict.clear_cache();
            predict.keep_prepared = keeps;
            for (int i = 0; i < 2; ++i) {
                check(72);
                if (keeps)
                    filters.fill(0.5 * i);
                else
                    filters.data<float>()[i] = 9; // version() does not count it
            }
        }
        returns_pooled = false; // then only linear(), which is in no chunk, reads what the chunks have pooled
        predict.clear_cache();
        CHECK(check(72) > check(4));
        mixes = true; // the statistics are those of all images
        predict.clear_cache();
        CHECK(check(72) == check(4));
    }

    TEST_CASE("accelerate: a call during another is refused") {
        const Tensor x = Tensor::zeros({4});
        Accelerated twice(
            [](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {add(in[0], in[0])}; });
        std::vector<std::string> errors;
        twice.after_step = [&](const Plan&, size_t) {
            std::thread([&] {
                errors = {error_of([&] { twice({x}); }), error_of([&] { twice.plan({x}); }),
                          error_of([&] { twice.clear_cache(); })};
            }).join();
            return false;
        };
        CHECK(differs(twice({x})[0], x, kRounded) == "");
        for (const std::string& error : errors)
            CHECK(error == "Accelerated: expected one call at a time, got one during another; give each thread its own "
                           "Accelerated, or lock a mutex around each use");
        CHECK(errors.size() == 3);
        CHECK_NOTHROW(twice({x}));
    }

    TEST_CASE("accelerate: under a tape the plain function is recorded") {
        Accelerated square([](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            return {mse_loss(in[0], Tensor::constant(in[0].shape(), 0))};
        });
        const Tensor x = floats({1}, 3), dx = Tensor::zeros({1});
        Tape tape;
        tape.gradients(square({x})[0], {{x}}, {{dx}});
        CHECK(dx.data<float>()[0] == doctest::Approx(6));
    }

    TEST_CASE("accelerate: in a dry run and in a traced function, the plain function runs") {
        Accelerated twice(
            [](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {add(in[0], in[0])}; });
        Accelerated thrice([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            return {add(in[0], twice({in[0]})[0])};
        });
        const Tensor x = floats({2}, 1, 2);
        {
            const DryRun dry;
            CHECK(twice({x})[0].shape() == Shape{2});
        }
        CHECK(differs(thrice({x})[0], floats({2}, 3, 6), kRounded) == "");
        CHECK(thrice.plan({x}).steps().size() == 2);
        CHECK(twice.occupancy() == 0);
        CHECK(differs(twice({x})[0], floats({2}, 2, 4), kRounded) == "");
    }

    TEST_CASE("accelerate: a number that varies is refused while a function is traced") {
        const Tensor p = Tensor::zeros({4});
        Accelerated updating([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            sgdm_update(p, p, in[0], {});
            return {relu(in[0])};
        });
        CHECK_ERROR("sgdm_update: the learning rate of a traced function has to", updating({p}));
    }

    TEST_CASE("accelerate: a value that the function writes only in part is refused, unless it is a constant") {
        const auto error = [](const std::function<Tensor()>& make, std::initializer_list<int64_t> parts) {
            Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
                const Tensor all = make();
                for (const int64_t begin : parts) run(op::scale, {in[0]}, ScaleOp{1}, {all.slice(begin, {4})});
                return {scale(all, 1)};
            });
            return error_of([&] { step({floats({4}, 1, 2, 3, 4)}); });
        };
        const auto zeros = [] { return Tensor::zeros({8}); };
        CHECK(contains(error(zeros, {0}), "which hold nothing while traced"));
        CHECK(contains(error(zeros, {4}), "which hold nothing while traced"));
        CHECK(error(zeros, {4, 0}) == "");
        CHECK(error([] { return Tensor::constant({8}, 0); }, {0}) == "");
    }

    TEST_CASE("accelerate: a function must not change a constant that it makes, since replays would change it again") {
        Accelerated total([](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            const Tensor so_far = Tensor::constant({4}, 0);
            run(op::add, {so_far, in[0]}, {}, {so_far});
            return {so_far};
        });
        CHECK_ERROR("make it before the function", total({Tensor::constant({4}, 1)}));
    }

    TEST_CASE("accelerate: an operand with a value for each row of an image is no batch of images") {
        const Tensor filters = random({16, 3, 3, 4}, 1);
        Accelerated predict([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            return {max_pool2d(relu(conv2d(in[0] - in[1], filters, {}, {.pad = 1})), {.window = 4, .stride = 4})};
        });
        const Tensor x = random({64, 64, 64, 4}, 2), of_pixels = random({64, 64, 4}, 3); // as many rows as images
        const Tensor got = predict({x, of_pixels})[0].clone();
        predict.enabled = false;
        CHECK(same_bits(got, predict({x, of_pixels})[0]));
    }

    TEST_CASE("accelerate: an undefined input is refused, also where a plan takes a number") {
        Accelerated scaled(
            [](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {scale(in[0], in[1])}; });
        const Tensor x = floats({2}, 1, 2);
        CHECK(list(scaled({x, floats({}, 3)})[0]) == Floats{3, 6});
        CHECK_ERROR("expected defined inputs, got an undefined one", scaled({x, Tensor()}));
    }
}
