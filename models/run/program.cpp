// See training.h. Defines ImageTraining::test() and the functions of Program.
#include "core/stop.h"
#include "core/text.h"
#include "models/run/evaluation.h"
#include "models/run/model_file.h"
#include "models/run/training.h"

#include <set>

namespace rg {

TestResult ImageTraining::test(Options& options, par::Group& group, const std::string& model) {
    data_options.validation = 0;
    Compute compute(compute_options, options, group);
    const Context context = compute.context();
    const ContextScope scope(context);
    const TensorFile file = load_model(model);
    data_options.follow(file);
    const std::unique_ptr<Network> network = make_network(file);
    const data::TrainTest data = load(group, {});
    Task task = this->task(data.train);
    if (test_views_) task.check_test_views();
    task.set_target_scales(data.train, &file);
    const Columns columns{{&data.test, this->columns(data.test)}};
    Evaluation evaluation(group, compute, data.test, columns.at(&data.test),
                          stored_normalise(file, normalise(data.train)), data_options.batch_size, task,
                          [&](const data::Batch& batch, Mode mode) { return forward(*network, batch, mode); });
    const Score score = evaluation.score({{}}, check_stop);
    TestResult result{task.text(score.metrics),
                      Json::object().set("test_loss", score.loss),
                      evaluation.report_members(score),
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
    result.tables = evaluation.tables(score);
    return result;
}

namespace {

/// A training, and its options with the values of the arguments.
struct Parsed {
    Parsed(const Program& program, const std::vector<std::string>& args,
           const std::vector<std::pair<std::string, std::string>>& commands = {})
        : training(program.make()), options(program.name, program.description) {
        options.add_examples({program.examples.begin(), program.examples.end()}, "mpiexec -n 4 ");
        options.commands(commands);
        training->declare(options);
        if (*program.matlab)
            options
                .add("preset", &preset,
                     cat("matlab: the settings of MATLAB's example, ", program.matlab,
                         ", with this batch size for each GPU; other options override them"))
                .one_of({"none", "matlab"})
                .fixed();
        const auto net = [&] {
            const auto values = options.values();
            const auto entry = std::ranges::find(values, "net", [](const auto& value) { return value.first; });
            return entry == values.end() ? "" : entry->second;
        };
        const std::string usual_net = net();
        wants_training = options.parse(args);
        if (preset == "none" || training->run_options.resume) return; // a checkpoint has the settings
        training->batch_size_per_gpu = !options.was_given("batch-size");
        const bool drops = options.was_given("drops") || options.was_given("schedule");
        std::vector<std::string> settings = split(program.matlab, ' ');
        std::erase_if(settings, [&](const std::string& setting) {
            const std::string name = setting.substr(2, setting.find('=') - 2);
            return options.was_given(name) || (drops && name == "drop-every") ||
                   (net() != usual_net && name == "initializer"); // an option of that network
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

Json Program::check_fixed(const std::vector<std::string>& args) const {
    const Parsed parsed(*this, args);
    Json fixed = Json::object();
    for (const auto& [name, value] : parsed.options.values())
        if (parsed.options.is_fixed(name) || name == "epochs" || name == "steps") fixed.set(name, value);
    return fixed;
}

Program::DataCheck Program::check_data(par::Group& group, const std::vector<std::string>& args) const {
    const Parsed parsed(*this, args);
    const data::TrainTest data = parsed.training->checked_data(group, {});
    Json sets = Json::object().set("training set", data::fingerprint(data.train));
    sets.set(parsed.training->data_options.test_set_name() + " set", data::fingerprint(data.test));
    if (data.reserved.count > 0) sets.set("test set", data::fingerprint(data.reserved));
    return {data.warnings, parsed.training->metrics(data.train), sets};
}

TestResult Program::test_run(par::Group& group, const std::string& model, const Json& given) const {
    const Json* const threads = given.find("threads"); // whose default depends on Options::was_given()
    Parsed parsed(*this, threads ? std::vector{"--threads=" + threads->as_string()} : std::vector<std::string>{});
    std::string folder;
    const Json config = config_of(model, folder);
    // A run divides --batch-size among its ranks, and its GPUs may be missing here, or not be those of --device.
    const std::set<std::string> of_ranks{"threads", "batch-size", "gpus"};
    for (const auto& [name, value] : parsed.options.values()) {
        const Json* chosen = given.find(name);
        if (!chosen && !of_ranks.contains(name)) chosen = config.at("options").find(name);
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
    return parsed.options.print_help_or_version(group.rank() == 0);
}

} // namespace rg
