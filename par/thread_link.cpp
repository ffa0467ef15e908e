// Matches sends and receives between threads. Each receiving rank has one mailbox, and each mailbox one mutex.
//
// A message is copied under the mailbox's mutex, and a channel is withdrawn under it too. So no thread touches the
// buffer of a closed channel, even if ranks unwind after an error in any order.

#include "par/thread_link.h"

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
    void* data = nullptr;
    size_t bytes = 0;
    int peer = -1; // the other rank
    int tag = 0;
    bool send = false;
    size_t moved = 0;
    bool too_long = false;
    std::atomic<bool> done{false};
};

/// Started sends to one rank, and its started receives, that have no match yet.
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
        if (list[i].source == source && list[i].end->tag == tag) {
            End* end = list[i].end;
            list.erase(list.begin() + std::ptrdiff_t(i)); // the first match is the oldest
            return end;
        }
    return nullptr;
}

void deliver(End& from, End& to) {
    to.too_long = from.bytes > to.bytes;
    to.moved = to.too_long ? 0 : from.bytes;
    from.moved = from.bytes;
    if (to.moved) std::memcpy(to.data, from.data, to.moved);
    to.done.store(true, std::memory_order_release);
    from.done.store(true, std::memory_order_release);
}

/// Zeroed memory, one part of whole pages for each rank. It lives until the last rank destroys its window.
struct Memory {
    static constexpr size_t kPage = 4096;
    Memory(int size, size_t bytes) : stride((bytes + kPage - 1) / kPage * kPage) {
        block.reset(std::calloc(size_t(size) * stride + kPage, 1));
        RG_CHECK(block, "open_shared: expected ", size, " times ", bytes, " bytes, got none");
        first = static_cast<std::byte*>(block.get());
        first += kPage - reinterpret_cast<uintptr_t>(first) % kPage;
    }
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    size_t stride;
    std::unique_ptr<void, Free> block;
    std::byte* first = nullptr;
};

class ThreadWindow final : public SharedWindow {
public:
    ThreadWindow(std::shared_ptr<Memory> memory, std::vector<std::byte*> parts, size_t bytes)
        : SharedWindow(std::move(parts), bytes), memory_(std::move(memory)) {}

private:
    std::shared_ptr<Memory> memory_;
};

/// State that all ranks share.
struct Shared {
    explicit Shared(int size) : mailboxes(size_t(size)) {}
    std::vector<Mailbox> mailboxes;
    std::atomic<int> failed_rank{-1}; // the first rank that failed

    /// Windows that only some ranks have opened so far. The key is the number of windows that a rank had opened before.
    struct Opening {
        std::shared_ptr<Memory> memory;
        int ranks = 0;
    };
    std::mutex mutex;
    std::map<int, Opening> openings;
};

class ThreadLink final : public Link {
public:
    ThreadLink(Shared& shared, int rank, int size) : Link(rank, size, rank, size), shared_(shared) {}

    void abort(int) override {
        int none = -1;
        shared_.failed_rank.compare_exchange_strong(none, rank());
    }

    /// Does not wait: the first rank that calls it allocates the memory.
    std::unique_ptr<SharedWindow> open_shared(size_t bytes) override {
        const std::lock_guard lock(shared_.mutex);
        const auto opening = shared_.openings.try_emplace(windows_++).first;
        if (!opening->second.memory) opening->second.memory = std::make_shared<Memory>(size(), bytes);
        const std::shared_ptr<Memory> memory = opening->second.memory;
        if (++opening->second.ranks == size()) shared_.openings.erase(opening);
        std::vector<std::byte*> parts;
        for (int q = 0; q < size(); ++q) parts.push_back(memory->first + size_t(q) * memory->stride);
        return std::make_unique<ThreadWindow>(memory, std::move(parts), bytes);
    }

private:
    void do_open(int i, void* data) override {
        while (ends_.size() <= size_t(i)) ends_.push_back(std::make_unique<End>());
        End& end = *ends_[size_t(i)];
        end.data = data;
        end.bytes = slot(i).bytes;
        end.peer = slot(i).peer;
        end.tag = slot(i).tag;
        end.send = slot(i).send;
    }

    void do_start(int i) override {
        check_peers();
        End& end = *ends_[size_t(i)];
        end.done.store(false, std::memory_order_relaxed);
        Mailbox& box = mailbox(end);
        const int source = end.send ? rank() : end.peer;
        const std::lock_guard lock(box.mutex);
        if (End* match = take(end.send ? box.receives : box.sends, source, end.tag))
            end.send ? deliver(end, *match) : deliver(*match, end);
        else
            (end.send ? box.sends : box.receives).push_back({source, &end});
    }

    bool do_test(int i, size_t* bytes) override {
        End& end = *ends_[size_t(i)];
        if (!end.done.load(std::memory_order_acquire)) {
            check_peers();
            return false;
        }
        RG_CHECK(!end.too_long, "receive: expected at most ", end.bytes, " bytes from rank ", end.peer,
                 ", got a longer message (rank ", rank(), ")");
        *bytes = end.moved;
        return true;
    }

    void do_close(int i) override {
        if (!slot(i).in_flight) return;
        End& end = *ends_[size_t(i)];
        Mailbox& box = mailbox(end);
        const std::lock_guard lock(box.mutex);
        std::erase_if(end.send ? box.sends : box.receives, [&](const auto& w) { return w.end == &end; });
    }

    Mailbox& mailbox(const End& end) { return shared_.mailboxes[size_t(end.send ? end.peer : rank())]; }

    void check_peers() override {
        const int failed = shared_.failed_rank.load();
        if (failed >= 0 && failed != rank())
            throw PeerFailed(cat("rank ", failed, " failed (seen by rank ", rank(), ")"));
    }

    Shared& shared_;
    int windows_ = 0;                        // opened so far
    std::vector<std::unique_ptr<End>> ends_; // by slot; the addresses stay the same, since mailboxes point at them
};

} // namespace

struct ThreadWorld::State {
    explicit State(int size) : shared(size) {}
    Shared shared;
    std::vector<std::unique_ptr<Link>> links;
};

ThreadWorld::ThreadWorld(int size) {
    RG_CHECK(size >= 1, "ThreadWorld: expected at least one rank, got ", size);
    state_ = std::make_unique<State>(size);
    for (int r = 0; r < size; ++r) state_->links.push_back(std::make_unique<ThreadLink>(state_->shared, r, size));
}

ThreadWorld::~ThreadWorld() = default;

Link& ThreadWorld::link(int rank) { return *state_->links.at(size_t(rank)); }

void run_threads(int size, const std::function<void(Link&)>& body) {
    ThreadWorld world(size);
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

} // namespace rg::par
