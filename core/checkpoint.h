// Saves the state of a training run in one file: tensors (parameters, momentum, batch-norm state) and texts (options,
// epoch, mini-batch). With the same options, number of ranks and kind of processor (on CPUs, the same instruction set),
// a resumed run computes the same bits as a run without interruption.
//
// A checkpoint is a safetensors file DIR/step-00000123.safetensors, so other tools can read it. Its metadata contain a
// 64-bit checksum of each tensor's bytes, and one of the header with its length. The header's checksum is computed with
// '0' in place of its own 16 digits. So damage to any byte is detected (see checksum.h), and the error names the
// damaged part. Writes are atomic. The newest few checkpoints are kept; older ones are deleted only after the new one
// is durable. The program decides which tensors and texts to save.
#pragma once

#include "ringgrad/core/safetensors.h"

namespace rg {

/// Returns the contents of the checkpoint file of `step` (>= 0) with this state. The tensors must be in host memory.
/// Throws Error like encode_tensors(), and if the state's metadata use a reserved key: format, checksum,
/// tensor_checksums or step.
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
    std::vector<std::string> warnings; // of load_latest_checkpoint(): one for each newer file that cannot be loaded
};

/// Decode one checkpoint, from the file's contents or from the file. Throw Error if it is not a checkpoint or if a
/// checksum shows damage (checksum.h); the error names `path`, and the tensor or the header. load_checkpoint() also
/// throws like read_file(). safetensors.h says how much memory this takes.
LoadedCheckpoint decode_checkpoint(const std::string& bytes, const std::string& path);
LoadedCheckpoint load_checkpoint(const std::string& path);

/// Loads the newest valid checkpoint of a folder: the one with the highest step. If there is none, throws Error with
/// the reason for each file.
LoadedCheckpoint load_latest_checkpoint(const std::string& dir);

} // namespace rg
