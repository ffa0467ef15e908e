// A checkpoint of a training holds all that a resumed run needs to end with the same bits.
#pragma once

#include "ringgrad/core/options.h"
#include "ringgrad/core/safetensors.h"
#include "ringgrad/models/run/optimizer.h"
#include "ringgrad/models/run/task.h"

namespace rg {

/// The position of a training. It has no random state, since random numbers depend only on the seed, these counters,
/// and indices such as that of an image. When all batches of an epoch are done, `batch` is their number until the next
/// epoch begins.
struct Position {
    int64_t epoch = 1, batch = 0;     // of the next step; epochs count from 1, batches from 0
    int64_t step = 0;                 // number of finished steps, also skipped ones, since the start
    double loss_sum = 0, samples = 0; // sums over the samples of this epoch's applied steps, on all ranks
    std::vector<double> sums = {};    // the same for the metrics; see Task::sums()
    double best = 0;                  // best value of the metric that chooses the best model
    int64_t best_epoch = 0;           // epoch of that test; 0 before the first test
};

/// Returns the contents of a checkpoint: copies of the tensors of state_dict() and of the optimizer's flat buffers, and
/// as metadata the program, the options and the position. The caller adds the metadata of the model, and the
/// fingerprints of the data.
TensorFile training_state(const std::string& program, const Parameters& parameters, const OptimizerState& optimizer,
                          const Position& position, const Options& options);

/// Restores parameters and optimizer from a checkpoint, and returns its position. Throws Error if the file is from
/// another program or network, or is malformed.
Position restore_training(const std::string& program, TensorFile file, Parameters& parameters,
                          const OptimizerState& optimizer, const Task& task);

/// Sets the options that the command line does not give to their values in the checkpoint. Throws Error if the command
/// line changes an option of the network, or one after which the checkpoint would not fit the images, their order,
/// the optimizer or the best model so far. Also throws Error if check_stored_command() refuses a stored value.
void restore_options(const TensorFile& file, Options& options);

} // namespace rg
