// Downloads through pinned memory. A series of copies into pinned memory is queued. After one wait for all of them,
// each value is copied on to its destination.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace rg::gpu {

class Landing {
public:
    /// The pinned memory belongs to the caller and must outlive this object.
    Landing(void* memory, size_t bytes) : memory_(static_cast<std::byte*>(memory)), size_(bytes) {}

    /// Calls copy(landing) to queue a copy into pinned memory, or directly into `to` if the pinned memory is full. With
    /// `more`, returns at once. Otherwise, calls wait(), which blocks until all queued copies are done, and then fills
    /// all destinations of the series. If copy() or wait() throws, drops the whole series, since its destinations may
    /// not exist any more at the next call.
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
    std::vector<Landed> landed_; // queued copies
};

} // namespace rg::gpu
