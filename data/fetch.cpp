// Fetches, retries and caches data. An attempt fails if the command or the check of its output throws an Error.
#include "ringgrad/data/fetch.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/clock.h"
#include "ringgrad/core/json.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/inflate.h"
#include "ringgrad/data/sha256.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

constexpr int kNoSuchProgram = 127; // exit status of the shell if it finds no such program
constexpr size_t kMaxAnswer = 4096; // bytes of a response that are searched for a server's error

/// Creates the folder, readable by this user only, and its missing parents. An existing folder must belong to this user
/// and be writable by nobody else: other users could put false data into it.
void make_cache(const std::string& folder) {
    std::error_code error;
    fs::create_directories((fs::absolute(folder) / "").parent_path().parent_path(), error);
    const int reason = error ? error.value() : ::mkdir(folder.c_str(), 0700) == 0 ? 0 : errno;
    RG_CHECK(reason == 0 || fs::is_directory(folder, error), "cache: cannot make the folder ", folder, ": ",
             std::strerror(reason));
    struct stat info;
    RG_CHECK(::stat(folder.c_str(), &info) == 0, "cache: cannot read ", folder, ": ", std::strerror(errno));
    RG_CHECK(info.st_uid == ::geteuid(), "cache: expected a folder of your own, got ", folder,
             ", which is another user's; choose another --cache");
    RG_CHECK(!(info.st_mode & (S_IWGRP | S_IWOTH)), "cache: expected a folder that only its user can write into, got ",
             folder, ", which others can write into; run chmod go-w ", shell_word(folder),
             " or choose another --cache");
}

std::string first_line(const std::string& path, const std::string& bytes) {
    return Json::object()
               .set("name", fs::path(path).filename().string())
               .set("bytes", int64_t(bytes.size()))
               .set("crc32", int64_t(crc32(as_bytes(bytes))))
               .dump() +
           "\n";
}

std::optional<std::string> from_cache(const std::string& path) try {
    if (!fs::exists(path)) return {};
    std::string file = read_file(path);
    const size_t end = file.find('\n');
    if (end == std::string::npos) return {};
    std::string line = file.substr(0, end + 1);
    file.erase(0, end + 1);
    if (line != first_line(path, file)) return {};
    return file;
} catch (const Error&) { // unreadable: the file may belong to another user
    return {};
}

/// Writes a file to the cache. If that fails, prints a warning, once per process: the data are still correct, but the
/// next run must fetch them again.
void keep(const std::string& path, const std::string& file) try {
    write_file_atomic(path, file, Readers::owner);
} catch (const Error& error) {
    static std::atomic<bool> warned = false;
    if (!warned.exchange(true))
        std::fprintf(stderr, "warning: cache: %s; the data are used, but not kept\n", printable(error.what()).c_str());
}

/// Returns ": CODE: MESSAGE" if a server's answer contains an error in the XML of S3, else "". Adds advice if the
/// region is wrong.
std::string server_error(std::string_view answer) {
    const auto element = [&](const std::string& tag) {
        const size_t begin = answer.find(cat("<", tag, ">")), end = answer.find(cat("</", tag, ">"));
        if (begin > end || end == answer.npos) return std::string();
        return excerpt(answer.substr(begin + tag.size() + 2, end - begin - tag.size() - 2));
    };
    const std::string code = element("Code");
    if (answer.find("<Error>") == answer.npos || code.empty()) return "";
    const bool wrong_region = code == "PermanentRedirect" || code == "AuthorizationHeaderMalformed";
    return cat(": ", code, ": ", element("Message"),
               wrong_region ? "; set AWS_REGION to the region of the bucket" : "");
}

/// Returns true if the error text of curl, aws, s5cmd or a server has one of these signs of a refusal, which a retry
/// would not change. Other refusals are not recognised, and so retried.
bool is_refusal(const std::string& text) {
    static constexpr const char* kRefusals[] = {
        "returned error: 403", "returned error: 404", "occurred (403)",
        "occurred (404)",      "AccessDenied",        "AuthorizationHeaderMalformed",
        "ExpiredToken",        "InvalidAccessKeyId",  "NoSuchBucket",
        "NoSuchKey",           "PermanentRedirect",   "SignatureDoesNotMatch"};
    return std::any_of(std::begin(kRefusals), std::end(kRefusals),
                       [&](const char* refusal) { return text.find(refusal) != text.npos; });
}

/// Sleeps. After a stop request, throws Stopped within about 20 ms.
void sleep_unless_stopped(double seconds) {
    for (const double begin = seconds_now(); seconds_now() - begin < seconds; check_stop())
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(seconds, 0.02)));
}

} // namespace

std::string fetch(const std::string& url, const std::string& command, const std::function<void(std::string&)>& check,
                  const FetchOptions& options, double total_s) {
    std::string path;
    if (!options.cache.empty()) {
        make_cache(options.cache);
        path = cat(options.cache, "/", sha256(as_bytes(url)));
        if (std::optional<std::string> bytes = from_cache(path)) return std::move(*bytes);
    }
    std::string bytes;
    const double begin = seconds_now();
    double wait = options.first_wait_s;
    for (int64_t attempt = 1;; ++attempt, wait *= 2) {
        try {
            bytes.clear();
            bytes = read_pipe(command, kMaxShard, options.silence_s, begin + total_s - seconds_now());
            check(bytes);
            break;
        } catch (const Error& error) {
            check_stop(); // the command may have failed because Ctrl-C in a terminal also ends it
            const PipeError* const pipe_error = dynamic_cast<const PipeError*>(&error);
            const std::string text =
                error.what() + server_error(pipe_error ? pipe_error->output : bytes.substr(0, kMaxAnswer));
            const bool in_time = seconds_now() + wait < begin + total_s;
            if (attempt > options.retries || !in_time || (pipe_error && pipe_error->status == kNoSuchProgram) ||
                is_refusal(text))
                fail("data: ", url, ": failed ", attempt, attempt == 1 ? " time: " : " times, at last: ", text);
        }
        sleep_unless_stopped(wait);
    }
    if (!path.empty()) keep(path, first_line(path, bytes) + bytes);
    return bytes;
}

} // namespace rg::data
