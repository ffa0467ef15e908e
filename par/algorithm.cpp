// The sums over peers. Each consists of rounds, in which a peer sends a part of the vector, and adds or stores a part
// that it receives.
#include "par/algorithm.h"

#include <cstring>

namespace rg::par {

using OnArrival = Peers::OnArrival;

// Ring (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009). The
// vector is cut into p chunks. In each round, every peer sends one chunk to the next peer and receives one from the
// previous peer. Peer r starts by sending chunk r. The diagram shows peers 0 1 2 and chunks a b c. "a01" is chunk a
// summed over peers 0 and 1, "a" alone is the final sum, and "." is a chunk that is not final yet:
//
//              peer 0           peer 1           peer 2
//   start      a0  b0  c0       a1  b1  c1       a2  b2  c2        0 --> 1 --> 2
//   add 1      a0  b0  c20      a01 b1  c1       a2  b12 c2        ^           |
//   add 2      a0  b012 c20     a01 b1  c012     a012 b12 c2       +-----------+
//   store 1    a   b   .        .   b   c        a   .   c
//   store 2    a   b   c        a   b   c        a   b   c
void sum_along_ring(Peers& peers, const Vector& vector, const Operation& op) {
    const int p = peers.size(), r = peers.index(), next = (r + 1) % p, previous = (r + p - 1) % p;
    const auto border = [&](int i) {
        return vector.count / size_t(p) * size_t(i) + vector.count % size_t(p) * size_t(i) / size_t(p);
    };
    const auto chunk = [&](int i) { return vector.subvector(border((i + p) % p), border((i + p) % p + 1)); };
    for (int k = 0; k < p - 1; ++k)
        peers.exchange(chunk(r - k), next, chunk(r - k - 1), previous, OnArrival::add, op, k);
    for (int k = 0; k < p - 1; ++k)
        peers.exchange(chunk(r - k + 1), next, chunk(r - k), previous, OnArrival::store, op, p - 1 + k);
}

// Recursive halving and doubling (Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur,
// Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005). Each round has
// a bit, and pairs the peers whose numbers differ in it. The two halve the part of the vector that both hold. Each
// sends one half and adds the other to its own. After the last bit, each holds the final sum of its own part. Then the
// same pairs, from the last bit to the first, send each other these sums. For p = 4 and parts a b c d:
//
//   halve bit 0     0 <-> 1   2 <-> 3     0 and 2 hold a b, 1 and 3 hold c d
//   halve bit 1     0 <-> 2   1 <-> 3     0 holds a, 2 holds b, 1 holds c, 3 holds d
//   double bit 1    0 <-> 2   1 <-> 3     0 and 2 hold a b, 1 and 3 hold c d
//   double bit 0    0 <-> 1   2 <-> 3     all hold a b c d
//
// Parts of one message are not halved: the pair exchanges the whole part, and both add it. That takes one message less
// (recursive doubling). Both then add the same two numbers, and a + b has the bits of b + a, unless both are NaN. So by
// induction, all peers that hold a part hold the same bits, and the order of the additions depends only on p.
//
// If p is not a power of two, some peers are folded into others first. For p = 6, there are 2 peers more than 4. Peers
// 0 and 2 send their vectors to 1 and 3, and wait for the sums. The other four (1 3 4 5) have the numbers 0 1 2 3.
void sum_by_halving(Peers& peers, const Vector& vector, const Operation& op) {
    const int p = peers.size(), power = int(std::bit_floor(unsigned(p))), extra = p - power, r = peers.index();
    const bool folds = r < 2 * extra;
    const Vector none{vector.data, 0, vector.type};
    int round = 0;
    if (folds && r % 2 == 0) {
        peers.exchange(vector, r + 1, none, r + 1, OnArrival::add, op, round++);
        return peers.exchange(none, r + 1, vector, r + 1, OnArrival::store, op, round);
    }
    if (folds) peers.exchange(none, r - 1, vector, r - 1, OnArrival::add, op, round++);
    const int number = folds ? r / 2 : r - extra;
    const auto partner = [&](int bit) {
        const int other = number ^ bit;
        return other < extra ? 2 * other + 1 : other + extra;
    };
    // This peer keeps `own` in a round, and its partner keeps `other`. These are the two halves of a part, or both are
    // the whole part if it fits into one message.
    struct Halves {
        Vector own, other;
    };
    const auto halve = [&](const Vector& part, int bit) -> Halves {
        const Vector low = part.subvector(0, part.count / 2), high = part.subvector(part.count / 2, part.count);
        return number & bit ? Halves{high, low} : Halves{low, high};
    };
    std::vector<Halves> halvings;
    Vector part = vector;
    for (int bit = 1; bit < power; bit *= 2) {
        Halves halves{part, part};
        if (part.bytes() > peers.message_bytes()) halvings.push_back(halves = halve(part, bit));
        peers.exchange(halves.other, partner(bit), halves.own, partner(bit), OnArrival::add, op, round++);
        part = halves.own;
    }
    for (int i = int(halvings.size()) - 1; i >= 0; --i) {
        const auto& [own, other] = halvings[size_t(i)];
        peers.exchange(own, partner(1 << i), other, partner(1 << i), OnArrival::store, op, round++);
    }
    if (folds) peers.exchange(vector, r - 1, none, r - 1, OnArrival::store, op, round);
}

// Chain. Each peer adds its vectors to the sum of the peers before it, and sends this sum to the next peer. The last
// peer sends the final sum back. Segments follow each other in both directions at the same time. A peer waits for the
// final sum of a segment only after it has sent on `lag` more: meanwhile the segment travels to the last peer and back.
void sum_along_chain(Peers& peers, const Vector& vector, std::span<std::byte* const> sources, const Operation& op) {
    const int r = peers.index(), last = peers.size() - 1;
    const size_t segments = peers.segments(vector), lag = kInFlight * size_t(last - r);
    const Vector none{vector.data, 0, vector.type}, before = r == 0 ? none : vector, after = r == last ? none : vector;
    SegmentStream sums(peers, SegmentStream::from, r - 1, before, op, 0),
        sums_on(peers, SegmentStream::to, r + 1, after, op, 0);
    SegmentStream totals(peers, SegmentStream::from, r + 1, after, op, 0),
        totals_back(peers, SegmentStream::to, r - 1, before, op, 0);
    const auto add_own = [&](size_t i) {
        const Vector segment = peers.segment(vector, i);
        const auto offset = segment.data - vector.data;
        alignas(double) std::byte sum[kMessageBytes];
        sums.start_up_to(i + kInFlight);
        const std::byte* const sum_before = sums.wait(i);
        std::memcpy(sum, sum_before ? sum_before : sources[0] + offset, segment.bytes());
        for (std::byte* const source : sources.subspan(r == 0))
            add_into(segment.type, sum, source + offset, segment.count);
        std::memcpy(segment.data, sum, segment.bytes());
        sums_on.start_up_to(i + 1);
    };
    const auto pass_back = [&](size_t i) {
        totals.start_up_to(i + kInFlight);
        const Vector segment = peers.segment(vector, i);
        sums_on.wait(i); // the sum must have been sent before the total replaces it
        if (const std::byte* const total = totals.wait(i)) std::memcpy(segment.data, total, segment.bytes());
        totals_back.start_up_to(i + 1);
    };
    for (size_t i = 0; i < segments + lag; ++i) {
        if (i < segments) add_own(i);
        if (i >= lag) pass_back(i - lag);
    }
    for (size_t i = segments - std::min(segments, kInFlight); i < segments; ++i) totals_back.wait(i);
}

void sum_over(Peers& peers, const Vector& vector, Algorithm algorithm, Wire wire, const Operation& op) {
    const auto sum = algorithm == Algorithm::ring ? sum_along_ring : sum_by_halving;
    if (wire == Wire::full) return sum(peers, vector, op);
    const std::span values(reinterpret_cast<float*>(vector.data), vector.count);
    std::vector<bf16> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
    sum(peers, {reinterpret_cast<std::byte*>(rounded.data()), rounded.size(), Element::bf16}, op);
    std::transform(rounded.begin(), rounded.end(), values.begin(), to_float);
}

} // namespace rg::par
