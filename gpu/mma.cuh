// Tensor cores: products of small matrices whose elements are spread over the lanes of a warp.
//
// All 32 lanes call each function together. For lane l, let g = l / 4 and t = l % 4. The table gives the (row, column)
// of each element (PTX ISA manual, section "Matrix Fragments"). Two bf16 share a register; the one with the lower
// column (for B: the lower row) is in the lower half.
//
//   m16n8k16 bf16   A 16 x 16   a[0] (g, 2t..2t+1)   a[1] (g+8, 2t..)   a[2] (g, 2t+8..)   a[3] (g+8, 2t+8..)
//                   B 16 x 8    b[0] (2t..2t+1, g)   b[1] (2t+8..2t+9, g)
//                   D 16 x 8    d[0] (g, 2t)         d[1] (g, 2t+1)     d[2] (g+8, 2t)     d[3] (g+8, 2t+1)
//
// ldmatrix loads four 8 x 8 matrices of 16-bit elements. Lanes 8i to 8i+7 pass the addresses of the rows of matrix i.
// A row has 16 bytes and is aligned to 16. r[i] of lane l receives the elements (g, 2t) and (g, 2t+1) of matrix i, or
// with _trans the elements (2t, g) and (2t+1, g). So ldmatrix_x4 loads A from row-major memory, and ldmatrix_x4_trans
// loads B of two products from row-major memory.
//
// Sums are in f32. PTX does not specify the order of additions within one instruction, and the hardware truncates
// instead of rounding. Long sums therefore drift towards zero (Fasi et al., "Numerical behavior of NVIDIA tensor
// cores", 2021). The model of the executor (tests/simt/tensor_core.h) adds in double and truncates once.
#pragma once

#include "gpu/cuda.cuh"
#ifndef __CUDACC__
#include "tests/simt/tensor_core.h"
#endif

namespace rg::RG_GPU {

#ifdef __CUDACC__

/// Computes d += a b.
__device__ __forceinline__ void mma_bf16_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#define RG_LDMATRIX(name, suffix)                                                                                      \
    __device__ __forceinline__ void name(uint32_t(&r)[4], const void* shared_row) {                                    \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" suffix ".shared.b16 {%0,%1,%2,%3}, [%4];"                         \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                  \
                     : "r"(uint32_t(__cvta_generic_to_shared(shared_row)))                                             \
                     : "memory");                                                                                      \
    }
RG_LDMATRIX(ldmatrix_x4, "")
RG_LDMATRIX(ldmatrix_x4_trans, ".trans")
#undef RG_LDMATRIX

#else

using simt::ldmatrix_x4;
using simt::ldmatrix_x4_trans;
using simt::mma_bf16_16x8x16;

#endif

} // namespace rg::RG_GPU
