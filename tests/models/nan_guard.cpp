// Tests a loss or gradients that are not finite: the error, the values that are restored, and the limits.
#include "core/atomic_file.h"
#include "core/checkpoint.h"
#include "core/ops.h"
#include "models/run/training_run.h"
#include "tests/allocations.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <cstring>
#include <doctest/doctest.h>
#include <limits>

namespace rg {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// A network of two layers that computes nothing. Its gradients and statistics are functions of the step.
struct Toy {
    Parameters parameters;
    OptimizerState optimizer;
    const Tensor rate = Tensor::constant({1}, 0.1), loss = Tensor::zeros({}),
                 non_finite_at = Tensor::zeros({}, DType::i32);
    Toy() {
        parameters.add("conv.weight", {4, 3, 3, 5}, Parameters::Entry::Start::random);
        parameters.add_state("bn", 3);
        parameters.add_state("bn2", 2);
        parameters.add("fc.bias", {7}, Parameters::Entry::Start::zeros);
        parameters.allocate(1, Init::he);
        optimizer = {{"optimizer.velocity", Tensor::zeros(parameters.values().shape())},
                     {"optimizer.average", Tensor::zeros(parameters.all().shape())}};
    }
    const Parameters::Entry& conv() const { return parameters.entries()[0]; }
    const Parameters::Entry& fc() const { return parameters.entries()[1]; }
    /// Sets the values that the forward and backward passes of a step would set.
    void compute(int64_t step) {
        for (const auto& e : parameters.entries())
            for (int64_t i = 0; i < e.gradient.numel(); ++i)
                e.gradient.data<float>()[i] = float((i * 7 + step * 3) % 11) / 11;
        for (const auto& s : parameters.states())
            for (float& v : s.running.span<float>()) v = v * 0.5f + float(step);
        ++parameters.batches_tracked;
    }
    /// Returns the input of handle_non_finite().
    const Tensor& update(double mean_loss) {
        loss.fill(mean_loss);
        first_non_finite(parameters.gradients(), loss, non_finite_at);
        sgdm_update(parameters.values(), optimizer[0].value, parameters.gradients(), {.momentum = 0.9f}, rate,
                    {non_finite_at});
        return non_finite_at;
    }
    /// Returns all values that training changes, as bytes.
    std::string bytes() const {
        std::string all = cat(parameters.batches_tracked, " ");
        for (const Tensor& t : {parameters.values(), parameters.state(), optimizer[0].value})
            all.append(reinterpret_cast<const char*>(t.bytes_data()), size_t(t.bytes()));
        return all;
    }
};

/// A network with the guard of its steps.
struct GuardedToy {
    explicit GuardedToy(OnNan policy) : guard(policy, toy.parameters) {}
    /// Returns true if the step is applied.
    bool handle(double loss, int64_t step = 12) {
        warning = guard.handle_non_finite(step, loss, toy.update(loss));
        return warning.empty();
    }
    Toy toy;
    std::string warning;
    NanGuard guard;
};

/// The observer of a training that prints nothing.
struct Quiet final : TrainingObserver {
    bool standalone() const override { return false; }
};

/// Trains 12 steps, 4 per epoch, with a checkpoint every 3 steps. before(toy, step) can plant a fault.
std::string train(const std::string& folder, OnNan policy, const std::function<void(Toy&, int64_t)>& before) {
    TrainingRunOptions settings;
    settings.runs = folder, settings.name = "run";
    settings.checkpoint_every = 3, settings.keep = 100;
    settings.on_nan = policy;
    Options options("toy", "");
    par::ThreadWorld world(1);
    par::Group group(world.link(0));
    Quiet observer;
    Toy toy;
    const Task task = classification();
    TrainingRun run(settings, options, group, observer);
    const int code = run.log.supervise([&] {
        run.restore(toy.parameters, toy.optimizer, task);
        run.begin({.steps = 12, .steps_per_epoch = 4}, {});
        while (run.goes_on()) {
            run.begin_epoch(true);
            while (run.epoch_goes_on()) {
                const int64_t step = run.log.position.step + 1;
                toy.compute(step);
                if (before) before(toy, step);
                const double loss = 1.0 / double(step);
                const bool last = run.log.position.batch == 3;
                const bool skipped = run.handle_non_finite(loss, toy.update(loss));
                run.end_step({.images = 10, .loss = loss, .lr = 0.1, .sums = {5}, .last = last, .skipped = skipped});
            }
            if (run.epoch_is_complete()) run.end_epoch({.metrics = {0.5}});
            run.save_model(), run.saver.save_checkpoint();
        }
        return run.end();
    });
    CHECK(code == 0);
    return toy.bytes();
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("on-nan stop: names the first non-finite tensor, wherever the value is") {
        GuardedToy g(OnNan::stop);
        g.toy.compute(1);
        for (const auto& e : g.toy.parameters.entries())
            for (const int64_t i : {int64_t{0}, e.gradient.numel() / 2, e.gradient.numel() - 1})
                for (const float bad : {kNan, kInf, -kInf})
                    for (const bool gradient : {true, false}) {
                        float& value = (gradient ? e.gradient : e.value).data<float>()[i];
                        const float before = std::exchange(value, bad);
                        const std::string error = error_of([&] { g.handle(gradient ? 0.5 : double(kNan)); });
                        CAPTURE(error);
                        CHECK(contains(error, "step 12: "));
                        CHECK(contains(error, cat("got ", bad, gradient ? " in gradient of " : " in parameter ", e.name,
                                                  " (value ", i, " of ", e.shape.numel(), ")")));
                        value = before;
                        CHECK(g.handle(0.5));
                    }
        for (const double loss : {double(kNan), double(kInf)})
            CHECK_ERROR("as the loss, with finite gradients", g.handle(loss));
        // A forward pass that goes bad takes all gradients with it: the first layer that saw it is named.
        for (const auto& e : g.toy.parameters.entries()) e.gradient.fill(double(kNan));
        const auto statistics = [&](size_t i) { return g.toy.parameters.states()[i].running.data<float>(); };
        CHECK_ERROR("got nan in gradient of fc.bias", g.handle(kNan)); // statistics are finite
        statistics(1)[0] = kNan;
        CHECK_ERROR("got nan in bn2.running_mean, from the activations before it", g.handle(kNan));
        statistics(0)[5] = kInf;
        CHECK_ERROR("got inf in bn.running_var, from the activations before it", g.handle(kInf));
        CHECK_ERROR("got nan in gradient of fc.bias", g.handle(0.5)); // the loss is finite
        statistics(0)[5] = statistics(1)[0] = 1;
        g.toy.compute(1);
        // Backward reaches the last layer first. A parameter is older than any gradient.
        g.toy.conv().gradient.data<float>()[0] = g.toy.fc().gradient.data<float>()[6] = kNan;
        CHECK_ERROR("gradient of fc.bias (value 6", g.handle(kNan));
        g.toy.conv().value.data<float>()[1] = kInf;
        CHECK_ERROR("inf in parameter conv.weight (value 1", g.handle(kNan));
        CHECK(g.warning.empty());
    }

    TEST_CASE("on-nan: saves only finite values, running statistics included") {
        Toy toy;
        CHECK_NOTHROW(check_finite(toy.parameters, toy.optimizer));
        const Tensor running = toy.parameters.states()[0].running;
        float* const average = toy.optimizer[1].value.data<float>();
        const std::tuple<float*, const char*> places[] = {
            {toy.conv().value.data<float>() + 8, "parameter conv.weight (value 8"},
            {toy.optimizer[0].value.data<float>() + toy.fc().offset, "optimizer.velocity of fc.bias (value 0"},
            {average + toy.fc().offset, "optimizer.average of fc.bias (value 0"},
            {average + toy.parameters.values().numel() + toy.parameters.states()[1].offset + 2,
             "optimizer.average of bn2.running_var"},
            {running.data<float>(), "bn.running_mean"},
            {running.data<float>() + 5, "bn.running_var"}};
        for (const auto& [place, name] : places) {
            const float before = std::exchange(*place, kInf);
            CHECK_ERROR(std::string("inf in ") + name, check_finite(toy.parameters, toy.optimizer));
            *place = before;
        }
    }

    TEST_CASE("on-nan skip: a skipped step changes nothing, and the fourth in a row is an error") {
        GuardedToy g(OnNan::skip);
        int64_t step = 5;
        g.toy.compute(step);
        REQUIRE(g.handle(0.5, step++));
        for (int round = 0; round < 4; ++round) {
            const std::string before = g.toy.bytes();
            for (int bad = 0; bad < 3; ++bad, ++step) {
                g.toy.compute(step);
                CHECK(g.toy.bytes() != before);
                CHECK_FALSE(g.handle(kNan, step));
                CHECK(contains(g.warning, cat("step ", step, ": expected finite values, got nan as the loss")));
                CHECK(g.toy.bytes() == before);
            }
            if (round == 3) break;
            g.toy.compute(step); // a good one between
            CHECK(g.handle(0.5, step++));
        }
        CHECK_ERROR("after 3 skipped steps in a row", g.handle(kNan));
    }

    TEST_CASE("on-nan: the check of a step allocates nothing") {
        for (const OnNan policy : {OnNan::stop, OnNan::skip}) {
            GuardedToy g(policy);
            g.toy.compute(1);
            g.handle(0.5);
            const long before = allocations();
            for (int i = 0; i < 3; ++i) g.handle(0.5);
            CHECK(allocations() == before);
        }
    }

    TEST_CASE("on-nan: a run that ends with an error keeps its last good checkpoint and model") {
        for (const OnNan policy : {OnNan::stop, OnNan::skip}) {
            TempDir whole, dir;
            train(whole.path(), OnNan::stop, {});
            const std::string error = error_of([&] {
                train(dir.path(), policy, [](Toy& toy, int64_t step) {
                    if (step >= 8) toy.fc().gradient.data<float>()[0] = kNan;
                });
            });
            CAPTURE(error);
            CHECK(contains(error, "got nan in gradient of fc.bias (value 0 of 7)"));
            const Json page = read_report(dir / "run/report.html");
            const Json& run = page.at("runs").as_array().at(0);
            CHECK(run.at("state").as_string() == "failed");
            CHECK(run.at("note").as_string() == error);
            const size_t good_steps = policy == OnNan::skip ? 10 : 7;
            CHECK(run.at("metrics").as_array().size() == good_steps + good_steps / 4); // with epoch lines
            const LoadedCheckpoint last = load_latest_checkpoint(dir / "run/checkpoint");
            CHECK(last.warnings.empty());
            CHECK(last.step == (policy == OnNan::skip ? 9 : 6)); // skips the steps 8, 9 and 10
            const LoadedCheckpoint good = load_checkpoint(whole / "run/checkpoint/step-00000006.safetensors");
            const Tensor &a = *last.state.find("conv.weight"), &b = *good.state.find("conv.weight");
            if (policy != OnNan::skip) CHECK(std::memcmp(a.bytes_data(), b.bytes_data(), size_t(a.bytes())) == 0);
        }
    }

    TEST_CASE("on-nan: does not save an update that overflows") {
        TempDir dir;
        const auto overflow = [](Toy& toy, int64_t step) {
            if (step == 9) toy.conv().value.data<float>()[4] = 3.3e38f, toy.conv().gradient.data<float>()[4] = -3e38f;
        };
        const std::string error = error_of([&] { train(dir.path(), OnNan::stop, overflow); });
        CAPTURE(error);
        CHECK(contains(error, "save: expected finite values, got inf in parameter conv.weight (value 4 of 180)"));
        CHECK(load_latest_checkpoint(dir / "run/checkpoint").step == 8);
    }
}

} // namespace rg
