// Each call of run() is a round. In a round, the caller publishes a function, takes tasks itself, and waits until all
// tasks are done. The caller does not wait for all workers. So a worker that has taken no task yet, because it sleeps
// or its core runs another MPI rank, delays nothing. If no tasks are left when it wakes up, it waits for the next
// round.
#include "core/cpu/thread_pool.h"

#include "core/base.h"

#include <system_error>
#include <utility>

namespace rg {

namespace {

constexpr int kSpins = 4000; // take tens to hundreds of microseconds on x86, depending on its pause instruction

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/// Blocks until `value` differs from `old`. Spins first, then sleeps.
template <class T>
void wait_while_equal(const std::atomic<T>& value, T old) {
    for (int i = 0; i < kSpins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

} // namespace

ThreadPool::ThreadPool(int threads) : queues_(size_t(threads)) {
    try {
        for (size_t i = 1; i < queues_.size(); ++i)
            workers_.emplace_back([this, i](std::stop_token stop) { work(stop, i); });
    } catch (const std::system_error& e) {
        const size_t started = workers_.size();
        stop_workers(); // otherwise ~jthread() would wait forever for workers that wait for tasks
        fail("threads: expected to start ", threads - 1, " workers, got ", started, ": ", e.what(),
             "; use fewer --threads");
    }
}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::stop_workers() {
    for (std::jthread& worker : workers_) worker.request_stop();
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    workers_.clear();
}

bool ThreadPool::take_task(size_t queue) {
    std::atomic<uint64_t>& of_queue = queues_[queue].next;
    uint64_t next = of_queue.load(std::memory_order_acquire);
    const uint32_t tasks = tasks_.load(std::memory_order_acquire), task = uint32_t(next);
    if (task >= first_task(queue + 1, tasks)) return false;
    const Body body = body_.load(std::memory_order_relaxed);
    void* const data = data_.load(std::memory_order_relaxed);
    // `next` has the number of its round, and run_erased() closes all queues before it publishes another round. So if
    // the exchange succeeds, `tasks`, body and data are all of that round.
    if (!of_queue.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) return true;
    try {
        if (!failed_.load(std::memory_order_relaxed)) body(data, task);
    } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
        failed_.store(true, std::memory_order_relaxed);
    }
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_all();
    return true;
}

void ThreadPool::take_tasks(size_t thread) {
    for (size_t i = 0; i < queues_.size(); ++i)
        while (take_task((thread + i) % queues_.size())) {}
}

void ThreadPool::run_erased(int64_t tasks, Body body, void* data) {
    if (tasks <= 0) return;
    const auto call = caller_.call("ThreadPool");
    const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
    // Close the previous round first. Otherwise a late worker could take a task of this round with the previous body.
    for (Queue& queue : queues_) queue.next.store(uint64_t{round} << 32 | kClosed, std::memory_order_relaxed);
    body_.store(body, std::memory_order_relaxed);
    data_.store(data, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    tasks_.store(uint32_t(tasks), std::memory_order_release);
    for (size_t i = 0; i < queues_.size(); ++i)
        queues_[i].next.store(uint64_t{round} << 32 | first_task(i, uint64_t(tasks)), std::memory_order_release);
    round_.store(round, std::memory_order_release);
    round_.notify_all();
    take_tasks(0);
    for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != uint32_t(tasks);)
        wait_while_equal(done_, done);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::work(std::stop_token stop, size_t thread) {
    for (uint32_t seen = 0;;) {
        wait_while_equal(round_, seen);
        seen = round_.load(std::memory_order_acquire);
        if (stop.stop_requested()) return;
        take_tasks(thread);
    }
}

} // namespace rg
