// Scratch memory as a stack over large chunks: pieces are given back in the opposite order.
//
// Every op finds the stack empty and begins at the first chunk, so the same ops in the same order get the same places:
// what has run once allocates nothing when it runs again, which a CUDA graph must not while it is captured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rg::gpu {

class ScratchStack {
public:
    /// make: memory of that many bytes, aligned to 256; drop: returns it.
    ScratchStack(void* (*make)(size_t), void (*drop)(void*)) : make_(make), drop_(drop) {}
    ~ScratchStack() {
        for (const Chunk& c : chunks_) drop_(c.memory);
    }
    ScratchStack(const ScratchStack&) = delete;
    ScratchStack& operator=(const ScratchStack&) = delete;

    void* take(size_t bytes) {
        bytes = (bytes + kAlign - 1) / kAlign * kAlign;
        size_t at = pieces_.empty() ? 0 : pieces_.back().chunk;
        while (at < chunks_.size() && chunks_[at].used + bytes > chunks_[at].size) ++at;
        if (at == chunks_.size()) {
            const size_t size = std::max(bytes, kChunk);
            chunks_.push_back({make_(size), size, 0});
        }
        Chunk& c = chunks_[at];
        pieces_.push_back({at, c.used});
        c.used += bytes;
        return static_cast<std::byte*>(c.memory) + pieces_.back().offset;
    }
    void give_back() {
        chunks_[pieces_.back().chunk].used = pieces_.back().offset;
        pieces_.pop_back();
    }

private:
    static constexpr size_t kAlign = 256, kChunk = size_t{32} << 20;
    struct Chunk {
        void* memory;
        size_t size, used;
    };
    struct Piece {
        size_t chunk, offset;
    };
    void* (*make_)(size_t);
    void (*drop_)(void*);
    std::vector<Chunk> chunks_;
    std::vector<Piece> pieces_;
};

} // namespace rg::gpu
