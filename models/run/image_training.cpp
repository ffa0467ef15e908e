// See image_training.h.
#include "ringgrad/models/run/image_training.h"

#include "ringgrad/core/clock.h"
#include "ringgrad/core/profile.h"
#include "ringgrad/models/run/memory.h"
#include "ringgrad/models/run/model_file.h"
#include "ringgrad/models/run/report.h"
#include "ringgrad/models/run/trainer.h"

namespace rg {

namespace {

constexpr const char* kMemoryAdvice = "make the network or --batch-size smaller, or start fewer ranks";

/// Returns the number of bytes that the values of all parameters need, without allocating them.
int64_t parameter_bytes(const std::function<std::unique_ptr<Network>()>& make) {
    const DryRun without_memory;
    const std::unique_ptr<Network> network = make();
    RG_CHECK(network->parameters.values().defined(),
             "network: expected allocated parameters, got none; call parameters.allocate() in its constructor");
    return network->parameters.values().bytes();
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
    machine_options.declare(o);
    o.add("sync-bn", &sync_bn_,
          "batch norm with statistics over all ranks; up to rounding, the result then does not depend on their number");
    o.add("plan-dump", &plan_dump_, "print the ops of the replayed step and the memory plan");
    o.add("profile", &profile_, "print a table of time per op at the end");
    run_options.declare(o);
}

void ImageTraining::complete(const Options& options, const Workers& workers, bool resumed) {
    if (!options.was_given("batch-size") && !resumed) data_options.batch_size = workers.scaled(data_options.batch_size);
}

data::TrainTest ImageTraining::load(par::Group& group, const std::function<void()>& pulse) const {
    data::LoadOptions options = data_options.load_options();
    options.labels = labels();
    data::TrainTest sets = load_data(group, data_options, options, pulse);
    const bool needs_table = options.labels == data::Labels::numbers || options.labels == data::Labels::several_classes;
    RG_CHECK(!needs_table || !sets.train.target_names.empty(), "--data: expected a folder with labels.csv, got ",
             sets.source);
    data_options.hold_out_validation(sets);
    return sets;
}

std::vector<MetricName> ImageTraining::metrics(const data::ImageSet& images) const {
    const Task task = this->task(images);
    return {task.metrics.begin(), task.metrics.end()};
}

int ImageTraining::train(Options& options, par::Group& group, Trial& trial) {
    TrainingRun run(run_options, options, group, trial);
    data::TrainTest data;
    return run.supervise([&] { return train(run, options, data); });
}

int ImageTraining::train(TrainingRun& run, const Options& options, data::TrainTest& data) {
    par::Group& group = run.group();
    Machine machine(machine_options, options, group);
    network_.check(options);
    complete(options, machine.workers(), run.resumed());
    complete_schedule(options);

    Profile op_times;
    GroupSync sync(group);
    Context context = machine.context();
    if (sync_bn_ && group.size() > 1) context.sync = &sync;
    if (profile_) context.profile = &op_times;
    const ContextScope scope(context); // the context's threads also decode the images

    if (data.source.empty()) data = load(group, [&] { run.pulse(); });
    run.test_set_name = data_options.test_set_name();
    run.check_data(data);
    const auto make = [&] { return network_.make(task_of(data.train, uint64_t(data_options.seed))); };
    const int64_t bytes = parameter_bytes(make);
    if (!machine.device()) check_parameter_memory(group, bytes, optimizer.buffers(), kMemoryAdvice);
    const std::unique_ptr<Network> network = make();
    Parameters& parameters = network->parameters;
    const data::Normalise normalise =
        run.resumed() ? stored_normalise(*run.checkpoint(), this->normalise(data.train)) : this->normalise(data.train);
    initialise(*network, data.train, normalise);

    const Task task = this->task(data.train);
    const Forward forward = [&](const data::Batch& batch, Mode mode) { return this->forward(*network, batch, mode); };
    ImageFeed feed(data.train, loader_options(normalise), machine, columns(data.train));
    Trainer trainer(run, machine, parameters, Optimizer(parameters, optimizer), feed, task, forward);
    Evaluation evaluation(group, machine, data.test, columns(data.test), normalise, task, forward);
    const auto score = [&](const std::vector<data::WeightedView>& views = {{}}) {
        const Score result = evaluation.score(views, [&] { run.pulse(); });
        const Json members = group.rank() == 0 ? evaluation.report(result) : Json::object();
        for (const auto& [member, value] : members.as_object()) run.report(member, value);
        return result;
    };
    const Plan& plan = plan_ahead(trainer, evaluation, kMemoryAdvice);

    ModelOutputs outputs = task.outputs;
    outputs.labels = labels();
    Metadata model = describe_model(network_.describe(), data.train, normalise, outputs);
    model.emplace_back("trained_by", options.program());
    run.begin(feed.length(steps, epochs), model,
              cat(machine.text(), machine_options.accelerate ? "" : ", op by op", "; ", data.source, "; ",
                  parameters.count(), " parameters, ", plan.bytes() >> 20, " MiB planned"),
              data.warnings);
    if (plan_dump_) run.note(plan.table() + trainer.gradient_sum.table(plan));
    run.report("network", report_network(parameters, &plan));
    int code = 0;
    const double seconds = seconds_of([&] {
        const Trainer::Seconds times = trainer.train(schedule, [&] { return score(); });
        if (test_views_ && !run.stopped()) {
            trainer.optimizer.exchange_average(); // test the weights that the model file has
            const Score with_views = score(data::mirrored_and_shifted(data.test.input_size().width));
            trainer.optimizer.exchange_average();
            run.note(cat(run.test_set_name, " ", task.text(with_views.metrics), " with six views"));
        }
        trained(run, trainer, times, evaluation);
        code = run.end();
    });
    if (plan_dump_)
        for (const auto& [name, f] : {std::pair("training", &trainer.train_step), {"evaluation", &evaluation.predict}})
            run.note(cat("accelerate: ", f->occupancy() * double(f->cache_size), " plans of ", name, ", hit rate ",
                         100 * f->hit_rate(), " %"));
    // On a GPU, profiling waits for each op, so the training takes longer than without it. So there the table omits the
    // line with the time outside of ops.
    if (profile_) run.note(op_times.table(machine.device() ? 0 : seconds));
    return code;
}

TestResult ImageTraining::test(Options& options, par::Group& group, const std::string& model) {
    data_options.validation = 0;
    Machine machine(machine_options, options, group);
    const Context context = machine.context();
    const ContextScope scope(context);
    const TensorFile file = load_model(model);
    const std::unique_ptr<Network> network = make_network(file);
    const data::TrainTest data = load(group, {});
    const Task task = this->task(data.train);
    Evaluation evaluation(group, machine, data.test, columns(data.test), stored_normalise(file, normalise(data.train)),
                          task, [&](const data::Batch& batch, Mode mode) { return forward(*network, batch, mode); });
    const Score score = evaluation.score();
    TestResult result{task.text(score.metrics), Json::object().set("test_loss", score.loss), evaluation.report(score)};
    for (size_t i = 0; i < task.metrics.size(); ++i)
        result.values.set("test_" + task.metrics[i].name, score.metrics[i]);
    for (size_t d = 0; d < task.details.size(); ++d)
        if (const Detail& detail = task.details[d]; detail.table)
            result.tables.emplace_back(detail.member, detail.table(data.test, score.details[d]));
    return result;
}

} // namespace rg
