// Rounds: the caller publishes a body, bumps the round, works along, and waits until every worker has left it.
#include "core/cpu/thread_pool.h"

#include <algorithm>

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
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this](std::stop_token stop) { work(stop); });
}

ThreadPool::~ThreadPool() {
    for (std::jthread& worker : workers_) worker.request_stop();
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
}

void ThreadPool::take_tasks() {
    try {
        for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) body_(data_, task);
    } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
        next_.store(tasks_, std::memory_order_relaxed);
    }
}

void ThreadPool::run_erased(int64_t tasks, Body body, void* data) {
    body_ = body;
    data_ = data;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(int(workers_.size()), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    take_tasks();
    for (int busy; (busy = busy_.load(std::memory_order_acquire)) != 0;) wait_while_equal(busy_, busy);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::work(std::stop_token stop) {
    for (uint32_t seen = 0;;) {
        wait_while_equal(round_, seen);
        if (stop.stop_requested()) return;
        ++seen; // the caller starts no further round before every worker has left this one
        take_tasks();
        if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_all();
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
