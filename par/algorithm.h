// The all-reduce algorithms, and the cost model that chooses one if the caller does not.
//
// Ranks of a node that share memory sum there (shared.h). All other sums use messages between peers (peers.h): those of
// a ring, of recursive halving and doubling, or along a chain. The peers are all ranks, or one rank of each node.
//
//   cost per peer, for p peers and a vector of B bytes and N elements
//              rounds       bytes sent          additions
//   ring       2 (p-1)      2 (p-1)/p B         (p-1)/p N
//   halving    2 log2 p     2 (p-1)/p B         (p-1)/p N      for long vectors, if p is a power of two
//   chain      2 (p-1)      2 B                 N              all rounds at the same time, on different segments
//
// If p is no power of two, halving takes 2 rounds, B bytes and N additions more. A part that fits into one message is
// exchanged whole, in one round instead of two.
//
// The constants of the model are fixed, not measured at start-up: the algorithms add in different orders, so a choice
// by noisy measurements would change the bits from run to run. algorithm_for() depends only on the length and the
// number of peers. bench_allreduce measures the algorithms on a machine.
#pragma once

#include "par/peers.h"

#include <bit>

namespace rg::par {

/// automatic: `shared` if the ranks of a node share memory and all nodes have the same number of ranks, else the choice
/// of algorithm_for(). shared: in shared memory within a node. Between nodes, it uses the choice of algorithm_for(), or
/// the chain after Group::set_ordered_sums(). ring and halving: messages between all ranks, even within a node.
enum class Algorithm : uint8_t { automatic, shared, ring, halving };

/// Predicts the seconds of a sum over peers. alpha: seconds per message. beta: seconds per byte sent. gamma: seconds
/// per byte added. Assumes 2 us per message, and 10 GB/s for both the network (100 Gb/s nominal) and the additions
/// (memory speed).
struct CostModel {
    double alpha = 2e-6, beta = 1 / 10e9, gamma = 1 / 10e9;

    double ring(double bytes, int peers) const {
        const double p = peers;
        return 2 * (p - 1) * alpha + 2 * (p - 1) / p * bytes * beta + (p - 1) / p * bytes * gamma;
    }
    double halving(double bytes, int peers) const {
        int rest = int(std::bit_floor(unsigned(peers)));
        double seconds = rest == peers ? 0 : 2 * (alpha + bytes * beta) + bytes * gamma; // folding; see algorithm.cpp
        for (; rest > 1; rest /= 2) {
            const bool halves = bytes > double(kMessageBytes);
            if (halves) bytes /= 2;
            seconds += (halves ? 2 : 1) * (alpha + bytes * beta) + bytes * gamma;
        }
        return seconds;
    }
};

/// Returns the algorithm for a vector of this length: the ring, unless halving takes less time by the model. So long
/// vectors are summed in a ring, except for 4, 8, 16 ... peers, for which halving sends the same bytes in fewer rounds.
inline Algorithm algorithm_for(size_t bytes, int peers) {
    constexpr double kRounding = 1 + 1e-9; // for 2 peers, both take the same time
    const CostModel cost;
    return cost.ring(double(bytes), peers) <= kRounding * cost.halving(double(bytes), peers) ? Algorithm::ring
                                                                                             : Algorithm::halving;
}

/// Sum the vector in place over all peers, which must all call the same function. All end with the same bits, except
/// those of NaN. Throw Error if a message is late or has a wrong length.
void sum_along_ring(Peers& peers, const Vector& vector, const Operation& op);
/// Sums by recursive halving and doubling. The order of the additions depends only on the number of peers.
void sum_by_halving(Peers& peers, const Vector& vector, const Operation& op);
/// Adds the vectors at `sources` of one peer after another, in this order. `vector` may be one of the sources, and gets
/// the sum.
void sum_along_chain(Peers& peers, const Vector& vector, std::span<std::byte* const> sources, const Operation& op);
/// Sums by an algorithm of algorithm_for(), in this wire format. Wire::bf16 requires a vector of f32.
void sum_over(Peers& peers, const Vector& vector, Algorithm algorithm, Wire wire, const Operation& op);

} // namespace rg::par
