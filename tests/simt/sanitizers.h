// Which sanitizers this build has, and the parts of their interfaces that the executor uses; no-ops without them.
//
// The executor's own library is compiled without instrumentation: its work on behalf of a fiber is no access of that
// fiber's, and takes most of the time of a test. So the compiler's own macros cannot tell, and the build defines
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

// What happened before a release() of an address happened before what comes after an acquire() of it.
#ifdef RG_SIMT_TSAN
inline constexpr bool kTsan = true;
inline void release(void* address) { __tsan_release(address); }
inline void acquire(void* address) { __tsan_acquire(address); }
inline void note_read(const void* memory, size_t bytes) { __tsan_read_range(const_cast<void*>(memory), bytes); }
inline void note_write(void* memory, size_t bytes) { __tsan_write_range(memory, bytes); }
/// Within its scope, what the C library does for the executor (memory, copies) is no access of the fiber's either.
struct OwnAccesses {
    OwnAccesses() { __tsan_ignore_thread_begin(); }
    ~OwnAccesses() { __tsan_ignore_thread_end(); }
};
/// Within that of one of those: accesses of the fiber's after all.
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
