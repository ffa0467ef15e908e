// The language of kernel files. A .cu file is written in CUDA C++ and includes this for it: nvcc compiles it for GPUs,
// and any C++20 compiler compiles the same text for the executor in tests/simt, which runs it thread by thread on the
// CPU and reports what is wrong with it. That is a test oracle, never a way to train.
//
// What differs from plain CUDA, so that one text serves both:
//   SHARED(type, name, count)        instead of `__shared__ type name[count]`
//   DYNAMIC_SHARED(type, name)       instead of `extern __shared__ type name[]`
//   RG_LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...)   instead of triple brackets
//   inline PTX only in bf16.cuh, hopper.cuh and mma.cuh, where each function has a model for the host
// Masks of warp functions are always written out, and nothing may rely on lanes that run in lock-step. All threads of a
// block stay until its last barrier. A test launches within simt::run_in_every_order(), which see.
#pragma once

#include "core/base.h"

// Both makes of the kernels may be in one program (tests), so each has a namespace of its own.
#ifdef __CUDACC__
#define RG_GPU gpu
#else
#define RG_GPU gpu_on_host
#endif

// Launches, and throws Error with the kernel's name if that fails. With RG_SYNC=1 in the environment it also waits for
// the kernel, so that a fault within it is reported by its own launch. A template's commas need parentheses:
// RG_LAUNCH((kernel<float, 4>), ...).
#define RG_LAUNCH(kernel, ...) ::rg::RG_GPU::launch(kernel, #kernel, __VA_ARGS__)

// Before a loop over an array that is to live in registers: they have no addresses, so each index must be a constant.
#ifdef __CUDACC__
#define RG_UNROLL _Pragma("unroll")
#else
#define RG_UNROLL
#endif

#ifndef __CUDACC__
#include "tests/simt/simt.h"
#else

#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <type_traits>

#define SHARED(type, name, count) __shared__ alignas(16) type name[count]
// One name for all kernels of a file, or their types would be in conflict. 128: what swizzled rows need.
#define DYNAMIC_SHARED(type, name)                                                                                     \
    extern __shared__ __align__(128) unsigned char rg_dynamic_shared[];                                                \
    type* const name = reinterpret_cast<type*>(rg_dynamic_shared)

namespace rg::RG_GPU {

inline void check_launch(cudaError_t status, const char* name, const char* what, dim3 grid, dim3 block,
                         size_t shared_bytes) {
    RG_CHECK(status == cudaSuccess, name, ": ", what, ": ", cudaGetErrorString(status), " (grid ", grid.x, " x ",
             grid.y, " x ", grid.z, ", block ", block.x, " x ", block.y, " x ", block.z, ", ", shared_bytes,
             " bytes of dynamic shared memory)");
}

inline bool synchronous_launches() {
    static const bool wanted = [] {
        const char* const value = std::getenv("RG_SYNC");
        return value && std::strcmp(value, "0") != 0 && *value != '\0';
    }();
    return wanted;
}

template <class... P>
void launch(void (*kernel)(P...), const char* name, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            std::type_identity_t<P>... args) {
    const auto check = [&](cudaError_t status, const char* what) {
        check_launch(status, name, what, grid, block, shared_bytes);
    };
    // Beyond 48 KiB, static and dynamic together, a kernel has to ask.
    if (shared_bytes)
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)),
              "shared memory");
    kernel<<<grid, block, shared_bytes, stream>>>(args...);
    check(cudaGetLastError(), "launch");
    if (synchronous_launches()) check(cudaStreamSynchronize(stream), "run");
}

} // namespace rg::RG_GPU
#endif
