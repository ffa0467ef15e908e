// Instructions for kernels on Hopper GPUs (sm_90a): matrix products by a warpgroup with operands in shared memory
// (wgmma), barriers in shared memory (mbarrier), copies that signal such a barrier (cp.async.bulk), and the division of
// registers among warpgroups (setmaxnreg).
//
// Operands. Products and bulk copies access shared memory through the asynchronous proxy. A thread that has stored part
// of an operand (store_operand) must call fence_proxy_async() before it signals other threads.
//
// Products. The 4 warps of a warpgroup (threads 128 i to 128 i + 127) call these functions together, with the same a
// and b: wgmma_fence(d), any number of wgmma(d, a, b), wgmma_commit(), wgmma_wait(d). wgmma computes d += a b. Between
// fence and wait, nothing else may access d, and the operands must not change. a is 64 x 16 and b is 16 x N, both bf16;
// d holds 64 x N sums in f32, N / 2 per thread. Let g = lane / 4 and t = lane % 4. A thread in warp w of its warpgroup
// holds the sum of row 16 w + g + 8 i and column 8 j + 2 t + k in d[4 j + 2 i + k]. wgmma_transposed does the same, but
// reads transposed operands.
//
// Descriptors describe operands without swizzle. An operand consists of core matrices of 8 rows (for b: 8 columns) x 8
// values of the summed dimension, each 128 consecutive bytes. For wgmma, operands are K-major: 8 consecutive values
// belong to a row. For wgmma_transposed, they are MN-major: 8 consecutive values belong to 8 rows, with the same index
// in the summed dimension. Either way, a core matrix and the one of the next 8 values of the summed dimension are
// `next_values` bytes apart, and a core matrix and the one of the next 8 rows are `next_rows` bytes apart. Addresses
// and distances are multiples of 16, so adding bytes / 16 to a descriptor moves the operand. (PTX ISA manual,
// "Matrix-Descriptor Format" and "Strides": leading and stride offset. With swizzle, MN-major operands exchange them.)
//
// Barriers. A phase of a barrier ends when all arrivals and all expected bytes have come; then the next phase begins.
// mbarrier_wait(barrier, parity) blocks until the phase of that parity has ended; the first phase has parity 0. On a
// new barrier, waiting for parity 1 returns at once, as if a phase before the first had ended. One thread initialises a
// barrier and calls fence_proxy_async(). Then the whole block calls __syncthreads(), before other threads use the
// barrier.
//
// tests/simt/hopper.h models these functions on the host. There, changing the number of registers has no effect. When
// nvcc compiles for other GPUs, this file defines nothing, not even RG_HOPPER.
#pragma once

#include "gpu/cuda.cuh"
#ifndef __CUDACC__
#include "tests/simt/hopper.h"
#endif

// Defined if the functions below exist. Code that uses them must be within #ifdef RG_HOPPER.
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RG_HOPPER
#endif

namespace rg::RG_GPU {

/// Registers per thread at the launch of a block of 3 warpgroups, if an SM runs one such block.
constexpr int kRegisters = 168;

#ifdef __CUDACC__
#ifdef RG_HOPPER

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return uint32_t(__cvta_generic_to_shared(shared));
}

/// Stores 16 bytes of an operand, aligned to 16 bytes.
__device__ __forceinline__ void store_operand(void* shared, uint4 value) { *static_cast<uint4*>(shared) = value; }
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- barriers and bulk copies ----

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives at the barrier, and adds `bytes` to the number of bytes that bulk copies must bring before the phase ends.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity) {
    uint32_t ended;
    do
        asm volatile("{\n"
                     ".reg .pred over;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, over;\n"
                     "}"
                     : "=r"(ended)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    while (!ended);
}
/// Starts a copy from global to shared memory. The current phase of the barrier cannot end before the copy is complete,
/// if mbarrier_arrive_expect() was called with its bytes. Addresses and size are multiples of 16.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, int bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// ---- products ----

// The fence and wait instructions do not name d as an operand. So pin() keeps the compiler from moving computations
// with d across these instructions.
template <int K>
__device__ __forceinline__ void pin(float (&d)[K]) {
    RG_UNROLL
    for (int i = 0; i < K; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int K>
__device__ __forceinline__ void wgmma_fence(float (&d)[K]) {
    pin(d);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int K>
__device__ __forceinline__ void wgmma_wait(float (&d)[K]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(d);
}

// Parts of the asm text and of the operands below. RG_TEN(t) is "%t0,%t1,...,%t9,", where t may be empty.
#define RG_TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define RG_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RG_D16(i) RG_D4(i), RG_D4(i + 4), RG_D4(i + 8), RG_D4(i + 12)
// Defines the function for b with `columns` columns. The text `sums` names the operands of d, which the last arguments
// list. a_and_b names the operands after them.
#define RG_WGMMA(name, columns, sums, a_and_b, transposed, ...)                                                        \
    __device__ __forceinline__ void name(float(&d)[columns / 2], uint64_t a, uint64_t b) {                             \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" sums "}, " a_and_b             \
                     ", 1, 1, 1, " #transposed ", " #transposed ";"                                                    \
                     : __VA_ARGS__                                                                                     \
                     : "l"(a), "l"(b));                                                                                \
    }
#define RG_SUMS_16 RG_TEN() "%10,%11,%12,%13,%14,%15"
#define RG_SUMS_32 RG_TEN() RG_TEN(1) RG_TEN(2) "%30,%31"
#define RG_SUMS_64 RG_TEN() RG_TEN(1) RG_TEN(2) RG_TEN(3) RG_TEN(4) RG_TEN(5) "%60,%61,%62,%63"
RG_WGMMA(wgmma, 32, RG_SUMS_16, "%16, %17", 0, RG_D16(0))
RG_WGMMA(wgmma, 64, RG_SUMS_32, "%32, %33", 0, RG_D16(0), RG_D16(16))
RG_WGMMA(wgmma, 128, RG_SUMS_64, "%64, %65", 0, RG_D16(0), RG_D16(16), RG_D16(32), RG_D16(48))
RG_WGMMA(wgmma_transposed, 8, "%0,%1,%2,%3", "%4, %5", 1, RG_D4(0))
RG_WGMMA(wgmma_transposed, 32, RG_SUMS_16, "%16, %17", 1, RG_D16(0))
RG_WGMMA(wgmma_transposed, 64, RG_SUMS_32, "%32, %33", 1, RG_D16(0), RG_D16(16))
RG_WGMMA(wgmma_transposed, 96, RG_TEN() RG_TEN(1) RG_TEN(2) RG_TEN(3) "%40,%41,%42,%43,%44,%45,%46,%47", "%48, %49", 1,
         RG_D16(0), RG_D16(16), RG_D16(32))
RG_WGMMA(wgmma_transposed, 128, RG_SUMS_64, "%64, %65", 1, RG_D16(0), RG_D16(16), RG_D16(32), RG_D16(48))
RG_WGMMA(wgmma_transposed, 192,
         RG_TEN() RG_TEN(1) RG_TEN(2) RG_TEN(3) RG_TEN(4) RG_TEN(5) RG_TEN(6) RG_TEN(7)
             RG_TEN(8) "%90,%91,%92,%93,%94,%95",
         "%96, %97", 1, RG_D16(0), RG_D16(16), RG_D16(32), RG_D16(48), RG_D16(64), RG_D16(80))
#undef RG_SUMS_64
#undef RG_SUMS_32
#undef RG_SUMS_16
#undef RG_WGMMA
#undef RG_TEN
#undef RG_D4
#undef RG_D16

// ---- registers ----

/// Sets the registers per thread of a warpgroup to N. The block's pool gets the others.
/// If N is more than at the launch, blocks until the pool has enough.
template <int N>
__device__ __forceinline__ void set_registers() {
    if constexpr (N > kRegisters)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
#else

using simt::bulk_copy;
using simt::fence_proxy_async;
using simt::mbarrier_arrive;
using simt::mbarrier_arrive_expect;
using simt::mbarrier_init;
using simt::mbarrier_wait;
using simt::shared_address;
using simt::wgmma;
using simt::wgmma_commit;
using simt::wgmma_fence;
using simt::wgmma_transposed;
using simt::wgmma_wait;

inline void store_operand(void* shared, uint4 value,
                          simt::Site site = simt::Site::here(__builtin_FILE(), __builtin_LINE())) {
    *static_cast<uint4*>(shared) = value;
    simt::operand_stored(shared, site);
}
template <int N>
void set_registers() {
    static_assert(N >= 24 && N <= 256 && N % 8 == 0);
}

#endif

#ifdef RG_HOPPER
/// All lanes of a warp call this together. The barrier counts one arrival, which follows all that the lanes did before.
__device__ __forceinline__ void mbarrier_arrive_warp(uint64_t* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}
/// The barriers of a ring of stages in shared memory. full[i] tells consumers that stage i is loaded, and empty[i]
/// tells producers that it is free again.
struct StageBarriers {
    uint64_t *full, *empty;
    /// Initialises the barriers. One thread calls this. A phase of full[i] ends after `full_arrivals` arrivals, one of
    /// empty[i] after `empty_arrivals`.
    __device__ __forceinline__ void init(int stages, int full_arrivals, int empty_arrivals) const {
        for (int i = 0; i < stages; ++i)
            mbarrier_init(full + i, full_arrivals), mbarrier_init(empty + i, empty_arrivals);
    }
};

/// A position in a ring of stages. `parity` changes with each round. Consumers wait for the phase `parity` of
/// full[index], and producers for the phase parity ^ 1 of empty[index].
struct PipelineState {
    int size, index = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++index == size) index = 0, parity ^= 1;
    }
};

__device__ __forceinline__ uint64_t descriptor(const void* shared, int next_values, int next_rows) {
    const auto field = [](int bytes) { return uint64_t(bytes >> 4 & 0x3fff); };
    return field(int(shared_address(shared))) | field(next_values) << 16 | field(next_rows) << 32;
}
#endif

} // namespace rg::RG_GPU
