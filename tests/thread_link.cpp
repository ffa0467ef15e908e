// Matches sends and receives between threads. Each receiving rank has one mailbox, and each mailbox one mutex.
//
// A message is copied under the mailbox's mutex, and a channel is withdrawn under it too. So no thread touches the
// buffer of a closed channel, even if ranks unwind after an error in any order.

#include "tests/thread_link.h"
#include "tests/par/ranks.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

namespace rg::par {

namespace {

/// One side of a message: a send or a receive. `done` is set under the mailbox's mutex and polled without it.
struct End {
    const Link::ChannelState* slot = nullptr; // other ranks read only the fields that open() has set
    void* data = nullptr;
    size_t moved = 0;
    bool too_long = false;
    std::atomic<bool> done{false};
};

/// Sends to one rank, and receives of that rank, that have been started but have no match yet.
struct Mailbox {
    struct Waiting {
        int source;
        End* end;
    };
    std::mutex mutex;
    std::vector<Waiting> sends, receives;
};

End* take(std::vector<Mailbox::Waiting>& list, int source, int tag) {
    for (size_t i = 0; i < list.size(); ++i)
        if (list[i].source == source && list[i].end->slot->tag == tag) {
            End* end = list[i].end;
            list.erase(list.begin() + std::ptrdiff_t(i)); // the first match is the oldest
            return end;
        }
    return nullptr;
}

void deliver(End& from, End& to) {
    from.moved = from.slot->bytes;
    to.too_long = from.moved > to.slot->bytes;
    to.moved = to.too_long ? 0 : from.moved;
    if (to.moved) std::memcpy(to.data, from.data, to.moved);
    to.done.store(true, std::memory_order_release);
    from.done.store(true, std::memory_order_release);
}

constexpr size_t kPage = 4096;

/// Returns `size` times `bytes` zeroed bytes that begin on a page.
std::shared_ptr<std::byte> allocate(int size, size_t bytes) {
    const std::shared_ptr<void> block(std::calloc(size_t(size) * bytes + kPage, 1), std::free);
    RG_CHECK(block, "open_shared: expected ", size, " times ", bytes, " bytes, got none");
    std::byte* const begin = static_cast<std::byte*>(block.get());
    return {block, begin + (kPage - reinterpret_cast<uintptr_t>(begin) % kPage)};
}

/// State that all ranks share.
struct Shared {
    explicit Shared(int size) : mailboxes(size_t(size)) {}
    std::vector<Mailbox> mailboxes;
    std::atomic<int> failed_rank{-1}; // the first rank that failed

    /// Windows that only some ranks of a node have opened so far. The key consists of the number of windows that a rank
    /// had opened before with these ranks, and the ranks.
    struct Opening {
        std::shared_ptr<std::byte> memory;
        int ranks = 0;
    };
    std::mutex mutex;
    std::map<std::pair<int, std::vector<int>>, Opening> openings;
};

class ThreadLink final : public Link {
public:
    ThreadLink(Shared& shared, int rank, int size, int per_node)
        : Link(rank, size, rank % per_node, std::min(per_node, size - rank / per_node * per_node)),
          shared_(shared),
          per_node_(per_node) {
        std::vector<int> node_of;
        for (int q = 0; q < size; ++q) node_of.push_back(q / per_node);
        set_nodes(std::move(node_of));
    }

    void abort(int) override {
        int none = -1;
        shared_.failed_rank.compare_exchange_strong(none, rank());
    }

    /// Does not wait: the first rank that calls it allocates the memory.
private:
    std::unique_ptr<SharedWindow> do_open_shared(size_t bytes, std::span<const int> all) override {
        std::vector<int> ranks(all.begin(), all.end());
        std::erase_if(ranks, [&](int q) { return q / per_node_ != rank() / per_node_; });
        const std::lock_guard lock(shared_.mutex);
        const auto opening = shared_.openings.try_emplace({windows_[ranks]++, ranks}).first;
        const size_t stride = (bytes + kPage - 1) / kPage * kPage;
        if (!opening->second.memory) opening->second.memory = allocate(int(ranks.size()), stride);
        const std::shared_ptr<std::byte> memory = opening->second.memory;
        if (++opening->second.ranks == int(ranks.size())) shared_.openings.erase(opening);
        std::vector<std::byte*> parts;
        for (size_t q = 0; q < ranks.size(); ++q) parts.push_back(memory.get() + q * stride);
        return std::make_unique<SharedWindow>(SharedWindow{std::move(parts), bytes, memory});
    }

    void do_open_channel(int i, void* data) override {
        while (ends_.size() <= size_t(i)) ends_.push_back(std::make_unique<End>());
        End& end = *ends_[size_t(i)];
        end.slot = &slot(i);
        end.data = data;
    }

    void do_start(int i) override {
        check_peers();
        End& end = *ends_[size_t(i)];
        end.done.store(false, std::memory_order_relaxed);
        Mailbox& box = mailbox(i);
        const bool send = slot(i).send;
        const int source = send ? rank() : slot(i).peer;
        const std::lock_guard lock(box.mutex);
        if (End* match = take(send ? box.receives : box.sends, source, slot(i).tag))
            send ? deliver(end, *match) : deliver(*match, end);
        else
            (send ? box.sends : box.receives).push_back({source, &end});
    }

    bool do_test(int i, size_t* bytes) override {
        End& end = *ends_[size_t(i)];
        if (!end.done.load(std::memory_order_acquire)) {
            check_peers();
            return false;
        }
        RG_CHECK(!end.too_long, "receive: expected at most ", slot(i).bytes, " bytes from rank ", slot(i).peer,
                 ", got a longer message (rank ", rank(), ")");
        *bytes = end.moved;
        return true;
    }

    void do_close(int i) override {
        if (!slot(i).in_flight) return;
        Mailbox& box = mailbox(i);
        const std::lock_guard lock(box.mutex);
        std::erase_if(slot(i).send ? box.sends : box.receives,
                      [&](const auto& w) { return w.end == ends_[size_t(i)].get(); });
    }

    Mailbox& mailbox(int i) { return shared_.mailboxes[size_t(slot(i).send ? slot(i).peer : rank())]; }

    void check_peers() override {
        const int failed = shared_.failed_rank.load();
        if (failed >= 0 && failed != rank())
            throw PeerFailed(cat("rank ", failed, " failed (seen by rank ", rank(), ")"));
    }

    Shared& shared_;
    const int per_node_;
    std::map<std::vector<int>, int> windows_; // opened so far, by the ranks of this node that opened them
    std::vector<std::unique_ptr<End>> ends_; // by slot; the addresses stay the same, since mailboxes point at them
};

} // namespace

struct ThreadWorld::State {
    explicit State(int size) : shared(size) {}
    Shared shared;
    std::vector<std::unique_ptr<Link>> links;
};

ThreadWorld::ThreadWorld(int size, int per_node) {
    RG_CHECK(size >= 1, "ThreadWorld: expected at least one rank, got ", size);
    state_ = std::make_unique<State>(size);
    for (int r = 0; r < size; ++r)
        state_->links.push_back(std::make_unique<ThreadLink>(state_->shared, r, size, per_node ? per_node : size));
}

ThreadWorld::~ThreadWorld() = default;

Link& ThreadWorld::link(int rank) { return *state_->links.at(size_t(rank)); }

void run_threads(int size, const std::function<void(Link&)>& body, int per_node) {
    ThreadWorld world(size, per_node);
    std::mutex mutex;
    std::exception_ptr first, peer_failed;
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r)
        threads.emplace_back([&, r] {
            Link& link = world.link(r);
            try {
                body(link);
            } catch (const PeerFailed&) {
                const std::lock_guard lock(mutex);
                if (!peer_failed) peer_failed = std::current_exception();
            } catch (...) {
                {
                    const std::lock_guard lock(mutex);
                    if (!first) first = std::current_exception();
                }
                link.abort(1);
            }
        });
    for (std::thread& t : threads) t.join();
    if (first) std::rethrow_exception(first);
    if (peer_failed) std::rethrow_exception(peer_failed);
}

void run_groups(int size, const std::function<void(Group&)>& body) {
    run_threads(size, [&](Link& link) {
        Group group(link);
        body(group);
    });
}

void on_ranks(const std::function<void(Link&)>& body) {
    for (int n = 1; n <= 9; ++n) run_threads(n, body);
}

void on_nodes(const std::function<void(Link&)>& body) {
    for (int n = 1; n <= 9; ++n)
        for (int per_node = 1; per_node <= n; ++per_node) run_threads(n, body, per_node);
}

} // namespace rg::par
