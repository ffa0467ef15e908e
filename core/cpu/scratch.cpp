// Implements each thread's stack of memory chunks. If the next empty chunk is too small, take() replaces it by a larger
// one. So after a while all chunks have the sizes that the program needs.
#include "core/cpu/scratch.h"

#include "core/base.h"

#include <algorithm>
#include <cstdlib>
#include <sys/mman.h>
#include <vector>

namespace rg::cpu::scratch_stack {

namespace {

constexpr size_t kAlign = 64, kHugePage = size_t{2} << 20, kLeast = size_t{1} << 20;

struct Chunk {
    char* memory = nullptr;
    size_t size = 0, used = 0;
};

struct Stack {
    std::vector<Chunk> chunks;
    size_t top = 0; // index of the chunk in use; all later chunks are empty
    ~Stack() {
        for (const Chunk& c : chunks) std::free(c.memory);
    }
};
thread_local Stack stack;

Chunk make_chunk(size_t bytes) {
    const size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* memory = nullptr;
    RG_CHECK(posix_memalign(&memory, kHugePage, size) == 0, "memory: ", size, " bytes are not available");
    madvise(memory, size, MADV_HUGEPAGE);
    return {static_cast<char*>(memory), size, 0};
}

} // namespace

void* take(size_t bytes) {
    // Without the additional cache line, arrays whose size is a power of two would compete for the same cache sets.
    bytes = (bytes + kAlign - 1) / kAlign * kAlign + kAlign;
    for (size_t i = stack.top;; ++i) {
        if (i == stack.chunks.size()) stack.chunks.push_back(make_chunk(std::max(bytes, kLeast)));
        Chunk& chunk = stack.chunks[i];
        if (chunk.size - chunk.used < bytes && chunk.used == 0) {
            std::free(chunk.memory);
            chunk = {};
            chunk = make_chunk(bytes);
        }
        if (chunk.size - chunk.used >= bytes) {
            stack.top = i; // not before: if make_chunk() throws, the blocks in use are returned to the old top
            chunk.used += bytes;
            return chunk.memory + (chunk.used - bytes);
        }
    }
}

void give_back(void* block) {
    Chunk& chunk = stack.chunks[stack.top];
    const size_t used = size_t(static_cast<char*>(block) - chunk.memory);
    RG_CHECK(used < chunk.used, "memory: expected blocks in the reverse order of their requests, got another order");
    chunk.used = used;
    while (stack.top > 0 && stack.chunks[stack.top].used == 0) --stack.top;
}

} // namespace rg::cpu::scratch_stack
