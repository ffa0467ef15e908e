// Recursive doubling allreduce: the algorithm for small messages, where rounds count more than bytes.
//
// A plan belongs to one length and one Link: the vector is copied into a buffer of the plan, so that any vector of
// that length can use it. Not for gradients: every round sends the whole vector (see the table in ring.cpp).
#pragma once

#include "par/link.h"
#include "par/reduce.h"

namespace rg::par {

class DoublingPlan {
public:
    /// link.size() >= 2.
    DoublingPlan(Link& link, size_t bytes);

    bool serves(const Vector& vector) const { return vector.bytes() == bytes_; }
    /// Sums the vector in place over all ranks; all end with the same bits. The handshake for op has been started;
    /// this finishes it. Errors: a late or wrong message, ranks that disagree.
    void run(const Vector& vector, Handshake& handshake, const Operation& op);

private:
    struct Round {
        int peer;
        bool sends, receives;
        bool adds; // what arrives is added; otherwise it is the finished sum
        Channel out, in;
    };
    void add_round(int peer, bool sends, bool receives, bool adds);

    Link& link_;
    size_t bytes_;
    std::vector<std::byte> sum_, arrived_;
    std::vector<Round> rounds_;
};

} // namespace rg::par
