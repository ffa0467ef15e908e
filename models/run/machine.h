// What a training program computes on: device, threads and precision, as its options have them and the machine allows.
//
// All ranks get the same kind of device and the same precision, whatever the machines that they are on.
#pragma once

#include "core/context.h"
#include "core/cpu/thread_pool.h"
#include "core/device.h"
#include "core/options.h"
#include "core/tensor.h"
#include "data/dataset.h"
#include "par/group.h"

#include <algorithm>

namespace rg {

struct MachineOptions {
    std::string device = "auto", precision = "fp32";
    int64_t threads = 0;
    par::Algorithm allreduce = par::Algorithm::automatic;
    bool accelerate = true, idle = false;
    void declare(Options& options);
};

/// Which ranks take images: all, or one for each GPU.
struct Workers {
    int gpus = 0, count = 1; // of all ranks together
    int place = 0;           // of this rank among the workers; count: it is none of them
    /// A mini-batch for one GPU, as large as all of them take at a time; on the CPU it does not grow with the ranks.
    int64_t scaled(int64_t batch) const { return batch * std::max(1, gpus); }
    data::Range share_of(int64_t n) const { return data::part_range(n, count, place); }
};
/// From what each rank's GPU is called. idle: the first rank of each GPU works alone.
Workers workers_of(std::span<const std::string> gpu_of_rank, int rank, bool idle);

class Machine {
public:
    /// Collective. Puts the number of threads into `settings`, which outlives this, unless the command line has one.
    /// Error: --device cuda where there is none, or fp32-strict on one.
    Machine(MachineOptions& settings, const Options& options, par::Group& group);
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    /// To be refined, and made current by a ContextScope.
    Context context();
    const MachineOptions& options() const { return options_; }
    Device* device() const { return device_.get(); } // null: the CPU
    /// The type of images and activations.
    DType activations() const { return activations_; }
    /// A rank that takes no images has its copy of the network on the GPU that it would share, and comes to all sums.
    const Workers& workers() const { return workers_; }
    /// "cpu (avx512), 1 thread x 4 ranks, fp32"
    const std::string& text() const { return text_; }

private:
    const MachineOptions& options_;
    std::shared_ptr<Device> device_; // shared with the tensors on it: those of a run are gone after this
    Workers workers_;
    ThreadPool threads_;
    DType activations_ = DType::f32;
    std::string text_;
};

} // namespace rg
