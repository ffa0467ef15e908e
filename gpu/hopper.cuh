// What Hopper GPUs (sm_90a) have beyond others: products by a warpgroup of operands in shared memory (wgmma), barriers
// in shared memory (mbarrier), linear copies of any length that report to them (cp.async.bulk).
//
// Operands. Products and bulk copies reach shared memory by a way of their own, the asynchronous proxy. Each thread
// that has stored an operand (store_operand) calls fence_proxy_async() before it tells others.
//
// Products. The 4 warps of a warpgroup (threads 128 i to 128 i + 127) call each of these together and with the same
// arguments: wgmma_fence(d), any number of wgmma(d, a, b) with d += a b, wgmma_commit(), wgmma_wait(d). Between fence
// and wait nothing else touches d, and what a and b describe does not change. a is 64 x 16, b 16 x N, bf16; with
// g = lane / 4 and t = lane % 4, the thread of that lane in warp w of its group has, of row 16 w + g + 8 i and column
// 8 j + 2 t + k, the sum d[4 j + 2 i + k].
//
// Descriptors name operands whose sum runs along 8 consecutive values ("K-major", no swizzle): an operand consists of
// pieces of 8 rows (of a; columns of b) x 8 values, 128 bytes in a row. `next_values` bytes lie between a piece and
// that of the next 8 values, `next_rows` between it and that of the next 8 rows. All of them are multiples of 16, so
// adding bytes / 16 to a descriptor moves the operand. (PTX ISA manual, "Matrix-Descriptor Format", leading and stride
// offset.)
//
// Barriers. One counts arrivals, and bytes that it has been told to expect, until all have come: a phase ends, and
// the next begins. mbarrier_wait(barrier, parity) waits until the phase of that parity, 0 being that of the first, is
// over; of a fresh barrier, the one before the first is, so waiting for parity 1 goes right on. Initialised by one
// thread, with a fence and __syncthreads() before others use it.
//
// On the host all this is modelled (tests/simt/async_proxy.h), but for registers that change hands. Below sm_90a there is
// nothing here but RG_HOPPER undefined.
#pragma once

#include "gpu/cuda.cuh"
#ifndef __CUDACC__
#include "tests/simt/hopper.h"
#endif

// Defined where the functions below exist: a kernel's body is within #ifdef RG_HOPPER.
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RG_HOPPER
#endif

namespace rg::RG_GPU {

#ifdef __CUDACC__
#ifdef RG_HOPPER

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return uint32_t(__cvta_generic_to_shared(shared));
}

/// 16 bytes, aligned, of an operand.
__device__ __forceinline__ void store_operand(void* shared, uint4 value) { *static_cast<uint4*>(shared) = value; }
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- barriers and bulk copies ----

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives, and has the phase last until as many bytes have been copied.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity) {
    uint32_t over;
    do
        asm volatile("{\n"
                     ".reg .pred over;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, over;\n"
                     "}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    while (!over);
}
/// Addresses and size are multiples of 16. The bytes are there when the barrier's phase is over.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, int bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// ---- products ----

// The compiler must not move what computes with d across the instructions that d is not an operand of.
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

#define RG_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RG_D16(i) RG_D4(i), RG_D4(i + 4), RG_D4(i + 8), RG_D4(i + 12)
__device__ __forceinline__ void wgmma(float (&d)[16], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, 0, 0;"
                 : RG_D16(0)
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
                 : RG_D16(0), RG_D16(16)
                 : "l"(a), "l"(b));
}
#undef RG_D4
#undef RG_D16

// ---- registers: of those of the block, a warpgroup gives back some, or takes more as soon as they are free ----

template <int N>
__device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
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
using simt::wgmma_wait;

inline void store_operand(void* shared, uint4 value,
                          simt::Site site = simt::Site::here(__builtin_FILE(), __builtin_LINE())) {
    *static_cast<uint4*>(shared) = value;
    simt::operand_stored(shared, site);
}
template <int N>
void keep_registers() {
    static_assert(N >= 24 && N <= 256 && N % 8 == 0);
}
template <int N>
void take_registers() {
    keep_registers<N>();
}

#endif

#ifdef RG_HOPPER
__device__ __forceinline__ uint64_t descriptor(const void* shared, int next_values, int next_rows) {
    return uint64_t(shared_address(shared) >> 4) | uint64_t(next_values >> 4) << 16 | uint64_t(next_rows >> 4) << 32;
}
#endif

} // namespace rg::RG_GPU
