// Link: what the parallel algorithms see of the machine, and nothing else.
//
// A Link is one rank's view of a fixed set of ranks: who I am, and channels. A channel is opened once over a fixed
// buffer (send or receive, one peer, one tag), then started and waited for any number of times; a steady training
// step opens nothing. There are two makes: MPI point-to-point (mpi_link.h) and ranks as threads of one process
// (thread_link.h); and the link of some of the ranks, over either (sub_link.h). Messages of one sender, receiver and
// tag arrive in the order in which they were started. Where all ranks are on one node, a Link also gives memory that
// they share. One thread at a time may use a Link. Collectives are not here: see group.h.
#pragma once

#include "core/base.h"

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

namespace rg::par {

/// Another rank failed first, and this rank only heard of it. Programs report the first failure, not its echoes.
class PeerFailed : public Error {
public:
    using Error::Error;
};

/// A rank did not come within the deadline. It may be gone for good, so this ends the job, whoever could go on.
class RankMissing : public Error {
public:
    using Error::Error;
};

/// The collective that a message belongs to. It is compared between ranks (Handshake) and named in error texts.
struct Operation {
    const char* name = ""; // "allreduce"
    std::string_view what; // the caller's word: "gradients, bucket 2"
    uint64_t bytes = 0;    // of the whole operation, not of one message
    uint64_t number = 0;   // counts the operations of a group; 0: not one of all ranks of the link
    int64_t step = 0;      // training step, for texts only
    uint64_t detail = 0;   // whatever else must agree: a root, a segment size
};

class Link;
class RollCall;

/// A channel: one buffer, one direction, one peer. Moves, does not copy. Closing one in flight withdraws it.
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

/// Memory that all ranks of a link share: one part per rank, all of one size. Its end is collective, as its beginning.
class SharedWindow {
public:
    virtual ~SharedWindow() = default;
    SharedWindow(const SharedWindow&) = delete;
    SharedWindow& operator=(const SharedWindow&) = delete;
    /// First byte of a rank's part, on a 64-byte border.
    std::byte* part(int rank) const { return parts_[size_t(rank)]; }
    /// Of one part.
    size_t bytes() const { return bytes_; }

protected:
    SharedWindow(std::vector<std::byte*> parts, size_t bytes) : parts_(std::move(parts)), bytes_(bytes) {}

private:
    std::vector<std::byte*> parts_;
    size_t bytes_;
};

class Link {
public:
    virtual ~Link() = default;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    /// Place among the program's ranks that share this machine's memory, and how many they are.
    int local_rank() const { return local_rank_; }
    int local_size() const { return local_size_; }
    /// "rank 2", and its machine where there may be several: for texts.
    virtual std::string name_of(int rank) const;

    /// A channel over memory that the caller keeps alive and in place. Sizes up to 2^31 - 1 bytes; zero is allowed.
    Channel open_send(const void* data, size_t bytes, int to, int tag);
    /// Takes messages of at most `capacity` bytes; a longer one is an error at wait().
    Channel open_receive(void* data, size_t capacity, int from, int tag);

    /// Sets the channel's one message going. It must not be in flight already.
    void start(Channel& channel);
    /// Gives the bytes that were received (or sent). Polls, then yields the core, then naps, so that more ranks than
    /// cores do not starve each other. Error past the deadline: names both ranks, the operation, round and bytes.
    size_t wait(Channel& channel, const Operation& op, int round = 0);
    /// Whether it has gone or come; then *bytes is its length. For those who have something else to do meanwhile.
    bool test(Channel& channel, size_t* bytes);

    /// Memory shared by all ranks, zero at first; null, on all of them, where they are not all on one node or it cannot
    /// be had. Collective, and blocks until all have called it, so agree on it before (Handshake).
    virtual std::unique_ptr<SharedWindow> open_shared(size_t bytes_per_rank);
    /// Waits, as wait() does, until a word in shared memory is at least `value`; all that its writer stored before is
    /// then visible. Error past the deadline: expected `peer` `doing`.
    void wait_for(std::atomic_ref<uint64_t> word, uint64_t value, int peer, const char* doing, const Operation& op,
                  int round);

    /// Seconds that one wait may take: 300, or what RG_DEADLINE_S says once that was read. Error if it says no number;
    /// it is read after the start, so that rank 0 can say it for all.
    double deadline() const { return deadline_; }
    void read_environment();
    void set_deadline(double seconds);
    /// Waits fail at once from now on. For a thread that leaves with an error while another one waits.
    void give_up() { deadline_ = 0; }

    /// Ends the job with this exit code (MPI), or makes every other rank's next wait a PeerFailed (threads).
    virtual void abort(int code) = 0;
    /// The library's own blocking sum in place, as a yardstick; false where there is none. width: 4 float, 8 double.
    virtual bool native_allreduce(void* data, size_t count, size_t width);

protected:
    struct Slot {
        int peer = -1;
        int tag = 0;
        size_t bytes = 0; // length of a send, capacity of a receive
        bool send = false;
        bool in_flight = false;
    };
    Link(int rank, int size, int local_rank, int local_size);
    const Slot& slot(int i) const { return slots_[size_t(i)]; }

private:
    friend class Channel;
    friend class SubLink; // asks the link below for its peers
    friend class RollCall;
    virtual void do_open(int slot, void* data) = 0;
    virtual void do_start(int slot) = 0;
    /// True when the message has gone or come; then *bytes is its length. Errors of the transport are thrown.
    virtual bool do_test(int slot, size_t* bytes) = 0;
    virtual void do_close(int slot) = 0;
    /// Takes short messages of this peer and tag that nobody will ever receive, where a transport would keep them.
    virtual void discard(int /*peer*/, int /*tag*/) {}
    /// Throws PeerFailed where that is known; called between the polls of wait_for().
    virtual void check_peers() {}

    Channel open(bool send, void* data, size_t bytes, int peer, int tag);
    void close(int slot);
    void set_roll_call(RollCall* roll_call) { roll_call_ = roll_call; }
    template <class Done>
    double poll(const Operation& op, const Done& done) const;
    [[noreturn]] void fail_late(std::string_view expected, int peer, const Operation& op, int round,
                                double seconds) const;

    int rank_, size_, local_rank_, local_size_;
    bool crowded_; // more ranks than cores on this node
    std::atomic<double> deadline_;
    RollCall* roll_call_ = nullptr; // of the group, if there is one
    std::deque<Slot> slots_;        // they stay where they are: during a wait for one, the roll call opens others
    std::vector<int> free_slots_;
};

/// Makes ranks that are in different operations an error at once, instead of a hang or silent garbage.
///
/// Every operation opens with one 96-byte message from each rank to the next around the ring, and no rank posts a
/// receive for data before the message of the rank before it agrees with its own operation (name, what, bytes,
/// number, detail). If the ranks do not all agree, some neighbours differ, so some rank sees it. It costs about a
/// microsecond; the algorithm for small messages lets it travel beside the first data.
///
/// Where the ranks share memory, each also posts its operations there. Operations that run in that memory need no
/// message: post() and agree() instead of start() and finish(), and each rank compares with all others. If some ranks
/// are in such an operation and others in one with messages, the former see it.
class Handshake {
public:
    explicit Handshake(Link& link);
    Handshake(const Handshake&) = delete;
    Handshake& operator=(const Handshake&) = delete;

    /// Sends this rank's operation to the next rank. `op` stays the caller's until finish().
    void start(const Operation& op);
    /// Waits for the rank before; Error naming both operations when they differ.
    void finish(const Operation& op);

    /// From now on posts operations at byte `offset` of this rank's part, which is zero and kPostBytes long.
    static constexpr size_t kPostBytes = 128;
    void post_in(const SharedWindow& window, size_t offset);
    void post(const Operation& op);
    /// Waits until all have posted as many operations; Error naming both when this one differs.
    void agree(const Operation& op);
    /// " (last in operation 411, step 41)" of a rank that posts in shared memory, or is the one before; else nothing.
    /// For texts.
    std::string last_seen(int rank) const;

private:
    struct Message {
        uint64_t bytes = 0, number = 0, detail = 0, text_hash = 0;
        std::array<char, 24> name{};
        std::array<char, 40> what{};
        bool operator==(const Message&) const = default;
    };
    struct Post {
        uint64_t number = 0; // of the last operation posted; stored after the message
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
    Message mine_, theirs_;
    uint64_t heard_ = 0; // the last operation that the rank before was in, too
    int64_t heard_step_ = 0;
    Channel to_next_, from_previous_;
};

} // namespace rg::par
