// The folder of one training run: ROOT/NAME/ with config.json, metrics.jsonl, report.html, model.safetensors,
// model-best.safetensors and checkpoint/. README.md says what they contain.
//
// metrics.jsonl has one JSON object per line. Each line is written as a whole, as soon as its values are known, with
// doubles in full precision. The lines of a step, and of a test after it, have "step", and "epoch" if the run has
// epochs; the line of an epoch has "epoch" but no "step". When a run is resumed, the lines after the checkpoint are
// removed. So the file of a run that was killed and resumed has the same steps as the file of an uninterrupted run. A
// folder belongs to one run: no function here overwrites files of another run. Only rank 0 of a run has a RunFolder.
//
// A running run holds a lock on its folder (flock). The lock keeps other processes from training the same run, and
// shows tools/monitor that the run is alive. The file owner.json says which process locked it last: "host", "process",
// "begun", and "job", the environment variable RG_JOB. By the job, tools/run.sh knows its own runs. A file named "stop"
// in the folder is a stop request. On a file system without locks, other processes can train the same run, and the
// monitor shows every run as ended.
#pragma once

#include "core/descriptor.h"
#include "core/json.h"

namespace rg {

/// Returns the default of --runs: runs/ in the current folder. In a build folder (one that holds meson-private) and
/// below it, the default is runs/ beside the build folder, because `meson setup --wipe` deletes everything in a build
/// folder. tools/run.sh and models/bindings/ringgrad.py follow the same rule.
std::string default_runs_folder();

/// Returns true if a line of metrics.jsonl has results, and all are of a test.
bool is_of_test(const Json& line);

class RunFolder {
public:
    /// Creates ROOT/NAME, which only this user can read, since options may hold a token. If `name` is empty, the name
    /// is PROGRAM-YYYYMMDD-HHMMSS, followed by -2, -3, ... if that folder exists. With `make_root`, creates ROOT if
    /// necessary. Throws Error if the folder of a given `name` exists (and names its owner), if `name` is not a plain
    /// file name, or if the folder cannot be created.
    static RunFolder create(const std::string& root, const std::string& program, const std::string& name,
                            bool make_root = true);
    /// Opens an existing run, and changes nothing in it. If `name` is empty, opens the run with the newest checkpoint
    /// among the runs of `program` (by config.json). Throws Error if there is no such run, or if `name` is not a plain
    /// file name.
    static RunFolder open(const std::string& root, const std::string& program, const std::string& name);

    const std::string& path() const { return path_; }
    std::string owner_path() const { return path_ + "/owner.json"; }
    std::string config_path() const { return path_ + "/config.json"; }
    std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
    std::string report_path() const { return path_ + "/report.html"; }
    std::string model_path() const { return path_ + "/model.safetensors"; }
    std::string best_model_path() const { return path_ + "/model-best.safetensors"; }
    std::string checkpoint_path() const { return path_ + "/checkpoint"; }

    /// Locks the folder until this object is destroyed, if the file system has locks. Writes owner.json. Removes an old
    /// file "stop", and incomplete files that killed processes have left. Throws Error, which names the owner, if
    /// another process holds the lock for 2 s. No-op if this object has locked the folder already.
    void lock();

    /// Throws Error if the locked folder, or its open metrics.jsonl, was deleted, renamed or replaced. Call this after
    /// long work, before other files of the run are written. Those are opened by path. So without this check, a write
    /// could create a file where the user has removed the run.
    void check_in_place() const;

    /// Writes config.json, indented. Both a training and a sweep pass an object with "program", "version", "ranks" and
    /// "options"; a training also with "seed" and "metrics", a sweep with "arguments", "trials" and "fingerprints" (of
    /// the sets of images). The pages take units
    /// and directions from "metrics": a list of MetricInfo::json() (task.h), the main one first; without it, they show
    /// losses.
    void write_config(const Json& config);

    /// Appends one line to metrics.jsonl. If the write fails, tries to remove the incomplete line, and throws Error
    /// with the path and the reason. Also throws the errors of check_in_place().
    void log(const Json& line);
    /// Blocks until all logged lines are on the disk. Call it before a checkpoint is saved: a run that is resumed from
    /// the checkpoint needs all lines up to it. Another thread may call log() meanwhile.
    void sync() const;
    /// Removes from metrics.jsonl the lines of steps after `step`, of epochs after `epochs`, and of the tests at `step`
    /// and at the end of a training ("end"), which a resumed run repeats. Also removes damaged lines, with a warning on
    /// standard error, and a last line that a kill has cut off.
    void cut_metrics(int64_t step, int64_t epochs);

    /// Returns true if the folder has a file "stop", and removes the file, so each request is returned once.
    bool take_stop_request();

private:
    explicit RunFolder(std::string path) : path_(std::move(path)) {}

    std::string path_;
    Descriptor folder_;  // holds the lock
    Descriptor metrics_; // metrics.jsonl; none until the first log(), and after cut_metrics() until the next
};

/// Checks the value of an option that a resumed run reads from its folder. Throws Error if the value contains a command
/// (pipe:) and another user may have written it: the folder belongs to another user, or others can write into it.
/// `again` ends the error message; it says how to type the option instead.
void check_stored_command(const std::string& folder, const std::string& option, const std::string& again);

} // namespace rg
