// Time, arithmetic and memory traffic per op: what --profile prints.
//
// Bytes are those of the inputs and outputs of each call, counted once; a kernel that reads something twice, or finds
// it in cache, is not told apart.
#pragma once

#include "core/op_table.h"

#include <chrono>
#include <string>

namespace rg {

/// What f takes on this machine's clock.
template <class F>
double seconds_of(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Operations (of a GPU: multiply-adds of bf16, each as two; f32 ones take six times as long), and bytes read or
/// written, per second.
struct Rates {
    double flops = 0, bytes = 0;
};

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
