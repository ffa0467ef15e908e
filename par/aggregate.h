// From what each rank computed on its share of the mini-batch to what one rank would have computed on all of it.
//
// Rank j saw m_j of the M samples; its share is f_j = m_j / M. Gradients and losses are means over samples, so the
// whole is the sum of f_j times the local value. Batch-norm statistics are a mean and a variance per channel:
//
//   mean_c = sum f_j mean_j        variance_c = sum f_j (variance_j + (mean_j - mean_c)^2)
//
// The second term is what the ranks' means differ by; without it the variance is too small. A rank with no samples
// contributes nothing, whatever its memory holds. All ranks end with the same bits.
#pragma once

#include "par/group.h"

namespace rg::par {

/// f_j of this rank. Error if samples is negative or no rank has any.
double share_of(Group& group, int64_t samples);

/// values = sum f_j values_j, in place: gradients (float), losses (double).
void aggregate(Group& group, std::span<float> values, double share, std::string_view what,
               Algorithm algorithm = Algorithm::automatic);
void aggregate(Group& group, std::span<double> values, double share, std::string_view what);

/// One layer's running statistics. Not owned.
struct StateBlock {
    float* mean = nullptr;
    float* variance = nullptr;
    int64_t channels = 0;
};
/// All layers' statistics by the formulas above, in double, in place: two small allreduces. Allocates.
/// `riders` are summed over the ranks in the same message, unweighted: a step's loss, counts and flags. Where ranks
/// outnumber cores, or are on several nodes, each message that a step does not send is a wait that it does not have.
void aggregate_state(Group& group, std::span<const StateBlock> blocks, double share, std::span<double> riders = {});

/// Error on all ranks unless all hold the same bits (and count), by a 64-bit checksum. It names the ranks that differ
/// from the majority; where there is none, those that differ from rank 0.
void verify_identical(Group& group, std::span<const float> values, std::string_view what);

} // namespace rg::par
