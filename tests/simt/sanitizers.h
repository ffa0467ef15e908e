// Wraps the sanitizer interfaces that the executor uses. Without a sanitizer, the functions are no-ops.
//
// The executor's library is compiled without instrumentation. Its work on behalf of a fiber is not an access by that
// fiber, and takes most of a test's time. The compiler's macros are therefore not set there, so the build defines
// RG_SIMT_ASAN or RG_SIMT_TSAN.
#pragma once

#include <cstddef>

#ifdef RG_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef RG_SIMT_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
}
#endif

namespace rg::simt {

#ifdef RG_SIMT_ASAN
inline constexpr bool kAsan = true;
inline void poison(const void* memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
inline void unpoison(const void* memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
inline constexpr bool kAsan = false;
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
#endif

// Accesses before a release() of an address happen before accesses after an acquire() of the same address.
#ifdef RG_SIMT_TSAN
inline constexpr bool kTsan = true;
inline void release(void* address) { __tsan_release(address); }
inline void acquire(void* address) { __tsan_acquire(address); }
inline void note_read(const void* memory, size_t bytes) { __tsan_read_range(const_cast<void*>(memory), bytes); }
inline void note_write(void* memory, size_t bytes) { __tsan_write_range(memory, bytes); }
/// Within its scope, ThreadSanitizer ignores memory accesses. The executor needs this for calls of the C library, which
/// ThreadSanitizer intercepts (allocation, copies).
struct OwnAccesses {
    OwnAccesses() { __tsan_ignore_thread_begin(); }
    ~OwnAccesses() { __tsan_ignore_thread_end(); }
};
/// Within an OwnAccesses scope, makes accesses count as the fiber's again.
struct FiberAccesses {
    FiberAccesses() { __tsan_ignore_thread_end(); }
    ~FiberAccesses() { __tsan_ignore_thread_begin(); }
};
#else
inline constexpr bool kTsan = false;
inline void release(void*) {}
inline void acquire(void*) {}
inline void note_read(const void*, size_t) {}
inline void note_write(void*, size_t) {}
struct OwnAccesses {
    OwnAccesses() {}
};
struct FiberAccesses {
    FiberAccesses() {}
};
#endif

} // namespace rg::simt
