// Scheduler, block barrier and meeting of lanes.
//
// The scheduler goes over the threads of a block in the chosen order and resumes each that is ready; a pass in which
// nobody was ready is the end, or a deadlock. A fault throws within the fiber that commits it; the fiber's entry keeps
// the exception, the others are resumed once more to unwind (their waits throw Cancelled), and the launch rethrows.
//
// For ThreadSanitizer each lane has two tokens: it releases `arrived` before it waits, and acquires `woken` after.
// The last to arrive acquires all of the former and releases all of the latter. That is exactly the order that a
// barrier promises; shuffles and votes promise none. Fibers of different blocks are ordered, so races between blocks
// are not seen.
#include "gpu/simt/executor.h"

#include "gpu/simt/async_copies.h"
#include "gpu/simt/fiber.h"
#include "gpu/simt/sanitizers.h"
#include "gpu/simt/shared.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

namespace rg::simt {
namespace {

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
    AsyncCopies copies;
    char arrived = 0, woken = 0; // addresses only
};

constexpr Collective kBlockBarrier{.name = "__syncthreads", .orders_memory = true};

uint64_t next_random(uint64_t& state) { // splitmix64
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

class Executor {
public:
    void run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes,
                  const std::function<void()>& body);
    void block_barrier(Site site);
    void meet(const Collective& collective, unsigned mask, void* data, Site site);
    [[noreturn]] void fail_here(Site site, const std::string& what) const;
    Lane& current() {
        RG_CHECK(current_, "simt: a device function was called outside a launch");
        return *current_;
    }

    Settings settings;
    SharedArena arena;
    std::vector<std::string> launched;

private:
    void run_block();
    void run_lane(Lane& lane);
    void lane_returned(Lane& lane);
    static void enter(void* lane);
    void wait(Lane& lane);
    void wake(std::span<Lane* const> lanes);
    void cancel_all();
    void arrange(std::vector<int64_t>& order, int64_t count);
    void check_shared(const std::string& when) const;
    std::string where_all_are() const;
    std::string prefix() const;

    const char* kernel_ = nullptr;
    const std::function<void()>* body_ = nullptr;
    std::vector<std::unique_ptr<Lane>> lanes_; // at least as many as the block has; kept for the next launch
    int size_ = 0;                             // of the block
    int at_barrier_ = 0;
    int returned_ = 0;
    Lane* current_ = nullptr;
    std::exception_ptr error_;
    bool cancelled_ = false;
    uint64_t random_ = 0;
    std::vector<int64_t> block_order_, lane_order_;
};

thread_local Executor executor;

void Executor::run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes,
                        const std::function<void()>& body) {
    RG_CHECK(!current_, kernel, ": launched from within a kernel");
    const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
    const int64_t threads = int64_t{block.x} * block.y * block.z;
    RG_CHECK(threads >= 1 && threads <= 1024 && block.z <= 64, kernel, ": block of ", block.x, " x ", block.y, " x ",
             block.z, " threads; 1 to 1024 in all, at most 64 in z");
    RG_CHECK(blocks >= 1 && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535, kernel, ": grid of ", grid.x,
             " x ", grid.y, " x ", grid.z, " blocks; 1 to 2147483647, 65535, 65535");
    kernel_ = kernel;
    if (std::find(launched.begin(), launched.end(), kernel) == launched.end()) launched.emplace_back(kernel);
    body_ = &body;
    size_ = int(threads);
    while (int(lanes_.size()) < size_) lanes_.push_back(std::make_unique<Lane>());
    for (int i = 0; i < size_; ++i) {
        lanes_[size_t(i)]->number = i;
        lanes_[size_t(i)]->index = {unsigned(i) % block.x, unsigned(i) / block.x % block.y,
                                    unsigned(i) / block.x / block.y};
    }
    grid_extent = grid;
    block_extent = block;
    random_ = settings.seed;
    error_ = nullptr;
    arrange(block_order_, blocks);
    for (const int64_t b : block_order_) {
        block_index = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / grid.x / grid.y)};
        arena.start_block(shared_bytes);
        run_block();
        if (error_) std::rethrow_exception(error_);
        check_shared("the end of the block");
    }
}

/// 0, 1, ... count - 1 in the order of the settings.
void Executor::arrange(std::vector<int64_t>& order, int64_t count) {
    if (int64_t(order.size()) != count) order.resize(size_t(count));
    for (int64_t i = 0; i < count; ++i) order[size_t(i)] = settings.order == Order::reverse ? count - 1 - i : i;
    if (settings.order == Order::shuffled)
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random(random_) % i]);
}

void Executor::run_block() {
    at_barrier_ = returned_ = 0;
    cancelled_ = false;
    for (int i = 0; i < size_; ++i) {
        Lane& lane = *lanes_[size_t(i)];
        lane.state = State::ready;
        lane.entered = false;
        lane.copies.clear();
    }
    arrange(lane_order_, size_);
    while (returned_ < size_) {
        bool progress = false;
        for (const int64_t i : lane_order_) {
            Lane& lane = *lanes_[size_t(i)];
            if (lane.state != State::ready) continue;
            progress = true;
            run_lane(lane);
            if (error_) return cancel_all();
        }
        if (!progress) {
            error_ = std::make_exception_ptr(Error(cat(prefix(), "no thread can go on: ", where_all_are())));
            return cancel_all();
        }
        if (settings.order == Order::shuffled) arrange(lane_order_, size_);
    }
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
        (*executor.body_)();
        executor.lane_returned(lane);
    } catch (const Cancelled&) {
    } catch (...) {
        if (!executor.error_) executor.error_ = std::current_exception();
    }
    lane.state = State::returned;
    ++executor.returned_;
    release(&lane.arrived);
}

/// A lane that others are waiting for, or whose copies are under way, must not return.
void Executor::lane_returned(Lane& lane) {
    if (lane.copies.pending())
        fail_here(lane.copies.first_site(), "returned without waiting for this asynchronous copy");
    const int warp = lane.number / kWarp * kWarp;
    for (int i = warp; i < std::min(warp + kWarp, size_); ++i) {
        const Lane& other = *lanes_[size_t(i)];
        if (other.state == State::waiting && other.mask >> (lane.number - warp) & 1)
            fail_here(other.site, cat("returned, while thread ", other.number, " waits for it in ",
                                      other.collective->name, " with mask 0x", std::hex, other.mask));
    }
}

void Executor::wait(Lane& lane) {
    lane.state = State::waiting;
    lane.fiber.suspend();
    if (cancelled_) throw Cancelled{};
    if (lane.collective->orders_memory) acquire(&lane.woken);
}

/// Resumes those that have started, so that what lies on their stacks is destroyed.
void Executor::cancel_all() {
    cancelled_ = true;
    for (int i = 0; i < size_; ++i) {
        Lane& lane = *lanes_[size_t(i)];
        if (lane.entered && lane.state != State::returned) run_lane(lane);
    }
}

/// The running thread is the last of these to arrive.
void Executor::wake(std::span<Lane* const> lanes) {
    if (kTsan && lanes.front()->collective->orders_memory) {
        for (Lane* lane : lanes) acquire(&lane->arrived);
        for (Lane* lane : lanes) release(&lane->woken);
    }
    for (Lane* lane : lanes) lane->state = State::ready;
}

void Executor::block_barrier(Site site) {
    Lane& lane = current();
    lane.collective = &kBlockBarrier;
    lane.mask = 0;
    lane.site = site;
    if (kTsan) release(&lane.arrived);
    if (++at_barrier_ < size_) return wait(lane);
    at_barrier_ = 0;
    for (int i = 0; i < size_; ++i) {
        const Site other = lanes_[size_t(i)]->site;
        if (other.line != site.line || std::strcmp(other.file, site.file) != 0) {
            lane.state = State::waiting;
            throw Error(cat(prefix(), "threads met at different barriers: ", where_all_are()));
        }
    }
    if (kTsan) {
        for (int i = 0; i < size_; ++i) acquire(&lanes_[size_t(i)]->arrived);
        for (int i = 0; i < size_; ++i) release(&lanes_[size_t(i)]->woken);
        acquire(&lane.woken);
    }
    check_shared(cat("the barrier at ", site.file, ":", site.line));
    for (int i = 0; i < size_; ++i) lanes_[size_t(i)]->state = State::ready;
}

void Executor::meet(const Collective& collective, unsigned mask, void* data, Site site) {
    Lane& lane = current();
    const int warp = lane.number / kWarp * kWarp;
    if (!(mask >> (lane.number - warp) & 1))
        fail_here(site, cat(collective.name, ": mask 0x", std::hex, mask, " lacks the calling lane"));
    lane.collective = &collective;
    lane.mask = mask;
    lane.data = data;
    lane.site = site;
    Lane* lanes[kWarp];
    size_t count = 0;
    bool all_here = true;
    for (int i = 0; i < kWarp; ++i) {
        if (!(mask >> i & 1)) continue;
        if (warp + i >= size_ || lanes_[size_t(warp + i)]->state == State::returned)
            fail_here(site, cat(collective.name, ": lane ", i, " of mask 0x", std::hex, mask, std::dec,
                                warp + i >= size_ ? " is beyond the end of the block" : " has returned"));
        Lane& other = *lanes_[size_t(warp + i)];
        lanes[count++] = &other;
        if (&other == &lane) continue;
        if (other.state != State::waiting || other.mask != mask) {
            all_here = false;
            continue;
        }
        const bool same_call = std::strcmp(other.collective->name, collective.name) == 0 &&
                               other.collective->argument == collective.argument && other.site.line == site.line &&
                               std::strcmp(other.site.file, site.file) == 0;
        if (!same_call)
            fail_here(site, cat(collective.name, " meets ", other.collective->name, " of thread ", other.number, " at ",
                                other.site.file, ":", other.site.line,
                                other.collective->argument == collective.argument ? "" : " with another argument"));
    }
    if (kTsan && collective.orders_memory) release(&lane.arrived);
    if (!all_here) return wait(lane);
    if (collective.combine) {
        void* all_data[kWarp] = {};
        for (size_t i = 0; i < count; ++i) all_data[lanes[i]->number - warp] = lanes[i]->data;
        collective.combine(all_data, mask, collective.argument);
    }
    wake({lanes, count});
    if (kTsan && collective.orders_memory) acquire(&lane.woken);
}

std::string Executor::prefix() const {
    return cat(kernel_, ": block (", block_index.x, ",", block_index.y, ",", block_index.z, "): ");
}

void Executor::fail_here(Site site, const std::string& what) const {
    throw Error(cat(prefix(), "thread ", current_->number, ": ", what, " [", site.file, ":", site.line, "]"));
}

void Executor::check_shared(const std::string& when) const {
    const std::string damage = arena.damage();
    if (!damage.empty()) throw Error(cat(prefix(), damage, ", noticed at ", when));
}

/// "threads 0-31,40 wait in __syncthreads at f.cu:12; threads 32-39 have returned"
std::string Executor::where_all_are() const {
    std::vector<std::pair<std::string, std::string>> groups; // what they do, which they are
    int first = 0;
    std::string doing;
    const auto close = [&](int end) {
        if (end == first) return;
        auto group = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.first == doing; });
        if (group == groups.end()) group = groups.insert(groups.end(), {doing, ""});
        group->second += cat(group->second.empty() ? "" : ",", first, end - first > 1 ? cat("-", end - 1) : "");
        first = end;
    };
    for (int i = 0; i < size_; ++i) {
        const Lane& lane = *lanes_[size_t(i)];
        std::string now = "returned";
        if (lane.state == State::waiting) {
            now = cat("wait in ", lane.collective->name, " at ", lane.site.file, ":", lane.site.line);
            if (lane.mask) now += cat(" with mask 0x", std::hex, lane.mask);
        }
        if (now != doing) close(i);
        doing = now;
    }
    close(size_);
    std::string text;
    for (const auto& [what, who] : groups) text += cat(text.empty() ? "" : "; ", "threads ", who, " ", what);
    return text;
}

} // namespace

Settings& settings() { return executor.settings; }
std::vector<std::string> take_launched() { return std::exchange(executor.launched, {}); }

void run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes, const std::function<void()>& body) {
    executor.run_grid(kernel, grid, block, shared_bytes, body);
}

void block_barrier(Site site) { executor.block_barrier(site); }
void warp_collective(const Collective& collective, unsigned mask, void* data, Site site) {
    executor.meet(collective, mask, data, site);
}
void fail_here(Site site, const std::string& what) { executor.fail_here(site, what); }
int lane_index() { return executor.current().number % kWarp; }

std::byte* shared_bytes(const void* key, const char* name, size_t bytes, Site site) {
    return executor.arena.array(key, name, bytes, site);
}
std::byte* dynamic_shared_bytes(const char* name) { return executor.arena.dynamic(name); }
bool in_shared(const void* memory, size_t bytes) { return executor.arena.contains(memory, bytes); }

void async_copy(void* to, const void* from, int bytes, int source_bytes, Site site) {
    const auto misaligned = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % unsigned(bytes) != 0; };
    if (source_bytes < 0 || source_bytes > bytes)
        fail_here(site, cat("asynchronous copy of ", source_bytes, " out of ", bytes, " bytes"));
    if (misaligned(to) || misaligned(from))
        fail_here(site, cat("asynchronous copy of ", bytes, " bytes: misaligned ",
                            misaligned(to) ? "destination" : "source"));
    if (!in_shared(to, size_t(bytes))) fail_here(site, "asynchronous copy: the destination is not in shared memory");
    executor.current().copies.issue({to, from, bytes, source_bytes, site}, executor.settings.eager_copies);
}
void async_commit() { executor.current().copies.commit(); }
void async_wait(int pending) { executor.current().copies.wait(pending); }

} // namespace rg::simt
