// Downloads by way of page-locked memory: a series of copies is queued, and once the last has been waited for, all go
// to where they are wanted.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace rg::gpu {

class Landing {
public:
    /// Over page-locked memory of the caller's.
    Landing(void* memory, size_t bytes) : memory_(static_cast<std::byte*>(memory)), size_(bytes) {}

    /// Calls copy(landing), which queues a copy, to `to` itself where there is no room; then, unless more are to come,
    /// wait(), which waits for what is queued. If one of them throws, the series is given up: its other destinations
    /// may be gone by the next call.
    template <class Copy, class Wait>
    void download(void* to, size_t bytes, bool more, const Copy& copy, const Wait& wait) {
        try {
            const bool fits = bytes <= size_ - used_;
            void* const landing = fits ? memory_ + used_ : to;
            copy(landing);
            if (fits) landed_.push_back({to, landing, bytes}), used_ += bytes;
            if (more) return;
            wait();
        } catch (...) {
            clear();
            throw;
        }
        for (const Landed& l : landed_) std::memcpy(l.to, l.landing, l.bytes);
        clear();
    }

private:
    struct Landed {
        void *to, *landing;
        size_t bytes;
    };
    void clear() { landed_.clear(), used_ = 0; }

    std::byte* memory_;
    size_t size_, used_ = 0;
    std::vector<Landed> landed_; // that have not been waited for
};

} // namespace rg::gpu
