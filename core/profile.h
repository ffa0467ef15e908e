// Time, arithmetic and memory traffic per op: what --profile prints.
//
// Bytes are those of the inputs and outputs of each call, counted once; a kernel that reads something twice, or finds
// it in cache, is not told apart.
#pragma once

#include "core/device.h"
#include "core/op_table.h"

#include <string>

namespace rg {

class Profile {
public:
    void add(Op op, double seconds, double flops, double bytes);
    /// Time that no op accounts for goes to "other" when the total is given. most: what the device does at most, to
    /// give each op's part of it.
    std::string table(double total_seconds = 0, Rates most = {}) const;
    double flops(Op op) const { return entries_[size_t(op)].flops; }

private:
    struct Entry {
        int64_t calls = 0;
        double seconds = 0, flops = 0, bytes = 0;
    };
    std::array<Entry, size_t(Op::count)> entries_{};
};

} // namespace rg
