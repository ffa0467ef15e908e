// Tests packed sets: that they have the images of their source, are made anew if it changes, and never give wrong
// pixels.
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/loader.h"
#include "ringgrad/data/packed.h"
#include "ringgrad/data/png.h"
#include "ringgrad/tests/image_sets.h"
#include "ringgrad/tests/temp_dir.h"

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <sys/stat.h>

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
    for (const fs::directory_entry& entry : fs::directory_iterator(cache))
        if (entry.path().extension() != ".lock") files.push_back(entry.path());
    return files;
}

/// Replaces the bytes of a file by others, and keeps its size and its time.
void spoil(const std::string& path) {
    const auto time = fs::last_write_time(path);
    std::string bytes = read_file(path);
    std::fill(bytes.begin(), bytes.end(), 'x');
    write_file_atomic(path, bytes);
    fs::last_write_time(path, time);
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
        // The second time, no image is read, so what is in the files does not matter.
        for (const auto& entry : fs::recursive_directory_iterator(folder))
            if (entry.is_regular_file()) spoil(entry.path());
        CHECK(same(plain, load(folder, options_of(cache))));
        const std::vector<std::string> files = packed_files(cache);
        REQUIRE(files.size() == 1);
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
        write_png(folder + "/train/ant/9.png", 3, 2, 3, Vec(18, 7));
        write_file_atomic(folder + "/angles.csv", read_file(folder + "/angles.csv") + "train/ant/9.png,1\n");
        CHECK(load(folder, options).train.count == 6);
        CHECK(packed_files(cache).size() == 3); // the old set is removed
        fs::remove(folder + "/test/bee/8.png");
        CHECK(load(folder, options).test.count == 2);
        write_png(folder + "/.hidden.png", 3, 2, 3, Vec(18, 7)); // is not read
        const std::vector<std::string> before = packed_files(cache);
        load(folder, options);
        CHECK(packed_files(cache) == before);
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
        const auto changed_meanwhile = [&](PixelSink& sink) -> Contents {
            Conversion conversion(options_of(cache), &sink);
            Contents contents{read_images(folder, options_of(cache), conversion), "", ""};
            write_file_atomic(folder + "/test/ant/new.png", "new");
            return contents;
        };
        CHECK_ERROR("got changes in", pack(folder, folder, options_of(cache), false, lock, changed_meanwhile));
        lock.reset();
        CHECK(packed_files(cache).empty());
    }

    TEST_CASE("packed: without a folder for the cache, pixels are in memory") {
        const TempDir dir;
        write_folder(dir / "set");
        const std::string before = std::getenv("XDG_CACHE_HOME");
        ::setenv("XDG_CACHE_HOME", "/dev/null", 1);
        const TrainTest sets = load(dir / "set", options_of(""));
        ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
        CHECK(sets.train.count == 5);
        CHECK_FALSE(sets.train.pixels.file());
        CHECK_ERROR("cannot make the folder", load(dir / "set", options_of("/dev/null/x")));
    }
}

} // namespace rg::data
