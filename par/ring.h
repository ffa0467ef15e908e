// Ring all-reduce, for long vectors such as gradients: it sends the fewest bytes, but needs many rounds. See the
// diagram in ring.cpp.
//
// A plan is made for one vector (address, count, type) and one Link. It opens all its channels once, and then runs any
// number of times without allocating. The caller caches plans (group.cpp).
#pragma once

#include "ringgrad/par/link.h"
#include "ringgrad/par/reduce.h"

namespace rg::par {

class RingPlan {
public:
    /// Opens all channels. Requires link.size() >= 2. segment_bytes limits the size of a message, which always has room
    /// for one element.
    RingPlan(Link& link, const Vector& vector, size_t segment_bytes);

    bool serves(const Vector& vector) const { return vector == vector_; }
    /// Sums the vector in place over all ranks; all end with the same bits. Requires a finished handshake for `op`.
    /// Throws Error if a message is late or wrong.
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
    int64_t segments_ = 1;           // per chunk
    int64_t items_ = 0;              // messages that each rank sends and receives in one run
    int64_t half_ = 0;               // items in each half: the first half reduces, the second distributes
    std::vector<std::byte> staging_; // kDepth segments
    std::vector<Channel> sends_;     // one per segment of the vector
    std::vector<Channel> to_stage_;  // kDepth channels, used in turn while reducing
    std::vector<Channel> in_place_;  // one per segment of the vector, used while distributing
};

} // namespace rg::par
