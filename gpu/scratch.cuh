// Gives the host code of an op its scratch memory, its stream, and the properties of the GPU.
#pragma once

#include "gpu/cuda.cuh"
#include "gpu/gpu_traits.h"

namespace rg::RG_GPU {

/// Returns at least `bytes` of device memory, aligned to 256. Memory must be given back in reverse order. It may be
/// given back while kernels that use it are queued: later work in the same stream runs after them.
void* take_scratch(size_t bytes);
void give_back_scratch(void* memory);
/// The stream that runs the ops of this thread.
cudaStream_t stream();
const gpu::GpuTraits& gpu_traits();

/// Scratch memory for `count` values, for the lifetime of this object.
template <class T>
class Scratch {
public:
    explicit Scratch(size_t count) : data_(static_cast<T*>(take_scratch(count * sizeof(T)))) {}
    ~Scratch() { give_back_scratch(data_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    operator T*() const { return data_; }
    T* data() const { return data_; }

private:
    T* data_;
};

} // namespace rg::RG_GPU
