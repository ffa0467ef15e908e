// Adds up the time per op and formats the table, with the longest time first.
#include "core/profile.h"

#include "core/formatted.h"

#include <algorithm>
#include <utility>

namespace rg {

void Profile::add(Op op, double seconds, double flops, double bytes) {
    Totals& of_op = totals_[op];
    ++of_op.calls;
    of_op.seconds += seconds;
    of_op.flops += flops;
    of_op.bytes += bytes;
    if (notes_.empty()) return;
    auto same = std::ranges::find(noted_, notes_, &decltype(noted_)::value_type::first);
    if (same == noted_.end()) same = noted_.insert(same, {notes_, {}});
    ++same->second.calls, same->second.seconds += seconds;
    notes_.clear();
}

void Profile::note(const Note& note) {
    if (std::ranges::find(notes_, note) == notes_.end()) notes_.push_back(note);
}

std::string Profile::table(double total_seconds, Rates peak) const {
    std::vector<std::pair<Op, Totals>> by_time(totals_.begin(), totals_.end());
    double sum = 0;
    for (const auto& [op, totals] : by_time) sum += totals.seconds;
    std::sort(by_time.begin(), by_time.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    const double total = std::max(total_seconds, sum);
    std::string text;
    const auto print = [&](const char* format, auto... values) { text += formatted(format, values...); };
    print("%-20s %8s %12s %7s %10s %10s", "op", "calls", "ms", "share", "GFLOP/s", "GB/s");
    text += peak.bytes > 0 ? "   of peak    of peak\n" : "\n";
    for (const auto& [op, e] : by_time) {
        const double flops = e.flops / e.seconds, bytes = e.bytes / e.seconds;
        print("%-20s %8lld %12.3f %6.1f%% %10.1f %10.1f", op->name, static_cast<long long>(e.calls), e.seconds * 1e3,
              100 * e.seconds / total, flops * 1e-9, bytes * 1e-9);
        if (peak.bytes > 0) print(" %7.1f %% %8.1f %%", 100 * flops / peak.flops, 100 * bytes / peak.bytes);
        text += "\n";
    }
    if (total > sum)
        print("%-20s %8s %12.3f %6.1f%%\n", "(outside of ops)", "", (total - sum) * 1e3, 100 * (total - sum) / total);
    if (peak.bytes > 0)
        print("%-20s %8s %12s %7s %10.1f %10.1f\n", "(peak)", "", "", "", peak.flops * 1e-9, peak.bytes * 1e-9);
    for (auto [notes, e] : noted_)
        for (const Note& n : notes) // .0 shows 0 as blanks
            print("%-20s %8.0lld %12.3f  x %-20s w %-20s %-4s  %-14s  (%s)\n", n.op.c_str(),
                  static_cast<long long>(std::exchange(e.calls, 0)), 1e3 * std::exchange(e.seconds, 0),
                  n.x.str().c_str(), n.w.str().c_str(), name_of(n.images), n.method.c_str(), n.reason.c_str());
    return text;
}

} // namespace rg
