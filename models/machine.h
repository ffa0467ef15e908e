// What a training program computes on: device, threads and precision, as its options have them and the machine allows.
//
// All ranks get the same kind of device and the same precision, whatever the machines that they are on.
#pragma once

#include "core/context.h"
#include "core/cpu/thread_pool.h"
#include "core/device.h"
#include "core/options.h"
#include "core/tensor.h"
#include "par/group.h"

namespace rg {

struct MachineOptions {
    std::string device = "auto", precision = "fp32";
    int64_t threads = 0;
    par::Algorithm allreduce = par::Algorithm::automatic;
    bool accelerate = true;
    void declare(Options& options);
};

class Machine {
public:
    /// Collective. Puts the number of threads into `settings`, unless the command line has one. Error: --device cuda
    /// where there is none.
    Machine(MachineOptions& settings, const Options& options, par::Group& group);
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    /// To be refined, and made current by a ContextScope.
    Context context();
    Device* device() const { return device_.get(); } // null: the CPU
    /// The type of images and activations.
    DType activations() const { return activations_; }
    /// GPUs that all ranks together work on.
    int64_t gpus() const { return gpus_; }
    /// "cpu (avx512), 1 thread x 4 ranks, fp32"
    const std::string& text() const { return text_; }

private:
    std::unique_ptr<Device> device_;
    int64_t gpus_ = 0;
    ThreadPool threads_;
    DType activations_ = DType::f32;
    bool strict_ = false;
    std::string text_;
};

} // namespace rg
