// Asks the operating system for the cores of this process. On Linux, a scheduler, a container or a user may have
// restricted them.
#include "core/cpu/cores.h"

#include "core/control_groups.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sched.h>
#include <thread>

namespace rg {

int affinity_cores() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, int(std::thread::hardware_concurrency()));
}

int core_quota(const std::string& root) {
    double cores = std::numeric_limits<int>::max();
    visit_control_groups(root, "cpu", [&](const std::string& folder, GroupVersion version) {
        double quota = 0, period = 0; // microseconds; without a limit, the quota is "max", or -1 in version 1
        if (version == GroupVersion::two)
            std::ifstream(folder + "/cpu.max") >> quota >> period;
        else
            std::ifstream(folder + "/cpu.cfs_quota_us") >> quota,
                std::ifstream(folder + "/cpu.cfs_period_us") >> period;
        if (quota > 0 && period > 0) cores = std::min(cores, std::ceil(quota / period));
    });
    return int(cores);
}

int available_cores() { return std::min(affinity_cores(), core_quota()); }

} // namespace rg
