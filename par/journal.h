// Journal: the file in which a task pool records tasks that have ended, except those that end as cancelled after
// TaskPool::interrupt(). Each line is one JSON object, and write() calls fsync() before it returns.
//
// A pool that starts again with the same journal does not repeat finished or cancelled tasks. It recognises tasks by
// function and arguments. Failed tasks are recorded too, but the pool repeats them. A kill can damage only the last
// line, which is then dropped.
#pragma once

#include "core/descriptor.h"
#include "core/json.h"

#include <map>
#include <optional>

namespace rg::par {

class Journal {
public:
    /// Reads the entries of the file, or creates the file. write() appends new entries. With an empty path, reads and
    /// writes nothing. Throws Error if the file cannot be read or opened, or, with the number of the line, if a
    /// complete line is not a JSON object with a "state" (and "function" and "args", if the task finished or was
    /// cancelled).
    explicit Journal(const std::string& path);

    /// Returns an entry that was read from the file and says that this task finished or was cancelled. Returns nothing
    /// if there is none. If equal tasks have left several entries, each call returns the next.
    std::optional<Json> take(const std::string& function, const Json& args);
    /// Appends an entry. The entry must have the keys "function", "args" and "state", and may have others. Throws Error
    /// if the file cannot be written.
    void write(const Json& entry);

private:
    std::string path_;
    Descriptor file_; // holds no file if the path is empty
    std::multimap<std::string, Json>
        entries_; // lines read from the file and not yet taken; the key is key_of(function, args)
};

} // namespace rg::par
