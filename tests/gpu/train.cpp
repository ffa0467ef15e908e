// The training program itself, on GPUs whose kernels the executor runs: its losses are those of the CPU, on one rank,
// on two that share a GPU, and on two of which one is idle, with a GPU on its node or without. An idle rank uses no GPU
// and no sums, but ends with the others. And a sweep on GPUs.
#include "tools/write_digits.h"
#include "core/atomic_file.h"
#include "core/rng.h"
#include "core/text.h"
#include "data/digits.h"
#include "models/programs.h"
#include "models/sweep/trials.h"
#include "tests/gpu/executor_device.h"
#include "tests/image_sets.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <doctest/doctest.h>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>

using namespace rg;

namespace {

struct Losses final : TrainingObserver {
    bool standalone() const override { return false; }
    bool on_metrics(const Json& line) override {
        for (const char* const name : {"loss", "test_loss"})
            if (const Json* const loss = line.find(name)) all.push_back(loss->as_double());
        if (line.find("step") && line.find("loss")) of_steps.push_back(line.at("loss").as_double());
        return stop_after > 0 && of_steps.size() >= stop_after;
    }
    std::vector<double> of_steps, all; // all: with those of tests
    size_t stop_after = 0;
};

thread_local int this_rank = 0;

/// Returns the losses of all steps and tests of rank 0, in mini-batches of two images. A stop request follows after
/// `stop_after` steps, unless that is 0. `per_node`: see ThreadWorld.
std::vector<double> losses(const Program& program, int ranks, const std::vector<std::string>& options, int per_node = 0,
                           size_t stop_after = 0) {
    std::vector<std::string> args = {"--batch-size", "2", "--threads", "1"};
    args.insert(args.end(), options.begin(), options.end());
    std::vector<Losses> trials(static_cast<size_t>(ranks));
    trials[0].stop_after = stop_after;
    par::run_threads(
        ranks,
        [&](par::Link& link) {
            this_rank = link.rank();
            par::Group group(link);
            const int code = program.run(group, args, trials[size_t(link.rank())]); // a CHECK would catch its exception
            CHECK(code == 0);
        },
        per_node);
    return trials[0].all;
}

/// `per_node`: see ThreadWorld.
std::vector<double> train(const Program& program, int ranks, const std::vector<std::string>& own,
                          const std::vector<std::string>& more, int per_node = 0) {
    TempDir folder;
    std::vector<std::string> args = {"--steps", "2", "--batch-size", "2", "--threads", "1", "--runs", folder.path()};
    args.insert(args.end(), own.begin(), own.end());
    args.insert(args.end(), more.begin(), more.end());
    std::vector<Losses> trials(static_cast<size_t>(ranks));
    par::run_threads(
        ranks,
        [&](par::Link& link) {
            this_rank = link.rank();
            par::Group group(link);
            CHECK(program.run(group, args, trials[size_t(link.rank())]) == 0);
        },
        per_node);
    return trials[0].of_steps;
}

/// Checks that a program with the options `own` and `on_gpu` has the losses that it has on the CPU.
void check_as_on_cpu(const Program& program, const std::vector<std::string>& own,
                     const std::vector<std::string>& on_gpu, double epsilon, int ranks = 1, int per_node = 0) {
    const std::vector<double> cpu = train(program, 1, own, {"--device", "cpu"}),
                              gpu = train(program, ranks, own, on_gpu, per_node);
    REQUIRE(cpu.size() == 2);
    REQUIRE(gpu.size() == 2);
    for (size_t i = 0; i < 2; ++i) CHECK(gpu[i] == doctest::Approx(cpu[i]).epsilon(epsilon));
}

/// Runs a sweep of four trials on four ranks, and returns the ranks of each trial and the output. `per_node`: see
/// ThreadWorld.
std::pair<std::map<std::string, std::string>, std::string> sweep(const std::vector<std::string>& more,
                                                                 int per_node = 0) {
    const TempDir folder;
    data::write_digits(folder / "set", data::draw_digits(4, 1));
    // The ranks are chosen before the first step, and steps would be slow.
    std::vector<std::string> args{"--data", folder / "set", "--steps", "0", "--threads", "1"};
    args.insert(args.end(), {"--runs", folder.path(), "--run-name", "sweep"});
    args.insert(args.end(), more.begin(), more.end());
    if (more.empty() || more[0] != "--grid") args.insert(args.end(), {"--grid", "seed=1:4"});
    std::ostringstream out;
    std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
    const std::string error = error_of([&] {
        par::run_threads(
            4,
            [&](par::Link& link) {
                this_rank = link.rank();
                par::Group group(link);
                const int code = sweep_command(group, train_digits, "s", args); // a CHECK would catch its exception
                CHECK(code == 0);
            },
            per_node);
    });
    std::cout.rdbuf(before);
    if (!error.empty()) return {{}, error};
    std::map<std::string, std::string> ranks;
    for (const std::string& line : split(read_file(folder / "sweep/journal.jsonl"), '\n')) {
        if (!line.starts_with('{')) continue;
        const Json entry = Json::parse(line, "journal");
        if (entry.find("ranks")) ranks[cat(entry.at("args").at("trial").as_int())] = entry.at("ranks").dump();
    }
    return {ranks, out.str()};
}

/// Counts what a rank does with a GPU.
struct CountingDevice final : ExecutorDevice {
    void* allocate(size_t bytes) override {
        void* const memory = ExecutorDevice::allocate(bytes);
        sizes[memory] = bytes, live += bytes, peak = std::max(peak, live);
        allocated.push_back(bytes);
        return memory;
    }
    void release(void* memory) noexcept override {
        live -= sizes[memory], sizes.erase(memory);
        ExecutorDevice::release(memory);
    }
    void upload(void* to, const void* from, size_t bytes) override {
        ++uploads, uploaded += bytes;
        ExecutorDevice::upload(to, from, bytes);
    }
    Kernel kernel(Op op) const override {
        RG_CHECK(ops != fails_at, "a planted error");
        return ExecutorDevice::kernel(op);
    }
    std::map<void*, size_t> sizes;
    size_t live = 0, peak = 0, uploaded = 0;
    std::vector<size_t> allocated; // the sizes of all allocations
    int uploads = 0;
    long fails_at = -1; // number of ops
};

/// GPUs of one node. Each rank that opens one gets a device of its own, which `of_rank` keeps.
struct Node {
    int gpus = 1;
    long fails_at = -1; // of rank 0
    std::mutex mutex = {};
    std::map<int, std::shared_ptr<CountingDevice>> of_rank = {};
};
Node* node = nullptr;
constexpr gpu::GpuDiscovery kCountingGpus{
    [] {
        gpu::FoundGpus found;
        for (int i = 0; i < node->gpus; ++i) found.gpus.push_back({i, cat("gpu ", i), "executor"});
        return found;
    },
    [](int) -> std::shared_ptr<Device> {
        const std::lock_guard lock(node->mutex);
        const auto device = std::make_shared<CountingDevice>();
        if (this_rank == 0) device->fails_at = node->fails_at;
        return node->of_rank[this_rank] = device;
    }};

/// Two classes of images with 32 x 32 pixels, which a rank trains and tests on for an epoch of two steps.
struct SmallSet : TempDir {
    SmallSet() {
        Rng random(1, Purpose::test);
        for (const char* folder : {"train/a", "train/b", "test/a", "test/b"})
            for (int i = 0; i < 2; ++i) {
                std::vector<uint8_t> pixels;
                for (int j = 0; j < 32 * 32 * 3; ++j) pixels.push_back(uint8_t(random.uniform_below(256)));
                data::write_image(cat(*this / folder, "/", i, ".png"), 32, 32, 3, pixels);
            }
    }
    std::vector<std::string> options() const {
        return {"--data", path(), "--width", "4", "--depth", "1", "--lr", "0.01", "--device", "cuda", "--augment", "none"};
    }
};

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("train_cifar: idle ranks use no GPU, and the others train as without them, by direct sums of their GPUs") {
        const GpusInPlace counting(kCountingGpus);
        const SmallSet set;
        for (const int gpus : {1, 2}) {
            CAPTURE(gpus);
            struct Result {
                std::vector<double> losses;
                std::string model;
                Node node;
            };
            Result alone, idle; // on as many ranks as GPUs, and on four
            for (const auto& [result, ranks] : {std::pair{&alone, gpus}, {&idle, 4}}) {
                const TempDir runs;
                result->node.gpus = gpus;
                node = &result->node;
                std::vector<std::string> more = set.options();
                more.insert(more.end(), {"--steps", "2", "--runs", runs.path(), "--run-name", "run"});
                result->losses = losses(train_cifar, ranks, more);
                result->model = read_file(runs / "run/model-best.safetensors");
            }
            CHECK(alone.losses.size() == 3); // of two steps, and of the test
            CHECK(idle.losses == alone.losses);
            CHECK(idle.model == alone.model);
            REQUIRE(std::ssize(idle.node.of_rank) == gpus); // the idle ranks have opened none
            for (int rank = 0; rank < gpus; ++rank) {
                CAPTURE(rank);
                REQUIRE(idle.node.of_rank.contains(rank));
                const CountingDevice &of_idle = *idle.node.of_rank[rank], &of_alone = *alone.node.of_rank[rank];
                CHECK(of_idle.uploads == of_alone.uploads);
                CHECK(of_idle.uploaded == of_alone.uploaded);
                CHECK(of_idle.ops == of_alone.ops);
                CHECK(of_idle.launches == of_alone.launches);
                CHECK(of_idle.peak == of_alone.peak);
                CHECK(of_idle.sums == of_alone.sums);
                CHECK((of_idle.sums > 0) == (gpus > 1));
            }
        }
    }

    TEST_CASE("train_cifar: idle ranks end with the others, whether these fail, stop, or meet a NaN") {
        const SmallSet set;
        const TempDir runs;
        std::vector<std::string> options = set.options();
        options.insert(options.end(), {"--runs", runs.path()});
        {
            const GpusInPlace counting(kCountingGpus);
            Node two{.gpus = 2, .fails_at = 40};
            node = &two;
            CHECK_ERROR("a planted error", losses(train_cifar, 4, options));
        }
        // The only GPU is that of rank 1, on a node of its own. Rank 0 writes the files and has the stop request.
        const GpusInPlace on_rank_1({[] {
                                         return this_rank == 1 ? kExecutorGpus.find() : gpu::FoundGpus{{}, "none"};
                                     },
                                     kExecutorGpus.open});
        std::ranges::replace(options, std::string("cuda"), std::string("auto"));
        for (const size_t stop_after : {size_t(0), size_t(1)}) {
            std::vector<std::string> more = options;
            more.insert(more.end(), {"--epochs", "2"});
            CHECK(losses(train_cifar, 2, more, 1, stop_after).size() == (stop_after ? 2u : 6u));
        }
        std::ranges::replace(options, std::string("0.01"), std::string("1e30"));
        options.insert(options.end(), {"--epochs", "4"});
        const std::string error = error_of([&] { losses(train_cifar, 2, options, 1); });
        CHECK(contains(error, "step "));
        CHECK(contains(error, ": expected finite values, got "));
        CHECK(contains(error, " in "));
        CHECK_FALSE(contains(error, "with finite gradients")); // rank 0 does not know the gradients
    }

    TEST_CASE("train_cifar: steps and tests share the memory of their intermediates") {
        const GpusInPlace counting(kCountingGpus);
        const SmallSet set;
        Node one;
        node = &one;
        const TempDir runs;
        std::vector<std::string> options = set.options();
        options.insert(options.end(), {"--steps", "2", "--runs", runs.path()});
        CHECK(losses(train_cifar, 1, options).size() == 3);
        std::vector<size_t>& sizes = one.of_rank.at(0)->allocated;
        std::ranges::sort(sizes, std::greater());
        const size_t arena = sizes[0];
        CAPTURE(arena);
        CHECK(std::ranges::count_if(sizes, [&](size_t bytes) { return bytes > arena / 4; }) == 1);
    }

    TEST_CASE("sweep: only ranks with a GPU of their own get trials") {
        using Ranks = std::map<std::string, std::string>;
        const Ranks all{{"1", "[0]"}, {"2", "[1]"}, {"3", "[2]"}, {"4", "[3]"}};
        const GpusInPlace three({[] {
                                     gpu::FoundGpus found;
                                     for (const int index : {0, 1, 2})
                                         found.gpus.push_back({index, cat("id ", index), "executor"});
                                     return found;
                                 },
                                 kExecutorGpus.open});
        const std::string idle = "3 of 4 ranks train; the rest is idle, without a GPU of its own\n";
        // Trials 1 to 3 begin at once, and trial 4 when a rank with a GPU is free.
        for (const std::vector<std::string>& options :
             {std::vector<std::string>{}, {"--grid", "device=auto,cpu", "--grid", "seed=1,2"}}) {
            auto [ranks, out] = sweep(options);
            CHECK(contains(out, idle));
            CHECK(ranks["4"] != "[3]");
            ranks["4"] = "[3]";
            CHECK(ranks == all);
        }
        const auto [sharing, said] = sweep({"--spare-ranks", "share"});
        CHECK(sharing == all);
        CHECK_FALSE(contains(said, "idle"));
        CHECK(sweep({"--device", "cpu"}).first == all);
        const auto [in_turn, text] = sweep({"--no-at-once"});
        CHECK(in_turn.at("1") == "[0, 1, 2, 3]");
        CHECK(contains(text, idle));
        CHECK(sweep({"--ranks-per-trial", "3"}).first.at("4") == "[0, 1, 2]");
        CHECK(contains(sweep({"--ranks-per-trial", "4"}).second, "at most 3, the number of ranks that train, got 4"));
    }

    TEST_CASE("sweep: rank 0 controls the trials also if its node has no GPU") {
        const GpusInPlace on_two({[] {
                                      return this_rank % 2 == 1
                                                 ? gpu::FoundGpus{{{0, cat("id ", this_rank), "executor"}}, {}}
                                                 : gpu::FoundGpus{{}, "none"};
                                  },
                                  kExecutorGpus.open});
        const auto [ranks, out] = sweep({}, 1);
        CHECK(ranks.size() == 4);
        for (const auto& [trial, text] : ranks) CHECK((text == "[1]" || text == "[3]"));
        CHECK(contains(out, "2 of 4 ranks train"));
    }

    TEST_CASE("train_cifar: on a GPU it trains as on the CPU, on one rank and on two") {
        const GpusInPlace one(kExecutorGpus);
        const std::vector<std::string> own = {"--width", "4", "--depth", "1", "--lr", "0.01", "--sync-bn"};
        for (const auto& ranks : {std::pair{1, "share"}, {2, "share"}, {2, "idle"}}) {
            INFO("ranks ", ranks.first, ", ", ranks.second);
            check_as_on_cpu(train_cifar, own, {"--device", "cuda", "--spare-ranks", ranks.second}, 3e-4, ranks.first);
        }
    }

    TEST_CASE("train_cifar: a rank on a node without GPUs is idle, and may be the one that saves the model") {
        const GpusInPlace on_rank_1({[] {
                                         return this_rank == 1 ? kExecutorGpus.find() : gpu::FoundGpus{{}, "none"};
                                     },
                                     kExecutorGpus.open});
        check_as_on_cpu(train_cifar, {"--width", "4", "--depth", "1", "--lr", "0.01"}, {}, 3e-4, 2, 1);
    }

    TEST_CASE("train_cifar: on a GPU a residual network trains as on the CPU") {
        const GpusInPlace one(kExecutorGpus);
        const TempDir set;
        Rng random(1, Purpose::test);
        for (const char* folder : {"train/a", "train/b", "test/a", "test/b"})
            for (int i = 0; i < 2; ++i) {
                std::vector<uint8_t> pixels;
                for (int j = 0; j < 8 * 8 * 3; ++j) pixels.push_back(uint8_t(random.uniform_below(256)));
                data::write_image(cat(set / folder, "/", i, ".png"), 8, 8, 3, pixels);
            }
        check_as_on_cpu(train_cifar, {"--net", "resnet20", "--lr", "0.01", "--data", set.path()},
                        {"--device", "cuda", "--precision", "fp32"}, 2e-3);
    }

    TEST_CASE("train_cifar: on a GPU that the images do not fit into it has the losses of one where they do") {
        static size_t memory;
        static std::atomic<size_t> copied;
        struct Limited final : ExecutorDevice {
            Limited() { memory_left = memory; }
            ~Limited() override { copied += from_pinned; }
        };
        std::vector<double> losses[2];
        for (const bool fits : {false, true}) {
            memory = fits ? size_t{1} << 40 : 8 << 20; // a quarter of it is less than the 2.4 MB of the images
            copied = 0;
            const GpusInPlace one({kExecutorGpus.find,
                                   [](int) -> std::shared_ptr<Device> { return std::make_shared<Limited>(); }});
            losses[fits] = train(train_cifar, 2, {"--width", "4", "--depth", "1", "--mixup", "1", "--device", "cuda"},
                                 {"--spare-ranks", "share", "--steps", "3"});
            CHECK((copied == 0) == fits);
        }
        CHECK(losses[0].size() == 3);
        CHECK(losses[0] == losses[1]);
    }

    TEST_CASE("train_digits_angles: on a GPU it trains as on the CPU, with targets and Adam") {
        const GpusInPlace one(kExecutorGpus);
        const TempDir set;
        data::write_digits(set.path(), data::draw_digits(4, 1));
        // bf16 on the GPU
        check_as_on_cpu(train_digits_angles, {"--data", set.path(), "--no-compare"}, {"--device", "cuda"}, 1e-2);
    }
}
