// All-reduce by recursive doubling, for short vectors: it needs few rounds, but sends the whole vector in each.
//
// A plan is made for one length in bytes and one Link. It copies the vector into its own buffer, so it serves any
// vector of that length. For long vectors, the ring is faster: ring.cpp has a table of costs.
#pragma once

#include "ringgrad/par/link.h"
#include "ringgrad/par/reduce.h"

namespace rg::par {

class DoublingPlan {
public:
    /// Opens all channels. Requires link.size() >= 2.
    DoublingPlan(Link& link, size_t bytes);

    bool serves(const Vector& vector) const { return vector.bytes() == bytes_; }
    /// Sums the vector in place over all ranks; all end with the same bits, except those of NaN. Requires that the
    /// handshake for `op` was started; run() finishes it. Throws Error if a message is late or has a wrong length, or
    /// if ranks disagree.
    void run(const Vector& vector, Handshake& handshake, const Operation& op);

private:
    struct Round {
        int peer;
        bool sends, receives;
        bool adds; // true: adds the vector that it receives; false: a vector that it receives is the finished sum
        Channel out, in;
    };
    void add_round(int peer, bool sends, bool receives, bool adds);

    Link& link_;
    size_t bytes_;
    std::vector<std::byte> sum_, received_;
    std::vector<Round> rounds_;
};

} // namespace rg::par
