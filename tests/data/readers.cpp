// Tests the readers of CIFAR, IDX, PNG folders and the embedded sample, load(), and functions that count, split, divide
// and shuffle sets.
#include "core/atomic_file.h"
#include "core/checksum.h"
#include "core/control_groups.h"
#include "core/cpu/cpu_scope.h"
#include "core/rng.h"
#include "data/cifar.h"
#include "data/idx.h"
#include "data/image_folder.h"
#include "data/inflate.h"
#include "data/open.h"
#include "data/png.h"
#include "data/resize.h"
#include "tests/image_sets.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>
#include <numeric>
#include <set>
#include <thread>

namespace rg::data {
namespace {

namespace fs = std::filesystem;
using Vec = std::vector<uint8_t>;

/// Returns records with the labels `first`, first + 1, ... and random pixels.
Vec records(int count, size_t label_bytes, int first, int classes) {
    Rng rng(uint64_t(count), Purpose::test);
    Vec bytes(size_t(count) * (label_bytes + 3072));
    for (uint8_t& b : bytes) b = uint8_t(rng.next());
    for (int i = 0; i < count; ++i) {
        bytes[size_t(i) * (label_bytes + 3072)] = 0; // the coarse label
        bytes[size_t(i) * (label_bytes + 3072) + label_bytes - 1] = uint8_t((first + i) % classes);
    }
    return bytes;
}

void write_bytes(const std::string& path, const Vec& bytes) { write_file_atomic(path, as_text(bytes)); }

std::string cifar_error(const Vec& bytes) {
    return error_of([&] { parse_cifar({{bytes, "f.bin"}}, CifarKind::cifar10); });
}

ImageSet numbered_set(int64_t count, int32_t classes) {
    ImageSet set{count, 1, 2, 1, {}, {}, {}};
    Vec pixels;
    for (int64_t i = 0; i < count; ++i) {
        pixels.insert(pixels.end(), {uint8_t(i), uint8_t(i >> 8)});
        set.labels.push_back(int32_t(i * i % classes));
    }
    set.pixels = pixels;
    for (int32_t k = 0; k < classes; ++k) set.classes.push_back(cat("k", k));
    return set;
}

Vec idx_file(int type, std::initializer_list<uint32_t> extents, const Vec& values) {
    Vec out{0, 0, uint8_t(type), uint8_t(extents.size())};
    for (const uint32_t e : extents)
        for (int shift = 24; shift >= 0; shift -= 8) out.push_back(uint8_t(e >> shift));
    out.insert(out.end(), values.begin(), values.end());
    return out;
}

std::string idx_error(const Vec& bytes) {
    return error_of([&] { parse_idx(bytes, "f-ubyte"); });
}

void write_grey(const std::string& path, int64_t w, int64_t h, uint8_t value) {
    write_image(path, w, h, 1, Vec(size_t(w * h), value));
}

TEST_SUITE("data") {
    TEST_CASE("cifar: interleaves the planes, and keeps the labels") {
        for (const CifarKind kind : {CifarKind::cifar10, CifarKind::cifar100}) {
            const bool ten = kind == CifarKind::cifar10;
            const size_t label_bytes = ten ? 1 : 2;
            const Vec bytes = records(5, label_bytes, ten ? 7 : 97, ten ? 10 : 100);
            const ImageSet set = parse_cifar({{bytes, "f.bin"}}, kind);
            CHECK(cifar_kind(bytes, "f.bin") == kind);
            CHECK(set.count == 5);
            CHECK(set.classes.size() == (ten ? 10 : 100));
            CHECK(set.labels == (ten ? std::vector<int32_t>{7, 8, 9, 0, 1} : std::vector<int32_t>{97, 98, 99, 0, 1}));
            bool equal = true;
            for (size_t n = 0; n < 5; ++n)
                for (size_t y = 0; y < 32; ++y)
                    for (size_t x = 0; x < 32; ++x)
                        for (size_t c = 0; c < 3; ++c)
                            equal &= set.pixels.data()[((n * 32 + y) * 32 + x) * 3 + c] ==
                                     bytes[n * (label_bytes + 3072) + label_bytes + c * 1024 + y * 32 + x];
            CHECK(equal);
        }
    }

    TEST_CASE("cifar: rejects truncated, oversized and mislabelled files") {
        const Vec good = records(3, 1, 0, 10);
        CHECK(cifar_error(good).empty());
        for (const size_t size : {size_t{0}, size_t{1}, size_t{3072}, good.size() - 1, good.size() - 3072}) {
            const std::string error = cifar_error({good.begin(), good.begin() + int64_t(size)});
            CHECK(error == Containing{"multiple of 3073", "f.bin"});
        }
        Vec longer = good;
        longer.push_back(0);
        CHECK(contains(cifar_error(longer), "offset 9219"));
        Vec wrong = good;
        wrong[2 * 3073] = 10;
        CHECK(contains(cifar_error(wrong), "labels of 0 to 9, got 10 (f.bin, record 2, offset 6146)"));
        CHECK_ERROR("3074", cifar_kind(longer, "f.bin"));
    }

    TEST_CASE("cifar: reads folders and class names, and names missing files") {
        const TempDir dir;
        for (int i = 1; i <= 5; ++i) write_bytes(dir / cat("data_batch_", i, ".bin"), records(2, 1, i, 10));
        CHECK_ERROR("test_batch.bin, which is missing", load(dir.path()));
        CHECK_ERROR("get_cifar10.sh", load(dir.path()));
        write_bytes(dir / "test_batch.bin", records(3, 1, 0, 10));
        TrainTest sets = load(dir.path());
        CHECK(sets.train.count == 10);
        CHECK(sets.train.labels == std::vector<int32_t>{1, 2, 2, 3, 3, 4, 4, 5, 5, 6});
        CHECK(sets.test.count == 3);
        CHECK(sets.train.classes[9] == "truck");
        CHECK(contains(sets.source, "10 + 3 images 32x32x3, 10 classes"));
        write_file_atomic(dir / "batches.meta.txt", "a\nb\r\nc\nd\ne\nf\ng\nh\ni\nj\n\n");
        CHECK(load(dir.path()).test.classes[1] == "b");
        write_file_atomic(dir / "batches.meta.txt", "a\nb\n");
        CHECK_ERROR("expected 10 class names, got 2", load(dir.path()));
        fs::remove(dir / "batches.meta.txt");
        fs::remove(dir / "data_batch_3.bin");
        CHECK_ERROR("data_batch_3.bin", load(dir.path()));

        const TempDir outer; // the folder that contains the archive's folder; with CIFAR-100
        fs::create_directory(outer / "cifar-10-batches-bin");
        write_bytes(outer / "cifar-10-batches-bin/train.bin", records(4, 2, 60, 100));
        CHECK_ERROR("test.bin, which is missing", load(outer.path()));
        write_bytes(outer / "cifar-10-batches-bin/test.bin", records(2, 2, 99, 100));
        sets = load(outer.path());
        CHECK(sets.train.labels == std::vector<int32_t>{60, 61, 62, 63});
        CHECK(sets.test.labels == std::vector<int32_t>{99, 0});
    }

    TEST_CASE("sample: has 100 training and 20 test images of each class") {
        const TrainTest sets = load("");
        CHECK(count_per_label(sets.train) == std::vector<int64_t>(10, 100));
        CHECK(count_per_label(sets.test) == std::vector<int64_t>(10, 20));
        const auto records_of = [](const ImageSet& set) {
            Vec records;
            for (int64_t i = 0; i < set.count; ++i) {
                records.push_back(uint8_t(set.labels[size_t(i)]));
                for (size_t c = 0; c < 3; ++c)
                    for (size_t p = c; p < 3072; p += 3) records.push_back(set.image(i)[p]);
            }
            return records;
        };
        // These are the checksums of the CIFAR records that were packed.
        CHECK(checksum(as_text(records_of(sets.train))) == 7170065127605337008u);
        CHECK(checksum(as_text(records_of(sets.test))) == 4799009243321491152u);
        int64_t equal = 0; // counts images that are in both sets
        for (int64_t i = 0; i < sets.test.count; ++i)
            for (int64_t k = 0; k < sets.train.count; ++k)
                equal += std::ranges::equal(sets.test.image(i), sets.train.image(k));
        CHECK(equal == 0);
        CHECK(contains(sets.source, "1000 + 200 images"));
    }

    TEST_CASE("idx: reads bytes, gzipped or not, and refuses all else") {
        const Tensor bytes = parse_idx(idx_file(8, {2, 1, 3}, {1, 2, 3, 4, 5, 255}), "f");
        CHECK(bytes.shape() == Shape{2, 1, 3});
        CHECK(bytes.span<uint8_t>()[5] == 255);
        // this is {1, 2} in u8, gzipped by another program
        const Vec zipped{0x1f, 0x8b, 8,    0,    0,    0,   0,   0,    2,    3,    0x63, 0x60, 0xe0, 0x60, 0x64,
                         0x60, 0x60, 0x60, 0x62, 0x64, 0x2, 0x0, 0x74, 0xfc, 0x89, 0x62, 0xa,  0x0,  0x0,  0x0};
        const Tensor unzipped = parse_idx(zipped, "f.gz");
        CHECK(unzipped.shape() == Shape{2});
        CHECK(unzipped.span<uint8_t>()[1] == 2);

        CHECK(contains(idx_error({0, 0, 8}), "header of at least 4 bytes"));
        CHECK(contains(idx_error({1, 0, 8, 1, 0, 0, 0, 1, 0}), "two bytes of 0"));
        CHECK(contains(idx_error({0, 0, 13, 1, 0, 0, 0, 1, 0, 0, 0, 0}), "got type 13 (f-ubyte, offset 2)"));
        CHECK(contains(idx_error({0, 0, 8, 5, 0, 0, 0, 1, 0}), "1 to 4 extents, got 5"));
        CHECK(contains(idx_error({0, 0, 8, 2, 0, 0, 0, 1}), "header of 12 bytes"));
        CHECK(contains(idx_error(idx_file(8, {2, 0}, {})), "got 0 (f-ubyte, offset 8)"));
        CHECK(contains(idx_error(idx_file(8, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, {1})), "bytes in all"));
        CHECK(contains(idx_error(idx_file(8, {3}, {1, 2})), "expected 3 bytes of values, got 2"));
        CHECK(contains(idx_error(idx_file(8, {1}, {1, 2})), "expected 1 bytes of values, got 2"));
    }

    TEST_CASE("idx: reads a folder of images and labels") {
        const TempDir dir;
        write_bytes(dir / "train-images-idx3-ubyte", idx_file(8, {2, 2, 1}, {1, 2, 3, 4}));
        CHECK_ERROR("train-labels-idx1-ubyte", load(dir.path()));
        write_bytes(dir / "train-labels-idx1-ubyte", idx_file(8, {2}, {7, 1}));
        write_bytes(dir / "t10k-images-idx3-ubyte", idx_file(8, {1, 2, 1}, {9, 8}));
        write_bytes(dir / "t10k-labels-idx1-ubyte", idx_file(8, {1}, {11}));
        const TrainTest sets = load(dir.path(), {.channels = 1});
        CHECK(pixels_of(sets.train) == Vec{1, 2, 3, 4});
        CHECK(sets.train.labels == std::vector<int32_t>{7, 1});
        CHECK(sets.train.channels == 1);
        CHECK(sets.train.classes.size() == 12);
        CHECK(sets.test.classes.size() == 12);
        write_bytes(dir / "train-labels-idx1-ubyte", idx_file(8, {3}, {7, 1, 1}));
        CHECK_ERROR("as many labels as images, 2, got 3", load(dir.path()));
        write_bytes(dir / "train-labels-idx1-ubyte", idx_file(8, {2, 1}, {7, 1}));
        CHECK_ERROR("labels [n], got [2 1]", load(dir.path()));
    }

    TEST_CASE("idx: takes the file names of MNIST's relatives, and rejects ambiguous ones") {
        using Names = std::vector<std::string>;
        const auto write = [](const TempDir& dir, const Names& names) {
            for (size_t i = 0; i < 4; ++i)
                write_bytes(dir / names[i],
                            i % 2 ? idx_file(8, {1}, {uint8_t(i)}) : idx_file(8, {1, 1, 2}, {uint8_t(i), uint8_t(i)}));
        };
        for (const Names& names :
             {Names{"emnist-letters-train-images-idx3-ubyte.gz", "emnist-letters-train-labels-idx1-ubyte.gz",
                    "emnist-letters-test-images-idx3-ubyte.gz", "emnist-letters-test-labels-idx1-ubyte.gz"},
              Names{"train-images.idx3-ubyte", "train-labels.idx1-ubyte", "t10k-images.idx3-ubyte",
                    "t10k-labels.idx1-ubyte"},
              Names{"latest-train-images-idx3-ubyte", "latest-train-labels-idx1-ubyte", "latest-t10k-images-idx3-ubyte",
                    "latest-t10k-labels-idx1-ubyte"}}) {
            const TempDir dir;
            write(dir, names);
            std::filesystem::create_directories(dir / "train-images-idx3-ubyte"); // some archives unpack to this
            const TrainTest sets = load(dir.path(), {.channels = 1});
            CHECK(pixels_of(sets.train) == Vec{0, 0});
            CHECK(sets.train.labels == std::vector<int32_t>{1});
            CHECK(pixels_of(sets.test) == Vec{2, 2});
            CHECK(sets.test.labels == std::vector<int32_t>{3});
        }
        const TempDir dir;
        write(dir, {"emnist-digits-train-images-idx3-ubyte", "emnist-digits-train-labels-idx1-ubyte",
                    "emnist-digits-test-images-idx3-ubyte", "emnist-digits-test-labels-idx1-ubyte"});
        write_bytes(dir / "emnist-digits-train-images-idx3-ubyte.gz", {1, 2, 3}); // load() takes the other one
        CHECK(pixels_of(load(dir.path(), {.channels = 1}).train) == Vec{0, 0});
        write_bytes(dir / "emnist-letters-train-images-idx3-ubyte.gz", {1, 2, 3});
        CHECK_ERROR("idx: expected one file like train-images-idx3-ubyte, got emnist-digits-train-images-idx3-ubyte "
                    "and emnist-letters-train-images-idx3-ubyte.gz (",
                    load(dir.path()));
    }

    TEST_CASE("image folder: labels classes by sorted names, reads subfolders, and requires one size") {
        const TempDir dir;
        CHECK_ERROR("expected class folders", load(dir.path()));
        write_grey(dir / "b/deep/er/2.png", 3, 2, 20);
        write_grey(dir / "b/1.PNG", 3, 2, 10);
        write_grey(dir / "a/x.png", 3, 2, 30);
        write_file_atomic(dir / "a/notes.txt", "no image");
        write_file_atomic(dir / "a/.hidden.png", "no image");
        write_image(dir / "a/y.png", 3, 2, 3, Vec{255, 0, 0, 0, 255, 0, 0, 0, 255, 1, 2, 3, 4, 5, 6, 7, 8, 9});
        const ImageSet rgb = read_image_folder(dir.path(), 3), grey = read_image_folder(dir.path(), 1);
        CHECK(rgb.classes == std::vector<std::string>{"a", "b"});
        CHECK(rgb.labels == std::vector<int32_t>{0, 0, 1, 1});
        CHECK(count_per_label(rgb) == std::vector<int64_t>{2, 2});
        CHECK(rgb.width == 3);
        CHECK(rgb.height == 2);
        CHECK(rgb.image(1)[0] == 255);
        CHECK(rgb.image(1)[17] == 9);
        CHECK(rgb.image(2)[0] == 10);
        CHECK(rgb.image(3)[5] == 20);
        CHECK(grey.channels == 1);
        CHECK(grey.image(1)[0] == 76);
        CHECK(grey.image(0)[5] == 30);

        fs::create_directory(dir / "c");
        CHECK_ERROR(dir / "c", read_image_folder(dir.path(), 3));
        write_grey(dir / "c/z.png", 2, 3, 1);
        const std::string error = error_of([&] { read_image_folder(dir.path(), 3); });
        CHECK(error == Containing{"3 x 2 as in " + dir / "a/x.png", "2 x 3 (" + dir / "c/z.png"});
        write_file_atomic(dir / "c/z.png", "garbage");
        CHECK_ERROR(dir / "c/z.png", read_image_folder(dir.path(), 3));
        CHECK_ERROR("got nothing", read_image_folder(dir / "nothing", 3));
    }

    TEST_CASE("image folder: rejects images that are not PNGs, or skips them on request") {
        const TempDir dir;
        for (const char* name : {"cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"}) write_grey(dir / name, 2, 2, 1);
        fs::create_directories(dir / "cat/.cache");
        for (const char* name : {"README.md", "angles.txt", "cat/notes.txt", "cat/sizes.csv", "cat/LICENSE",
                                 "cat/.DS_Store", "cat/Thumbs.db", "cat/._1.jpg", "cat/.cache/thumb.jpg"})
            write_file_atomic(dir / name, "BM no image");
        CHECK(read_image_folder(dir.path(), 3).count == 4);

        const std::string gif = "GIF89a";
        const std::string png = read_file(dir / "cat/1.png");
        for (const auto& other :
             std::vector<std::array<std::string, 3>>{{"cat/a.webp", gif, "GIF"},
                                                     {"dog/deep/a.GIF", "", "GIF"}, // by its name
                                                     {"dog/0001", gif, "GIF"},      // by its first bytes
                                                     {"dog/a.txt", gif, "GIF"},
                                                     {"dog/a", std::string("RIFF\0\0\0\0WEBPVP8 ", 16), "WebP"},
                                                     {"dog/a.bin", std::string("MM\0*", 4), "TIFF"},
                                                     {"dog/a.BMP", "BM", "BMP"},
                                                     {"a.png", png, "an image beside the class folders"},
                                                     {"a.gif", gif, "GIF"}}) {
            const std::string &name = other[0], &content = other[1], &format = other[2];
            CAPTURE(name);
            fs::create_directories(fs::path(dir / name).parent_path());
            write_file_atomic(dir / name, content);
            CHECK_ERROR("got 1 other image, " + dir / name + " (" + format + ")", load(dir.path()));
            const std::string ending = fs::path(name).extension(),
                              all = ending.empty() ? fs::path(name).filename().string() : "*" + ending;
            CHECK_ERROR(content == png ? "; move it into one; or" : "mogrify -format png " + all + ", then remove",
                        load(dir.path()));
            CHECK(read_image_folder(dir.path(), 3, true).count == 4);
            CHECK(load(dir.path(), {.skip_other_images = true}).train.count == 2);
            fs::remove(dir / name);
        }
        for (const char* name : {"dog/b.gif", "cat/b.gif", "cat/a.gif"}) write_file_atomic(dir / name, gif);
        const std::string error = error_of([&] { read_image_folder(dir.path(), 3); });
        CHECK(error == Containing{"got 3 other images, the first is " + dir / "cat/a.gif (GIF)", "mogrify -format png",
                                  "--skip-other-images"});
        CHECK(load(dir.path(), {.skip_other_images = true}).left_out ==
              std::vector<std::string>{dir / "cat/a.gif (GIF)", dir / "cat/b.gif (GIF)", dir / "dog/b.gif (GIF)"});
        // A class has only other files, and one is named like a PNG.
        fs::create_directory(dir / "emu");
        write_file_atomic(dir / "emu/a.gif", gif);
        CHECK_ERROR("got 4 other images", read_image_folder(dir.path(), 3));
        CHECK_ERROR("got none (" + dir / "emu); remove", read_image_folder(dir.path(), 3, true));
    }

    TEST_CASE("image folder: recognises images by their contents, whatever their names") {
        const TempDir dir;
        for (const char* name : {"cat/1.png", "dog/1.png"}) write_grey(dir / name, 2, 2, 1);
        const std::string png = read_file(dir / "cat/1.png"), gif = "GIF89a";
        for (const char* name : {"cat/2.jpg", "cat/3", "dog/4.txt", "dog/5.png_"}) write_file_atomic(dir / name, png);
        for (const bool skip : {false, true}) {
            CHECK(read_image_folder(dir.path(), 3, skip).count == 6);
        }
        write_file_atomic(dir / "cat/6.png", gif);
        write_file_atomic(dir / "dog/7.PNG", "GIF89a");
        const std::string names = dir / "cat/6.png, " + dir / "dog/7.PNG";
        CHECK_ERROR("got 2 bad ones: " + names + "; the first: ", read_image_folder(dir.path(), 3));
        CHECK(read_image_folder(dir.path(), 3, true).count == 6);
        write_file_atomic(dir / "dog/8.png", "neither a PNG nor another image");
        const TrainTest sets = load(dir.path(), {.test_fraction = 0, .skip_other_images = true});
        CHECK(sets.train.names ==
              std::vector<std::string>{"cat/1.png", "cat/2.jpg", "cat/3", "dog/1.png", "dog/4.txt", "dog/5.png_"});
        CHECK(sets.train.labels == std::vector<int32_t>{0, 0, 0, 1, 1, 1});
        CHECK(pixels_of(sets.train) == Vec(6 * 2 * 2 * 3, 1));
        REQUIRE(sets.warnings.size() == 1);
        CHECK(sets.warnings[0] == Containing{"3 files are left out; the first: ", dir / "cat/6.png (GIF)"});
    }

    TEST_CASE("image folder: lists all files that it leaves out") {
        const TempDir dir;
        for (const char* name : {"cat/1.png", "dog/1.png", "dog/2.gif"})
            write_grey(dir / ("set/" + std::string(name)), 2, 2, 1);
        for (int i = 2; i < 10; ++i) write_file_atomic(dir / cat("set/cat/", i, ".png"), "damaged");
        write_file_atomic(
            dir / "set/labels.csv", "cat/1.png,a\ndog/1.png,b\ndog/3.gif,b\n" // of an image that is left out
                                    "dog/2.gif,b\n" +
                                        [] {
                                            std::string rows;
                                            for (int i = 2; i < 10; ++i) rows += cat("cat/", i, ".png,a\n");
                                            return rows;
                                        }());
        write_file_atomic(dir / "set/dog/3.gif", "GIF89a");
        for (const std::string& cache :
             {std::string(kNoCache), dir / "cache", dir / "cache"}) { // packs, and then maps the set
            const TrainTest sets = load(dir / "set", {.test_fraction = 0, .skip_other_images = true, .cache = cache});
            CHECK(sets.train.count == 3);
            REQUIRE(sets.left_out.size() == 9);
            CHECK(sets.left_out[0] == dir / "set/dog/3.gif (GIF)");
            for (int i = 2; i < 10; ++i)
                CHECK(contains(sets.left_out[size_t(i - 1)], dir / cat("set/cat/", i, ".png")));
            CHECK(contains(sets.warnings.at(0), "9 files are left out"));
        }
    }

    TEST_CASE("masks: are the stored samples of grey and palette PNGs") {
        const TempDir dir;
        write_grey(dir / "set/a/1.png", 4, 1, 9);
        const ImageSet set = load(dir / "set", {.test_fraction = 0, .labels = Labels::none}).train;
        const auto chunk = [](const std::string& type, const Vec& body) {
            Vec out;
            const auto add = [&](uint32_t n) {
                for (int shift = 24; shift >= 0; shift -= 8) out.push_back(uint8_t(n >> shift));
            };
            add(uint32_t(body.size()));
            Vec checked(type.begin(), type.end());
            checked.insert(checked.end(), body.begin(), body.end());
            out.insert(out.end(), checked.begin(), checked.end());
            add(crc32(checked));
            return std::string(out.begin(), out.end());
        };
        const auto write_mask = [&](int depth, int colour, const Vec& row, const std::string& more, int64_t width) {
            const uint8_t size = uint8_t(row.size() + 1), other = uint8_t(~size);
            Vec data{0x78, 1, 1, size, 0, other, 255, 0}; // one stored block; the last 0 is the filter
            data.insert(data.end(), row.begin(), row.end());
            uint32_t a = 1, b = 1;
            for (const uint8_t byte : row) a += byte, b += a;
            for (const uint32_t n : {b >> 8, b & 255, a >> 8, a & 255}) data.push_back(uint8_t(n));
            const Vec header{0, 0, 0, uint8_t(width), 0, 0, 0, 1, uint8_t(depth), uint8_t(colour), 0, 0, 0};
            write_file_atomic(dir / "masks/a/1.png", "\x89PNG\r\n\x1A\n" + chunk("IHDR", header) + more +
                                                         chunk("IDAT", data) + chunk("IEND", {}));
        };
        const auto read = [&] {
            const Tensor masks = read_masks(set, dir / "masks", 3);
            return std::vector<int32_t>(masks.span<int32_t>().begin(), masks.span<int32_t>().end());
        };
        CHECK_ERROR("masks/a/1.png", read());
        fs::create_directories(dir / "masks/a");
        const auto labels = [&](int depth, int colour, const Vec& row, const std::string& more = "",
                                int64_t width = 4) {
            write_mask(depth, colour, row, more, width);
            return read();
        };
        const std::string palette = chunk("PLTE", {9, 9, 9, 1, 1, 1, 0, 0, 0}), clear = chunk("tRNS", {0, 255, 0});
        const std::vector<int32_t> wanted{0, 1, 2, 1};
        CHECK(labels(8, 0, {0, 1, 2, 1}) == wanted);
        CHECK(labels(16, 0, {0, 0, 0, 1, 0, 2, 0, 1}) == wanted);
        CHECK(labels(8, 3, {0, 1, 2, 1}, palette) == wanted);
        CHECK(labels(8, 3, {0, 1, 2, 1}, palette + clear) == wanted);
        CHECK(labels(2, 3, {0b00011001}, palette) == wanted);
        CHECK(labels(2, 0, {0b00011001}) == wanted);
        CHECK(labels(1, 0, {0b01010000}) == std::vector<int32_t>{0, 1, 0, 1});
        CHECK(labels(8, 4, {0, 255, 1, 0, 2, 255, 1, 3}) == wanted); // grey and alpha
        CHECK(labels(8, 2, {0, 0, 0, 1, 1, 1, 2, 2, 2, 1, 1, 1}) == wanted);
        CHECK_ERROR("got colours", labels(8, 2, {0, 0, 0, 1, 1, 1, 2, 2, 1, 1, 1, 1}));
        CHECK_ERROR("labels below 3, got 256", labels(16, 0, {0, 0, 0, 1, 1, 0, 0, 1}));
        CHECK_ERROR("labels below 3, got 255", labels(8, 0, {0, 1, 255, 1}));
        CHECK_ERROR("1 x 4 pixels, got 1 x 3", labels(8, 0, {0, 1, 2}, "", 3));
        CHECK(labels(8, 0, {0, 1, 2, 1}) == wanted);
        const std::string whole = read_file(dir / "masks/a/1.png");
        write_file_atomic(dir / "masks/a/1.png", whole.substr(0, whole.size() - 12));
        CHECK_ERROR("masks: expected an undamaged file", read());
        ImageSet plain = set; // files without endings, in a folder with a point in its name
        plain.names.assign(size_t(set.count), "v1.0/a");
        CHECK_ERROR("masks/v1.0/a.png", read_masks(plain, dir / "masks", 3));
        ImageSet unnamed = set; // such as CIFAR's images
        unnamed.names.clear();
        CHECK_ERROR("expected a folder of images, whose files have names", read_masks(unnamed, dir / "masks", 3));
        ImageSet windows = set;
        windows.window = {1, 1};
        CHECK_ERROR("omit --store-size", read_masks(windows, dir / "masks", 3));
        unnamed.names = {"a/1.png", "a/2.png"};
        CHECK_ERROR("expected 1 names or none, got 2", unnamed.check("s"));
    }

    TEST_CASE("images: threads wait for memory to decode in") {
        CHECK_ERROR("MiB to decode an image, got 4398046511104 (big.jpg)",
                    auto memory = reserve_memory(int64_t{1} << 62, "big.jpg"));
        const int64_t most = available_memory() / 10 * 6;
        std::atomic<bool> released = false, waited = false;
        std::shared_ptr<void> first = reserve_memory(most, "1.jpg");
        CHECK(first); // else a decoder would reserve once per component, and wait for itself
        CHECK(!reserve_memory(1 << 20, "2.jpg")); // does not wait
        std::thread second([&] {
            const auto memory = reserve_memory(most, "3.jpg");
            waited = released.load();
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        released = true;
        first.reset();
        second.join();
        CHECK(waited);
    }

    TEST_CASE("image folder: refuses images for which there is no memory") {
        const TempDir dir;
        for (const char* name : {"cat/1.png", "dog/1.png"}) write_grey(dir / name, 2, 2, 1);
        // So many ranks that no machine has the memory.
        const std::string error = error_of(
            [&] { load(dir.path(), {.height = 512, .width = 512, .test_fraction = 0, .processes = 1 << 24}); });
        CHECK(contains(error,
                       "MiB for 2 images 512x512x3 on each of 16777216 ranks; give a smaller --size, or leave out"));
    }

    TEST_CASE("image folder: counts files that are damaged but readable in one warning") {
        const TempDir dir;
        for (const char* part : {"set/train/", "set/test/", "more/"})
            for (const char* name : {"cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"})
                write_grey(dir / cat(part, name), 2, 2, 1);
        const std::string whole = read_file(dir / "more/cat/1.png"), cut = whole.substr(0, whole.size() - 12);
        CHECK(load(dir / "set").warnings.empty());
        write_file_atomic(dir / "set/test/cat/1.png", cut);
        const auto reason = [&](const std::string& name) {
            return cat("png: expected a chunk, got the end of the file; the file is cut off, so copy or download it "
                       "again (",
                       dir / name, ", offset ", cut.size(), ")");
        };
        const std::vector<std::string> one{"warning: 1 file is damaged but readable: " + reason("set/test/cat/1.png")};
        CHECK(load(dir / "set").warnings == one);
        for (const char* name : {"set/train/dog/2.png", "set/train/dog/1.png", "more/dog/1.png"})
            write_file_atomic(dir / name, cut);
        const std::vector<std::string> three{"warning: 3 files are damaged but readable; the first: " +
                                             reason("set/train/dog/1.png")};
        const TrainTest sets = load(dir / "set");
        CHECK(sets.warnings == three);
        CHECK(pixels_of(sets.train) == pixels_of(load(dir / "more", {.test_fraction = 0}).train));
        const TrainTest joined = with_test_set(sets, load(dir / "more"));
        REQUIRE(joined.warnings.size() == 2);
        CHECK(joined.warnings[0] == three[0]);
        CHECK(joined.warnings[1] == "warning: 1 file is damaged but readable: " + reason("more/dog/1.png"));
    }

    TEST_CASE("image folder: any number of threads gives the same set and the same error") {
        const TempDir dir;
        for (int i = 0; i < 60; ++i) write_grey(dir / cat(i % 2 ? "a/" : "b/", 100 + i, ".png"), 4, 3, uint8_t(4 * i));
        const ImageSet alone = read_image_folder(dir.path(), 3);
        const auto with_threads = [&](int threads) {
            const CpuScope scope(threads);
            return read_image_folder(dir.path(), 3);
        };
        for (const int threads : {2, 5}) {
            const ImageSet set = with_threads(threads);
            CHECK(pixels_of(set) == pixels_of(alone));
            CHECK(set.labels == alone.labels);
        }
        // The error names damaged files, up to the first file of another size, which ends the reading.
        std::vector<std::pair<std::string, bool>> bad; // in order; true: damaged
        for (const char* const name :
             {"b/158.png", "b/140.png", "b/120.png", "b/118.png", "a/155.png", "a/153.png", "a/101.png"}) {
            const bool damaged = bad.size() % 2 == 0;
            if (damaged)
                write_file_atomic(dir / name, "damaged");
            else
                write_grey(dir / name, 2, 2, 1);
            bad.insert(bad.begin(), {name, damaged});
            const auto other_size = std::ranges::find(bad, false, &std::pair<std::string, bool>::second);
            const auto end = other_size == bad.end() ? other_size : other_size + 1;
            std::string names;
            for (auto file = bad.begin(); file != end; ++file)
                names += (names.empty() ? "" : ", ") + (dir / file->first);
            const std::string begin = end - bad.begin() == 1
                                          ? ""
                                          : cat("images: expected 60 good images, got ", end - bad.begin(),
                                                " bad ones: ", names, "; the first: ");
            for (const int threads : {1, 2, 5})
                for (int repeat = 0; repeat < 5; ++repeat) {
                    const std::string error = error_of([&] { with_threads(threads); });
                    CAPTURE(error);
                    CHECK(error.starts_with(begin));
                    CHECK(contains(error.substr(begin.size()), damaged ? "PNG signature" : "images of one size"));
                    CHECK(contains(error.substr(begin.size()), dir / name));
                }
        }
        // The first good image determines the size.
        CHECK_ERROR("got 2 bad ones", with_threads(2));
    }

    TEST_CASE("conversion: of two bad images, reports the first, whichever fails first") {
        const CpuScope scope(2);
        for (const int64_t early : {1, 2}) {
            CAPTURE(early);
            std::atomic<int> begun = 0, thrown = 0;
            // Waits, but not forever, since both images may run on the same thread.
            const auto wait_for = [](const std::atomic<int>& counter, int value) {
                for (int wait = 0; counter < value && wait < 200; ++wait)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
            };
            const auto read = [&](int64_t i) -> Image {
                if (i == 0) return {1, 1, 1, 8, {0}};
                ++begun;
                wait_for(begun, 2);
                if (i != early) {
                    wait_for(thrown, 1);
                    std::this_thread::sleep_for(std::chrono::milliseconds(5));
                }
                ++thrown;
                fail("image ", i);
            };
            Conversion conversion({.channels = 1});
            CHECK(error_of([&] {
                      conversion.read(
                          3, [](int64_t i) { return cat(i); }, read);
                  }) == "images: expected 3 good images, got 2 bad ones: 1, 2; the first: image 1; "
                        "remove them, or give --skip-other-images");
        }
    }

    TEST_CASE("load: resizes images, and converts them to colour or grey, from every kind of file") {
        const TempDir dir;
        const auto rgb = [](int64_t width, int64_t height, uint8_t first) {
            Vec pixels(size_t(width * height * 3));
            std::iota(pixels.begin(), pixels.end(), first);
            return Image{width, height, 3, 8, pixels};
        };
        const auto expected = [](const Image& image, int channels) { return fit(to_u8(image, channels), 2, 3).pixels; };
        const std::vector<Image> images{rgb(3, 2, 0), rgb(7, 4, 50), rgb(4, 9, 100)};
        for (size_t i = 0; i < images.size(); ++i)
            write_image(dir / cat("set/a/", i, ".png"), images[i].width, images[i].height, 3, images[i].pixels);
        write_grey(dir / "set/b/3.png", 6, 4, 9);
        CHECK_ERROR("got 7 x 4 (" + dir / "set/a/1.png); give --size to", load(dir / "set"));
        const LoadOptions size{.height = 2, .width = 3, .test_fraction = 0};
        for (const int channels : {3, 1}) {
            LoadOptions options = size;
            options.channels = channels;
            const TrainTest sets = load(dir / "set", options);
            REQUIRE(sets.train.count == 4);
            CHECK(sets.test.count == 0);
            CHECK(sets.train.image_bytes() == 6 * channels);
            for (size_t i = 0; i < images.size(); ++i)
                CHECK(std::ranges::equal(sets.train.image(int64_t(i)), expected(images[i], channels)));
            CHECK(std::ranges::equal(sets.train.image(3), Vec(size_t(6 * channels), 9)));
            CHECK(sets.source == cat("images in ", dir / "set", ": 4 images 2x3x", channels, ", 2 classes, ",
                                     channels == 3 ? "1 grey image converted to colour, 3 images resized"
                                                   : "3 colour images converted to grey, 3 images resized"));
        }

        fs::create_directory(dir / "idx");
        write_bytes(dir / "idx/train-images-idx3-ubyte", idx_file(8, {2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2}));
        write_bytes(dir / "idx/t10k-images-idx3-ubyte", idx_file(8, {1, 2, 3}, {9, 8, 7, 6, 5, 4}));
        write_bytes(dir / "idx/train-labels-idx1-ubyte", idx_file(8, {2}, {7, 1}));
        write_bytes(dir / "idx/t10k-labels-idx1-ubyte", idx_file(8, {1}, {1}));
        const TrainTest idx = load(dir / "idx");
        CHECK(idx.train.channels == 3);
        const Vec test = pixels_of(idx.test);
        CHECK(Vec(test.begin(), test.begin() + 6) == Vec{9, 9, 9, 8, 8, 8});
        CHECK(idx.train.labels == std::vector<int32_t>{7, 1});
        CHECK(contains(idx.source, "2 + 1 images 2x3x3, 10 classes, 3 grey images converted to colour"));
        const Image first = fit(Image{3, 2, 1, 8, {1, 2, 3, 4, 5, 6}}, 4, 4);
        const ImageSet larger = load(dir / "idx", {.channels = 1, .height = 4, .width = 4}).train;
        CHECK(std::ranges::equal(larger.image(0), first.pixels));

        const ImageSet sample = load("").test, small = load("", {.height = 8, .width = 5}).test;
        const std::span<const uint8_t> whole = sample.image(7);
        CHECK(std::ranges::equal(small.image(7), fit({32, 32, 3, 8, {whole.begin(), whole.end()}}, 8, 5).pixels));
        CHECK(small.labels == sample.labels);
    }

    TEST_CASE("size: is two numbers, or one for both") {
        CHECK((parse_size("").height == 0 && parse_size("").width == 0));
        CHECK((parse_size("48").height == 48 && parse_size("48").width == 48));
        CHECK((parse_size("1x8192").height == 1 && parse_size("1x8192").width == 8192));
        for (const std::string wrong : {"0", "x", "3x", "x3", "3x0", "-1", "8193", "3x4x5", "3X4", " 3", "1e3", "+3"})
            CHECK_ERROR("of 1 to 8192 pixels, got " + wrong, parse_size(wrong));
    }

    TEST_CASE("test data: have the classes and the size of the training images") {
        const auto set_of = [](std::vector<std::string> classes, std::vector<int32_t> labels) {
            Vec pixels(labels.size() * 2);
            std::iota(pixels.begin(), pixels.end(), uint8_t(0));
            return ImageSet{int64_t(labels.size()), 1, 2, 1, pixels, labels, std::move(classes)};
        };
        const TrainTest sets{set_of({"a", "b"}, {0, 0, 1}), set_of({"a", "b"}, {1}), "A"};
        const TrainTest all{set_of({"b", "a"}, {0, 1}), {}, "B"}; // no test set: all images are tested on
        const TrainTest joined = with_test_set(sets, all);
        CHECK(joined.train.labels == sets.train.labels);
        CHECK(joined.test.labels == std::vector<int32_t>{1, 0});
        CHECK(joined.test.classes == sets.train.classes);
        CHECK(pixels_of(joined.test) == pixels_of(all.train));
        CHECK(joined.source == "A; tested on B");
        CHECK(with_test_set(sets, {all.train, set_of({"a", "b"}, {0}), ""}).test.count == 1);
        const auto error = [&](const ImageSet& test) {
            return error_of([&] { with_test_set(sets, {test, {}, "B"}); });
        };
        CHECK(with_test_set(sets, {set_of({"b"}, {0}), {}, ""}).test.labels == std::vector<int32_t>{1});
        CHECK(error(set_of({"a", "b", "c"}, {0})) ==
              "--test-data: expected the 2 classes of --data, got another class, c (B)");
        ImageSet turned = set_of({"a", "b"}, {0});
        std::swap(turned.height, turned.width);
        CHECK(error(turned) ==
              "--test-data: expected images of 1x2x1 as in --data, got 2x1x1 (B); give --size to resize all images");
    }

    TEST_CASE("image folder: follows links, and rejects broken ones") {
        const TempDir dir;
        write_grey(dir / "set/cat/1.png", 2, 2, 1);
        write_grey(dir / "more/2.png", 2, 2, 2);
        write_grey(dir / "dogs/3.png", 2, 2, 3);
        fs::create_directory_symlink("../../more", dir / "set/cat/more");
        fs::create_directory_symlink("../dogs", dir / "set/dog");
        const ImageSet set = read_image_folder(dir / "set", 3);
        CHECK(set.classes == std::vector<std::string>{"cat", "dog"});
        CHECK(set.count == 3);
        for (const char* name : {"set/cat/4.png", "set/cat/part", "set/emu"}) {
            fs::create_symlink("nowhere", dir / name);
            CHECK_ERROR("got a broken link (" + dir / name + ")", read_image_folder(dir / "set", 3, true));
            fs::remove(dir / name);
        }
        fs::create_directory_symlink("..", dir / "set/cat/loop");
        CHECK(error_of([&] { read_image_folder(dir / "set", 3); }) != "");
    }

    TEST_CASE("image folder: uses train and test folders, or holds out a fifth of each class") {
        const TempDir dir;
        for (int i = 0; i < 10; ++i)
            for (const char* name : {"cat", "dog"})
                write_grey(dir / cat("all/", name, "/", i, ".png"), 2, 2, uint8_t(i));
        const TrainTest split = load(dir / "all");
        CHECK(count_per_label(split.train) == std::vector<int64_t>{8, 8});
        CHECK(count_per_label(split.test) == std::vector<int64_t>{2, 2});

        for (const char* name : {"cat", "dog"}) write_grey(dir / cat("two/train/", name, "/1.png"), 2, 2, 1);
        write_grey(dir / "two/test/dog/1.png", 2, 2, 2);
        const TrainTest two = load(dir / "two");
        CHECK(two.test.labels == std::vector<int32_t>{1});
        CHECK(two.test.classes == two.train.classes);
        write_grey(dir / "two/test/emu/1.png", 2, 2, 2);
        CHECK_ERROR("got emu", load(dir / "two"));
        fs::remove_all(dir / "two/test/emu");
        write_grey(dir / "two/test/dog/1.png", 3, 2, 2);
        CHECK_ERROR("expected images of one size, 2 x 2 as in " + dir / "two/train/cat/1.png, got 3 x 2",
                    load(dir / "two"));
        CHECK_ERROR("expected a folder, got a file", load(dir / "two/test/dog/1.png"));

        // Another seed selects other images.
        const auto test_pixels = [&](int64_t seed) { return pixels_of(load(dir / "all", {.seed = seed}).test); };
        CHECK(test_pixels(3) == test_pixels(3));
        int others = 0;
        for (uint64_t seed = 4; seed < 8; ++seed) others += test_pixels(seed) != test_pixels(3);
        CHECK(others > 0);

        fs::remove_all(dir / "two/train");
        CHECK_ERROR("got 1 for testing alone", load(dir / "two"));
        CHECK(load(dir / "two", {.test_fraction = 0}).train.count == 1);
    }

    TEST_CASE("split: divides each class at random by seed, without loss or duplicates") {
        const ImageSet set = numbered_set(200, 7);
        const std::vector<int64_t> counts = count_per_label(set);
        REQUIRE(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == 200);
        const Split a = split_fraction(set, 0.3, {"1"}), again = split_fraction(set, 0.3, {"1"}),
                    other = split_fraction(set, 0.3, {"2"});
        CHECK(a.selected == again.selected);
        CHECK(a.selected != other.selected);
        CHECK(std::is_sorted(a.selected.begin(), a.selected.end()));
        std::set<int64_t> all(a.selected.begin(), a.selected.end());
        all.insert(a.others.begin(), a.others.end());
        CHECK(all.size() == 200);
        CHECK(a.selected.size() + a.others.size() == 200);
        const ImageSet part = subset(set, a.selected);
        const std::vector<int64_t> chosen = count_per_label(part);
        for (size_t k = 0; k < counts.size(); ++k) CHECK(chosen[k] == std::llround(0.3 * double(counts[k])));
        for (size_t i = 0; i < a.selected.size(); ++i) {
            CHECK(part.image(int64_t(i))[0] == uint8_t(a.selected[i]));
            CHECK(part.labels[i] == set.labels[size_t(a.selected[i])]);
        }
        CHECK(split_sets(set, 0.3, {"1"}, "images").warnings.empty());
        const ImageSet with_single{3, 1, 1, 1, Vec(3), {0, 2, 2}, {"ant", "bee", "cat"}};
        const std::vector<std::string> warnings = split_sets(with_single, 0.5, {"1"}, "images").warnings;
        REQUIRE(warnings.size() == 1);
        CHECK(contains(warnings[0], "single image, which no test can have: 1, such as ant"));
        CHECK_THROWS_AS(split_fraction(set, 1.5, {"1"}), Error);
        CHECK_ERROR("above 0 and below 1, got 1", split_sets(set, 1, {"1"}, "images"));
        CHECK_THROWS_AS(subset(set, std::array<int64_t, 1>{200}), Error);
    }

    TEST_CASE("split: added and removed images move only those at the border, and none if the rule is kept") {
        ImageSet all{1300, 1, 1, 1, Vec(1300), {}, {"ant", "bee", "cat"}};
        for (int i = 0; i < 1300; ++i)
            all.labels.push_back(i % 3), all.names.push_back(cat(all.classes[size_t(i % 3)], "/", i, ".png"));
        const auto part = [&](int begin, int end) { // in another order
            std::vector<int64_t> indices;
            for (int i = end; i-- > begin;) indices.push_back(i);
            return subset(all, indices);
        };
        const auto selected = [](const ImageSet& set, const Split& split) {
            std::set<std::string> names;
            for (const int64_t i : split.selected) names.insert(set.name(i));
            return names;
        };
        const ImageSet first = part(0, 1000);
        const Split split = split_fraction(first, 0.2, {"test 0"});
        const std::set<std::string> before = selected(first, split);
        CHECK(before.size() == 3 * 67);
        for (const auto& range : {std::pair(0, 1300), {0, 700}, {300, 1000}, {150, 1150}, {0, 1001}}) {
            const int begin = range.first, end = range.second; // clang 14 captures no structured binding
            const ImageSet set = part(begin, end);
            const auto moved = [&](const std::set<std::string>& now) { // of the images of both sets
                int64_t count = 0;
                for (int i = std::max(0, begin); i < std::min(1000, end); ++i)
                    count += before.contains(all.name(i)) != now.contains(all.name(i));
                return count;
            };
            const Split kept = split_fraction(set, 0.2, split.rule);
            CHECK(moved(selected(set, kept)) == 0);
            CHECK(std::abs(double(kept.selected.size()) - 0.2 * double(set.count)) < 40); // about 3 deviations
            CHECK(kept.rule == split.rule);
            // Added and removed images below the border move it by as many others, and by one for rounding.
            const std::set<std::string> fresh = selected(set, split_fraction(set, 0.2, {"test 0"}));
            CHECK(moved(fresh) <= 0.2 * (std::max(0, end - 1000) + begin + std::max(0, 1000 - end)) + 40);
        }
        // Other classes play no part, and a new one gets a limit of its own.
        const auto without_cats = [&] {
            std::vector<int64_t> indices;
            for (int64_t i = 0; i < 1000; ++i)
                if (i % 3 != 2) indices.push_back(i);
            return subset(all, indices);
        }();
        Split two = split_fraction(without_cats, 0.2, {"test 0"});
        for (const std::string& name : selected(without_cats, two)) CHECK(before.contains(name));
        two.rule.limits.erase("cat");
        CHECK(selected(first, split_fraction(first, 0.2, two.rule)) == before);
        // A class of one image trains on it, and tests about a fifth of the later ones.
        const Split single = split_fraction(part(0, 1), 0.2, {"test 0"});
        CHECK(single.selected.empty());
        CHECK(split_fraction(first, 0.2, single.rule).selected.size() > 100);
    }

    TEST_CASE("part_range: covers all items in order, and gives the remainder to the first parts") {
        for (int parts = 1; parts < 9; ++parts)
            for (int64_t n = 0; n < 30; ++n) {
                int64_t at = 0;
                for (int i = 0; i < parts; ++i) {
                    const Range range = part_range(n, parts, i);
                    CHECK(range.begin == at);
                    CHECK(range.size() == n / parts + (i < n % parts));
                    at = range.end;
                }
                CHECK(at == n);
            }
        CHECK(part_range(5, 2, 2) == Range{5, 5});
        CHECK_THROWS_AS(part_range(4, 2, 3), Error);
    }

    TEST_CASE("permutation: is uniform, has each index once, and depends on seed and epoch") {
        const std::vector<int64_t> order = permutation(1000, 5, 3);
        CHECK(std::set<int64_t>(order.begin(), order.end()).size() == 1000);
        CHECK(*std::max_element(order.begin(), order.end()) == 999);
        CHECK(order == permutation(1000, 5, 3));
        CHECK(order != permutation(1000, 5, 4));
        CHECK(order != permutation(1000, 6, 3));
        CHECK(permutation(0, 1, 1).empty());
        std::array<int, 6> seen{}; // counts of the 6 orders of three items
        for (int epoch = 0; epoch < 6000; ++epoch) {
            const std::vector<int64_t> p = permutation(3, 9, epoch);
            ++seen[size_t(p[0] * 2 + (p[1] > p[2]))];
        }
        for (const int n : seen) CHECK(std::abs(n - 1000) < 150); // 5 standard deviations
    }

    TEST_CASE("image set: check() names what does not fit") {
        ImageSet set = numbered_set(5, 3);
        set.check("s");
        set.labels[4] = 3;
        CHECK_ERROR("labels of 0 to 2, got 3 (s, image 4)", set.check("s"));
        set.labels.pop_back();
        CHECK_ERROR("expected 5 labels, got 4", set.check("s"));
        set.labels.push_back(0);
        set.rows = {0, 1, 2, 3, 5};
        CHECK_ERROR("rows of 0 to 4, got 5 (s, image 4)", set.check("s"));
        set.rows.clear();
        set.pixels = Vec(9);
        CHECK_ERROR("expected 10 bytes or 5 rows, got 9 and 0", set.check("s"));
    }

} // TEST_SUITE

} // namespace
} // namespace rg::data
