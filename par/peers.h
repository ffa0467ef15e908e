// Peers: the ranks that sum a vector by messages, and the streams of messages between two of them.
//
// A vector travels in segments, so that a rank adds one segment while the next ones are on their way. Few messages are
// in flight, and each has at most kMessageBytes bytes: MPI libraries send such a message without asking the receiver
// first. For a longer one they ask, and the answer would wait behind the data that flow in its direction. For 2.7 MB
// between two nodes at 1 Gbit/s, 64 KB in flight took 25 ms, and all of it 35 ms.
#pragma once

#include "par/link.h"
#include "par/reduce.h"

#include <array>
#include <memory>

namespace rg::par {

constexpr size_t kMessageBytes = 8000;
constexpr size_t kInFlight = 8; // messages in flight to one rank, or from one rank

class Peers {
public:
    /// `ranks` are ranks of the link, and include this one. A message has at most `message_bytes` and at most
    /// kMessageBytes bytes, or one element if that is longer; tests pass small numbers. All peers must pass the same
    /// values. The link must outlive this.
    Peers(Link& link, std::vector<int> ranks, size_t message_bytes = kMessageBytes);

    /// Return the number of peers, and the index of this rank among them. Messages go to and from indices.
    int size() const { return int(ranks_.size()); }
    int index() const { return index_; }
    size_t message_bytes() const { return message_bytes_; }
    /// Return the number of segments of a vector, and segment i.
    size_t segments(const Vector& vector) const;
    Vector segment(const Vector& vector, size_t i) const;

    enum class OnArrival : uint8_t { add, store };
    /// Sends `out` to the peer `to`. Meanwhile receives as many elements as `in` has from the peer `from`, and adds
    /// them to `in` or stores them there. An empty vector needs no peer. To add, `in` may be `out`, whose old values
    /// are sent.
    void exchange(const Vector& out, int to, const Vector& in, int from, OnArrival on_arrival, const Operation& op,
                  int round);

private:
    friend class SegmentStream;
    Link& link_;
    std::vector<int> ranks_;
    int index_;
    size_t message_bytes_;
    std::vector<std::unique_ptr<std::byte[]>> spare_; // memory of streams that have ended, for the next ones
};

/// Sends a vector to one peer, or receives one from it, segment by segment. At most kInFlight messages are in flight.
/// An empty vector needs no peer.
class SegmentStream {
public:
    enum Direction : uint8_t { to, from };
    SegmentStream(Peers& peers, Direction direction, int peer, const Vector& vector, const Operation& op, int round);
    ~SegmentStream();
    SegmentStream(const SegmentStream&) = delete;
    SegmentStream& operator=(const SegmentStream&) = delete;
    /// Starts the messages of all segments below `end`. Before that of segment i, waits for that of i - kInFlight.
    void start_up_to(size_t end);
    /// Blocks until the message of segment i is complete. If it was received, returns its values, which stay valid
    /// until segment i + kInFlight is started. Returns null if there is no segment i, or a later one has taken its
    /// place.
    const std::byte* wait(size_t i);

private:
    Channel& channel(size_t i) { return channels_[i % kInFlight]; }
    std::byte* staging(size_t i) { return staging_.get() + i % kInFlight * slot_bytes_; }

    Peers& peers_;
    Direction direction_;
    int peer_;
    Vector vector_;
    const Operation& op_;
    int round_;
    size_t segments_, slot_bytes_, started_ = 0;
    std::unique_ptr<std::byte[]> staging_; // room for kInFlight segments that are received
    std::array<Channel, kInFlight> channels_;
};

} // namespace rg::par
