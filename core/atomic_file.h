// Whole files in and out, such that a file that we write either has its new contents or keeps its old ones.
//
// Writing goes to a temporary file in the same folder, then fsync, rename, and fsync of the folder: after a crash, a
// kill or a full disk at any point there is one complete file under the name. Everything that must survive
// (checkpoints, models, configurations) is written this way. There is no streaming: what we write fits in memory.
#pragma once

#include "core/base.h"

#include <string_view>

namespace rg {

/// Part of the name of every temporary file: NAME + kTempMark + a random number. One that lies about is left from a
/// kill.
inline constexpr std::string_view kTempMark = ".tmp-";

/// What is read of one file at most, if not said otherwise.
inline constexpr uint64_t kMaxFile = uint64_t{1} << 33;

/// The bytes of a regular file. Error: not there, not readable, not a regular file, longer than `most` (before any
/// memory is taken for it) or than there is memory.
std::string read_file(const std::string& path, uint64_t most = kMaxFile);

/// Who may read a file that is made: whom the umask allows, or its owner alone.
enum class Readers : uint8_t { umask, owner };

/// Replaces or creates `path`, durably. Error: path and the system's reason; the file is then as it was before, and
/// the temporary file is gone.
void write_file_atomic(const std::string& path, std::string_view bytes, Readers readers = Readers::umask);

/// Writes to a path that a user has chosen, as other programs do: into a device or a FIFO, and through symbolic links
/// to their targets. A regular file is replaced as by write_file_atomic(), but through a link in /proc (/dev/stdout
/// leads there) it is appended to: another process has it open.
void write_output(const std::string& path, std::string_view bytes);

/// Removes what kills have left of earlier writes of `path`. Nobody may be writing it.
void remove_leftovers(const std::string& path);

} // namespace rg
