// See memory.h. File caches of a control group that the kernel can drop (inactive pages) count as available.
#include "ringgrad/models/run/memory.h"

#include "ringgrad/core/control_groups.h"
#include "ringgrad/core/formatted.h"
#include "ringgrad/core/json.h"

#include <charconv>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <unistd.h>

namespace rg {
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

/// File names in a version of control groups.
struct GroupFiles {
    const char *limit, *used, *inactive;
};
constexpr GroupFiles kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kVersion2{"/memory.max", "/memory.current", "inactive_file "};

std::string gibibytes(int64_t bytes) { return formatted("%.1f GiB", double(bytes) / double(1 << 30)); }

} // namespace

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
    const Json own =
        Json::object().set("host", host.name).set("boot", host.boot).set("bytes", bytes).set("available", available);
    struct Need {
        int ranks = 0;
        int64_t bytes = 0, available = std::numeric_limits<int64_t>::max();
    };
    std::map<Host, Need> needs;
    for (const std::string& text : group.allgather(own.dump(), "memory")) {
        const Json rank = Json::parse(text, "memory");
        Need& need = needs[{rank.at("host").as_string(), rank.at("boot").as_string()}];
        ++need.ranks;
        need.bytes += rank.at("bytes").as_int();
        // Take the smallest value: the rank that measured last also saw what the others had allocated by then.
        need.available = std::min(need.available, rank.at("available").as_int());
    }
    for (const auto& [on, need] : needs)
        RG_CHECK(need.bytes <= need.available, "memory: expected at most ", gibibytes(need.available), " for ", what,
                 ", which is all that ", on.name, " has left, got ", gibibytes(need.bytes), " on ", need.ranks,
                 need.ranks == 1 ? " rank" : " ranks", "; ", advice);
}

void check_parameter_memory(par::Group& group, int64_t parameter_bytes, int64_t buffers, const std::string& advice) {
    const int64_t checkpoint = group.rank() == 0 ? checkpoint_memory(parameter_bytes, buffers) : 0;
    const int64_t gradients = group.size() > 1 || group.most_workers() > 1 ? 1 + group.most_workers() : 1;
    check_memory(group, (1 + gradients + buffers) * parameter_bytes + checkpoint, "parameters", advice);
}

void check_planned_memory(par::Group& group, std::initializer_list<Accelerated*> networks, int64_t checkpoint_bytes,
                          const std::function<void()>& plan, const std::string& advice, int64_t available) {
    {
        const DryRun without_memory;
        plan();
    }
    int64_t bytes = group.rank() == 0 ? checkpoint_bytes : 0;
    for (Accelerated* network : networks) {
        bytes += network->planned_bytes();
        network->clear_cache();
    }
    check_memory(group, bytes, "planned steps", advice, available);
}

} // namespace rg
