// Which allreduce algorithms there are, and the model that picks one where the caller leaves it open.
//
// The model is alpha (seconds per message), beta (seconds per byte sent) and gamma (seconds per byte added). Its
// constants are fixed, not measured when a program starts: the algorithms add in different orders, so a choice that
// followed a noisy measurement would give other bits from one run to the next. With constants the choice depends on
// length, rank count and whether all ranks share a node, and the same seed and rank count give the same bits.
// bench_allreduce prints what a machine really has beside them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rg::par {

/// ring: segmented ring. small: recursive doubling. shared: through memory that the ranks of one node share. mpi: the
/// library's own MPI_Allreduce, as a yardstick (it polls without yielding).
enum class Algorithm : uint8_t { automatic, ring, small, shared, mpi };

/// Between nodes: a 100 Gb/s network with MPI's latency; sums at memory speed.
struct CostModel {
    double alpha = 2e-6, beta = 1 / 10e9, gamma = 1 / 10e9;

    double ring(double bytes, int ranks) const {
        const double p = ranks;
        return 2 * (p - 1) * alpha + 2 * (p - 1) / p * bytes * beta + (p - 1) / p * bytes * gamma;
    }
    double doubling(double bytes, int ranks) const {
        const unsigned p = unsigned(ranks);
        const int rounds = std::bit_width(p) - 1 + (std::has_single_bit(p) ? 0 : 2); // two more when folding
        return rounds * (alpha + bytes * (beta + gamma));
    }
};

/// The algorithm for a vector: shared wherever one node holds all ranks (its bytes cross memory once, and its
/// hand-overs are shorter than a message), else the cheaper of the other two by the model.
inline Algorithm choose(size_t bytes, int ranks, bool one_node) {
    if (one_node) return Algorithm::shared;
    const CostModel cost;
    return cost.doubling(double(bytes), ranks) < cost.ring(double(bytes), ranks) ? Algorithm::small : Algorithm::ring;
}

} // namespace rg::par
