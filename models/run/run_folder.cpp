// See run_folder.h. Each line of metrics.jsonl is appended with one write(), so a kill damages at most the last line.
// The other files of a run are written atomically. Of these, this file writes config.json and owner.json.
#include "models/run/run_folder.h"

#include "core/atomic_file.h"
#include "core/text.h"
#include "data/cache.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace rg {
namespace {

/// Returns the local time in a format of strftime().
std::string time_text(const char* format) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char text[32];
    std::strftime(text, sizeof text, format, &local);
    return text;
}

/// Returns ", of process 17 on HOST since 2026-11-27 08:30:00", as the owner.json of the run says. Returns "" if it
/// says nothing.
std::string owner_of(const std::string& run) {
    try {
        const Json owner = Json::parse(read_file(run + "/owner.json"), "owner");
        return cat(", of process ", owner.at("process").as_int(), " on ", owner.at("host").as_string(), " since ",
                   owner.at("begun").as_string());
    } catch (const std::exception&) {
        return "";
    }
}

void check_name(const std::string& name) {
    RG_CHECK(name.find('/') == std::string::npos && name != "." && name != "..",
             "run folder: expected a plain name, got \"", name, "\"");
}

/// Returns the name of the run of `program` whose checkpoint folder has the newest file.
std::string newest_run(const std::string& root, const std::string& program) {
    std::pair best{fs::file_time_type::min(), std::string()};
    std::error_code error;
    for (const fs::directory_entry& run : fs::directory_iterator(root, error)) try {
            const Json config = Json::parse(read_file((run.path() / "config.json").string()), "config");
            if (config.at("program").as_string() != program) continue;
            for (const fs::directory_entry& file : fs::directory_iterator(run.path() / "checkpoint"))
                best = std::max(best, std::pair(file.last_write_time(), run.path().filename().string()));
        } catch (const std::exception&) {} // not a run, or one without a checkpoint
    RG_CHECK(!best.second.empty(), "run folder: expected a run of ", program, " with a checkpoint in ", root,
             ", got none; nothing to resume");
    return best.second;
}

/// Returns true if cut_metrics(step, epochs) keeps this line: the line of a step up to `step`, of a test before `step`,
/// or of an epoch up to `epochs`. Other lines are those of the end of a training, which writes them again. Throws Error
/// if the line is not an object, or if its step or epoch is no integer.
bool is_before(const Json& line, int64_t step, int64_t epochs) {
    const Json *at = line.find("step"), *epoch = line.find("epoch");
    const bool early = epoch && epoch->as_int() <= epochs;
    return at ? at->as_int() + is_of_test(line) <= step : early; // a test at `step` is repeated
}

} // namespace

bool is_of_test(const Json& line) {
    bool tested = false;
    for (const auto& [name, value] : line.as_object()) {
        if (name == "step" || name == "epoch") continue;
        if (!name.starts_with("test_") && !name.starts_with("validation_")) return false;
        tested = true;
    }
    return tested;
}

std::string default_runs_folder() {
    std::error_code error;
    std::string up;
    for (fs::path folder = fs::current_path(error);; folder = folder.parent_path(), up += "../") {
        if (fs::is_directory(up + "meson-private", error)) return up + "../runs";
        if (folder == folder.parent_path()) return "runs";
    }
}

RunFolder RunFolder::create(const std::string& root, const std::string& program, const std::string& name,
                            bool make_root) {
    check_name(name);
    std::error_code error;
    if (make_root) fs::create_directories(root, error);
    RG_CHECK(!error, "run folder: cannot create ", root, ": ", error.message());
    const std::string first = name.empty() ? program + "-" + time_text("%Y%m%d-%H%M%S") : name;
    for (int attempt = 1;; ++attempt) {
        const std::string path = cat(root, "/", first, attempt == 1 ? "" : cat("-", attempt));
        if (::mkdir(path.c_str(), 0700) == 0) return RunFolder(path);
        RG_CHECK(errno == EEXIST, "run folder: cannot create ", path, ": ", std::strerror(errno));
        RG_CHECK(name.empty(), "run folder: ", path, " exists already", owner_of(path),
                 "; give another --run-name, or --resume");
    }
}

RunFolder RunFolder::open(const std::string& root, const std::string& program, const std::string& name) {
    check_name(name);
    const std::string path = cat(root, "/", name.empty() ? newest_run(root, program) : name);
    std::error_code error;
    RG_CHECK(fs::is_directory(path, error), "run folder: expected the run ", path,
             ", got no such folder; give the --runs that it is in, or begin it without --resume");
    return RunFolder(path);
}

void RunFolder::lock() {
    if (folder_.get() >= 0) return;
    folder_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Wait up to 2 s. An earlier process of this run may still be ending, and a monitor holds the lock for a moment
    // when it checks whether the run is alive.
    for (int attempt = 0; folder_.get() >= 0 && data::try_lock(folder_.get(), LOCK_EX) == data::Locked::no; ++attempt) {
        RG_CHECK(attempt < 100, "run folder: expected a run that has ended, got one that another process trains (",
                 path_, owner_of(path_), ")");
        ::usleep(20'000);
    }
    ::unlink((path_ + "/stop").c_str()); // it was meant for an earlier process of this run
    for (const std::string& file :
         {owner_path(), config_path(), metrics_path(), report_path(), model_path(), best_model_path()})
        remove_leftovers(file);
    const char* const job = std::getenv("RG_JOB");
    const Json owner = Json::object()
                           .set("host", data::node_name())
                           .set("process", int64_t(::getpid()))
                           .set("begun", time_text("%Y-%m-%d %H:%M:%S"))
                           .set("job", job ? job : "");
    write_file_atomic(owner_path(), owner.dump() + "\n");
}

void RunFolder::write_config(const Json& config) { write_file_atomic(config_path(), config.dump(2) + "\n"); }

void RunFolder::log(const Json& line) {
    if (metrics_.get() < 0)
        metrics_ = Descriptor(::open(metrics_path().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    RG_CHECK(metrics_.get() >= 0, "metrics: cannot open ", metrics_path(), ": ", std::strerror(errno));
    check_in_place();
    const std::string text = line.dump() + "\n";
    const off_t before = ::lseek(metrics_.get(), 0, SEEK_END);
    if (write_all(metrics_.get(), text)) return;
    const int reason = errno;
    const bool repaired = ::ftruncate(metrics_.get(), before) == 0;
    fail("metrics: cannot append to ", metrics_path(), ": ", std::strerror(reason),
         repaired ? "" : "; its last line is cut short");
}

// Only the folder and metrics.jsonl stay open, so only these can be compared with the files that are now at their
// paths.
void RunFolder::check_in_place() const {
    const auto in_place = [](const Descriptor& file, const std::string& path) {
        return file.get() < 0 || data::is_at(file.get(), path);
    };
    RG_CHECK(in_place(folder_, path_) && in_place(metrics_, metrics_path()), "run folder: expected ", path_,
             " as this run made it, got it deleted, renamed or emptied; if it has ",
             "another name now, --resume goes on with that --run-name");
}

void RunFolder::sync() const {
    const Descriptor metrics(::open(metrics_path().c_str(), O_RDONLY | O_CLOEXEC)); // not metrics_, which log() may use
    RG_CHECK(metrics.get() < 0 ? errno == ENOENT : ::fsync(metrics.get()) == 0, "metrics: cannot sync ", metrics_path(),
             ": ", std::strerror(errno));
}

void RunFolder::cut_metrics(int64_t step, int64_t epochs) {
    std::error_code error;
    if (!fs::exists(metrics_path(), error)) return;
    const std::string text = read_file(metrics_path());
    std::string kept;
    Json::parse_lines(
        text, metrics_path(),
        [&](const Json& json, std::string_view line) {
            if (is_before(json, step, epochs)) kept.append(line) += '\n';
        },
        [](const std::string& message) {
            std::fprintf(stderr, "warning: %s; the line was removed\n", printable(message).c_str());
        });
    metrics_ = Descriptor(); // log() then opens the new file
    write_file_atomic(metrics_path(), kept);
}

// One system call both looks for the file and removes it. If there is no file, it takes about a microsecond, which is
// little compared with the line that each step logs.
bool RunFolder::take_stop_request() { return ::unlink((path_ + "/stop").c_str()) == 0; }

void check_stored_command(const std::string& folder, const std::string& option, const std::string& again) {
    if (option.find("pipe:") == std::string::npos) return;
    struct stat info {};
    const bool own = ::stat(folder.c_str(), &info) == 0 && info.st_uid == ::geteuid();
    RG_CHECK(own && !(info.st_mode & (S_IWGRP | S_IWOTH)), "stored options: expected a command of one's own, got \"",
             option, "\" from ", folder, ", which ", own ? "others can write into" : "is another user's",
             "; if it is to be run, ", again);
}

} // namespace rg
