// Asynchronous copies from global to shared memory (cp.async), 4, 8 or 16 bytes by each thread.
//
// A thread issues copies, closes them into a group with cp_async_commit(), and cp_async_wait<N>() waits until at most
// N of its youngest groups are under way. That makes its own copies visible to itself; the others' take a barrier
// after the wait. Of source_bytes < size the rest is filled with zeros, and 0 reads nothing: padding without a branch.
// Both addresses are aligned to the size. On the host, a copy takes place as late as the waits allow, and a thread
// that returns with copies under way is an error. Preconditions: destination in shared, source in global memory.
#pragma once

#include "gpu/cuda.cuh"

namespace rg::RG_GPU {

#ifdef __CUDACC__

#define RG_CP_ASYNC(size, cache)                                                                                       \
    __device__ __forceinline__ void cp_async_##size(void* shared, const void* global, int source_bytes = size) {       \
        asm volatile("cp.async." cache ".shared.global [%0], [%1], " #size                                             \
                     ", %2;" ::"r"(uint32_t(__cvta_generic_to_shared(shared))),                                        \
                     "l"(global), "r"(source_bytes)                                                                    \
                     : "memory");                                                                                      \
    }
// cg goes past the first-level cache, which only the 16-byte copy can.
RG_CP_ASYNC(4, "ca")
RG_CP_ASYNC(8, "ca")
RG_CP_ASYNC(16, "cg")
#undef RG_CP_ASYNC

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

#define RG_CP_ASYNC(size)                                                                                              \
    inline void cp_async_##size(void* shared, const void* global, int source_bytes = size,                             \
                                simt::Site site = simt::Site::here(__builtin_FILE(), __builtin_LINE())) {              \
        simt::async_copy(shared, global, size, source_bytes, site);                                                    \
    }
RG_CP_ASYNC(4)
RG_CP_ASYNC(8)
RG_CP_ASYNC(16)
#undef RG_CP_ASYNC

inline void cp_async_commit() { simt::async_commit(); }

template <int N>
void cp_async_wait() {
    static_assert(N >= 0);
    simt::async_wait(N);
}

#endif

} // namespace rg::RG_GPU
