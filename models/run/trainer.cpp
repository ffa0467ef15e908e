// See trainer.h.
#include "ringgrad/models/run/trainer.h"

#include "ringgrad/core/tape.h"
#include "ringgrad/models/run/memory.h"

#include <array>

namespace rg {
namespace {

/// Returns true if the gradients should be summed during backward: with several nodes, and without --sync-bn. Within a
/// node the sum is too fast to be worth a thread. Between nodes, overlap hides the sum behind backward. With --sync-bn,
/// backward itself exchanges batch statistics, so another thread must not use the group.
bool can_overlap(const par::Group& group) { return group.local_size() < group.size() && !context().sync; }

} // namespace

Trainer::Trainer(TrainingRun& run, const Machine& machine, Parameters& parameters, Optimizer optimizer, ImageFeed& feed,
                 const Forward& forward)
    : run(run),
      parameters(parameters),
      optimizer(std::move(optimizer)),
      feed(feed),
      forward(forward),
      train_step([this](std::span<const Tensor> in, bool) { return forward_backward(in); },
                 machine.options().accelerate),
      gradient_sum(run.group(), parameters, machine.options().allreduce, can_overlap(run.group()),
                   machine.options().wire) {
    RG_CHECK(!context().sync || run.group().most_workers() == 1, "--sync-bn: expected one worker per rank, got ",
             run.group().most_workers(), "; the workers of a rank compute one after another, so they cannot exchange ",
             "batch statistics");
    train_step.after_step = [this](const Plan& plan, size_t step) { return gradient_sum.after_step(plan, step); };
    run.restore_parameters(parameters, this->optimizer.state());
    if (!run.resumed()) this->optimizer.start_averages(); // --init may have changed the parameters
    parameters.begin_step(run.position().step + 1);       // for plan()
}

Trainer::Seconds Trainer::train(const Schedule& schedule, const std::function<Score()>& test) {
    Seconds seconds;
    while (run.goes_on()) {
        seconds.train += seconds_of([&] { train_epoch(schedule, test); });
        if (run.epoch_is_complete()) {
            Score score;
            seconds.test += seconds_of([&] { score = this->score(test); });
            run.end_epoch(score);
        }
        optimizer.exchange_average();
        run.save_model();
        optimizer.exchange_average();
        run.save_checkpoint();
    }
    return seconds;
}

/// Runs `test` with the average of the weights, if there is one, and saves the model if it is the best so far.
Score Trainer::score(const std::function<Score()>& test) {
    optimizer.exchange_average();
    const Score score = test();
    run.keep_if_best(score);
    optimizer.exchange_average();
    return score;
}

void Trainer::train_epoch(const Schedule& schedule, const std::function<Score()>& test) {
    feed.loader.start(run.position().epoch, run.position().batch);
    optimizer.begin_epoch(run.position().epoch);
    run.begin_epoch(feed.loader.has_next());
    while (run.epoch_goes_on()) {
        StepResult result = step(schedule.rate_at(run.epochs()));
        if (result.verdict == Verdict::applied && run.test_is_due())
            run.leave_out(seconds_of([&] { result.test = score(test); }));
        run.end_step(result);
    }
}

/// Collective. Runs forward and backward for each of this rank's workers, the sums over all workers and the update, and
/// handles values that are not finite. With a single worker in all, the CPU waits for its device only once per step.
StepResult Trainer::step(double lr) {
    par::Group& group = run.group();
    SyncGroup* const sync = context().sync;
    group.set_step(run.position().step + 1);
    optimizer.set(lr, run.position().step + 1);
    StepSums step_sums(group, parameters);
    // First of one worker, after step_sums.finish() of all workers: loss (times the worker's share), number of correct
    // predictions, number of stop requests, number of workers without further data.
    std::array<double, 4> sums;
    int64_t global_size = 0, images = 0; // number of images in the mini-batch, and of those that this rank computes
    Tensor non_finite_at;
    for (int workers_left = group.workers(group.rank()); workers_left > 0; --workers_left) {
        const data::Batch batch = feed.loader.next(); // the worker's part, which may be empty
        global_size = batch.global_size;
        const double share = double(batch.size) / double(global_size);
        if (sync) sync->samples = global_size, sync->fraction = share;
        images += batch.size;
        run.phases.lap(PhaseClock::data);

        parameters.begin_step(run.position().step + 1, batch.first);
        const bool last = workers_left == 1;
        if (last) gradient_sum.begin(share);
        const std::span<const Tensor> results = train_step(feed.inputs(batch), true);
        run.phases.lap(PhaseClock::compute);
        // Finish the sums before to_host(). It blocks until the device has finished the step, and no bucket would be
        // summed during this time.
        last ? gradient_sum.finish() : gradient_sum.keep(share);
        std::array downloaded{results[0], results[1], optimizer.non_finite_at()};
        to_host(downloaded);
        const auto& [scores, loss, own_non_finite_at] = downloaded;
        non_finite_at = own_non_finite_at;
        run.phases.lap(parameters.gradients().device() ? PhaseClock::compute : PhaseClock::sum);
        sums = {share > 0 ? share * double(loss.data<float>()[0]) : 0.0, double(count_correct(scores, batch.labels)),
                double(run.has_stop_request()), double(!feed.loader.has_next())};
        step_sums.add(share, sums);
    }
    run.phases.count_step(images);
    step_sums.finish(sums);
    ++parameters.batches_tracked;
    run.phases.lap(PhaseClock::sum);

    if (!updates_in_step()) {
        loss_of_all.fill(sums[0]), optimizer.update(loss_of_all);
        non_finite_at = optimizer.non_finite_at();
    }
    const Verdict verdict = run.handle_non_finite(sums[0], non_finite_at);
    if (verdict == Verdict::applied) optimizer.end_step(run.position().step + 1, run.length().steps);
    run.phases.lap(PhaseClock::update);
    return {global_size, sums[0], sums[1], lr, sums[2] > 0, sums[3] > 0, verdict};
}

std::vector<Tensor> Trainer::forward_backward(std::span<const Tensor> inputs) {
    Tape tape;
    const auto [scores, loss] = forward(feed.batch(inputs));
    tape.gradients(loss, parameters);
    if (updates_in_step()) optimizer.update(loss);
    return {scores, loss};
}

Score Evaluation::score(const std::vector<data::WeightedView>& views) {
    Score score = evaluate(
        run.group(), range, set, normalise,
        [&](const Tensor& x) {
            run.pulse();
            return predict({x})[0];
        },
        views);
    run.report("confusion", report_confusion(set, score.predictions));
    return score;
}

const Plan& plan_ahead(Trainer& trainer, Evaluation& test, const std::string& advice) {
    const auto plan = [&]() -> const Plan& {
        for (const int64_t n : {std::min(kEvaluationBatch, test.range.size()), test.range.size() % kEvaluationBatch})
            if (test.predict.enabled && n > 0)
                test.predict.plan({Tensor::on_host({n, test.set.height, test.set.width, test.set.channels})});
        return trainer.plan();
    };
    if (!trainer.parameters.gradients().device())
        check_planned_memory(
            trainer.run.group(), {&trainer.train_step, &test.predict},
            checkpoint_memory(trainer.parameters.values().bytes(), std::ssize(trainer.optimizer.state())), plan,
            advice);
    return plan();
}

} // namespace rg
