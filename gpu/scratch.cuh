// Gives the host code of an op its scratch memory, its stream, and the properties of the GPU.
#pragma once

#include "gpu/cuda.cuh"
#include "gpu/gpu_traits.h"

#include <utility>

namespace rg::RG_GPU {

/// Returns at least `bytes` bytes of device memory, aligned to 256 bytes. Memory must be given back in reverse order.
/// The host may give it back before the kernels that use it have run: later work in the same stream runs after them.
void* take_scratch(size_t bytes);
void give_back_scratch(void* memory);
/// Returns kArrivalCounters counters in device memory, for is_last_block() (reduce.cuh). They are 0 when a kernel
/// starts, and each kernel leaves them at 0.
unsigned* arrival_counters();
constexpr unsigned kArrivalCounters = 1024;
/// Returns the stream that runs the ops of this thread.
cudaStream_t stream();
const gpu::GpuTraits& gpu_traits();

/// Holds scratch memory for `count` values until it is destroyed.
template <class T>
class DeviceScratch {
public:
    explicit DeviceScratch(size_t count) : data_(static_cast<T*>(take_scratch(count * sizeof(T)))) {}
    DeviceScratch(DeviceScratch&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
    ~DeviceScratch() {
        if (data_) give_back_scratch(data_);
    }
    operator T*() const { return data_; }
    T* data() const { return data_; }

private:
    T* data_;
};

} // namespace rg::RG_GPU
