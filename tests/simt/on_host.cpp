// What the kernels need of their surroundings when they run on the executor: memory, and a way by their op.
#include "gpu/kernels.h"
#include "gpu/scratch.cuh"

#include <cstdlib>
#include <cstring>

namespace rg::gpu_on_host {

// From the heap, so that AddressSanitizer knows the borders; full of NaN, so that nothing relies on zeros.
void* take_scratch(size_t bytes) {
    void* const piece = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    RG_CHECK(piece, "take_scratch: no memory for ", bytes, " bytes");
    std::memset(piece, 0xFF, bytes);
    return piece;
}
void give_back_scratch(void* piece) { std::free(piece); }

cudaStream_t stream() { return nullptr; }

gpu::Machine& settable_machine() {
    static gpu::Machine machine{.processors = 2}; // fewer than there are tiles, so that a block takes several
    return machine;
}
const gpu::Machine& machine() { return settable_machine(); }

Kernel kernel(Op op) {
    static constexpr Kernel kKernels[] = {
#define RG_KERNEL(name) name,
        RG_OPS(RG_KERNEL)
#undef RG_KERNEL
    };
    return kKernels[size_t(op)];
}

} // namespace rg::gpu_on_host
