// All-reduce in shared memory: each rank sums one slice and writes the sum to all ranks.
//
// Every rank has a part of a window of shared memory, and a chunk of the vector is at the same offset in each part. The
// chunk is cut into p slices. Rank r sums slice r over all parts and writes the sum back into all of them. For p = 3
// ("a01" is slice a summed over ranks 0 and 1):
//
//               part 0          part 1          part 2
//   ready       a0  b0  c0      a1  b1  c1      a2  b2  c2
//   rank 0      a               a               a               reads a0 a1 a2, writes a = a012 three times
//   rank 1          b               b               b
//   rank 2              c               c               c
//   reduced     a   b   c       a   b   c       a   b   c
//
// Stages. Each rank counts its stages in a word at the start of its part of the fixed window. Each chunk has two
// stages: "ready" (all ranks may read this rank's part) and "reduced" (this rank's slice is summed in all parts). A
// rank reduces chunk k after all ranks are ready, and reads the result after all have reduced. The counts only grow,
// over all operations, so nothing is reset and no other barrier is needed.
//
// A vector in shared memory is one chunk, summed in place. Any other vector is copied in and out in chunks, which
// alternate between two halves of the fixed window. A rank copies in chunk k + 1 before it waits until all ranks have
// reduced chunk k. So it has work while others are late, and chunks stay in cache. Chunk k + 2 may reuse the half of
// chunk k in this rank's part: by then all ranks have reduced chunk k, so no other rank accesses it there.
//
// Each element is summed once, in rank order within a node, independent of chunks and slices. So all ranks hold the
// same bits, and repeated runs give the same bits. Borders between slices lie on cache lines, so that no two ranks
// write to the same line.
//
// Several nodes. The rank at place r of a node adds the node's values of slice r to the sums of the nodes before it. It
// sends these sums to place r of the next node. The last node sends the final sums back. Short messages follow each
// other, so that both directions of the network are busy, and all ranks of a node send their slices at the same time.
// If each node holds consecutive ranks, the sum is in rank order. With Wire::full, it then does not depend on how many
// ranks a node has.
//
// A rank may bring several vectors (VectorsPerRank). They are added one by one, so that the sum depends only on the
// order of all vectors, and not on which rank brings which.
//
//   cost per rank on a single node, for a vector of B bytes and N elements; p counts the node's ranks
//                   synchronisations     bytes read from others     bytes written to others     additions
//   in place        2                    (p-1)/p B                  (p-1)/p B                   (p-1)/p N
//   with copies     2 per chunk          the same, plus two copies of the vector
//   with several nodes, a node sends B bytes to each of its neighbours in the chain, or B/2 with Wire::bf16

#include "ringgrad/par/shared.h"

#include "ringgrad/core/bf16.h"

#include <algorithm>
#include <cstring>

namespace rg::par {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kPrefetchedLines = 32; // prefetched ahead; 20 % faster for vectors of 16 MB, beyond the cache
// Length of a message between nodes. MPI libraries send 8000 bytes without asking the receiver first. For a longer
// message they ask, and the answer would wait behind the data that flow in its direction. For the same reason, few
// messages are in flight. For 2.7 MB between two nodes at 1 Gbit/s, 64 KB in flight took 25 ms, and all of it 35 ms.
constexpr size_t kSegmentBytes = 8000;
constexpr size_t kAheadPerNode = 8; // most segments sent without their final sums, per node after this one
constexpr int kChainTag = 6;
constexpr size_t kHeader = 4096; // bytes before each part's data: a page for the stage word and the handshake's post

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::atomic_ref<uint64_t> stage_word(const SharedWindow& window, size_t place) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(window.part(place)));
}

/// Works through one cache line at a time: its sum is written to all targets before the next line is read. This
/// measured a fifth faster than larger blocks.
template <class T>
void sum_vectors(std::span<std::byte* const> sources, std::span<std::byte* const> targets, size_t end) {
    constexpr size_t kLanes = kLine / sizeof(T);
    const auto values = [](std::byte* vector) { return reinterpret_cast<T*>(vector); };
    const auto sum_range = [&](size_t first, size_t count) {
        T sum[kLanes];
        for (size_t i = 0; i < count; ++i) sum[i] = values(sources[0])[first + i];
        for (std::byte* const source : sources.subspan(1))
            for (size_t i = 0; i < count; ++i) sum[i] += values(source)[first + i];
        for (std::byte* const target : targets)
            for (size_t i = 0; i < count; ++i) values(target)[first + i] = sum[i];
    };
    size_t first = 0;
    for (; first + kLanes <= end; first += kLanes) {
        if (first + kPrefetchedLines * kLanes < end)
            for (std::byte* const source : sources) __builtin_prefetch(values(source) + first + kPrefetchedLines * kLanes, 1);
        sum_range(first, kLanes);
    }
    if (first < end) sum_range(first, end - first);
}

/// Writes sums into a message between nodes.
template <class T>
void pack(const T* sums, T* message, size_t count) {
    std::memcpy(message, sums, count * sizeof(T));
}
void pack(const float* sums, bf16* message, size_t count) { std::transform(sums, sums + count, message, to_bf16); }

/// Reads sums from a message between nodes.
template <class T>
void unpack(const T* message, T* sums, size_t count) {
    std::memcpy(sums, message, count * sizeof(T));
}
void unpack(const bf16* message, float* sums, size_t count) {
    std::transform(message, message + count, sums, to_float);
}

} // namespace

void sum_vectors(std::span<std::byte* const> sources, std::span<std::byte* const> targets, size_t count, Element type) {
    type == Element::f32 ? sum_vectors<float>(sources, targets, count) : sum_vectors<double>(sources, targets, count);
}

size_t SharedReducer::window_bytes(size_t chunk_bytes) { return kHeader + 2 * round_up(chunk_bytes); }

SharedReducer::SharedReducer(Link& link, std::unique_ptr<SharedWindow> window, size_t chunk_bytes)
    : link_(link), node_(link.node()), chunk_bytes_(chunk_bytes), window_(std::move(window)) {}

void SharedReducer::adopt(std::unique_ptr<SharedWindow> memory) { memories_.push_back(std::move(memory)); }

SharedReducer::Place SharedReducer::find(const Vector& vector) const {
    for (const auto& memory : memories_) {
        const std::byte* part = memory->part(node_.place);
        if (vector.data >= part && vector.data + vector.bytes() <= part + memory->bytes())
            return {memory.get(), uint64_t(&memory - memories_.data()) + 1, size_t(vector.data - part)};
    }
    return {};
}

uint64_t SharedReducer::place_of(const Vector& vector) const {
    const Place place = find(vector);
    return place.number << 48 | place.offset;
}

void SharedReducer::publish() { stage_word(*window_, node_.place).store(++stage_, std::memory_order_release); }

void SharedReducer::wait_for_all(uint64_t stage, const char* doing, const Operation& op, int chunk) {
    for (size_t q = 0; q < node_.ranks.size(); ++q)
        if (q != node_.place) link_.wait_for(stage_word(*window_, q), stage, node_.ranks[q], doing, op, chunk);
}

/// Adds this node's values of the slice to the sums of the nodes before it, and passes the sums on, segment by segment.
/// The last node sends the final sums back along the chain. W is the type of sums in messages.
template <class T, class W>
void SharedReducer::sum_over_nodes(size_t count, const Operation& op) {
    constexpr size_t kSegment = kSegmentBytes / sizeof(W);
    const bool first = node_.previous < 0, last = node_.next < 0;
    const size_t segments = (count + kSegment - 1) / kSegment, ahead = kAheadPerNode * size_t(node_.after);
    partial_.resize(count * sizeof(W)), total_.resize(last ? 0 : count * sizeof(W));
    const auto length = [&](size_t i) { return std::min(kSegment, count - i * kSegment); };
    const auto message = [&](std::vector<std::byte>& sums, size_t i) {
        return reinterpret_cast<W*>(sums.data()) + i * kSegment;
    };
    const auto at = [&](std::byte* values, size_t i) { return reinterpret_cast<T*>(values) + i * kSegment; };
    std::vector<Channel> from_previous, from_next, sends;
    const auto receive_up_to = [&](size_t i, std::vector<Channel>& channels, std::vector<std::byte>& sums, int from) {
        for (size_t j = channels.size(); j < segments && j <= i; ++j) {
            channels.push_back(link_.open_receive(message(sums, j), length(j) * sizeof(W), from, kChainTag));
            link_.start(channels.back());
        }
    };
    const auto send = [&](const W* sums, size_t i, int to) {
        sends.push_back(link_.open_send(sums, length(i) * sizeof(W), to, kChainTag));
        link_.start(sends.back());
    };
    const auto finish = [&](const W* sums, size_t i) {
        if (!first) send(sums, i, node_.previous);
        for (std::byte* const target : targets_) unpack(sums, at(target, i), length(i));
    };
    size_t finished = 0, bytes = 0;
    const auto finish_up_to = [&](size_t end) { // waits for the final sums of segments below `end`
        for (; finished < end; ++finished) {
            link_.wait(from_next[finished], op, int(finished));
            finish(message(total_, finished), finished);
        }
    };
    for (size_t i = 0; i < segments; ++i) {
        T sums[kSegment];
        W* const packed = message(partial_, i);
        if (first) {
            std::memcpy(sums, at(sources_[0], i), length(i) * sizeof(T));
        } else {
            receive_up_to(i + ahead + kAheadPerNode, from_previous, partial_, node_.previous);
            link_.wait(from_previous[i], op, int(i));
            unpack(packed, sums, length(i));
        }
        for (size_t s = first; s < sources_.size(); ++s) {
            const T* const values = at(sources_[s], i);
            for (size_t j = 0; j < length(i); ++j) sums[j] += values[j];
        }
        pack(sums, packed, length(i));
        if (last) {
            finish(packed, i);
            continue;
        }
        if (i >= ahead) finish_up_to(i - ahead + 1);
        receive_up_to(i, from_next, total_, node_.next);
        send(packed, i, node_.next);
        for (; finished < i && link_.test(from_next[finished], &bytes); ++finished)
            finish(message(total_, finished), finished);
    }
    if (!last) finish_up_to(segments);
    for (Channel& channel : sends) link_.wait(channel, op, int(segments));
}

void SharedReducer::reduce_slice(const SharedWindow& window, size_t begin, size_t bytes, const Vector& vector,
                                 const VectorsPerRank& several, const Operation& op) {
    const size_t p = node_.ranks.size(), r = node_.place, end = begin + bytes, width = size_of(vector.type);
    // The slices begin and end where the chunk does. Every border between slices is rounded down to a cache line.
    const auto border = [&](size_t i) {
        if (i == 0 || i == p) return i == 0 ? begin : end;
        return std::max(begin, (begin + bytes / p * i + bytes % p * i / p) / kLine * kLine);
    };
    const size_t slice = border(r), count = (border(r + 1) - slice) / width;
    sources_.clear(), targets_.clear();
    for (size_t q = 0; q < p; ++q) {
        several.append(sources_, window.part(q) + slice, node_.ranks[q]);
        targets_.push_back(window.part(q) + slice);
    }
    if (!several_nodes())
        sum_vectors(sources_, targets_, count, vector.type);
    else if (vector.type == Element::f64)
        sum_over_nodes<double, double>(count, op);
    else
        vector.wire == Wire::bf16 ? sum_over_nodes<float, bf16>(count, op) : sum_over_nodes<float, float>(count, op);
}

void SharedReducer::run(const Vector& vector, Handshake& handshake, const Operation& op,
                        const VectorsPerRank& several) {
    constexpr const char* kReady = "to bring its part";
    constexpr const char* kReduced = "to add up its slice";
    const Place place = find(vector);
    const bool copies = !place.memory;
    RG_CHECK(!copies || several.counts.empty(), op.name, " ", op.what, ": expected vectors in Group::memory()");
    const SharedWindow& window = copies ? *window_ : *place.memory;
    const size_t width = size_of(vector.type), most = copies ? chunk_bytes_ / width * width : vector.bytes();
    const size_t chunk = std::max(width, most), chunks = std::max<size_t>(1, (vector.bytes() + chunk - 1) / chunk);
    const auto offset = [&](size_t k) { return copies ? kHeader + k % 2 * round_up(chunk) : place.offset; };
    const auto length = [&](size_t k) { return std::min(chunk, vector.bytes() - k * chunk); };
    std::byte* local_part = window.part(node_.place);
    const auto copy_in = [&](size_t k) {
        if (copies && length(k)) std::memcpy(local_part + offset(k), vector.data + k * chunk, length(k));
    };
    const uint64_t first = stage_;
    several_nodes() ? handshake.start(op) : handshake.post(op);
    copy_in(0);
    publish();
    several_nodes() ? handshake.finish(op) : handshake.agree(op);
    for (size_t k = 0; k < chunks; ++k) {
        wait_for_all(first + 2 * k + 1, kReady, op, int(k));
        reduce_slice(window, offset(k), length(k), vector, several, op);
        publish();
        if (k + 1 < chunks) {
            copy_in(k + 1);
            publish();
        }
        wait_for_all(first + 2 * k + 2, kReduced, op, int(k));
        if (copies && length(k)) std::memcpy(vector.data + k * chunk, local_part + offset(k), length(k));
    }
}

} // namespace rg::par
