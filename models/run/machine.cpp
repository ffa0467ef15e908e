// See machine.h.
#include "models/run/machine.h"

#include "core/cpu/cores.h"
#include "core/cpu/isa.h"
#include "gpu/device.h"
#include "models/run/data_parallel.h"

#include <algorithm>

namespace rg {

namespace {

int64_t threads_of(MachineOptions& settings, const Options& options, const par::Group& group) {
    if (!options.was_given("threads") || settings.threads == 0)
        settings.threads = std::max(1, available_cores() / group.local_size());
    return settings.threads;
}

} // namespace

void MachineOptions::declare(Options& o) {
    o.group("Machine");
    o.add("device", &device, "where to compute; auto: on a GPU if all ranks have one").one_of({"auto", "cpu", "cuda"});
    o.add("spare-ranks", &idle, {{"share", false}, {"idle", true}},
          "ranks beyond the number of GPUs: share them, or take no images");
    o.add("precision", &precision,
          "auto: bf16 on a GPU and where the processor has AMX, else fp32; fp32-strict: plain multiply-adds, on the "
          "CPU alone")
        .one_of({"auto", "fp32", "fp32-strict", "bf16"});
    o.add("threads", &threads, "per rank; 0: cores / ranks of this machine").range(0, 1024);
    using par::Algorithm;
    o.add("allreduce", &allreduce,
          {{"auto", Algorithm::automatic},
           {"ring", Algorithm::ring},
           {"small", Algorithm::small},
           {"shared", Algorithm::shared},
           {"mpi", Algorithm::mpi}},
          "how gradients are summed over the ranks");
    o.add("accelerate", &accelerate, "trace the step once, join what can be joined, replay; off: op by op");
}

Workers workers_of(std::span<const std::string> gpu_of_rank, int rank, bool idle) {
    Workers workers{0, int(gpu_of_rank.size()), rank};
    int before = 0; // this rank, those that are the first of their GPU
    bool first = false;
    for (int r = 0; r < int(gpu_of_rank.size()); ++r) {
        const auto end = gpu_of_rank.begin() + r;
        if (std::find(gpu_of_rank.begin(), end, *end) != end) continue;
        ++workers.gpus;
        before += r < rank;
        first |= r == rank;
    }
    if (idle) workers.count = workers.gpus, workers.place = first ? before : workers.gpus;
    return workers;
}

Machine::Machine(MachineOptions& settings, const Options& options, par::Group& group)
    : options_(settings), threads_(int(threads_of(settings, options, group))) {
    const gpu::Found found = settings.device == "cpu" ? gpu::Found{} : gpu::gpus().find();
    workers_ = {0, group.size(), group.rank()};
    if (settings.device == "cuda" && found.ids.empty()) gpu::gpus().open(0); // says why not
    if (group.all(!found.ids.empty(), "device") && settings.device != "cpu") {
        RG_CHECK(settings.precision != "fp32-strict",
                 "--precision fp32-strict: there are no plain multiply-adds on a GPU, whose convolutions add "
                 "three products of tf32; choose --precision fp32 for those, or --device cpu");
        const size_t mine = size_t(group.local_rank()) % found.ids.size();
        device_ = gpu::gpus().open(int(mine));
        workers_ = workers_of(group.allgather(found.ids[mine], "GPUs"), group.rank(), settings.idle);
    }
    if (!device_)
        verify_same(group, "instruction set", {cpu::isa().name},
                    "their sums round differently: set RG_ISA, on all ranks, to one that each processor has");
    const std::string precision = settings.precision != "auto"  ? settings.precision
                                  : device_ || cpu::isa().tiles ? "bf16"
                                                                : "fp32";
    if (precision == "bf16") activations_ = DType::bf16;
    const std::string note = *cpu::isa_note() ? cat("; ", cpu::isa_note()) : "";
    const std::string why = !found.ids.empty() ? "not every rank has a GPU" : found.why_none;
    const std::string where =
        device_ ? device_->name()
                : cat("cpu (", cpu::isa().name, ")", note, settings.device == "auto" ? ", since " + why : "");
    text_ = cat(where, ", ", settings.threads, settings.threads == 1 ? " thread" : " threads", " x ", group.size(),
                group.size() == 1 ? " rank" : " ranks");
    if (const int spare = group.size() - workers_.gpus; device_ && group.size() > 1)
        text_ += cat(" on ", workers_.gpus, workers_.gpus == 1 ? " GPU" : " GPUs",
                     spare == 0 ? "" : cat(" (", spare, settings.idle ? " idle)" : " share)"));
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
