// Allreduce within a node, through memory that its ranks share: the algorithm for ranks of one machine.
//
// There is no plan per vector. A vector that already lives in shared memory (adopt()) is summed where it is; any
// other passes piece by piece through a window of fixed size. See shared.cpp for the steps.
#pragma once

#include "par/link.h"
#include "par/reduce.h"

#include <span>

namespace rg::par {

class SharedReducer {
public:
    /// The bytes of a rank's part of the window that carries pieces of at most piece_bytes.
    static size_t window_bytes(size_t piece_bytes);
    /// link.size() >= 2; the window has window_bytes(piece_bytes) per rank, all zero.
    SharedReducer(Link& link, std::unique_ptr<SharedWindow> window, size_t piece_bytes);

    /// Takes over memory in which vectors may live; the same calls on all ranks.
    void adopt(std::unique_ptr<SharedWindow> memory);
    /// A number for where the vector lives: 0 outside, else it names memory and offset. All ranks must have the same.
    uint64_t place_of(const Vector& vector) const;

    /// Where the handshake posts its operations.
    const SharedWindow& window() const { return *window_; }
    static constexpr size_t kPostOffset = 8; // beside the stage word

    /// Sums the vector in place over all ranks, each element in rank order; all end with the same bits. op covers
    /// place_of(). Errors: a late rank, ranks that disagree.
    void run(const Vector& vector, Handshake& handshake, const Operation& op);

private:
    struct Place {
        const SharedWindow* memory = nullptr; // null: the vector lies elsewhere
        uint64_t number = 0;                  // of the memory, from 1
        size_t offset = 0;                    // bytes
    };
    Place find(const Vector& vector) const;
    void publish();
    void wait_for_all(uint64_t stage, const char* doing, const Operation& op, int piece);
    void reduce_slice(const SharedWindow& window, size_t begin, size_t bytes, Element type);

    Link& link_;
    size_t piece_bytes_;
    std::unique_ptr<SharedWindow> window_;
    std::vector<std::unique_ptr<SharedWindow>> memories_;
    std::vector<std::byte*> slices_; // where this rank's slice begins in each part
    uint64_t stage_ = 0;             // stages that this rank has published; equal on all ranks between operations
};

} // namespace rg::par
