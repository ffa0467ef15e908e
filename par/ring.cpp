// Segmented ring all-reduce (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// JPDC 2009), pipelined over segments with persistent channels.
//
// The vector is cut into p chunks, one per rank, and each chunk into S segments. In every step each rank sends one
// chunk to the next rank and receives one from the previous rank. Rank r starts by sending chunk r. The diagram shows
// ranks 0 1 2 of p = 3 and chunks a b c. "a01" is chunk a summed over ranks 0 and 1, "a" alone is the final sum, and
// "." is a chunk that is not final yet:
//
//              rank 0           rank 1           rank 2
//   start      a0  b0  c0       a1  b1  c1       a2  b2  c2        0 --> 1 --> 2
//   reduce 1   a0  b0  c20      a01 b1  c1       a2  b12 c2        ^           |
//   reduce 2   a0  b012 c20     a01 b1  c012     a012 b12 c2       +-----------+
//   copy 1     a   b   .        .   b   c        a   .   c
//   copy 2     a   b   c        a   b   c        a   b   c
//
// Items. One item is the transfer of one segment in one step: item = step * S + segment, so there are 2 (p-1) S items.
// Item i sends the data that item i - S received (the step before). A rank need not wait for the end of a step: while
// it adds segment k, segment k + 1 is in flight. At most kDepth receives and kAhead sends are in flight. In the
// reducing half, segments arrive in kDepth staging buffers in turn and are added. In the distributing half, they arrive
// in place.
//
// Invariants. (1) A segment is received in place only after the send of the same segment in the first half has
// completed: item j of the second half overwrites the data that item j - (p-1) S sent. (2) A rank waits for its send of
// item i only after it has posted its own receive of item i (kAhead <= kDepth). So no cycle of ranks can deadlock, even
// if the transport buffers nothing. (3) Each element is summed along one path: every rank on the way adds its own value
// to the partial sum that it receives. The result of the last rank is then copied. So all ranks hold the same bits, and
// repeated runs give the same bits. The borders of chunks depend only on the count and p.
//
//   cost per rank, for a vector of B bytes and N elements
//               steps       bytes sent          additions
//   ring        2 (p-1)     2 (p-1)/p B         (p-1)/p N      bandwidth-optimal
//   doubling    log2 p      log2 p B            log2 p N       latency-optimal (doubling.cpp)

#include "ringgrad/par/ring.h"

#include <algorithm>

namespace rg::par {

namespace {
constexpr int kDepth = 2; // receives in flight: one arrives while the other is added
constexpr int kAhead = 2; // sends in flight
constexpr int kRingTag = 2;
static_assert(kAhead <= kDepth);
} // namespace

RingPlan::RingPlan(Link& link, const Vector& vector, size_t segment_bytes) : link_(link), vector_(vector) {
    const int64_t p = link.size();
    const size_t width = size_of(vector.type), chunk = (vector.count + size_t(p) - 1) / size_t(p);
    const size_t segment = std::max<size_t>(1, segment_bytes / width);
    segments_ = int64_t(std::max<size_t>(1, (chunk + segment - 1) / segment));
    half_ = (p - 1) * segments_;
    items_ = 2 * half_;

    const size_t longest = ((chunk + size_t(segments_) - 1) / size_t(segments_)) * width;
    staging_.resize(kDepth * longest);
    const int next = link.next(), previous = link.previous();
    for (int i = 0; i < kDepth; ++i)
        to_stage_.push_back(link.open_receive(staging_.data() + size_t(i) * longest, longest, previous, kRingTag));
    sends_.resize(size_t(p * segments_));
    in_place_.resize(size_t(p * segments_));
    for (int64_t item = 0; item < items_; ++item) {
        const Range out = range_of(item, false), in = range_of(item, true);
        // A chunk is sent at most once in each half. Both sends share a channel: by invariant (1), the first has
        // completed.
        if (item < half_ + segments_)
            send_channel(item) = link.open_send(vector.data + out.begin * width, out.count * width, next, kRingTag);
        if (item >= half_)
            receive_channel(item) =
                link.open_receive(vector.data + in.begin * width, in.count * width, previous, kRingTag);
    }
}

/// Returns the chunk that an item sends or receives. Rank r sends chunk r in step 0, and in each later step the chunk
/// that it received in the step before: chunk r - step.
int64_t RingPlan::chunk_of(int64_t item, bool received) const {
    const int64_t p = link_.size(), step = item / segments_ + (received ? 1 : 0);
    return (link_.rank() - step + 2 * p) % p;
}

/// Returns the elements that an item sends or receives. Chunk c begins at floor(c * count / p), and its segments are
/// cut in the same way. So the sizes of two chunks, and of two segments of a chunk, differ by at most one element.
RingPlan::Range RingPlan::range_of(int64_t item, bool received) const {
    const auto border = [](size_t length, int64_t i, int64_t n) {
        const size_t q = length / size_t(n), rest = length % size_t(n);
        return q * size_t(i) + rest * size_t(i) / size_t(n);
    };
    const int64_t c = chunk_of(item, received), s = item % segments_;
    const size_t begin = border(vector_.count, c, link_.size()), end = border(vector_.count, c + 1, link_.size());
    const size_t from = border(end - begin, s, segments_), to = border(end - begin, s + 1, segments_);
    return {begin + from, to - from};
}

Channel& RingPlan::send_channel(int64_t item) {
    return sends_[size_t(chunk_of(item, false) * segments_ + item % segments_)];
}

Channel& RingPlan::receive_channel(int64_t item) {
    if (item < half_) return to_stage_[size_t(item % kDepth)];
    return in_place_[size_t(chunk_of(item, true) * segments_ + item % segments_)];
}

void RingPlan::wait_for_send(int64_t item, const Operation& op) {
    if (item >= 0) link_.wait(send_channel(item), op, int(item / segments_));
}

void RingPlan::start_send(int64_t item, const Operation& op) {
    wait_for_send(item - kAhead, op);
    link_.start(send_channel(item));
}

void RingPlan::start_receive(int64_t item, const Operation& op) {
    if (item >= half_) wait_for_send(item - half_, op); // invariant (1)
    link_.start(receive_channel(item));
}

void RingPlan::finish_receive(int64_t item, const Operation& op) {
    const Range in = range_of(item, true);
    const size_t width = size_of(vector_.type), bytes = link_.wait(receive_channel(item), op, int(item / segments_));
    RG_CHECK(bytes == in.count * width, op.name, " ", op.what, ": expected ", in.count * width, " bytes in round ",
             item / segments_, ", got ", bytes, " (rank ", link_.rank(), ", operation ", op.number, ")");
    if (item >= half_) return;
    const std::byte* staged = staging_.data() + size_t(item % kDepth) * (staging_.size() / kDepth);
    add_into(vector_.type, vector_.data + in.begin * width, staged, in.count);
}

void RingPlan::run(const Operation& op) {
    int64_t sent = 0; // items whose send has been started
    // Item i can be sent after item i - S has been received and added.
    const auto send_up_to = [&](int64_t last, int64_t received) {
        while (sent <= last && sent < items_ && sent < received + segments_) start_send(sent++, op);
    };
    send_up_to(kAhead - 1, 0);
    for (int64_t item = 0; item < std::min<int64_t>(kDepth, items_); ++item) start_receive(item, op);
    for (int64_t item = 0; item < items_; ++item) {
        finish_receive(item, op);
        send_up_to(item + kAhead, item + 1);
        if (item + kDepth < items_) start_receive(item + kDepth, op);
    }
    for (int64_t item = std::max<int64_t>(0, items_ - kAhead); item < items_; ++item) wait_for_send(item, op);
}

} // namespace rg::par
