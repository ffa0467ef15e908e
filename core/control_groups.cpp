// See control_groups.h.
#include "core/control_groups.h"

#include "core/base.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>

namespace rg {

void visit_control_groups(const std::string& root, std::string_view controller,
                          const std::function<void(const std::string&, GroupVersion)>& visit) {
    std::ifstream groups(root + "/proc/self/cgroup"); // lines NUMBER:CONTROLLERS:/PATH
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos || line.find('/', second) != second + 1) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const GroupVersion version = controllers.empty() ? GroupVersion::two : GroupVersion::one;
        if (version == GroupVersion::one &&
            cat(",", controllers, ",").find(cat(",", controller, ",")) == std::string::npos)
            continue;
        const std::string mount = root + "/sys/fs/cgroup" + (version == GroupVersion::one ? cat("/", controller) : "");
        for (std::string path = line.substr(second + 1) == "/" ? "" : line.substr(second + 1);;) {
            visit(mount + path, version);
            if (path.empty()) break;
            path.resize(path.rfind('/'));
        }
    }
}

namespace {

/// Returns the number after `word` in the first line of a file that begins with `word`, any spaces, and a number.
/// Returns nothing if there is no such line.
std::optional<int64_t> number_in(const std::string& path, std::string_view word = "") {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(word)) continue;
        const size_t digits = line.find_first_not_of(' ', word.size());
        int64_t number = 0;
        if (digits != std::string::npos &&
            std::from_chars(line.data() + digits, line.data() + line.size(), number).ec == std::errc())
            return number;
    }
    return {};
}

/// The names that a version of control groups uses: the files with the limit and with the memory in use, and the word
/// before the size of the inactive file cache in the file memory.stat.
struct GroupFiles {
    const char *limit, *used, *inactive;
};
constexpr GroupFiles kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kVersion2{"/memory.max", "/memory.current", "inactive_file "};

} // namespace

// File caches of a control group that the kernel can drop (inactive pages) count as available.
int64_t available_memory(const std::string& root) {
    int64_t available = std::numeric_limits<int64_t>::max();
    if (const auto kilobytes = number_in(root + "/proc/meminfo", "MemAvailable:")) available = *kilobytes * 1024;
    visit_control_groups(root, "memory", [&](const std::string& folder, GroupVersion version) {
        const GroupFiles& files = version == GroupVersion::one ? kVersion1 : kVersion2;
        const auto limit = number_in(folder + files.limit), used = number_in(folder + files.used);
        if (!limit || !used) return;
        const int64_t inactive = number_in(folder + "/memory.stat", files.inactive).value_or(0);
        available = std::min(available, *limit - *used + inactive);
    });
    return available;
}

} // namespace rg
