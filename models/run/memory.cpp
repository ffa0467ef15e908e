// See memory.h.
#include "models/run/memory.h"

#include "core/formatted.h"
#include "core/json.h"
#include "data/cache.h"

#include <fstream>
#include <limits>
#include <map>

namespace rg {

std::string gibibytes(int64_t bytes) { return formatted("%.1f GiB", double(bytes) / double(1 << 30)); }

Host this_host() {
    Host host{data::node_name(), ""};
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

void check_parameter_memory(par::Group& group, int64_t parameter_bytes, int64_t optimizer_buffers,
                            const std::string& advice) {
    const int64_t gradients = group.size() > 1 || group.most_workers() > 1 ? 1 + group.most_workers() : 1;
    check_memory(group,
                 (1 + gradients + optimizer_buffers) * parameter_bytes +
                     checkpoint_memory(group, parameter_bytes, optimizer_buffers),
                 "parameters", advice);
}

void check_planned_memory(par::Group& group, std::initializer_list<Accelerated*> networks, int64_t other_bytes,
                          const std::function<void()>& plan, const std::string& advice, int64_t available) {
    {
        const DryRun without_memory;
        plan();
    }
    const int64_t bytes =
        Accelerated::planned_bytes(std::vector<const Accelerated*>(networks.begin(), networks.end())) + other_bytes;
    for (Accelerated* network : networks) network->clear_cache();
    check_memory(group, bytes, "planned steps and their mini-batches", advice, available);
}

} // namespace rg
