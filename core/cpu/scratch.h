// Memory that a kernel needs for the length of one call, kept by the thread and reused by the next call.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace rg::cpu {

/// An aligned array of floats that only grows. Contents are undefined after ensure().
class Scratch {
public:
    float* ensure(int64_t count) {
        if (count > capacity_) {
            const size_t bytes = (size_t(count) * sizeof(float) + 63) / 64 * 64;
            memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
            capacity_ = memory_ ? count : 0;
            if (!memory_) throw std::bad_alloc();
        }
        return memory_.get();
    }

private:
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    std::unique_ptr<float, Free> memory_;
    int64_t capacity_ = 0;
};

} // namespace rg::cpu
