// Tar archives: ustar, the pax extensions (path, size), GNU's long names and large sizes, and the old format.
//
// A reader of bytes, not an unpacker: nothing here touches a file system, so names such as ../x are only names. What
// it gives are views into the archive. Strict, since an archive that came over a network has no other guard: the
// checksum of every header, every size against what is there, and the end: without its two blocks of zeros a stream
// was cut. Archives one behind another (cat a.tar b.tar) are read as one. Links, devices and sparse files are refused
// and not passed over: they would be images that are silently missing.
// Sources: POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format".
#pragma once

#include "data/bytes.h"

#include <functional>

namespace rg::data {

/// Longer names, and longer extended headers, are taken for damage. So the reader takes at most 4 MiB of memory,
/// whatever the archive says.
constexpr size_t kMaxTarName = 4096, kMaxTarHeader = 1 << 20;

/// Calls `each` for every file in the archive, in order, with its path (without ./ in front) and contents. Errors,
/// with the offset: a damaged header, a stream that was cut, a kind of member that is not read; `name` is for them.
void read_tar(Bytes archive, const std::string& name,
              const std::function<void(const std::string& path, Bytes content)>& each);

} // namespace rg::data
