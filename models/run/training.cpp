// See training.h.
#include "ringgrad/models/run/training.h"

#include "ringgrad/core/clock.h"
#include "ringgrad/core/ops.h"
#include "ringgrad/core/profile.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/models/nets/state_dict.h"
#include "ringgrad/models/run/evaluation.h"
#include "ringgrad/models/run/gradient_sum.h"
#include "ringgrad/models/run/memory.h"
#include "ringgrad/models/run/model_file.h"
#include "ringgrad/models/run/report.h"
#include "ringgrad/models/run/run_folder.h"

#include <algorithm>
#include <unordered_set>

namespace rg {
namespace {

constexpr const char* kMemoryAdvice = "make the network or --batch-size smaller, or start fewer ranks";

/// Returns true if a thread should sum gradients on CPUs during backward: with several nodes, and without --sync-bn.
/// Within a node the sum is too fast to be worth a thread. Between nodes, overlap hides the sum behind backward. With
/// --sync-bn, backward itself exchanges batch statistics, so another thread must not use the group.
bool can_overlap(const par::Group& group) { return group.local_size() < group.size() && !context().sync; }

/// Returns the indices of the images of `set` whose pixels are those of an image of `other`, by their checksums.
std::vector<int64_t> images_of_both(const data::ImageSet& set, const data::ImageSet& other) {
    std::unordered_set<uint64_t> known;
    for (int64_t i = 0; i < other.count; ++i) known.insert(other.record(i).checksum);
    std::vector<int64_t> both;
    for (int64_t i = 0; i < set.count; ++i)
        if (known.contains(set.record(i).checksum)) both.push_back(i);
    return both;
}

/// The epochs and steps of a training.
class Trainer {
public:
    /// Collective. Restores the parameters of a resumed run. All arguments must outlive this.
    Trainer(TrainingRun& run, const Machine& machine, Parameters& parameters, Optimizer& optimizer, ImageFeed& feed,
            const Task& task, const Forward& forward);

    /// Collective. Makes the plans for the largest training batch and, unless --no-accelerate is given, for all sizes
    /// of evaluation batches. So their memory is allocated before the first step. Returns the plan of a training step.
    /// On the CPU, throws on all ranks if there is not enough memory.
    const Plan& plan_ahead(Evaluation& evaluation);

    /// Collective. Trains from the run's position until TrainingRun::goes_on() is false. Calls `test`, which must
    /// return the same on all ranks, after each complete epoch and as --validate-every asks. Saves the model and a
    /// checkpoint after each epoch, also after one that a stop or --steps has cut short.
    /// Without any step, saves the model alone.
    void run_epochs(const Schedule& schedule, const std::function<Score()>& test);

    /// Runs forward and backward. Returns outputs and loss, and leaves the gradients in the parameters' buffer. If
    /// there is a single worker in all, it also applies the update.
    Accelerated replayed_step;
    GradientSum gradient_sum;
    double train_seconds = 0, test_seconds = 0; // of run_epochs(); see ImageTraining::Times

private:
    void train_epoch(const Schedule& schedule, const std::function<Score()>& test);
    StepResult step(double lr);
    std::vector<Tensor> forward_backward(std::span<const Tensor> inputs);
    Score score(const std::function<Score()>& test);

    TrainingRun& run_;
    Parameters& parameters_;
    Optimizer& optimizer_;
    ImageFeed& feed_;
    const Task& task_;
    const Forward& forward_;
    const Tensor loss_of_all_ = Tensor::zeros({});
};

} // namespace

void ImageTraining::declare(Options& o) {
    declare_data(o);
    o.group("Network");
    network_.declare(o);
    declare_training(o);
    o.add("test-views", &test_views_,
          "after the last epoch, test once more with the weighted mean scores of six views of each image: itself, two "
          "shifts, and their mirror images");
    machine_options.declare(o);
    o.add("sync-bn", &sync_bn_,
          "batch norm with statistics over all ranks; up to rounding, the result then does not depend on their number");
    o.add("plan-dump", &plan_dump_, "print the ops of the replayed step and the memory plan");
    o.add("profile", &profile_, "print a table of time per op at the end");
    run_options.declare(o);
}

data::TrainTest ImageTraining::load(par::Group& group, const std::function<void()>& pulse) const {
    data::LoadOptions options = data_options.load_options();
    options.labels = labels();
    data::TrainTest sets = load_data(group, data_options, options, pulse);
    const bool needs_labels =
        options.labels == data::Labels::numbers || options.labels == data::Labels::several_classes;
    RG_CHECK(!(needs_labels || takes_numbers) || !sets.train.target_names.empty(), "--data: expected a folder with ",
             needs_labels ? data::kLabelsFile : data::kAnglesFile, ", got ", sets.source);
    data_options.hold_out_validation(sets);
    return sets;
}

std::vector<MetricName> ImageTraining::metrics(const data::ImageSet& images) const {
    const Task task = this->task(images);
    return {task.metrics.begin(), task.metrics.end()};
}

int ImageTraining::train(Options& options, par::Group& group, TrainingObserver& observer) {
    TrainingRun run(run_options, options, group, observer);
    data::TrainTest data;
    return run.supervise([&] { return train_with(run, options, data); });
}

std::unique_ptr<Network> ImageTraining::new_network(par::Group& group, const Machine& machine,
                                                    const data::ImageSet& images) const {
    const ImageTask task = task_of(images, uint64_t(data_options.seed));
    const auto make = [&] {
        std::unique_ptr<Network> network = network_.make(task);
        RG_CHECK(network->parameters.values().defined(),
                 "network: expected allocated parameters, got none; call parameters.allocate() in its constructor");
        return network;
    };
    if (machine.workers().gpus == 0) {
        const auto bytes_of_parameters = [&] {
            const DryRun without_memory;
            return make()->parameters.values().bytes();
        };
        check_parameter_memory(group, bytes_of_parameters(), optimizer.buffers(), kMemoryAdvice);
    }
    std::unique_ptr<Network> network = make();
    set_rates(network->parameters);
    return network;
}

data::TrainTest ImageTraining::checked_data(par::Group& group, const std::function<void()>& pulse) const {
    data::TrainTest data = load(group, pulse);
    if (data.train.classes.size() == 1 && std::ranges::count(task(data.train).outputs.kinds, "classes") > 0)
        data.warnings.push_back(cat("warning: all images have one class, ", data.train.classes[0],
                                    ", so there is nothing to learn; give a folder per class"));
    for (const data::ImageSet* const set : {&data.test, &data.reserved})
        if (const std::vector<int64_t> both = images_of_both(*set, data.train); !both.empty())
            data.warnings.push_back(cat("warning: ", both.size(), " of the ", set->count, " images for tests",
                                        set->names.empty() ? "" : ", such as " + set->names[size_t(both[0])] + ",",
                                        " are training images too, so the results are too good; remove the copies"));
    return data;
}

data::Normalise ImageTraining::chosen_normalise(TrainingRun& run, const Options& options, const data::ImageSet& images,
                                                std::vector<std::string>& notes) const {
    const bool imagenet = normalisation == Normalisation::imagenet;
    RG_CHECK(!imagenet || images.channels == 3, "--normalise imagenet: expected images of 3 channels, got ",
             images.channels, "; omit the option");
    const data::Normalise chosen = imagenet                               ? data::kImageNet
                                   : normalisation == Normalisation::none ? data::Normalise()
                                                                          : normalise(images);
    const TensorFile* const file = run.initial();
    if (!file || (!run.resumed() && options.was_given("normalise"))) return chosen;
    const bool known = file->find_text("normalise");
    if (known && stored_task(*file).channels != images.channels) return chosen;
    if (!run.resumed())
        notes.push_back(known ? cat("normalised as the images of ", file->source, "; --normalise auto: by these images")
                              : cat("warning: ", file->source, " does not say how its images were normalised; for ",
                                    "torchvision's weights give --normalise imagenet, else --normalise auto"));
    return stored_normalise(*file, chosen);
}

int ImageTraining::train_with(TrainingRun& run, const Options& options, data::TrainTest& data) {
    par::Group& group = run.group();
    Machine machine(machine_options, options, group);
    network_.check(options);
    check(options);
    RG_CHECK(run_options.progress != ProgressKind::none || !(plan_dump_ || profile_),
             "--progress none: expected neither --profile nor --plan-dump, which print tables, got one; omit it");
    RG_CHECK(
        !sync_bn_ || machine.device() || machine.workers().gpus == 0,
        "--sync-bn: expected a GPU on every node, got a node without one; start no ranks on it, or omit --sync-bn");

    Profile op_times;
    GroupSync sync(group);
    Context context = machine.context();
    if (sync_bn_ && group.size() > 1) context.sync = &sync;
    if (profile_) context.profile = &op_times;
    const ContextScope scope(context); // the context's threads also decode the images

    std::vector<std::string> notes;
    if (const TensorFile* const file = run.initial()) data_options.follow(*file);
    if (data.source.empty()) data = checked_data(group, [&] { run.pulse(); });
    if (const TensorFile* const file = run.initial()) {
        for (const auto& [rule, known, name] : {std::tuple(&data.held_out, &data_options.test_rule, "test"),
                                                {&data.validation, &data_options.validation_rule, "validation"}})
            if (!rule->limits.empty() && known->limits.empty())
                notes.push_back(cat("warning: ", file->source, " does not say which images it was trained on, so some ",
                                    "of the ", name, " images may be among them"));
            else if (rule == &data.validation && !rule->limits.empty() && !run.resumed())
                notes.push_back(cat("validation images are those of ", file->source, ", whatever --validation says"));
    }
    run.test_set_name = data_options.test_set_name();
    Columns columns;
    for (const data::ImageSet* const set : {&data.train, &data.test, &data.reserved})
        if (set->count > 0) columns[set] = this->columns(*set);
    run.check_data(data, data_options.describe(data, columns));
    if (!run.resumed()) {
        if (batch_size_per_gpu || !options.was_given("batch-size")) fit_batch_size(data.train.count, machine.workers());
        complete(options);
    }
    schedule.base = highest_rate(); // config.json stores the options, which refer to members such as this one
    const Schedule rates = full_schedule();

    const std::unique_ptr<Network> network = new_network(group, machine, data.train);
    Parameters& parameters = network->parameters;
    notes.insert(notes.begin(), data.warnings.begin(), data.warnings.end());
    const data::Normalise normalise = chosen_normalise(run, options, data.train, notes);
    initialise(*network, data.train, normalise);
    Task task = this->task(data.train);
    // The outputs that --init-skip leaves out begin anew, with statistics of these images.
    task.standardise(data.train, run.resumed() || run_options.init_skip.empty() ? run.initial() : nullptr);
    const std::vector<std::string>& kinds = task.outputs.kinds;
    const auto is_of_image = [](const std::string& kind) { return kind == "classes" || kind == "reconstruction"; };
    if (augment == "auto")
        augment = augment_for(std::ranges::all_of(kinds, is_of_image) && columns[&data.train].empty() &&
                              !takes_numbers && (!kinds.empty() || data.train.target_names.empty()));
    const Forward forward = [&](const data::Batch& batch, Mode mode) { return this->forward(*network, batch, mode); };
    const data::LoaderOptions loading = loader_options(data.train, normalise, task);
    ImageFeed feed(data.train, loading, machine, columns[&data.train]);
    Optimizer optimizer(parameters, this->optimizer);
    Trainer trainer(run, machine, parameters, optimizer, feed, task, forward);

    const auto evaluation_of = [&](const data::ImageSet& set) {
        return Evaluation(group, machine, set, columns[&set], normalise, loading.batch_size, task, forward);
    };
    Evaluation evaluation = evaluation_of(data.test);
    const auto score = [&](const std::vector<data::WeightedView>& views = {{}}) {
        const Score result = evaluation.score(views, [&] { run.check_stop(); });
        const Json members = group.rank() == 0 ? evaluation.report(result) : Json::object();
        for (const auto& [member, value] : members.as_object()) run.set_in_report(member, value);
        return result;
    };
    const auto score_with_views = [&] {
        run.end_test_with_views(score(data::mirrored_and_shifted(data.test.input_size().width)));
    };
    const auto test_model = [&](const TensorFile& model) { // on the images that no test has used before
        load_state_dict(parameters, model);
        Evaluation last = evaluation_of(data.reserved);
        const Score result = last.score({{}}, [&] { run.check_stop(); });
        run.end_test(result);
        run.set_in_report("best_on_test", group.rank() == 0 ? last.report(result) : Json());
    };

    const bool sums = machine.workers().gpus > 1 || machine.workers().idle == 0;
    if (const std::string& why = trainer.gradient_sum.why_not_direct(); sums && !why.empty())
        notes.push_back(cat("gradients are summed in host memory, not by the GPUs: ", why));
    const Plan& plan = trainer.plan_ahead(evaluation);
    ModelOutputs outputs = task.outputs;
    outputs.labels = labels();
    if (takes_numbers) outputs.input_numbers = data.train.target_names;
    Metadata model = describe_model(network_.describe(), data.train, normalise, outputs);
    model.emplace_back("trained_by", options.program());
    run.begin(feed.length(steps, epochs), model,
              cat(machine.text(), machine_options.accelerate ? "" : ", op by op", "; ", data.source, "; ", feed.text(),
                  "; --augment ", augment, "; ", parameters.count(), " parameters, ", plan.bytes() >> 20,
                  " MiB planned"),
              notes);
    if (plan_dump_) run.note(plan.table() + trainer.gradient_sum.table(plan));
    run.set_in_report("network", report_network(parameters, plan));
    int code = 0;
    const double seconds = seconds_of([&] {
        trainer.run_epochs(rates, [&] { return score(); });
        try {
            if (test_views_ && !run.stopped()) optimizer.with_average(score_with_views); // as in the model's file
            if (data.reserved.count > 0)
                if (const std::optional<TensorFile> best = run.model_to_test()) test_model(*best);
        } catch (const Stopped&) {} // a resumed run repeats these tests
        trained(run, {trainer.train_seconds, trainer.test_seconds, trainer.replayed_step.hit_rate(),
                      evaluation.predict.hit_rate()});
        code = run.end();
    });
    if (plan_dump_)
        for (const auto& [name, f] :
             {std::pair("training", &trainer.replayed_step), {"evaluation", &evaluation.predict}})
            run.note(cat("accelerate: ", f->occupancy() * double(f->cache_size), " plans of ", name, ", hit rate ",
                         100 * f->hit_rate(), " %"));
    // On a GPU, profiling waits for each op, so the training takes longer than without it. So there the table omits the
    // line with the time outside of ops.
    if (profile_) run.note(op_times.table(machine.device() ? 0 : seconds));
    return code;
}

Trainer::Trainer(TrainingRun& run, const Machine& machine, Parameters& parameters, Optimizer& optimizer,
                 ImageFeed& feed, const Task& task, const Forward& forward)
    : replayed_step([this](std::span<const Tensor> in, bool) { return forward_backward(in); },
                    machine.options().accelerate),
      gradient_sum(run.group(), parameters, machine.options().allreduce, can_overlap(run.group()),
                   machine.options().wire),
      run_(run),
      parameters_(parameters),
      optimizer_(optimizer),
      feed_(feed),
      task_(task),
      forward_(forward) {
    RG_CHECK(!context().sync || run.group().most_workers() == 1, "--sync-bn: expected one worker per rank, got ",
             run.group().most_workers(), "; the workers of a rank compute one after another, so they cannot exchange ",
             "batch statistics");
    replayed_step.after_step = [this](const Plan& plan, size_t step) { return gradient_sum.after_step(plan, step); };
    run.restore_parameters(parameters, optimizer.state(), task);
    if (!run.resumed()) optimizer.start_averages(); // --init may have changed the parameters
    parameters.begin_step(run.position().step + 1); // for plan_ahead(), as the next line
    optimizer.set(0, run.position().step + 1);
}

const Plan& Trainer::plan_ahead(Evaluation& evaluation) {
    const auto plan = [&]() -> const Plan& {
        evaluation.plan();
        const std::vector<int64_t> sizes = feed_.sizes();
        return replayed_step.plan(feed_.inputs(sizes.empty() ? 0 : sizes.front()), true);
    };
    if (!parameters_.gradients().device() && !gradient_sum.some_on_device())
        check_planned_memory(run_.group(), {&replayed_step, &evaluation.predict},
                             feed_.bytes() + checkpoint_memory(run_.group(), parameters_.values().bytes(),
                                                               std::ssize(optimizer_.state())),
                             plan, kMemoryAdvice);
    return plan();
}

void Trainer::run_epochs(const Schedule& schedule, const std::function<Score()>& test) {
    // With --steps 0, or if a kill came between the last checkpoint and the model, no step is left to save it after.
    if (!run_.goes_on()) optimizer_.with_average([&] { run_.save_model(); });
    while (run_.goes_on()) {
        try {
            train_seconds += seconds_of([&] { train_epoch(schedule, test); });
            if (run_.epoch_is_complete()) {
                Score score;
                test_seconds += seconds_of([&] { score = this->score(test); });
                run_.end_epoch(score);
            }
        } catch (const Stopped&) {} // in a test, which a resumed run repeats
        optimizer_.with_average([&] { run_.save_model(); });
        run_.save_checkpoint();
    }
}

void Trainer::train_epoch(const Schedule& schedule, const std::function<Score()>& test) {
    feed_.loader.start(run_.position().epoch, run_.position().batch);
    optimizer_.begin_epoch(run_.position().epoch);
    run_.begin_epoch(feed_.loader.has_next());
    while (run_.epoch_goes_on())
        if (run_.test_is_due())
            run_.end_test_in_epoch(score(test));
        else
            run_.end_step(step(schedule.rate_at(run_.epochs())));
}

/// Runs `test` with the average of the weights, if there is one, and saves the model if it is the best so far.
Score Trainer::score(const std::function<Score()>& test) {
    Score score;
    optimizer_.with_average([&] {
        score = test();
        run_.keep_if_best(score);
    });
    return score;
}

/// Collective. Fetches the part of a mini-batch of each of this rank's workers, runs forward and backward for it, sums
/// gradients, statistics and metrics over all workers, and updates the parameters. If the loss or a gradient is not
/// finite, the update changes nothing, and --on-nan decides. A stop request of any rank counts for all, since it is one
/// of the sums. With a single worker in all, the CPU waits for its device only once per step.
StepResult Trainer::step(double lr) {
    par::Group& group = run_.group();
    SyncGroup* const sync = context().sync;
    const int64_t number = run_.position().step + 1;
    group.set_step(number);
    optimizer_.set(lr, number);
    StepSums step_sums(group, parameters_);
    // First of one worker, after step_sums.finish() of all workers: loss (times the worker's share), number of stop
    // requests, number of workers without further data, and the sums of the metrics.
    enum : size_t { kLoss, kStops, kEnds, kMetrics };
    std::vector<double> sums(kMetrics + size_t(task_.sums()));
    int64_t global_size = 0, images = 0; // number of images in the mini-batch, and of those that this rank computes
    Tensor non_finite_at;
    for (int workers_left = group.workers(group.rank()); workers_left > 0; --workers_left) {
        data::Batch batch = feed_.loader.next(); // the worker's part, which may be empty
        global_size = batch.global_size;
        const double share = double(batch.size) / double(global_size);
        if (sync) sync->samples = global_size, sync->fraction = share;
        images += batch.size;
        run_.phases.lap(PhaseClock::data);

        parameters_.begin_step(number, batch.first);
        const bool last = workers_left == 1;
        if (last) gradient_sum.begin(share);
        const std::span<const Tensor> results = replayed_step(feed_.inputs(batch), true);
        run_.phases.lap(PhaseClock::compute);
        // Finish the sums before to_host(). It blocks until the device has finished the step, and no bucket would be
        // summed during this time.
        if (last)
            gradient_sum.finish();
        else
            gradient_sum.keep(share);
        std::vector<Tensor> outputs(results.begin(), results.end());
        outputs.push_back(optimizer_.non_finite_at());
        to_host(outputs);
        non_finite_at = outputs.back(), outputs.pop_back();
        const Tensor loss = outputs.back();
        outputs.pop_back();
        run_.phases.lap(parameters_.gradients().device() ? PhaseClock::compute : PhaseClock::sum);

        std::fill(sums.begin(), sums.end(), 0.0);
        sums[kLoss] = share > 0 ? share * double(loss.data<float>()[0]) : 0.0;
        sums[kStops] = double(run_.has_stop_request()), sums[kEnds] = double(!feed_.loader.has_next());
        take_images(outputs, batch, task_);
        if (batch.size > 0) task_.add(outputs, batch, std::span(sums).subspan(kMetrics));
        step_sums.add(share, sums);
    }
    run_.phases.count_step(images);
    step_sums.finish(sums);
    ++parameters_.batches_tracked;
    run_.phases.lap(PhaseClock::sum);

    if (!group.is_single_worker()) {
        loss_of_all_.fill(sums[kLoss]), optimizer_.update(loss_of_all_);
        non_finite_at = optimizer_.non_finite_at();
    }
    const bool skipped = run_.skips_non_finite(sums[kLoss], non_finite_at);
    if (!skipped) optimizer_.end_step(number, run_.length().steps);
    run_.phases.lap(PhaseClock::update);
    return {.images = global_size,
            .loss = sums[kLoss],
            .lr = lr,
            .sums = {sums.begin() + kMetrics, sums.end()},
            .stop = sums[kStops] > 0,
            .last = sums[kEnds] > 0,
            .skipped = skipped};
}

/// The part of a step that is traced once and then replayed. Returns the results of outputs_of(), and then the loss.
std::vector<Tensor> Trainer::forward_backward(std::span<const Tensor> inputs) {
    Tape tape;
    const data::Batch batch = feed_.batch(inputs);
    std::vector<Tensor> results = outputs_of(forward_, task_, batch, Mode::train);
    const Tensor loss = task_.take_loss(results, batch, Mode::train);
    tape.gradients(loss, parameters_);
    if (run_.group().is_single_worker()) optimizer_.update(loss); // else step() updates, after the sums
    results.push_back(loss);
    return results;
}

TestResult ImageTraining::test(Options& options, par::Group& group, const std::string& model) {
    data_options.validation = 0;
    Machine machine(machine_options, options, group);
    const Context context = machine.context();
    const ContextScope scope(context);
    const TensorFile file = load_model(model);
    data_options.follow(file);
    const std::unique_ptr<Network> network = make_network(file);
    const data::TrainTest data = load(group, {});
    Task task = this->task(data.train);
    task.standardise(data.train, &file);
    const Columns columns{{&data.test, this->columns(data.test)}};
    Evaluation evaluation(group, machine, data.test, columns.at(&data.test),
                          stored_normalise(file, normalise(data.train)), data_options.batch_size, task,
                          [&](const data::Batch& batch, Mode mode) { return forward(*network, batch, mode); });
    const Score score = evaluation.score({{}}, check_stop);
    TestResult result{task.text(score.metrics),
                      Json::object().set("test_loss", score.loss),
                      evaluation.report(score),
                      data.test,
                      data_options.test_path.empty() ? data_options.path : data_options.test_path,
                      data.warnings};
    if (test_views_)
        result.text += cat(
            ", with six views ",
            task.text(evaluation.score(data::mirrored_and_shifted(data.test.input_size().width), check_stop).metrics));
    const Json was = stored_data(file), is = data_options.describe(data, columns);
    if (was.is_object())
        if (const Json& tested = was.at(was.find("reserved") ? "reserved" : "test"); tested != is.at("test"))
            result.warnings.push_back(cat("warning: ", file.source, " was tested on a set of ", tested.as_string(),
                                          ", which is now one of ", is.at("test").as_string(),
                                          ", so the numbers differ from those of the run"));
    for (size_t i = 0; i < task.metrics.size(); ++i)
        result.values.set("test_" + task.metrics[i].name, score.metrics[i]);
    for (size_t d = 0; d < task.details.size(); ++d)
        if (const Detail& detail = task.details[d]; detail.table)
            result.tables.emplace_back(detail.member, detail.table(data.test, score.details[d]));
    return result;
}

namespace {

/// A training, and its options with the values of the arguments.
struct Parsed {
    Parsed(const Program& program, const std::vector<std::string>& args,
           const std::vector<std::pair<std::string, std::string>>& commands = {})
        : training(program.make()), options(program.name, program.description) {
        options.examples({program.examples.begin(), program.examples.end()}, "mpiexec -n 4 ");
        options.commands(commands);
        training->declare(options);
        if (*program.matlab)
            options
                .add("preset", &preset,
                     cat("matlab: the settings of MATLAB's example, ", program.matlab,
                         ", with this batch size for each GPU; other options override them"))
                .one_of({"none", "matlab"});
        wants_training = options.parse(args);
        if (preset == "none") return;
        training->batch_size_per_gpu = !options.was_given("batch-size");
        const bool drops = options.was_given("drops") || options.was_given("schedule");
        std::vector<std::string> settings = split(program.matlab, ' ');
        std::erase_if(settings, [&](const std::string& setting) {
            const std::string name = setting.substr(2, setting.find('=') - 2);
            return options.was_given(name) || (drops && name == "drop-every");
        });
        options.parse(settings);
    }
    std::unique_ptr<ImageTraining> training;
    Options options;
    std::string preset = "none";
    bool wants_training; // false for --help, --help-all and --version
};

} // namespace

Json Program::check(const std::vector<std::string>& args) const { return Parsed(*this, args).options.to_json(); }

Program::DataCheck Program::check_data(par::Group& group, const std::vector<std::string>& args) const {
    const Parsed parsed(*this, args);
    const data::TrainTest data = parsed.training->checked_data(group, {});
    Json sets = Json::object().set("training set", data::fingerprint(data.train));
    sets.set(parsed.training->data_options.test_set_name() + " set", data::fingerprint(data.test));
    if (data.reserved.count > 0) sets.set("test set", data::fingerprint(data.reserved));
    return {data.warnings, parsed.training->metrics(data.train), sets};
}

TestResult Program::test_run(par::Group& group, const std::string& model, const Options& given) const {
    Parsed parsed(*this, {});
    std::string folder;
    const Json config = config_of(model, folder);
    Json typed = Json::object();
    for (const auto& [name, value] : given.values())
        if (given.was_given(name)) typed.set(name, value);
    for (const auto& [name, value] : parsed.options.values()) {
        const Json* chosen = typed.find(name);
        if (!chosen && name != "threads") chosen = config.at("options").find(name);
        if (!chosen) continue;
        const std::string text = chosen->is_string() ? chosen->as_string() : chosen->dump();
        check_stored_command(folder, text, "give the images after the model");
        parsed.options.set(name, text);
    }
    return parsed.training->test(parsed.options, group, model);
}

int Program::run(par::Group& group, const std::vector<std::string>& args, TrainingObserver& observer,
                 const std::vector<std::pair<std::string, std::string>>& commands) const {
    Parsed parsed(*this, args, commands);
    if (parsed.wants_training) return parsed.training->train(parsed.options, group, observer);
    return parsed.options.print_answer(group.rank() == 0);
}

} // namespace rg
