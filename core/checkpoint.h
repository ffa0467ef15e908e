// The whole state of a training in one file: tensors (parameters, momentum, batch-norm state) and texts (epoch,
// sampler position, seed, options), enough to go on with the same bits.
//
// A checkpoint is a safetensors file DIR/step-00000123.safetensors, so any tool can look into it. Its metadata have a
// 64-bit checksum of the header, with the sixteen digits themselves counted as zeros, and in the header one of each
// tensor's bytes: any changed byte is found, and the error says where it is. Writing is atomic; the last few are kept,
// and older ones go only after the new one is durable. What the state means is the program's affair.
#pragma once

#include "core/safetensors.h"

namespace rg {

/// `state` as the bytes of the checkpoint of `step` (>= 0). The metadata keys format, checksum,
/// tensor_checksums and step are taken.
std::string encode_checkpoint(int64_t step, const TensorFile& state);

/// Writes `state` as the checkpoint of `step` (>= 0) into `dir`, which is made when missing, but not its parent. Then
/// deletes all but the newest `keep_last` (>= 1), those of later steps (a resume went back before them) and leftovers
/// of killed writes. Returns the path. Error: as of encode_checkpoint and write_file_atomic.
std::string save_checkpoint(const std::string& dir, int64_t step, const TensorFile& state, int keep_last);

struct LoadedCheckpoint {
    TensorFile state; // what save_checkpoint was given
    int64_t step = 0;
    std::string path;
    std::vector<std::string> warnings; // one line per newer checkpoint that was damaged and passed over
};

/// One file, or its bytes. Error: not a checkpoint, or damaged in any byte; it names the tensor, or the header. Memory:
/// as of decode_tensors().
LoadedCheckpoint decode_checkpoint(const std::string& bytes, const std::string& path);
LoadedCheckpoint load_checkpoint(const std::string& path);

/// The newest valid checkpoint of a folder. Error when there is none, with the reason for each that was tried.
LoadedCheckpoint load_latest_checkpoint(const std::string& dir);

} // namespace rg
