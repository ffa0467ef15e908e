// Runs numbered tasks on a fixed number of threads.
//
// Any thread may run any task. So a kernel stores its partial results by the number of the task, and combines them in
// the order of these numbers. Then the result does not depend on the number of threads. A waiting worker spins for some
// microseconds, since the next kernel usually follows soon. Then it sleeps, since other ranks may need the core.
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
    /// `threads` is at least 1 and includes the calling thread. Throws Error if a thread cannot be started.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    int size() const { return int(workers_.size()) + 1; }

    /// Calls f(task) for every task in [0, tasks). Blocks until all are done. After an exception, skips the tasks that
    /// have not begun, and rethrows the exception at the end.
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
    void stop_workers();

    // These three are valid from the start of a round until its last task is done.
    std::atomic<Body> body_{nullptr};
    std::atomic<void*> data_{nullptr};
    std::atomic<uint32_t> tasks_{0};
    alignas(64) std::atomic<uint64_t> next_{kClosed}; // upper half: round, lower half: next task
    alignas(64) std::atomic<uint32_t> round_{0};      // sleeping workers wait for a change of this
    alignas(64) std::atomic<uint32_t> done_{0};
    std::atomic<bool> failed_{false};
    static constexpr uint64_t kClosed = 0xFFFFFFFF; // a next task that no round has: nothing to take
    std::mutex error_mutex_;
    std::exception_ptr error_;
    std::vector<std::jthread> workers_;
};

} // namespace rg
