// Implements shuffles and votes as warp collectives of the executor.
#include "tests/simt/warp.h"

namespace rg::simt {
namespace {

struct ShuffleData {
    uint64_t in;
    int source;
    uint64_t out;
};

void exchange(void* const (&data)[kWarp], unsigned, int) {
    for (void* const lane : data) {
        if (!lane) continue;
        ShuffleData& receiver = *static_cast<ShuffleData*>(lane);
        receiver.out = static_cast<const ShuffleData*>(data[receiver.source])->in;
    }
}

struct Vote {
    bool predicate;
    unsigned ballot;
};

void count_votes(void* const (&data)[kWarp], unsigned, int) {
    unsigned ballot = 0;
    for (int i = 0; i < kWarp; ++i)
        if (data[i] && static_cast<const Vote*>(data[i])->predicate) ballot |= 1u << i;
    for (void* const lane : data)
        if (lane) static_cast<Vote*>(lane)->ballot = ballot;
}

/// Returns the lane from which a shuffle reads. A source outside of the lane's segment gives the lane itself (PTX ISA
/// manual).
int source_lane(Shuffle mode, int lane, int operand, int width) {
    const int first = lane & ~(width - 1);
    const int last = first + width - 1;
    int source = lane;
    switch (mode) {
    case Shuffle::index: return first | (operand & (width - 1));
    case Shuffle::up: source = operand > lane - first ? lane : lane - operand; break;
    case Shuffle::down: source = operand > last - lane ? lane : lane + operand; break;
    case Shuffle::exclusive_or: source = (lane ^ operand) & (kWarp - 1); break;
    }
    return source > last ? lane : source;
}

} // namespace

uint64_t shuffle(Shuffle mode, unsigned mask, uint64_t bits, int operand, int width, Site site) {
    static constexpr const char* kNames[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};
    const char* const name = kNames[size_t(mode)];
    if (width < 1 || width > kWarp || (width & (width - 1)) != 0)
        fail_here(site, cat(name, ": width ", width, " is not a power of two up to 32"));
    ShuffleData data{bits, source_lane(mode, lane_index(), operand, width), 0};
    if (!(mask >> data.source & 1))
        fail_here(site, cat(name, ": reads lane ", data.source, ", which is not in mask ", hex(mask)));
    warp_collective({.name = name, .argument = width, .combine = exchange}, mask, &data, site);
    return data.out;
}

unsigned ballot(const char* name, unsigned mask, bool predicate, Site site) {
    Vote vote{predicate, 0};
    warp_collective({.name = name, .combine = count_votes}, mask, &vote, site);
    return vote.ballot;
}

void warp_barrier(unsigned mask, Site site) {
    warp_collective({.name = "__syncwarp", .orders_memory = true}, mask, nullptr, site);
}

} // namespace rg::simt
