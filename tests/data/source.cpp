// Tests commands, and the copies of what they print or synchronise.
#include "core/atomic_file.h"
#include "core/stop.h"
#include "data/command.h"
#include "data/inflate.h"
#include "data/open.h"
#include "data/source.h"
#include "models/run/load_data.h"
#include "tests/image_sets.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rg::data {
namespace {

namespace fs = std::filesystem;

/// Ends the command with an error when the time is over.
std::function<void(int64_t, int64_t)> within(double seconds) {
    const auto begin = std::chrono::steady_clock::now();
    return [=](int64_t, int64_t) {
        RG_CHECK(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds), "time is over");
    };
}

std::string error_of_command(const std::string& command, double seconds = 60) {
    return error_of([&] { run_command(command, within(seconds)); });
}

/// Returns the error of copying a tar, or "".
std::string error_of_tar(const std::string& command, const std::string& cache) {
    return error_of([&] { copy_source("pipe:" + command, cache); });
}

} // namespace

TEST_SUITE_BEGIN("data");

TEST_CASE("command: runs to its end, and says how it failed") {
    const TempDir dir;
    int64_t lines = 0, error_lines = 0;
    const auto count = [&](int64_t n, int64_t errors) { lines = n, error_lines = errors; };
    run_command("printf 'a\\nb\\n'; echo c >&2", count);
    CHECK((lines == 2 && error_lines == 1));
    // Write more than a pipe holds to both outputs at the same time.
    run_command("yes | head -n 1000000; head -c 300000 /dev/zero >&2", count);
    CHECK(lines == 1000000);
    CHECK(error_of_command("cat") == ""); // standard input is empty
    run_command(cat("printf %s ", shell_word("it's $HOME \"x\" \\ `y`"), " > ", dir / "said"));
    CHECK(read_file(dir / "said") == "it's $HOME \"x\" \\ `y`");

    CHECK(error_of_command("printf 'one\\nt\\033o\\n\\n' >&2; exit 3") == "exit status 3: t\\x1bo");
    CHECK(error_of_command("printf 'progress 1\\rprogress 2' >&2; false") == "exit status 1: progress 2");
    CHECK(error_of_command("kill -9 $$") == "ended by signal 9 (Killed)");
    CHECK(contains(error_of_command("no-such-program-anywhere"), "no-such-program-anywhere"));
    CHECK(error_of_command("exec >&- 2>&-; sleep 20", 0.2) == "time is over");
    // Neither endless messages nor a background job that writes them block us.
    CHECK(contains(error_of_command("yes >&2"), "expected at most 67108864 bytes on standard error, got more: y"));
    const std::string flood = error_of_command("yes >&2 & echo x"); // an error if the shell is slow
    CHECK((flood.empty() || contains(flood, "on standard error")));
    run_command("ls /proc/self/fd", count);
    CHECK(lines <= 4); // the three standard ones, and the folder that ls reads
}

TEST_CASE("command: background jobs of a command end with it") {
    const TempDir dir;
    const auto lives = [](int pid) {
        std::ifstream file(cat("/proc/", pid, "/stat"));
        const std::string stat{std::istreambuf_iterator<char>(file), {}};
        const size_t name_end = stat.rfind(") ");
        return name_end != stat.npos && stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X';
    };
    // In the first case the shell ends at once, and its job becomes a child of init, which writes into a closed pipe.
    // In the second case a job without outputs belongs to a thread that is not the main one.
    const struct {
        std::string jobs;
        double seconds;
    } cases[] = {{"(while sleep 0.05; do echo x; done) & echo $! >&3", 0.3},
                 {R"sh(python3 -c "import subprocess, threading
job = lambda: subprocess.call('sleep 1000 >&- 2>&- & echo \$! >&3; wait', shell=True, close_fds=False)
threading.Thread(target=job).start()")sh",
                  5}};
    // Some kernels are built without the lists of children, by which the second job is found.
    const bool lists = fs::exists(cat("/proc/self/task/", ::getpid(), "/children"));
    for (const auto& c : std::span(cases).first(lists ? 2 : 1)) {
        const std::string pid_file = dir / "pid";
        CHECK(error_of_command("exec 3> " + shell_word(pid_file) + "; " + c.jobs, c.seconds) == "time is over");
        const int pid = std::stoi(read_file(pid_file));
        const auto begin = std::chrono::steady_clock::now();
        while (lives(pid) && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) ::usleep(10'000);
        CHECK_FALSE(lives(pid));
        ::kill(pid, SIGKILL);
    }
}

TEST_CASE("stop request: ends every long part of loading at once") {
    const TempDir dir;
    fs::create_directory(dir / "class");
    std::ofstream(dir / "class/image.png") << "no image";
    const pid_t child = ::fork(); // a stop request cannot be withdrawn
    REQUIRE(child >= 0);
    if (child == 0) { // no doctest in the child: the exit status is the result
        request_stop();
        const auto stops = [](const std::function<void()>& work) {
            try {
                work();
            } catch (const Stopped&) {
                return true;
            } catch (const std::exception&) {}
            return false;
        };
        const uint8_t zlib[] = {0x78, 1, 1, 0, 0, 0xFF, 0xFF, 0, 0, 0, 1}; // an empty stream
        const std::function<void()> all[] = {
            [] { run_command("sleep 1000"); },
            [&] { copy_source("pipe:sleep 1000", dir / "cache"); },
            [&] { inflate_zlib(zlib, 10); },
            [&] { read_image_folder(dir.path(), 3); },
        };
        for (int i = 0; i < 4; ++i)
            if (!stops(all[i])) ::_exit(i + 1);
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("source: a tar is unpacked once, whole or not at all") {
    const TempDir dir;
    const std::string cache = dir / "cache";
    fs::create_directories(dir / "a/cat");
    for (const char* name : {"a/cat/1", "a/cat/2", "a/it's $HOME `y`\n"}) write_file_atomic(dir / name, name);
    const std::string tar = cat("tar -cC ", shell_word(dir / "a"), " .");
    for (const std::string& command : {tar, tar + " | gzip", cat("tar -cC ", dir / "a", " cat/1; tar -cC ", dir / "a", " cat/2"),
                                       tar + " --format=pax", tar + " --format=ustar"}) {
        const std::string path = cat("pipe:echo x >> ", shell_word(dir / "log"), "; ", command);
        fs::remove(dir / "log");
        for (int i = 0; i < 2; ++i) copy_source(path, cache);
        CHECK(read_file(dir / "log") == "x\n");
        const std::string folder = source_folder(path, cache);
        for (const char* name : {"cat/1", "cat/2"}) CHECK(read_file(folder + "/" + name) == cat("a/", name));
    }
    // A cut stream, a failed command and another format leave nothing behind.
    run_command(cat(tar, " > ", dir / "whole.tar"));
    const std::string whole = read_file(dir / "whole.tar");
    size_t end = whole.size();
    while (whole[end - 1] == '\0') --end;
    const size_t after_last_file = (end + 511) / 512 * 512;
    for (const size_t cut : {size_t{0}, size_t{1}, size_t{700}, size_t{1024}, after_last_file - 512, after_last_file}) {
        CAPTURE(cut);
        write_file_atomic(dir / "cut.tar", whole.substr(0, cut));
        for (const char* command : {"cat ", "gzip -c "})
            CHECK(contains(error_of_tar(command + dir / "cut.tar", cache), "expected a whole tar"));
    }
    CHECK(contains(error_of_tar(tar + "; echo nothing left >&2; false", cache), "exit status 1: nothing left"));
    CHECK(contains(error_of_tar("echo no tar", cache), "data: pipe:echo no tar: expected a whole tar"));
    CHECK(contains(error_of_tar(tar + " | gzip | head -c 100", cache), "gzip: "));
    int entries = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(cache))
        entries += entry.is_directory() || entry.path().extension() != ".lock";
    CHECK(entries == 5);
}

TEST_CASE("source: refuses archives that reach out of their folder") {
    const TempDir dir;
    write_file_atomic(dir / "make.py", R"(import io, sys, tarfile
archive = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
for name in sys.argv[1:]:
    name, _, kind = name.partition("=")
    info = tarfile.TarInfo(name)
    kind, _, info.linkname = kind.partition(":")
    info.type = {"": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE,
                 "device": tarfile.CHRTYPE}[kind]
    info.size = 0 if kind else 3
    archive.addfile(info, io.BytesIO(b"abc"))
archive.close()
)");
    write_file_atomic(dir / "secret", "s");
    const auto error = [&](const std::string& members) {
        return error_of_tar(cat("python3 ", dir / "make.py", " ", members), dir / "cache");
    };
    CHECK(error("cat/1 dog/2") == "");
    for (const std::string& members :
         {std::string("../out"), std::string("a/../../out"), cat("x=link:", dir.path(), " x/out"),
          cat("cat/1 x=link:", dir / "secret"), std::string("cat/1 x=hard:cat/1"), cat("x=hard:", dir / "secret"),
          std::string("cat/1 pipe=fifo"), std::string("cat/1 null=device"), std::string("cat/1 cat/1"), std::string("cat/1 ./cat/1")}) {
        CAPTURE(members);
        CHECK(error(members) != "");
        CHECK_FALSE(fs::exists(dir / "out"));
        CHECK_FALSE(fs::exists(dir / "cache/out"));
    }
    CHECK(contains(error("../out"), "exit status 2: tar: ../out: "));
    CHECK(error(dir / "absolute") == ""); // tar removes the slash
    CHECK_FALSE(fs::exists(dir / "absolute"));
}

TEST_CASE("source: a cache is readable by its user only, and its names reveal nothing") {
    const TempDir dir;
    write_file_atomic(dir / "x.tar", std::string(10240, '\0'));
    const std::string secret = cat("pipe:token=s3cret; cat ", dir / "x.tar"), folder = dir / "a/b/";
    std::string cache = folder;
    const auto copy = [&] { copy_source(secret, cache); };
    const auto mode = [](const fs::path& path) { return int(fs::status(path).permissions()) & 0777; };
    const mode_t before = ::umask(0);
    copy();
    ::umask(before);
    CHECK(mode(folder) == 0700);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
        for (const char* told : {"s3cret", "token", "pipe"}) CHECK_FALSE(contains(entry.path().string().substr(folder.size()), told));
    cache = dir / "open"; // a folder that exists keeps its permissions
    fs::create_directory(cache);
    for (const int writable : {0775, 0757, 01777}) {
        fs::permissions(cache, fs::perms(writable));
        CHECK(contains(error_of(copy), cat("others can write into; run chmod go-w ", shell_word(cache))));
    }
    fs::permissions(cache, fs::perms(0755));
    copy();
    if (::chown(cache.c_str(), 65534, gid_t(-1)) == 0) { // only root may do this
        CHECK(contains(error_of(copy), cache + ", which is another user's"));
        REQUIRE(::chown(cache.c_str(), ::geteuid(), gid_t(-1)) == 0);
    }
    cache = "/dev/null/x";
    CHECK(contains(error_of(copy), "cache: cannot make the folder /dev/null/x: "));
}

TEST_CASE("source: clients get the bucket and the folder as single words") {
    ::unsetenv("S3_ENDPOINT");
    CHECK(sync_command("aws", "s3://b/a b", "/c d") ==
          "aws s3 sync --delete --exact-timestamps --no-progress 's3://b/a b/' '/c d'");
    CHECK(sync_command("s5cmd", "s3://b", "/c") == "s5cmd sync --delete 's3://b/*' /c/");
    CHECK(sync_command("rclone", "s3://b/x/", "/c") ==
          "rclone sync -v --stats 0 --config '' :s3,env_auth=true:b/x/ /c");
    CHECK(contains(sync_command("aws", "s3://b", "/c", true), " --dryrun "));
    for (const char* const client : {"s5cmd", "rclone"})
        CHECK(contains(sync_command(client, "s3://b", "/c", true), " --dry-run "));
    ::setenv("S3_ENDPOINT", "http://h:1/$(x)", 1);
    CHECK(contains(sync_command("aws", "s3://b/'", "/c"), "'s3://b/'\\''/' /c --endpoint-url 'http://h:1/$(x)'"));
    CHECK(contains(sync_command("s5cmd", "s3://b", "/c"), "s5cmd --endpoint-url 'http://h:1/$(x)' sync"));
    CHECK(contains(sync_command("rclone", "s3://b", "/c"), "endpoint=\"http://h:1/$(x)\":b/' /c"));
    ::unsetenv("S3_ENDPOINT");
    for (const char* const bad : {"s3://", "s3:///x"}) CHECK(error_of([&] { sync_command("aws", bad, "/c"); }) != "");
}

TEST_CASE("load_data: one rank copies for all of its node, and all report its error") {
    const TempDir dir;
    for (int i = 0; i < 12; ++i) {
        const std::string file = dir / cat("set/", i < 8 ? "train/" : "test/", i % 2 ? "ant/" : "bird/", i, ".png");
        write_image(file, 1, 1, 1, {uint8_t(i)});
    }
    const TrainTest disk = load(dir / "set");
    int number = 0;
    for (const std::string& test : {dir / "set/test", dir / "set", cat("pipe:tar -cC ", dir / "set/test", " .")})
        for (const int ranks : {1, 3}) {
            DataOptions options;
            options.path = cat("pipe:echo x >> ", dir / "log", "; tar -cC ", dir / "set", " . # ", ++number);
            options.test_path = test;
            options.reading.cache = dir / "cache";
            fs::remove(dir / "log");
            par::run_groups(ranks, [&](par::Group& group) {
                const TrainTest sets = load_data(group, options, options.load_options());
                CHECK(pixels_of(sets.train) == pixels_of(disk.train));
                CHECK(sets.train.labels == disk.train.labels);
                CHECK(pixels_of(sets.test) == pixels_of(disk.test));
                CHECK(sets.test.labels == disk.test.labels);
                CHECK(contains(sets.source, cat("images in ", options.path.substr(0, 20))));
            });
            CHECK(read_file(dir / "log") == "x\n");
        }
    const std::string error = error_of([&] {
        par::run_groups(3, [&](par::Group& group) {
            load_data(group, "pipe:echo no such bucket >&2; false", {.cache = dir / "cache"});
        });
    });
    CHECK(contains(error, "exit status 1: no such bucket"));
}

TEST_SUITE_END();

} // namespace rg::data
