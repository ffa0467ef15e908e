// Shared memory as the asynchronous units of Hopper GPUs see it, and what a block has under way there.
//
// Operands (OperandMemory): 16 bytes may be read by a product once the thread that stored them has called
// fence_proxy_async(), or once the bulk copy that brings them has taken place. They are compared with what was stored,
// so writing them in any other way is found too.
//
// Bulk copies take place when somebody waits for their barrier and all else that it counts has come; products, when
// their warp waits. Until then the destination is as it was, and sums are NaN: who does not wait computes with that.
// With eager copies (Settings) both read their sources at once instead: an operand that is overwritten too early shows
// between the two. A warp's products are computed for that warp, so warps of a group may be as far apart as on a GPU,
// but each must issue the same ones.
#pragma once

#include "tests/simt/executor.h"

#include <deque>
#include <map>
#include <memory>

namespace rg::simt {

struct Lane;

class OperandMemory {
public:
    void start_block();
    void stored(const std::byte* at, int thread, Site site);
    void fence(int thread);
    void copy_issued(const std::byte* to, int bytes, Site site);
    void copy_done(const std::byte* to, int bytes);
    /// Why a product must not read these bytes, which begin at a multiple of 16; empty if it may.
    std::string objection(const std::byte* at, int bytes) const;

private:
    enum class State : uint8_t { unknown, stored, coming, visible };
    static constexpr int kBytes = 16;
    struct Piece {
        State state = State::unknown;
        int thread = 0; // that stored
        Site site{};
        std::byte contents[kBytes] = {};
    };
    Piece& piece(const std::byte* at);

    std::vector<Piece> pieces_;                             // of all shared memory
    std::map<int, std::vector<const std::byte*>> unfenced_; // by thread
    bool used_ = false;
};

/// mbarrier.
struct Barrier {
    int arrivals = 0, missing = 0;
    int64_t bytes = 0; // expected, less copied
    int phase = 0;
    int initialiser = 0;
    bool fenced = false;
    struct Copy {
        std::byte* to;
        const void* from;
        int bytes;
        Site site;
    };
    std::vector<Copy> copies; // issued and not carried out
    std::vector<Lane*> waiting;
    char order = 0; // an address only, for ThreadSanitizer
};

/// wgmma: what a warp has issued.
struct Product {
    float* d[kWarp]; // of each lane
    int values;
    uint64_t a, b;
    Site site;
};
struct Sums { // that products are under way for
    float* d[kWarp];
    std::vector<float> values; // [lane][values]
    int products = 0;
};
struct WarpProducts {
    std::vector<Product> open;
    std::deque<std::vector<Product>> groups;
    std::vector<Sums> sums;
    bool fenced = false; // since the last wait
    size_t issued = 0;
};

class AsyncProxy {
public:
    void start_block();
    /// Throws for what is still under way when all threads have returned.
    void end_block(const std::string& prefix) const;
    /// The site of a product that the warp has not waited for; a null file if there is none.
    Site pending_product(int warp) const;

    OperandMemory operands;
    std::map<const void*, Barrier> barriers;
    std::map<int, WarpProducts> warps;
    std::map<int, std::vector<Product>> groups; // by warpgroup: what any of its warps has issued, in order
};

} // namespace rg::simt
