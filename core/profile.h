// Collects time, floating-point operations and memory traffic per op, for --profile.
//
// The traffic of a call is the total size of its input and output tensors. It is an estimate: a kernel may read a value
// twice, or find it in cache.
#pragma once

#include "core/device.h"
#include "core/op.h"

#include <map>
#include <string>

namespace rg {

class Profile {
public:
    void add(Op op, double seconds, double flops, double bytes);
    /// Returns a table with one line per op. If `total_seconds` exceeds the time of all ops, one more line shows the
    /// difference. If `peak` has the peak rates of the device, the line of each op also shows what percentage of them
    /// the op reached, and a last line shows the peak rates.
    std::string table(double total_seconds = 0, Rates peak = {}) const;
    double flops(Op op) const { return entries_.contains(op) ? entries_.at(op).flops : 0; }

private:
    struct Entry {
        int64_t calls = 0;
        double seconds = 0, flops = 0, bytes = 0;
    };
    std::map<Op, Entry> entries_;
};

} // namespace rg
