// Implements allocations.h. It is a separate file because the compiler must not inline new and delete at their uses.
#include "tests/allocations.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RG_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(RG_SANITIZED)

long rg::allocations() { return -1; }

#else

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> count{0};
}

long rg::allocations() { return count; }

void* operator new(size_t size) {
    ++count;
    if (void* p = std::malloc(size ? size : 1)) return p;
    throw std::bad_alloc();
}
void* operator new(size_t size, std::align_val_t align) {
    ++count;
    void* p = nullptr;
    if (posix_memalign(&p, size_t(align), size) == 0) return p;
    throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

#endif
