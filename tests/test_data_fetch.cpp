// Tests data of commands: pipes, retries, the cache, and the lists and commands of S3.
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/data/fetch.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/inflate.h"
#include "ringgrad/data/pipe.h"
#include "ringgrad/data/s3.h"
#include "ringgrad/data/sha256.h"
#include "ringgrad/tests/temp_dir.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rg::data {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

const FetchOptions kQuick{.cache = {}, .retries = 2, .first_wait_s = 0.01, .silence_s = 20};

/// Limits the size of files to `bytes` until the end of the scope. Ignores the signal that would end the process.
class SmallFiles {
public:
    explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit limit{bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~SmallFiles() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    SmallFiles(const SmallFiles&) = delete;
    SmallFiles& operator=(const SmallFiles&) = delete;

private:
    rlimit before_{};
    void (*handler_)(int);
};

} // namespace

TEST_SUITE_BEGIN("data");

TEST_CASE("pipe: returns all output of a command, and how it ended") {
    CHECK(read_pipe("printf 'a\\0b\\n'; echo c >&2", 10, 10) == std::string("a\0b\n", 4));
    CHECK(read_pipe("true", 10, 10).empty());
    CHECK(read_pipe("cat", 10, 10).empty()); // standard input is empty
    // Write more than a pipe holds to both outputs at the same time.
    CHECK(read_pipe("head -c 3000000 /dev/zero; head -c 300000 /dev/zero >&2", 3000000, 10).size() == 3000000);
    CHECK(read_pipe("head -c 300000 /dev/zero >&2; echo x", 10, 10) == "x\n");
    CHECK(read_pipe("echo " + shell_word("it's $HOME \"x\" \\ `y`"), 99, 10) == "it's $HOME \"x\" \\ `y`\n");

    const auto error = [](const std::string& command) { return error_of([&] { read_pipe(command, 100, 0.3); }); };
    CHECK(error("printf abc; printf 'one\\nt\\033o\\n\\n' >&2; exit 3") == "exit status 3 after 3 bytes: t\\x1bo");
    CHECK(error("printf 'progress 1\\rprogress 2' >&2; false") == "exit status 1 after 0 bytes: progress 2");
    CHECK(error("kill -9 $$") == "ended by signal 9 (Killed) after 0 bytes");
    CHECK(contains(error("yes"), "at most 100 bytes"));
    CHECK(contains(error("echo x; echo waiting >&2; sleep 20"), "silent for 0.3 s after 2 bytes: waiting"));
    CHECK(contains(error("exec >&- 2>&-; sleep 20"), "silent for 0.3 s after 0 bytes"));
    // Neither endless messages nor a background job that writes them block us. Data have a time limit too.
    CHECK(contains(error("yes >&2"), "expected at most 67108864 bytes on standard error, got more: y"));
    const std::string flood = error_of([] { read_pipe("yes >&2 & echo x", 10, 10); }); // an error if the shell is slow
    CHECK((flood.empty() || contains(flood, "on standard error")));
    CHECK(contains(error_of([] { read_pipe("while printf x; do sleep 0.05; done", 1000, 10, 0.5); }),
                   "pipe: expected an end within 0.5 s, got "));
    try {
        read_pipe("no-such-program-anywhere", 100, 10);
        FAIL("no error");
    } catch (const PipeError& e) {
        CHECK(e.status == 127);
        CHECK(contains(e.what(), "no-such-program-anywhere"));
    }
}

TEST_CASE("pipe: the child inherits no descriptors, and ends when the reader closes") {
    const TempDir dir;
    const std::string descriptors = read_pipe("ls /proc/self/fd | wc -l", 100, 10);
    CHECK(std::stoi(descriptors) <= 4); // the three standard ones, and the folder that ls reads
    CHECK(contains(error_of([&] { read_pipe("yes; touch " + shell_word(dir / "lived"), 100, 10); }), "at most 100"));
    CHECK_FALSE(fs::exists(dir / "lived"));
}

TEST_CASE("pipe: background jobs of a command end with it") {
    const TempDir dir;
    const auto lives = [](int pid) {
        const std::string path = cat("/proc/", pid, "/stat");
        std::ifstream file(path);
        const std::string stat{std::istreambuf_iterator<char>(file), {}};
        const size_t name_end = stat.rfind(") ");
        return name_end != stat.npos && stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X';
    };
    // The shell ends at once, and its job becomes a child of init. The first job holds standard output. In the second
    // case a job holds only standard error, while another one without both keeps the shell alive. In the third case a
    // job without both belongs to a thread that is not the main one.
    const struct {
        std::string jobs;
        double silence_s;
    } cases[] = {{"sleep 1000 & echo $! >&3", 0.3},
                 {"(sleep 1000 >&- & echo $! >&3); sleep 1000 >&- 2>&-", 0.3},
                 {R"sh(python3 -c "import subprocess, threading
job = lambda: subprocess.call('sleep 1000 >&- 2>&- & echo \$! >&3; wait', shell=True, close_fds=False)
threading.Thread(target=job).start()")sh",
                  5}};
    // Some kernels are built without the lists of children, by which the third job is found.
    const bool lists = fs::exists(cat("/proc/self/task/", ::getpid(), "/children"));
    for (const auto& c : std::span(cases).first(lists ? 3 : 2)) {
        const std::string pid_file = dir / "pid", command = "exec 3> " + shell_word(pid_file) + "; " + c.jobs;
        CHECK(contains(error_of([&] { read_pipe(command, 10, c.silence_s); }), "silent"));
        const int pid = std::stoi(read_file(pid_file));
        const auto begin = std::chrono::steady_clock::now();
        while (lives(pid) && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) ::usleep(10'000);
        CHECK_FALSE(lives(pid));
        ::kill(pid, SIGKILL);
    }
}

TEST_CASE("fetch: retries with growing waits, and reports each failure") {
    const TempDir dir;
    const std::string count = shell_word(dir / "count");
    const auto whole = [](std::string& bytes) { RG_CHECK(bytes == "data\n", "expected data; the stream was cut"); };
    const auto attempts = [&] { return read_file(dir / "count").size(); };
    const auto succeeding_at = [&](int n) {
        return cat("printf x >> ", count, "; [ $(wc -c < ", count, ") -ge ", n,
                   " ] || { echo busy >&2; exit 7; }; echo data");
    };
    const auto begin = std::chrono::steady_clock::now();
    CHECK(fetch("u", succeeding_at(3), whole, {.cache = {}, .retries = 2, .first_wait_s = 0.1}) == "data\n");
    CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() >= 0.3); // 0.1 + 0.2
    CHECK(attempts() == 3);
    CHECK(error_of([&] { fetch("s3://b/k", succeeding_at(99), whole, kQuick); }) ==
          "data: s3://b/k: failed 3 times, at last: exit status 7 after 0 bytes: busy");
    CHECK(attempts() == 6);
    // Incomplete data with exit status 0 are a failure too.
    CHECK(error_of([&] { fetch("u", cat("printf x >> ", count, "; echo dat"), whole, kQuick); }) ==
          "data: u: failed 3 times, at last: expected data; the stream was cut");
    CHECK(attempts() == 9);
    CHECK(contains(error_of([&] { fetch("u", "no-such-program-anywhere", whole, kQuick); }),
                   "failed 1 time: exit status 127"));
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
            [] { read_pipe("sleep 1000", 10, 1000); },
            [] { fetch("u", "false", [](std::string&) {}, {.cache = {}, .retries = 1, .first_wait_s = 1000}); },
            [&] { inflate_zlib(zlib, 10); },
            [&] { read_image_folder(dir.path(), 3, {}, false); },
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

TEST_CASE("fetch: quotes the server's answer, and does not retry a refusal") {
    const TempDir dir;
    const auto list = [](std::string&) { fail("expected a list, got another answer"); };
    const auto error = [&](const std::string& code, const std::string& end) {
        fs::remove(dir / "count");
        const std::string answer = cat("<?xml?>\n<Error><Code>", code, "</Code><Message>So\nit is</Message></Error>");
        return error_of([&] {
            fetch("u", cat("printf x >> ", shell_word(dir / "count"), "; printf %s ", shell_word(answer), "; ", end),
                  list, kQuick);
        });
    };
    const auto attempts = [&] { return read_file(dir / "count").size(); };
    const std::string curl = "echo 'curl: (22) The requested URL returned error: ";
    CHECK(contains(error("AnyCode", curl + "403' >&2; exit 22"), "u: failed 1 time: exit status 22 after "));
    CHECK(contains(error("AnyCode", curl + "403' >&2; exit 22"), "returned error: 403: AnyCode: So\\nit is"));
    CHECK(attempts() == 1);
    CHECK(contains(error("SlowDown", curl + "503' >&2; exit 22"), "failed 3 times"));
    CHECK(attempts() == 3);
    // curl returns 0 for a 301.
    CHECK(error("PermanentRedirect", "true") ==
          "data: u: failed 1 time: expected a list, got another answer: "
          "PermanentRedirect: So\\nit is; set AWS_REGION to the region of the bucket");
    CHECK(attempts() == 1);
    error("", "echo 'An error occurred (AccessDenied) when calling the ListObjectsV2 operation: No' >&2; exit 254");
    CHECK(attempts() == 1);
    CHECK(contains(error("", "exit 7"), "failed 3 times, at last: exit status 7 after "));
}

TEST_CASE("fetch: uses the cache instead of the command, unless it is damaged") {
    const TempDir dir;
    const std::string folder = dir / "deep/cache";
    FetchOptions options = kQuick;
    options.cache = folder;
    const auto any = [](std::string&) {};
    const auto get = [&](const std::string& url, const std::string& text) {
        return fetch(url, "printf '%s' " + shell_word(text), any, options);
    };
    CHECK(get("s3://b/k", "first\nsecond") == "first\nsecond");
    CHECK(get("s3://b/k", "other") == "first\nsecond");
    CHECK(fetch("s3://b/k", "false", any, options) == "first\nsecond");
    CHECK(get("s3://b/K", "other") == "other");

    const std::string path = folder + "/" + sha256(as_bytes("s3://b/k")), content = read_file(path);
    for (size_t size = 0; size < content.size(); ++size) {
        write_file_atomic(path, content.substr(0, size));
        REQUIRE(get("s3://b/k", "first\nsecond") == "first\nsecond");
        REQUIRE(read_file(path) == content);
    }
    for (size_t at = 0; at < content.size(); ++at) {
        std::string damaged = content;
        damaged[at] ^= 1;
        write_file_atomic(path, damaged);
        REQUIRE(get("s3://b/k", "anew") == "anew");
        write_file_atomic(path, content);
    }
    // A failure leaves no file in the cache.
    const auto entries = [&] { return std::distance(fs::directory_iterator(folder), fs::directory_iterator()); };
    const auto before = entries();
    CHECK_THROWS_AS(fetch("s3://b/bad", "printf half; false", any, options), Error);
    CHECK(entries() == before);
}

TEST_CASE("fetch: a cache is readable by its user only, and its names reveal nothing") {
    const TempDir dir;
    FetchOptions options = kQuick;
    const std::string secret = "pipe:curl -H 'Authorization: Bearer t0ken' https://h/a?sig=s3cret",
                      folder = dir / "a/b/";
    const auto get = [&] {
        return fetch(
            secret, "echo data", [](std::string&) {}, options);
    };
    const auto mode = [](const fs::path& path) { return int(fs::status(path).permissions()) & 0777; };
    const mode_t before = ::umask(0);
    options.cache = folder;
    get();
    options.cache = dir / "open"; // a folder that exists keeps its permissions
    fs::create_directory(options.cache);
    fs::permissions(options.cache, fs::perms(0755));
    get();
    ::umask(before);
    CHECK(mode(folder) == 0700);
    CHECK(mode(dir / "open") == 0755);
    for (const int writable : {0775, 0757, 01777}) {
        fs::permissions(options.cache, fs::perms(writable));
        CHECK(contains(error_of([&] { get(); }),
                       cat("others can write into; run chmod go-w ", shell_word(options.cache))));
    }
    fs::permissions(options.cache, fs::perms(0755));
    if (::chown(options.cache.c_str(), 65534, gid_t(-1)) == 0) { // only root may do this
        CHECK(contains(error_of([&] { get(); }), options.cache + ", which is another user's"));
        REQUIRE(::chown(options.cache.c_str(), ::geteuid(), gid_t(-1)) == 0);
    }
    for (const std::string& cache : {folder, dir / "open"})
        for (const fs::directory_entry& entry : fs::directory_iterator(cache)) {
            CHECK(mode(entry.path()) == 0600);
            for (const std::string& text : {entry.path().filename().string(), read_file(entry.path())})
                for (const char* told : {"t0ken", "s3cret", "curl", "h/a", "pipe"}) CHECK_FALSE(contains(text, told));
        }
    // An unreadable cache file is fetched again.
    const std::string file = folder + sha256(as_bytes(secret));
    fs::remove(file);
    fs::create_directory(file);
    CHECK(get() == "data\n");
    CHECK(contains(error_of([&] {
                       options.cache = "/dev/null/x";
                       get();
                   }),
                   "cache: cannot make the folder /dev/null/x: "));
}

TEST_CASE("sha256: gives the results of the standard") {
    CHECK(sha256({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha256(as_bytes("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha256(as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(sha256(as_bytes(std::string(1000000, 'a'))) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    // Hash texts of every length around the end of a block, all together.
    std::string all;
    for (size_t size = 0; size < 130; ++size) all += sha256(as_bytes(std::string(size, 'x')));
    CHECK(sha256(as_bytes(all)) == "199af942eba7fa5d1e16d475169eb24018b14e69339c93d26a9ea6d873b4ace6");
}

TEST_CASE("fetch: warns if the cache cannot be written, and still returns the data") {
    const TempDir dir;
    FetchOptions options = kQuick;
    options.cache = dir / "cache";
    const auto get = [&] {
        return fetch(
                   "u", "head -c 20000 /dev/zero", [](std::string&) {}, options)
            .size();
    };
    size_t bytes = 0, again = 0;
    {
        const SmallFiles limit(10000);
        bytes = get(), again = get();
    }
    CHECK(bytes == 20000);
    CHECK(again == 20000);
    CHECK(fs::is_empty(dir / "cache"));
    CHECK(get() == 20000);
    CHECK_FALSE(fs::is_empty(dir / "cache"));
}

TEST_CASE("s3: lists objects and builds commands for each client") {
    std::string next = "x";
    const auto keys = [](const std::vector<S3Object>& objects) {
        Names names;
        for (const S3Object& o : objects) names.push_back(cat(o.url, " ", o.bytes));
        return names;
    };
    CHECK(keys(parse_s3_list(S3Client::aws, "b", R"([["p/a.tar", 10], ["p/\u00e9.tar", 0]])", next)) ==
          Names{"s3://b/p/a.tar 10", "s3://b/p/\u00e9.tar 0"});
    CHECK(next.empty());
    CHECK(parse_s3_list(S3Client::aws, "b", "null\n", next).empty());
    CHECK(keys(parse_s3_list(S3Client::s5cmd, "b",
                             "{\"key\":\"s3://b/p/a.tar\",\"etag\":\"e\",\"type\":\"file\",\"size\":10}\n"
                             "{\"key\":\"s3://b/p/d/\",\"type\":\"directory\"}\n",
                             next)) == Names{"s3://b/p/a.tar 10"});
    const std::string xml = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Contents><Key>p/a&amp;lt;.tar</Key>"
                            "<ETag>&quot;e&quot;</ETag><Size>10</Size></Contents><Contents><Size>7</Size><Key>q</Key>"
                            "</Contents><NextContinuationToken>t&amp;1=</NextContinuationToken></ListBucketResult>";
    CHECK(keys(parse_s3_list(S3Client::curl, "b", xml, next)) == Names{"s3://b/p/a&lt;.tar 10", "s3://b/q 7"});
    CHECK(next == "t&1=");
    for (const std::string& cut : {xml.substr(0, xml.size() - 3), std::string(), std::string("<Error>no</Error>")})
        CHECK_THROWS_AS(parse_s3_list(S3Client::curl, "b", cut, next), Error);
    CHECK_THROWS_AS(parse_s3_list(S3Client::aws, "b", "[[\"a\"", next), Error);

    setenv("AWS_ACCESS_KEY_ID", "KEY-ID", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "very-secret", 1);
    setenv("S3_ENDPOINT", "http://127.0.0.1:9/", 1);
    for (const S3Client client : {S3Client::aws, S3Client::s5cmd, S3Client::curl}) {
        const std::string command = s3_get_command(client, "s3://b/it's + one.tar");
        CHECK(contains(command, "http://127.0.0.1:9/"));
        CHECK_FALSE(contains(command, "very-secret"));
        CHECK(
            contains(command, client == S3Client::curl ? "/b/it%27s%20%2B%20one.tar" : "'s3://b/it'\\''s + one.tar'"));
    }
    // For a key with * or ?, s5cmd would write all matching objects.
    for (const std::string key : {"a*.tar", "a?.tar"})
        CHECK(contains(s3_get_command(S3Client::s5cmd, "s3://b/" + key), " cat --raw 's3://b/" + key + "'"));
    CHECK_FALSE(contains(s3_get_command(S3Client::s5cmd, "s3://b/a[1].tar"), "--raw"));
    CHECK(contains(error_of([] { list_s3(S3Client::s5cmd, "s3://b/a*/", kQuick); }),
                   "which s5cmd takes for a pattern, got s3://b/a*/; install aws or curl"));
    // curl's configuration has several lines; a secret must not add one.
    for (const char* secret : {"a\"\nurl=file:///etc/passwd\n", "a\\", "a\"b", "a\nb"}) {
        setenv("AWS_SECRET_ACCESS_KEY", secret, 1);
        CHECK(error_of([] {
                  s3_get_command(S3Client::curl, "s3://b/k");
              }).starts_with("s3: expected AWS_SECRET_ACCESS_KEY without quotes"));
    }
    unsetenv("AWS_ACCESS_KEY_ID");
    CHECK_FALSE(contains(s3_get_command(S3Client::curl, "s3://b/k"), "sigv4")); // as anyone may
    unsetenv("AWS_SECRET_ACCESS_KEY");
    unsetenv("S3_ENDPOINT");
    CHECK(contains(s3_get_command(S3Client::curl, "s3://b/k"), "https://s3."));
    CHECK(contains(error_of([] { s3_get_command(S3Client::curl, "s3:///k"); }), "no bucket"));
}

TEST_CASE("s3: rejects keys outside of the prefix or with control characters") {
    const std::string url = "s3://b/set/";
    for (const std::string key : {"set/", "set/a.tar", "set/$(id) `id` 'x' \"y\" \\ {0..9} é", "set/\xff"})
        CHECK_NOTHROW(check_s3_object("s3://b/" + key, url));
    CHECK_NOTHROW(check_s3_object("s3://b/k", "s3://b"));
    const auto error = [&](const std::string& object) { return error_of([&] { check_s3_object(object, url); }); };
    for (const std::string other : {"pipe:id", "s3://b/se", "s3://bb/set/a", "s3://c/set/a", " s3://b/set/a", ""})
        CHECK(contains(error(other), "below s3://b/set/, got " + other));
    CHECK(contains(error_of([] { check_s3_object("s3://bb/k", "s3://b"); }), "below s3://b, got s3://bb/k"));
    for (int c = 0; c < 128; ++c)
        CHECK((c < ' ' || c == 127) == contains(error(cat("s3://b/set/x", char(c), "y.tar")), "control characters"));
    CHECK(contains(error("s3://b/set/x\n-1 pipe:id; cat a.tar"), "got s3://b/set/x\\n-1 pipe:id; cat a.tar; rename"));
    CHECK_NOTHROW(check_s3_object("s3://b/set/" + std::string(kMaxS3Key - 4, 'x'), url));
    const std::string longest = error("s3://b/set/" + std::string(1 << 20, 'x'));
    CHECK(contains(longest, "at most 1024 bytes, got 1048580"));
    CHECK(longest.size() < 1000);
    // A key with a character reference of XML is rejected like the character itself.
    std::string next;
    const std::string xml = "<ListBucketResult><Contents><Key>set/x&#10;y&#xA;&#65;&#x;&#300;&&#65</Key><Size>1</Size>"
                            "</Contents></ListBucketResult>";
    CHECK(parse_s3_list(S3Client::curl, "b", xml, next)[0].url == "s3://b/set/x\ny\nA&#x;&#300;&&#65");
}

TEST_CASE("s3: ends an endless list, by its tokens or by its time") {
    const TempDir dir;
    // Install a curl that answers with the token that the shell commands in `token` print. Each call adds a byte to
    // `calls`.
    const auto list = [&](const std::string& token, const FetchOptions& options) {
        write_file_atomic(dir / "curl",
                          cat("#!/bin/sh\ncd ", shell_word(dir.path()),
                              "\nprintf x >> calls\nn=$(wc -c < calls)\nn=$((n))\necho \"<ListBucketResult>"
                              "<Contents><Key>p$n.tar</Key><Size>1</Size></Contents>$(",
                              token, ")</ListBucketResult>\"\n"));
        fs::permissions(dir / "curl", fs::perms::owner_all);
        fs::remove(dir / "calls");
        const std::string before = std::getenv("PATH");
        setenv("PATH", (dir.path() + ":" + before).c_str(), 1);
        size_t objects = 0;
        const std::string error = error_of([&] { objects = list_s3(S3Client::curl, "s3://b/p", options).size(); });
        setenv("PATH", before.c_str(), 1);
        return error.empty() ? cat(objects) : error;
    };
    const auto calls = [&] { return read_file(dir / "calls").size(); };
    const auto token = [](const std::string& text) {
        return cat("echo \"<NextContinuationToken>", text, "</NextContinuationToken>\"");
    };
    CHECK(list("[ $n -gt 4 ] || " + token("t$n"), kQuick) == "5");
    CHECK(contains(list(token("t$((n % 2))"), kQuick), "with an end, got the token of part 3 for the second time"));
    CHECK(calls() == 3);
    CHECK(contains(list(token("t"), kQuick), "for the second time"));
    FetchOptions short_time = kQuick;
    short_time.list_s = 0.2;
    CHECK(contains(list(token("t$n"), short_time), "in 0.2 s, got "));
    // A client that fetches all parts itself has the same total time, for all of its attempts.
    write_file_atomic(dir / "s5cmd", cat("#!/bin/sh\nprintf x >> ", shell_word(dir / "calls"),
                                         "\nwhile echo '{\"key\":\"s3://b/p\",\"type\":\"directory\"}'; do sleep 0.05; "
                                         "done\n"));
    fs::permissions(dir / "s5cmd", fs::perms::owner_all);
    fs::remove(dir / "calls");
    const std::string before = std::getenv("PATH");
    setenv("PATH", (dir.path() + ":" + before).c_str(), 1);
    short_time.list_s = 0.5;
    const std::string error = error_of([&] { list_s3(S3Client::s5cmd, "s3://b/p", short_time); });
    setenv("PATH", before.c_str(), 1);
    CHECK(contains(error, "in 0.5 s, got 0 objects in 0 parts, and more to come; give a longer prefix"));
    CHECK(calls() == 1);
}

TEST_SUITE_END();

} // namespace rg::data
