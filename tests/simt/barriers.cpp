// Implements operands and barriers of async_proxy.h. products.cpp implements products.
#include "ringgrad/tests/simt/async_proxy.h"

#include "ringgrad/tests/simt/hopper.h"
#include "ringgrad/tests/simt/sanitizers.h"
#include "ringgrad/tests/simt/scheduler.h"

#include <cstring>
#include <utility>

namespace rg::simt {
namespace {

constexpr Collective kBarrierWait{.name = "mbarrier_wait"};

std::byte* bytes_of(const void* p) { return static_cast<std::byte*>(const_cast<void*>(p)); }

Barrier& barrier_at(const void* address, Site site) {
    auto& barriers = executor().proxy.barriers;
    const auto barrier = barriers.find(address);
    if (barrier == barriers.end()) fail_here(site, "this barrier has not been initialised");
    return barrier->second;
}

} // namespace

// ---- operands ------------------------------------------------------------------------------------------------------

void OperandMemory::start_block() {
    if (!used_) return;
    chunks_.assign(chunks_.size(), {});
    unfenced_.clear();
    used_ = false;
}

OperandMemory::Chunk& OperandMemory::chunk(const std::byte* at) {
    const size_t i = size_t(at - executor().arena.begin()) / kBytes;
    if (i >= chunks_.size()) chunks_.resize(i + 1);
    used_ = true;
    return chunks_[i];
}

void OperandMemory::stored(const std::byte* at, int thread, Site site) {
    Chunk& c = chunk(at);
    c.state = State::stored;
    c.thread = thread;
    c.site = site;
    std::memcpy(c.contents, at, kBytes);
    unfenced_[thread].push_back(at);
}

void OperandMemory::fence(int thread) {
    for (const std::byte* at : std::exchange(unfenced_[thread], {}))
        if (Chunk& c = chunk(at); c.state == State::stored && c.thread == thread) c.state = State::visible;
}

std::string OperandMemory::objection(const std::byte* at, int bytes) const {
    for (int i = 0; i < bytes; i += kBytes) {
        const size_t index = size_t(at + i - executor().arena.begin()) / kBytes;
        const Chunk unknown, &c = index < chunks_.size() ? chunks_[index] : unknown;
        const std::string site = cat(" at ", c.site.file ? c.site.file : "", ":", c.site.line);
        switch (c.state) {
        case State::unknown: return "an operand that was not written by store_operand()";
        case State::stored:
            return cat("an operand that thread ", c.thread, " has stored", site, " without fence_proxy_async() since");
        case State::visible:
            if (std::memcmp(c.contents, at + i, kBytes) != 0)
                return "an operand that was overwritten without store_operand()";
        }
    }
    return {};
}

uint32_t shared_address(const void* shared, Site site) {
    if (!in_shared(shared, 1)) fail_here(site, "shared_address: the address is not in shared memory");
    return uint32_t(bytes_of(shared) - executor().arena.begin());
}

void operand_stored(const void* shared, Site site) {
    const OwnAccesses do_not_instrument;
    if (reinterpret_cast<uintptr_t>(shared) % 16 != 0)
        fail_here(site, "store_operand: the address is not a multiple of 16");
    if (!in_shared(shared, 16)) fail_here(site, "store_operand: the address is not within a shared array");
    executor().proxy.operands.stored(bytes_of(shared), executor().current().number, site);
}

void fence_proxy_async() {
    const OwnAccesses do_not_instrument;
    executor().proxy.operands.fence(executor().current().number);
}

// ---- barriers ------------------------------------------------------------------------------------------------------

void mbarrier_init(uint64_t* at, int arrivals, Site site) {
    const OwnAccesses do_not_instrument;
    if (!in_shared(at, 8)) fail_here(site, "mbarrier_init: the barrier is not in shared memory");
    if (arrivals < 1) fail_here(site, cat("mbarrier_init: expected at least 1 arrival, got ", arrivals));
    const auto [barrier, fresh] = executor().proxy.barriers.try_emplace(at);
    if (!fresh) fail_here(site, "mbarrier_init: the barrier is already initialised");
    barrier->second.arrivals = barrier->second.missing = arrivals;
}

void mbarrier_arrive(uint64_t* at, Site site) {
    const OwnAccesses do_not_instrument;
    Barrier& barrier = barrier_at(at, site);
    release(&barrier.order);
    if (--barrier.missing > 0) return;
    ++barrier.phase;
    barrier.missing = barrier.arrivals;
    for (Lane* lane : std::exchange(barrier.waiting, {})) lane->state = State::ready;
}

void mbarrier_wait(uint64_t* at, int parity, Site site) {
    Barrier& barrier = barrier_at(at, site);
    Lane& lane = executor().current();
    while (barrier.phase % 2 == parity) {
        lane.collective = &kBarrierWait;
        lane.mask = 0;
        lane.site = site;
        lane.state = State::waiting;
        {
            const OwnAccesses do_not_instrument;
            barrier.waiting.push_back(&lane);
        }
        executor().wait(lane);
    }
    acquire(&barrier.order);
}

// ---- blocks --------------------------------------------------------------------------------------------------------

void AsyncProxy::start_block() {
    operands.start_block();
    barriers.clear();
    warps.clear();
    groups.clear();
}

void AsyncProxy::end_block(const std::string& prefix) const {
    for (const auto& [group, products] : groups)
        for (int warp = 4 * group; warp < 4 * group + 4; ++warp)
            if (const auto it = warps.find(warp); it == warps.end() || it->second.issued != products.size())
                fail(prefix, "warp ", warp, " issued ", it == warps.end() ? 0 : it->second.issued, " of the ",
                     products.size(), " products of its warpgroup");
}

} // namespace rg::simt
