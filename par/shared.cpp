// Reduce-scatter and push within shared memory.
//
// Every rank has a part of the window; a piece of the vector lies at the same offset in each. It is cut into p
// slices, and rank r adds slice r over all parts and writes the sum back into all of them (p = 3, "a01" = a summed
// over ranks 0 and 1):
//
//               part 0          part 1          part 2
//   ready       a0  b0  c0      a1  b1  c1      a2  b2  c2
//   rank 0      a               a               a               reads a0 a1 a2, writes a = a012 three times
//   rank 1          b               b               b
//   rank 2              c               c               c
//   reduced     a   b   c       a   b   c       a   b   c
//
// Stages. Each rank counts its stages in a word of its own cache line: two per piece, "ready" (my part may be read)
// and "reduced" (my slice is in all parts). A rank reduces piece k when all are ready, and uses it when all have
// reduced. Both counts only grow, over all operations, so there is nothing to reset and no other barrier.
//
// A vector in shared memory is one piece, summed where it is. Any other is copied in and out piece by piece, through
// two halves of the window in turn: piece k + 1 is copied in before piece k is awaited, so that a rank has work while
// the others are late, and pieces stay in cache. Half k mod 2 is free for piece k + 2 because by then this rank has
// seen all ranks reduce piece k, and nobody touches its part of it any more.
//
// Each element is summed once, in rank order, whatever the pieces and slices are: all ranks hold the same bits, run
// after run. Slices begin on cache lines, so that no two ranks write to one line.
//
//   cost per rank     hand-overs     bytes read from others     bytes written to others     additions
//   in place          2              (p-1)/p bytes              (p-1)/p bytes               (p-1)/p count
//   with copies       2 per piece    the same, and both copies of the vector

#include "par/shared.h"

#include <algorithm>
#include <cstring>

namespace rg::par {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kAhead = 32;  // lines fetched ahead; matters where the vector is longer than the cache (16 MB: 20 %)
constexpr size_t kHead = 4096; // of each part: the stage word and the handshake's post, on a page of their own

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::atomic_ref<uint64_t> stage_word(const SharedWindow& window, int rank) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(window.part(rank)));
}

/// Elements [0, end) of all vectors become their sum. A cache line at a time: it is fetched from the core that wrote it
/// and goes back before another is touched, which measured a fifth faster than block by block.
template <class T>
void sum_to_all(std::span<std::byte* const> parts, size_t end) {
    constexpr size_t kLanes = kLine / sizeof(T);
    const size_t p = parts.size();
    const auto vector = [&](size_t q) { return reinterpret_cast<T*>(parts[q]); };
    const auto sum_range = [&](size_t at, size_t count) {
        T sum[kLanes];
        for (size_t i = 0; i < count; ++i) sum[i] = vector(0)[at + i];
        for (size_t q = 1; q < p; ++q)
            for (size_t i = 0; i < count; ++i) sum[i] += vector(q)[at + i];
        for (size_t q = 0; q < p; ++q)
            for (size_t i = 0; i < count; ++i) vector(q)[at + i] = sum[i];
    };
    size_t at = 0;
    for (; at + kLanes <= end; at += kLanes) {
        if (at + kAhead * kLanes < end)
            for (size_t q = 0; q < p; ++q) __builtin_prefetch(vector(q) + at + kAhead * kLanes, 1);
        sum_range(at, kLanes);
    }
    if (at < end) sum_range(at, end - at);
}

} // namespace

size_t SharedReducer::window_bytes(size_t piece_bytes) { return kHead + 2 * round_up(piece_bytes); }

SharedReducer::SharedReducer(Link& link, std::unique_ptr<SharedWindow> window, size_t piece_bytes)
    : link_(link), piece_bytes_(piece_bytes), window_(std::move(window)), slices_(size_t(link.size())) {}

void SharedReducer::adopt(std::unique_ptr<SharedWindow> memory) { memories_.push_back(std::move(memory)); }

SharedReducer::Place SharedReducer::find(const Vector& vector) const {
    for (const auto& memory : memories_) {
        const std::byte* part = memory->part(link_.rank());
        if (vector.data >= part && vector.data + vector.bytes() <= part + memory->bytes())
            return {memory.get(), uint64_t(&memory - memories_.data()) + 1, size_t(vector.data - part)};
    }
    return {};
}

uint64_t SharedReducer::place_of(const Vector& vector) const {
    const Place place = find(vector);
    return place.number << 48 | place.offset;
}

void SharedReducer::publish() { stage_word(*window_, link_.rank()).store(++stage_, std::memory_order_release); }

void SharedReducer::wait_for_all(uint64_t stage, const char* doing, const Operation& op, int piece) {
    for (int q = 0; q < link_.size(); ++q)
        if (q != link_.rank()) link_.wait_for(stage_word(*window_, q), stage, q, doing, op, piece);
}

void SharedReducer::reduce_slice(const SharedWindow& window, size_t begin, size_t bytes, Element type) {
    const size_t p = size_t(link_.size()), r = size_t(link_.rank()), end = begin + bytes, width = size_of(type);
    // The first slice begins where the vector does; the others on the cache line below their share.
    const auto border = [&](size_t i) {
        if (i == 0 || i == p) return i == 0 ? begin : end;
        return std::max(begin, (begin + bytes / p * i + bytes % p * i / p) / kLine * kLine);
    };
    const size_t mine = border(r), count = (border(r + 1) - mine) / width;
    for (size_t q = 0; q < p; ++q) slices_[q] = window.part(int(q)) + mine;
    if (type == Element::f32)
        sum_to_all<float>(slices_, count);
    else
        sum_to_all<double>(slices_, count);
}

void SharedReducer::run(const Vector& vector, Handshake& handshake, const Operation& op) {
    constexpr const char* kReady = "to bring its part";
    constexpr const char* kReduced = "to add up its slice";
    if (const Place place = find(vector); place.memory) {
        const uint64_t first = stage_;
        handshake.post(op);
        publish();
        handshake.agree(op);
        wait_for_all(first + 1, kReady, op, 0);
        reduce_slice(*place.memory, place.offset, vector.bytes(), vector.type);
        publish();
        wait_for_all(first + 2, kReduced, op, 0);
        return;
    }
    const size_t width = size_of(vector.type), piece = std::max(width, piece_bytes_ / width * width);
    const size_t pieces = std::max<size_t>(1, (vector.bytes() + piece - 1) / piece);
    const auto offset = [&](size_t k) { return kHead + k % 2 * round_up(piece); };
    const auto length = [&](size_t k) { return std::min(piece, vector.bytes() - k * piece); };
    std::byte* mine = window_->part(link_.rank());
    const auto copy_in = [&](size_t k) {
        if (length(k)) std::memcpy(mine + offset(k), vector.data + k * piece, length(k));
    };
    const uint64_t first = stage_;
    handshake.post(op);
    copy_in(0);
    publish();
    handshake.agree(op);
    for (size_t k = 0; k < pieces; ++k) {
        wait_for_all(first + 2 * k + 1, kReady, op, int(k));
        reduce_slice(*window_, offset(k), length(k), vector.type);
        publish();
        if (k + 1 < pieces) {
            copy_in(k + 1);
            publish();
        }
        wait_for_all(first + 2 * k + 2, kReduced, op, int(k));
        if (length(k)) std::memcpy(vector.data + k * piece, mine + offset(k), length(k));
    }
}

} // namespace rg::par
