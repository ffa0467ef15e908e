// Supplies what the ops need on the executor: scratch memory, a stream, GPU properties, and the table of kernels.
#include "gpu/kernels.h"
#include "gpu/scratch.cuh"

#include <array>
#include <cstdlib>
#include <cstring>

namespace rg::gpu_on_host {

// Uses the heap, so that AddressSanitizer finds accesses out of bounds. Filled with NaN, so that no kernel relies on
// zeros.
void* take_scratch(size_t bytes) {
    if (simt::interceptor) return simt::interceptor->scratch(bytes);
    void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    RG_CHECK(memory, "take_scratch: no memory for ", bytes, " bytes");
    std::memset(memory, 0xFF, bytes);
    return memory;
}
void give_back_scratch(void* memory) {
    if (!simt::interceptor) std::free(memory);
}

unsigned* arrival_counters() {
    if (simt::interceptor) return simt::interceptor->counters();
    thread_local std::array<unsigned, kArrivalCounters> counters{};
    return counters.data();
}

cudaStream_t stream() { return nullptr; }

gpu::GpuTraits& settable_gpu_traits() {
    static gpu::GpuTraits traits{.sm_count = 2}; // fewer SMs than tiles, so that a block takes several tiles
    return traits;
}
const gpu::GpuTraits& gpu_traits() { return settable_gpu_traits(); }

Kernel kernel(Op op) {
    static constexpr Kernel kKernels[] = {
#define RG_KERNEL(name) name,
        RG_OPS(RG_KERNEL)
#undef RG_KERNEL
    };
    return kernel_of(op, kKernels);
}

} // namespace rg::gpu_on_host
