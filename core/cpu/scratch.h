// Provides scratch memory for the duration of a kernel call.
//
// Each thread has a stack of large chunks of memory. A Scratch takes a block from the stack and returns the block at
// the end of its scope. After the first training steps, the chunks are large enough and nothing is allocated. A kernel
// reuses the memory of the kernel before it, which may still be in cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rg::cpu {

namespace scratch_stack {
/// Returns a block of at least `bytes` bytes, aligned to 64 bytes. A thread must return its blocks in reverse order.
/// Throws Error if there is not enough memory.
void* take(size_t bytes);
/// Returns a block to the stack. It must be the block that the thread has taken last and not yet returned. Throws Error
/// if `block` is not in use, or lies in another chunk than the last one.
void give_back(void* block);
} // namespace scratch_stack

/// Holds an uninitialised array of `count` values. Other threads may use the array too, until the end of the scope. The
/// arrays of a thread are a stack. So in a class, the order of members of type Scratch matters, and a Scratch cannot be
/// moved.
template <class T>
class Scratch {
public:
    explicit Scratch(int64_t count)
        : data_(static_cast<T*>(scratch_stack::take(size_t(count) * sizeof(T)))), count_(count) {}
    ~Scratch() { scratch_stack::give_back(data_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    T* data() const { return data_; }
    operator T*() const { return data_; }
    /// Sets all values to zero and returns data().
    T* zeroed() const {
        std::memset(static_cast<void*>(data_), 0, size_t(count_) * sizeof(T));
        return data_;
    }

private:
    T* data_;
    int64_t count_;
};

} // namespace rg::cpu
