// See control_groups.h.
#include "ringgrad/core/control_groups.h"

#include "ringgrad/core/base.h"

#include <fstream>

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

} // namespace rg
