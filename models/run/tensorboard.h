// Event files for TensorBoard: scalars by step, in TensorFlow's format, written without it.
//
// A file is a sequence of TFRecords, each an Event (protobuf):
//
//     record    length (8 bytes, little-endian), crc of the length, the bytes, crc of the bytes; crc: CRC-32C, masked
//     Event     wall_time = 1 (double), step = 2, file_version = 3, summary = 5, session_log = 7
//     Summary   value = 1, repeated: { tag = 1, simple_value = 2 (float) }
//
// TensorBoard reads all files of a folder in the order of their names, so a run that goes on writes another one. Each
// begins with a START of the session at the step to come. TensorBoard takes the first as the beginning; at a later one
// it forgets what it has of that step and those after it, so that no step is drawn twice.
#pragma once

#include "core/json.h"

namespace rg {

/// CRC-32C (Castagnoli), as TFRecords have it before the mask.
uint32_t crc32c(std::string_view bytes);

class EventFile {
public:
    /// A new file in the folder, whose name comes after those that are there. `step`: the last one that is done. Error:
    /// path and reason.
    EventFile(const std::string& folder, int64_t step);
    ~EventFile();
    EventFile(const EventFile&) = delete;
    EventFile& operator=(const EventFile&) = delete;

    /// A line of metrics.jsonl: each of its numbers as step/NAME or epoch/NAME, at that step or at the last one.
    void add(const Json& line);

private:
    void write(const std::string& event);

    std::string path_;
    int file_ = -1;
    int64_t step_;
};

} // namespace rg
