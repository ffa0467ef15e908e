// Implements launches: runs blocks one after the other, and schedules the threads of each block.
#include "tests/simt/sanitizers.h"
#include "tests/simt/scheduler.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace rg::simt {
namespace {

uint64_t next_random(uint64_t& state) { // splitmix64
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

} // namespace

Executor& executor() {
    static thread_local Executor instance;
    return instance;
}

void Executor::run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes,
                        const std::function<void()>& body) {
    RG_CHECK(!current_, kernel, ": launched from within a kernel");
    const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
    const int64_t threads = int64_t{block.x} * block.y * block.z;
    RG_CHECK(threads >= 1 && threads <= 1024 && block.z <= 64, kernel, ": block of ", block.x, " x ", block.y, " x ",
             block.z, " threads; 1 to 1024 in all, at most 64 in z");
    RG_CHECK(blocks >= 1 && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535, kernel, ": grid of ", grid.x,
             " x ", grid.y, " x ", grid.z, " blocks; 1 to 2147483647, 65535, 65535");
    RG_CHECK(shared_bytes <= SharedArena::kTotalLimit, kernel, ": ", shared_bytes,
             " bytes of dynamic shared memory; at most ", SharedArena::kTotalLimit);
    kernel_ = kernel;
    if (std::find(launched.begin(), launched.end(), kernel) == launched.end()) launched.emplace_back(kernel);
    body_ = &body;
    size_ = int(threads);
    block_.clear();
    for (unsigned i = 0; i < unsigned(threads); ++i) {
        if (i == lanes_.size()) lanes_.push_back(std::make_unique<Lane>());
        Lane& lane = *block_.emplace_back(lanes_[i].get());
        lane.number = int(i);
        lane.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    }
    grid_extent = grid;
    block_extent = block;
    random_ = settings.seed;
    error_ = nullptr;
    arrange(block_order_, blocks);
    for (const int64_t b : block_order_) {
        block_index = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / grid.x / grid.y)};
        arena.start_block(shared_bytes);
        proxy.start_block();
        run_block();
        if (error_) std::rethrow_exception(error_);
        proxy.end_block(prefix());
        check_shared({});
    }
}

/// Fills `order` with 0 ... count - 1 in the order of the settings.
void Executor::arrange(std::vector<int64_t>& order, int64_t count) {
    if (int64_t(order.size()) != count) order.resize(size_t(count));
    for (int64_t i = 0; i < count; ++i) order[size_t(i)] = settings.order == Order::reverse ? count - 1 - i : i;
    if (settings.order == Order::shuffled)
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random(random_) % i]);
}

void Executor::run_block() {
    at_barrier_ = returned_ = 0;
    cancelled_ = false;
    for (Lane* lane : block_) {
        lane->state = State::ready;
        lane->entered = false;
    }
    warps_.assign(size_t(size_ + kWarp - 1) / kWarp, Warp{});
    if (size_ % kWarp) warps_.back().returned = ~0u << size_ % kWarp;
    arrange(lane_order_, size_);
    const bool shuffled = settings.order == Order::shuffled;
    while (returned_ < size_) {
        bool progress = false;
        for (size_t begin = 0, end = 0; begin < lane_order_.size(); begin = end) {
            const auto warp = [&](size_t i) { return lane_order_[i] / kWarp; };
            while (end < lane_order_.size() && (shuffled || warp(end) == warp(begin))) ++end;
            while (run_ready(begin, end)) {
                progress = true;
                if (shuffled) arrange(lane_order_, size_);
            }
            if (error_) return cancel_all();
        }
        if (!progress) {
            error_ = std::make_exception_ptr(Error(cat(prefix(), "no thread can go on: ", list_threads())));
            return cancel_all();
        }
    }
}

/// Resumes each ready thread among the positions [begin, end) of the order. Returns false if none was ready, or after a
/// fault.
bool Executor::run_ready(size_t begin, size_t end) {
    bool any = false;
    for (size_t i = begin; i < end && !error_; ++i) {
        Lane& lane = *block_[size_t(lane_order_[i])];
        if (lane.state != State::ready) continue;
        any = true;
        run_lane(lane);
    }
    return any && !error_;
}

void Executor::run_lane(Lane& lane) {
    current_ = &lane;
    thread_index = lane.index;
    if (!lane.entered) {
        lane.entered = true;
        lane.fiber.start(&Executor::enter, &lane);
        release(&lane.woken);
    }
    lane.fiber.resume();
    current_ = nullptr;
    if (lane.state == State::returned) acquire(&lane.arrived);
}

void Executor::enter(void* argument) {
    Lane& lane = *static_cast<Lane*>(argument);
    acquire(&lane.woken);
    try {
        (*executor().body_)();
        executor().lane_returned(lane);
    } catch (const Cancelled&) {
    } catch (...) {
        if (!executor().error_) executor().error_ = std::current_exception();
    }
    lane.state = State::returned;
    ++executor().returned_;
    release(&lane.arrived);
}

/// Throws Error if other lanes wait for this lane, or if its products are in flight.
void Executor::lane_returned(Lane& lane) {
    if (const Site site = proxy.pending_product(lane.number / kWarp); site.file)
        fail_here(site, "returned without waiting for this product");
    Warp& warp = warp_of(lane);
    const unsigned bit = 1u << lane.number % kWarp;
    warp.returned |= bit;
    for (unsigned waiting = warp.waiting; waiting; waiting &= waiting - 1) {
        const Lane& other = *block_[size_t(lane.number / kWarp * kWarp + std::countr_zero(waiting))];
        if (other.mask & bit)
            fail_here(other.site, cat("returned, while thread ", other.number, " waits for it in ",
                                      other.collective->name, " with mask ", hex(other.mask)));
    }
}

/// Resumes all threads that have started, so that the objects on their stacks are destroyed.
void Executor::cancel_all() {
    cancelled_ = true;
    for (Lane* lane : block_)
        if (lane->entered && lane->state != State::returned) run_lane(*lane);
}

std::string Executor::prefix() const {
    return cat(kernel_, ": block (", block_index.x, ",", block_index.y, ",", block_index.z, "): ");
}

void Executor::fail_here(Site site, const std::string& what) const {
    throw Error(cat(prefix(), "thread ", current_->number, ": ", what, " [", site.file, ":", site.line, "]"));
}

/// Checks the redzones at a barrier, or at the end of the block if the site has no file.
void Executor::check_shared(Site barrier) const {
    const std::string damage = arena.damage();
    if (damage.empty()) return;
    const std::string checked_at = barrier.file ? cat("the barrier at ", barrier.file, ":", barrier.line) : "the end";
    throw Error(cat(prefix(), damage, ", noticed at ", checked_at));
}

Settings& settings() { return executor().settings; }
std::vector<std::string> take_launched() { return std::exchange(executor().launched, {}); }

void run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes, const std::function<void()>& body) {
    executor().run_grid(kernel, grid, block, shared_bytes, body);
}

void fail_here(Site site, const std::string& what) { executor().fail_here(site, what); }
int lane_index() { return executor().current().number % kWarp; }

std::byte* shared_bytes(const void* key, const char* name, size_t bytes, Site site) {
    return executor().arena.array(key, name, bytes, site);
}
std::byte* dynamic_shared_bytes(const char* name) { return executor().arena.dynamic(name); }
bool in_shared(const void* memory, size_t bytes) { return executor().arena.contains(memory, bytes); }

} // namespace rg::simt
