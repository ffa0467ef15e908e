// See compute.h.
#include "models/run/compute.h"

#include "core/cpu/cores.h"
#include "core/cpu/isa.h"
#include "core/text.h"
#include "data/dataset.h"
#include "gpu/device.h"
#include "par/verify.h"

#include <algorithm>

namespace rg {

namespace {

int64_t threads_of(ComputeOptions& settings, const Options& options, par::Group& group) {
    if (!options.was_given("threads") || settings.threads == 0)
        settings.threads =
            std::max(1, std::min(affinity_cores() / group.link().core_sharers(), core_quota() / group.local_size()));
    return settings.threads;
}

/// Returns the GPUs that the ranks of this node take in turn: those that --gpus or --device names, else all. Without
/// any GPU, returns none.
std::vector<gpu::FoundGpus::Gpu> chosen_gpus(const ComputeOptions& settings, const gpu::FoundGpus& found) {
    const bool one = settings.device.starts_with("cuda:"), all = settings.gpus == "all";
    RG_CHECK(settings.device == "auto" || settings.device == "cpu" || settings.device == "cuda" || one,
             "--device: expected auto, cpu, cuda, or cuda:N for GPU N, got ", settings.device);
    RG_CHECK(all || (settings.device != "cpu" && !one), "--gpus: expected --device auto or cuda, got --device ",
             settings.device, "; omit --device, or give --gpus all");
    if (found.gpus.empty() || (all && !one)) return found.gpus;
    std::vector<gpu::FoundGpus::Gpu> chosen;
    for (const std::string& text : split(one ? settings.device.substr(5) : settings.gpus, ',')) {
        int index = 0;
        const bool is_number = read_number(text, index);
        const auto is_it = [&](const gpu::FoundGpus::Gpu& gpu) { return gpu.index == index; };
        const auto gpu = std::find_if(found.gpus.begin(), found.gpus.end(), is_it);
        RG_CHECK(is_number && gpu != found.gpus.end() && std::none_of(chosen.begin(), chosen.end(), is_it),
                 one ? "--device cuda:N" : "--gpus", ": expected numbers of this node's GPUs, each once, got \"", text,
                 "\"; the GPUs are ", found.list());
        chosen.push_back(*gpu);
    }
    return chosen;
}

} // namespace

void ComputeOptions::declare_device_options(Options& o) {
    o.group("Machine");
    o.add("device", &device,
          "cpu; cuda: a GPU on every node; cuda:N: GPU N of every node; auto: GPUs if a node has any, else CPUs")
        .metavar("auto|cpu|cuda|cuda:N");
    o.add("precision", &precision,
          "number format of activations; auto: bf16 on GPUs and on CPUs that multiply bf16 faster (with AMX, or AMD's "
          "AVX512-BF16), else fp32; fp32-strict: fp32 without Winograd or sums of bf16 products, on CPUs alone")
        .one_of({"auto", "fp32", "fp32-strict", "bf16"})
        .basic();
    o.add("threads", &threads, "threads per rank; 0: cores that it may use / ranks that share them")
        .range(0, 1024)
        .by_rank();
}

void ComputeOptions::declare(Options& o) {
    declare_device_options(o);
    o.add("gpus", &gpus, "numbers of the GPUs of each node that its ranks take in turn, such as 0,2; all: all of them")
        .metavar("LIST");
    o.add("spare-ranks", &idle_spare_ranks, {{"share", false}, {"idle", true}},
          "use of ranks beyond the number of a node's GPUs; share: they share GPUs; idle: they take no images");
    o.add("workers", &workers,
          "parts of a mini-batch, which ranks share, so that any number of ranks gives the same bits; 0: one per rank")
        .range(0, 1 << 20);
    using par::Algorithm;
    o.add("allreduce", &allreduce,
          {{"auto", Algorithm::automatic},
           {"shared", Algorithm::shared},
           {"ring", Algorithm::ring},
           {"halving", Algorithm::halving}},
          "all-reduce of gradients; shared: in shared memory within a node; ring, halving: by messages between all "
          "ranks, in a ring or by halving and doubling; auto: shared if all nodes have the same number of ranks");
    o.add("wire", &wire, {{"fp32", par::Wire::full}, {"bf16", par::Wire::bf16}},
          "number format of gradients in messages, as between nodes; bf16: half the bytes, each sum of two nodes "
          "rounded");
    o.add("accelerate", &accelerate, "trace the step once, fuse ops, and replay it; off: run op by op");
}

Workers workers_of(std::span<const std::string> gpu_of_rank, std::span<const int> order, int rank,
                   bool idle_spare_ranks, int64_t count) {
    Workers workers;
    for (const int r : order) {
        const bool on_cpu = gpu_of_rank.empty(), has_gpu = !on_cpu && !gpu_of_rank[size_t(r)].empty();
        const bool is_first = has_gpu && std::find(gpu_of_rank.begin(), gpu_of_rank.begin() + r,
                                                   gpu_of_rank[size_t(r)]) == gpu_of_rank.begin() + r;
        workers.gpus += is_first;
        if (on_cpu || is_first || (has_gpu && !idle_spare_ranks)) workers.ranks.push_back(r);
    }
    const int parts = int(workers.ranks.size());
    workers.idle = int(order.size()) - parts;
    RG_CHECK(count == 0 || count >= parts, "--workers: expected at least one worker for each of ", parts,
             " ranks, got ", count, "; start fewer ranks, or use more workers");
    workers.first = workers.count = count ? int(count) : parts;
    workers.of_rank.assign(order.size(), 1);
    for (int i = 0; i < parts; ++i) {
        const data::Range range = data::part_range(workers.count, parts, i);
        workers.of_rank[size_t(workers.ranks[size_t(i)])] = int(range.size());
        if (workers.ranks[size_t(i)] == rank) workers.first = int(range.begin), workers.own = int(range.size());
    }
    return workers;
}

Compute::Compute(ComputeOptions& settings, const Options& options, par::Group& all)
    : options_(settings), all_(all), threads_(int(threads_of(settings, options, all))) {
    const gpu::FoundGpus found = settings.device == "cpu" ? gpu::FoundGpus{} : gpu::gpu_discovery().find();
    const std::vector<gpu::FoundGpus::Gpu> gpus = chosen_gpus(settings, found);
    if (settings.device.starts_with("cuda") && gpus.empty()) gpu::gpu_discovery().open(0); // throws with the reason
    RG_CHECK(gpus.empty() || settings.precision != "fp32-strict",
             "--precision: expected another one than fp32-strict on a GPU; use --precision fp32, or --device cpu");
    const gpu::FoundGpus::Gpu* const gpu = gpus.empty() ? nullptr : &gpus[size_t(all.local_rank()) % gpus.size()];
    std::vector<std::string> gpu_of_rank = all.allgather(gpu ? gpu->id : "", "GPUs");
    if (std::all_of(gpu_of_rank.begin(), gpu_of_rank.end(), [](const std::string& of) { return of.empty(); })) {
        RG_CHECK(settings.gpus == "all", "--gpus: expected GPUs, got none, since ", found.why_none,
                 "; give --gpus all");
        gpu_of_rank.clear();
    }
    RG_CHECK(settings.wire == par::Wire::full || settings.workers == 0, "--wire bf16: expected no --workers, got ",
             settings.workers, "; sums rounded between nodes would depend on the number of nodes");
    std::vector<int> order = all.link().ranks();
    if (settings.workers > 0) {
        RG_CHECK(settings.allreduce == par::Algorithm::automatic || settings.allreduce == par::Algorithm::shared,
                 "--workers: expected --allreduce auto or shared, which add in the order of the workers, got another");
        all.set_ordered_sums();
        order = all.sum_order();
    }
    workers_ = workers_of(gpu_of_rank, order, all.rank(), settings.idle_spare_ranks, settings.workers);
    std::vector<int> members = workers_.is_idle() ? std::vector{all.rank()} : workers_.ranks;
    std::ranges::sort(members);
    if (workers_.idle > 0) {
        group_ = &some_.emplace(link_.emplace(all.link(), members));
        if (settings.workers > 0) group_->set_ordered_sums();
    }
    if (settings.workers > 0) {
        std::vector<int> of_member;
        for (const int member : members) of_member.push_back(workers_.of_rank[size_t(member)]);
        group_->set_workers(std::move(of_member));
    }
    // Opens the GPU only now, since an idle rank must not take memory there, and may not even be allowed to open it.
    if (gpu && !workers_.is_idle()) device_ = gpu::gpu_discovery().open(gpu->index);
    if (gpu_of_rank.empty())
        par::verify_same(all, "instruction set", {cpu::isa().name},
                         "set RG_ISA on all ranks to one that every CPU has, since instruction sets round differently");
    const std::string precision = settings.precision != "auto"            ? settings.precision
                                  : workers_.gpus > 0 || cpu::isa().tiles ? "bf16"
                                                                          : "fp32";
    if (precision == "bf16") activations_ = DType::bf16;
    const std::string note = *cpu::isa_note() ? cat("; ", cpu::isa_note()) : "";
    const std::string device = device_             ? device_->name()
                               : gpu               ? gpu->name
                               : workers_.gpus > 0 ? cat("GPUs of other nodes, since on this one ", found.why_none)
                                                   : cat("cpu (", cpu::isa().name, ")", note,
                                                         settings.device == "auto" ? ", since " + found.why_none : "");
    text_ = cat(device, ", ", settings.threads, settings.threads == 1 ? " thread" : " threads", " x ", all.size(),
                all.size() == 1 ? " rank" : " ranks");
    if (settings.workers > 0) text_ += cat(" for ", settings.workers, settings.workers == 1 ? " worker" : " workers");
    if (workers_.gpus > 0 && all.size() > 1) {
        const int shared = all.size() - workers_.gpus - workers_.idle;
        text_ += cat(" on ", workers_.gpus, workers_.gpus == 1 ? " GPU" : " GPUs",
                     shared ? cat(" (", shared, " share)") : "",
                     workers_.idle ? cat(" (", workers_.idle, " idle, without a GPU of their own)") : "");
    }
    text_ += ", " + precision;
}

void Compute::add_idle(std::span<double> values) const {
    if (workers_.idle == 0) return;
    if (!workers_.is_idle() && workers_.first > 0) std::ranges::fill(values, 0.0); // one worker's values are enough
    all_.allreduce_sum(values, "numbers of idle ranks");
}

Context Compute::context() {
    return {.device = device_.get(), .threads = &threads_, .strict_fp32 = options_.precision == "fp32-strict"};
}

} // namespace rg
