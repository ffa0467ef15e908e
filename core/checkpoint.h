// Saves the state of a training run in one file: tensors (parameters, momentum, batch-norm state) and texts (options,
// epoch, mini-batch). With the same options, number of ranks and kind of processor (on CPUs, the same instruction set),
// a resumed run computes the same bits as a run without interruption.
//
// A checkpoint is a safetensors file DIR/step-00000123.safetensors, so other tools can read it. Its checksums detect
// damage to any byte (see safetensors.h). Writes are atomic. The newest few checkpoints are kept; older ones are
// deleted only after the new one is durable. The program decides which tensors and texts to save.
#pragma once

#include "core/safetensors.h"

namespace rg {

/// Returns the contents of the checkpoint file of `step` (>= 0) with this state. Throws Error like encode_tensors(),
/// and if the state's metadata use the key format or step.
std::string encode_checkpoint(int64_t step, const TensorFile& state);

/// Writes `state` as the checkpoint of `step` (>= 0) into `dir`, and returns the path. Creates `dir` if necessary, but
/// not its parent. Then deletes the checkpoints of later steps, which exist if the run was resumed from an older
/// checkpoint. Of the others, this one included, keeps only the newest `keep_last` (>= 1). Also deletes the leftovers
/// of killed writes. Throws Error like encode_checkpoint() and write_file_atomic(), and if it cannot create or read
/// `dir`.
std::string save_checkpoint(const std::string& dir, int64_t step, const TensorFile& state, int keep_last);

struct LoadedCheckpoint {
    TensorFile state; // as given to save_checkpoint(), but `source` is `path`
    int64_t step = 0;
    std::string path;
    std::vector<std::string> warnings; // load_latest_checkpoint() adds one for each newer file that it cannot load
};

/// Returns true if a file has the format of a checkpoint.
bool is_checkpoint(const TensorFile& file);

/// Decode one checkpoint, from the file's contents or from the file. Throw Error like decode_tensors(), and if it is
/// not a checkpoint; the error names `path`. load_checkpoint() also throws like read_file(). safetensors.h says how
/// much memory this takes.
LoadedCheckpoint decode_checkpoint(const std::string& bytes, const std::string& path);
LoadedCheckpoint load_checkpoint(const std::string& path);

/// Loads the newest valid checkpoint of a folder: the one with the highest step. If there is none, throws Error with
/// the reason for each file.
LoadedCheckpoint load_latest_checkpoint(const std::string& dir);

} // namespace rg
