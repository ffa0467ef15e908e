// See trainer.h.
#include "ringgrad/models/run/trainer.h"

#include "ringgrad/core/ops.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/models/run/memory.h"

#include <algorithm>

namespace rg {
namespace {

/// Returns true if the gradients should be summed during backward: with several nodes, and without --sync-bn. Within a
/// node the sum is too fast to be worth a thread. Between nodes, overlap hides the sum behind backward. With --sync-bn,
/// backward itself exchanges batch statistics, so another thread must not use the group.
bool can_overlap(const par::Group& group) { return group.local_size() < group.size() && !context().sync; }

/// Returns the network's outputs in f32. If the task needs the images, and a device makes them, these follow.
std::vector<Tensor> outputs_of(const Forward& forward, const Task& task, const data::Batch& batch, Mode mode) {
    std::vector<Tensor> outputs = forward(batch, mode);
    for (Tensor& output : outputs) output = cast(output, DType::f32);
    if (task.needs_images && context().device) outputs.push_back(cast(batch.x, DType::f32));
    return outputs;
}

/// Moves the images that outputs_of() may have added from the outputs to the batch.
void take_images(std::vector<Tensor>& outputs, data::Batch& batch, const Task& task) {
    if (!task.needs_images || batch.x.defined()) return;
    batch.x = outputs.back();
    outputs.pop_back();
}

} // namespace

Trainer::Trainer(TrainingRun& run, const Machine& machine, Parameters& parameters, Optimizer optimizer, ImageFeed& feed,
                 const Task& task, const Forward& forward)
    : run(run),
      parameters(parameters),
      optimizer(std::move(optimizer)),
      feed(feed),
      task(task),
      forward(forward),
      train_step([this](std::span<const Tensor> in, bool) { return forward_backward(in); },
                 machine.options().accelerate),
      gradient_sum(run.group(), parameters, machine.options().allreduce, can_overlap(run.group()),
                   machine.options().wire) {
    RG_CHECK(!context().sync || run.group().most_workers() == 1, "--sync-bn: expected one worker per rank, got ",
             run.group().most_workers(), "; the workers of a rank compute one after another, so they cannot exchange ",
             "batch statistics");
    train_step.after_step = [this](const Plan& plan, size_t step) { return gradient_sum.after_step(plan, step); };
    run.restore_parameters(parameters, this->optimizer.state(), task);
    if (!run.resumed()) this->optimizer.start_averages(); // --init may have changed the parameters
    parameters.begin_step(run.position().step + 1);       // for plan(), as the next line
    this->optimizer.set(0, run.position().step + 1);
}

const Plan& Trainer::plan() {
    const std::vector<int64_t> sizes = feed.sizes();
    return train_step.plan(feed.inputs(sizes.empty() ? 0 : sizes.front()), true);
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
    // First of one worker, after step_sums.finish() of all workers: loss (times the worker's share), number of stop
    // requests, number of workers without further data, and the sums of the metrics.
    constexpr size_t kMetrics = 3;
    std::vector<double> sums(kMetrics + size_t(task.sums()));
    int64_t global_size = 0, images = 0; // number of images in the mini-batch, and of those that this rank computes
    Tensor non_finite_at;
    for (int workers_left = group.workers(group.rank()); workers_left > 0; --workers_left) {
        data::Batch batch = feed.loader.next(); // the worker's part, which may be empty
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
        std::vector<Tensor> outputs(results.begin(), results.end());
        outputs.push_back(optimizer.non_finite_at());
        to_host(outputs);
        non_finite_at = outputs.back(), outputs.pop_back();
        const Tensor loss = outputs.back();
        outputs.pop_back();
        run.phases.lap(parameters.gradients().device() ? PhaseClock::compute : PhaseClock::sum);
        std::fill(sums.begin(), sums.end(), 0.0);
        sums[0] = share > 0 ? share * double(loss.data<float>()[0]) : 0.0;
        sums[1] = double(run.has_stop_request()), sums[2] = double(!feed.loader.has_next());
        take_images(outputs, batch, task);
        if (batch.size > 0) task.add(outputs, batch, std::span(sums).subspan(kMetrics));
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
    return {global_size, sums[0], lr, {sums.begin() + kMetrics, sums.end()}, sums[1] > 0, sums[2] > 0, verdict};
}

std::vector<Tensor> Trainer::forward_backward(std::span<const Tensor> inputs) {
    Tape tape;
    const data::Batch batch = feed.batch(inputs);
    std::vector<Tensor> results = outputs_of(forward, task, batch, Mode::train);
    const Tensor loss = task.loss(results, batch, Mode::train);
    tape.gradients(loss, parameters);
    if (updates_in_step()) optimizer.update(loss);
    results.push_back(loss);
    return results;
}

Evaluation::Evaluation(par::Group& group, const Machine& machine, const data::ImageSet& set,
                       std::vector<data::Column> columns, const data::Normalise& normalise, const Task& task,
                       const Forward& forward)
    : predict([this, forward](std::span<const Tensor> in,
                              bool) { return outputs_of(forward, task_, feed_.batch(in), Mode::evaluate); },
              machine.options().accelerate),
      group_(group),
      set_(set),
      task_(task),
      feed_(set,
            {.batch_size = kBatch * machine.workers().count,
             .shuffle = data::Shuffle::never,
             .keep_partial = true,
             .augment = {.fill = data::Fill::reflect},
             .normalise = normalise,
             .views = true},
            machine, std::move(columns)) {}

Score Evaluation::score(const std::vector<data::WeightedView>& views, const std::function<void()>& pulse) {
    Context host = context(); // for the loss of the outputs, which are in host memory
    host.device = nullptr;
    Score score;
    for (const Detail& detail : task_.details) score.details.emplace_back(size_t(set_.count * detail.numbers));
    std::vector<double> sums(1 + size_t(task_.sums())); // loss, and the sums of the metrics
    for (feed_.loader.start(1); feed_.loader.has_next();) {
        if (pulse) pulse();
        const data::Batch indices = feed_.loader.next();
        if (indices.size == 0) continue;
        data::Batch batch;
        std::vector<Tensor> outputs;
        for (const auto& [view, weight] : views) {
            batch = feed_.with_view(indices, view);
            const std::span<const Tensor> results = predict(feed_.inputs(batch));
            std::vector<Tensor> of_view(results.begin(), results.end());
            to_host(of_view);
            take_images(of_view, batch, task_);
            for (size_t i = 0; i < of_view.size(); ++i) {
                if (outputs.size() <= i) outputs.push_back(Tensor::on_host(of_view[i].shape())), outputs[i].fill(0);
                for (int64_t k = 0; k < of_view[i].numel(); ++k)
                    outputs[i].data<float>()[k] += weight * of_view[i].data<float>()[k];
            }
        }
        const ContextScope scope(host);
        sums[0] += double(batch.size) * double(task_.loss(outputs, batch, Mode::evaluate).data<float>()[0]);
        task_.add(outputs, batch, std::span(sums).subspan(1));
        for (size_t d = 0; d < task_.details.size(); ++d) {
            const size_t numbers = size_t(task_.details[d].numbers);
            task_.details[d].keep(
                outputs, batch,
                std::span(score.details[d]).subspan(size_t(batch.first) * numbers, size_t(batch.size) * numbers));
        }
    }
    group_.allreduce_sum(std::span<double>(sums), "evaluation");
    // Each rank has set the numbers of its own images, and left those of the others at 0.
    for (std::vector<double>& detail : score.details) group_.allreduce_sum(std::span<double>(detail), "evaluation");
    score.loss = sums[0] / double(set_.count);
    score.metrics = task_.values(std::span(sums).subspan(1), double(set_.count));
    return score;
}

Json Evaluation::report(const Score& score) const {
    Json members = Json::object();
    for (size_t d = 0; d < task_.details.size(); ++d)
        members.set(task_.details[d].member, task_.details[d].report(set_, score.details[d]));
    return members;
}

void Evaluation::plan() {
    if (!predict.enabled) return;
    for (const int64_t n : feed_.sizes()) predict.plan(feed_.inputs(n));
}

const Plan& plan_ahead(Trainer& trainer, Evaluation& test, const std::string& advice) {
    const auto plan = [&]() -> const Plan& {
        test.plan();
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
