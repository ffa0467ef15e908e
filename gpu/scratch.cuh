// What the host's side of an op has around it: memory that its kernels need between them, the stream, the GPU.
#pragma once

#include "gpu/cuda.cuh"
#include "gpu/machine.h"

namespace rg::RG_GPU {

/// A piece of at least `bytes`, aligned to 256, given back in the opposite order. Work of one stream may follow other
/// work in the same piece.
void* take_scratch(size_t bytes);
void give_back_scratch(void* piece);
/// Where the ops of this thread run.
cudaStream_t stream();
const gpu::Machine& machine();

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
