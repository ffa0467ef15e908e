// The training program itself, on GPUs whose kernels the executor runs: its losses are those of the CPU, on one rank,
// on two that share a GPU, and on two of which one is idle, with a GPU on its node or without.
#include "../tools/write_digits.h"
#include "ringgrad/core/rng.h"
#include "ringgrad/data/digits.h"
#include "ringgrad/models/programs.h"
#include "ringgrad/tests/executor_device.h"
#include "ringgrad/tests/image_sets.h"
#include "ringgrad/tests/temp_dir.h"
#include "ringgrad/tests/thread_link.h"

#include <doctest/doctest.h>

using namespace rg;

namespace {

struct Losses final : TrainingObserver {
    bool standalone() const override { return false; }
    bool on_metrics(const Json& line) override {
        if (line.find("step")) of_steps.push_back(line.at("loss").as_double());
        return false;
    }
    std::vector<double> of_steps;
};

thread_local int this_rank = 0;

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

} // namespace

TEST_SUITE("simt") {
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

    TEST_CASE("train_digits_angles: on a GPU it trains as on the CPU, with targets and Adam") {
        const GpusInPlace one(kExecutorGpus);
        const TempDir set;
        data::write_digits(set.path(), data::draw_digits(4, 1));
        // bf16 on the GPU
        check_as_on_cpu(train_digits_angles, {"--data", set.path(), "--no-compare"}, {"--device", "cuda"}, 1e-2);
    }
}
