// A device that runs ops instead of this machine's processor: memory of its own, and a kernel for each op.
//
// Core knows no CUDA. Whoever has a device puts it into the Context; from then on tensors are made in its memory and
// ops run on it, one after the other, while the program goes on. Values that the program reads or writes itself are
// copied (Tensor::to_host(), Tensor::copy_from()), which waits for what came before.
#pragma once

#include "core/op_table.h"

#include <functional>
#include <memory>

namespace rg {

class Device {
public:
    virtual ~Device() = default;
    /// "NVIDIA H200 (sm_90, 139.8 GiB)"
    virtual std::string name() const = 0;

    /// Memory aligned to 256 bytes. Error when there is none left.
    virtual void* allocate(size_t bytes) = 0;
    virtual void release(void* memory) noexcept = 0;
    /// Copies that have taken place on return.
    virtual void upload(void* to, const void* from, size_t bytes) = 0;
    virtual void download(void* to, const void* from, size_t bytes) = 0;
    virtual void copy(void* to, const void* from, size_t bytes) = 0;

    /// Takes tensors in the device's memory and returns before the work is done.
    virtual Kernel kernel(Op op) const = 0;
    /// Waits for all work; errors of kernels come out here, at the latest.
    virtual void synchronize() = 0;

    /// Work that is started as a whole.
    class Graph {
    public:
        virtual ~Graph() = default;
        virtual void launch() = 0;
    };
    /// What f would do, not done; null where the device has no such thing. f must have been run before.
    virtual std::unique_ptr<Graph> capture(const std::function<void()>&) { return nullptr; }
};

} // namespace rg
