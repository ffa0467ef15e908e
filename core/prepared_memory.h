// Defines PreparedMemory: memory in which the CPU kernel of a plan's step keeps values that depend on parameters alone,
// such as packed filters. So later replays need not compute these values again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace rg {

/// The memory of one step, for the arrays of class cpu::PreparedArray. A kernel takes the same blocks in the same order
/// in each call.
class PreparedMemory {
public:
    /// Begins a call of the kernel. If `version` is not that of the previous call, no block counts as filled. The
    /// caller must pass another version when a parameter of the step has changed.
    void begin(uint64_t version) {
        filled_ = filled_ && version == version_;
        version_ = version;
        next_ = 0;
    }
    /// Returns the next block of this call: `bytes` bytes, aligned to 64 bytes. PreparedMemory owns the block.
    void* take(size_t bytes) {
        if (next_ == blocks_.size()) blocks_.push_back({nullptr, 0});
        Block& block = blocks_[next_++];
        if (block.bytes != bytes || !block.memory) {
            block = {std::unique_ptr<void, Deleter>(::operator new(bytes, kAlign)), bytes};
            filled_ = false; // happens only in the first call: a step has the same shapes in each call
        }
        return block.memory.get();
    }
    /// Returns true if an earlier call has filled the blocks for this version.
    bool filled() const { return filled_; }
    /// Ends a call in which the kernel has written all blocks, or found them filled.
    void end() { filled_ = true; }

private:
    static constexpr std::align_val_t kAlign{64};
    struct Deleter {
        void operator()(void* memory) const { ::operator delete(memory, kAlign); }
    };
    struct Block {
        std::unique_ptr<void, Deleter> memory;
        size_t bytes;
    };
    std::vector<Block> blocks_;
    size_t next_ = 0;
    uint64_t version_ = 0;
    bool filled_ = false;
};

} // namespace rg
