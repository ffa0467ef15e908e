// Link: the interface between the parallel algorithms and the machine.
//
// A Link is one rank's view of a fixed set of ranks. Its channels carry messages: a channel is opened once for a fixed
// buffer, direction, peer and tag, and then started and waited for many times. A steady training step opens no channel.
// Messages between the same two ranks with the same tag arrive in the order in which they were started. If all ranks
// are on one node, a Link also provides memory that they share. A Link may be used by one thread at a time.
// Implementations: MPI (mpi_link.h), threads of one process (thread_link.h), and a subset of another link's ranks
// (sub_link.h). Collective operations are in group.h.
#pragma once

#include "ringgrad/core/base.h"

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace rg::par {

/// Thrown on a rank that learns that another rank has failed. Programs report the first failure, not its consequences.
class PeerFailed : public Error {
public:
    using Error::Error;
};

/// Thrown if a rank misses the deadline. This error ends the whole job, even if other ranks could continue.
class RankMissing : public Error {
public:
    using Error::Error;
};

/// Describes the collective operation that a message belongs to. Ranks compare it (Handshake), and error texts name it.
struct Operation {
    const char* name = ""; // "allreduce"
    std::string_view what; // names the data in error texts: "gradients, bucket 2"
    uint64_t bytes = 0;    // length of the whole operation, not of one message
    uint64_t number = 0;   // counts the operations of a group; 0 if not all ranks of the link take part
    int64_t step = 0;      // training step, for error texts only
    uint64_t detail = 0;   // other values that must agree, such as the root or the segment size
};

class Link;

/// A link calls its observer during long waits. RollCall implements it.
class WaitObserver {
public:
    /// Returns true if the wait must fail now. See RollCall::check().
    virtual bool check(const Operation& op, double begin, double waited, double limit) = 0;
    /// Called when a wait has failed. Returns the names of the missing ranks, or "" if none is missing.
    virtual std::string report_missing() = 0;

protected:
    ~WaitObserver() = default;
};

/// A channel has one buffer, one direction and one peer. It can be moved, not copied. Its destructor withdraws a
/// message that is in flight.
class Channel {
public:
    Channel() = default;
    Channel(Channel&& other) noexcept;
    Channel& operator=(Channel&& other) noexcept;
    ~Channel();

private:
    friend class Link;
    Channel(Link* link, int slot) : link_(link), slot_(slot) {}
    Link* link_ = nullptr;
    int slot_ = -1;
};

/// Memory that all ranks of a link share. Each rank has one part, and all parts have the same size. All ranks create it
/// together, and destroy it together.
class SharedWindow {
public:
    /// Calls `release` at its end.
    SharedWindow(std::vector<std::byte*> parts, size_t bytes, std::function<void()> release)
        : parts_(std::move(parts)), bytes_(bytes), release_(std::move(release)) {}
    ~SharedWindow() { release_(); }
    SharedWindow(const SharedWindow&) = delete;
    SharedWindow& operator=(const SharedWindow&) = delete;
    /// Returns the first byte of a rank's part, aligned to 64 bytes.
    std::byte* part(int rank) const { return parts_[size_t(rank)]; }
    /// Returns the number of bytes in one part.
    size_t bytes() const { return bytes_; }

private:
    std::vector<std::byte*> parts_;
    size_t bytes_;
    std::function<void()> release_;
};

class Link {
public:
    virtual ~Link() = default;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    /// Return the ranks after and before this one in the ring, and all other ranks.
    int next() const { return (rank_ + 1) % size_; }
    int previous() const { return (rank_ + size_ - 1) % size_; }
    const std::vector<int>& others() const { return others_; }
    /// Return this rank's index among the program's ranks on this node, and the number of these ranks.
    int local_rank() const { return local_rank_; }
    int local_size() const { return local_size_; }
    /// Returns "rank 2", plus the host if there may be several. For error texts.
    virtual std::string name_of(int rank) const;

    /// Opens a channel for a buffer that the caller keeps alive and in place. Accepts 0 to 2^31 - 1 bytes.
    Channel open_send(const void* data, size_t bytes, int to, int tag);
    /// Opens a channel for messages of at most `capacity` bytes; wait() throws Error for a longer one.
    Channel open_receive(void* data, size_t capacity, int from, int tag);

    /// Starts sending or receiving one message. Requires that the channel has no message in flight.
    void start(Channel& channel);
    /// Blocks until the message is complete, and returns its length in bytes. Polls, then yields the core, then sleeps
    /// briefly, so that ranks that outnumber cores do not starve each other. Throws Error after the deadline, naming
    /// both ranks, the operation, the round and the bytes.
    size_t wait(Channel& channel, const Operation& op, int round = 0);
    /// Returns true and sets *bytes to the message's length if the message is complete. Does not block.
    bool test(Channel& channel, size_t* bytes);

    /// Returns zeroed memory that all ranks share. Returns null on all ranks if they are on several nodes or the memory
    /// is not available. Collective. It may block, and cannot tell which rank is missing, so let the ranks agree first
    /// (Handshake).
    virtual std::unique_ptr<SharedWindow> open_shared(size_t bytes_per_rank);
    /// Blocks, as wait() does, until a word in shared memory is at least `value`. Everything that its writer stored
    /// before is then visible. Throws Error after the deadline, with "expected `peer` `doing`".
    void wait_for(std::atomic_ref<uint64_t> word, uint64_t value, int peer, const char* doing, const Operation& op,
                  int round);

    /// Returns the seconds that one wait may take: 300 unless another deadline was set.
    double deadline() const { return deadline_; }
    /// Sets the deadline from RG_DEADLINE_S, if that is set. Throws Error if it is not a positive number. The
    /// constructor does not read it, so that rank 0 can report the error for all.
    void read_environment();
    void set_deadline(double seconds);
    /// Makes all waits on this link fail at once. A thread that leaves with an error calls it so that another thread
    /// stops waiting.
    void fail_all_waits() { deadline_ = 0; }

    /// Ends the job with this exit code (MPI), or makes every other rank's next wait throw PeerFailed (threads).
    virtual void abort(int code) = 0;
    /// Sums in place with the MPI library's own blocking all-reduce, for comparison. Returns false if the link has
    /// none. `width` is 4 for float, 8 for double.
    virtual bool mpi_allreduce(void* data, size_t count, size_t width);

    /// The links' view of a channel.
    struct Slot {
        int peer = -1;
        int tag = 0;
        size_t bytes = 0; // length of a send, capacity of a receive
        bool send = false;
        bool in_flight = false;
    };

protected:
    Link(int rank, int size, int local_rank, int local_size);
    const Slot& slot(int i) const { return slots_[size_t(i)]; }

private:
    friend class Channel;
    friend class SubLink;  // calls check_peers() of the link below it
    friend class RollCall; // sets wait_observer_
    virtual void do_open(int slot, void* data) = 0;
    virtual void do_start(int slot) = 0;
    /// Returns true and sets *bytes if the message is complete. Throws Error if the transport reports one.
    virtual bool do_test(int slot, size_t* bytes) = 0;
    virtual void do_close(int slot) = 0;
    /// Removes short messages of this peer and tag that nobody will receive, if the transport stores such messages.
    virtual void discard(int /*peer*/, int /*tag*/) {}
    /// Throws PeerFailed if another rank is known to have failed. Called between the polls of wait_for().
    virtual void check_peers() {}

    Channel open(bool send, void* data, size_t bytes, int peer, int tag);
    void close(int slot);
    template <class Done>
    double poll(const Operation& op, const Done& done) const;
    [[noreturn]] void fail_late(std::string_view expected, int peer, const Operation& op, int round,
                                double seconds) const;

    int rank_, size_, local_rank_, local_size_;
    bool crowded_; // more ranks than cores on this node
    std::vector<int> others_;
    std::atomic<double> deadline_;
    WaitObserver* wait_observer_ = nullptr; // the group's roll call, or null
    std::deque<Slot> slots_;                // a deque keeps addresses: the roll call opens slots during a wait
    std::vector<int> free_slots_;
};

/// Detects ranks that are in different operations. Without this check, they would hang, or produce wrong results
/// without an error.
///
/// Every operation with messages starts with one 96-byte message from each rank to the next around the ring. A rank
/// receives no data until the previous rank's message agrees with its own operation (name, what, bytes, number,
/// detail). If the ranks do not all agree, at least one pair of neighbours differs, so some rank detects it. This costs
/// about a microsecond; recursive doubling overlaps it with the first data.
///
/// Ranks that share memory post all their operations there as well. An operation on shared memory uses post() and
/// agree() instead of start() and finish(): it needs no message, and each rank compares its operation with those of all
/// others. If some ranks are in an operation on shared memory and others in one with messages, the former detect it.
class Handshake {
public:
    explicit Handshake(Link& link);
    Handshake(const Handshake&) = delete;
    Handshake& operator=(const Handshake&) = delete;

    /// Sends this rank's operation to the next rank. Keep `op` valid until finish().
    void start(const Operation& op);
    /// Blocks until the previous rank's message has arrived. Throws Error naming both operations if they differ.
    void finish(const Operation& op);

    /// Makes post() write this rank's operations at byte `offset` of its part of the window. The kPostBytes bytes there
    /// must be zero at first.
    static constexpr size_t kPostBytes = 128;
    void post_in(const SharedWindow& window, size_t offset);
    void post(const Operation& op);
    /// Blocks until every rank has posted operation op.number or a later one. Throws Error naming both operations if a
    /// rank's operation differs.
    void agree(const Operation& op);
    /// Returns, for error texts, " (last in operation 411, step 41)". Returns "" unless the ranks share memory or
    /// `rank` is the previous one.
    std::string last_seen(int rank) const;

private:
    struct Message {
        uint64_t bytes = 0, number = 0, detail = 0, text_hash = 0;
        std::array<char, 24> name{};
        std::array<char, 40> what{};
        bool operator==(const Message&) const = default;
    };
    struct Post {
        uint64_t number = 0; // last operation posted; stored after the message
        int64_t step = 0;
        Message message;
    };
    static_assert(sizeof(Post) <= kPostBytes);
    static Message message_of(const Operation& op);
    Post& post_of(int rank) const { return *reinterpret_cast<Post*>(window_->part(rank) + offset_); }
    [[noreturn]] void fail_different(const Message& theirs, int rank, const Operation& op) const;

    Link& link_;
    const SharedWindow* window_ = nullptr;
    size_t offset_ = 0;
    Message sent_, received_;
    uint64_t previous_number_ = 0; // last operation in which the previous rank agreed
    int64_t previous_step_ = 0;
    Channel to_next_, from_previous_;
};

} // namespace rg::par
