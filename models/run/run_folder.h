// The folder of one training run: ROOT/NAME/ with config.json, metrics.jsonl, report.html, model.safetensors and
// checkpoint/.
//
// metrics.jsonl has one JSON object per line, written whole as soon as it is known, doubles in full precision: step
// lines carry "step" and "epoch", epoch lines "epoch" alone. On resume the lines after the checkpoint are cut, so
// that the file of a killed and resumed run has the same steps as that of one that ran through. A name belongs to one
// run: nothing here overwrites another one's files. Under MPI only rank 0 has one of these.
//
// A lock on the folder (flock) keeps others from training the same run, and tells those who watch (tools/monitor) that
// it lives. A file named "stop" in it asks it to stop. On file systems without locks a run passes for one that has
// ended.
#pragma once

#include "core/json.h"

namespace rg {

/// Returns the default of --runs: runs/ of the current folder. Inside a build folder (one that holds meson-private) it is
/// runs/ beside that folder, because `meson setup --wipe` deletes everything in a build folder. tools/run.sh and
/// tools/monitor follow the same rule.
std::string default_runs_folder();

class RunFolder {
public:
    /// Makes ROOT/NAME, for this user alone: options may hold a token. An empty name becomes PROGRAM-YYYYMMDD-HHMMSS,
    /// with -2, -3, ... if taken. Error: the name exists or is no plain file name; the folder cannot be made; without
    /// `make_root`, ROOT does not exist.
    static RunFolder create(const std::string& root, const std::string& program, const std::string& name,
                            bool make_root = true);
    /// Opens an existing run, and changes nothing in it. An empty name means the run of `program` (by config.json)
    /// whose checkpoint is newest. Error: no such run.
    static RunFolder open(const std::string& root, const std::string& program, const std::string& name);

    RunFolder(RunFolder&& other) noexcept;
    RunFolder(const RunFolder&) = delete;
    ~RunFolder();

    const std::string& path() const { return path_; }
    std::string config_path() const { return path_ + "/config.json"; }
    std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
    std::string report_path() const { return path_ + "/report.html"; }
    std::string model_path() const { return path_ + "/model.safetensors"; }
    std::string checkpoint_path() const { return path_ + "/checkpoint"; }

    /// From here on until the end of this object the run is taken, and seen to live; what kills have left of its files
    /// goes. Error: another process has it.
    void lock();

    /// Throws if the folder, once it is locked, was deleted or renamed, or its metrics were. Files are written by path:
    /// call it before a write that follows long work, so that nothing of a run comes back under a name that was taken
    /// from it.
    void check_in_place() const;

    /// Writes config.json, indented. Convention: "program", "version", "ranks", "seed", "options".
    void write_config(const Json& config);

    /// Appends one line to metrics.jsonl. Error: path and reason; a half-written line is taken back; or what
    /// check_in_place() throws.
    void log(const Json& line);
    /// Returns when all logged lines are on the disk. Call it before a checkpoint that relies on them.
    void sync();
    /// Keeps step lines up to `step` and epoch lines up to `epochs`; drops later ones and damaged ends of killed runs.
    void cut_metrics(int64_t step, int64_t epochs);

    /// Whether someone has asked the run to stop; says so once.
    bool take_stop_request();

private:
    explicit RunFolder(std::string path) : path_(std::move(path)) {}
    void open_metrics();

    std::string path_;
    int folder_ = -1;  // descriptor that holds the lock
    int metrics_ = -1; // descriptor, opened by the first line
};

/// Requires that an option that is stored in a run's folder, and goes on with it, holds no command (pipe:) of others:
/// the folder is this user's own, and nobody else can write into it. `again`: how to type the option instead.
void check_stored_command(const std::string& folder, const std::string& option, const std::string& again);

} // namespace rg
