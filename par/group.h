// Group: the collective operations that programs call, over any Link.
//
// All are built from point-to-point messages with yielding, deadline-bearing waits; none blocks in a library. All
// ranks of the link call the same operations in the same order; a call that does not match is an Error (Handshake),
// and so is a rank that does not come within the deadline. After an Error the group is of no further use: let it end
// the program (run_ranks_main). `what` is the caller's word for error texts, and must be the same on all ranks.
// One thread at a time.
#pragma once

#include "par/doubling.h"
#include "par/link.h"
#include "par/ring.h"

#include <span>
#include <string>

namespace rg::par {

/// small: recursive doubling. mpi: the library's own MPI_Allreduce, as a yardstick (it polls without yielding).
enum class Algorithm : uint8_t { automatic, ring, small, mpi };

struct GroupOptions {
    size_t segment_bytes = 256 * 1024; // what travels at a time in the ring; the same on all ranks
};

class Group {
public:
    /// The link outlives the group.
    explicit Group(Link& link, const GroupOptions& options = {});

    int rank() const { return link_.rank(); }
    int size() const { return link_.size(); }
    int local_rank() const { return link_.local_rank(); }
    int local_size() const { return link_.local_size(); }
    Link& link() { return link_; }
    /// The training step that error texts name.
    void set_step(int64_t step) { step_ = step; }

    /// Sums over all ranks, in place. All ranks end with the same bits, and a repeated run gives them again (same
    /// count, size, algorithm). The first call with a vector (address and count; the last kPlans are kept) plans and
    /// allocates, later ones do not. Counts that differ between ranks are an Error.
    void allreduce_sum(std::span<float> values, std::string_view what, Algorithm algorithm = Algorithm::automatic);
    void allreduce_sum(std::span<double> values, std::string_view what, Algorithm algorithm = Algorithm::automatic);

    /// True if every rank says true.
    bool all(bool mine, std::string_view what);
    /// Root's bytes to everyone; the same length everywhere.
    void broadcast(std::span<std::byte> bytes, int root, std::string_view what);
    /// Everyone's bytes to everyone, by rank; lengths may differ. For small things: it allocates.
    std::vector<std::string> allgather(std::string_view mine, std::string_view what);
    /// Returns when all ranks have called it.
    void barrier(std::string_view what = {});

    /// From this many bytes automatic takes the ring. Measured on two cores, microseconds of ring and small: 4 KB 3.4
    /// and 2.7 (two ranks), 75 and 55 (four); 64 KB 14 and 22 (two), 200 and 130 (four); 512 KB 70 and 180, 530 and
    /// 810.
    static constexpr size_t kRingFrom = 32 * 1024;
    static constexpr size_t kPlans = 32;

private:
    Operation next_operation(const char* name, std::string_view what, size_t bytes, uint64_t detail);
    void allreduce(const char* name, const Vector& vector, std::string_view what, Algorithm algorithm);

    Link& link_;
    GroupOptions options_;
    Handshake handshake_;
    std::vector<std::unique_ptr<RingPlan>> rings_;         // most recently used first
    std::vector<std::unique_ptr<DoublingPlan>> doublings_; // the same
    uint64_t operations_ = 0;
    int64_t step_ = 0;
};

} // namespace rg::par
