// write() appends a line and then calls fsync(), so only the last line of the file can be incomplete.
#include "par/journal.h"

#include "core/atomic_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>

namespace rg::par {

namespace {

/// Returns the key of a task's entries in the map. The key is a text, because JSON values have no order.
std::string key_of(const std::string& function, const Json& args) { return function + "\n" + args.dump(); }

} // namespace

Journal::Journal(const std::string& path) : path_(path) {
    if (path_.empty()) return;
    size_t complete_bytes = 0; // bytes of complete lines
    if (std::filesystem::exists(path_)) {
        const std::string text = read_file(path_);
        complete_bytes = text.rfind('\n') + 1;
        const auto add = [&](const Json& entry, std::string_view) {
            const std::string& state = entry.at("state").as_string();
            if (state == "finished" || state == "cancelled")
                entries_.emplace(key_of(entry.at("function").as_string(), entry.at("args")), entry);
        };
        Json::parse_lines(text, path_, add, [](const std::string& message) {
            fail(message, "; remove this line, then its task runs again");
        });
    }
    file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    RG_CHECK(file_.get() >= 0 && ::ftruncate(file_.get(), off_t(complete_bytes)) == 0, "journal: cannot open ", path_,
             ": ", std::strerror(errno));
}

std::optional<Json> Journal::take(const std::string& function, const Json& args) {
    const std::string key = key_of(function, args);
    const auto match = entries_.lower_bound(key); // equal keys keep the order of the file
    if (match == entries_.end() || match->first != key) return {};
    Json entry = std::move(match->second);
    entries_.erase(match);
    return entry;
}

void Journal::write(const Json& entry) {
    if (file_.get() < 0) return;
    const std::string line = entry.dump() + "\n";
    RG_CHECK(write_all(file_.get(), line) && ::fsync(file_.get()) == 0, "journal: cannot append to ", path_, ": ",
             std::strerror(errno));
}

} // namespace rg::par
