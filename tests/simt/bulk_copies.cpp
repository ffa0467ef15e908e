// Implements operands, barriers and bulk copies of async_proxy.h. products.cpp implements products.
#include "tests/simt/async_proxy.h"

#include "tests/simt/hopper.h"
#include "tests/simt/sanitizers.h"
#include "tests/simt/scheduler.h"

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

void execute(Barrier& barrier, const Barrier::Copy& copy) {
    {
        const FiberAccesses instrument;
        note_read(copy.from, size_t(copy.bytes));
        note_write(copy.to, size_t(copy.bytes));
    }
    std::memcpy(copy.to, copy.from, size_t(copy.bytes));
    executor().proxy.operands.copy_done(copy.to, copy.bytes);
    barrier.bytes -= copy.bytes;
}

/// Ends the phase if all arrivals and bytes have come. Executes the copies first if only they are missing and a thread
/// waits.
void try_end_phase(Barrier& barrier) {
    if (barrier.missing > 0) return;
    if (!barrier.waiting.empty() && !barrier.copies.empty()) {
        acquire(&barrier.order); // a copy comes after all that came before its issue
        for (const Barrier::Copy& copy : std::exchange(barrier.copies, {})) execute(barrier, copy);
        release(&barrier.order); // also if another thread will end the phase
    }
    if (barrier.bytes != 0) return;
    ++barrier.phase;
    barrier.missing = barrier.arrivals;
    release(&barrier.order);
    for (Lane* lane : std::exchange(barrier.waiting, {})) lane->state = State::ready;
}

void arrive(uint64_t* at, int bytes, Site site) {
    const OwnAccesses do_not_instrument;
    Barrier& barrier = barrier_at(at, site);
    if (barrier.missing == 0) fail_here(site, cat("more arrivals than the ", barrier.arrivals, " of this barrier"));
    release(&barrier.order);
    barrier.bytes += bytes;
    --barrier.missing;
    try_end_phase(barrier);
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

void OperandMemory::copy_issued(const std::byte* to, int bytes, Site site) {
    for (int i = 0; i < bytes; i += kBytes) {
        chunk(to + i).state = State::copy_in_flight;
        chunk(to + i).site = site;
    }
}

void OperandMemory::copy_done(const std::byte* to, int bytes) {
    for (int i = 0; i < bytes; i += kBytes) {
        chunk(to + i).state = State::visible;
        std::memcpy(chunk(to + i).contents, to + i, kBytes);
    }
}

std::string OperandMemory::objection(const std::byte* at, int bytes) const {
    for (int i = 0; i < bytes; i += kBytes) {
        const size_t index = size_t(at + i - executor().arena.begin()) / kBytes;
        const Chunk unknown, &c = index < chunks_.size() ? chunks_[index] : unknown;
        const auto site = [&] { return cat(" at ", c.site.file, ":", c.site.line); };
        switch (c.state) {
        case State::unknown: return "an operand that was not written by store_operand() or a copy";
        case State::stored:
            return cat("an operand that thread ", c.thread, " has stored", site(), " without fence_proxy_async() since");
        case State::copy_in_flight: return cat("the destination of the copy", site(), ", which has not been waited for");
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
    const int thread = executor().current().number;
    executor().proxy.operands.fence(thread);
    for (auto& [at, barrier] : executor().proxy.barriers) barrier.fenced |= barrier.initialiser == thread;
}

// ---- barriers ------------------------------------------------------------------------------------------------------

void mbarrier_init(uint64_t* at, int arrivals, Site site) {
    const OwnAccesses do_not_instrument;
    if (!in_shared(at, 8)) fail_here(site, "mbarrier_init: the barrier is not in shared memory");
    if (arrivals < 1) fail_here(site, cat("mbarrier_init: expected at least 1 arrival, got ", arrivals));
    const auto [barrier, fresh] = executor().proxy.barriers.try_emplace(at);
    if (!fresh) fail_here(site, "mbarrier_init: the barrier is already initialised");
    barrier->second.arrivals = barrier->second.missing = arrivals;
    barrier->second.initialiser = executor().current().number;
}

void mbarrier_arrive(uint64_t* barrier, Site site) { arrive(barrier, 0, site); }
void mbarrier_arrive_expect(uint64_t* barrier, int bytes, Site site) { arrive(barrier, bytes, site); }

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
            try_end_phase(barrier);
        }
        if (lane.state == State::waiting) executor().wait(lane);
    }
    acquire(&barrier.order);
}

void bulk_copy(void* to, const void* from, int bytes, uint64_t* at, Site site) {
    const OwnAccesses do_not_instrument;
    Barrier& barrier = barrier_at(at, site);
    const auto misaligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
    if (bytes <= 0 || bytes % 16 != 0 || misaligned(to) || misaligned(from))
        fail_here(site, cat("bulk copy of ", bytes, " bytes: size and addresses must be multiples of 16"));
    if (!in_shared(to, size_t(bytes))) fail_here(site, "bulk copy: the destination is not in shared memory");
    if (!barrier.fenced) fail_here(site, "bulk copy: no fence_proxy_async() since its barrier was initialised");
    const Barrier::Copy copy{bytes_of(to), from, bytes, site};
    executor().proxy.operands.copy_issued(copy.to, bytes, site);
    if (executor().settings.eager_copies)
        execute(barrier, copy);
    else
        barrier.copies.push_back(copy);
    release(&barrier.order); // another thread may end the phase, which comes after this copy
    try_end_phase(barrier);
}

// ---- blocks --------------------------------------------------------------------------------------------------------

void AsyncProxy::start_block() {
    operands.start_block();
    barriers.clear();
    warps.clear();
    groups.clear();
}

void AsyncProxy::end_block(const std::string& prefix) const {
    for (const auto& [at, barrier] : barriers)
        for (const Barrier::Copy& copy : barrier.copies)
            fail(prefix, "no thread waited for this copy [", copy.site.file, ":", copy.site.line, "]");
    for (const auto& [group, products] : groups)
        for (int warp = 4 * group; warp < 4 * group + 4; ++warp)
            if (const auto it = warps.find(warp); it == warps.end() || it->second.issued != products.size())
                fail(prefix, "warp ", warp, " issued ", it == warps.end() ? 0 : it->second.issued, " of the ",
                     products.size(), " products of its warpgroup");
}

} // namespace rg::simt
