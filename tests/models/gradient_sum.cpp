// Tests sums of gradient buckets during backward: they equal sums after it, and an error ends all ranks.
#include "core/rng.h"
#include "models/nets/cifar_net.h"
#include "models/run/gradient_sum.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"
#include "tests/training_step.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace rg;

namespace {

/// Runs three steps on this rank's images, and returns the gradients of the whole mini-batch. Adds to `starts` how often
/// sums of buckets started.
std::vector<float> gradients_of(par::Group& group, bool overlap, bool fail, int* starts = nullptr) {
    CifarNet net({.width = 32, .depth = 2}); // has several gradient buckets
    Parameters& parameters = net.parameters;
    GradientSum sum(group, parameters, par::Algorithm::automatic, overlap); // moves the gradients
    Accelerated step = training_step(net);
    step.after_step = [&](const Plan& plan, size_t s) {
        RG_CHECK(!fail || s + 2 < plan.steps().size(), "a rank that fails");
        const bool started = sum.after_step(plan, s);
        if (starts) *starts += started;
        return started;
    };
    const Tensor x = Tensor::empty({1, 32, 32, 3}), label = Tensor::zeros({1}, DType::i32);
    Rng random(uint64_t(group.rank()), Purpose::test);
    for (float& v : x.span<float>()) v = random.normal();
    for (int i = 0; i < 3; ++i) {
        sum.begin(group.rank() == 0 ? 0.25 : 0.75);
        step({x, label}, true);
        sum.finish();
    }
    const std::span<const float> all = parameters.gradients().span<float>();
    return {all.begin(), all.end()};
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("gradient sum: gives the same bits on every rank, during backward or after it") {
        std::vector<float> results[2][2];
        int starts = 0;
        for (const bool overlap : {false, true})
            par::run_groups(2, [&](par::Group& group) {
                results[overlap][group.rank()] =
                    gradients_of(group, overlap, false, overlap && group.rank() == 0 ? &starts : nullptr);
            });
        CHECK(results[0][0] == results[0][1]);
        CHECK(results[1][0] == results[0][0]); // a sum of two values does not depend on their order
        CHECK(results[1][1] == results[0][0]);
        CHECK(starts >= 9); // several in each step
    }

    TEST_CASE("gradient sum: weighs the gradients of each worker by its share, in every step") {
        for (const bool overlap : {false, true})
            par::run_groups(2, [&](par::Group& group) {
                group.set_ordered_sums();
                group.set_workers({2, 1});
                Parameters parameters;
                parameters.add("a", {300'000}, Parameters::Entry::Start::zeros);
                parameters.allocate(1, Init::he);
                GradientSum sum(group, parameters, par::Algorithm::automatic, overlap);
                for (int step = 0; step < 2; ++step) {
                    if (group.rank() == 0) parameters.gradients().fill(16), sum.add_worker(0.125);
                    sum.begin(group.rank() == 0 ? 0.25 : 0.625);
                    parameters.gradients().fill(group.rank() == 0 ? 8 : 4);
                    sum.finish();
                    // 16 / 8 + 8 / 4 + 4 * 5 / 8: exact, as are all parts
                    CHECK(std::ranges::count(parameters.gradients().span<float>(), 6.5f) == 300'000);
                }
            });
    }

    TEST_CASE("gradient sum: refuses shares that do not add up to 1, as of ranks that all take whole mini-batches") {
        std::vector<std::string> errors(2);
        par::run_groups(2, [&](par::Group& group) {
            Parameters parameters;
            parameters.add("a", {3}, Parameters::Entry::Start::zeros);
            parameters.allocate(1, Init::he);
            GradientSum sum(group, parameters, par::Algorithm::automatic, false);
            errors[size_t(group.rank())] = error_of([&] { sum.begin(1); });
        });
        for (const std::string& error : errors) CHECK(contains(error, "add up to 1, got 2; give each rank its part"));
    }

    TEST_CASE("gradient sum: refuses a sum without begin(), other types, and batch statistics of no mini-batch") {
        par::run_groups(2, [&](par::Group& group) {
            Parameters parameters, doubles;
            for (Parameters* const p : {&parameters, &doubles}) p->add("a", {3}, Parameters::Entry::Start::zeros);
            parameters.allocate(1, Init::he), doubles.allocate(1, Init::he, DType::f64);
            CHECK_ERROR("expected gradients of type f32, got f64", GradientSum(group, doubles, {}, false));
            GradientSum sum(group, parameters, {}, false);
            CHECK_ERROR("expected begin() before each finish()", sum.finish());
            sum.begin(0.5), sum.finish();
            CHECK_ERROR("expected begin() before each finish()", sum.finish());
            GroupSync sync(group);
            CHECK_ERROR("set them before each step", sync.sum({}));
        });
    }

    TEST_CASE("gradient sum: a rank that fails during backward ends all ranks") {
        CHECK_ERROR("a rank that fails", par::run_threads(2, [](par::Link& link) {
                        par::Group group(link);
                        gradients_of(group, true, link.rank() == 1);
                    }));
    }
}
