// A device whose kernels run on the executor: memory that the program must not touch, and work that is only right if
// it was brought there. What holds for it holds for a GPU, as far as the program's side goes.
#pragma once

#include "core/device.h"
#include "gpu/kernels.h"

#include <cstdlib>
#include <cstring>

namespace rg {

class ExecutorDevice final : public Device {
public:
    std::string name() const override { return "the executor"; }
    void* allocate(size_t bytes) override {
        void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
        std::memset(memory, 0xFF, bytes); // NaN
        return memory;
    }
    void release(void* memory) noexcept override { std::free(memory); }
    void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    Kernel kernel(Op op) const override { return gpu_on_host::kernel(op); }
    void synchronize() override {}

    std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
        struct Replay final : Graph {
            explicit Replay(ExecutorDevice& device, std::function<void()> work) : owner(device), f(std::move(work)) {}
            void launch() override { f(), ++owner.launches; }
            ExecutorDevice& owner;
            std::function<void()> f;
        };
        return std::make_unique<Replay>(*this, work);
    }
    int launches = 0; // of graphs
};

} // namespace rg
