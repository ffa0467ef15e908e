// Group: the collective operations that programs call, over any Link.
//
// All are built from point-to-point messages with yielding, deadline-bearing waits; none blocks in a library. All
// ranks of the link call the same operations in the same order; a call that does not match is an Error (Handshake),
// and so is a rank that does not come within the deadline. After an Error the group is of no further use: let it end
// the program (run_ranks_main). `what` is the caller's word for error texts, and must be the same on all ranks.
// One thread at a time.
#pragma once

#include "par/algorithm.h"
#include "par/doubling.h"
#include "par/link.h"
#include "par/ring.h"
#include "par/roll_call.h"
#include "par/shared.h"

#include <span>
#include <string>

namespace rg::par {

struct GroupOptions {
    size_t segment_bytes = 256 * 1024; // what travels at a time (ring, shared); the same on all ranks
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
    /// allocates, later ones do not. Counts that differ between ranks are an Error. automatic: see choose().
    void allreduce_sum(std::span<float> values, std::string_view what, Algorithm algorithm = Algorithm::automatic);
    void allreduce_sum(std::span<double> values, std::string_view what, Algorithm algorithm = Algorithm::automatic);

    /// Zeroed memory for vectors that are summed often, such as gradients; lives as long as the group. Where one node
    /// holds all ranks they share it, so that a sum need not copy it; elsewhere it is ordinary memory. Sums take any
    /// range of it, the same on all ranks. Aligned to a cache line. Collective; the same length everywhere.
    std::span<std::byte> memory(size_t bytes, std::string_view what);

    /// True if every rank says true.
    bool all(bool mine, std::string_view what);
    /// Root's bytes to everyone; the same length everywhere.
    void broadcast(std::span<std::byte> bytes, int root, std::string_view what);
    /// Everyone's bytes to everyone, by rank; lengths may differ. For small things: it allocates.
    std::vector<std::string> allgather(std::string_view mine, std::string_view what);
    /// Returns when all ranks have called it.
    void barrier(std::string_view what = {});

    static constexpr size_t kPlans = 32;

private:
    Operation next_operation(const char* name, std::string_view what, size_t bytes, uint64_t detail);
    void allreduce(const char* name, const Vector& vector, std::string_view what, Algorithm algorithm);
    /// The shared memory of all ranks, or null on all; collective when it is not open yet.
    SharedReducer* shared(const char* name, std::string_view what, size_t bytes);
    /// For a few bytes; opens no window for them.
    Algorithm quickest() const { return shared_ ? Algorithm::shared : Algorithm::small; }
    std::unique_ptr<SharedWindow> open_window(size_t bytes_per_rank, const Operation& op);

    Link& link_;
    GroupOptions options_;
    Handshake handshake_;
    RollCall roll_call_;
    std::vector<std::unique_ptr<RingPlan>> rings_;         // most recently used first
    std::vector<std::unique_ptr<DoublingPlan>> doublings_; // the same
    std::unique_ptr<SharedReducer> shared_;
    bool asked_for_shared_ = false;
    std::vector<std::vector<std::byte>> memories_; // where the ranks share none
    uint64_t operations_ = 0;
    int64_t step_ = 0;
};

} // namespace rg::par
