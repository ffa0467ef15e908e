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
// A vector in shared memory is one chunk, summed in place. Any other vector is copied in and out of the fixed window in
// chunks. A rank copies in chunk k + 1 after all ranks have reduced chunk k, so no other rank accesses its part then.
//
// Each element is summed once, in rank order within a node, independent of chunks and slices. So all ranks hold the
// same bits, and repeated runs give the same bits. Borders between slices lie on cache lines, so that no two ranks
// write to the same line.
//
// Several nodes. A rank's place is its index among the ranks of its node. The ranks with the same place on all nodes
// are peers. Each adds its node's values of its slice, and then the peers sum the slice by messages (algorithm.h),
// while the peers of all other places do the same. If the sum must be in the order of ranks, the slice goes along a
// chain of the nodes, and each adds its values one by one. If each node holds consecutive ranks, this sum does not
// depend on how many ranks a node has.
//
// A rank may bring several vectors (VectorsPerRank). They are added one by one, so that the sum depends only on the
// order of all vectors, and not on which rank brings which.
//
//   cost per rank on a single node, for a vector of B bytes and N elements; p counts the node's ranks
//                   synchronisations     bytes read from others     bytes written to others     additions
//   in place        2                    (p-1)/p B                  (p-1)/p B                   (p-1)/p N
//   with copies     2 per chunk          the same, plus two copies of the vector
//   with several nodes, the ranks of a node together also send as much as one peer in algorithm.h for the whole vector

#include "par/shared.h"

#include "core/device.h"

#include <algorithm>
#include <cstring>

namespace rg::par {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kPrefetchedLines = 32; // prefetch distance; 20 % faster for vectors of 16 MB, beyond the cache
constexpr size_t kHeader = 4096; // bytes before each rank's data in the window, for stage_word() and Handshake::post()

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::atomic_ref<uint64_t> stage_word(const SharedWindow& window, size_t place) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(window.parts[place]));
}

/// Returns of each node the rank with this rank's index among the ranks of its node.
std::vector<int> same_place(const Link::NodeLayout& node) {
    std::vector<int> ranks;
    for (size_t i = node.place; i < node.order.size(); i += node.ranks.size()) ranks.push_back(node.order[i]);
    return ranks;
}

/// Copies bytes in blocks that glibc copies by vectors. It copies larger ones with `rep movsb` on many CPUs, which
/// takes four times as long on an AMD Zen 3.
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
    constexpr size_t kBlock = 2048;
    for (size_t i = 0; i < bytes; i += kBlock) std::memcpy(to + i, from + i, std::min(kBlock, bytes - i));
}

/// Sums one cache line at a time, and writes its sum to all targets before it reads the next line. This measured a
/// fifth faster than larger blocks.
template <class T>
void sum_vectors(std::span<std::byte* const> sources, std::span<std::byte* const> targets, size_t count) {
    constexpr size_t kLanes = kLine / sizeof(T);
    const auto values = [](std::byte* vector) { return reinterpret_cast<T*>(vector); };
    const auto sum_range = [&](size_t first, size_t lanes) {
        T sum[kLanes];
        for (size_t i = 0; i < lanes; ++i) sum[i] = values(sources[0])[first + i];
        for (std::byte* const source : sources.subspan(1))
            for (size_t i = 0; i < lanes; ++i) sum[i] += values(source)[first + i];
        for (std::byte* const target : targets)
            for (size_t i = 0; i < lanes; ++i) values(target)[first + i] = sum[i];
    };
    size_t first = 0;
    for (; first + kLanes <= count; first += kLanes) {
        if (first + kPrefetchedLines * kLanes < count)
            for (std::byte* const source : sources)
                __builtin_prefetch(values(source) + first + kPrefetchedLines * kLanes, 1);
        sum_range(first, kLanes);
    }
    if (first < count) sum_range(first, count - first);
}

} // namespace

void sum_vectors(std::span<std::byte* const> sources, std::span<std::byte* const> targets, size_t count, Element type) {
    type == Element::f32 ? sum_vectors<float>(sources, targets, count) : sum_vectors<double>(sources, targets, count);
}

size_t SharedReducer::window_bytes(size_t chunk_bytes) { return kHeader + round_up(chunk_bytes); }

SharedReducer::SharedReducer(Link& link, std::unique_ptr<SharedWindow> window, size_t chunk_bytes)
    : link_(link),
      node_(link.node()),
      peers_(link, same_place(node_), chunk_bytes),
      chunk_bytes_(chunk_bytes),
      window_(std::move(window)) {}

uint64_t SharedReducer::adopt(std::unique_ptr<SharedWindow> memory) {
    memories_.push_back(std::move(memory));
    return memories_.size();
}

SharedReducer::Location SharedReducer::find(const Vector& vector) const {
    for (const auto& memory : memories_) {
        if (!memory) continue;
        const std::byte* part = memory->parts[node_.place];
        // An empty vector has no location: its address may be the end of one memory and the beginning of another.
        if (vector.count > 0 && vector.data >= part && vector.data + vector.bytes() <= part + memory->bytes)
            return {memory.get(), uint64_t(&memory - memories_.data()) + 1, size_t(vector.data - part)};
    }
    return {};
}

uint64_t SharedReducer::shared_address_of(const Vector& vector) const {
    const Location location = find(vector);
    return location.memory_number << 48 | location.offset;
}

void SharedReducer::publish() { stage_word(*window_, node_.place).store(++stage_, std::memory_order_release); }

void SharedReducer::wait_for_stage(uint64_t stage, const char* doing, const Operation& op, int chunk) {
    for (size_t q = 0; q < node_.ranks.size(); ++q)
        if (q != node_.place) link_.wait_for(stage_word(*window_, q), stage, node_.ranks[q], doing, op, chunk);
}

/// Sums this rank's slice of a chunk that begins at byte `begin` of each part of the window.
void SharedReducer::sum_slice(const SharedWindow& window, size_t begin, const Vector& chunk, const Manner& manner,
                              const Operation& op) {
    const size_t p = node_.ranks.size(), bytes = chunk.bytes();
    // The slices begin and end where the chunk does. Every border between slices is rounded down to a cache line.
    const auto border = [&](size_t i) {
        if (i == 0 || i == p) return i == 0 ? begin : begin + bytes;
        return std::max(begin, (begin + bytes / p * i + bytes % p * i / p) / kLine * kLine);
    };
    const size_t slice = border(node_.place), size = border(node_.place + 1) - slice;
    sources_.clear(), targets_.clear();
    for (size_t q = 0; q < p; ++q) {
        manner.several.append(sources_, window.parts[q] + slice, node_.ranks[q]);
        targets_.push_back(window.parts[q] + slice);
    }
    const Vector own{targets_[node_.place], size / size_of(chunk.type), chunk.type};
    if (window.device) return sum_on_device(*window.device, own, algorithm_for(bytes, peers_.size()), manner.wire, op);
    if (!several_nodes()) return sum_vectors(sources_, targets_, own.count, own.type);
    if (manner.in_order) {
        sum_along_chain(peers_, own, sources_, op);
    } else {
        sum_vectors(sources_, {&own.data, 1}, own.count, own.type);
        sum_over(peers_, own, algorithm_for(bytes, peers_.size()), manner.wire, op);
    }
    for (std::byte* const target : targets_)
        if (target != own.data) std::copy_n(own.data, size, target);
}

/// Sums the vectors at sources_, and writes the sum to targets_. `own` is the target of this rank.
void SharedReducer::sum_on_device(Device& device, const Vector& own, Algorithm algorithm, Wire wire,
                                  const Operation& op) {
    if (!several_nodes()) return device.sum(sources_, targets_, own.count);
    device.sum(sources_, {&own.data, 1}, own.count);
    staged_.resize(own.bytes());
    device.transfer(staged_.data(), own.data, own.bytes());
    sum_over(peers_, {staged_.data(), own.count, own.type}, algorithm, wire, op);
    device.transfer(own.data, staged_.data(), own.bytes());
    device.sum({&own.data, 1}, targets_, own.count);
}

void SharedReducer::run(const Vector& vector, Handshake& handshake, const Operation& op, const Manner& manner) {
    constexpr const char* kReady = "to bring its part";
    constexpr const char* kReduced = "to add up its slice";
    const Location location = find(vector);
    const bool copies = !location.memory;
    RG_CHECK(!copies || manner.several.counts.empty(), op.name, " ", op.what, ": expected memory of allocate_shared()");
    const SharedWindow& window = copies ? *window_ : *location.memory;
    const size_t width = size_of(vector.type), most = copies ? chunk_bytes_ / width * width : vector.bytes();
    const size_t chunk = std::max(width, most), chunks = std::max<size_t>(1, (vector.bytes() + chunk - 1) / chunk);
    const size_t offset = copies ? kHeader : location.offset;
    std::byte* const local_part = window.parts[node_.place] + offset;
    several_nodes() ? handshake.start(op) : handshake.post(op);
    for (size_t k = 0; k < chunks; ++k) {
        const size_t length = std::min(chunk, vector.bytes() - k * chunk);
        if (copies && length) std::memcpy(local_part, vector.data + k * chunk, length);
        publish();
        if (k == 0) several_nodes() ? handshake.finish(op) : handshake.wait_for_posts(op);
        wait_for_stage(stage_, kReady, op, int(k));
        sum_slice(window, offset, {nullptr, length / width, vector.type}, manner, op);
        publish();
        wait_for_stage(stage_, kReduced, op, int(k));
        if (copies && length) copy_bytes(vector.data + k * chunk, local_part, length);
    }
}

} // namespace rg::par
