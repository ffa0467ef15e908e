// Collects time, floating-point operations and memory traffic per op, for --profile.
//
// The traffic of a call is the total size of its input and output tensors. It is an estimate: a kernel may read a value
// twice, or find it in cache.
#pragma once

#include "core/device.h"
#include "core/op.h"

#include <map>
#include <string>
#include <vector>

namespace rg {

class Profile {
public:
    void add(Op op, double seconds, double flops, double bytes);
    /// Returns a table with one line per op. If `total_seconds` exceeds the time of all ops, one more line shows the
    /// difference. If `peak` has the peak rates of the device, the line of each op also shows what percentage of them
    /// the op reached, and a last line shows the peak rates.
    std::string table(double total_seconds = 0, Rates peak = {}) const;
    /// Adds a line below the table, unless the same line is there already: the method by which `op` computes the
    /// convolution of images x, of type `images`, with filters w, and the reason of this choice.
    void note(const char* op, const Shape& x, const Shape& w, DType images, const char* method, const char* reason);
    double flops(Op op) const { return totals_.contains(op) ? totals_.at(op).flops : 0; }

private:
    struct Totals {
        int64_t calls = 0;
        double seconds = 0, flops = 0, bytes = 0;
    };
    std::map<Op, Totals> totals_;
    std::vector<std::string> notes_;
};

} // namespace rg
