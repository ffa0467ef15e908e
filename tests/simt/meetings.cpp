// Where threads wait for each other: the barrier of the block, collectives of lanes, and the account of who waits
// where.
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

/// The running thread, `last`, is the last of these to arrive.
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
            throw Error(cat(prefix(), "threads met at different barriers: ", where_all_are()));
        }
    wake(block_, lane);
    check_shared(site);
}

void Executor::meet(const Collective& collective, unsigned mask, void* data, Site site) {
    Lane& lane = current();
    Warp& warp = warp_of(lane);
    const int first = lane.number / kWarp * kWarp;
    const unsigned own = 1u << (lane.number - first);
    if (!(mask & own)) fail_here(site, cat(collective.name, ": mask 0x", std::hex, mask, " lacks the calling lane"));
    if (const unsigned gone = mask & warp.returned) {
        const int other = std::countr_zero(gone);
        fail_here(site, cat(collective.name, ": lane ", other, " of mask 0x", std::hex, mask, std::dec,
                            first + other >= size_ ? " is beyond the end of the block" : " has returned"));
    }
    lane.collective = &collective;
    lane.mask = mask;
    lane.data = data;
    lane.site = site;
    warp.waiting |= own;
    if (kTsan && collective.orders_memory) release(&lane.arrived);
    if ((warp.waiting & mask) != mask) return wait(lane);
    Lane* lanes[kWarp];
    void* all_data[kWarp] = {};
    size_t count = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const int i = std::countr_zero(rest);
        Lane& other = *block_[size_t(first + i)];
        if (other.mask != mask) return wait(lane); // it waits for others first
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
        const Lane& lane = *block_[size_t(i)];
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

void block_barrier(Site site) { executor().block_barrier(site); }
void warp_collective(const Collective& collective, unsigned mask, void* data, Site site) {
    executor().meet(collective, mask, data, site);
}

} // namespace rg::simt
