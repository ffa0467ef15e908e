// Defines a HostDevice whose kernels run on the executor.
#pragma once

#include "gpu/kernels.h"
#include "tests/host_device.h"

namespace rg {

class ExecutorDevice : public HostDevice {
public:
    std::string name() const override { return "the executor"; }
    Kernel kernel(Op op) const override { return HostDevice::kernel(op), gpu_on_host::kernel(op); }
    void sum(std::span<std::byte* const> from, std::span<std::byte* const> to, size_t count) override {
        gpu_on_host::sum_vectors(from, to, count, nullptr);
        if (sums_wrongly && count > 0) reinterpret_cast<float*>(to.back())[count - 1] += 1;
        ++sums;
    }
    double time_of(const std::function<void()>& f) override {
        const int before = sums;
        return f(), sums > before ? sum_seconds : 1;
    }
    bool sums_wrongly = false;
    double sum_seconds = 0; // result of time_of() for sums; 1 for all else
    int sums = 0; // number of calls of sum()
};

/// One executor, which all ranks share.
inline constexpr gpu::GpuDiscovery kExecutorGpus{
    [] {
        return gpu::FoundGpus{{{0, "executor", "executor"}}, {}};
    },
    [](int) -> std::shared_ptr<Device> { return std::make_shared<ExecutorDevice>(); }};

} // namespace rg
