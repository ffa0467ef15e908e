// Tests the choice of GPUs, the ranks that take images, and the memory that is available.
#include "models/run/compute.h"

#include "core/atomic_file.h"
#include "core/cpu/cores.h"
#include "gpu/gpu_traits.h"
#include "models/nets/digits_net.h"
#include "models/run/memory.h"
#include "tests/host_device.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <doctest/doctest.h>
#include <limits>

using namespace rg;

namespace {

/// The results of machines(), with one entry for each rank.
struct OnRanks {
    std::vector<std::string> texts, devices; // the description that it prints at its start; the name of the device
    std::vector<int> firsts, groups;         // Workers::first; size of Compute::group()
    std::vector<double> sums;                // of Compute::add_idle()
};
/// Runs a program on some ranks. Each `per_node` consecutive ones form a node; 0: all do. Sets `on_node` to the index
/// of the node on each rank's thread.
thread_local int on_node = 0;
OnRanks machines(int ranks, const std::vector<const char*>& arguments, int per_node = 0) {
    OnRanks found{std::vector<std::string>(size_t(ranks)), std::vector<std::string>(size_t(ranks)),
                  std::vector<int>(size_t(ranks)), std::vector<int>(size_t(ranks)), std::vector<double>(size_t(ranks))};
    par::run_threads(
        ranks,
        [&](par::Link& link) {
            ComputeOptions settings;
            Options options("test", "");
            settings.declare(options);
            (void)options.parse(int(arguments.size()), arguments.data());
            on_node = per_node ? link.rank() / per_node : 0;
            par::Group group(link);
            const Compute compute(settings, options, group);
            const auto rank = size_t(link.rank());
            found.texts[rank] = compute.text();
            found.devices[rank] = compute.device() ? compute.device()->name() : "";
            found.firsts[rank] = compute.workers().first;
            found.groups[rank] = compute.group().size();
            found.sums[rank] = compute.workers().is_idle() ? 1 : 100;
            compute.add_idle({&found.sums[rank], 1});
        },
        per_node);
    return found;
}
/// A folder with files of /proc and /sys.
struct SystemFiles : TempDir {
    void write(const std::string& path, const std::string& text) const {
        const std::string file = *this / path;
        std::filesystem::create_directories(std::filesystem::path(file).parent_path());
        write_file_atomic(file, text);
    }
};
/// Returns the description of the machine that a program on one rank prints at its start.
std::string machine_text(const std::vector<const char*>& arguments) { return machines(1, arguments).texts[0]; }

/// One GPU, which all ranks share.
constexpr gpu::GpuDiscovery kOneGpu{
    [] {
        return gpu::FoundGpus{{{0, "0/0", "H200"}}, {}};
    },
    [](int) -> std::shared_ptr<Device> { return std::make_shared<HostDevice>(); }};

/// A device with the number of its GPU in its name.
struct NumberedDevice final : HostDevice {
    explicit NumberedDevice(int index_) : index(index_) {}
    std::string name() const override { return cat("GPU ", index); }
    int index;
};
std::shared_ptr<Device> open_numbered(int index) { return std::make_shared<NumberedDevice>(index); }
/// Each node has GPUs 0, 2 and 3: this build has no code for GPU 1.
constexpr gpu::GpuDiscovery kThreeGpus{
    [] {
        gpu::FoundGpus found;
        for (const int index : {0, 2, 3}) found.gpus.push_back({index, cat(on_node, "/", index), "H200"});
        return found;
    },
    open_numbered};
/// Only node 0 has a GPU.
constexpr gpu::GpuDiscovery kGpuOnNode0{
    [] {
        return on_node == 0 ? gpu::FoundGpus{{{0, "0/0", "H200"}}, {}} : gpu::FoundGpus{{}, "there is no GPU"};
    },
    open_numbered};

} // namespace

TEST_SUITE("models") {
    TEST_CASE("threads: the quota is the smallest of the control groups, rounded up") {
        const SystemFiles root;
        constexpr int kNone = std::numeric_limits<int>::max();
        CHECK(core_quota(root.path()) == kNone);
        root.write("proc/self/cgroup", "0::/a/b\n");
        root.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        CHECK(core_quota(root.path()) == kNone);
        root.write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
        CHECK(core_quota(root.path()) == 3);
        root.write("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
        CHECK(core_quota(root.path()) == 1);
        root.write("proc/self/cgroup", "6:cpuset:/x\n5:cpu,cpuacct:/pod/c\n0::/\n");
        CHECK(core_quota(root.path()) == kNone);
        const std::string mount = "sys/fs/cgroup/cpu";
        root.write(mount + "/pod/c/cpu.cfs_quota_us", "-1\n");
        root.write(mount + "/pod/c/cpu.cfs_period_us", "100000\n");
        CHECK(core_quota(root.path()) == kNone);
        root.write(mount + "/cpu.cfs_quota_us", "400000\n"); // in a container, the mount is its own group
        root.write(mount + "/cpu.cfs_period_us", "100000\n");
        CHECK(core_quota(root.path()) == 4);
        root.write(mount + "/pod/c/cpu.cfs_quota_us", "150000\n");
        CHECK(core_quota(root.path()) == 2);
        CHECK(core_quota() >= 1);
    }

    TEST_CASE("memory: available memory is the least of the machine's and the control groups'") {
        const SystemFiles root;
        CHECK(available_memory(root.path()) == std::numeric_limits<int64_t>::max()); // no limit is known
        root.write("proc/meminfo", "MemTotal:       4000 kB\nMemFree:        1000 kB\nMemAvailable:   3000 kB\n");
        CHECK(available_memory(root.path()) == 3'072'000);

        // In version 2, any folder above may have the limit, and "max" means no limit.
        root.write("proc/self/cgroup", "0::/a/b\n");
        root.write("sys/fs/cgroup/a/b/memory.max", "max\n");
        root.write("sys/fs/cgroup/a/b/memory.current", "500000\n");
        CHECK(available_memory(root.path()) == 3'072'000);
        root.write("sys/fs/cgroup/a/memory.max", "2000000\n");
        root.write("sys/fs/cgroup/a/memory.current", "1200000\n");
        CHECK(available_memory(root.path()) == 800'000);
        root.write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\nactive_file 7\n");
        CHECK(available_memory(root.path()) == 900'000);

        // In version 1, the mount is the group of the container itself.
        root.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/pod/c\n0::/\n");
        CHECK(available_memory(root.path()) == 3'072'000);
        root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
        root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "300000\n");
        root.write("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n");
        CHECK(available_memory(root.path()) == 750'000);
        CHECK(available_memory() > 0);
    }

    TEST_CASE("memory: sums the plans of all ranks of a machine before it rejects them") {
        constexpr int64_t kGiB = int64_t{1} << 30;
        for (const int64_t each : {4, 5}) {
            std::vector<std::string> errors(3);
            par::run_groups(3, [&](par::Group& group) {
                const auto rank = size_t(group.rank());
                // The rank that checks last sees the least memory.
                errors[rank] = error_of([&] {
                    check_memory(group, (each + (rank == 0)) * kGiB, "steps", "make it smaller", (15 - rank) * kGiB);
                });
            });
            for (const std::string& error : errors) {
                CHECK(error.empty() == (each == 4));
                if (each == 4) continue;
                CHECK(error.find("expected at most 13.0 GiB for steps") != std::string::npos);
                CHECK(error.find("got 16.0 GiB on 3 ranks; make it smaller") != std::string::npos);
            }
        }
    }

    TEST_CASE("memory: tells machines of the same name apart") {
        for (const int boots : {1, 2}) {
            std::vector<std::string> errors(2);
            par::run_groups(2, [&](par::Group& group) {
                const Host host{"localhost", cat(group.rank() % boots)};
                errors[size_t(group.rank())] = error_of([&] { check_memory(group, 5, "steps", "", 8, host); });
            });
            for (const std::string& error : errors) CHECK(error.empty() == (boots == 2));
        }
        CHECK(this_host() == this_host());
        CHECK(!this_host().name.empty());
    }

    TEST_CASE("memory: makes plans without memory, checks them with a checkpoint's size, and drops them") {
        const DigitsNet net({});
        Accelerated network([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            return {net.forward(in[0], Mode::evaluate)};
        });
        const auto plan = [&] { network.plan({Tensor::empty_on_host({2, 28, 28, 1})}); };
        plan();
        const int64_t planned = network.planned_bytes();
        CHECK(planned > 0);
        par::run_groups(1, [&](par::Group& group) {
            const int64_t needed = planned + 1000;
            const int64_t before = live_bytes();
            for (const int64_t available : {needed, needed - 1}) {
                network.clear_cache();
                const std::string error = error_of(
                    [&] { check_planned_memory(group, {&network}, 1000, plan, "make it smaller", available); });
                const bool told = error.find("for planned steps") != std::string::npos;
                CHECK(error.empty() == (available == needed));
                CHECK(told == (available < needed));
                CHECK(network.planned_bytes() == 0);
                CHECK(live_bytes() <= before);
            }
        });
    }

    TEST_CASE("compute: knows which code runs on which GPU") {
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
              "Tesla T4 is an sm_75 GPU, but this build was compiled for sm_80; the oldest supported GPUs are sm_80");
        CHECK(contains(gpu::why_not("B200", {10, 0}, "sm_80, sm_90a"), "meson configure -Dgpu_arch=sm_100"));
    }

    TEST_CASE("compute: RG_GPU_KERNELS selects the kernels") {
        CHECK(gpu::gpu_traits_of(132, {9, 0}, "", "sm_90a").hopper_kernels);
        CHECK_FALSE(gpu::gpu_traits_of(132, {9, 0}, "", "sm_80, compute_90").hopper_kernels);
        CHECK_FALSE(gpu::gpu_traits_of(132, {10, 0}, "", "sm_90a, compute_90").hopper_kernels);
        CHECK_FALSE(gpu::gpu_traits_of(132, {9, 0}, "portable", "sm_90a").hopper_kernels);
        CHECK(gpu::gpu_traits_of(132, {9, 0}, "hopper", "sm_80, sm_90a").hopper_kernels);
        CHECK(gpu::gpu_traits_of(132, {9, 0}, "hopper", "sm_90a").sm_count == 132);
        CHECK_THROWS_WITH_AS(gpu::gpu_traits_of(1, {9, 0}, "Hopper", "sm_90a"),
                             "RG_GPU_KERNELS: expected portable or hopper, got Hopper", Error);
        CHECK_ERROR("got sm_100 and", gpu::gpu_traits_of(1, {10, 0}, "hopper", "sm_90a"));
        CHECK_ERROR("and a build for sm_80, compute_90", gpu::gpu_traits_of(1, {9, 0}, "hopper", "sm_80, compute_90"));
    }

    TEST_CASE("compute: uses a GPU only if the build has code for it") {
        {
            const GpusInPlace none({[] {
                                        return gpu::FoundGpus{{}, gpu::why_not("T4", {7, 5}, "sm_80")};
                                    },
                                    [](int) -> std::shared_ptr<Device> { fail("device cuda: no such GPU"); }});
            const std::string text = machine_text({"test"});
            CHECK(text.starts_with("cpu ("));
            CHECK(contains(text, ", since T4 is an sm_75 GPU, but this build was compiled for sm_80;"));
            CHECK_FALSE(contains(machine_text({"test", "--device", "cpu"}), "since"));
            CHECK_ERROR("no such GPU", machine_text({"test", "--device", "cuda"}));
        }
        const GpusInPlace one(kOneGpu);
        CHECK(machine_text({"test", "--threads", "1"}) == "host device, 1 thread x 1 rank, fp32");
        CHECK_ERROR("use --precision fp32, or --device cpu", machine_text({"test", "--precision", "fp32-strict"}));
        CHECK(machine_text({"test", "--precision", "fp32-strict", "--device", "cpu"}).ends_with("fp32-strict"));
    }

    TEST_CASE("compute: the ranks of a node take its GPUs in turn, or those that the options name, in their order") {
        const GpusInPlace three(kThreeGpus);
        using Names = std::vector<std::string>;
        CHECK(machines(3, {"test"}).devices == Names{"GPU 0", "GPU 2", "GPU 3"});
        CHECK(machines(4, {"test"}, 2).devices == Names{"GPU 0", "GPU 2", "GPU 0", "GPU 2"});
        CHECK(machines(2, {"test", "--gpus", "3,0"}).devices == Names{"GPU 3", "GPU 0"});
        CHECK(machines(1, {"test", "--device", "cuda:2"}).devices == Names{"GPU 2"});
        CHECK(machine_text({"test", "--gpus", "2", "--threads", "1"}) == "GPU 2, 1 thread x 1 rank, fp32");
        for (const char* const wrong : {"1", "4", "0,0", "0,", "", "0-2", "x"}) {
            CAPTURE(wrong);
            CHECK_ERROR("the GPUs are 0 (H200), 2 (H200), 3 (H200)", machine_text({"test", "--gpus", wrong}));
        }
        CHECK_THROWS_WITH_AS(machine_text({"test", "--device", "cuda:1"}),
                             "--device cuda:N: expected numbers of this node's GPUs, each once, got \"1\"; the GPUs are "
                             "0 (H200), 2 (H200), 3 (H200)",
                             Error);
        CHECK_ERROR("cuda:N for GPU N, got gpu", machine_text({"test", "--device", "gpu"}));
        for (const char* const device : {"cpu", "cuda:0"})
            CHECK_ERROR("omit --device, or give --gpus all", machine_text({"test", "--device", device, "--gpus", "0"}));
        CHECK(machine_text({"test", "--device", "cpu"}).starts_with("cpu ("));
    }

    TEST_CASE("compute: ranks without a GPU of their own are idle") {
        {
            const GpusInPlace three(kThreeGpus);
            const OnRanks five = machines(5, {"test", "--threads", "1"});
            CHECK(five.firsts == std::vector{0, 1, 2, 3, 3}); // 3 means none
            CHECK(five.devices == std::vector<std::string>{"GPU 0", "GPU 2", "GPU 3", "", ""}); // opens no GPU if idle
            CHECK(five.groups == std::vector{3, 3, 3, 1, 1});
            CHECK(five.sums == std::vector<double>(5, 102));
            CHECK(five.texts[3].starts_with("H200, 1 thread x 5 ranks"));
            const OnRanks ordered = machines(5, {"test", "--workers", "7"});
            CHECK(ordered.firsts == std::vector{0, 3, 5, 7, 7});
            CHECK(ordered.groups == five.groups);
            CHECK(five.texts[0] == "GPU 0, 1 thread x 5 ranks on 3 GPUs (2 idle, without a GPU of their own), fp32");
            const OnRanks one = machines(2, {"test", "--threads", "1", "--device", "cuda:2"});
            CHECK(one.firsts == std::vector{0, 1});
            CHECK(one.texts[0] == "GPU 2, 1 thread x 2 ranks on 1 GPU (1 idle, without a GPU of their own), fp32");
            const OnRanks sharing = machines(5, {"test", "--threads", "1", "--spare-ranks", "share"});
            CHECK(sharing.firsts == std::vector{0, 1, 2, 3, 4});
            CHECK(sharing.groups == std::vector(5, 5));
            CHECK(sharing.sums == std::vector<double>(5, 100)); // no rank is idle
            CHECK(sharing.texts[0] == "GPU 0, 1 thread x 5 ranks on 3 GPUs (2 share), fp32");
        }
        const GpusInPlace mixed(kGpuOnNode0);
        for (const char* const use : {"idle", "share"}) { // ranks on a node without GPUs cannot share one
            const OnRanks three =
                machines(3, {"test", "--threads", "1", "--precision", "auto", "--spare-ranks", use}, 1);
            CHECK(three.firsts == std::vector{0, 1, 1});
            CHECK(three.devices == std::vector<std::string>{"GPU 0", "", ""});
            CHECK(three.texts[0] == "GPU 0, 1 thread x 3 ranks on 1 GPU (2 idle, without a GPU of their own), bf16");
            CHECK(three.texts[1].starts_with("GPUs of other nodes, since on this one there is no GPU, 1 thread"));
            CHECK(three.texts[1].ends_with("bf16"));
        }
        CHECK(machines(2, {"test", "--gpus", "0"}, 1).devices[0] == "GPU 0");
        CHECK_ERROR("the GPUs are 0 (H200)", machines(2, {"test", "--gpus", "1"}, 1));
        const GpusInPlace none({[] {
                                    return gpu::FoundGpus{{}, "there is no GPU"};
                                },
                                open_numbered});
        CHECK_THROWS_WITH_AS(machine_text({"test", "--gpus", "0"}),
                             "--gpus: expected GPUs, got none, since there is no GPU; give --gpus all", Error);
    }

    TEST_CASE("workers: ranks beyond the number of GPUs share them, or take no images") {
        // Two machines with three ranks each have two GPUs and one.
        const std::vector<std::string> gpus = {"a", "b", "a", "c", "c", "c"};
        const std::vector<int> order = {0, 1, 2, 3, 4, 5}, places = {0, 1, 3, 2, 3, 3}; // 3 means none
        for (int rank = 0; rank < 6; ++rank) {
            CAPTURE(rank);
            const Workers sharing = workers_of(gpus, order, rank, false), some = workers_of(gpus, order, rank, true);
            CHECK(sharing.gpus == 3);
            CHECK(sharing.idle == 0);
            CHECK(some.idle == 3);
            CHECK(sharing.count == 6);
            CHECK(sharing.first == rank);
            CHECK(some.gpus == 3);
            CHECK(some.count == 3);
            CHECK(some.first == places[size_t(rank)]);
        }
    }

    TEST_CASE("workers: with a GPU for each rank, all ranks take images") {
        const std::vector<std::string> gpus = {"a", "b", "c"};
        for (int rank = 0; rank < 3; ++rank) {
            const Workers all = workers_of(gpus, std::vector{0, 1, 2}, rank, true);
            CHECK(all.gpus == 3);
            CHECK(all.count == 3);
            CHECK(all.first == rank);
            CHECK(all.times_gpus(256) == 768);
        }
    }

    TEST_CASE("workers: the mini-batch grows with the GPUs, not with the ranks") {
        const std::vector<std::string> gpus = {"a", "b", "a", "b", "a"};
        for (const bool idle : {false, true})
            CHECK(workers_of(gpus, std::vector{0, 1, 2, 3, 4}, 4, idle).times_gpus(50) == 100);
        CHECK(workers_of({}, std::vector{0, 1, 2, 3}, 1, false).times_gpus(50) == 50); // ranks on CPUs
    }

    TEST_CASE("workers: more than ranks; each rank has consecutive ones, in the order of the ranks that is given") {
        const std::vector<int> order = {0, 2, 1};
        const Workers zero = workers_of({}, order, 0, false, 8), one = workers_of({}, order, 1, false, 8),
                      two = workers_of({}, order, 2, false, 8);
        CHECK(zero.of_rank == std::vector{3, 2, 3});
        CHECK((zero.first == 0 && zero.own == 3));
        CHECK((two.first == 3 && two.own == 3));
        CHECK((one.first == 6 && one.own == 2));
        CHECK_ERROR("one worker for each of 3 ranks, got 2; start fewer ranks", workers_of({}, order, 0, false, 2));
    }
}
