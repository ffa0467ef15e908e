// Cuts vectors into segments, sends and receives them. See peers.h.
#include "par/peers.h"

#include <algorithm>
#include <cstring>

namespace rg::par {

namespace {
constexpr int kSumTag = 2;
} // namespace

Peers::Peers(Link& link, std::vector<int> ranks, size_t message_bytes)
    : link_(link),
      ranks_(std::move(ranks)),
      index_(int(std::find(ranks_.begin(), ranks_.end(), link.rank()) - ranks_.begin())),
      message_bytes_(std::min(message_bytes, kMessageBytes)) {}

size_t Peers::segments(const Vector& vector) const {
    const size_t length = std::max<size_t>(1, message_bytes_ / size_of(vector.type));
    return (vector.count + length - 1) / length;
}

Vector Peers::segment(const Vector& vector, size_t i) const {
    const size_t length = std::max<size_t>(1, message_bytes_ / size_of(vector.type));
    return vector.subvector(i * length, std::min(vector.count, (i + 1) * length));
}

void Peers::exchange(const Vector& out, int to, const Vector& in, int from, OnArrival on_arrival, const Operation& op,
                     int round) {
    SegmentStream sent(*this, SegmentStream::to, to, out, op, round),
        received(*this, SegmentStream::from, from, in, op, round);
    for (size_t i = 0; i < std::max(segments(out), segments(in)); ++i) {
        received.start_up_to(i + kInFlight);
        sent.start_up_to(i + kInFlight);
        const std::byte* const values = received.wait(i);
        sent.wait(i); // waits before the memory changes below, since `in` may be `out`
        if (!values) continue;
        const Vector target = segment(in, i);
        if (on_arrival == OnArrival::add)
            add_into(target.type, target.data, values, target.count);
        else
            std::memcpy(target.data, values, target.bytes());
    }
}

SegmentStream::SegmentStream(Peers& peers, Direction direction, int peer, const Vector& vector, const Operation& op,
                             int round)
    : peers_(peers),
      direction_(direction),
      peer_(peer),
      vector_(vector),
      op_(op),
      round_(round),
      segments_(peers.segments(vector)),
      slot_bytes_((peers.message_bytes_ / sizeof(double) + 1) * sizeof(double)) { // aligned, for at least one element
    if (segments_ == 0 || direction == to) return;
    if (peers.spare_.empty())
        peers.spare_.push_back(std::make_unique_for_overwrite<std::byte[]>(kInFlight * slot_bytes_));
    staging_ = std::move(peers.spare_.back());
    peers.spare_.pop_back();
}

SegmentStream::~SegmentStream() {
    channels_ = {}; // closes the channels first: they may still write to the memory
    if (staging_) peers_.spare_.push_back(std::move(staging_));
}

void SegmentStream::start_up_to(size_t end) {
    for (; started_ < std::min(end, segments_); ++started_) {
        if (started_ >= kInFlight) wait(started_ - kInFlight);
        const Vector segment = peers_.segment(vector_, started_);
        const int rank = peers_.ranks_[size_t(peer_)];
        channel(started_) = direction_ == to
                                ? peers_.link_.open_send(segment.data, segment.bytes(), rank, kSumTag)
                                : peers_.link_.open_receive(staging(started_), segment.bytes(), rank, kSumTag);
        peers_.link_.start(channel(started_));
    }
}

const std::byte* SegmentStream::wait(size_t i) {
    if (i >= segments_ || i + kInFlight < started_) return nullptr;
    const size_t bytes = peers_.link_.wait(channel(i), op_, round_), expected = peers_.segment(vector_, i).bytes();
    RG_CHECK(bytes == expected, op_.name, " ", op_.what, ": expected ", expected, " bytes in round ", round_, ", got ",
             bytes, " (rank ", peers_.link_.rank(), ", operation ", op_.number, ")");
    return staging(i);
}

} // namespace rg::par
