// Scratch memory as a stack over chunks of 32 MiB or more. Allocations are given back in reverse order.
//
// Every op finds the stack empty and begins at the first chunk. So an op that runs again with the same sizes gets the
// same addresses, and allocates no new chunk. The capture of a CUDA graph needs this: it must not allocate memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace rg::gpu {

class ScratchStack {
public:
    using Allocate = std::function<void*(size_t bytes)>; // returns memory aligned to 256 bytes
    using Free = std::function<void(void*)>;
    ScratchStack(Allocate allocate, Free free) : allocate_(std::move(allocate)), free_(std::move(free)) {}
    ~ScratchStack() {
        for (const Chunk& c : chunks_) free_(c.memory);
    }
    ScratchStack(const ScratchStack&) = delete;
    ScratchStack& operator=(const ScratchStack&) = delete;

    /// Returns memory aligned to 256 bytes.
    void* take(size_t bytes) {
        bytes = (bytes + kAlign - 1) / kAlign * kAlign;
        size_t chunk = allocations_.empty() ? 0 : allocations_.back().chunk;
        while (chunk < chunks_.size() && chunks_[chunk].used + bytes > chunks_[chunk].size) ++chunk;
        if (chunk == chunks_.size()) {
            const size_t size = std::max(bytes, kChunk);
            chunks_.push_back({allocate_(size), size, 0});
        }
        Chunk& c = chunks_[chunk];
        allocations_.push_back({chunk, c.used});
        c.used += bytes;
        return static_cast<std::byte*>(c.memory) + allocations_.back().offset;
    }
    /// Gives back the latest allocation that is still in use.
    void give_back() {
        chunks_[allocations_.back().chunk].used = allocations_.back().offset;
        allocations_.pop_back();
    }

private:
    static constexpr size_t kAlign = 256, kChunk = size_t{32} << 20;
    struct Chunk {
        void* memory;
        size_t size, used;
    };
    struct Allocation {
        size_t chunk, offset;
    };
    Allocate allocate_;
    Free free_;
    std::vector<Chunk> chunks_;
    std::vector<Allocation> allocations_;
};

} // namespace rg::gpu
