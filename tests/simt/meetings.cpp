// Implements the operations in which threads wait for each other: the block barrier and collectives of lanes. Also
// reports who waits where.
#include "tests/simt/sanitizers.h"
#include "tests/simt/scheduler.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace rg::simt {
namespace {

constexpr Collective kBlockBarrier{.name = "__syncthreads", .orders_memory = true};

bool same_text(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
bool same_place(Site a, Site b) { return a.line == b.line && same_text(a.file, b.file); }
bool same_name(const Collective& a, const Collective& b) { return same_text(a.name, b.name); }

} // namespace

void Executor::wait(Lane& lane) {
    lane.state = State::waiting;
    lane.fiber.suspend();
    if (cancelled_) throw Cancelled{};
    if (lane.collective->orders_memory) acquire(&lane.woken);
}

/// Marks the lanes ready. `last` is the running lane, the last of them to arrive.
void Executor::wake(std::span<Lane* const> lanes, Lane& last) {
    if (kTsan && last.collective->orders_memory) {
        for (Lane* lane : lanes) acquire(&lane->arrived);
        for (Lane* lane : lanes) release(&lane->woken);
        acquire(&last.woken);
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
    for (const Lane* other : block_)
        if (!same_place(other->site, site)) {
            lane.state = State::waiting;
            throw Error(cat(prefix(), "threads met at different barriers: ", list_threads()));
        }
    wake(block_, lane);
    check_shared(site);
}

void Executor::meet(const Collective& collective, unsigned mask, void* data, Site site) {
    Lane& lane = current();
    Warp& warp = warp_of(lane);
    const int first = lane.number / kWarp * kWarp;
    const unsigned lane_bit = 1u << (lane.number - first);
    if (!(mask & lane_bit))
        fail_here(site, cat(collective.name, ": mask ", hex(mask), " lacks the calling lane"));
    if (const unsigned gone = mask & warp.returned) {
        const int other = std::countr_zero(gone);
        fail_here(site, cat(collective.name, ": lane ", other, " of mask ", hex(mask),
                            first + other >= size_ ? " is beyond the end of the block" : " has returned"));
    }
    lane.collective = &collective;
    lane.mask = mask;
    lane.data = data;
    lane.site = site;
    warp.waiting |= lane_bit;
    if (kTsan && collective.orders_memory) release(&lane.arrived);
    if ((warp.waiting & mask) != mask) return wait(lane);
    Lane* lanes[kWarp];
    void* all_data[kWarp] = {};
    size_t count = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const int i = std::countr_zero(rest);
        Lane& other = *block_[size_t(first + i)];
        if (other.mask != mask) return wait(lane); // that lane is in another collective first
        check_same_call(lane, other);
        lanes[count++] = &other;
        all_data[i] = other.data;
    }
    if (collective.combine) collective.combine(all_data, mask, collective.argument);
    warp.waiting &= ~mask;
    wake({lanes, count}, lane);
}

void Executor::check_same_call(const Lane& lane, const Lane& other) const {
    const bool same_argument = other.collective->argument == lane.collective->argument;
    if (same_argument && same_place(other.site, lane.site) && same_name(*other.collective, *lane.collective)) return;
    fail_here(lane.site,
              cat(lane.collective->name, " meets ", other.collective->name, " of thread ", other.number, " at ",
                  other.site.file, ":", other.site.line, same_argument ? "" : " with another argument"));
}

/// Returns for example "threads 0-31,40 wait in __syncthreads at f.cu:12; threads 32-39 returned".
std::string Executor::list_threads() const {
    std::vector<std::pair<std::string, std::string>> groups; // state, thread numbers
    int first = 0;
    std::string run_state;
    const auto close = [&](int end) {
        if (end == first) return;
        auto group = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.first == run_state; });
        if (group == groups.end()) group = groups.insert(groups.end(), {run_state, ""});
        group->second += cat(group->second.empty() ? "" : ",", first, end - first > 1 ? cat("-", end - 1) : "");
        first = end;
    };
    for (int i = 0; i < size_; ++i) {
        const Lane& lane = *block_[size_t(i)];
        std::string state = "returned";
        if (lane.state == State::waiting) {
            state = cat("wait in ", lane.collective->name, " at ", lane.site.file, ":", lane.site.line);
            if (lane.mask) state += cat(" with mask ", hex(lane.mask));
        }
        if (state != run_state) close(i);
        run_state = state;
    }
    close(size_);
    std::string text;
    for (const auto& [state, numbers] : groups) text += cat(text.empty() ? "" : "; ", "threads ", numbers, " ", state);
    return text;
}

void block_barrier(Site site) { executor().block_barrier(site); }
void warp_collective(const Collective& collective, unsigned mask, void* data, Site site) {
    executor().meet(collective, mask, data, site);
}

} // namespace rg::simt
