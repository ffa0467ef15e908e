// The all-reduce algorithms, and the cost model that chooses one if the caller does not.
//
// The model has three constants: alpha (seconds per message), beta (seconds per byte sent) and gamma (seconds per byte
// added). The constants are fixed, not measured at start-up: the algorithms add in different orders, so a choice by
// noisy measurements would change the bits from run to run. The choice depends only on the length, the number of ranks,
// and whether one node holds them all. So runs with the same seed and number of ranks give the same bits, if all of
// them use one node, or all of them several. bench_allreduce prints the machine's real values next to the constants.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rg::par {

/// automatic: the choice of choose(). ring: segmented ring. small: recursive doubling. shared: through the memory that
/// the ranks of a node share. mpi: MPI_Allreduce of the MPI library, for comparison only, since it polls without
/// yielding the core.
enum class Algorithm : uint8_t { automatic, ring, small, shared, mpi };

/// Predicts seconds between nodes. Assumes a 100 Gb/s network with the latency of MPI, and additions at memory speed.
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

/// Returns the algorithm for a vector of this length. Within a node `shared` is best: each byte crosses memory once,
/// and ranks synchronise faster than by messages. Between nodes the model chooses the cheaper of `ring` and `small`.
inline Algorithm choose(size_t bytes, int ranks, bool one_node) {
    if (one_node) return Algorithm::shared;
    const CostModel cost;
    return cost.doubling(double(bytes), ranks) < cost.ring(double(bytes), ranks) ? Algorithm::small : Algorithm::ring;
}

} // namespace rg::par
