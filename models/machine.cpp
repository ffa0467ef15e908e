// See machine.h.
#include "models/machine.h"

#include "core/cpu/isa.h"
#include "gpu/device.h"

namespace rg {

namespace {

int64_t threads_of(MachineOptions& settings, const Options& options, const par::Group& group) {
    if (!options.given("threads") || settings.threads == 0)
        settings.threads = std::max(1, available_cores() / group.local_size());
    return settings.threads;
}

} // namespace

void MachineOptions::declare(Options& o) {
    o.group("Machine");
    o.add("device", &device, "where to compute; auto: on a GPU if all ranks have one").one_of({"auto", "cpu", "cuda"});
    o.add("precision", &precision,
          "auto: bf16 on a GPU and where the processor has AMX, else fp32; fp32-strict: plain multiply-adds")
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

Machine::Machine(MachineOptions& settings, const Options& options, par::Group& group)
    : threads_(int(threads_of(settings, options, group))), strict_(settings.precision == "fp32-strict") {
    const gpu::Found found = settings.device == "cpu" ? gpu::Found{} : gpu::find_devices();
    if (settings.device == "cuda") RG_CHECK(found.count > 0, "--device cuda: ", found.why_none);
    if (group.all(found.count > 0, "device") && settings.device != "cpu")
        device_ = gpu::open_device(group.local_rank() % found.count);
    if (device_) {
        double own = group.local_rank() < found.count ? 1 : 0; // the other ranks share theirs
        group.allreduce_sum(std::span<double>(&own, 1), "GPUs");
        gpus_ = int64_t(own);
    }
    const bool tiles = group.all(cpu::isa().tiles != nullptr, "precision"); // the ranks' machines may differ
    const std::string precision = settings.precision != "auto" ? settings.precision
                                  : tiles || device_           ? "bf16"
                                                               : "fp32";
    if (precision == "bf16") activations_ = DType::bf16;
    const std::string note = *cpu::isa_note() ? cat("; ", cpu::isa_note()) : "";
    const std::string why = found.count > 0 ? "not every rank has a GPU" : found.why_none;
    const std::string where =
        device_ ? device_->name()
                : cat("cpu (", cpu::isa().name, ")", note, settings.device == "auto" ? ", since " + why : "");
    text_ = cat(where, ", ", settings.threads, settings.threads == 1 ? " thread" : " threads", " x ", group.size(),
                group.size() == 1 ? " rank" : " ranks", ", ", precision);
}

Context Machine::context() {
    return {.device = device_.get(), .threads = &threads_, .sync = nullptr, .strict_fp32 = strict_, .profile = nullptr};
}

} // namespace rg
