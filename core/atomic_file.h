// Reads and writes whole files. write_file_atomic() leaves either the new contents or the old ones, never a mixture.
//
// write_file_atomic() writes a temporary file in the same folder, syncs it, renames it to the final name, and syncs the
// folder. After a crash, a kill or a full disk at any point, the name refers to the complete old file, if there was
// one, or to the complete new one. Checkpoints, models and configurations are written this way. A file is read and
// written in one piece, so its contents must fit in memory.
#pragma once

#include "core/base.h"

#include <string_view>

namespace rg {

/// Marks the names of temporary files: NAME + kTempMark + two random numbers. Such a file remains if the process was
/// killed, or the machine crashed, during the write.
inline constexpr std::string_view kTempMark = ".tmp-";

/// Returns the contents of a regular file. Throws Error if it is missing, unreadable, not a regular file, longer than
/// `max_bytes` (checked before memory is allocated), or too large for the memory.
std::string read_file(const std::string& path, uint64_t max_bytes = uint64_t{1} << 33);

/// Says who may read a written file. `umask`: everyone that the umask allows or, if the file replaces a regular file,
/// everyone that could read that one. `owner`: only its owner.
enum class Readers : uint8_t { umask, owner };

/// Replaces or creates `path`, durably. On failure, throws Error with the path and the system's reason, leaves the old
/// file unchanged, and removes the temporary file. Exception: if only the last sync, that of the folder, fails, the new
/// file is already in place. Replaces a symbolic link, not the file that it leads to. Other hard links to the old file
/// keep the old contents.
void write_file_atomic(const std::string& path, std::string_view bytes, Readers readers = Readers::umask);

/// Writes all bytes to an open file, with a single write() if the system takes them all at once. Repeats write() after
/// a signal (EINTR). Returns false if a write fails; errno has the reason.
bool write_all(int file, std::string_view bytes);

/// Writes to a path that a user has chosen. Like write_file_atomic(), but if the path is a symbolic link to a file,
/// keeps the link and replaces that file. Throws Error instead of replacing a folder, a FIFO or a device. Throws Error
/// if the file cannot be written, and then leaves the old one as it was.
void write_output(const std::string& path, std::string_view bytes);

/// Removes the temporary files of `path` that killed processes left behind. No process may be writing `path` meanwhile.
void remove_leftovers(const std::string& path);

} // namespace rg
