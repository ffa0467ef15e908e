// Tests packed sets: that they have the images of their source, are made anew if it changes, and never give wrong
// pixels.
#include "core/atomic_file.h"
#include "data/image_folder.h"
#include "data/loader.h"
#include "data/packed.h"
#include "data/png.h"
#include "data/source.h"
#include "models/run/run_folder.h"
#include "tests/image_sets.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace {
int no_locks = 0;                 // the error of flock(), as on file systems without it
const char* other_node = nullptr; // replaces the name of this node
} // namespace

// These replace the functions of the C library in this program.
extern "C" int flock(int file, int operation) noexcept {
    errno = no_locks;
    return no_locks ? -1 : int(::syscall(SYS_flock, file, operation));
}
extern "C" int gethostname(char* name, size_t size) noexcept {
    utsname node{};
    ::uname(&node);
    return ::snprintf(name, size, "%s", other_node ? other_node : node.nodename) < 0 ? -1 : 0;
}

namespace rg::data {
namespace {

namespace fs = std::filesystem;
using Vec = std::vector<uint8_t>;

/// Writes 9 images of 3 x 2 pixels: 6 for training, of which one is damaged, and 3 for testing.
void write_folder(const std::string& folder) {
    for (int i = 0; i < 9; ++i) {
        const std::string file = cat(folder, i < 6 ? "/train/" : "/test/", i % 2 ? "ant/" : "bee/", i, ".png");
        Vec pixels(3 * 2 * 3);
        for (size_t p = 0; p < pixels.size(); ++p) pixels[p] = uint8_t(i * 20 + int(p));
        write_image(file, 3, 2, 3, pixels);
    }
    write_file_atomic(folder + "/train/bee/2.png", "\x89PNG\r\n\x1A\n");
    write_file_atomic(folder + "/angles.csv", "file,angle\ntrain/bee/0.png,1\ntrain/ant/1.png,2\ntrain/bee/2.png,3\n"
                                              "train/ant/3.png,4\ntrain/bee/4.png,5\ntrain/ant/5.png,6\n"
                                              "test/bee/6.png,7\ntest/ant/7.png,8\ntest/bee/8.png,9\n");
}

LoadOptions options_of(const std::string& cache) { return {.skip_other_images = true, .cache = cache}; }

bool same(const ImageSet& a, const ImageSet& b) {
    return a.count == b.count && a.height == b.height && a.width == b.width && a.channels == b.channels &&
           pixels_of(a) == pixels_of(b) && a.labels == b.labels && a.classes == b.classes && a.targets == b.targets &&
           a.target_names == b.target_names &&
           a.names == b.names && fingerprint(a) == fingerprint(b);
}
bool same(const TrainTest& a, const TrainTest& b) {
    return same(a.train, b.train) && same(a.test, b.test) && a.source == b.source && a.warnings == b.warnings;
}

std::vector<std::string> packed_files(const std::string& cache) {
    std::vector<std::string> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(cache)) files.push_back(entry.path());
    return files;
}

/// Writes other bytes into a file, and keeps its time.
void rewrite(const std::string& path, const std::string& bytes) {
    const auto time = fs::last_write_time(path);
    std::ofstream(path, std::ios::binary) << bytes;
    fs::last_write_time(path, time);
}

void exchange(const std::string& a, const std::string& b) {
    fs::rename(a, a + "~"), fs::rename(b, a), fs::rename(a + "~", b);
}

} // namespace

TEST_SUITE("data") {
    TEST_CASE("packed: has the images of its source, and is made once") {
        const TempDir dir;
        const std::string folder = dir / "set", cache = dir / "cache";
        write_folder(folder);
        LoadOptions in_memory = options_of(kNoCache);
        const TrainTest plain = load(folder, in_memory);
        CHECK((plain.train.count == 5 && plain.test.count == 3));
        CHECK_FALSE(fs::exists(cache));
        const TrainTest packed = load(folder, options_of(cache));
        CHECK(same(plain, packed));
        CHECK(packed.train.pixels.file());
        CHECK(packed.train.pixels.data() == packed.test.pixels.data());
        const Normalise a = normalisation_of(plain.train), b = normalisation_of(packed.train);
        CHECK((a.mean == b.mean && a.deviation == b.deviation));
        const std::vector<std::string> files = packed_files(cache);
        REQUIRE(files.size() == 1); // and no lock
        const auto made = fs::last_write_time(files[0]);
        CHECK(same(plain.train, load(folder + "/", options_of(cache)).train));
        CHECK(fs::last_write_time(files[0]) == made);
        CHECK(packed_files(cache) == files);
        CHECK(same(plain.train, load(files[0]).train)); // a packed set is a source, too
        CHECK_ERROR("got 2x3x3 in a packed set", load(files[0], {.channels = 1}));
        CHECK_ERROR("cannot open " + dir / "none.images", load(dir / "none.images"));
    }

    TEST_CASE("packed: each choice of the options has its own set, and a changed source a new one") {
        const TempDir dir;
        const std::string folder = dir / "set", cache = dir / "cache";
        write_folder(folder);
        LoadOptions options = options_of(cache);
        load(folder, options);
        options.channels = 1;
        CHECK(load(folder, options).train.channels == 1);
        options.height = options.width = 4;
        CHECK(load(folder, options).train.width == 4);
        CHECK(packed_files(cache).size() == 3);
        write_image(folder + "/train/ant/9.png", 3, 2, 3, Vec(18, 7));
        write_file_atomic(folder + "/angles.csv", read_file(folder + "/angles.csv") + "train/ant/9.png,1\n");
        CHECK(load(folder, options).train.count == 6);
        CHECK(packed_files(cache).size() == 3); // the old set is removed
        fs::remove(folder + "/test/bee/8.png");
        CHECK(load(folder, options).test.count == 2);
        CHECK(packed_files(cache).size() == 3);
    }

    TEST_CASE("packed: is made again after each change of a part of the set, and of nothing else") {
        const TempDir dir;
        const std::string folder = dir / "set", train = folder + "/train", cache = dir / "cache";
        std::string angles = "file,angle\n";
        for (const char* const file : {"/train/ant/1.png", "/train/bee/1.png", "/train/bee/2.png", "/test/ant/1.png", "/test/bee/1.png"})
            write_image(folder + file, 3, 2, 3, Vec(18, uint8_t(angles.size())));
        for (const char* const place : {"train/ant/", "train/bee/", "test/ant/", "test/bee/"})
            for (const char* const file : {"1.png", "2.png", "link.png", "other.gif"}) angles += cat(place, file, ",7\n");
        write_file_atomic(folder + "/angles.csv", angles);
        write_image(train + "/bee/other.gif", 3, 2, 3, Vec(18, 7));
        fs::create_symlink(folder + "/test/ant/1.png", train + "/bee/link.png");
        std::ranges::replace(angles, '7', '8');
        const auto link_to = [](const std::string& target, const std::string& link) {
            fs::remove(link), fs::create_symlink(target, link);
        };
        const std::pair<const char*, std::function<void()>> changes[] = {
            {"two class folders exchanged", [&] { exchange(train + "/ant", train + "/bee"); }},
            {"two files exchanged", [&] { exchange(train + "/ant/1.png", train + "/ant/2.png"); }},
            {"other numbers", [&] { rewrite(folder + "/angles.csv", angles); }},
            {"another image", [&] { rewrite(folder + "/test/ant/1.png", read_file(folder + "/test/bee/1.png")); }},
            {"an image of another format", [&] { write_file_atomic(train + "/ant/other.gif", "GIF89a"); }},
            {"one more of them", [&] { write_file_atomic(train + "/bee/new.gif", "GIF89a"); }},
            {"another link", [&] { link_to(train + "/ant/1.png", train + "/ant/link.png"); }},
            {"touched", [&] { fs::last_write_time(folder + "/test/ant/1.png", fs::file_time_type::clock::now()); }},
            {"- a log", [&] { write_file_atomic(folder + "/log.txt", "a"), write_file_atomic(train + "/ant/log", "b"); }},
            {"- a log that grows", [&] { write_file_atomic(folder + "/log.txt", "ab"); }},
            {"- a hidden image", [&] { write_image(train + "/.hidden.png", 3, 2, 3, Vec(18, 7)); }},
            {"- permissions of a folder", [&] { fs::permissions(train, fs::perms::owner_all); }},
        };
        load(folder, options_of(cache));
        for (const auto& [name, change] : changes) {
            const std::string what = name;
            CAPTURE(what);
            const std::vector<std::string> before = packed_files(cache);
            change();
            CHECK(same(load(folder, options_of(kNoCache)), load(folder, options_of(cache))));
            CHECK(packed_files(cache).size() == 1);
            CHECK((packed_files(cache) == before) == (what[0] == '-'));
        }
        fs::create_directory(train + "/wasp"); // an empty class
        CHECK_ERROR("expected images, got none", load(folder, options_of(cache)));
        fs::remove(train + "/wasp");
        fs::create_symlink("nothing", train + "/ant/broken.png");
        CHECK_ERROR("a broken link", load(folder, options_of(cache)));
    }

    TEST_CASE("packed: without stable inodes, pieces of the contents tell files apart") {
        const TempDir dir;
        const auto contents_of = [&](const std::string& name, const std::string& bytes) {
            write_file_atomic(dir / name, bytes);
            struct stat info {};
            REQUIRE(::stat((dir / name).c_str(), &info) == 0);
            FileSystemIds known{{info.st_dev, {}}};
            const std::string text = identity_of(dir / name, known);
            return text.substr(text.rfind(' ')); // after the times
        };
        for (const char* const name : {"x.png", "labels.csv"})
            for (const size_t size : {size_t{1}, size_t{4096}, size_t{4097}, size_t{100'000}})
                for (const size_t place : {size_t{0}, size / 3, size - 1}) {
                    CAPTURE(size);
                    std::string bytes(size, 'a');
                    const std::string before = contents_of(name, bytes);
                    CHECK(contents_of(cat("copy-", name), bytes) == before);
                    bytes[place] = 'b';
                    CHECK(contents_of(name, bytes) != before);
                }
        std::string bytes(100'000, 'a');
        bytes[10'000] = 'b'; // between two pieces
        CHECK(contents_of("x.png", bytes) == contents_of("y.png", std::string(100'000, 'a')));
        CHECK(contents_of("x.csv", bytes) != contents_of("y.csv", std::string(100'000, 'a')));
    }

    TEST_CASE("packed: the first image of another size ends the reading") {
        std::atomic<int> reads = 0;
        const auto read = [&](int64_t i) {
            ++reads;
            return Image{1, i % 2 + 1, 1, 8, Vec(size_t(i % 2 + 1))};
        };
        const auto name = [](int64_t i) { return cat("image ", i); };
        CHECK_ERROR("expected images of one size", Conversion({.channels = 1}).read(4000, name, read));
        CHECK(reads < 2000); // each thread may have begun another one
    }

    TEST_CASE("packed: sets that other nodes have made stay, since these may still read them") {
        const TempDir dir;
        const std::string cache = dir / "cache", image = dir / "set/test/bee/8.png";
        write_folder(dir / "set");
        other_node = "another";
        load(dir / "set", options_of(cache));
        const std::string theirs = packed_files(cache).at(0);
        other_node = nullptr;
        load(dir / "set", options_of(cache));
        CHECK(packed_files(cache) == std::vector{theirs});
        for (const char* const bytes : {"\x89PNG\r\n\x1A\n", "\x89PNG\r\n\x1A"}) {
            rewrite(image, bytes);
            load(dir / "set", options_of(cache));
            CHECK(packed_files(cache).size() == 2);
            CHECK(fs::exists(theirs));
        }
    }

    TEST_CASE("cache: what killed processes have left disappears, but nothing else") {
        const TempDir dir;
        const std::string cache = dir / "cache", held = cache + "/fedcba9876543210";
        write_folder(dir / "set");
        make_cache(cache);
        const std::vector<std::string> left{"0123456789abcdef.lock", "0123456789abcdef.copy/cat/1.png",
                                            "0123456789abcdef.part", "0123456789abcdef.copy.plain.tar"};
        const std::vector<std::string> kept{"0123456789abcdef/1.png", "0123456789abcdef-0.images", "yarn.lock", "yarn.x",
                                            "fedcba9876543210.part"};
        for (const auto* const names : {&left, &kept})
            for (const std::string& name : *names) {
                fs::create_directories(fs::path(cache + "/" + name).parent_path());
                write_file_atomic(cache + "/" + name, "x");
            }
        {
            const CacheLock lock(held, [] { return false; });
            CHECK(lock.exclusive());
            CHECK(read_file(held + ".lock") == cat("process ", ::getpid(), " on ", node_name()));
            load(dir / "set", options_of(cache));
            for (const std::string& name : left) CHECK_FALSE(fs::exists(cache + "/" + name));
            for (const std::string& name : kept) CHECK(fs::exists(cache + "/" + name));
            CHECK(fs::exists(held + ".lock"));
        }
        for (const char* const name : {".lock", ".part"}) CHECK_FALSE(fs::exists(held + name));
        CHECK_FALSE(fs::exists(cache + "/0123456789abcdef.copy"));
    }

    TEST_CASE("cache: a file system without locks is no cache, and locks no run") {
        const TempDir dir;
        write_folder(dir / "set");
        const std::string before = std::getenv("XDG_CACHE_HOME");
        ::setenv("XDG_CACHE_HOME", dir.path().c_str(), 1);
        for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP}) {
            no_locks = error;
            const TrainTest sets = load(dir / "set", options_of(""));
            CHECK(sets.train.count == 5);
            CHECK_FALSE(sets.train.pixels.file());
            CHECK_ERROR("cannot lock files in", load(dir / "set", options_of(dir / "cache")));
            CHECK_ERROR("cannot open and lock", CacheLock(dir / "cache/x", [] { return true; }));
            RunFolder::create(dir / "runs", "train", "", true).lock();
        }
        no_locks = 0;
        ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
    }

    TEST_CASE("packed: files of records, and parts of a set") {
        const TempDir dir;
        const std::string cache = dir / "cache";
        for (const auto& [name, first] : {std::pair("train", 0), {"t10k", 100}}) {
            std::string images("\0\0\x08\x03\0\0\0\x14\0\0\0\2\0\0\0\2", 16), labels("\0\0\x08\x01\0\0\0\x14", 8);
            for (int i = 0; i < 80; ++i) images += char(first + i);
            for (int i = 0; i < 20; ++i) labels += char(i % 10);
            write_file_atomic(dir / cat("set-", name, "-images-idx3-ubyte"), images);
            write_file_atomic(dir / cat("set-", name, "-labels-idx1-ubyte"), labels);
        }
        fs::create_directory(dir / "set");
        for (const auto& entry : fs::directory_iterator(dir.path()))
            if (entry.is_regular_file()) fs::rename(entry.path(), dir / "set/" + entry.path().filename().string());
        for (const int channels : {1, 3}) {
            const TrainTest plain = load(dir / "set", {.channels = channels});
            const TrainTest packed = load(dir / "set", {.channels = channels, .cache = cache});
            CHECK(same(plain, packed));
            const std::vector<int64_t> chosen{19, 3, 3, 0};
            CHECK(same(subset(plain.train, chosen), subset(packed.train, chosen)));
            CHECK(same(subset(plain.test, chosen), subset(packed.test, chosen)));
            Loader loader(packed.train, {.batch_size = 20, .shuffle = Shuffle::never});
            loader.start(0);
            CHECK(loader.next().x.data<float>()[1] == float(plain.train.image(0)[1]) / 255);
        }
        const std::string labels = dir / "set/set-train-labels-idx1-ubyte";
        const std::vector<std::string> before = packed_files(cache);
        write_file_atomic(dir / "set/log.txt", "not a part of the set");
        load(dir / "set", {.channels = 3, .cache = cache});
        CHECK(packed_files(cache) == before);
        std::string bytes = read_file(labels);
        bytes.back() = 0;
        rewrite(labels, bytes);
        CHECK(load(dir / "set", {.channels = 3, .cache = cache}).train.labels.back() == 0);
    }

    TEST_CASE("packed: a file that is damaged anywhere or cut off gives an error, or the right pixels") {
        const TempDir dir;
        const std::string folder = dir / "set", cache = dir / "cache";
        write_folder(folder);
        const TrainTest plain = load(folder, options_of(cache));
        const Vec train = pixels_of(plain.train);
        const std::string path = packed_files(cache).at(0), bytes = read_file(path);
        const auto read_pixels = [&] { return pixels_of(read_packed(path).sets.train); };
        for (size_t i = 0; i < bytes.size(); i += i < sizeof(PackedHead) || (i >= 4090 && i < 4300) ? 1 : 7) {
            CAPTURE(i);
            std::string damaged = bytes;
            damaged[i] = char(damaged[i] ^ 1);
            write_file_atomic(path, damaged);
            Vec pixels = train;
            const std::string error = error_of([&] { pixels = read_pixels(); });
            CHECK((!error.empty() || pixels == train));
            CHECK((!error.empty() || i >= sizeof(PackedHead))); // the rest of the first page, and images of the test set
        }
        // Numbers of others, with right checksums: none may lead to a read outside of the file.
        for (int number = 1; number < 7; ++number)
            for (const uint64_t value : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
                CAPTURE(number);
                PackedHead head;
                std::memcpy(&head, bytes.data(), sizeof head);
                std::memcpy(reinterpret_cast<char*>(&head) + 8 * number, &value, 8);
                head.checksum = head.own_checksum();
                std::string changed = bytes;
                std::memcpy(changed.data(), &head, sizeof head);
                write_file_atomic(path, changed);
                CHECK(contains(error_of(read_pixels), "damaged"));
            }
        for (size_t size = 0; size < bytes.size(); size += size < 80 || size > 4090 ? 13 : 1000) {
            CAPTURE(size);
            write_file_atomic(path, std::string_view(bytes).substr(0, size));
            CHECK(contains(error_of(read_pixels), "damaged"));
        }
        fs::remove(path);
        REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
        CHECK(contains(error_of(read_pixels), "damaged")); // and does not wait for a writer
        CHECK(same(plain, load(folder, options_of(cache)))); // makes it again
        CHECK(read_file(path) == bytes);
    }

    TEST_CASE("packed: what a killed process left is not used, and errors leave no set") {
        const TempDir dir;
        const std::string folder = dir / "set", cache = dir / "cache";
        write_folder(folder);
        const TrainTest plain = load(folder, options_of(cache));
        const std::string path = packed_files(cache).at(0);
        fs::rename(path, path + ".part");
        const std::string older = path.substr(0, path.rfind('-')) + "-0123456789abcdef.images.part";
        fs::copy_file(path + ".part", older);
        CHECK(same(plain, load(folder, options_of(cache))));
        CHECK(packed_files(cache) == std::vector{path});
        write_folder(dir / "other");
        fs::remove(dir / "other/train/ant/1.png");
        load(dir / "other", options_of(dir / "others"));
        fs::rename(packed_files(dir / "others").at(0), path);
        CHECK(same(plain, load(folder, options_of(cache))));
        fs::remove(path);
        LoadOptions strict = options_of(cache);
        strict.skip_other_images = false;
        CHECK_ERROR("train/bee/2.png", load(folder, strict));
        CHECK(packed_files(cache).empty());
        fs::permissions(folder, fs::perms::owner_all); // or it would be refused as one that others can write into
        for (const std::string& inside : {folder, folder + "/cache"})
            CHECK_ERROR("outside of the data", load(folder, options_of(inside)));
        CHECK_FALSE(fs::exists(folder + "/cache"));
        std::shared_ptr<CacheLock> lock;
        const auto changed_meanwhile = [&](PixelSink& sink) -> SourceImages {
            Conversion conversion(options_of(cache), &sink);
            SourceImages contents{read_images(folder, options_of(cache), conversion), "", ""};
            write_file_atomic(folder + "/test/ant/new.png", "new");
            return contents;
        };
        const auto parts = [&] { return image_parts(folder); };
        CHECK_ERROR("got changes in", find_or_pack(folder, folder, options_of(cache), lock, parts, changed_meanwhile));
        lock.reset();
        CHECK(packed_files(cache).empty());
    }

    TEST_CASE("packed: another state of a folder does not wait for the one that is in use, and does not remove it") {
        // Two nodes that have a copy of the folder each, and share the cache, are in this situation.
        const TempDir dir;
        const std::string folder = dir / "set", cache = dir / "cache/";
        write_folder(folder);
        const auto pack = [&](std::shared_ptr<CacheLock>& lock) {
            const auto read = [&](PixelSink& sink) {
                Conversion conversion(options_of(cache), &sink);
                return SourceImages{read_images(folder, options_of(cache), conversion), "", ""};
            };
            return find_or_pack(folder, folder, options_of(cache), lock, [&] { return image_parts(folder); }, read);
        };
        load(folder, options_of(cache)); // makes the folder of the cache
        std::shared_ptr<CacheLock> first, second;
        const std::string used = pack(first);
        fs::last_write_time(folder + "/train/ant/1.png", fs::file_time_type::clock::now());
        const std::string other = pack(second);
        CHECK(used != other);
        CHECK((fs::exists(used) && fs::exists(other)));
        first.reset(), second.reset();
        fs::last_write_time(folder + "/train/ant/1.png", fs::file_time_type::clock::now());
        const std::string last = pack(first);
        first.reset(); // with its lock file
        CHECK((packed_files(cache).size() == 1 && fs::exists(last)));
    }

    TEST_CASE("packed: without a folder for the cache, pixels are in memory") {
        const TempDir dir;
        write_folder(dir / "set");
        const std::string before = std::getenv("XDG_CACHE_HOME");
        fs::create_symlink("loop", dir / "loop");
        for (const std::string& home : {std::string("/dev/null"), dir / "loop"}) {
            ::setenv("XDG_CACHE_HOME", home.c_str(), 1);
            const TrainTest sets = load(dir / "set", options_of(""));
            ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
            CHECK(sets.train.count == 5);
            CHECK_FALSE(sets.train.pixels.file());
        }
        CHECK_ERROR("cannot make the folder", load(dir / "set", options_of("/dev/null/x")));
    }
}

} // namespace rg::data
