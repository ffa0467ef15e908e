// Downloads through pinned memory. The device first copies a series of values into pinned memory. After one wait for
// all of these copies, the host copies each value from pinned memory to its destination.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace rg::gpu {

class PinnedDownloads {
public:
    /// The pinned memory belongs to the caller and must outlive this object.
    PinnedDownloads(void* memory, size_t bytes) : memory_(static_cast<std::byte*>(memory)), size_(bytes) {}

    /// Calls copy(destination) to queue a copy into pinned memory, or directly into `to` if too little pinned memory is
    /// left. With `more`, returns then. Otherwise, calls wait(), which blocks until all queued copies are done. Then
    /// fills the destinations of all downloads since the last wait. If copy() or wait() throws, drops these downloads,
    /// since their destinations may not exist any more at the next call.
    template <class Copy, class Wait>
    void download(void* to, size_t bytes, bool more, const Copy& copy, const Wait& wait) {
        try {
            const bool fits = bytes <= size_ - used_;
            void* const destination = fits ? memory_ + used_ : to;
            copy(destination);
            if (fits) queued_.push_back({to, destination, bytes}), used_ += bytes;
            if (more) return;
            wait();
        } catch (...) {
            clear();
            throw;
        }
        for (const Queued& q : queued_) std::memcpy(q.to, q.pinned, q.bytes);
        clear();
    }

private:
    struct Queued {
        void *to, *pinned;
        size_t bytes;
    };
    void clear() { queued_.clear(), used_ = 0; }

    std::byte* memory_;
    size_t size_, used_ = 0;
    std::vector<Queued> queued_; // copies into pinned memory since the last wait
};

} // namespace rg::gpu
