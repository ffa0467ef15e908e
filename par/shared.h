// All-reduce through memory that the ranks of a node share, and by messages between the nodes if there are several.
//
// A vector that is already in shared memory (adopt()) is summed in place. Any other vector is copied in chunks through
// a window of fixed size. Only vectors in shared memory can be several per rank (VectorsPerRank). shared.cpp describes
// the steps.
#pragma once

#include "par/algorithm.h"

#include <span>

namespace rg::par {

/// The vectors that each rank brings to a sum. The last one gets the sum, and lies before the others in memory: vector
/// i = 1, 2, ... begins i * stride bytes after the start of the last one. The order of addition is 1, 2, ..., last.
struct VectorsPerRank {
    std::vector<int> counts = {}; // number of vectors of each rank, at least 1; empty: 1 for every rank
    size_t stride = 0;
    int count(int rank) const { return counts.empty() ? 1 : counts[size_t(rank)]; }
    /// Appends the starts of a rank's vectors in the order in which they are summed. `target` is the last one, which
    /// gets the sum.
    void append(std::vector<std::byte*>& starts, std::byte* target, int rank) const {
        for (int i = 1; i < count(rank); ++i) starts.push_back(target + size_t(i) * stride);
        starts.push_back(target);
    }
};

/// Adds the f32 or f64 vectors of `count` elements at `sources` in their order, and writes the sum to all `targets`. A
/// target may be a source, too.
void sum_vectors(std::span<std::byte* const> sources, std::span<std::byte* const> targets, size_t count, Element type);

class SharedReducer {
public:
    /// Returns the bytes that each rank's part of the window needs for chunks of at most chunk_bytes.
    static size_t window_bytes(size_t chunk_bytes);
    /// Requires link.size() >= 2, and a zeroed window of this node with window_bytes(chunk_bytes) per rank. The link
    /// must outlive this object.
    SharedReducer(Link& link, std::unique_ptr<SharedWindow> window, size_t chunk_bytes);

    /// Takes ownership of shared memory. Vectors in it are summed in place. All ranks must make the same calls. Returns
    /// its number, for release().
    uint64_t adopt(std::unique_ptr<SharedWindow> memory);
    void release(uint64_t number) { memories_[number - 1].reset(); }
    /// Returns a number that stands for the vector's memory and offset, or 0 if the vector is not in adopted memory.
    /// For a sum, this number must be equal on all ranks.
    uint64_t shared_address_of(const Vector& vector) const;

    /// Returns the window. On a single node, the handshake posts its operations in it, at kPostOffset.
    const SharedWindow& shared_window() const { return *window_; }
    static constexpr size_t kPostOffset = 8; // in bytes; before it lies the stage word (shared.cpp)

    /// How to sum. in_order: each element in the order of Link::NodeLayout::order, which requires Wire::full. Otherwise
    /// a node adds in the order of its ranks, and algorithm_for() selects the algorithm between nodes.
    struct Manner {
        Wire wire = Wire::full;
        bool in_order = false;
        VectorsPerRank several = {};
    };
    /// Sums the vector in place over all ranks; all end with the same bits. Does the whole handshake for `op`.
    /// op.detail must include shared_address_of(vector), so that a difference is detected. Throws Error if a rank is
    /// late or ranks disagree. With several vectors per rank, the vectors must be in adopted memory.
    void run(const Vector& vector, Handshake& handshake, const Operation& op, const Manner& manner);

private:
    struct Location {
        const SharedWindow* memory = nullptr; // null if the vector is not in adopted memory
        uint64_t memory_number = 0;           // from 1, as adopt() returns it
        size_t offset = 0;                    // bytes from the start of this rank's part
    };
    bool several_nodes() const { return peers_.size() > 1; }
    Location find(const Vector& vector) const;
    void publish();
    void wait_for_stage(uint64_t stage, const char* doing, const Operation& op, int chunk);
    void sum_slice(const SharedWindow& window, size_t begin, const Vector& chunk, const Manner& manner,
                   const Operation& op);
    void sum_on_device(Device& device, const Vector& own, Algorithm algorithm, Wire wire, const Operation& op);

    Link& link_;
    const Link::NodeLayout& node_;
    Peers peers_; // on each node, the rank with the same index in Link::NodeLayout::ranks as this rank
    size_t chunk_bytes_;
    std::unique_ptr<SharedWindow> window_;
    std::vector<std::unique_ptr<SharedWindow>> memories_; // number n is memories_[n - 1]; null after release()
    // Starts of this rank's slice in all vectors of the node, and in the vectors that get the sum.
    std::vector<std::byte*> sources_, targets_;
    std::vector<std::byte> staged_; // a slice of a device's memory, copied to the host for messages
    uint64_t stage_ = 0;            // stages that this rank has published; equal on all ranks between operations
};

} // namespace rg::par
