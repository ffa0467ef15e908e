// Group: the collective operations of a program, over any Link.
//
// The operations use point-to-point messages, and memory that the ranks of a node share. Their waits yield the core and
// have a deadline. Only opening and freeing shared memory block inside the MPI library. All ranks of the link must call
// the same operations in the same order. If calls do not match (Handshake), or a rank misses the deadline, the
// operation throws Error. The group cannot be used after an Error: let the Error end the program (run_ranks_main() in
// session.h) or the task (task_pool.h). `what` names the data in error texts and must be the same on all ranks. A group
// may be used by one thread at a time.
#pragma once

#include "par/roll_call.h"
#include "par/shared.h"

#include <algorithm>
#include <span>
#include <string>

namespace rg::par {

class Group {
public:
    /// Requires that the link outlives the group. `chunk_bytes` limits the chunks that Algorithm::shared copies, and
    /// the messages of all sums (kMessageBytes does too). All ranks must pass the same value, which must not be 0.
    explicit Group(Link& link, size_t chunk_bytes = 256 * 1024);

    int rank() const { return link_.rank(); }
    int size() const { return link_.size(); }
    int local_rank() const { return link_.local_rank(); }
    int local_size() const { return link_.local_size(); }
    Link& link() { return link_; }
    /// Sets the training step that error texts name.
    void set_step(int64_t step) { step_ = step; }

    /// Sums the values over all ranks, in place. Collective. All ranks end with the same bits (except those of NaN).
    /// A repeated run gives them again if these are the same: count, ranks, their nodes, algorithm, wire, and whether
    /// the vector lies in memory of allocate_shared(). Throws Error if these differ between ranks, or the algorithm is
    /// not possible. `wire` applies to messages, so it has no effect if Algorithm::shared sums on one node. After
    /// set_ordered_sums(), the automatic choice requires Wire::full.
    void allreduce_sum(std::span<float> values, std::string_view what, Algorithm algorithm = Algorithm::automatic,
                       Wire wire = Wire::full);
    void allreduce_sum(std::span<double> values, std::string_view what, Algorithm algorithm = Algorithm::automatic);

    /// Makes Algorithm::automatic add rank after rank from now on, in the order that sum_order() then returns. This
    /// order is the same for vectors of any length. If each node holds consecutive ranks, it is ascending, so the sum
    /// does not depend on how the ranks are spread over nodes. Collective. Before this call, sum_order() is empty.
    void set_ordered_sums();
    const std::vector<int>& sum_order() const { return sum_order_; }
    /// Sets the number of workers of each rank, at least 1. All ranks must pass the same numbers. A mini-batch is
    /// divided among the workers, and a rank computes the parts of its workers one after another. Requires
    /// set_ordered_sums().
    void set_workers(std::vector<int> of_rank);
    /// Returns the number of workers of a rank: 1 before set_workers().
    int workers(int rank) const { return workers_.empty() ? 1 : workers_[size_t(rank)]; }
    /// Returns the largest number of workers that any rank has.
    int most_workers() const { return workers_.empty() ? 1 : std::ranges::max(workers_); }
    /// Returns true if there is a single worker in all, so that it has all sums already.
    bool is_single_worker() const { return size() == 1 && most_workers() == 1; }
    /// Sums the vectors of all workers one by one, rank by rank in the order of sum_order(). So the bits depend only on
    /// the order of the workers, not on which rank has which of them. `values` is the vector of the rank's last worker,
    /// and gets the sum. Those of its other workers lie in the same allocate_shared() memory at `values.data() + i *
    /// stride`, in the order i = 1, 2 and so on. Collective. Requires set_workers().
    void sum_over_workers(std::span<float> values, size_t stride, std::string_view what);

    /// Allocates zeroed memory for vectors that are summed often, such as gradients. Collective; all ranks pass the
    /// same length. The memory is aligned to a cache line, and the group owns it. If Link::open_shared() works, each
    /// rank gets its part of memory that the ranks of the node share. Algorithm::shared then sums it in place: any
    /// range, but the same one on all ranks.
    std::span<std::byte> allocate_shared(size_t bytes, std::string_view what);

    /// Makes Algorithm::shared sum vectors in these parts in place. There is one part for each of
    /// Link::NodeLayout::ranks. Parts in the memory of devices hold f32, and are not summed in order on several nodes.
    /// Collective; all parts have the same length. Returns a handle that releases the parts when it is destroyed, which
    /// must be before the group. Returns null on all ranks if those of a node share no memory.
    std::shared_ptr<void> adopt(std::unique_ptr<SharedWindow> parts, std::string_view what);

    /// Returns true if `value` is true on every rank. Collective.
    bool all(bool value, std::string_view what);
    /// Copies the bytes of rank `root` to all ranks. Collective; all ranks pass the same length.
    void broadcast(std::span<std::byte> bytes, int root, std::string_view what);
    /// Returns the texts of all ranks, in the order of the ranks. Collective; lengths may differ. Every rank receives
    /// and stores all texts, so use it for short ones.
    std::vector<std::string> allgather(std::string_view text, std::string_view what);
    /// Blocks until all ranks have called it.
    void barrier(std::string_view what = {});

private:
    Operation next_operation(const char* name, std::string_view what, size_t bytes, uint64_t detail);
    /// Starts the next operation, and blocks until the previous rank has announced the same one (Handshake).
    Operation agree(const char* name, std::string_view what, size_t bytes, uint64_t detail);
    void allreduce(const char* name, const Vector& vector, std::string_view what, Algorithm algorithm,
                   Wire wire = Wire::full, const VectorsPerRank& several = {});
    /// Calls Link::open_shared() when all ranks are here, which they tell each other by messages. For it may block in
    /// the MPI library, where a rank notices neither that another is missing nor that its task has failed. `first`
    /// names the operation that needs the memory.
    std::unique_ptr<SharedWindow> open_shared(size_t window_bytes, const Operation& first);
    /// Returns the reducer for shared memory, or null on all ranks if there is none. The first call is collective.
    SharedReducer* shared_reducer(const char* name, std::string_view what, size_t bytes);
    /// Returns the algorithm for a vector of a few bytes: `shared` if shared memory is open, else `halving`, since
    /// opening the memory would take longer than the sum.
    Algorithm algorithm_for_few_bytes() const { return shared_ ? Algorithm::shared : Algorithm::halving; }

    Link& link_;
    size_t chunk_bytes_;
    Handshake handshake_;
    RollCall roll_call_;
    Peers all_;
    std::unique_ptr<SharedReducer> shared_;
    bool tried_shared_ = false;
    std::vector<int> sum_order_, workers_;
    std::vector<std::vector<std::byte>> memories_; // of allocate_shared(), if Link::open_shared() does not work
    uint64_t operations_ = 0;
    int64_t step_ = 0;
};

} // namespace rg::par
