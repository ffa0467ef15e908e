// See machine.h.
#include "ringgrad/models/run/machine.h"

#include "ringgrad/core/cpu/cores.h"
#include "ringgrad/core/cpu/isa.h"
#include "ringgrad/gpu/device.h"
#include "ringgrad/models/run/data_parallel.h"

#include <algorithm>

namespace rg {

namespace {

int64_t threads_of(MachineOptions& settings, const Options& options, const par::Group& group) {
    if (!options.was_given("threads") || settings.threads == 0)
        settings.threads = std::max(1, available_cores() / group.local_size());
    return settings.threads;
}

} // namespace

void MachineOptions::declare_compute(Options& o) {
    o.group("Machine");
    o.add("device", &device, "device to compute on; auto: GPU if every rank has one, else CPU")
        .one_of({"auto", "cpu", "cuda"});
    o.add("precision", &precision,
          "number format of activations; auto: bf16 on GPUs and on CPUs with AMX or AVX512-BF16, else fp32; "
          "fp32-strict: fp32 without Winograd or sums of bf16 products, on CPUs alone")
        .one_of({"auto", "fp32", "fp32-strict", "bf16"})
        .basic();
    o.add("threads", &threads, "threads per rank; 0: number of cores / number of ranks on this machine").range(0, 1024);
}

void MachineOptions::declare(Options& o) {
    declare_compute(o);
    o.add("spare-ranks", &idle_spare_ranks, {{"share", false}, {"idle", true}},
          "use of ranks beyond the number of GPUs; share: they share GPUs; idle: they take no images");
    using par::Algorithm;
    o.add("allreduce", &allreduce,
          {{"auto", Algorithm::automatic},
           {"ring", Algorithm::ring},
           {"small", Algorithm::small},
           {"shared", Algorithm::shared},
           {"mpi", Algorithm::mpi}},
          "all-reduce algorithm for the gradients; shared: in shared memory within a node, along a chain between "
          "nodes; ring: fewest bytes; small: fewest messages; mpi: MPI_Allreduce; auto: shared if possible, else the "
          "faster of ring and small by an estimate");
    o.add("accelerate", &accelerate, "trace the step once, fuse ops, and replay it; off: run op by op");
}

Workers workers_of(std::span<const std::string> gpu_of_rank, int rank, bool idle_spare_ranks) {
    Workers workers{0, int(gpu_of_rank.size()), rank};
    int before = 0; // number of GPUs whose first rank is below `rank`
    bool is_first = false;
    for (int r = 0; r < int(gpu_of_rank.size()); ++r) {
        const auto end = gpu_of_rank.begin() + r;
        if (std::find(gpu_of_rank.begin(), end, *end) != end) continue;
        ++workers.gpus;
        before += r < rank;
        is_first |= r == rank;
    }
    if (idle_spare_ranks) workers.count = workers.gpus, workers.index = is_first ? before : workers.gpus;
    return workers;
}

Machine::Machine(MachineOptions& settings, const Options& options, par::Group& group)
    : options_(settings), threads_(int(threads_of(settings, options, group))) {
    const gpu::FoundGpus available = settings.device == "cpu" ? gpu::FoundGpus{} : gpu::gpu_functions().find();
    workers_ = {0, group.size(), group.rank()};
    if (settings.device == "cuda" && available.ids.empty()) gpu::gpu_functions().open(0); // throws with the reason
    if (group.all(!available.ids.empty(), "device") && settings.device != "cpu") {
        RG_CHECK(settings.precision != "fp32-strict",
                 "--precision: expected another precision than fp32-strict on a GPU, whose convolutions add three "
                 "products of tf32; use --precision fp32, or --device cpu");
        const size_t gpu = size_t(group.local_rank()) % available.ids.size();
        device_ = gpu::gpu_functions().open(int(gpu));
        workers_ = workers_of(group.allgather(available.ids[gpu], "GPUs"), group.rank(), settings.idle_spare_ranks);
    }
    if (!device_)
        verify_same(group, "instruction set", {cpu::isa().name},
                    "set RG_ISA on all ranks to one that every CPU has, since instruction sets round differently");
    const std::string precision = settings.precision != "auto"  ? settings.precision
                                  : device_ || cpu::isa().tiles ? "bf16"
                                                                : "fp32";
    if (precision == "bf16") activations_ = DType::bf16;
    const std::string note = *cpu::isa_note() ? cat("; ", cpu::isa_note()) : "";
    const std::string reason = !available.ids.empty() ? "not every rank has a GPU" : available.why_none;
    const std::string device =
        device_ ? device_->name()
                : cat("cpu (", cpu::isa().name, ")", note, settings.device == "auto" ? ", since " + reason : "");
    text_ = cat(device, ", ", settings.threads, settings.threads == 1 ? " thread" : " threads", " x ", group.size(),
                group.size() == 1 ? " rank" : " ranks");
    if (const int spare = group.size() - workers_.gpus; device_ && group.size() > 1)
        text_ += cat(" on ", workers_.gpus, workers_.gpus == 1 ? " GPU" : " GPUs",
                     spare == 0 ? "" : cat(" (", spare, settings.idle_spare_ranks ? " idle)" : " share)"));
    text_ += ", " + precision;
}

Context Machine::context() {
    return {.device = device_.get(),
            .threads = &threads_,
            .sync = nullptr,
            .strict_fp32 = options_.precision == "fp32-strict",
            .profile = nullptr};
}

} // namespace rg
