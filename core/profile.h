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
    double flops(Op op) const { return totals_.contains(op) ? totals_.at(op).flops : 0; }

    /// The method by which an op computes the convolution of images x, of type `images`, with filters w to y, or one of
    /// its gradients, and the reason of this choice.
    struct Note {
        std::string op, method, reason;
        Shape x, w, y; // a GPU leaves y empty
        DType images;
        bool operator==(const Note&) const = default;
    };
    struct Totals {
        int64_t calls = 0;
        double seconds = 0, flops = 0, bytes = 0;
    };
    /// Adds a note to the op that runs now, unless it has that note already. The table has a line for each note. An op
    /// with several notes, such as of its two gradients, has its calls and its time in the first of these lines.
    void note(const Note& note);
    /// Returns calls and seconds of the ops with notes. Ops with the same notes are added up.
    const auto& noted() const { return noted_; }

private:
    std::map<Op, Totals> totals_;
    std::vector<Note> notes_; // of the op that runs now
    std::vector<std::pair<std::vector<Note>, Totals>> noted_;
};

} // namespace rg
