// The shared memory of the running block: an arena that makes faults visible.
//
// Arrays are laid out one after the other with a redzone on either side. At the start of each block, all bytes are set
// to 0xFF, which is NaN as float, double and bf16. A read of a value that was never written, that another block left,
// or beyond the end of an array therefore gives NaN. AddressSanitizer knows the redzones. Without it, their contents
// are checked at every barrier and at the end of the block, and an access that skips a redzone is not detected.
// Accesses from one part of the dynamic memory into the next are never detected.
#pragma once

#include "tests/simt/executor.h"

#include <type_traits>

namespace rg::simt {

class SharedArena {
public:
    static constexpr size_t kStaticLimit = 48 << 10; // limit for static shared memory
    static constexpr size_t kTotalLimit = 227 << 10; // limit of an H100
    static constexpr size_t kRedzone = 256;

    SharedArena();
    ~SharedArena();

    /// Drops all arrays and begins a block with `dynamic_bytes` of dynamic shared memory.
    void start_block(size_t dynamic_bytes);
    /// Returns the array with this key. The first call creates it; all threads of the block share it.
    std::byte* array(const void* key, const char* name, size_t bytes, Site site);
    std::byte* dynamic(const char* name);
    bool contains(const void* memory, size_t bytes) const;
    /// Start of the arena. Descriptors count offsets from here.
    std::byte* begin() const { return memory_; }
    /// Describes writes outside of the arrays. Returns an empty text if there were none.
    std::string damage() const;

private:
    struct Array {
        const void* key;
        const char* name;
        size_t begin, bytes;
    };
    Array& add(const void* key, const char* name, size_t bytes);

    std::vector<std::byte> storage_;
    std::byte* memory_; // within storage_, aligned
    std::vector<Array> arrays_;
    size_t used_ = 0;
    size_t static_bytes_ = 0;
};

std::byte* shared_bytes(const void* key, const char* name, size_t bytes, Site site);
std::byte* dynamic_shared_bytes(const char* name);
bool in_shared(const void* memory, size_t bytes);

template <class T>
T& shared_array(const void* key, const char* name, Site site = Site::here()) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 16);
    return *reinterpret_cast<T*>(shared_bytes(key, name, sizeof(T), site));
}

} // namespace rg::simt
