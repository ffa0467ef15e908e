// Scratch memory as a stack over large chunks: pieces are given back in the opposite order.
//
// Every op finds the stack empty and begins at the first chunk, so the same ops in the same order get the same places:
// what has run once allocates nothing when it runs again, which a CUDA graph must not while it is captured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace rg::gpu {

class ScratchStack {
public:
    using Make = std::function<void*(size_t)>; // memory of that many bytes, aligned to 256
    using Drop = std::function<void(void*)>;   // returns it
    ScratchStack(Make make, Drop drop) : make_(std::move(make)), drop_(std::move(drop)) {}
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
    Make make_;
    Drop drop_;
    std::vector<Chunk> chunks_;
    std::vector<Piece> pieces_;
};

} // namespace rg::gpu
