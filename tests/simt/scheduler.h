// The executor's state: the threads of a block, and the state of each thread.
//
// The scheduler passes over the threads in the chosen order and resumes each thread that is ready. A pass without a
// ready thread means that all have returned, or a deadlock. In forward and reverse order, a warp runs until it can do
// no more. Warps therefore get as far apart as barriers allow. In shuffled order, each pass mixes all threads anew.
//
// A fault throws within the fiber that causes it. enter() stores the exception. All other fibers are resumed once more,
// and their waits throw Cancelled, so that their stacks unwind. Then the launch rethrows the exception.
//
// For ThreadSanitizer, each lane has two tokens. It releases `arrived` before it waits, and acquires `woken`
// afterwards. The last lane to arrive acquires every `arrived` and releases every `woken`. This is exactly the order
// that a barrier guarantees; shuffles and votes guarantee none. Fibers of different blocks run one after the other, so
// races between blocks are not detected.
#pragma once

#include "tests/simt/async_proxy.h"
#include "tests/simt/executor.h"
#include "tests/simt/fiber.h"
#include "tests/simt/shared.h"

#include <exception>
#include <memory>

namespace rg::simt {

struct Cancelled {};

enum class State : uint8_t { ready, waiting, returned };

/// One CUDA thread.
struct Lane {
    Fiber fiber;
    Index3 index{};
    int number = 0; // within the block
    State state = State::ready;
    bool entered = false;
    // Valid while waiting. The block barrier counts as a collective with mask 0.
    const Collective* collective = nullptr;
    unsigned mask = 0;
    void* data = nullptr;
    Site site{};
    char arrived = 0, woken = 0; // only their addresses are used
};

/// One bit per lane. Lanes that an incomplete last warp lacks count as returned.
struct Warp {
    unsigned waiting = 0; // waits in a collective
    unsigned returned = 0;
};

class Executor {
public:
    void run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes,
                  const std::function<void()>& body);
    void block_barrier(Site site);
    /// Runs a collective of the lanes in `mask`.
    void meet(const Collective& collective, unsigned mask, void* data, Site site);
    /// Suspends the running thread until its state is ready. Precondition: its collective and site are set.
    void wait(Lane& lane);
    [[noreturn]] void fail_here(Site site, const std::string& what) const;
    Warp& warp_of(const Lane& lane) { return warps_[size_t(lane.number / kWarp)]; }
    Lane& current() {
        RG_CHECK(current_, "simt: a device function was called outside a launch");
        return *current_;
    }

    int threads() const { return size_; } // per block

    Settings settings;
    SharedArena arena;
    AsyncProxy proxy;
    std::vector<std::string> launched;

private:
    void run_block();
    bool run_ready(size_t begin, size_t end);
    void run_lane(Lane& lane);
    void lane_returned(Lane& lane);
    static void enter(void* lane);
    void check_same_call(const Lane& lane, const Lane& other) const;
    void wake(std::span<Lane* const> lanes, Lane& last);
    void cancel_all();
    void arrange(std::vector<int64_t>& order, int64_t count);
    void check_shared(Site barrier) const;
    std::string list_threads() const;
    std::string prefix() const;

    const char* kernel_ = nullptr;
    const std::function<void()>* body_ = nullptr;
    std::vector<std::unique_ptr<Lane>> lanes_; // reused by all blocks
    std::vector<Lane*> block_;                 // lanes of the running block
    std::vector<Warp> warps_;
    int size_ = 0;
    int at_barrier_ = 0;
    int returned_ = 0;
    Lane* current_ = nullptr;
    std::exception_ptr error_;
    bool cancelled_ = false;
    uint64_t random_ = 0;
    std::vector<int64_t> block_order_, lane_order_;
};

/// Returns the executor of the calling thread.
Executor& executor();

} // namespace rg::simt
