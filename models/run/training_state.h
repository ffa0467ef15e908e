// Everything that a stopped training needs to go on with the same bits, as the contents of a checkpoint.
//
// There is no random state: what is random is a function of the seed and of these counters.
#pragma once

#include "core/options.h"
#include "core/parameters.h"
#include "core/safetensors.h"

namespace rg {

/// Where a training stands.
struct Position {
    int64_t epoch = 1, batch = 0;                 // of the next step; batches count from 0
    int64_t step = 0;                             // done, since the start
    double loss_sum = 0, correct = 0, images = 0; // of this epoch so far, over all ranks
};

/// The optimizer's flat buffers by name; the names begin with "optimizer.".
using OptimizerState = std::vector<NamedTensor>;

TensorFile training_state(const std::string& program, const Parameters& parameters, const OptimizerState& optimizer,
                          const Position& position, const Options& options);

/// The inverse; parameters and optimizer are overwritten. Error: the file is of another program or another network.
Position restore_training(const std::string& program, TensorFile file, Parameters& parameters,
                          const OptimizerState& optimizer);

/// Gives every option that the command line does not the value that the file's training had. Error: one of `fixed` is
/// given with another value; the position in the data, or the network, would mean nothing then. Or a value that
/// check_stored_command() refuses.
void restore_options(const TensorFile& file, Options& options, std::initializer_list<std::string_view> fixed);

} // namespace rg
