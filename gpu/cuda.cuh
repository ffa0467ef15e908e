// Lets both nvcc and a plain C++20 compiler compile the kernel files (.cu), which all include this file. nvcc compiles
// them for GPUs. For tests, a C++20 compiler compiles all of them except device.cu for the executor in tests/simt. The
// executor runs kernels thread by thread on the CPU and reports faults; it is too slow for training.
//
// Differences from plain CUDA, so that both compilers accept the source:
//   SHARED(type, name, count)        instead of `__shared__ type name[count]`
//   DYNAMIC_SHARED(type, name)       instead of `extern __shared__ type name[]`
//   RG_LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...)   instead of triple brackets
//   inline PTX only in bf16.cuh, hopper.cuh and mma.cuh, whose functions also have a version in C++ for the executor
// Each call of a shuffle passes an explicit mask. No kernel may rely on the lanes of a warp running in lock-step. A
// thread returns before a barrier only if its whole block does. simt::run_in_every_order() (tests/simt/executor.h)
// repeats a kernel in several orders of threads.
#pragma once

#include "core/base.h"

// Tests link both builds of the kernels into one program, so each build has its own namespace.
#ifdef __CUDACC__
#define RG_GPU gpu
#else
#define RG_GPU gpu_on_host
#endif

// Launches a kernel. Throws Error with the kernel's name if the launch fails. With RG_SYNC=1 in the environment,
// RG_LAUNCH also waits for the kernel, so that the launch that caused a fault reports it. A kernel template with commas
// needs parentheses: RG_LAUNCH((kernel<float, 4>), ...).
#define RG_LAUNCH(kernel, ...) ::rg::RG_GPU::launch(kernel, #kernel, __VA_ARGS__)

// With nvcc, unrolls the loop that follows. Loops over arrays in registers need this: registers have no addresses, so
// each index must be a constant. RG_UNROLL_4 unrolls by 4, so that the loads of 4 iterations are in flight together.
// RG_NO_UNROLL keeps a loop that, unrolled, would take too many registers.
#ifdef __CUDACC__
#define RG_UNROLL _Pragma("unroll")
#define RG_UNROLL_4 _Pragma("unroll 4")
#define RG_NO_UNROLL _Pragma("unroll 1")
#else
#define RG_UNROLL
#define RG_UNROLL_4
#define RG_NO_UNROLL
#endif

#ifndef __CUDACC__
#include "tests/simt/simt.h"
#else

#include "core/text.h"
#include "gpu/deadline.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#define SHARED(type, name, count) __shared__ alignas(16) type name[count]
// Declares an array of bytes and casts it to `type`. All kernels of a file share the extern array, so it must have the
// same type in each. Its alignment of 128 bytes is more than any kernel needs; bulk copies and descriptors
// (hopper.cuh) need 16.
#define DYNAMIC_SHARED(type, name)                                                                                     \
    extern __shared__ __align__(128) unsigned char rg_dynamic_shared[];                                                \
    type* const name = reinterpret_cast<type*>(rg_dynamic_shared)

namespace rg::RG_GPU {

/// Returns true for errors that CUDA then returns to every later call of the process.
inline bool is_device_lost(cudaError_t status) {
    return status == cudaErrorIllegalAddress || status == cudaErrorLaunchTimeout || status == cudaErrorAssert ||
           status == cudaErrorECCUncorrectable || status == cudaErrorNvlinkUncorrectable ||
           (status >= cudaErrorHardwareStackError && status <= cudaErrorLaunchFailure);
}

inline void check_launch(cudaError_t status, const char* name, const char* action, dim3 grid, dim3 block,
                         size_t shared_bytes) {
    if (is_device_lost(status)) throw DeviceLost(cat(name, ": ", action, ": ", cudaGetErrorString(status)));
    RG_CHECK(status == cudaSuccess, name, ": ", action, ": ", cudaGetErrorString(status), " (grid ", grid.x, " x ",
             grid.y, " x ", grid.z, ", block ", block.x, " x ", block.y, " x ", block.z, ", ", shared_bytes,
             " bytes of dynamic shared memory)");
}

/// Returns true if RG_SYNC is set to anything but 0 or the empty string.
inline bool synchronous_launches() {
    static const bool enabled = [] {
        const char* const value = std::getenv("RG_SYNC");
        return value && std::strcmp(value, "0") != 0 && *value != '\0';
    }();
    return enabled;
}

/// Waits until query() returns another status than cudaErrorNotReady, and returns that status. After 120 s, or the
/// seconds in RG_DEADLINE_S, prints an error text with `what` and ends the process: nothing else stops a kernel that
/// hangs, and even freeing memory would wait for it.
template <class Query>
cudaError_t wait_for_gpu(const char* what, Query query) {
    const char* const limit = std::getenv("RG_DEADLINE_S");
    double seconds = 0;
    if (!limit || !read_number(limit, seconds) || !(seconds > 0)) seconds = 120;
    cudaError_t status = cudaSuccess;
    if (gpu::ends_within(seconds, [&] { return (status = query()) != cudaErrorNotReady; })) return status;
    const std::string error =
        cat("error: ", what, ": expected it to end, got nothing in ", seconds, " s; RG_DEADLINE_S sets the limit; ",
            "to get the name of a kernel, set RG_SYNC=1; RG_GPU_KERNELS=portable avoids the kernels for Hopper GPUs\n");
    std::fputs(error.c_str(), stderr);
    std::fflush(nullptr);
    std::_Exit(1);
}

template <class... P>
void launch(void (*kernel)(P...), const char* name, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            std::type_identity_t<P>... args) {
    const auto check = [&](cudaError_t status, const char* action) {
        check_launch(status, name, action, grid, block, shared_bytes);
    };
    // Without cudaFuncSetAttribute(), a kernel gets at most 48 KiB of shared memory, static and dynamic together. The
    // call sets the limit of the kernel on this GPU for all threads. So it is made only for a launch that needs more
    // than all earlier ones of all threads, and a capture of launches that have all run before does not make it.
    int gpu = 0;
    check(cudaGetDevice(&gpu), "cudaGetDevice");
    {
        static std::mutex mutex;
        static std::map<std::pair<int, const void*>, size_t> granted;
        const std::lock_guard lock(mutex);
        size_t& limit = granted[{gpu, reinterpret_cast<const void*>(kernel)}];
        if (shared_bytes > limit) {
            check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)),
                  "shared memory");
            limit = shared_bytes;
        }
    }
    kernel<<<grid, block, shared_bytes, stream>>>(args...);
    check(cudaGetLastError(), "launch");
    if (synchronous_launches()) check(wait_for_gpu(name, [&] { return cudaStreamQuery(stream); }), "run");
}

} // namespace rg::RG_GPU
#endif
