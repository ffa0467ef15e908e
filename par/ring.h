// Ring allreduce: the algorithm for gradients, where bytes count more than rounds. See ring.cpp for the diagram.
//
// A plan belongs to one vector (address, count, type) and one Link. It opens all its channels when it is made and
// then runs any number of times without allocating. The caller does the caching (group.cpp).
#pragma once

#include "par/link.h"
#include "par/reduce.h"

namespace rg::par {

class RingPlan {
public:
    /// link.size() >= 2. segment_bytes: the piece that travels at a time; any size from one element up.
    RingPlan(Link& link, const Vector& vector, size_t segment_bytes);

    bool serves(const Vector& vector) const { return vector == vector_; }
    /// Sums the vector in place over all ranks; all end with the same bits. Requires that all ranks agree on op (the
    /// handshake is over). Errors: a late or wrong message.
    void run(const Operation& op);

private:
    struct Piece {
        size_t begin, count; // elements
    };
    Piece piece(int64_t item, bool received) const;
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
    int64_t items_ = 0;              // messages that each rank sends, and receives, in one run
    int64_t half_ = 0;               // of these, the first half reduces and the second distributes
    std::vector<std::byte> staging_; // kDepth segments
    std::vector<Channel> sends_;     // one per segment of the vector
    std::vector<Channel> to_stage_;  // kDepth, used in turn while reducing
    std::vector<Channel> to_place_;  // one per segment of the vector, used while distributing
};

} // namespace rg::par
