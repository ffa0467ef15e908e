// Reads and writes whole files. After a write, a file has either its new contents or its old ones, never a mixture.
//
// A write goes to a temporary file in the same folder, then fsync, rename, and fsync of the folder. After a crash, a
// kill or a full disk at any point, the name still refers to one complete file. Checkpoints, models and configurations
// are written this way. There is no streaming: all contents fit in memory.
#pragma once

#include "core/base.h"

#include <string_view>

namespace rg {

/// Marks the names of temporary files: NAME + kTempMark + a random number. Such a file remains only after a kill.
inline constexpr std::string_view kTempMark = ".tmp-";

/// Default limit of the bytes that read_file() accepts.
inline constexpr uint64_t kMaxFile = uint64_t{1} << 33;

/// Returns the bytes of a regular file. Throws Error if it is missing, unreadable, not a regular file, longer than
/// `max_bytes` (checked before it allocates memory), or too large for the memory.
std::string read_file(const std::string& path, uint64_t max_bytes = kMaxFile);

/// Who may read a new file: everyone that the umask allows, or only its owner.
enum class Readers : uint8_t { umask, owner };

/// Replaces or creates `path`, durably. Throws Error with the path and the system's reason. A failure leaves the old
/// file unchanged and removes the temporary file; only if the sync of the folder fails, the new file is in place.
void write_file_atomic(const std::string& path, std::string_view bytes, Readers readers = Readers::umask);

/// Writes to a path that a user has chosen. Follows symbolic links, and writes into a device or a FIFO. Replaces a
/// regular file like write_file_atomic(). Appends if a link leads through /proc, as /dev/stdout does: another process
/// has that file open.
void write_output(const std::string& path, std::string_view bytes);

/// Removes the temporary files that killed writes of `path` left. No other process may be writing `path`.
void remove_leftovers(const std::string& path);

} // namespace rg
