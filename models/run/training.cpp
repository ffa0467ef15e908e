// See training.h. From top to bottom: the options, the phases of train() before the first step, the epochs, the step,
// and the part of the step that is replayed.
//
// A loss or gradient that is not finite: the optimizer changes nothing, and Trainer::update_parameters() calls
// TrainingRun::handle_non_finite(), alike on all ranks. --on-nan stop, the default, ends the training with an error
// that names the tensor; saved files stay, and the report says "failed". --on-nan skip leaves the step out; the fourth
// in a row is such an error (nan_guard.h). A test loss that is not finite is no error, and never the best.
//
// A stop request (RunLog::has_stop_request(): a signal on any rank, or the file of the monitor's Stop on rank 0):
// Trainer::add_results() puts it into the sums of the step, so all ranks end after the same step, with a model and a
// checkpoint. Within a test, check_stop() ends all ranks before the same mini-batch, and a resumed run repeats the
// test. While data are loaded, nothing is saved. Exit status: 0 after Ctrl-C or Stop, 75 after another signal
// (signals.h).
//
// A failed rank: an error on one rank ends the job with that error and exit status 1 (par/session.h). If a rank is
// killed, mpiexec kills the others. If a rank hangs, the others name it and throw after RG_DEADLINE_S, 300 s
// (par/roll_call.h). Models, checkpoints and reports are old or new, never half written; --resume cuts metrics.jsonl to
// the checkpoint.
//
// Another metric: an override of ImageTraining::task() appends a Metric to Task::metrics (task.h), whose first one
// chooses the best model. Files, progress, report, monitor and sweeps take it from there.
#include "models/run/training.h"

#include "core/ops.h"
#include "core/profile.h"
#include "core/stop.h"
#include "core/tape.h"
#include "data/image_folder.h"
#include "models/nets/state_dict.h"
#include "models/run/evaluation.h"
#include "models/run/gradient_sum.h"
#include "models/run/memory.h"
#include "models/run/model_file.h"
#include "models/run/report.h"
#include "models/run/run_folder.h"

#include <algorithm>
#include <unordered_set>

namespace rg {
namespace {

constexpr const char* kMemoryAdvice = "make the network or --batch-size smaller, or start fewer ranks";

/// Returns true if a thread should sum gradients on CPUs during backward: with several nodes, and without --sync-bn.
/// Within a node the sum is too fast to be worth a thread. Between nodes, overlap hides the sum behind backward. With
/// --sync-bn, backward itself exchanges batch statistics, so another thread must not use the group.
bool can_overlap(const par::Group& group) { return group.local_size() < group.size() && !context().sync; }

/// Returns the indices of the images in `set` that also occur in `other`, compared by checksum.
std::vector<int64_t> duplicates_in(const data::ImageSet& set, const data::ImageSet& other) {
    std::unordered_set<uint64_t> known;
    for (int64_t i = 0; i < other.count; ++i) known.insert(other.stats(i).checksum);
    std::vector<int64_t> both;
    for (int64_t i = 0; i < set.count; ++i)
        if (known.contains(set.stats(i).checksum)) both.push_back(i);
    return both;
}

std::vector<std::string> names_of(const std::vector<TargetInfo>& targets) {
    std::vector<std::string> names;
    for (const TargetInfo& target : targets) names.push_back(target.name);
    return names;
}

} // namespace

void ImageTraining::declare(Options& o) {
    declare_data(o);
    o.group("Network");
    network_.declare(o);
    declare_training(o);
    o.add("test-views", &test_views_,
          "after the last epoch, test once more with the weighted mean scores of six views of each image: itself, two "
          "shifts, and their mirror images");
    compute_options.declare(o);
    o.add("sync-bn", &sync_bn_,
          "batch norm with statistics over all ranks; up to rounding, the result then does not depend on their number");
    o.add("plan-dump", &plan_dump_, "print the ops of the replayed step and the memory plan");
    o.add("profile", &profile_, "print a table of time per op at the end");
    run_options.declare(o);
}

data::TrainTest ImageTraining::load(par::Group& group, const std::function<void()>& poll_stop) const {
    data::LoadOptions options = data_options.load_options();
    options.labels = labels();
    data::TrainTest sets = load_data(group, data_options, options, poll_stop);
    const bool needs_labels =
        options.labels == data::Labels::numbers || options.labels == data::Labels::several_classes;
    RG_CHECK(!(needs_labels || takes_numbers) || !sets.train.target_names.empty(), "--data: expected a folder with ",
             needs_labels ? data::kLabelsFile : data::kAnglesFile, ", got ", sets.source);
    return sets;
}

std::vector<MetricInfo> ImageTraining::metrics(const data::ImageSet& images) const {
    const Task task = this->task(images);
    return {task.metrics.begin(), task.metrics.end()};
}

data::TrainTest ImageTraining::data_for(TrainingRun& run) {
    const TensorFile* const file = run.saver.initial_file();
    if (file) data_options.follow(*file);
    run.test_set_name = data_options.test_set_name();
    data::TrainTest data = checked_data(run.log.group, [&] { run.log.poll_stop(); });
    for (const std::string& warning : data.warnings) run.log.warn(warning);
    if (!file) return data;
    for (const auto& [rule, known, name] : {std::tuple(&data.held_out, &data_options.test_rule, "test"),
                                            {&data.validation, &data_options.validation_rule, "validation"}})
        if (!rule->limits.empty() && known->limits.empty())
            run.log.warn(cat("warning: ", file->source, " does not say which images it was trained on, so some of the ",
                             name, " images may be among them"));
        else if (rule == &data.validation && !rule->limits.empty() && !run.saver.resumed())
            run.log.warn(cat("validation images are those of ", file->source, ", whatever --validation says"));
    const auto was_class = [&](const std::string& name) { return data_options.test_rule.limits.contains(name); };
    const bool has_other_names = data_options.has_other_names(data);
    if (!data_options.test_rule.limits.empty() && !data_options.known_names.empty() && !has_other_names &&
        !data.held_out.limits.empty() && !std::ranges::all_of(data.train.classes, was_class))
        run.log.warn(cat("warning: ", file->source,
                         " has held out images by other classes, so some of those for tests may have trained it"));
    if (has_other_names && stored_classes(*file) == data.train.classes &&
        !(data.held_out.limits.empty() && data.validation.limits.empty()))
        run.log.warn(cat("warning: images have other names than in ", file->source, ", so some of those for tests may ",
                         "have trained it; give the same folder, not one around it or in it"));
    return data;
}

data::TrainTest ImageTraining::checked_data(par::Group& group, const std::function<void()>& poll_stop) const {
    data::TrainTest data = load(group, poll_stop);
    RG_CHECK(data.test.count > 0, "data: expected images for tests, got none in ", data.source);
    data_options.hold_out_validation(data);
    if (data.train.classes.size() == 1 && std::ranges::count(task(data.train).outputs.kinds, "classes") > 0)
        data.warnings.push_back(cat("warning: all images have one class, ", data.train.classes[0],
                                    ", so there is nothing to learn; give a folder per class"));
    for (const data::ImageSet* const set : {&data.test, &data.reserved})
        if (const std::vector<int64_t> both = duplicates_in(*set, data.train); !both.empty())
            data.warnings.push_back(cat("warning: ", both.size(), " of the ", set->count, " images for tests",
                                        set->names.empty() ? "" : ", such as " + set->names[size_t(both[0])] + ",",
                                        " are training images too, so the results are too good; remove the copies"));
    return data;
}

/// The network, optimizer and sums of a training, and its epochs, tests and steps.
class ImageTraining::Trainer {
public:
    /// Collective. Restores the parameters of a resumed run. All arguments must outlive this.
    Trainer(ImageTraining& training, TrainingRun& run, const Options& options, const Compute& compute,
            const data::TrainTest& data, const Columns& columns)
        : training_(training),
          run_(run),
          group_(run.log.group),
          compute_(compute),
          data_(data),
          columns_(columns),
          network_(new_network()),
          parameters_(network_->parameters),
          normalise_(chosen_normalise(options)),
          task_(standardised_task()),
          forward_([this](const data::Batch& batch, Mode mode) { return training_.forward(*network_, batch, mode); }),
          loader_options_(chosen_loader_options()),
          schedule_(training.full_schedule()),
          feed_(data.train, loader_options_, compute, columns.at(&data.train)),
          optimizer_(parameters_, training.optimizer),
          replayed_step_([this](std::span<const Tensor> in, bool) { return forward_backward(in); },
                         compute.options().accelerate),
          gradient_sum_(compute.group(), parameters_, compute.options().allreduce, can_overlap(compute.group()),
                        compute.options().wire),
          evaluation_(evaluation_of(data.test)) {
        if (training.test_views_) task_.check_test_views();
        const int most = compute.group().most_workers();
        RG_CHECK(!context().sync || most == 1, "--sync-bn: expected one worker per rank, got ", most,
                 "; the workers of a rank compute one after another, so they cannot exchange ", "batch statistics");
        replayed_step_.after_step = [this](const Plan& plan, size_t step) {
            return gradient_sum_.after_step(plan, step);
        };
        training.initialise(*network_, data.train, normalise_);
        run.restore(parameters_, optimizer_.state(), task_);
        if (!run.saver.resumed()) optimizer_.reset_averages(); // --init may have changed the parameters
        parameters_.begin_step(run.log.position.step + 1);     // for plan_ahead(), as the next line
        optimizer_.set(0, run.log.position.step + 1);
    }

    /// Collective. Makes the plans, and then the folder of a new run.
    void begin() {
        const Plan& plan = plan_ahead();
        if (const std::string& why = gradient_sum_.why(); !why.empty())
            gradient_sum_.is_direct() ? run_.log.note("gradients are summed by the GPUs: " + why)
                                      : run_.log.warn("gradients are summed in host memory, not by the GPUs: " + why);
        if (!feed_.placement().empty()) run_.log.note(feed_.placement());
        ModelOutputs outputs = task_.outputs;
        outputs.labels = training_.labels();
        if (training_.takes_numbers) outputs.input_numbers = data_.train.target_names;
        Metadata model = describe_model(training_.network_.describe(), data_.train, normalise_, outputs);
        model.emplace_back("trained_by", run_.log.options.program());
        const int64_t batches = feed_.batches();
        run_.begin({.steps = last_step(batches),
                    .steps_per_epoch = batches,
                    .summary = cat(compute_.text(), compute_.options().accelerate ? "" : ", op by op", "; ",
                                   data_.source, "; ", feed_.text(), "; --augment ", training_.augment, "; ",
                                   parameters_.count(), " parameters, ", planned_bytes() >> 20, " MiB planned")},
                   model);
        if (training_.plan_dump_) run_.log.note(plan.table());
        run_.log.set_in_report("network", report_network(parameters_, plan));
    }

    /// Collective. Trains from the run's position until TrainingRun::goes_on() is false. Tests after each complete
    /// epoch and as --validate-every asks. Saves the model and a checkpoint after each epoch, also after one that a
    /// stop request or the last step has cut short. Without any step, saves the model alone.
    void run_epochs() {
        if (run_.best_is_of_others()) test_best_again();
        // With --steps 0, or if a kill came between the last checkpoint and the model, no step is left.
        if (!run_.goes_on()) optimizer_.with_average([&] { run_.save_model(); });
        while (run_.goes_on()) {
            const RunPosition begin = run_.log.position;
            const int64_t batches_tracked = parameters_.batches_tracked;
            const std::vector<Tensor> before = training_.repeats_plain ? state() : std::vector<Tensor>();
            try {
                const double seconds = train_epoch();
                if (run_.epoch_is_complete()) {
                    run_.end_epoch(test());
                    if (!training_.repeats_plain || repeat_plain(begin, before, batches_tracked))
                        times_.train += seconds, times_.test += score_seconds_;
                }
            } catch (const Stopped&) {} // a stop request ended a test; a resumed run repeats it
            optimizer_.with_average([&] { run_.save_model(); });
            run_.saver.save_checkpoint();
        }
    }

    /// Collective. Runs the tests after the last epoch: with --test-views, and of the best model on images that no test
    /// has used before.
    void test_after_epochs() {
        const auto test_views = [&] {
            run_.log_test("six_views", run_.test_set_name,
                          score(data::mirrored_and_shifted(data_.test.input_size().width)));
        };
        try {
            if (training_.test_views_ && !run_.stopped()) optimizer_.with_average(test_views); // as in the model's file
            if (data_.reserved.count == 0) return;
            if (const std::optional<TensorFile> best = run_.model_to_test()) {
                load_state_dict(parameters_, *best);
                Evaluation last = evaluation_of(data_.reserved);
                const Score result = last.score({{}}, [&] { run_.check_stop(); });
                run_.log_test("best_model", "test", result);
                run_.write_tables(last.tables(result));
                run_.log.set_in_report("best_on_test", group_.rank() == 0 ? last.report_members(result) : Json());
            }
        } catch (const Stopped&) {} // a resumed run repeats these tests
    }

    Times times() const {
        Times times = times_;
        times.train_hits = replayed_step_.hit_rate(), times.test_hits = evaluation_.predict.hit_rate();
        return times;
    }

private:
    /// Returns a network for these images, with the learning rates of its layers. On CPUs, throws Error on all ranks if
    /// there is not enough memory.
    std::unique_ptr<Network> new_network() {
        const ImageTask task = task_of(data_.train, uint64_t(training_.data_options.seed));
        const auto make = [&] {
            std::unique_ptr<Network> network = training_.network_.make(task);
            RG_CHECK(network->parameters.values().defined(),
                     "network: expected allocated parameters, got none; call parameters.allocate() in its constructor");
            return network;
        };
        if (compute_.workers().gpus == 0) {
            const auto bytes_of_parameters = [&] {
                const DryRun without_memory;
                return make()->parameters.values().bytes();
            };
            check_parameter_memory(compute_.group(), bytes_of_parameters(), training_.optimizer.buffers(),
                                   kMemoryAdvice);
        }
        std::unique_ptr<Network> network = make();
        training_.set_rates(network->parameters);
        return network;
    }

    /// Returns the normalisation: in a resumed run that of the checkpoint, else that of --normalise. Without this
    /// option, returns that of the file of --init, if there is one, and says so in a note of the run.
    data::Normalise chosen_normalise(const Options& options) {
        const data::ImageSet& images = data_.train;
        const Normalisation kind = training_.normalisation;
        RG_CHECK(kind != Normalisation::imagenet || images.channels == 3,
                 "--normalise imagenet: expected images of 3 channels, got ", images.channels, "; omit the option");
        const data::Normalise chosen = kind == Normalisation::imagenet ? data::kImageNet
                                       : kind == Normalisation::none   ? data::Normalise()
                                                                       : training_.normalise(images);
        const TensorFile* const file = run_.saver.initial_file();
        const bool resumed = run_.saver.resumed();
        if (!file || (!resumed && options.was_given("normalise"))) return chosen;
        const bool known = file->find_text("normalise");
        if (known && stored_task(*file).channels != images.channels) return chosen;
        if (!resumed)
            run_.log.warn(known
                              ? cat("normalised as the images of ", file->source, "; --normalise auto: by these images")
                              : cat("warning: ", file->source, " does not say how its images were normalised; for ",
                                    "torchvision's weights give --normalise imagenet, else --normalise auto"));
        return stored_normalise(*file, chosen);
    }

    /// Throws Error if two lists of names have the same length, so that a layer could be loaded, but differ.
    void expect_names(const char* what, const TensorFile& file, const std::vector<std::string>& was,
                      const std::vector<std::string>& is) const {
        const bool resumed = run_.saver.resumed();
        for (size_t i = 0; i < is.size() && was.size() == is.size(); ++i)
            RG_CHECK(was[i] == is[i], resumed ? "--resume" : "--init", ": expected the ", what, " of ", file.source,
                     ", of which number ", i + 1, " is ", was[i], ", got ", is[i],
                     resumed ? "; give the same --data, or start a new run with --init and --init-skip"
                             : "; omit their layer by --init-skip, such as --init-skip fc");
    }

    /// Returns the task, with the statistics of the targets. The outputs that --init-skip leaves out begin anew, with
    /// statistics of these images.
    Task standardised_task() {
        Task task = training_.task(data_.train);
        const bool keeps = run_.saver.resumed() || training_.run_options.init_skip.empty();
        const TensorFile* const file = keeps ? run_.saver.initial_file() : nullptr;
        task.set_target_scales(data_.train, file);
        if (!file) return task;
        const ModelOutputs stored = stored_outputs(*file);
        expect_names("numbers or labels", *file, names_of(stored.targets), names_of(task.outputs.targets));
        if (training_.takes_numbers)
            expect_names("input numbers", *file, stored.input_numbers, data_.train.target_names);
        return task;
    }

    /// Replaces `--augment auto`. Then returns the options of the loader of the training set.
    data::LoaderOptions chosen_loader_options() {
        const std::vector<std::string>& kinds = task_.outputs.kinds;
        const auto keeps = [](const std::string& kind) { return kind == "classes" || kind == "reconstruction"; };
        const bool has_other_data = training_.takes_numbers || !columns_.at(&data_.train).empty() ||
                                    (kinds.empty() && !data_.train.target_names.empty());
        if (training_.augment == "auto")
            training_.augment = training_.default_augment(std::ranges::all_of(kinds, keeps) && !has_other_data);
        return training_.loader_options(data_.train, normalise_, task_);
    }

    /// Collective. Makes the plans for the largest training batch and, unless --no-accelerate is given, for all sizes
    /// of evaluation batches. So their memory is allocated before the first step. Returns the plan of a training step.
    /// On the CPU, throws on all ranks if there is not enough memory.
    const Plan& plan_ahead() {
        const auto plan = [&]() -> const Plan& {
            const std::vector<int64_t> sizes = feed_.sizes();
            const Plan& step = replayed_step_.plan(feed_.inputs(sizes.empty() ? 0 : sizes.front()), true);
            evaluation_.plan(); // after the step, whose memory is usually large enough
            return step;
        };
        if (compute_.workers().gpus == 0)
            check_planned_memory(
                group_, {&replayed_step_, &evaluation_.predict},
                feed_.bytes() + checkpoint_memory(group_, parameters_.values().bytes(), std::ssize(optimizer_.state())),
                plan, kMemoryAdvice);
        return plan();
    }

    /// Returns the bytes of all plans, of steps and tests.
    int64_t planned_bytes() const {
        return Accelerated::planned_bytes(std::array{&replayed_step_, &evaluation_.predict});
    }

    /// Returns the step at which --steps or --epochs ends the run. `batches` is the number of mini-batches in an epoch;
    /// a run that --new-data resumes has had others.
    int64_t last_step(int64_t batches) const {
        const RunPosition& p = run_.log.position;
        if (training_.steps >= 0) return training_.steps;
        return p.step + std::max<int64_t>(0, training_.epochs - p.epoch + 1) * batches - p.batch;
    }

    /// Returns the seconds of all steps.
    double train_epoch() {
        const RunPosition& position = run_.log.position;
        double seconds = 0;
        feed_.loader.start(position.epoch, position.batch);
        optimizer_.begin_epoch(position.epoch);
        run_.begin_epoch(feed_.loader.has_next());
        while (run_.epoch_goes_on())
            if (run_.test_is_due()) {
                run_.log_test_in_epoch(test());
            } else {
                StepResult result{};
                seconds += wall_seconds([&] { result = step(schedule_.rate_at(run_.epochs())); });
                run_.end_step(result);
            }
        return seconds;
    }

    /// Tests the network with the average of the weights, if there is one, and saves it if it is the best so far.
    Score test() {
        Score result;
        optimizer_.with_average([&] {
            result = score();
            run_.keep_if_best(result);
        });
        return result;
    }

    /// Collective. Tests the best model so far on the images of --new-data, with which the next epochs are tested.
    void test_best_again() {
        const Tensor before = parameters_.all().clone();
        const int64_t tracked = parameters_.batches_tracked;
        load_state_dict(parameters_, run_.saver.best_model());
        // A stop request waits, so that a checkpoint has the new data. The ranks keep in step.
        run_.replace_best(evaluation_.score({{}}, [&] { (void)group_.all(true, "test"); }));
        parameters_.all().copy_from(before), parameters_.batches_tracked = tracked;
    }

    /// Tests the network, and sets the members of the report.
    Score score(const std::vector<data::WeightedView>& views = {{}}) {
        Score result;
        score_seconds_ = wall_seconds([&] { result = evaluation_.score(views, [&] { run_.check_stop(); }); });
        const Json members = group_.rank() == 0 ? evaluation_.report_members(result) : Json::object();
        for (const auto& [member, value] : members.as_object()) run_.log.set_in_report(member, value);
        run_.write_tables(evaluation_.tables(result));
        return result;
    }

    Evaluation evaluation_of(const data::ImageSet& set) {
        return Evaluation(group_, compute_, set, columns_.at(&set), normalise_, loader_options_.batch_size, task_,
                          forward_, &replayed_step_);
    }

    /// One step. The sums cover this rank's workers, until sum_results() adds those of other ranks.
    struct Step {
        Step(int64_t number, par::Group& group, const Parameters& parameters)
            : number(number), sums(group, parameters) {}
        const int64_t number;
        StepSums sums;
        double share = 0;            // fraction of the mini-batch that the current worker computes
        int64_t images = 0;          // that this rank computes
        std::vector<double> numbers; // of sum_results()
        Tensor non_finite_at;
        StepResult result{};
    };

    /// Collective. Computes the next step. A rank takes, computes and adds the part of each of its workers. Then
    /// gradients, statistics and metrics are summed over all workers, and the parameters are updated. If the loss or a
    /// gradient is not finite, the update changes nothing, and --on-nan decides. A stop request of any rank counts for
    /// all, since it is one of the sums. With only one worker in the job, the CPU waits for its device once per step.
    /// An idle rank only takes part in share_results().
    StepResult step(double lr) {
        Step step(run_.log.position.step + 1, compute_.group(), parameters_);
        step.result.lr = lr;
        group_.set_step(step.number), compute_.group().set_step(step.number);
        optimizer_.set(lr, step.number);
        for (int workers_left = compute_.workers().own; workers_left > 0; --workers_left) {
            data::Batch batch = take_part(step);
            std::vector<Tensor> outputs;
            if (!compute_.workers().is_idle()) outputs = compute(step, batch, workers_left == 1);
            add_results(step, batch, outputs);
        }
        sum_results(step);
        update_parameters(step);
        return step.result;
    }

    /// Takes a worker's part of the mini-batch, which may be empty.
    data::Batch take_part(Step& step) {
        data::Batch batch = feed_.loader.next();
        step.result.images = batch.global_size;
        step.share = double(batch.size) / double(batch.global_size);
        if (SyncGroup* const sync = context().sync) sync->samples = batch.global_size, sync->fraction = step.share;
        step.images += batch.size;
        run_.phases.lap(PhaseClock::data);
        return batch;
    }

    /// Runs forward and backward for a part. After the last worker's part, sums the gradients over all ranks. Returns
    /// the outputs and the loss in host memory.
    std::vector<Tensor> compute(Step& step, const data::Batch& batch, bool is_last_worker) {
        parameters_.begin_step(step.number, batch.first);
        if (is_last_worker) gradient_sum_.begin(step.share);
        const std::span<const Tensor> results = replayed_step_(feed_.inputs(batch), true);
        run_.phases.lap(PhaseClock::compute);
        // Finish the sums before to_host(). It blocks until the device has finished the step, and no bucket would be
        // summed during this time.
        if (is_last_worker)
            gradient_sum_.finish();
        else
            gradient_sum_.add_worker(step.share);
        std::vector<Tensor> outputs(results.begin(), results.end());
        outputs.push_back(optimizer_.non_finite_at());
        to_host(outputs);
        step.non_finite_at = outputs.back(), outputs.pop_back();
        run_.phases.lap(parameters_.gradients().device() ? PhaseClock::compute : PhaseClock::sum);
        return outputs;
    }

    /// Adds the numbers of a part: its share of the loss, a stop request, the end of its data, and the sums of the
    /// metrics.
    void add_results(Step& step, data::Batch& batch, std::vector<Tensor>& outputs) {
        std::vector<double> numbers{0.0, double(run_.log.has_stop_request()), double(!feed_.loader.has_next())};
        numbers.resize(3 + size_t(task_.sums()));
        if (batch.size > 0) {
            numbers[0] = step.share * double(outputs.back().data<float>()[0]);
            outputs.pop_back();
            take_images(outputs, batch, task_);
            task_.add(outputs, batch, std::span(numbers).subspan(3));
        }
        step.sums.add(step.share, numbers);
    }

    /// Sums statistics of batch norm and the numbers of add_results() over all workers.
    void sum_results(Step& step) {
        step.numbers.resize(3 + size_t(task_.sums()));
        run_.phases.count_step(step.images);
        step.sums.finish(step.numbers);
        ++parameters_.batches_tracked;
        run_.phases.lap(PhaseClock::sum);
    }

    /// Updates the parameters, unless the replayed step has done so. Those of an idle rank stay as they are: Saver sets
    /// them.
    void update_parameters(Step& step) {
        if (!compute_.group().is_single_worker()) {
            loss_of_all_.fill(step.numbers[0]), optimizer_.update(loss_of_all_);
            step.non_finite_at = optimizer_.non_finite_at();
        }
        share_results(step);
        const Workers& workers = compute_.workers();
        step.result.skipped = run_.handle_non_finite(step.result.loss, step.non_finite_at, workers.ranks[0]);
        if (!step.result.skipped && !workers.is_idle()) optimizer_.end_step(step.number, run_.log.info().steps);
        run_.phases.lap(PhaseClock::update);
    }

    /// Gives the results of the step to idle ranks, and their stop requests to the others.
    void share_results(Step& step) {
        std::vector<double>& numbers = step.numbers;
        if (compute_.workers().idle > 0) {
            const bool computes = !compute_.workers().is_idle();
            numbers.push_back(computes ? double(step.non_finite_at.to_host().data<int32_t>()[0]) : 0);
            compute_.add_idle(numbers);
            step.non_finite_at = Tensor::empty_on_host({}, DType::i32);
            step.non_finite_at.data<int32_t>()[0] = int32_t(numbers.back());
            numbers.pop_back();
        }
        step.result.loss = numbers[0], step.result.stop = numbers[1] > 0, step.result.last = numbers[2] > 0;
        step.result.sums.assign(numbers.begin() + 3, numbers.end());
    }

    /// The part of a step that is traced once and then replayed. Returns the results of outputs_of(), and then the
    /// loss.
    std::vector<Tensor> forward_backward(std::span<const Tensor> inputs) {
        Tape tape;
        const data::Batch batch = feed_.batch(inputs);
        std::vector<Tensor> results = outputs_of(forward_, task_, batch, Mode::train);
        const Tensor loss = task_.take_loss(results, batch, Mode::train);
        tape.gradients(loss, parameters_);
        if (compute_.group().is_single_worker()) optimizer_.update(loss); // else update_parameters(), after the sums
        results.push_back(loss);
        return results;
    }

    /// Returns copies of all that a step changes, in one order.
    std::vector<Tensor> state() const {
        std::vector<Tensor> state{parameters_.all().clone()};
        for (const auto& [name, value] : optimizer_.state()) state.push_back(value.clone());
        return state;
    }

    /// Repeats the epoch and its test op by op, to measure their times, and then restores the state after the epoch.
    /// The arguments are the run's position, state() and Parameters::batches_tracked before the epoch. Returns false,
    /// and measures nothing, after a stop request.
    bool repeat_plain(const RunPosition& begin, const std::vector<Tensor>& before, int64_t tracked_before) {
        const auto restore = [&](const std::vector<Tensor>& values, int64_t tracked) {
            parameters_.all().copy_from(values[0]), parameters_.batches_tracked = tracked;
            for (size_t i = 1; i < values.size(); ++i) optimizer_.state()[i - 1].value.copy_from(values[i]);
        };
        const std::vector<Tensor> after = state();
        const int64_t tracked_after = parameters_.batches_tracked;
        const RunPosition end = std::exchange(run_.log.position, begin);
        restore(before, tracked_before);
        replayed_step_.enabled = evaluation_.predict.enabled = false;
        bool stops = false;
        const double seconds = wall_seconds([&] {
            for (feed_.loader.start(begin.epoch, begin.batch); !stops && run_.log.position.step < end.step;
                 ++run_.log.position.step, ++run_.log.position.batch)
                stops = step(schedule_.rate_at(run_.epochs())).stop;
        });
        if (!stops)
            optimizer_.with_average([&] {
                times_.plain_train += seconds, times_.plain_test += wall_seconds([&] { evaluation_.score(); });
            });
        replayed_step_.enabled = evaluation_.predict.enabled = true;
        restore(after, tracked_after), run_.log.position = end;
        return !stops;
    }

    ImageTraining& training_;
    TrainingRun& run_;
    par::Group& group_;
    const Compute& compute_;
    const data::TrainTest& data_;
    const Columns& columns_;
    const std::unique_ptr<Network> network_;
    Parameters& parameters_;
    const data::Normalise normalise_;
    const Task task_;
    const Forward forward_;
    const data::LoaderOptions loader_options_;
    const Schedule schedule_;
    ImageFeed feed_;
    Optimizer optimizer_;
    // Runs forward and backward. Returns outputs and loss, and leaves the gradients in the parameters' buffer. If there
    // is a single worker in all, it also applies the update.
    Accelerated replayed_step_;
    GradientSum gradient_sum_;
    Evaluation evaluation_;
    double score_seconds_ = 0; // of Evaluation::score() in the last score()
    Times times_;
    const Tensor loss_of_all_ = Tensor::zeros({});
};

int ImageTraining::train(Options& options, par::Group& group, TrainingObserver& observer) {
    TrainingRun run(run_options, options, group, observer);
    return run.log.supervise([&] {
        Compute compute(compute_options, options, group);
        network_.check(options);
        check(options);
        RG_CHECK(run_options.progress != ProgressKind::none || !(plan_dump_ || profile_),
                 "--progress none: expected neither --profile nor --plan-dump, which print tables, got one; omit it");
        Profile op_times;
        GroupSync sync(compute.group());
        Context context = compute.context();
        if (sync_bn_ && compute.group().size() > 1) context.sync = &sync;
        if (profile_) context.profile = &op_times;
        const ContextScope scope(context); // the context's threads also decode the images

        const data::TrainTest data = data_for(run);
        Columns columns;
        for (const data::ImageSet* const set : {&data.train, &data.test, &data.reserved})
            if (set->count > 0) columns[set] = this->columns(*set);
        run.check_data(data, data_options.describe(data, columns));
        if (!run.saver.resumed()) { // before config.json stores the options
            if (batch_size_per_gpu || !options.was_given("batch-size"))
                fit_batch_size(data.train.count, compute.workers());
            set_dependent_defaults(options);
        }
        schedule.base = highest_rate();
        Trainer trainer(*this, run, options, compute, data, columns);
        trainer.begin();
        int code = 0;
        const double seconds = wall_seconds([&] {
            trainer.run_epochs();
            trainer.test_after_epochs();
            after_training(run, trainer.times());
            code = run.end();
        });
        // On a GPU, profiling waits for each op, so the training takes longer than without it. So there the table omits
        // the line with the time outside of ops.
        if (profile_) run.log.note(op_times.table(compute.device() ? 0 : seconds));
        return code;
    });
}

} // namespace rg
