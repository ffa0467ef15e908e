// Saves the whole state of a training run in one file: tensors (parameters, momentum, batch-norm state) and texts
// (epoch, sampler position, seed, options). A resumed run continues with the same bits.
//
// A checkpoint is a safetensors file DIR/step-00000123.safetensors, so any tool can read it. Its metadata contain a
// 64-bit checksum of each tensor's bytes, and one of the header, computed with zeros in place of its own 16 digits.
// So every changed byte is detected, and the error names the damaged part. Writes are atomic. The newest few
// checkpoints are kept; older ones are deleted only after the new one is durable. The program decides what to save.
#pragma once

#include "core/safetensors.h"

namespace rg {

/// Returns the bytes of the checkpoint of `step` (>= 0) with this state. The metadata keys format, checksum,
/// tensor_checksums and step are reserved.
std::string encode_checkpoint(int64_t step, const TensorFile& state);

/// Writes `state` as the checkpoint of `step` (>= 0) into `dir`, and returns the path. Creates `dir` if necessary, but
/// not its parent. Then deletes all but the newest `keep_last` (>= 1), checkpoints of later steps (the run was resumed
/// from an earlier one), and leftovers of killed writes. Throws Error like encode_checkpoint() and
/// write_file_atomic().
std::string save_checkpoint(const std::string& dir, int64_t step, const TensorFile& state, int keep_last);

struct LoadedCheckpoint {
    TensorFile state; // as given to save_checkpoint()
    int64_t step = 0;
    std::string path;
    std::vector<std::string> warnings; // one line per newer checkpoint that was damaged and skipped
};

/// Decode one checkpoint, from its bytes or from its file. Throw Error if it is not a checkpoint or if any byte is
/// damaged; the error names the tensor or the header. decode_tensors() documents the memory.
LoadedCheckpoint decode_checkpoint(const std::string& bytes, const std::string& path);
LoadedCheckpoint load_checkpoint(const std::string& path);

/// Loads the newest valid checkpoint of a folder. Throws Error if there is none, with a reason for each damaged one.
LoadedCheckpoint load_latest_checkpoint(const std::string& dir);

} // namespace rg
