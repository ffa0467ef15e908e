// Runs numbered tasks on a fixed number of threads.
//
// Any thread may run any task. So a kernel stores its partial results by the number of the task, and combines them in
// the order of these numbers. Then the result does not depend on the number of threads. A waiting worker first spins
// for a fraction of a millisecond, since the next kernel usually follows soon. Then it sleeps, to free the core for
// other ranks.
#pragma once

#include "core/one_caller.h"

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
    int size() const { return int(queues_.size()); }

    /// Calls f(task) for every task in [0, tasks). Blocks until all are done. Throws Error if another thread or a task
    /// calls it meanwhile. After an exception in f, skips the tasks that have not begun, and rethrows the first
    /// exception at the end.
    template <class F>
    void run(int64_t tasks, F&& f) {
        run_erased(
            tasks, [](void* body, int64_t task) { (*static_cast<std::remove_reference_t<F>*>(body))(task); }, &f);
    }

private:
    using Body = void (*)(void*, int64_t);
    void run_erased(int64_t tasks, Body body, void* data);
    /// Returns the first task of a queue, if a round has `tasks` tasks.
    uint64_t first_task(size_t queue, uint64_t tasks) const { return tasks * queue / queues_.size(); }
    /// Takes and runs a task of the queue, unless another thread takes it first. Returns false if the queue is empty.
    bool take_task(size_t queue);
    /// Runs the tasks of the thread's own queue, and then those that are left in the others.
    void take_tasks(size_t thread);
    void work(std::stop_token stop, size_t thread);
    void stop_workers();

    // A round is one call of run(). body_, data_ and tasks_ are valid from its start until its last task is done.
    std::atomic<Body> body_{nullptr};
    std::atomic<void*> data_{nullptr};
    std::atomic<uint32_t> tasks_{0};
    alignas(64) std::atomic<uint32_t> round_{0}; // number of the round; idle workers wait until it changes
    alignas(64) std::atomic<uint32_t> done_{0};
    std::atomic<bool> failed_{false};
    static constexpr uint64_t kClosed = 0xFFFFFFFF; // lower half of a Queue::next, above all task numbers
    /// Neighbouring tasks of a round. Each thread has a queue, so that it usually runs the same tasks in each round.
    /// Then a kernel finds the results of the kernel before, which often divides its work alike, in the cache of its
    /// core.
    struct alignas(64) Queue {
        std::atomic<uint64_t> next{kClosed}; // upper half: number of the round, lower half: next task
    };
    OneCaller caller_;
    std::vector<Queue> queues_;
    std::mutex error_mutex_;
    std::exception_ptr error_;
    std::vector<std::jthread> workers_;
};

} // namespace rg
