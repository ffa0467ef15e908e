// Host model of gpu/hopper.cuh, which documents these functions.
#pragma once

#include "tests/simt/executor.h"

namespace rg::simt {

#define RG_SIMT_HERE Site site = Site::here(__builtin_FILE(), __builtin_LINE())

/// Returns the offset of a byte within shared memory, for descriptors.
uint32_t shared_address(const void* shared, RG_SIMT_HERE);

/// Records that the running thread has stored 16 bytes of an operand.
void operand_stored(const void* shared, Site site);
void fence_proxy_async();

void mbarrier_init(uint64_t* barrier, int arrivals, RG_SIMT_HERE);
void mbarrier_arrive(uint64_t* barrier, RG_SIMT_HERE);
void mbarrier_arrive_expect(uint64_t* barrier, int bytes, RG_SIMT_HERE);
void mbarrier_wait(uint64_t* barrier, int parity, RG_SIMT_HERE);
void bulk_copy(void* shared, const void* global, int bytes, uint64_t* barrier, RG_SIMT_HERE);

// `values` is the number of sums that each thread holds: half the number of columns of b.
void products_fence(Site site);
void add_product(float* d, int values, bool transposed, uint64_t a, uint64_t b, Site site);
void products_commit(Site site);
void products_wait(Site site);

template <int K>
void wgmma_fence(float (&)[K], RG_SIMT_HERE) {
    products_fence(site);
}
template <int K>
void wgmma(float (&d)[K], uint64_t a, uint64_t b, RG_SIMT_HERE) {
    static_assert(K == 16 || K == 32 || K == 64); // the sizes that hopper.cuh implements
    add_product(d, K, false, a, b, site);
}
template <int K>
void wgmma_transposed(float (&d)[K], uint64_t a, uint64_t b, RG_SIMT_HERE) {
    static_assert(K == 4 || K == 16 || K == 32 || K == 48 || K == 64 || K == 96);
    add_product(d, K, true, a, b, site);
}
inline void wgmma_commit(RG_SIMT_HERE) { products_commit(site); }
template <int K>
void wgmma_wait(float (&)[K], RG_SIMT_HERE) {
    products_wait(site);
}

#undef RG_SIMT_HERE

} // namespace rg::simt
