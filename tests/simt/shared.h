// The shared memory of the block that is running: an arena that makes mistakes visible.
//
// Arrays are laid out one after the other with a redzone on either side. At the start of each block everything is
// filled with 0xFF bytes, which are NaN as float, double and bf16: a value that was never written, left by another
// block or read from beyond an array's end spoils the result. AddressSanitizer is told of the redzones; without it,
// their contents are compared at every barrier and at the end of the block, and an access that leaps over a redzone
// is not seen. Nor is one, with or without it, from one part of the dynamic memory into the next.
#pragma once

#include "tests/simt/executor.h"

#include <type_traits>

namespace rg::simt {

class SharedArena {
public:
    static constexpr size_t kStaticLimit = 48 << 10; // what a GPU gives without being asked
    static constexpr size_t kTotalLimit = 227 << 10; // what an H100 gives at most
    static constexpr size_t kRedzone = 256;

    SharedArena();
    ~SharedArena();

    /// Forgets all arrays; the block has `dynamic_bytes`.
    void start_block(size_t dynamic_bytes);
    /// The array that `key` stands for, which is the same for all threads of the block.
    std::byte* array(const void* key, const char* name, size_t bytes, Site site);
    std::byte* dynamic(const char* name);
    bool contains(const void* memory, size_t bytes) const;
    /// All of it, to number its bytes from.
    std::byte* begin() const { return memory_; }
    /// Text of what was written outside the arrays; empty if nothing was.
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
