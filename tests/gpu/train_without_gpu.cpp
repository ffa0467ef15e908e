// train_cifar with a stand-in for a GPU: its memory is shared memory, and the host computes all ops. Several processes
// sum gradients in each other's memory. RG_FAULTY_SUMS=1 leaves the last vector out of the sums. For e2e/gpu_check.py.
#include "models/programs.h"
#include "par/shared.h"
#include "tests/gpu/shared_memory_device.h"
#include "tests/host_device.h"

#include <cstdlib>

using namespace rg;

namespace {

struct Gpu final : InSharedMemory<HostDevice> {
    void sum(std::span<std::byte* const> from, std::span<std::byte* const> to, size_t count) override {
        if (std::getenv("RG_FAULTY_SUMS")) from = from.first(from.size() - 1);
        par::sum_vectors(from, to, count, par::Element::f32);
    }
};

} // namespace

int main(int argc, char** argv) {
    gpu::gpu_discovery() = {[] {
                                return gpu::FoundGpus{{{0, "stand-in", "stand-in"}}, {}};
                            },
                            [](int) -> std::shared_ptr<Device> { return std::make_shared<Gpu>(); }};
    return run_training_main(argc, argv, train_cifar);
}
