// Reads tar archives: ustar, the pax extensions (path, size), GNU's long names and large sizes, and the old format.
//
// The reader returns views into the archive and never accesses a file system, so a name such as ../x is harmless. It is
// strict, because nothing else protects an archive that came over a network. It checks the checksum of every header,
// and every size against the bytes that are there. It also requires the two blocks of zeros at the end; without them
// the stream was cut. Concatenated archives (cat a.tar b.tar) are read as one. Links, devices and sparse files are
// refused, because skipping them would silently lose images.
// Sources: POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format".
#pragma once

#include "ringgrad/data/bytes.h"

#include <functional>

namespace rg::data {

/// Limits, in bytes, for names and for extended headers; longer ones count as damage. They keep the reader's memory
/// below 4 MiB for any archive.
constexpr size_t kMaxTarName = 4096, kMaxTarHeader = 1 << 20;

/// Calls `each` for every file in the archive, in order, with its path (without a leading ./) and contents. Throws
/// Error with the offset if a header is damaged, the stream was cut, or a kind of member is not supported. `name` is
/// for error texts.
void read_tar(Bytes archive, const std::string& name,
              const std::function<void(const std::string& path, Bytes content)>& each);

} // namespace rg::data
