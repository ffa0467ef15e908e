// Writes event files for TensorBoard: scalars by step, in TensorFlow's format, without TensorFlow.
//
// A file is a sequence of TFRecords, each an Event (protobuf):
//
//     record    length of the event (8 bytes), its crc, the event, its crc; crc: CRC-32C, masked (4 bytes);
//               all little-endian
//     Event     wall_time = 1 (double), step = 2, file_version = 3, summary = 5, session_log = 7
//     Summary   value = 1, repeated: { tag = 1, simple_value = 2 (float) }
//
// TensorBoard reads all files of a folder in the order of their names, so a resumed run writes another file. Each file
// starts with its version and an event START for the next step. Earlier files may have values of this step and later
// ones. TensorBoard drops them at the START, or with its fast loader at the next value. So no step is drawn twice.
#pragma once

#include "ringgrad/core/descriptor.h"
#include "ringgrad/core/json.h"

namespace rg {

/// Returns the CRC-32C (Castagnoli), without the mask of TFRecords.
uint32_t crc32c(std::string_view bytes);

class EventFile {
public:
    /// Creates a file in the folder, with a name that sorts after those of all event files in it. `step` is the last
    /// finished step. Throws Error if the file cannot be created.
    EventFile(const std::string& folder, int64_t step);

    /// Adds the numbers of a line of metrics.jsonl as step/NAME or epoch/NAME. Those of an epoch are stored at the last
    /// step. Ignores a line that has neither a step nor an epoch.
    void add(const Json& line);

private:
    void write(const std::string& event);

    std::string path_;
    Descriptor file_;
    int64_t step_;
};

} // namespace rg
