// Rounds: the caller publishes a body, works along, and waits until all tasks are done, not until all workers have
// come: one that sleeps, or whose core is taken by another rank, holds nothing up and finds nothing left to do.
#include "core/cpu/thread_pool.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

namespace rg {

namespace {

constexpr int kSpins = 4000; // some 50 microseconds

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/// Waits until `value` differs from `old`: spinning first, sleeping then.
template <class T>
void wait_while_equal(const std::atomic<T>& value, T old) {
    for (int i = 0; i < kSpins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

} // namespace

ThreadPool::ThreadPool(int threads) {
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this](std::stop_token stop) { work(stop); });
    } catch (const std::system_error& e) {
        const size_t started = workers_.size();
        dismiss(); // or they would be joined while they wait for work
        fail("threads: ", threads - 1, " workers wanted, ", started, " could be started: ", e.what(),
             "; use --threads");
    }
}

ThreadPool::~ThreadPool() { dismiss(); }

void ThreadPool::dismiss() {
    for (std::jthread& worker : workers_) worker.request_stop();
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    workers_.clear();
}

void ThreadPool::take_tasks() {
    for (;;) {
        uint64_t next = next_.load(std::memory_order_acquire);
        const uint32_t tasks = tasks_.load(std::memory_order_acquire), task = uint32_t(next);
        if (task >= tasks) return;
        const Body body = body_.load(std::memory_order_relaxed);
        void* const data = data_.load(std::memory_order_relaxed);
        // Success means that the round is still the one that body and data were read in.
        if (!next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) continue;
        try {
            if (!failed_.load(std::memory_order_relaxed)) body(data, task);
        } catch (...) {
            const std::lock_guard lock(error_mutex_);
            if (!error_) error_ = std::current_exception();
            failed_.store(true, std::memory_order_relaxed);
        }
        if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_all();
    }
}

void ThreadPool::run_erased(int64_t tasks, Body body, void* data) {
    if (tasks <= 0) return;
    if (uint64_t(tasks) >= kClosed) throw std::length_error("ThreadPool: too many tasks");
    const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
    // A worker that comes late to the last round must not take a task of this one with what it read there.
    next_.store(uint64_t{round} << 32 | kClosed, std::memory_order_relaxed);
    body_.store(body, std::memory_order_relaxed);
    data_.store(data, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    tasks_.store(uint32_t(tasks), std::memory_order_release);
    next_.store(uint64_t{round} << 32, std::memory_order_release);
    round_.store(round, std::memory_order_release);
    round_.notify_all();
    take_tasks();
    for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != uint32_t(tasks);)
        wait_while_equal(done_, done);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::work(std::stop_token stop) {
    for (uint32_t seen = 0;;) {
        wait_while_equal(round_, seen);
        seen = round_.load(std::memory_order_acquire);
        if (stop.stop_requested()) return;
        take_tasks();
    }
}

int available_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return std::max(1, int(std::thread::hardware_concurrency()));
}

} // namespace rg
