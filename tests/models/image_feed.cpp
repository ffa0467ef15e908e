// Images for a device: all at once, or with each mini-batch if they exceed a share of the device's memory. Both ways
// train with the same bits.
#include "models/run/image_feed.h"

#include "core/atomic_file.h"
#include "core/ops.h"
#include "core/text.h"
#include "data/packed.h"
#include "models/programs.h"
#include "models/run/training.h"
#include "tests/host_device.h"
#include "tests/image_sets.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <doctest/doctest.h>

using namespace rg;

namespace {

thread_local std::shared_ptr<HostDevice> device_of_rank; // which the program of this thread's rank opens
const gpu::GpuDiscovery kDeviceOfRank{
    [] {
        return gpu::FoundGpus{{{0, "0/0", "fake"}}, {}};
    },
    [](int) -> std::shared_ptr<Device> { return device_of_rank; }};

/// A rank that computes on a device with this free memory.
struct OnDevice {
    explicit OnDevice(size_t free_bytes) { device->memory_left = free_bytes; }
    std::shared_ptr<HostDevice> device = device_of_rank = std::make_shared<HostDevice>();
    GpusInPlace in_place{kDeviceOfRank};
    par::SingleLink link;
    par::Group group{link};
    ComputeOptions settings{.device = "cuda", .accelerate = false};
    Options options{"toy", ""};
    Compute compute = (settings.declare(options), Compute(settings, options, group));
    Context context = compute.context();
    ContextScope scope{context};
};

/// The images of a batch, as a network gets them.
Tensor images_of(const ImageFeed& feed, const data::Batch& batch) {
    std::vector<Tensor> inputs = feed.inputs(batch);
    for (Tensor& input : inputs) input = input.to_device();
    return feed.batch(inputs).x.to_host();
}

struct Losses final : TrainingObserver {
    bool standalone() const override { return false; }
    bool on_metrics(const Json& line) override {
        for (const char* name : {"loss", "test_loss"})
            if (const Json* const loss = line.find(name)) all.push_back(loss->as_double());
        return false;
    }
    std::vector<double> all;
};

struct Trained {
    std::vector<double> losses;
    std::string model;          // the bytes of the file
    std::vector<size_t> copied; // by rank: bytes that transfer() has copied to the device
};

/// Trains on `ranks` devices with this free memory.
Trained train(size_t free_bytes, int ranks, std::vector<std::string> args) {
    const TempDir runs;
    args.insert(args.end(), {"--device", "cuda", "--spare-ranks", "share", "--threads", "1", "--runs", runs.path(),
                             "--run-name", "one"});
    const GpusInPlace in_place(kDeviceOfRank);
    std::vector<Losses> losses(static_cast<size_t>(ranks));
    Trained result{{}, {}, std::vector<size_t>(size_t(ranks))};
    par::run_threads(ranks, [&](par::Link& link) {
        device_of_rank = std::make_shared<HostDevice>();
        device_of_rank->memory_left = free_bytes, device_of_rank->shares = false; // gradients pass through the host
        par::Group group(link);
        const size_t rank = size_t(link.rank());
        const int code = train_cifar.run(group, args, losses[rank]); // a CHECK would catch its exception
        CHECK(code == 0);
        result.copied[rank] = device_of_rank->from_pinned;
        device_of_rank = nullptr;
    });
    result.losses = losses[0].all, result.model = read_file(runs / "one/model.safetensors");
    return result;
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("image feed: images that take at most a quarter of a device's free memory are copied once, others by batch") {
        const data::ImageSet set = data::random_set(40, 16, 16, 3); // 30,720 bytes
        const size_t bytes = size_t(set.count * set.image_bytes());
        for (const bool fits : {true, false}) {
            CAPTURE(fits);
            OnDevice here(4 * bytes - (fits ? 0 : 4));
            ImageFeed feed(set, {.batch_size = 16, .keep_partial = true}, here.compute);
            CHECK(feed.placement() == (fits ? "images: all 0.0 GiB are on the GPU, at most 0.0 GiB, 25 % of its free memory"
                                            : "images: each mini-batch is copied to the GPU ahead, since all take "
                                              "0.0 GiB, more than 0.0 GiB, 25 % of its free memory"));
            CHECK((here.device->uploaded >= bytes) == fits);
            feed.loader.start(1);
            while (feed.loader.has_next()) images_of(feed, feed.loader.next());
            CHECK(here.device->from_pinned == (fits ? 0 : bytes)); // each image once
        }
    }

    TEST_CASE("image feed: batches that are copied have the bits of resident images, for all augmentations and parts") {
        data::ImageSet set = data::random_set(23, 9, 7, 3);
        data::Augment plain{.flip = true, .translate_x = 3, .translate_y = 2}, mixed = plain;
        mixed.rotate = 20, mixed.erase = 0.5, mixed.jitter = {0.4, 0.4, 0.4}, mixed.mixup = mixed.cutmix = 1;
        for (const data::Augment& augmentation : {plain, mixed})
            for (const int threads : {0, 1, 3})
                for (const int own : {1, 2}) {
                    CAPTURE(threads);
                    CAPTURE(own);
                    OnDevice here(size_t{1} << 30);
                    data::LoaderOptions options{.batch_size = 5, .keep_partial = true, .seed = 7, .balanced = true,
                                                .augment = augmentation, .normalise = data::kCifar10, .first_part = 1,
                                                .parts = 3, .own_parts = own, .threads = threads, .views = true};
                    data::Loader resident(set, options);
                    options.upload = true;
                    data::Loader copied(set, options);
                    const Tensor all = data::resident(set), statistics = copied.augmenter().statistics();
                    const auto views = [&](const Tensor& images, const data::Batch& batch) {
                        return augment(images, batch.indices.to_device(), batch.views.to_device(), statistics, {9, 7}).to_host();
                    };
                    // Also in the middle of an epoch, while threads prepare mini-batches
                    for (const auto& [epoch, first, count] : {std::tuple(1, 0, 100), {2, 1, 2}, {2, 0, 1}, {3, 2, 100}}) {
                        resident.start(epoch, first), copied.start(epoch, first);
                        for (int i = 0; i < count && resident.has_next(); ++i) {
                            const data::Batch a = resident.next(), b = copied.next();
                            CHECK(same_bits(a.labels, b.labels));
                            CHECK(same_bits(views(all, a), views(b.images, b)));
                        }
                        if (count == 100) CHECK_FALSE(copied.has_next());
                    }
                }
    }

    TEST_CASE("image feed: an error of a thread that copies images reaches the caller") {
        const TempDir folder;
        for (int i = 0; i < 8; ++i)
            data::write_image(cat(folder / "set", i % 2 ? "/a/" : "/b/", i, ".png"), 3, 2, 3, std::vector<uint8_t>(18, uint8_t(i)));
        (void)data::load(folder / "set", {.test_fraction = 0, .cache = folder / "cache"});
        std::string path;
        for (const auto& file : std::filesystem::recursive_directory_iterator(folder / "cache"))
            if (file.path().extension() == data::kPackedEnding) path = file.path();
        std::string bytes = read_file(path);
        bytes[data::PackedHead::kBytes] ^= 1; // a pixel of the first image
        write_file_atomic(path, bytes);
        const data::ImageSet damaged = data::read_packed(path).sets.train, good = data::random_set(8, 2, 3, 3);
        CHECK_ERROR("with a device and `views`", data::Loader(good, {.views = true, .upload = true}));
        for (const int threads : {0, 1, 2}) {
            CAPTURE(threads);
            const OnDevice here(570); // the images have 144 bytes
            {
                const auto in_order = data::Shuffle::never;
                ImageFeed feed(damaged, {.batch_size = 4, .shuffle = in_order, .threads = threads}, here.compute);
                feed.loader.start(1);
                CHECK_ERROR("damaged", feed.loader.next());
            }
            ImageFeed feed(good, {.batch_size = 2, .threads = threads}, here.compute);
            here.device->transfer_fails = true;
            feed.loader.start(1);
            CHECK_ERROR("planted error", feed.loader.next());
            feed.loader.start(1); // waits for the threads
            here.device->transfer_fails = false;
            feed.loader.start(2);
            while (feed.loader.has_next()) CHECK(images_of(feed, feed.loader.next()).extent(0) == 2);
        }
    }

    TEST_CASE("train_cifar: trains with the same bits if the images do not fit into the memory of the device") {
        // Op by op, since the plans for a device are only for kernels of a GPU; tests/gpu/train.cpp has those.
        const std::vector<std::string> args{
            "--steps", "4", "--width", "4", "--depth", "1", "--lr", "0.01", "--validate-every", "2", "--rotate", "10",
            "--erase", "0.5", "--mixup", "0.2", "--cutmix", "1", "--no-accelerate"};
        // On three ranks with mini-batches of two, the last has no images.
        for (const auto& [n, batch, workers] : {std::tuple(1, "6", "0"), {3, "2", "0"}, {1, "6", "5"}, {3, "6", "5"}}) {
            const int ranks = n; // clang 14 cannot capture structured bindings
            const std::string in_parts = workers;
            INFO("ranks ", ranks, ", workers ", in_parts);
            std::vector<std::string> all = args;
            all.insert(all.end(), {"--batch-size", batch, "--workers", workers});
            const Trained copied = train(2'300'000, ranks, all), resident = train(size_t{1} << 40, ranks, all);
            CHECK(resident.losses.size() == 6);
            CHECK(copied.losses == resident.losses);
            CHECK(copied.model == resident.model);
            for (size_t rank = 0; rank < size_t(ranks); ++rank) {
                CHECK(resident.copied[rank] == 0);
                CHECK((copied.copied[rank] > 0) == (int(rank) < std::stoi(batch)));
            }
        }
    }
}
