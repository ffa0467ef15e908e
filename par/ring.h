// Ring all-reduce, for long vectors such as gradients: it sends the fewest bytes, but needs many rounds. See the
// diagram in ring.cpp.
//
// A plan is made for one vector (address, count, type) and one Link. It opens all its channels and allocates its
// buffers once, and then runs any number of times. The caller caches plans (group.cpp).
#pragma once

#include "ringgrad/par/link.h"
#include "ringgrad/par/reduce.h"

namespace rg::par {

class RingPlan {
public:
    /// Opens all channels. Requires link.size() >= 2. A message has at most segment_bytes bytes, or one element if that
    /// is longer.
    RingPlan(Link& link, const Vector& vector, size_t segment_bytes);

    bool serves(const Vector& vector) const { return vector == vector_; }
    /// Sums the vector in place over all ranks; all end with the same bits. Requires a finished handshake (link.h) for
    /// `op`. Throws Error if a message is late or has a wrong length.
    void run(const Operation& op);

private:
    struct Range {
        size_t begin, count; // elements
    };
    Range range_of(int64_t item, bool received) const;
    void start_send(int64_t item, const Operation& op);
    void start_receive(int64_t item, const Operation& op);
    void finish_receive(int64_t item, const Operation& op);
    void wait_for_send(int64_t item, const Operation& op);
    int64_t chunk_of(int64_t item, bool received) const;
    Channel& send_channel(int64_t item);
    Channel& receive_channel(int64_t item);

    Link& link_;
    Vector vector_;
    int64_t segments_ = 1;           // per chunk; the vector has one chunk per rank
    int64_t items_ = 0;              // messages that each rank sends and receives in one run
    int64_t half_ = 0;               // items in each half: the first half reduces, the second distributes
    std::vector<std::byte> staging_; // room for kDepth segments; see ring.cpp for items
    std::vector<Channel> sends_;     // one per segment of the vector
    std::vector<Channel> to_stage_;  // kDepth channels, used in turn while reducing
    std::vector<Channel> in_place_;  // by segment of the vector, used while distributing
};

} // namespace rg::par
