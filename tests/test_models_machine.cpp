// Which GPUs a program takes, and which ranks take images, by the GPUs that they have.
#include "models/machine.h"

#include "gpu/machine.h"
#include "par/thread_link.h"
#include "tests/executor_device.h"
#include "tests/temp_dir.h"

#include <doctest/doctest.h>

using namespace rg;

namespace {

/// What a program of one rank says of its machine at its start.
std::string machine_text(const std::vector<const char*>& arguments) {
    MachineOptions settings;
    Options options("test", "");
    settings.declare(options);
    REQUIRE(options.parse(int(arguments.size()), arguments.data()));
    std::string text;
    par::run_threads(1, [&](par::Link& link) {
        par::Group group(link);
        text = Machine(settings, options, group).text();
    });
    return text;
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("machine: code for one GPU runs on another, or not") {
        const struct {
            const char* targets;
            gpu::Capability gpu;
            bool runs;
        } cases[] = {
            {"sm_80", {8, 0}, true},
            {"sm_80", {8, 9}, true},
            {"sm_80", {9, 0}, false},
            {"sm_86", {8, 0}, false},
            {"sm_90a", {9, 0}, true},
            {"sm_100a", {10, 3}, false},
            {"sm_100f", {10, 3}, true},
            {"sm_100f", {12, 0}, false},
            {"compute_90", {8, 9}, false},
            {"compute_90", {9, 0}, true},
            {"compute_90", {12, 1}, true},
            {"compute_90a", {10, 0}, false},
            {"compute_100f", {12, 0}, false},
            {"sm_80, sm_90a, compute_90", {7, 5}, false},
            {"sm_80, sm_90a, compute_90", {8, 7}, true},
            {"sm_80, sm_90a, compute_90", {9, 0}, true},
            {"sm_80, sm_90a, compute_90", {10, 0}, true},
            {"sm_80, sm_90a", {10, 0}, false},
        };
        for (const auto& c : cases) {
            CAPTURE(c.targets);
            CAPTURE(c.gpu.str());
            CHECK(gpu::runs_on(c.targets, c.gpu) == c.runs);
            CHECK(gpu::why_not("it", c.gpu, c.targets).empty() == c.runs);
        }
        CHECK(gpu::why_not("Tesla T4", {7, 5}, "sm_80") ==
              "Tesla T4 is a GPU of sm_75, and this build was compiled for sm_80; sm_80 is the oldest that there are "
              "kernels for");
        CHECK(contains(gpu::why_not("B200", {10, 0}, "sm_80, sm_90a"), "meson configure -Dgpu_arch=sm_100"));
    }

    TEST_CASE("machine: the kernels that RG_GPU_KERNELS asks for") {
        CHECK_FALSE(gpu::machine_of(132, {9, 0}, "", "sm_90a").hopper);
        CHECK_FALSE(gpu::machine_of(132, {9, 0}, "portable", "sm_90a").hopper);
        CHECK(gpu::machine_of(132, {9, 0}, "hopper", "sm_80, sm_90a").hopper);
        CHECK(gpu::machine_of(132, {9, 0}, "hopper", "sm_90a").processors == 132);
        CHECK_THROWS_WITH_AS(gpu::machine_of(1, {9, 0}, "Hopper", "sm_90a"),
                             "RG_GPU_KERNELS: expected portable or hopper, got Hopper", Error);
        CHECK_THROWS_WITH_AS(gpu::machine_of(1, {10, 0}, "hopper", "sm_90a"), doctest::Contains("got sm_100 and"),
                             Error);
        CHECK_THROWS_WITH_AS(gpu::machine_of(1, {9, 0}, "hopper", "sm_80, compute_90"),
                             doctest::Contains("and a build for sm_80, compute_90"), Error);
    }

    TEST_CASE("machine: a GPU that the build has no code for leaves the CPU, and one that it has is taken") {
        {
            const GpusInPlace none({[] {
                                        return gpu::Found{{}, gpu::why_not("T4", {7, 5}, "sm_80")};
                                    },
                                    [](int) -> std::unique_ptr<Device> { fail("device cuda: no such GPU"); }});
            const std::string text = machine_text({"test"});
            CHECK(text.starts_with("cpu ("));
            CHECK(contains(text, ", since T4 is a GPU of sm_75, and this build was compiled for sm_80;"));
            CHECK_FALSE(contains(machine_text({"test", "--device", "cpu"}), "since"));
            CHECK_THROWS_WITH_AS(machine_text({"test", "--device", "cuda"}), doctest::Contains("no such GPU"), Error);
        }
        const GpusInPlace one(kExecutorGpus);
        CHECK(machine_text({"test", "--threads", "1"}) == "the executor, 1 thread x 1 rank, fp32");
        CHECK_THROWS_WITH_AS(machine_text({"test", "--precision", "fp32-strict"}),
                             doctest::Contains("--precision fp32 for those, or --device cpu"), Error);
        CHECK(machine_text({"test", "--precision", "fp32-strict", "--device", "cpu"}).ends_with("fp32-strict"));
    }

    TEST_CASE("machine: ranks beyond the GPUs share them, or take no images") {
        // Two machines, of two GPUs and one, with three ranks each.
        const std::vector<std::string> gpus = {"a", "b", "a", "c", "c", "c"};
        const int places[] = {0, 1, 3, 2, 3, 3}; // 3: none
        int64_t images = 0;
        for (int rank = 0; rank < 6; ++rank) {
            CAPTURE(rank);
            const Workers sharing = workers_of(gpus, rank, false), some = workers_of(gpus, rank, true);
            CHECK(sharing.gpus == 3);
            CHECK(sharing.count == 6);
            CHECK(sharing.place == rank);
            CHECK(some.gpus == 3);
            CHECK(some.count == 3);
            CHECK(some.place == places[rank]);
            const data::Range mine = some.share_of(100);
            CHECK(mine.size() == (places[rank] == 3 ? 0 : places[rank] == 0 ? 34 : 33));
            images += mine.size();
        }
        CHECK(images == 100);
    }

    TEST_CASE("machine: a GPU for each rank: all work, whatever the option") {
        const std::vector<std::string> gpus = {"a", "b", "c"};
        for (int rank = 0; rank < 3; ++rank) {
            const Workers all = workers_of(gpus, rank, true);
            CHECK(all.gpus == 3);
            CHECK(all.count == 3);
            CHECK(all.place == rank);
            CHECK(all.scaled(256) == 768);
        }
    }

    TEST_CASE("machine: a mini-batch grows with the GPUs, not with the ranks") {
        const std::vector<std::string> gpus = {"a", "b", "a", "b", "a"};
        for (const bool idle : {false, true}) CHECK(workers_of(gpus, 4, idle).scaled(50) == 100);
        CHECK(Workers{0, 4, 1}.scaled(50) == 50); // ranks of the CPU
    }
}
