// The executor's state: a block's threads, and what each of them is doing.
//
// The scheduler goes over the threads in the chosen order and resumes each that is ready; a pass in which nobody was
// ready is the end, or a deadlock. Forward and reverse, a warp goes on until it can do no more before another has its
// turn, which brings warps as far apart as barriers allow; shuffled, all threads are mixed anew in each pass.
//
// A fault throws within the fiber that commits it. The fiber's entry keeps the exception, the others are resumed once
// more to unwind (their waits throw Cancelled), and the launch rethrows.
//
// For ThreadSanitizer each lane has two tokens: it releases `arrived` before it waits, and acquires `woken` after.
// The last to arrive acquires all of the former and releases all of the latter. That is exactly the order that a
// barrier promises; shuffles and votes promise none. Fibers of different blocks are ordered, so races between blocks
// are not seen.
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

/// A CUDA thread.
struct Lane {
    Fiber fiber;
    Index3 index{};
    int number = 0; // within the block
    State state = State::ready;
    bool entered = false;
    // While waiting, and with the barrier of the block as the collective of mask 0:
    const Collective* collective = nullptr;
    unsigned mask = 0;
    void* data = nullptr;
    Site site{};
    char arrived = 0, woken = 0; // addresses only
};

/// A bit for each lane. Those that a last warp lacks count as returned.
struct Warp {
    unsigned waiting = 0; // in a collective
    unsigned returned = 0;
};

class Executor {
public:
    void run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes,
                  const std::function<void()>& body);
    void block_barrier(Site site);
    void meet(const Collective& collective, unsigned mask, void* data, Site site);
    /// The running thread, whose collective and site are set, has no turn until its state is ready again.
    void wait(Lane& lane);
    [[noreturn]] void fail_here(Site site, const std::string& what) const;
    Warp& warp_of(const Lane& lane) { return warps_[size_t(lane.number / kWarp)]; }
    Lane& current() {
        RG_CHECK(current_, "simt: a device function was called outside a launch");
        return *current_;
    }

    int threads() const { return size_; } // of a block

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
    std::string where_all_are() const;
    std::string prefix() const;

    const char* kernel_ = nullptr;
    const std::function<void()>* body_ = nullptr;
    std::vector<std::unique_ptr<Lane>> lanes_; // as many as any block has needed so far
    std::vector<Lane*> block_;                 // those of this one
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

/// That of the calling thread.
Executor& executor();

} // namespace rg::simt
