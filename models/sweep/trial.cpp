// See trial.h.
#include "ringgrad/models/sweep/trial.h"

#include "ringgrad/models/run/signals.h"

#include <filesystem>
#include <fstream>

namespace fs = std::filesystem;

namespace rg {
namespace {

/// Returns true if a run has a complete checkpoint. A kill may leave an incomplete one with another ending.
bool has_checkpoint(const std::string& run) {
    std::error_code none;
    for (const fs::directory_entry& file : fs::directory_iterator(run + "/checkpoint", none))
        if (file.path().extension() == ".safetensors") return true;
    return false;
}

/// Connects a training with the pool: passes on its metrics, and stops it by rules of fixed values or on request.
class PooledTrial final : public TrainingObserver {
public:
    PooledTrial(par::TaskContext& task, const Trials& trials) : task_(task), trials_(trials) {}
    bool standalone() const override { return false; }
    bool on_metrics(const Json& line) override {
        task_.report(line);
        if (is_epoch(line) && stop_reason_.empty()) stop_reason_ = trials_.rules.reason(line, trials_.ranking);
        if (stop_reason_.empty() && task_.cancelled()) stop_reason_ = "on request";
        return !stop_reason_.empty();
    }
    void end(bool stopped) override {
        complete_ = !stopped;
        if (stopped && stop_reason_.empty()) stop_reason_ = "on request";
    }
    void pulse() override { (void)task_.cancelled(); }
    bool complete() const { return complete_; }
    const std::string& stop_reason() const { return stop_reason_; }

private:
    par::TaskContext& task_;
    const Trials& trials_;
    // complete_ and stop_reason_ are set only on the group's first rank.
    bool complete_ = false;
    std::string stop_reason_; // empty: no reason to stop; also set if a rule applied only after the last epoch
};

} // namespace

bool is_epoch(const Json& line) { return line.find("epoch") && !line.find("step"); }

void for_each_epoch(const std::string& run, const std::function<void(const Json&)>& use) try {
    std::ifstream file(run + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("{\"epoch\"")) use(Json::parse(line, run));
} catch (const Error&) {}

Json last_epoch(const std::string& run) {
    Json last;
    for_each_epoch(run, [&](const Json& epoch) { last = epoch; });
    return last;
}

Json run_trial(par::TaskContext& task, const Json& args, const std::string& runs, const Trials& trials) {
    par::Group& group = task.group();
    const std::string& name = args.at("name").as_string();
    const std::string folder = runs + "/" + name;
    std::error_code none;
    RG_CHECK(group.rank() != 0 || fs::is_directory(runs, none), "trial: expected the folder ", runs,
             ", got none; it was deleted or renamed");
    const bool resumes = group.all(has_checkpoint(folder), "checkpoint");
    std::vector<std::string> arguments = args.at("arguments").as_texts();
    if (resumes) {
        arguments = without_init(arguments);
        arguments.push_back("--resume");
    } else if (group.rank() == 0) {
        fs::remove_all(folder, none);
    }
    group.barrier("folder");
    arguments.push_back("--runs=" + runs);
    arguments.push_back("--run-name=" + name);
    PooledTrial trial(task, trials);
    const int code = trials.program->run(group, arguments, trial);
    RG_CHECK(code == 0, "trial: expected exit code 0, got ", code);
    if (group.rank() != 0) return {};
    RG_CHECK(trial.complete() || !stop_requested(), "interrupted"); // fails the task, so --resume runs it again
    const std::string reason = trial.complete() ? "" : trial.stop_reason();
    return Json::object().set("last", last_epoch(folder)).set("stopped", reason);
}

} // namespace rg
