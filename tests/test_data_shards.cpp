// Tests tar archives, and sets in shards on one rank and on several ranks.
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/rng.h"
#include "ringgrad/data/cifar.h"
#include "ringgrad/data/digits.h"
#include "ringgrad/data/open.h"
#include "ringgrad/data/pipe.h"
#include "ringgrad/data/png.h"
#include "ringgrad/data/shards.h"
#include "ringgrad/data/tar.h"
#include "ringgrad/models/run/load_data.h"
#include "ringgrad/tests/temp_dir.h"
#include "ringgrad/tests/thread_link.h"

#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <set>

namespace rg::data {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// ---- archives ----

void put_checksum(std::string& header) {
    header.replace(148, 8, 8, ' ');
    unsigned sum = 0;
    for (const char c : header) sum += uint8_t(c);
    char digits[8];
    std::snprintf(digits, sizeof digits, "%06o", sum);
    header.replace(148, 7, digits, 7);
}

std::string octal(size_t value) {
    char digits[12];
    std::snprintf(digits, sizeof digits, "%011zo", value);
    return std::string(digits, 12);
}

/// Returns a member with a ustar header.
std::string member(const std::string& name, const std::string& content, char type = '0',
                   const std::string& prefix = "") {
    std::string header(512, '\0');
    header.replace(0, name.size(), name);
    header.replace(124, 12, octal(content.size()));
    header[156] = type;
    header.replace(257, 8, std::string("ustar\00000", 8));
    header.replace(345, prefix.size(), prefix);
    put_checksum(header);
    return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

const std::string kEnd(1024, '\0');

std::string pax_record(const std::string& key, const std::string& value) {
    for (size_t length = key.size() + value.size() + 3;; ++length)
        if (const std::string record = cat(length, " ", key, "=", value, "\n"); record.size() == length) return record;
}

using Files = std::vector<std::pair<std::string, std::string>>;

Files files_of(const std::string& archive) {
    Files files;
    read_tar(as_bytes(archive), "t.tar",
             [&](const std::string& path, Bytes content) { files.emplace_back(path, as_text(content)); });
    return files;
}

std::string tar_error(const std::string& archive) {
    return error_of([&] { files_of(archive); });
}

// ---- images ----

std::string png(uint8_t shade, int64_t side = 2) {
    const std::vector<uint8_t> pixels(size_t(side * side * 3), shade);
    return std::string(as_text(encode_png(side, side, 3, pixels)));
}

std::string records(int count, int first) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
        bytes += char((first + i) % 10);
        for (int p = 0; p < 3072; ++p) bytes += char((first + i) * 7 + p);
    }
    return bytes;
}

TrainTest set_of(const std::vector<std::pair<std::string, std::string>>& shards) {
    std::vector<Shard> all;
    for (const auto& shard : shards) all.push_back({"s3://bucket/data/" + shard.first});
    ShardSet set("s3://bucket/data/", all);
    for (const auto& shard : shards) set.add(as_bytes(shard.second));
    return set.finish();
}

std::string set_error(const std::vector<std::pair<std::string, std::string>>& shards) {
    return error_of([&] { set_of(shards); });
}

/// Returns the first sample of every image.
std::vector<int> shades(const ImageSet& set) {
    std::vector<int> first;
    for (int64_t i = 0; i < set.count; ++i) first.push_back(set.image(i)[0]);
    return first;
}

bool same(const ImageSet& a, const ImageSet& b) {
    return a.count == b.count && a.pixels == b.pixels && a.labels == b.labels && a.classes == b.classes;
}

const FetchOptions kQuick{.cache = {}, .retries = 2, .first_wait_s = 0.01, .silence_s = 20};

} // namespace

TEST_SUITE_BEGIN("data");

TEST_CASE("tar: reads ustar, pax and GNU headers") {
    const std::string deep = std::string(90, 'd') + "/" + std::string(60, 'e'), longest(300, 'n');
    CHECK(files_of(kEnd).empty());
    CHECK(files_of(member("./a", "x") + member("dir/", "", '5') + member("b", "") + member("c", std::string(512, 'c')) +
                   kEnd) == Files{{"a", "x"}, {"b", ""}, {"c", std::string(512, 'c')}});
    CHECK(files_of(member("f", "x", '0', deep) + kEnd) == Files{{deep + "/f", "x"}});
    CHECK(files_of(member("PaxHeaders/a", pax_record("mtime", "1.5") + pax_record("path", longest), 'x') +
                   member("short", "x") + member("next", "y") + kEnd) == Files{{longest, "x"}, {"next", "y"}});
    CHECK(files_of(member("././@LongLink", longest + '\0', 'L') + member("short", "x") + member("next", "y") + kEnd) ==
          Files{{longest, "x"}, {"next", "y"}});
    CHECK(files_of(member("pax_global_header", pax_record("comment", "abc"), 'g') + member("a", "x") + kEnd) ==
          Files{{"a", "x"}});
    CHECK(files_of(member("a", "x", '\0') + kEnd) == Files{{"a", "x"}});
    // One archive follows another.
    CHECK(files_of(member("a", "x") + kEnd + kEnd + member("b", "y") + kEnd) == Files{{"a", "x"}, {"b", "y"}});
    // Sizes are base-256 numbers, or come from a pax header.
    std::string large = member("a", "x");
    large.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\1", 12));
    std::string header = large.substr(0, 512);
    put_checksum(header);
    CHECK(files_of(header + large.substr(512) + kEnd) == Files{{"a", "x"}});
    std::string zero = member("a", "");
    CHECK(files_of(member("h", pax_record("size", "3"), 'x') + zero + "xyz" + std::string(509, '\0') + kEnd) ==
          Files{{"a", "xyz"}});
}

TEST_CASE("tar: reads each format of GNU tar") {
    if (read_pipe("command -v tar || true", 1000, 10).empty()) return;
    const TempDir dir;
    const std::string name(120, 'n'), folder = "some/folder/" + std::string(95, 'd');
    for (const std::string format : {"v7", "ustar", "gnu", "oldgnu", "pax"}) {
        CAPTURE(format);
        const bool any_length = format != "v7" && format != "ustar";
        fs::create_directories(dir / format + "/" + folder);
        write_file_atomic(dir / format + "/some/one", std::string(1000, '1'));
        if (format != "v7") write_file_atomic(dir / format + "/" + folder + "/two", "");
        if (any_length) write_file_atomic(dir / format + "/" + folder + "/" + name, "3");
        Files files = files_of(read_pipe(cat("tar -C ", shell_word(dir / format), " --format=", format,
                                             " -cf - . "
                                             "2>/dev/null || true"),
                                         1 << 20, 10));
        std::sort(files.begin(), files.end());
        Files expected{{"some/one", std::string(1000, '1')}};
        if (format != "v7") expected.insert(expected.begin(), {folder + "/two", ""});
        if (any_length) expected.insert(expected.begin(), {folder + "/" + name, "3"});
        CHECK(files == expected);
    }
}

TEST_CASE("tar: reports damage and truncation with the offset") {
    const std::string two = member("a", "x") + member("b", std::string(600, 'y'));
    for (size_t size = 0; size < two.size() + 1024; ++size) {
        CAPTURE(size);
        const std::string error = tar_error((two + kEnd).substr(0, size));
        REQUIRE(contains(error, "t.tar, offset "));
        REQUIRE(contains(error, "cut"));
    }
    CHECK(contains(tar_error(two.substr(0, 1600)), "offset 1536: expected 600 bytes of b, got 64"));
    CHECK(contains(tar_error(records(2, 0)), "not a tar, or a damaged one"));

    // The checksum reveals a change of any byte of a header.
    Rng rng(1, Purpose::test);
    for (int i = 0; i < 2000; ++i) {
        std::string damaged = two + kEnd;
        const size_t at = rng.uniform_below(2) * 1024 + rng.uniform_below(512);
        const char old = damaged[at];
        damaged[at] = char(rng.next());
        CAPTURE(at);
        // In the field of the checksum, a space may replace a zero byte.
        if (damaged[at] != old && (at % 1024 < 148 || at % 1024 > 155))
            REQUIRE(contains(tar_error(damaged), "offset "));
    }

    CHECK(contains(tar_error(member("a", "", '2') + kEnd), "got a link (a)"));
    CHECK(contains(tar_error(member("a", "", '1') + kEnd), "got a link (a)"));
    CHECK(contains(tar_error(member("a", "", 'S') + kEnd), "type 'S'"));
    CHECK(contains(tar_error(member("h", pax_record("path", "p"), 'x') + kEnd), "expected a member after"));
    CHECK(contains(tar_error(member("h", std::string((1 << 20) + 1, 'p'), 'L') + kEnd),
                   "at most 1048576 bytes, got 1048577"));
    CHECK(contains(tar_error(member("h", std::string(5000, 'p'), 'L') + member("a", "") + kEnd), "at most 4096 bytes"));
    std::string dots; // a name of many "./", which would be slow to remove one by one
    for (int i = 0; i < 1 << 19; ++i) dots += "./";
    CHECK(contains(tar_error(member("h", dots, 'L') + member("a", "") + kEnd), "at most 4096 bytes, got 1048576"));
    CHECK(contains(tar_error(member("h", pax_record("size", "99999999999999999999"), 'x') + member("a", "") + kEnd),
                   "digits"));
    CHECK(contains(tar_error(member("h", pax_record("size", "1000000000000"), 'x') + member("a", "") + kEnd), "cut"));
    CHECK(
        contains(tar_error(member("h", pax_record("GNU.sparse.major", "1"), 'x') + member("a", "") + kEnd), "sparse"));
    for (const char* const bad :
         {"", "x", "5 a=b\n", "7 a=b\n", "99 a=b\n", "6 a=b.", "6  =b\n\n", "3 =", "-6 a=b\n"}) {
        CAPTURE(bad);
        CHECK((*bad == 0 || contains(tar_error(member("h", bad, 'x') + member("a", "") + kEnd), "LENGTH KEY=VALUE")));
    }
    std::string huge = member("a", "x");
    huge.replace(124, 12, std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12));
    std::string header = huge.substr(0, 512);
    put_checksum(header);
    CHECK(contains(tar_error(header + huge.substr(512) + kEnd), "less than 2^63"));
}

TEST_CASE("shards: expand braces in a URL") {
    CHECK(expand_braces("a{000..002}b") == Names{"a000b", "a001b", "a002b"});
    CHECK(expand_braces("{8..11}") == Names{"8", "9", "10", "11"});
    CHECK(expand_braces("{08..10}") == Names{"08", "09", "10"});
    CHECK(expand_braces("{2..0}") == Names{"2", "1", "0"});
    CHECK(expand_braces("x{a,b}{1..2}") == Names{"xa1", "xa2", "xb1", "xb2"});
    CHECK(expand_braces("cat 'a {1,2}'{b,\"c,d\"}") == Names{"cat 'a {1,2}'b", "cat 'a {1,2}'\"c,d\""});
    CHECK(expand_braces("curl 'h/{0..1}-{a,b}' '{c,d}' {e,f}") ==
          Names{"curl 'h/0-{a,b}' '{c,d}' e", "curl 'h/0-{a,b}' '{c,d}' f", "curl 'h/1-{a,b}' '{c,d}' e",
                "curl 'h/1-{a,b}' '{c,d}' f"});
    CHECK(expand_braces("'{0..1}{2..2}{a,b}'") == Names{"'02{a,b}'", "'12{a,b}'"});
    CHECK(expand_braces("it's-{0..1}") == Names{"it's-0", "it's-1"}); // a single apostrophe does not quote
    CHECK(expand_braces("{data_{1..2},test}.bin") == Names{"data_1.bin", "data_2.bin", "test.bin"});
    for (const char* const plain :
         {"", "a", "{}", "{a}", "{a", "a}", "{a..b}", "${A,B}", "${X}", "awk '{print $1,$2}'", "echo \"{a,b}\"",
          "echo \\{a,b}", "'{a..b}{1..}{..2}{1..2'", "echo \\{1..2}", "echo \"\\\"{a,b}\""})
        CHECK(expand_braces(plain) == Names{plain});
    // Braces that expand to one name mean that object, not a prefix.
    const std::vector<Shard> one = find_shards("s3://b/x-{000..000}.tar", {});
    CHECK(one.size() == 1);
    CHECK(one[0].url == "s3://b/x-000.tar");
    CHECK(contains(error_of([] { expand_braces("{0..99999999}"); }), "at most 1000000 shards"));
    CHECK(contains(error_of([] { expand_braces("{0..99999}{0..99999}"); }), "at most 1000000 shards"));
}

TEST_CASE("shards: give the same set as a folder, however the files are divided") {
    const TempDir dir;
    fs::create_directories(dir / "cifar");
    for (int i = 1; i <= 5; ++i) write_file_atomic(cat(dir / "cifar/data_batch_", i, ".bin"), records(2 + i, i));
    write_file_atomic(dir / "cifar/test_batch.bin", records(3, 6));
    write_file_atomic(dir / "cifar/batches.meta.txt", "A\nB\nC\nD\nE\nF\nG\nH\nI\nJ\n\n");
    const TrainTest disk = load(dir / "cifar");
    CHECK(disk.train.count == 25);
    const auto file = [&](const std::string& name) { return read_file(dir / "cifar/" + name); };
    std::vector<std::pair<std::string, std::string>> plain, members;
    std::string archive;
    for (const char* const name : {"test_batch.bin", "data_batch_4.bin", "data_batch_2.bin", "batches.meta.txt",
                                   "data_batch_1.bin", "data_batch_3.bin", "data_batch_5.bin"}) {
        plain.emplace_back(name, file(name));
        archive += member(cat("cifar-10-batches-bin/", name), file(name));
    }
    archive += member("cifar-10-batches-bin/readme.html", "<html>") + kEnd;
    for (const auto& shards : {plain, {{"cifar.tar", archive}}}) {
        const TrainTest set = set_of(shards);
        CHECK(same(set.train, disk.train));
        CHECK(same(set.test, disk.test));
    }
    const TrainTest piped =
        load(cat("pipe:cat ", dir / "cifar/", "{data_batch_{1..5},test_batch}.bin"), {.fetch = kQuick});
    CHECK(piped.train.pixels == disk.train.pixels);
    CHECK(piped.test.labels == disk.test.labels);
    // In a command, ? belongs to the shell and not to a URL.
    const TrainTest any =
        load(cat("pipe:cat ", dir / "cifar/", "{data_batch_{1..5},test_batc?}.bin"), {.fetch = kQuick});
    CHECK(any.test.labels == disk.test.labels);

    // The file of a signed URL is what it names before the query.
    std::vector<Shard> signed_urls;
    for (const auto& [name, bytes] : plain)
        signed_urls.push_back({cat("pipe:curl -sSf 'https://h/c/", name, "?X-Amz-Credential=AK/test/x&X-Amz-Date=1'")});
    ShardSet signed_set("pipe:", signed_urls);
    for (const auto& [name, bytes] : plain) signed_set.add(as_bytes(bytes));
    const TrainTest from_signed = signed_set.finish();
    CHECK(same(from_signed.train, disk.train));
    CHECK(same(from_signed.test, disk.test));

    // Class folders have a test set or not, and may have folders around them.
    const Files images{{"bird/2.png", png(2)},
                       {"ant/x/9.png", png(3)},
                       {"bird/10.png", png(1)},
                       {"ant/x-1.png", png(4)},
                       {"ant/3.png", png(5)}};
    std::vector<std::string> parts(2, member("junk.txt", "?") + member("bird/.hidden.png", "?"));
    std::string both;
    for (size_t i = 0; i < images.size(); ++i) {
        const auto& [path, content] = images[i];
        for (const std::string root : {"one/", "two/train/", "two/test/"}) {
            fs::create_directories(fs::path(dir / root + path).parent_path());
            write_file_atomic(dir / root + path, content);
        }
        parts[i % 2] += member("./around/" + path, content);
        both += member("around/train/" + path, content) + member("around/test/" + path, content);
    }
    const TrainTest one = load(dir / "one"), two = load(dir / "two");
    CHECK(one.train.classes == Names{"ant", "bird"});
    const TrainTest from_parts = set_of({{"x-0.tar", parts[0] + kEnd}, {"x-1.tar", parts[1] + kEnd}});
    CHECK(same(from_parts.train, one.train));
    CHECK(same(from_parts.test, one.test));
    CHECK(shades(two.train) == std::vector<int>{5, 3, 4, 1, 2});
    const TrainTest from_one = set_of({{"x.tar", both + kEnd}});
    CHECK(same(from_one.train, two.train));
    CHECK(same(from_one.test, two.test));
    const TrainTest named = set_of({{"x-test-0.tar", parts[0] + parts[1] + kEnd},
                                    {"x-train-0.tar", parts[0] + kEnd},
                                    {"x-train-1.tar", parts[1] + kEnd}});
    CHECK(same(named.train, two.train));
    CHECK(same(named.test, two.test));
}

TEST_CASE("shards: take angles.csv from any shard") {
    const TempDir dir;
    const ImageSet drawn = draw_digits(3, 1);
    const auto archive = [&](const std::string& root, const std::string& around, int part, int parts, bool table) {
        std::string bytes;
        int i = 0;
        for (const fs::path& path : png_files(dir / root))
            if (i++ % parts == part)
                bytes += member(around + path.lexically_relative(dir / root).generic_string(), read_file(path));
        if (table) bytes += member(around + "angles.csv", read_file(dir / root + "/angles.csv"));
        return bytes;
    };
    write_digits(dir / "one", drawn);
    const LoadOptions grey{.channels = 1};
    const auto set_of = [&](const Names& shards) {
        std::vector<Shard> urls;
        for (size_t i = 0; i < shards.size(); ++i) urls.push_back({cat("pipe:cat ", i, ".tar")});
        ShardSet set("pipe:", urls, grey);
        for (const std::string& bytes : shards) set.add(as_bytes(bytes + kEnd));
        return set.finish();
    };
    const TrainTest disk = load(dir / "one", grey);
    REQUIRE(disk.train.targets.size() == 20);
    for (const auto& shards : {Names{archive("one", "./", 0, 1, true)}, Names{archive("one", "a/b/", 0, 1, true)},
                               Names{archive("one", "", 0, 2, false), archive("one", "", 1, 2, true)}}) {
        const TrainTest set = set_of(shards);
        CHECK(same(set.train, disk.train));
        CHECK(same(set.test, disk.test));
        CHECK(set.train.targets == disk.train.targets);
        CHECK(set.test.targets == disk.test.targets);
    }
    // The shards have the same names with other angles. A table is only for the images of its shard and folder.
    write_digits(dir / "two/train", drawn);
    write_digits(dir / "two/test", draw_digits(2, 7));
    const TrainTest two = load(dir / "two", grey);
    std::vector<Shard> named{{"pipe:cat train.tar"}, {"pipe:cat test.tar"}};
    ShardSet apart("pipe:", named, grey);
    for (const char* const part : {"two/train", "two/test"}) apart.add(as_bytes(archive(part, "", 0, 1, true) + kEnd));
    for (const TrainTest& set : {apart.finish(), set_of({archive("two/train", "train/", 0, 1, true) +
                                                         archive("two/test", "test/", 0, 1, true)})}) {
        CHECK(same(set.test, two.test));
        CHECK(set.train.targets == two.train.targets);
        CHECK(set.test.targets == two.test.targets);
    }
    const std::string table = member("angles.csv", "file,angle\n0/00.png,1\n");
    CHECK(contains(error_of([&] { set_of({archive("one", "", 0, 1, false) + table}); }), "a line for 0/01.png"));
    CHECK(contains(error_of([&] { set_of({member("angles.csv", "file,angle\nx\n")}); }), "0.tar, angles.csv, line 2"));
}

TEST_CASE("shards: pairs of KEY.png and KEY.cls keep the order of the shards") {
    const auto pair = [](const std::string& key, int label, uint8_t shade) {
        return member(key + ".cls", cat(label, "\n")) + member(key + ".json", "{}") + member(key + ".png", png(shade));
    };
    const TrainTest set = set_of({{"train/1.tar", pair("b", 2, 10) + pair("a", 0, 20) + kEnd},
                                  {"train/0.tar", pair("c", 2, 30) + kEnd},
                                  {"val/0.tar", pair("a", 1, 40) + kEnd}});
    CHECK(shades(set.train) == std::vector<int>{10, 20, 30});
    CHECK(set.train.labels == std::vector<int32_t>{2, 0, 2});
    CHECK(shades(set.test) == std::vector<int>{40});
    CHECK(set.test.labels == std::vector<int32_t>{1});
    CHECK(set.train.classes == Names{"class 0", "class 1", "class 2"});
    set.train.check("train");
    set.test.check("test");

    CHECK(contains(set_error({{"0.tar", pair("a", 0, 1) + member("b.cls", "0") + kEnd}}), "b.png beside b.cls"));
    CHECK(contains(set_error({{"0.tar", pair("a", 0, 1) + member("b.png", png(1)) + kEnd}}), "b.cls beside it"));
    for (const char* const text : {"", "cat", "-1", "1.5", "100000", "1 2", "99999999999999"}) {
        CAPTURE(text);
        CHECK(contains(set_error({{"0.tar", member("a.png", png(1)) + member("a.cls", text) + kEnd}}),
                       "0 to 99999 in a.cls"));
    }
}

TEST_CASE("shards: reject images that are not PNGs, or skip them on request") {
    const std::string pngs = member("cat/1.png", png(1)) + member("cat/2.png", png(2)), jpeg = "\xFF\xD8\xFF\xE0";
    const auto without_others = [](const std::string& archive) {
        ShardSet set("s3://bucket/data/", {{"s3://bucket/data/0.tar"}}, {.skip_other_images = true});
        set.add(as_bytes(archive));
        return set.finish();
    };
    const std::string harmless =
        member("cat/.cache/3.png", "?") + member("cat/._3.jpg", jpeg) + member("README.md", "?");
    CHECK(set_error({{"0.tar", pngs + harmless + kEnd}}).empty());
    for (const std::string& other : {member("cat/3.jpg", "?"), member("cat/3", jpeg)}) {
        const std::string error = set_error({{"0.tar", pngs + other + other + kEnd}});
        CHECK(contains(error, "got 2 other images, the first is s3://bucket/data/0.tar, cat/3"));
        CHECK(contains(error, "mogrify"));
        CHECK(without_others(pngs + other + kEnd).train.count == 1);
    }
    // The contents tell the format, whatever the names.
    const std::string named = member("cat/3.jpg", png(3)) + member("cat/4", png(4));
    CHECK(set_error({{"0.tar", pngs + named + kEnd}}).empty());
    CHECK(without_others(pngs + named + kEnd).train.count == 3);
    const std::string only_named = member("cat/5.png", jpeg);
    CHECK(
        contains(set_error({{"0.tar", pngs + only_named + kEnd}}), "got 1 other image, s3://bucket/data/0.tar, cat/5"));
    CHECK(without_others(pngs + only_named + kEnd).train.count == 1);
    Shard batch{"s3://b/cat/", 0, {}};
    std::string bytes;
    for (const std::string& content : {png(1), png(2), jpeg}) {
        batch.objects.push_back({cat("s3://b/cat/", batch.objects.size() + 1, ".png"), int64_t(content.size())});
        bytes += content;
    }
    batch.bytes = int64_t(bytes.size());
    const auto count_in_batch = [&](bool skip) {
        ShardSet set("s3://b/", {batch}, {.skip_other_images = skip});
        set.add(as_bytes(bytes));
        return set.finish().train.count;
    };
    CHECK(count_in_batch(true) == 1);
    CHECK(contains(error_of([&] { count_in_batch(false); }), "got 1 other image, s3://b/cat/3.png (JPEG)"));
    // Skips both files of a pair.
    std::string pairs = member("b.cls", "0") + member("b.jpg", jpeg);
    for (const std::string key : {"a", "c"}) pairs += member(key + ".cls", "0") + member(key + ".png", png(1));
    CHECK(contains(set_error({{"0.tar", pairs + kEnd}}), "got 1 other image"));
    CHECK(without_others(pairs + kEnd).train.count == 1);
}

TEST_CASE("shards: count files that are damaged but readable in one warning") {
    const std::string cut = png(1).substr(0, png(1).size() - 12); // without IEND
    const std::string archive = member("cat/1.png", png(1)) + member("cat/2.png", cut) + kEnd;
    const TrainTest sets = set_of({{"0.tar", archive}, {"1.tar", archive}});
    REQUIRE(sets.warnings.size() == 1);
    CHECK(sets.warnings[0].starts_with("warning: 2 files are damaged but readable; the first: png: "));
    CHECK(contains(sets.warnings[0], "s3://bucket/data/0.tar, cat/2.png"));
    CHECK(set_of({{"0.tar", member("cat/1.png", png(1)) + member("cat/2.png", png(2)) + kEnd}}).warnings.empty());
}

TEST_CASE("shards: choose the test images by seed") {
    std::string archive;
    for (int i = 0; i < 10; ++i) archive += member(cat("cat/", i, ".png"), png(uint8_t(i)));
    std::set<std::vector<int>> parts;
    for (uint64_t seed = 0; seed < 5; ++seed) {
        ShardSet set("s3://b/", {{"s3://b/0.tar"}}, {.seed = seed});
        set.add(as_bytes(archive + kEnd));
        parts.insert(shades(set.finish().test));
    }
    CHECK(parts.size() > 1);
}

TEST_CASE("shards: name contents that do not fit together") {
    const std::string folders = member("cat/1.png", png(1)) + member("cat/2.png", png(2)) + kEnd;
    CHECK(contains(set_error({{"0.tar", kEnd}}), "got none in 1 shard (s3://bucket/data/)"));
    CHECK(contains(set_error({{"0.tar", member("1.png", png(1)) + kEnd}}), "class folders or with a .cls, got 1.png"));
    CHECK(contains(set_error({{"0.tar", folders}, {"a.bin", records(2, 0)}}), "s3://bucket/data/0.tar, cat/1.png"));
    CHECK(contains(set_error({{"0.tar", folders}, {"1.tar", member("cat/3.png", png(1, 3)) + kEnd}}), "got 3 x 3"));
    CHECK(contains(set_error({{"0.tar", member("cat/1.png", png(1).substr(0, 40)) + kEnd}}), "data/0.tar, cat/1.png"));
    CHECK(contains(set_error({{"train.tar", folders}, {"test.tar", member("dog/1.png", png(1)) + kEnd}}), "got dog"));
    CHECK(contains(set_error({{"x-test.tar", folders}}), "for testing alone"));
    CHECK(contains(set_error({{"a.bin", records(2, 0) + "x"}}), "data/a.bin"));
    CHECK(contains(error_of([] { load("pipe:echo no tar", {.fetch = kQuick}); }), "pipe:echo no tar: failed 3 times"));
}

TEST_CASE("shards: divide PNG objects into batches by the beginnings of their names") {
    std::vector<S3Object> objects;
    for (int i = 0; i < 20000; ++i) objects.push_back({cat("s3://b/set/", i % 7, "/", i * 37, ".png"), 1000 + i % 3});
    objects.push_back({"s3://b/set/0/10.png.png", 17 << 20});
    objects.push_back({"s3://b/set/0/10.png", 17 << 20});
    const auto by_url = [](const S3Object& a, const S3Object& b) { return a.url < b.url; };
    std::sort(objects.begin(), objects.end(), by_url);
    const std::vector<Shard> batches = shards_of("s3://b/set/", objects, {});
    std::vector<std::string> listed, batched;
    for (const S3Object& object : objects) listed.push_back(object.url);
    for (const Shard& batch : batches) {
        int64_t bytes = 0;
        for (const S3Object& object : batch.objects) {
            bytes += object.bytes;
            batched.push_back(object.url);
            CHECK(object.url.starts_with(batch.url));
        }
        CHECK(bytes == batch.bytes);
        CHECK((batch.objects.size() == 1 || (batch.objects.size() <= 4096 && bytes <= 16 << 20)));
    }
    CHECK(batched == listed);
    const std::vector<S3Object> equal(5000, {"s3://b/set/a/1.png", 1}); // a list of a broken server
    CHECK(shards_of("s3://b/set/", equal, {}).size() == 1);
    CHECK(batches.size() < 80); // 7 classes, most divided into ten

    const auto error = [](const std::vector<S3Object>& list, const LoadOptions& options = {}) {
        return error_of([&] { shards_of("s3://b/set/", list, options); });
    };
    CHECK(contains(error({}), "got none among 0"));
    CHECK(contains(error({{"s3://b/set/x.txt", 1}}), "got none among 1 (s3://b/set/, the first is s3://b/set/x.txt)"));
    CHECK(contains(error({{"s3://b/set/a/1.png", 1}, {"s3://b/set/b.tar", 1}}),
                   "got both, s3://b/set/b.tar and s3://b/set/a/1.png; give a longer prefix"));
    CHECK(contains(error({{"s3://b/set/a/1.png", -1}}), "got -1 (s3://b/set/a/1.png)"));
    const std::vector<S3Object> others{
        {"s3://b/set/a/.2.jpg", 1}, {"s3://b/set/a/1.png", 1}, {"s3://b/set/a/2.jpg", 1}};
    CHECK(contains(error(others), "got 1 other image, s3://b/set/a/2.jpg (JPEG)"));
    CHECK(error(others, {.skip_other_images = true}).empty());
}

TEST_CASE("shards: PNG objects give the set of the folder that was uploaded, with every client") {
    const TempDir dir;
    const std::string root = dir / "store/b/set [1]*/";
    const ImageSet drawn = draw_digits(3, 1);
    write_digits(root + "train", drawn);
    write_digits(root + "test", draw_digits(2, 7));
    const LoadOptions grey{.channels = 1, .fetch = kQuick};
    const TrainTest disk = load(root, grey);
    // These clients read the folder `store`.
    const std::string begin =
        cat("#!/bin/sh\necho \"$@\" >> ", shell_word(dir / "calls"), "\nstore=", shell_word(dir / "store"), "\n");
    const std::string find = "cd \"$store/b\" && find . -type f -printf ";
    const std::vector<std::pair<std::string, std::string>> clients{{"s5cmd", R"(
            [ "$3" = --json ] && { )" + find + R"('{"key":"s3://b/%P","size":%s,"type":"file"}\n'; exit; }
            while read -r line; do
                eval "set -- $line"
                [ "$2" = --raw ] && shift
                cp "$store/${2#s3:/}" "$3" || exit
            done < list)"},
                                                                   {"aws", R"(
            [ "$1" = s3api ] && { )" + find + R"(',["%P",%s]' | sed '1s/^,/[/'; echo ]; exit; }
            folder=$6; cd "$store/${5#s3:/}" || exit
            while [ "$1" != --include ]; do shift; done
            find . -type f | while read -r file; do
                case ${file#./} in $2) mkdir -p "$folder/${file%/*}" && cp "$file" "$folder/$file";; esac
            done)"}};
    const std::string before = std::getenv("PATH");
    for (const auto& client : clients) {
        const auto &name = client.first, &script = client.second;
        CAPTURE(name);
        const TempDir bin;
        write_file_atomic(bin / name, begin + script + "\n");
        fs::permissions(bin / name, fs::perms::owner_all);
        for (const char* const tool : {"sh", "find", "sed", "cp", "cat", "mkdir"})
            fs::create_symlink(read_pipe(cat("printf %s \"$(command -v ", tool, ")\""), 1000, 10), bin / tool);
        setenv("PATH", bin.path().c_str(), 1);
        fs::remove(dir / "calls");
        TrainTest set;
        const std::string error = error_of([&] { set = load(name == "aws" ? "s3://b/set [1]*/" : "s3://b/", grey); });
        setenv("PATH", before.c_str(), 1);
        CHECK(error == "");
        CHECK(same(set.train, disk.train));
        CHECK(same(set.test, disk.test));
        CHECK(set.train.targets == disk.train.targets);
        CHECK(set.test.targets == disk.test.targets);
        const std::string calls = read_file(dir / "calls");
        CHECK(std::count(calls.begin(), calls.end(), '\n') == 2); // a list, and one batch
    }
    const TempDir folder;
    // One would be written above the folder, the other at the root of the file system.
    for (const std::string url : {"s3://b/set/../x.png", "s3://b/set//x.png"}) {
        const std::vector<S3Object> outside{{url, 1}};
        CHECK(contains(error_of([&] { s3_get_batch(S3Client::aws, "s3://b/set/", outside, folder.path()); }),
                       "which aws cannot write, got " + url + "; install s5cmd or curl"));
    }
}

TEST_CASE("load_data: takes the test set from --test-data, of any kind, and holds nothing out") {
    const TempDir dir;
    std::string archives[2];
    for (int i = 0; i < 12; ++i) {
        const std::string path = cat(i % 2 ? "ant/" : "bird/", i, ".png"), part = i < 8 ? "train/" : "test/";
        fs::create_directories(fs::path(dir / part + path).parent_path());
        write_file_atomic(dir / part + path, png(uint8_t(i)));
        archives[i < 8] += member(path, png(uint8_t(i)));
    }
    write_file_atomic(dir / "set-train.tar", archives[1] + kEnd);
    write_file_atomic(dir / "set-val.tar", archives[0] + kEnd);
    const TrainTest disk = load(dir.path());
    const std::string tar = "pipe:cat " + dir / "set-";
    const std::vector<std::pair<std::string, std::string>> sources{
        {dir / "train", dir / "test"},     {dir / "train", tar + "val.tar"},
        {tar + "train.tar", dir / "test"}, {tar + "train.tar", tar + "val.tar"},
        {dir.path(), dir.path()},          {tar + "{train,val}.tar", tar + "{train,val}.tar"}};
    for (const auto& source : sources) {
        DataOptions options;
        options.path = source.first, options.test_path = source.second;
        par::run_threads(3, [&](par::Link& link) {
            par::Group group(link);
            const TrainTest sets = load_data(group, options, options.load_options());
            CHECK(same(sets.train, disk.train));
            CHECK(same(sets.test, disk.test));
            CHECK(contains(sets.source, "; tested on "));
        });
    }
    // A shard can be resized, and one with images for testing alone is no training set.
    const auto tar_of_tests = [&](const LoadOptions& options) { return load(tar + "val.tar", options); };
    CHECK(tar_of_tests({.height = 3, .width = 4, .test_fraction = 0}).test.width == 4);
    CHECK(contains(error_of([&] { tar_of_tests({}); }), "got 4 for testing alone"));
    const ImageSet grey = load(cat("pipe:cat ", dir / "set-train.tar"), {.channels = 1, .test_fraction = 0}).train;
    CHECK(grey.channels == 1);
    CHECK(shades(grey) == std::vector<int>{1, 3, 5, 7, 0, 2, 4, 6});
    write_file_atomic(dir / "data.bin", records(3, 1));
    const ImageSet small = load("pipe:cat " + dir / "data.bin", {.height = 4, .width = 4, .test_fraction = 0}).train;
    CHECK(small.image_bytes() == 48);
    CHECK(small.labels == std::vector<int32_t>{1, 2, 3});
}

TEST_CASE("load_data: fetches every shard once for all ranks, and reports an error on all") {
    const TempDir dir;
    Names files;
    for (int i = 0; i < 7; ++i) {
        write_file_atomic(dir / cat("train-", i, ".bin"), records(3 + i, i));
        write_file_atomic(dir / cat("test-", i, ".bin"), records(2, i));
    }
    const std::string log = shell_word(dir / "log"), name = dir.path() + "/{train-{0..6},test-{0..2}}.bin";
    const std::string path = cat("pipe:echo x >> ", log, "; cat ", name);
    const TrainTest alone = load(path, {.fetch = kQuick});
    for (const int n : {1, 2, 3, 4, 11}) {
        CAPTURE(n);
        fs::remove(dir / "log");
        std::vector<TrainTest> sets(static_cast<size_t>(n));
        par::run_threads(n, [&](par::Link& link) {
            par::Group group(link);
            sets[size_t(link.rank())] = load_data(group, path, {.fetch = kQuick});
        });
        for (const TrainTest& set : sets) {
            CHECK(same(set.train, alone.train));
            CHECK(same(set.test, alone.test));
            CHECK(set.source == alone.source);
        }
        CHECK(read_file(dir / "log").size() == 20); // ten lines
    }
    fs::remove(dir / "train-4.bin"); // rank 1 of 3 reads this one
    const std::string error = error_of([&] {
        par::run_threads(3, [&](par::Link& link) {
            par::Group group(link);
            load_data(group, path, {.fetch = kQuick});
        });
    });
    CHECK(contains(error, "train-4.bin: failed 3 times, at last: exit status 1 after 0 bytes: cat: "));
}

TEST_SUITE_END();

} // namespace rg::data
