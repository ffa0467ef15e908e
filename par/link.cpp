// Implements what all links share: the table of channels, the wait that yields the core, and the handshake.
//
// Waits do not block inside the MPI library, because MPI libraries poll without yielding. With more ranks than cores,
// each message would then wait for the end of a scheduler time slice: milliseconds instead of microseconds.

#include "par/link.h"

#include "core/checksum.h"
#include "core/clock.h"
#include "core/text.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <numeric>

#include <sched.h>
#include <unistd.h>

namespace rg::par {

namespace {

constexpr double kMostDeadline = 1e9; // seconds
// Number of polls before a wait yields the core. With a core per rank, yielding is of little use, and another process
// could then keep the core for a time slice. With more ranks than cores, waits were equally fast with 5 to 50 polls,
// and three times slower with 500.
constexpr int kSpins = 500, kSpinsWhenCrowded = 20;
// Seconds after which a wait no longer yields the core between polls, but sleeps: the peer is then probably computing.
// Sleeping earlier made four ranks on two cores ten times slower: a rank that wakes up must first wait for a core, and
// ranks that only yield keep the cores busy.
constexpr double kNapAfter = 0.05;
constexpr long kNapNs = 50'000;
constexpr double kRollCallAfter = 0.25; // seconds that a wait has taken before it calls its observer
constexpr int kHandshakeTag = 1;

/// Slows down polls of shared memory, on x86 only. Such a poll takes 1 ns, and a poll of a message 50 ns. With the
/// pause, the same number of polls takes a similar time for both.
void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

} // namespace

std::optional<double> environment_deadline() {
    const char* text = std::getenv("RG_DEADLINE_S");
    if (!text || !*text) return kDeadline;
    double seconds = 0;
    if (!read_number(text, seconds) || !(seconds > 0) || seconds > kMostDeadline) return {};
    return seconds;
}

Channel::Channel(Channel&& other) noexcept : link_(other.link_), slot_(other.slot_) { other.link_ = nullptr; }

Channel& Channel::operator=(Channel&& other) noexcept {
    std::swap(link_, other.link_);
    std::swap(slot_, other.slot_);
    return *this;
}

Channel::~Channel() {
    if (link_) link_->close(slot_);
}

Link::Link(int rank, int size, int local_rank, int local_size)
    : rank_(rank),
      size_(size),
      local_rank_(local_rank),
      local_size_(local_size),
      core_sharers_(local_size),
      crowded_(local_size > sysconf(_SC_NPROCESSORS_ONLN)),
      deadline_(kDeadline) {
    for (int q = 0; q < size; ++q)
        if (q != rank) others_.push_back(q);
}

void Link::set_nodes(std::vector<int> node_of) {
    node_of_ = std::move(node_of);
    std::map<int, std::vector<int>> nodes; // ranks of each node
    for (size_t q = 0; q < node_of_.size(); ++q) nodes[node_of_[q]].push_back(int(q));
    for (const auto& [number, ranks] : nodes)
        if (ranks.size() != nodes.begin()->second.size()) return;
    node_.ranks = nodes[node_of_[size_t(rank_)]];
    node_.place = size_t(std::find(node_.ranks.begin(), node_.ranks.end(), rank_) - node_.ranks.begin());
    for (const auto& [number, ranks] : nodes) node_.order.insert(node_.order.end(), ranks.begin(), ranks.end());
}

std::vector<int> Link::ranks() const {
    std::vector<int> ranks(static_cast<size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
}

void Link::set_one_rank_per_node() {
    node_ = {};
    set_nodes(ranks());
}

void Link::read_environment() {
    const std::optional<double> seconds = environment_deadline();
    RG_CHECK(seconds, "RG_DEADLINE_S: expected seconds above zero and at most ", kMostDeadline, ", got '",
             std::getenv("RG_DEADLINE_S"), "'");
    deadline_ = *seconds;
}

void Link::set_deadline(double seconds) {
    RG_CHECK(seconds > 0 && seconds <= kMostDeadline, "set_deadline: expected seconds above zero and at most ",
             kMostDeadline, ", got ", seconds);
    deadline_ = seconds;
}

std::string Link::name_of(int rank) const { return cat("rank ", rank); }

std::unique_ptr<SharedWindow> Link::open_shared(size_t bytes_per_rank) {
    if (node_.ranks.empty()) return nullptr;
    if (node_.ranks.size() > 1) return do_open_shared(bytes_per_rank, ranks());
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = (bytes_per_rank + page - 1) / page * page;
    const std::shared_ptr<void> memory(std::aligned_alloc(page, bytes), std::free);
    RG_CHECK(memory, "open_shared: expected ", bytes, " bytes, got none");
    auto* const part = static_cast<std::byte*>(std::memset(memory.get(), 0, bytes));
    return std::make_unique<SharedWindow>(SharedWindow{{part}, bytes, memory});
}

Channel Link::open_send(const void* data, size_t bytes, int to, int tag) {
    return open(true, const_cast<void*>(data), bytes, to, tag);
}

Channel Link::open_receive(void* data, size_t capacity, int from, int tag) {
    return open(false, data, capacity, from, tag);
}

Channel Link::open(bool send, void* data, size_t bytes, int peer, int tag) {
    RG_CHECK(peer >= 0 && peer < size_ && peer != rank_, "open channel: expected a peer in 0..", size_ - 1,
             " other than rank ", rank_, ", got ", peer);
    RG_CHECK(bytes <= size_t(INT_MAX), "open channel: expected at most ", INT_MAX, " bytes, got ", bytes, " (rank ",
             rank_, ", peer ", peer, ")");
    if (free_slots_.empty()) {
        slots_.emplace_back();
        free_slots_.reserve(slots_.size()); // so that close() never allocates
        free_slots_.push_back(int(slots_.size()) - 1);
    }
    const int i = free_slots_.back();
    slots_[size_t(i)] = {peer, tag, bytes, send, false};
    do_open_channel(i, data);
    free_slots_.pop_back();
    return Channel(this, i);
}

void Link::close(int i) {
    do_close(i);
    slots_[size_t(i)].in_flight = false;
    free_slots_.push_back(i);
}

void Link::start(Channel& channel) {
    ChannelState& s = slots_[size_t(channel.slot_)];
    RG_CHECK(!s.in_flight, "start channel: its last message is still in flight (rank ", rank_, ", peer ", s.peer, ")");
    do_start(channel.slot_);
    s.in_flight = true;
}

size_t Link::wait(Channel& channel, const Operation& op, int round) {
    ChannelState& s = slots_[size_t(channel.slot_)];
    size_t bytes = s.bytes;
    if (!s.in_flight) return bytes;
    const double waited_s = wait_or_give_up(op, [&] { return do_test(channel.slot_, &bytes); });
    if (waited_s > 0)
        fail_late(s.send ? cat("rank ", s.peer, " to receive ", s.bytes, " bytes")
                         : cat("a message from rank ", s.peer, " (up to ", s.bytes, " bytes)"),
                  s.peer, op, round, waited_s);
    s.in_flight = false;
    return bytes;
}

bool Link::test(Channel& channel, size_t* bytes) {
    ChannelState& s = slots_[size_t(channel.slot_)];
    *bytes = s.bytes;
    if (s.in_flight && do_test(channel.slot_, bytes)) s.in_flight = false;
    return !s.in_flight;
}

void Link::wait_for(std::atomic_ref<uint64_t> word, uint64_t value, int peer, const char* doing, const Operation& op,
                    int round) {
    const double waited_s = wait_or_give_up(op, [&] {
        if (word.load(std::memory_order_acquire) >= value) return true;
        check_peers();
        relax();
        return false;
    });
    if (waited_s > 0) fail_late(cat("rank ", peer, " ", doing), peer, op, round, waited_s);
}

void Link::wait_until(const std::function<bool()>& done, int peer, const char* doing, const Operation& op) {
    const double waited_s = wait_or_give_up(op, done);
    if (waited_s > 0) fail_late(cat(name_of(peer), " ", doing), peer, op, 0, waited_s);
}

/// Polls until done() returns true, and returns 0. If the deadline passes first, or wait_observer_ learns that another
/// rank's wait has failed, returns the seconds waited instead.
template <class Done>
double Link::wait_or_give_up(const Operation& op, const Done& done) const {
    const int spins = crowded_ ? kSpinsWhenCrowded : kSpins;
    double begin = 0, last = 0;
    bool nap = false;
    for (int64_t polls = 0; !done(); ++polls) {
        if (polls < spins) continue;
        if (polls == spins) begin = last = seconds_now();
        if (nap) {
            const timespec length{0, kNapNs};
            nanosleep(&length, nullptr);
        } else {
            sched_yield();
            if (polls % 64 != 0) continue; // reading the clock costs time
        }
        const double now = seconds_now();
        if (now - last > kSuspended) begin += now - last;
        last = now;
        const double waited = now - begin;
        nap = waited > kNapAfter;
        const double limit = deadline_;
        if (waited > limit) return waited;
        if (wait_observer_ && op.number && waited > kRollCallAfter &&
            wait_observer_->must_fail(op, begin, waited, limit))
            return waited;
    }
    return 0;
}

void Link::fail_late(std::string_view expected, int peer, const Operation& op, int round, double seconds) const {
    const bool leaving = deadline_ == 0; // fail_all_waits() was called, because of another error
    const std::string missing = wait_observer_ && op.number && !leaving ? wait_observer_->report_missing() : "";
    throw RankMissing(cat(op.name, " ", op.what, ": expected ", expected, ", got nothing in ", seconds, " s (rank ",
                          rank_, ", round ", round, ", ", op.bytes, " bytes in all, operation ", op.number, ", step ",
                          op.step, "); no word from ", missing.empty() ? name_of(peer) : missing,
                          ": stopped, or slow; RG_DEADLINE_S sets the limit"));
}

Handshake::Handshake(Link& link) : link_(link) {
    static_assert(sizeof(Message) == 96, "messages are compared and sent as bytes, so they must not have padding");
    if (link.size() == 1) return;
    to_next_ = link.open_send(&sent_, sizeof sent_, link.next(), kHandshakeTag);
    from_previous_ = link.open_receive(&received_, sizeof received_, link.previous(), kHandshakeTag);
}

Handshake::Message Handshake::message_of(const Operation& op) {
    Message m{op.bytes, op.number, op.detail, 31 * checksum(op.name) + checksum(op.what), {}, {}};
    std::string_view(op.name).copy(m.name.data(), m.name.size() - 1); // the last byte stays zero
    op.what.copy(m.what.data(), m.what.size() - 1);
    return m;
}

void Handshake::start(const Operation& op) {
    if (window_) post(op);
    sent_ = message_of(op);
    link_.start(from_previous_);
    link_.start(to_next_);
}

void Handshake::finish(const Operation& op) {
    const size_t bytes = link_.wait(from_previous_, op);
    if (bytes != sizeof received_ || received_ != sent_) fail_different(received_, link_.previous(), op);
    previous_number_ = op.number, previous_step_ = op.step;
    link_.wait(to_next_, op);
}

void Handshake::set_post_window(const SharedWindow& window, size_t offset) {
    window_ = &window;
    offset_ = offset;
}

void Handshake::post(const Operation& op) {
    PostedOperation& local = post_of(link_.rank());
    local.message = message_of(op);
    std::atomic_ref(local.step).store(op.step, std::memory_order_relaxed);
    std::atomic_ref(local.number).store(op.number, std::memory_order_release);
}

void Handshake::wait_for_posts(const Operation& op) {
    const Message& local = post_of(link_.rank()).message;
    for (const int q : link_.others()) {
        PostedOperation& theirs = post_of(q);
        link_.wait_for(std::atomic_ref(theirs.number), op.number, q, "to begin the operation", op, 0);
        // Compares hashes instead of the texts: most bytes of the texts are on another cache line, which is then not
        // read.
        const bool same = theirs.message.bytes == local.bytes && theirs.message.number == local.number &&
                          theirs.message.detail == local.detail && theirs.message.text_hash == local.text_hash;
        if (!same) fail_different(theirs.message, q, op);
    }
}

std::string Handshake::last_operation(int rank) const {
    uint64_t number = previous_number_;
    int64_t step = previous_step_;
    if (window_) {
        PostedOperation& theirs = post_of(rank);
        number = std::atomic_ref(theirs.number).load(std::memory_order_acquire);
        step = std::atomic_ref(theirs.step).load(std::memory_order_relaxed);
    } else if (number == 0 || rank != link_.previous()) {
        return {};
    }
    return cat(" (last in operation ", number, ", step ", step, ")");
}

void Handshake::fail_different(const Message& theirs, int rank, const Operation& op) const {
    const char* hint = theirs.detail == op.detail ? "" : "; algorithm, number type, segment, memory or root differ";
    fail(op.name, " ", op.what, ": expected ", op.bytes, " bytes on every rank, got ", theirs.name.data(), " ",
         theirs.what.data(), " of ", theirs.bytes, " bytes on rank ", rank, " (rank ", link_.rank(), ", operation ",
         op.number, " here, operation ", theirs.number, " there, step ", op.step, hint,
         "); all ranks must make the same calls in the same order");
}

} // namespace rg::par
