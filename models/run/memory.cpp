// See memory.h. Files in a control group that the kernel could drop (inactive pages of files) count as available.
#include "models/run/memory.h"

#include "core/json.h"

#include <charconv>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <unistd.h>

namespace rg {
namespace {

/// The number behind `word` on the first line that begins with it.
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

/// The names that the two versions of control groups have for the same.
struct Files {
    const char *limit, *used, *inactive;
};
constexpr Files kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
constexpr Files kVersion2{"/memory.max", "/memory.current", "inactive_file "};

/// What the group at `path` below `mount` and those that it is in leave, if one of them has a limit.
int64_t left_in_groups(const std::string& mount, std::string path, const Files& files) {
    int64_t left = std::numeric_limits<int64_t>::max();
    for (;;) {
        const std::string folder = mount + path;
        const auto limit = number_in(folder + files.limit), used = number_in(folder + files.used);
        if (limit && used)
            left = std::min(left, *limit - *used + number_in(folder + "/memory.stat", files.inactive).value_or(0));
        if (path.empty()) return left;
        path.resize(path.rfind('/'));
    }
}

std::string gibibytes(int64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GiB", double(bytes) / double(1 << 30));
    return text;
}

} // namespace

int64_t available_memory(const std::string& root) {
    int64_t available = std::numeric_limits<int64_t>::max();
    if (const auto kilobytes = number_in(root + "/proc/meminfo", "MemAvailable:")) available = *kilobytes * 1024;
    std::ifstream groups(root + "/proc/self/cgroup"); // lines NUMBER:CONTROLLERS:/PATH
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos || line.find('/', second) != second + 1) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const std::string path = line.substr(second + 1) == "/" ? "" : line.substr(second + 1);
        if (controllers.empty())
            available = std::min(available, left_in_groups(root + "/sys/fs/cgroup", path, kVersion2));
        if (cat(",", controllers, ",").find(",memory,") != std::string::npos)
            available = std::min(available, left_in_groups(root + "/sys/fs/cgroup/memory", path, kVersion1));
    }
    return available;
}

Host this_host() {
    Host host;
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    host.name = name;
    std::ifstream boot("/proc/sys/kernel/random/boot_id");
    std::getline(boot, host.boot);
    return host;
}

void check_memory(par::Group& group, int64_t bytes, const std::string& what, const std::string& advice,
                  int64_t available, const Host& host) {
    const Json mine =
        Json::object().set("host", host.name).set("boot", host.boot).set("bytes", bytes).set("available", available);
    struct Machine {
        int ranks = 0;
        int64_t bytes = 0, available = std::numeric_limits<int64_t>::max();
    };
    std::map<Host, Machine> machines;
    for (const std::string& rank : group.allgather(mine.dump(), "memory")) {
        const Json other = Json::parse(rank, "memory");
        Machine& machine = machines[{other.at("host").as_string(), other.at("boot").as_string()}];
        ++machine.ranks;
        machine.bytes += other.at("bytes").as_int();
        // The last one to look has seen what the others have taken already.
        machine.available = std::min(machine.available, other.at("available").as_int());
    }
    for (const auto& [at, machine] : machines)
        RG_CHECK(machine.bytes <= machine.available, "memory: expected at most ", gibibytes(machine.available), " for ",
                 what, ", which is all that ", at.name, " has left, got ", gibibytes(machine.bytes), " on ",
                 machine.ranks, machine.ranks == 1 ? " rank" : " ranks", "; ", advice);
}

void check_parameter_memory(par::Group& group, int64_t parameter_bytes, const std::string& advice) {
    const int64_t checkpoint = group.rank() == 0 ? checkpoint_memory(parameter_bytes) : 0;
    check_memory(group, (group.size() > 1 ? 4 : 3) * parameter_bytes + checkpoint, "parameters", advice);
}

void check_planned_memory(par::Group& group, std::initializer_list<Accelerated*> networks, const Parameters& parameters,
                          const std::function<void()>& plan, const std::string& advice, int64_t available) {
    {
        const DryRun without_memory;
        plan();
    }
    int64_t bytes = group.rank() == 0 ? checkpoint_memory(parameters.values().bytes()) : 0;
    for (Accelerated* network : networks) {
        bytes += network->planned_bytes();
        network->clear_cache();
    }
    check_memory(group, bytes, "planned steps", advice, available);
}

} // namespace rg
