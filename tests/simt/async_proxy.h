// Model of the asynchronous proxy of Hopper GPUs: its view of shared memory, and the operations of a block in flight.
//
// Operands (OperandMemory). A product may read 16 bytes after the thread that stored them has called
// fence_proxy_async(), or after the bulk copy that writes them has executed. Operands are compared with the stored
// contents, so that other kinds of writes are detected as well.
//
// Bulk copies execute when a thread waits for their barrier and all arrivals have come. Products execute when their
// warp waits. Until then, the destination of a copy keeps its old contents, and sums are NaN, so a missing wait shows
// in the results. With eager copies (Settings), both read their sources at once. If an operand is overwritten too
// early, the two modes give different results. Products are computed warp by warp, so the warps of a warpgroup may be
// as far apart as on a GPU. Each warp must issue the same products.
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
    /// Returns why a product must not read these bytes, or an empty text if it may. `at` is aligned to 16 bytes.
    std::string objection(const std::byte* at, int bytes) const;

private:
    enum class State : uint8_t { unknown, stored, copy_in_flight, visible };
    static constexpr int kBytes = 16;
    struct Chunk {
        State state = State::unknown;
        int thread = 0; // the thread that stored it
        Site site{};
        std::byte contents[kBytes] = {};
    };
    Chunk& chunk(const std::byte* at);

    std::vector<Chunk> chunks_;                             // all of shared memory
    std::map<int, std::vector<const std::byte*>> unfenced_; // by thread
    bool used_ = false;
};

/// An mbarrier.
struct Barrier {
    int arrivals = 0, missing = 0; // per phase; still missing in this phase
    int64_t bytes = 0;             // expected minus copied
    int phase = 0;
    int initialiser = 0;
    bool fenced = false;
    struct Copy {
        std::byte* to;
        const void* from;
        int bytes;
        Site site;
    };
    std::vector<Copy> copies; // issued, not yet executed
    std::vector<Lane*> waiting;
    char order = 0; // only its address is used, by ThreadSanitizer
};

/// A wgmma that a warp has issued.
struct Product {
    float* d[kWarp]; // each lane's sums
    int values;
    bool transposed; // true if both operands are MN-major
    uint64_t a, b;
    Site site;
};
/// The sums of products in flight.
struct Sums {
    float* d[kWarp];
    std::vector<float> values; // [lane][values]
    int products = 0;
};
struct WarpProducts {
    std::vector<Product> open; // not yet committed
    std::deque<std::vector<Product>> groups;
    std::vector<Sums> sums;
    bool fenced = false; // true if wgmma_fence() was called since the last wait
    size_t issued = 0;
};

class AsyncProxy {
public:
    void start_block();
    /// Throws Error if operations are in flight after all threads have returned.
    void end_block(const std::string& prefix) const;
    /// Returns the site of a product for which the warp has not waited. Its file is null if there is none.
    Site pending_product(int warp) const;

    OperandMemory operands;
    std::map<const void*, Barrier> barriers;
    std::map<int, WarpProducts> warps;
    std::map<int, std::vector<Product>> groups; // by warpgroup: the products that its warps must issue, in order
};

} // namespace rg::simt
