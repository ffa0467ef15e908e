// The all-reduce algorithms, and the cost model that chooses one if the caller does not.
//
// The model has three constants: alpha (seconds per message), beta (seconds per byte sent) and gamma (seconds per byte
// added). The constants are fixed, not measured at start-up: the algorithms add in different orders, so a choice by
// noisy measurements would change the bits from run to run. choose() depends only on the length, the number of ranks,
// and whether one node holds them all. If the node then gives no shared memory, Group chooses again as between nodes.
// So runs can give the same bits only if they agree in all of this. bench_allreduce prints the machine's real values.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rg::par {

/// automatic: the choice of choose(). ring: segmented ring. small: recursive doubling. shared: through the memory that
/// the ranks of a node share. mpi: MPI_Allreduce of the MPI library, for comparison only, since it polls without
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
    double doubling(double bytes, int ranks) const {
        const unsigned p = unsigned(ranks);
        const int rounds = std::bit_width(p) - 1 + (std::has_single_bit(p) ? 0 : 2); // folding takes two more
        return rounds * (alpha + bytes * (beta + gamma));
    }
};

/// Returns the algorithm for a vector of this length. Within a node `shared` is best: it sends no messages, and ranks
/// synchronise faster in memory. Between nodes, CostModel decides which of `ring` and `small` is cheaper.
inline Algorithm choose(size_t bytes, int ranks, bool one_node) {
    if (one_node) return Algorithm::shared;
    const CostModel cost;
    return cost.doubling(double(bytes), ranks) < cost.ring(double(bytes), ranks) ? Algorithm::small : Algorithm::ring;
}

} // namespace rg::par
