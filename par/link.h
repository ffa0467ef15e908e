// Link: the interface through which the collective algorithms send messages between ranks.
//
// A Link is one rank's view of a fixed set of ranks. Its channels carry messages. A channel is opened once for a fixed
// buffer, direction, peer and tag. After that, each start() transfers one message, and wait() blocks until it is
// complete. Messages from one rank to another with the same tag arrive in the order in which they were started. If all
// nodes have the same number of ranks, a Link can also provide memory that the ranks of a node share. Only
// fail_all_waits() may be called while another thread uses the Link. Implementations: MPI (mpi_link.h), a single rank
// (SingleLink), and some or all ranks of another link (sub_link.h); for tests, threads of one process
// (tests/thread_link.h). Collective operations are in group.h.
#pragma once

#include "core/base.h"

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace rg {
class Device;
} // namespace rg

namespace rg::par {

/// Says that another rank has failed. A rank that learns of this throws it. Callers prefer to report the error of the
/// failed rank.
class PeerFailed : public Error {
public:
    using Error::Error;
};

/// Says that a wait has failed: it has reached the deadline (Link::deadline()), fail_all_waits() has ended it, or a
/// wait of another rank has failed (RollCall). Ends the whole job, even if a task of a task pool throws it. Other
/// errors that a task throws end only that task.
class RankMissing : public Error {
public:
    using Error::Error;
};

/// Describes the collective operation that a message belongs to. Ranks compare it (Handshake), and error texts name it.
struct Operation {
    const char* name = ""; // "allreduce"
    std::string_view what; // names the data in error texts: "gradients, bucket 2"
    uint64_t bytes = 0;    // length of the operation's data, not of one message; 0 for allgather
    uint64_t number = 0;   // counts the operations of a Group, from 1; 0: not of a Group, so waits make no roll call
    int64_t step = 0;      // training step, for error texts only
    uint64_t detail = 0;   // other values that must agree, such as a broadcast's root or the segment size
};

/// If more seconds than this pass between two polls of a wait, the process was suspended, for example by a scheduler
/// that stops all ranks of a job for a while. The time then does not count as waiting.
inline constexpr double kSuspended = 1;

class Link;

/// A link calls its observer during long waits of a Group's operations. RollCall (roll_call.h) implements it, to find
/// missing ranks.
class WaitObserver {
public:
    /// Returns true if the wait must fail now. RollCall::must_fail() describes the parameters.
    virtual bool must_fail(const Operation& op, double begin, double waited, double limit) = 0;
    /// Called when a wait has failed. Returns the names of the missing ranks, or "" if none is known.
    virtual std::string report_missing() = 0;

protected:
    ~WaitObserver() = default;
};

/// A channel has one buffer, one direction and one peer. It can be moved, not copied. Its destructor tries to withdraw
/// a message that is in flight.
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

/// Memory that the ranks of a node share. Each rank has one part, and all parts have the same size. The ranks create it
/// together, and destroy it together.
struct SharedWindow {
    std::vector<std::byte*> parts; // parts[i] is the memory of rank node().ranks[i], aligned to 64 bytes
    size_t bytes;                  // size of each part
    std::shared_ptr<void> memory;  // when destroyed, frees all parts; with a device, unmaps those of other ranks
    Device* device = nullptr;      // not null: this rank's part is in the device's memory, and the others are mapped
};

/// kDeadline is the default of a wait's deadline in seconds. environment_deadline() returns the number in the
/// environment variable RG_DEADLINE_S, or kDeadline if that is unset or empty. Returns nothing if the text is not a
/// number above 0 and at most 1e9.
constexpr double kDeadline = 300;
std::optional<double> environment_deadline();

class Link {
public:
    virtual ~Link() = default;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    /// Returns all ranks in ascending order.
    std::vector<int> ranks() const;
    /// Return the next and the previous rank in the ring that all ranks form, and all ranks except this one.
    int next() const { return (rank_ + 1) % size_; }
    int previous() const { return (rank_ + size_ - 1) % size_; }
    const std::vector<int>& others() const { return others_; }
    /// Return this rank's index among the program's ranks on this node, and the number of these ranks.
    int local_rank() const { return local_rank_; }
    int local_size() const { return local_size_; }
    /// Returns the number of the program's ranks on this node, including this one, that may use some of this rank's
    /// cores.
    int core_sharers() const { return core_sharers_; }
    /// Describes the ranks of this rank's node, and the order of all ranks by nodes. All fields keep their defaults if
    /// nodes have different numbers of ranks, or if the link is a TaskLink of only some ranks.
    struct NodeLayout {
        std::vector<int> ranks; // the ranks of this node, in ascending order
        size_t place = 0;       // index of this rank in `ranks`
        std::vector<int> order; // all ranks of the link, node by node
    };
    /// Returns this rank's NodeLayout. NodeLayout::order has the nodes in the order of their lowest ranks. Ranks of a
    /// node can share memory (open_shared()).
    const NodeLayout& node() const { return node_; }
    /// Makes each rank a node of its own in node(); local_rank() does not change. Call it on all ranks.
    void set_one_rank_per_node();
    /// Returns "rank 2", or "rank 2 on HOST" if the ranks are MPI processes. For error texts.
    virtual std::string name_of(int rank) const;

    /// Opens a channel for messages of exactly `bytes` bytes (0 to 2^31 - 1), which it sends from `data`. The buffer
    /// must stay valid, at the same address, until the Channel is destroyed.
    Channel open_send(const void* data, size_t bytes, int to, int tag);
    /// Opens a channel that receives messages of at most `capacity` bytes, 0 to 2^31 - 1. wait() and test() throw Error
    /// for a longer message. The buffer must stay valid as for open_send().
    Channel open_receive(void* data, size_t capacity, int from, int tag);

    /// Starts sending or receiving one message. Requires that the channel has no message in flight.
    void start(Channel& channel);
    /// Blocks until the message is complete, and returns its length in bytes. If no message is in flight, returns the
    /// channel's length or capacity at once. Polls, later yields the core between polls, and still later sleeps between
    /// them, so that ranks that outnumber cores do not starve each other. Throws RankMissing after the deadline; the
    /// text names the ranks, the operation, the round and the bytes.
    size_t wait(Channel& channel, const Operation& op, int round = 0);
    /// Returns true if no message is in flight. If this call has completed a message, *bytes is its length.
    bool test(Channel& channel, size_t* bytes);

    /// Collective over all nodes. Returns zeroed memory that the ranks of this node share, with a part for each of
    /// node().ranks. Returns null on all ranks if there is none: node().ranks is empty, or MPI cannot provide it. With
    /// one rank per node, or without MPI, lack of memory throws Error instead. With several ranks per node, the call
    /// blocks inside the MPI library. At the deadline it ends the process, and cannot name a missing rank. So let the
    /// ranks agree first (Handshake): the error of that wait names the rank.
    std::unique_ptr<SharedWindow> open_shared(size_t bytes_per_rank);
    /// Blocks, as wait() does, until a word in shared memory is at least `value`. Then everything that its writer
    /// stored before the word is visible. Throws RankMissing after the deadline, with "expected rank `peer` `doing`".
    void wait_for(std::atomic_ref<uint64_t> word, uint64_t value, int peer, const char* doing, const Operation& op,
                  int round);

    /// Blocks, as wait() does, until done() returns true. Throws RankMissing after the deadline, with "expected rank
    /// `peer` `doing`".
    void wait_until(const std::function<bool()>& done, int peer, const char* doing, const Operation& op);

    /// Returns the seconds that one wait may take: kDeadline unless another deadline was set.
    double deadline() const { return deadline_; }
    /// Sets the deadline to environment_deadline(). Throws Error if RG_DEADLINE_S is not a number above 0 and at most
    /// 1e9. The constructor does not read the variable: if the constructor threw, there would be no link, and every
    /// rank would report the error, not rank 0 alone.
    void read_environment();
    void set_deadline(double seconds);
    /// Makes waits on this link, present and future, throw RankMissing soon, unless their message has come. A thread
    /// that has met an error calls it to end the waits of another thread.
    void fail_all_waits() { deadline_ = 0; }

    /// With MPI, ends the job with this exit code. With threads, makes the other ranks throw PeerFailed when they next
    /// start or await a message. Does nothing if the rank is alone.
    virtual void abort(int code) = 0;

    /// The properties of an open channel, for implementations of Link.
    struct ChannelState {
        int peer = -1;
        int tag = 0;
        size_t bytes = 0; // length of a send, capacity of a receive
        bool send = false;
        bool in_flight = false;
    };

protected:
    Link(int rank, int size, int local_rank, int local_size);
    /// Sets node(), unless nodes have different numbers of ranks. node_of[r] is a number of the node of rank r, and
    /// NodeLayout::order has the nodes in the order of these numbers.
    void set_nodes(std::vector<int> node_of);
    /// Sets core_sharers(), which is local_size() without this call.
    void set_core_sharers(int ranks) { core_sharers_ = ranks; }
    const ChannelState& slot(int i) const { return slots_[size_t(i)]; }

private:
    friend class Channel;
    friend class SubLink;  // uses private functions and wait_observer_ of the link that it uses
    friend class TaskLink; // calls discard() of the link that it uses
    friend class RollCall; // sets wait_observer_
    virtual void do_open_channel(int slot, void* data) = 0;
    virtual void do_start(int slot) = 0;
    /// Returns true if the message is complete. For a receive, then sets *bytes to its length. Throws Error if the
    /// transfer has failed.
    virtual bool do_test(int slot, size_t* bytes) = 0;
    /// Frees the slot. If its message is in flight, cancels it or waits for it.
    virtual void do_close(int slot) = 0;
    /// Removes short messages from this peer with this tag that nobody will receive, if the transport stores messages.
    virtual void discard(int /*peer*/, int /*tag*/) {}
    /// Implements open_shared() for nodes with several ranks. Collective over `ranks`, which are all or some ranks of
    /// this link, in ascending order. The window has parts for those on this node.
    virtual std::unique_ptr<SharedWindow> do_open_shared(size_t /*bytes_per_rank*/, std::span<const int> /*ranks*/) {
        return nullptr;
    }
    /// Throws PeerFailed if this link knows that another rank has failed. wait_for() calls it between polls.
    virtual void check_peers() {}

    Channel open(bool send, void* data, size_t bytes, int peer, int tag);
    void close(int slot);
    template <class Done>
    double wait_or_give_up(const Operation& op, const Done& done) const;
    [[noreturn]] void fail_late(std::string_view expected, int peer, const Operation& op, int round,
                                double seconds) const;

    int rank_, size_, local_rank_, local_size_, core_sharers_;
    bool crowded_; // more ranks than cores on this node
    std::vector<int> others_;
    NodeLayout node_;
    std::vector<int> node_of_; // of set_nodes()
    std::atomic<double> deadline_;
    WaitObserver* wait_observer_ = nullptr; // looks for missing ranks in a long wait; or null
    std::deque<ChannelState> slots_;        // a deque keeps addresses: wait_observer_ opens channels during a wait
    std::vector<int> free_slots_;
};

/// The link of a rank that is alone. It opens no channels, since their peer must be another rank.
class SingleLink final : public Link {
public:
    SingleLink() : Link(0, 1, 0, 1) { set_nodes({0}); }
    void abort(int) override {}

private:
    void do_open_channel(int, void*) override {}
    void do_start(int) override {}
    bool do_test(int, size_t*) override { return true; }
    void do_close(int) override {}
};

/// Detects ranks that are in different operations. Without this check, they would hang, or produce wrong results
/// without an error.
///
/// Every operation of a Group that uses messages starts with one 96-byte message from each rank to the next around the
/// ring. A rank receives no data until the previous rank's message agrees with its own operation (name, what, bytes,
/// number, detail). If the ranks do not all agree, at least one pair of neighbours differs, so some rank detects it.
/// Within a node the message takes about a microsecond.
///
/// If all ranks share memory, they also write each operation into that memory (set_post_window()). Sums in shared
/// memory then use post() and wait_for_posts() instead of start() and finish(): they need no message, and each rank
/// compares its operation with those of all others. So these ranks also detect a rank that is in an operation with
/// messages.
class Handshake {
public:
    explicit Handshake(Link& link);
    Handshake(const Handshake&) = delete;
    Handshake& operator=(const Handshake&) = delete;

    /// Sends this rank's operation to the next rank, and does not block. Call finish() with the same operation.
    void start(const Operation& op);
    /// Blocks until the previous rank's message has arrived and this rank's has been sent. Throws Error naming both
    /// operations if they differ.
    void finish(const Operation& op);

    static constexpr size_t kPostBytes = 128;
    /// Makes post() and start() write this rank's operation at byte `offset` of its part of the window. The kPostBytes
    /// bytes there must be zero at first.
    void set_post_window(const SharedWindow& window, size_t offset);
    void post(const Operation& op);
    /// Blocks until every rank has posted operation op.number or a later one. Throws Error naming both operations if a
    /// rank's operation differs.
    void wait_for_posts(const Operation& op);
    /// Returns, for error texts, the last known operation of a rank: " (last in operation 411, step 41)". Without
    /// set_post_window(), knows only that of the previous rank, after the first finish(), and returns "" for all other
    /// ranks.
    std::string last_operation(int rank) const;

private:
    struct Message {
        uint64_t bytes = 0, number = 0, detail = 0, text_hash = 0;
        std::array<char, 24> name{};
        std::array<char, 40> what{};
        bool operator==(const Message&) const = default;
    };
    struct PostedOperation {
        uint64_t number = 0; // last operation posted; stored after the message
        int64_t step = 0;
        Message message;
    };
    static_assert(sizeof(PostedOperation) <= kPostBytes);
    static Message message_of(const Operation& op);
    auto& post_of(int q) const { return *reinterpret_cast<PostedOperation*>(window_->parts[size_t(q)] + offset_); }
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
