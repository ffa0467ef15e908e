// See source.h. A copy is CACHE/CHECKSUM, or CHECKSUM.copy if it is temporary. Beside it are the lock, CHECKSUM.lock,
// and for a tar NAME.tar while it arrives and is unpacked. A tar is unpacked into NAME.part, which is renamed when it
// is complete.
#include "data/source.h"

#include "core/checksum.h"
#include "core/clock.h"
#include "core/formatted.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/command.h"
#include "data/dataset.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace rg::data {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kS3 = "s3://", kPipe = "pipe:";
constexpr double kSilence_s = 300;
constexpr double kReserveBytes = 1e9, kReserveFraction = 0.01; // fraction of the disk; the smaller stays free

std::string environment(const char* name) {
    const char* const value = std::getenv(name);
    return value ? value : "";
}

/// Throws Error if the folder holds anything but files and folders.
void check_unpacked(const fs::path& folder) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
        const bool plain = entry.is_regular_file() && !entry.is_symlink() && entry.hard_link_count() == 1;
        RG_CHECK(plain || (entry.is_directory() && !entry.is_symlink()),
                 "expected files and folders in the archive, got a link or a device (",
                 excerpt(entry.path().lexically_relative(folder).string()), ")");
    }
}

/// Returns the program that unpacks the compression of an archive, or "" if it has none.
std::string compressor_of(const std::string& archive) {
    char begin[6] = {};
    std::ifstream(archive, std::ios::binary).read(begin, sizeof begin);
    for (const auto& [bytes, program] :
         {std::pair("\x1F\x8B", "gzip"), {"BZh", "bzip2"}, {"\xFD\x37zXZ", "xz"}, {"\x28\xB5\x2F\xFD", "zstd"}})
        if (std::string_view(begin, sizeof begin).starts_with(bytes)) return program;
    return "";
}

/// Throws Error unless the archive has its end: 1024 zero bytes. GNU tar accepts one that is cut between two files.
void check_end(const std::string& archive) {
    std::ifstream file(archive, std::ios::binary);
    char end[1024] = {};
    file.seekg(-std::streamoff(sizeof end), std::ios::end).read(end, sizeof end);
    RG_CHECK(file && std::all_of(std::begin(end), std::end(end), [](char c) { return c == 0; }),
             "expected a whole tar, got a stream that is cut off, or no tar");
}

/// Throws Error if a copy has filled the disk up to its reserve.
void check_space(const std::string& folder) {
    struct statvfs disk;
    if (::statvfs(folder.c_str(), &disk) != 0) return;
    const double block = double(disk.f_frsize), left = block * double(disk.f_bavail);
    const double reserve = std::min(kReserveBytes, kReserveFraction * block * double(disk.f_blocks));
    RG_CHECK(left >= reserve, "expected that ", formatted("%.1f MB of the disk of ", reserve / 1e6), folder,
             " stay free, got ", formatted("%.1f MB", left / 1e6), "; make room there, or choose another --cache");
}

/// Returns the sum of the sizes of all files below a folder. Other processes may change the folder meanwhile.
double bytes_below(const std::string& folder) {
    double bytes = 0;
    std::error_code gone;
    for (fs::recursive_directory_iterator entry(folder, gone), end; entry != end; entry.increment(gone)) {
        check_stop();
        if (const uintmax_t size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0; !gone)
            bytes += double(size);
    }
    return bytes;
}

void unpack_stream(const std::string& command, const std::string& folder) {
    const std::string archive = folder + ".tar", part = folder + ".part";
    fs::remove_all(part);
    ProgressLines progress(cat("copying ", kPipe, excerpt(command), " into ", folder));
    uintmax_t bytes = 0;
    const double begin = seconds_now();
    double last_growth = begin;
    run_command(cat("(", command, "\n) > ", shell_word(archive)), [&](int64_t, int64_t) {
        std::error_code none;
        if (const uintmax_t size = fs::file_size(archive, none); !none && size != bytes)
            bytes = size, last_growth = seconds_now();
        RG_CHECK(seconds_now() - last_growth < kSilence_s, "silent for ", kSilence_s, " s after ", bytes, " bytes");
        check_space(fs::path(archive).parent_path());
        progress.update([&] {
            const double mb = double(bytes) / 1e6;
            return formatted("copying: %.0f MB, %.1f MB/s", mb, mb / (seconds_now() - begin));
        });
    });
    if (const std::string program = compressor_of(archive); !program.empty()) {
        const std::string plain = folder + ".plain.tar";
        run_command(cat(program, " -dc ", shell_word(archive), " > ", shell_word(plain)),
                    [&](int64_t, int64_t) { check_space(fs::path(archive).parent_path()); });
        fs::rename(plain, archive);
    }
    check_end(archive);
    fs::create_directory(part);
    run_command(cat("LC_ALL=C tar -x -v -i -k --no-same-owner --no-same-permissions -C ", shell_word(part), " -f ",
                    shell_word(archive)),
                [&](int64_t files, int64_t) {
                    check_space(part);
                    progress.update([&] { return cat("copying: ", files, " files unpacked"); });
                });
    check_unpacked(part);
    fs::rename(part, folder);
    fs::remove(archive);
}

/// Returns the first of aws, s5cmd and rclone that is executable in a folder of PATH. Throws Error if there is none.
std::string find_client() {
    const std::string path = environment("PATH");
    for (const char* const client : {"aws", "s5cmd", "rclone"})
        for (const std::string& folder : split(path, ':'))
            if (!folder.empty() && ::access(cat(folder, "/", client).c_str(), X_OK) == 0) return client;
    fail("expected aws, s5cmd or rclone, got none of them (PATH is ", path, "); install one, e.g. Debian's awscli");
}

/// Runs the command of a client that prints a line for each of `files` files.
void copy_objects(const std::string& command, int64_t files, const std::string& folder, ProgressLines& progress) {
    const double begin = seconds_now(), before = bytes_below(folder);
    run_command(command, [&](int64_t lines, int64_t errors) {
        check_space(folder);
        progress.update([&] {
            const int64_t done = std::min(lines + errors, files);
            const double seconds = seconds_now() - begin, mb = std::max(0.0, bytes_below(folder) - before) / 1e6;
            const double left = done > 0 ? double(files - done) / double(done) * seconds : 0;
            return cat("copying: ", done, " of ", files, " files, ", formatted("%.1f MB/s", mb / seconds),
                       done == 0    ? ""
                       : left < 120 ? formatted(", %.0f s left", left)
                                    : formatted(", %.0f min left", left / 60));
        });
    });
}

void synchronise(const std::string& url, const std::string& folder) {
    const std::string client = find_client();
    fs::create_directory(folder);
    ProgressLines progress(cat("copying ", url, " into ", folder, " with ", client));
    int64_t files = 0; // number of files that are new, changed or gone
    run_command(sync_command(client, url, folder, true), [&](int64_t lines, int64_t errors) {
        files = lines + errors; // rclone lists them on standard error
        if (lines > 0) progress.update([&] { return cat("copying: ", lines, " files found"); });
    });
    if (files > 0) copy_objects(sync_command(client, url, folder), files, folder, progress);
    check_unpacked(folder);
}

} // namespace

bool is_remote(const std::string& path) { return path.starts_with(kS3) || path.starts_with(kPipe); }

std::string source_folder(const std::string& path, const std::string& cache) {
    if (!is_remote(path)) return path;
    const std::string source =
        cat(path, "\n", path.starts_with(kS3) ? environment("S3_ENDPOINT") : "", "\n", node_name());
    const bool keep = path.starts_with(kS3) || (!cache.empty() && cache != kNoCache);
    return cat(cache_folder(cache), "/", hex(checksum(source)), keep ? "" : kTemporary);
}

std::string sync_command(const std::string& client, const std::string& url, const std::string& folder, bool dry_run) {
    RG_CHECK(url.starts_with(kS3) && url.size() > kS3.size() && url[kS3.size()] != '/',
             "expected s3://BUCKET/PREFIX, got ", excerpt(url));
    const std::string endpoint = environment("S3_ENDPOINT"), to = shell_word(folder);
    const std::string prefix = url.ends_with('/') ? url : url + "/";
    if (client == "aws")
        return cat("aws s3 sync --delete --exact-timestamps --no-progress ", dry_run ? "--dryrun " : "",
                   shell_word(prefix), " ", to, endpoint.empty() ? "" : cat(" --endpoint-url ", shell_word(endpoint)));
    if (client == "s5cmd")
        return cat("s5cmd ", dry_run ? "--dry-run " : "",
                   endpoint.empty() ? "" : cat("--endpoint-url ", shell_word(endpoint), " "), "sync --delete ",
                   shell_word(prefix + "*"), " ", to, "/");
    std::string remote = ":s3,env_auth=true";
    // rclone ends a quoted value at the next quote, and doubled quotes stand for one.
    if (!endpoint.empty()) remote += cat(",provider=Other,endpoint=\"", endpoint, "\"");
    // rclone lists files on standard error. Without these options, it would add lines about its configuration and its
    // statistics.
    return cat("rclone sync -v --stats 0 --config '' ", dry_run ? "--dry-run " : "",
               shell_word(cat(remote, ":", prefix.substr(kS3.size()))), " ", to);
}

std::shared_ptr<CacheLock> copy_source(const std::string& path, const std::string& cache) try {
    if (!is_remote(path)) return nullptr;
    make_cache(cache_folder(cache));
    const std::string folder = source_folder(path, cache);
    const bool bucket = path.starts_with(kS3), temporary = folder.ends_with(kTemporary);
    const auto copy = std::make_shared<CacheLock>(folder.substr(0, folder.size() - temporary * kTemporary.size()),
                                                  [&] { return !bucket && !temporary && fs::is_directory(folder); });
    if (!copy->exclusive()) return copy;
    if (bucket) {
        synchronise(path, folder);
    } else {
        fs::remove_all(folder);
        unpack_stream(path.substr(kPipe.size()), folder);
    }
    if (!temporary) copy->downgrade();
    return copy;
} catch (const fs::filesystem_error& error) {
    fail("data: cannot write ", error.path1().string(), ": ", error.code().message());
} catch (const Error& error) {
    fail("data: ", excerpt(path), ": ", error.what());
}

} // namespace rg::data
