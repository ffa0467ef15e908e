// bench_data measures the input pipeline in images per second, and the PNG decoder in MB per second.
//
//     ./bench_data [--data DIR] [--threads N] [--seconds S]
//     ./bench_data --images 100000 --pillow "python3 tools/bench/pillow_folder.py"
//     ./bench_data --photos 8 --threads 1 --pillow "python3 tools/bench/pillow_folder.py"
//
// Prints a line of key=value pairs per case. Pipeline cases have two stages. `decode` turns stored bytes into an
// ImageSet, here on one thread. For a folder it includes reads of the cached files. `batches` augments, normalises and
// lays out the images of an epoch with the Loader of the programs. images_per_s is the rate of both stages in sequence;
// with threads=1 it is the rate per core. PNG cases decode files from memory to 8-bit RGB; an MB is 10^6 bytes of
// decoded pixels. Figures are medians; those in *_max are the best.
//
// With --images, --photos or --pillow, it measures only how fast all threads list and load a folder of many PNGs, or of
// photos as JPEGs. With --pillow, Pillow does so in turn.
#include "core/atomic_file.h"
#include "core/clock.h"
#include "core/cpu/cores.h"
#include "core/cpu/cpu_scope.h"
#include "core/options.h"
#include "core/rng.h"
#include "data/cifar.h"
#include "data/command.h"
#include "data/decode.h"
#include "data/loader.h"
#include "data/open.h"
#include "data/png.h"
#include "data/sample.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <numbers>

using namespace rg;
namespace fs = std::filesystem;

namespace {

struct Settings {
    std::string data, size, pillow;
    int64_t threads = 0, batch = 256, images = 0, photos = 0;
    double seconds = 2;
};

struct Times {
    double median, best;
    size_t runs;
};

/// Runs the job once without measuring it, and then for about `seconds`, but at least 5 times.
Times time_of(double seconds, const std::function<void()>& job) {
    std::vector<double> times;
    job();
    for (double used = 0; used < seconds || times.size() < 5;) used += times.emplace_back(wall_seconds(job));
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times.front(), times.size()};
}

// ---- pipeline ----

void bench_pipeline(const Settings& s, const char* name, const std::string& source,
                    const std::function<data::ImageSet()>& decode) {
    data::ImageSet set;
    const Times decoding = time_of(s.seconds, [&] { set = decode(); });
    const double images = double(set.count);
    std::vector<int64_t> thread_counts{1};
    if (s.threads > 1) thread_counts.push_back(s.threads);
    for (const int64_t threads : thread_counts) {
        data::Loader loader(set, {.batch_size = s.batch,
                                  .keep_partial = true,
                                  .augment = {.flip = true, .translate_x = 4, .translate_y = 4},
                                  .normalise = data::kCifar10,
                                  .threads = int(threads),
                                  .depth = 2 * int(threads)});
        int64_t epoch = 0;
        const Times batches = time_of(s.seconds, [&] {
            for (loader.start(epoch++); loader.has_next();) loader.next();
        });
        std::printf("case=%s source=%s size=%lldx%lldx%lld images=%.0f threads=%lld images_per_s=%.0f "
                    "images_per_s_max=%.0f decode_per_s=%.0f decode_per_s_max=%.0f batches_per_s=%.0f "
                    "batches_per_s_max=%.0f runs=%zu\n",
                    name, source.c_str(), static_cast<long long>(set.height), static_cast<long long>(set.width),
                    static_cast<long long>(set.channels), images, static_cast<long long>(threads),
                    images / (decoding.median + batches.median), images / (decoding.best + batches.best),
                    images / decoding.median, images / decoding.best, images / batches.median, images / batches.best,
                    std::min(decoding.runs, batches.runs));
        std::fflush(stdout);
    }
}

/// Returns the set as CIFAR-10 records, `repeats` times in sequence.
std::vector<uint8_t> cifar_records(const data::ImageSet& set, int repeats) {
    std::vector<uint8_t> records;
    for (int r = 0; r < repeats; ++r)
        for (int64_t i = 0; i < set.count; ++i) {
            records.push_back(uint8_t(set.labels[size_t(i)]));
            const std::span<const uint8_t> image = set.image(i);
            for (size_t c = 0; c < 3; ++c)
                for (size_t p = c; p < image.size(); p += 3) records.push_back(image[p]);
        }
    return records;
}

void bench_cifar(const Settings& s, bool from_folder) {
    if (from_folder) {
        const auto read = [&] { return data::read_cifar(s.data).train; };
        return bench_pipeline(s, "cifar", s.data, read);
    }
    const std::vector<uint8_t> records = cifar_records(data::sample().train, 10);
    const auto parse = [&] { return data::parse_cifar({{records, "sample"}}, data::CifarKind::cifar10); };
    bench_pipeline(s, "cifar", "sample_x10", parse);
}

/// Writes the set as class folders of PNGs.
void write_folders(const data::ImageSet& set, const std::string& path) {
    for (const std::string& name : set.classes) fs::create_directories(fs::path(path) / name);
    for (int64_t i = 0; i < set.count; ++i) {
        const fs::path file = fs::path(path) / set.classes[size_t(set.labels[size_t(i)])] / cat(i, ".png");
        const std::vector<uint8_t> png = data::encode_png(set.width, set.height, int(set.channels), set.image(i));
        std::ofstream out(file, std::ios::binary); // not synced, since the folder is temporary
        out << data::as_text(png);
        RG_CHECK(out.flush(), "bench_data: expected to write ", file.string(), ", got an error; is the disk full?");
    }
}

// ---- PNG decoder ----

struct Files {
    std::string name;
    std::vector<std::vector<uint8_t>> bytes;
};

/// Returns 1920 x 1080 pixels that compress like a photo: smooth gradients, shapes with sharp edges, and noise. As in
/// photos, neighbours have similar noise, which grows towards the bottom. Some shapes are saturated, without noise.
data::Image photo() {
    data::Image image{1920, 1080, 3, 8, std::vector<uint8_t>(1920 * 1080 * 3)};
    Rng random(1, Purpose::synthetic);
    struct Wave {
        double fx, fy, phase, height[3];
    };
    std::vector<Wave> waves(12);
    for (Wave& wave : waves) {
        wave = {random.uniform() * 12, random.uniform() * 12, random.uniform() * 6.28, {}};
        for (double& h : wave.height) h = 14 * random.normal();
    }
    struct Disc {
        double x, y, radius, colour[3];
        bool flat;
    };
    std::vector<Disc> discs(120);
    for (size_t i = 0; i < discs.size(); ++i) {
        discs[i] = {random.uniform() * 1920,
                    random.uniform() * 1080,
                    8 + 140 * std::pow(random.uniform(), 3.0),
                    {},
                    i % 16 == 0};
        for (double& c : discs[i].colour) c = 40 * random.normal();
    }
    uint8_t* out = image.pixels.data();
    std::vector<float> noise(size_t{1920} * 3);
    for (int64_t y = 0; y < image.height; ++y) {
        const float sigma = 0.3f + 3 * float(y * y) / (1080 * 1080);
        for (size_t i = 0; i < noise.size(); ++i)
            noise[i] = 0.6f * noise[i] + 0.3f * (i < 3 ? 0 : noise[i - 3]) + sigma * random.normal();
        for (int64_t x = 0; x < image.width; ++x) {
            double value[3] = {120, 125, 118};
            for (const Wave& wave : waves) {
                const double height = std::cos(wave.fx * double(x) / 1920 + wave.fy * double(y) / 1080 + wave.phase);
                for (size_t c = 0; c < 3; ++c) value[c] += wave.height[c] * height;
            }
            bool flat = false;
            for (const Disc& disc : discs) {
                const double dx = double(x) - disc.x, dy = double(y) - disc.y;
                if (dx * dx + dy * dy > disc.radius * disc.radius) continue;
                flat = disc.flat;
                for (size_t c = 0; c < 3; ++c) value[c] = flat ? 250 : value[c] + disc.colour[c];
            }
            for (size_t c = 0; c < 3; ++c)
                *out++ = uint8_t(std::clamp(value[c] + (flat ? 0.0 : double(noise[size_t(3 * x) + c])), 0.0, 255.0));
        }
    }
    return image;
}

void bench_png(const Settings& s, const Files& files) {
    double pixel_bytes = 0, file_bytes = 0;
    for (const auto& file : files.bytes) {
        const data::Image image = data::to_u8(data::decode_png(file, files.name), 3);
        pixel_bytes += double(image.pixels.size());
        file_bytes += double(file.size());
    }
    size_t sink = 0; // keeps the compiler from removing the work
    const Times times = time_of(s.seconds, [&] {
        for (const auto& file : files.bytes) sink += data::to_u8(data::decode_png(file, files.name), 3).pixels.back();
    });
    const double mb = pixel_bytes * 1e-6;
    std::printf("case=png_decode files=%s count=%zu pixel_mb=%.2f ratio_of_file=%.3f mb_per_s=%.1f mb_per_s_max=%.1f "
                "us_per_file=%.2f runs=%zu check=%zu\n",
                files.name.c_str(), files.bytes.size(), mb, file_bytes / pixel_bytes, mb / times.median,
                mb / times.best, times.median * 1e6 / double(files.bytes.size()), times.runs, sink % 256);
    std::fflush(stdout);
}

void bench_png_files(const Settings& s, bool from_folder) {
    if (from_folder) {
        Files files{s.data, {}};
        for (const std::string& name : data::load(s.data, {.test_fraction = 0}).train.names) {
            if (files.bytes.size() == 200) break;
            const std::string bytes = read_file(s.data + "/" + name);
            files.bytes.emplace_back(bytes.begin(), bytes.end());
        }
        return bench_png(s, files);
    }
    const data::ImageSet set = data::sample().test;
    const data::Image large = photo();
    Files small{"sample_32x32", {}};
    for (int64_t i = 0; i < set.count; ++i)
        small.bytes.push_back(data::encode_png(set.width, set.height, 3, set.image(i)));
    bench_png(s, small);
    bench_png(s, {"photo_1920x1080", {data::encode_png(large.width, large.height, 3, large.pixels)}});
}

// ---- folder of many images ----

/// Measures how fast a folder is loaded: --data, or a new one with s.photos JPEGs that Pillow makes, or with s.images
/// PNGs, which repeat the images of the sample. With --pillow, Pillow loads it in turn.
void bench_many_files(const Settings& s) {
    const TempDir made;
    if (s.photos > 0) {
        RG_CHECK(!s.pillow.empty() && s.data.empty(), "--photos: expected --pillow, which makes them, and no --data");
        data::Image image = photo();
        data::ImageSet set{s.photos, image.height, image.width, 3};
        set.pixels = std::move(image.pixels), set.classes = {"photo"};
        set.rows.resize(size_t(s.photos)), set.labels.resize(size_t(s.photos)); // the same image again and again
        write_folders(set, made.path());
        data::run_command(cat(s.pillow, " --jpeg ", shell_word(made.path())));
    } else if (s.data.empty()) {
        const data::ImageSet sample = data::sample().train;
        std::vector<int64_t> indices(size_t(s.images), 0);
        for (size_t i = 0; i < indices.size(); ++i) indices[i] = int64_t(i) % sample.count;
        write_folders(data::subset(sample, indices), made.path());
    }
    const std::string folder = s.data.empty() ? made.path() : s.data;
    const auto [height, width] = data::parse_size(s.size);
    const data::LoadOptions options{.height = height, .width = width};
    int64_t images = 0;
    const auto load = [&] {
        const CpuScope scope(static_cast<int>(s.threads));
        const data::TrainTest sets = data::load(folder, options);
        images = sets.train.count + sets.test.count;
    };
    const std::string command =
        cat(s.pillow, " ", shell_word(folder), " ", s.threads, height > 0 ? cat(" ", height, " ", width) : "");
    constexpr int kRounds = 5;
    std::vector<double> ours, pillow, ratios;
    load(); // a warm-up, which is not measured
    for (int round = 0; round < kRounds; ++round) {
        ours.push_back(double(images) / wall_seconds(load));
        if (s.pillow.empty()) continue;
        const std::string output = made.path() + "/pillow";
        data::run_command(cat(command, " > ", shell_word(output)));
        pillow.push_back(std::stod(read_file(output)));
        ratios.push_back(ours.back() / pillow.back());
    }
    const auto print = [](const char* name, std::vector<double> values) {
        if (values.empty()) return;
        std::sort(values.begin(), values.end());
        std::printf(" %s=%.4g %s_min=%.4g %s_max=%.4g", name, values[values.size() / 2], name, values.front(), name,
                    values.back());
    };
    std::printf("case=many_files images=%lld size=%s threads=%lld", static_cast<long long>(images),
                s.size.empty() ? "stored" : s.size.c_str(), static_cast<long long>(s.threads));
    print("images_per_s", ours), print("pillow_images_per_s", pillow), print("ours_over_pillow", ratios);
    std::printf(" runs=%d\n", kRounds);
}

void run(const Settings& s) {
    if (s.images > 0 || s.photos > 0 || !s.pillow.empty()) return bench_many_files(s);
    const bool records = !s.data.empty() && data::has_cifar(s.data);
    const bool folders = !s.data.empty() && !records;
    if (!folders) bench_cifar(s, records);
    const auto read = [](const std::string& path) { return data::load(path, {.test_fraction = 0}).train; };
    if (folders) bench_pipeline(s, "png_folder", s.data, [&] { return read(s.data); });
    if (!records && !folders) {
        const TempDir folder;
        write_folders(data::sample().train, folder.path());
        bench_pipeline(s, "png_folder", "sample", [&] { return read(folder.path()); });
    }
    if (!records) bench_png_files(s, folders);
}

int run_program(int argc, const char* const* argv) {
    Settings s;
    Options options("bench_data", "measures how fast images are read, decoded, augmented and laid out");
    options.add("data", &s.data, "folder of CIFAR binary files, or class folders of PNGs; empty: the built-in sample")
        .metavar("DIR");
    options
        .add("images", &s.images,
             "measure only how fast a folder is loaded: --data, or a new one with this number of PNGs; 0: all other "
             "cases")
        .range(0, 1e7);
    options
        .add("photos", &s.photos,
             "like --images, with this number of JPEGs of 1920 x 1080 pixels, which --pillow makes; 0: none")
        .range(0, 1000);
    options.add("size", &s.size, "size to which the images of that folder are resized (default: as they are)")
        .metavar("H[xW]");
    options.add("pillow", &s.pillow, "command of tools/bench/pillow_folder.py, to load that folder with Pillow in turn")
        .metavar("COMMAND");
    options.add("batch", &s.batch, "images per mini-batch").at_least(1);
    options.add("threads", &s.threads, "largest number of loader threads; 0: one per core").range(0, 1024);
    options.add("seconds", &s.seconds, "seconds to measure each stage; it runs at least 5 times").at_least(0);
    if (!options.parse(argc, argv)) {
        std::cout << options.help_or_version();
        return 0;
    }
    if (s.threads == 0) s.threads = available_cores();
    run(s);
    return 0;
}

} // namespace

int main(int argc, char** argv) { return run_main(argc, argv, run_program); }
