// Chooses the device, the threads and the precision of a training from its options and from the hardware.
//
// If any rank has a GPU, only GPUs compute. Ranks without one take no images, and of ranks with the same GPU only the
// first one does, unless --spare-ranks share is given. The other ranks are idle: they open no GPU, and take no part in
// the sums of a step. With the same options, all ranks use one precision.
#pragma once

#include "core/context.h"
#include "core/cpu/thread_pool.h"
#include "core/device.h"
#include "core/options.h"
#include "core/tensor.h"
#include "par/group.h"
#include "par/sub_link.h"

#include <algorithm>
#include <optional>

namespace rg {

struct ComputeOptions {
    std::string device = "auto", gpus = "all", precision = "fp32";
    int64_t threads = 0;
    par::Algorithm allreduce = par::Algorithm::automatic;
    par::Wire wire = par::Wire::full;
    int64_t workers = 0; // 0: one for each rank that takes images
    bool accelerate = true, idle_spare_ranks = true;
    /// declare() declares all options, declare_device_options() only --device, --precision and --threads.
    void declare(Options& options);
    void declare_device_options(Options& options);
};

/// The workers: a mini-batch is divided among them, and each rank computes the parts of some of them, one after
/// another. On CPUs, all ranks take images. On GPUs, one rank per GPU does, and with --spare-ranks share all ranks that
/// share a GPU do.
struct Workers {
    int gpus = 0;                  // number of GPUs that the ranks use together
    int idle = 0;                  // number of ranks that take no images
    int count = 1;                 // number of workers of all ranks that take images
    int first = 0;                 // index of this rank's first worker; `count` if it takes no images
    int own = 1;                   // number of this rank's workers; 1 if it takes no images
    std::vector<int> of_rank = {}; // `own` of each rank
    std::vector<int> ranks = {};   // those that take images, in the order of the workers
    /// Returns true if this rank takes no images.
    bool is_idle() const { return first == count; }
    /// Returns `batch` times the number of GPUs, or `batch` if there are no GPUs.
    int64_t times_gpus(int64_t batch) const { return batch * std::max(1, gpus); }
};
/// Returns the workers of a job, as `rank` sees them. `order` has all ranks; workers are given to them in this order.
/// `gpu_of_rank` has the ID of each rank's GPU, or "" for a rank that has none; it is empty if all ranks compute on
/// CPUs. With `idle_spare_ranks`, only the lowest rank of each GPU takes images. `count` is the number of workers; 0:
/// one for each rank that takes images. Throws Error if `count` is not 0, but less than the number of these ranks.
Workers workers_of(std::span<const std::string> gpu_of_rank, std::span<const int> order, int rank,
                   bool idle_spare_ranks, int64_t count = 0);

/// The device, the threads and the precision with which this rank computes.
class Compute {
public:
    /// Collective. Sets the number of threads in `settings`, unless --threads gives one above 0. With --workers, calls
    /// Group::set_ordered_sums(), and Group::set_workers() of group(). `settings` and `all`, which has all ranks, must
    /// outlive this. Throws Error for --device cuda on a rank without a GPU, if --device or --gpus names a GPU that a
    /// node with GPUs lacks, for fp32-strict on a GPU, if ranks on CPUs use different instruction sets, and if --wire
    /// or --workers does not fit the other options or the number of ranks.
    Compute(ComputeOptions& settings, const Options& options, par::Group& all);
    Compute(const Compute&) = delete;
    Compute& operator=(const Compute&) = delete;

    /// Returns a context that refers to this object. The caller installs it with a ContextScope.
    Context context();
    const ComputeOptions& options() const { return options_; }
    /// Returns this rank's GPU, or null for the CPU and on an idle rank.
    Device* device() const { return device_.get(); }
    /// Returns the group of the ranks that take images, for the sums of a step. On an idle rank, returns a group of
    /// this rank alone.
    par::Group& group() const { return *group_; }
    /// Collective over all ranks. The ranks that take images pass the same values, and idle ranks others. Sets all to
    /// the sum of the former values and those of each idle rank. Does nothing if no rank is idle.
    void add_idle(std::span<double> values) const;
    /// Returns the data type of a network's input images and activations.
    DType activations() const { return activations_; }
    /// Returns the workers. A rank that takes no images still has a copy of the network, for models and checkpoints.
    const Workers& workers() const { return workers_; }
    /// Returns a text for people, for example "cpu (avx512), 1 thread x 4 ranks, fp32".
    const std::string& text() const { return text_; }

private:
    const ComputeOptions& options_;
    par::Group& all_;
    std::optional<par::SubLink> link_; // these two of group(), if a rank is idle
    std::optional<par::Group> some_;
    par::Group* group_ = &all_;
    std::shared_ptr<Device> device_; // shared: tensors of the run may outlive this object
    Workers workers_;
    ThreadPool threads_;
    DType activations_ = DType::f32;
    std::string text_;
};

} // namespace rg
