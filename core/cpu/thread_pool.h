// A fixed team of threads that shares out numbered tasks.
//
// Which thread runs a task is not fixed, so kernels put every partial result where the task's number says and combine
// them in order of the numbers: results do not depend on how many threads there are. A waiting worker spins for some
// microseconds, since kernels follow each other closely, and then sleeps, since the cores may be needed by other ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace rg {

class ThreadPool {
public:
    /// `threads` in all, the calling one included; at least 1.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    int size() const { return int(workers_.size()) + 1; }

    /// Calls f(task) for every task in [0, tasks) and returns when all are done. The first exception is thrown again.
    template <class F>
    void run(int64_t tasks, F&& f) {
        run_erased(
            tasks, [](void* body, int64_t task) { (*static_cast<std::remove_reference_t<F>*>(body))(task); }, &f);
    }

private:
    using Body = void (*)(void*, int64_t);
    void run_erased(int64_t tasks, Body body, void* data);
    void take_tasks();
    void work(std::stop_token stop);
    void dismiss(); // ends all workers

    // Valid from the publication of a round until its last task is done.
    std::atomic<Body> body_{nullptr};
    std::atomic<void*> data_{nullptr};
    std::atomic<uint32_t> tasks_{0};
    alignas(64) std::atomic<uint64_t> next_{kClosed}; // round in the upper half, next task in the lower
    alignas(64) std::atomic<uint32_t> round_{0};      // what sleeping workers wait on
    alignas(64) std::atomic<uint32_t> done_{0};
    std::atomic<bool> failed_{false};
    static constexpr uint64_t kClosed = 0xFFFFFFFF;
    std::mutex error_mutex_;
    std::exception_ptr error_;
    std::vector<std::jthread> workers_;
};

/// Runs on the context's pool, or on the calling thread alone when it has none.
template <class F>
void parallel(int64_t tasks, F&& f);

/// Cores that this process may use.
int available_cores();

} // namespace rg

#include "core/context.h"

template <class F>
void rg::parallel(int64_t tasks, F&& f) {
    ThreadPool* pool = context().threads;
    if (pool && tasks > 1) return pool->run(tasks, f);
    for (int64_t task = 0; task < tasks; ++task) f(task);
}
