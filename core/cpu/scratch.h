// Memory that a kernel needs for the length of a call.
//
// Each thread has a stack of large chunks; a Scratch takes a piece and gives it back when it goes out of scope. From
// the second training step on the chunks are there, so that nothing is allocated, and what a kernel takes first is
// what the kernel before gave back last: still in cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rg::cpu {

namespace scratch_stack {
/// A piece of at least `bytes`, aligned to 64. Pieces are given back in the opposite order.
void* take(size_t bytes);
void give_back(void* piece);
} // namespace scratch_stack

/// An array of `count` values, uninitialised, for the scope that it is declared in and the threads that work for it.
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
    T* zeroed() const {
        std::memset(static_cast<void*>(data_), 0, size_t(count_) * sizeof(T));
        return data_;
    }

private:
    T* data_;
    int64_t count_;
};

} // namespace rg::cpu
