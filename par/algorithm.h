// The all-reduce algorithms, and the cost model that chooses one if the caller does not.
//
// The model has three constants: alpha (seconds per message), beta (seconds per byte sent) and gamma (seconds per byte
// added). The constants are fixed, not measured at start-up: the algorithms add in different orders, so a choice by
// noisy measurements would change the bits from run to run. choose() depends only on the length, the numbers of ranks
// and nodes, and whether the vector lies in shared memory. If a single node gives no shared memory, or nodes have
// different numbers of ranks, Group chooses as if each rank were a node. Runs that differ in any of this may give
// different bits. bench_allreduce measures the algorithms on a machine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rg::par {

/// automatic: `shared` after Group::sum_in_order() or with Wire::bf16, else the choice of choose(). ring: segmented
/// ring. small: recursive doubling. shared: adds node by node, in rank order within a node. It uses memory that the
/// ranks of a node share, and a chain of the nodes. mpi: MPI_Allreduce, for comparison only, since MPI polls without
/// yielding the core.
enum class Algorithm : uint8_t { automatic, ring, small, shared, mpi };

/// Predicts the seconds of an all-reduce between nodes. Assumes 2 us per message, and 10 GB/s for both the network (100
/// Gb/s nominal) and the additions (memory speed).
struct CostModel {
    double alpha = 2e-6, beta = 1 / 10e9, gamma = 1 / 10e9;

    double ring(double bytes, int ranks) const {
        const double p = ranks;
        return 2 * (p - 1) * alpha + 2 * (p - 1) / p * bytes * beta + (p - 1) / p * bytes * gamma;
    }
    /// The two directions of a link carry data at the same time. A node inside the chain sends all bytes twice, once to
    /// each neighbour.
    double chain(double bytes, int nodes) const {
        return 2 * (nodes - 1) * alpha + bytes * ((nodes > 2 ? 2 : 1) * beta + gamma);
    }
    double doubling(double bytes, int ranks) const {
        const unsigned p = unsigned(ranks);
        const int rounds = std::bit_width(p) - 1 + (std::has_single_bit(p) ? 0 : 2); // folding takes two more
        return rounds * (alpha + bytes * (beta + gamma));
    }
};

/// Returns the algorithm for a vector of this length. With one node `shared` is best: it sends no messages, and ranks
/// synchronise faster in memory. Between nodes, CostModel decides between `small` and another: `shared` for a vector
/// that lies in shared memory, else `ring`.
inline Algorithm choose(size_t bytes, int ranks, int nodes, bool in_shared_memory) {
    if (nodes == 1) return Algorithm::shared;
    const CostModel cost;
    const double size = double(bytes), other = in_shared_memory ? cost.chain(size, nodes) : cost.ring(size, ranks);
    if (cost.doubling(size, ranks) < other) return Algorithm::small;
    return in_shared_memory ? Algorithm::shared : Algorithm::ring;
}

} // namespace rg::par
