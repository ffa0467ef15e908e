// The journal of a task pool: what has been done, one JSON object per line, on the disk before anyone relies on it.
//
// A pool that is started again with the same journal does not redo what stands there as finished or cancelled; a task
// is known by its function and arguments. Failures are written down, too, but tried again. What a kill cuts short is
// the last line alone, and it is dropped.
#pragma once

#include "core/json.h"

#include <map>
#include <optional>

namespace rg::par {

class Journal {
public:
    /// Reads what is there and goes on behind it. An empty path: nothing is read or written. Error: path and reason.
    explicit Journal(const std::string& path);
    Journal(const Journal&) = delete;
    Journal& operator=(const Journal&) = delete;
    ~Journal();

    /// The entry of such a task that need not be redone. Each is given once: equal tasks have an entry each.
    std::optional<Json> take(const std::string& function, const Json& args);
    /// Appends an entry and returns when it is on the disk. It has "function", "args" and "state", and whatever else.
    void write(const Json& entry);

private:
    std::string path_;
    int file_ = -1;
    std::multimap<std::string, Json> entries_; // not taken yet, by key_of(function, args)
};

} // namespace rg::par
