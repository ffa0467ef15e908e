// TaskPool: runs functions on the ranks that are free, and collects their results.
//
//     run_task_pool(link, {{"square", [](TaskContext&, const Json& x) { return x.as_int() * x.as_int(); }}},
//                   [](TaskPool& pool) { // on rank 0, the controller
//                       for (int i = 0; i < 100; ++i) pool.submit("square", i);
//                       for (const TaskRecord* task : pool.fetch_outputs()) use(task->output);
//                   });
//
// Every rank has the same table of functions, so a task is sent as a function's name and its arguments. Tasks start in
// the order of submission, each as soon as enough ranks are free. Rank 0 starts them: in submit(), and whenever it
// serves the other ranks. Rank 0 runs tasks too. During such a task, it serves the other ranks whenever the task calls
// report(), receive() or cancelled(). So a free rank waits at most for the time between two calls, such as a training
// step. A task that throws is a failed task with the text of its error, except that RankMissing (link.h) ends the job.
// The first rank of a task must call report(), receive() or cancelled() at least once in three quarters of the link's
// deadline, or in 1.75 deadlines if the task has several ranks or is on rank 0. Otherwise the job ends.
//
// Arguments, reports and results travel as JSON text, so numbers that are not finite arrive as null.
#pragma once

#include "core/json.h"
#include "par/group.h"

#include <functional>
#include <map>
#include <optional>

namespace rg::par {

enum class TaskState : uint8_t { queued, running, finished, failed, cancelled };
const char* name_of(TaskState state);

/// A task as the controller knows it.
struct TaskRecord {
    int64_t id = 0; // counts submissions, from 1
    std::string function;
    Json args;
    int size = 1; // number of ranks that it needs
    TaskState state = TaskState::queued;
    std::vector<int> ranks;    // ranks that run it, or ran it; empty before it starts
    Json output;               // result of its first rank, if it finished or was cancelled while running
    std::string error;         // reason, if the task failed
    std::string cancel_reason; // reason given to the last cancel() before its end; interrupt() makes it empty
    double seconds = 0;        // from its start to its end; 0 until then
    bool from_journal = false; // true if the journal had its result, so that it did not run
};

class Runner; // task_pool.cpp

/// A running task's interface to the pool. Every rank of its group has one.
class TaskContext {
public:
    /// Returns the group of the ranks that run this task. Valid until the task ends.
    Group& group() { return group_; }
    /// Sends data to the callback that the controller has set with TaskPool::on_report(). Never waits for another rank.
    /// Does nothing except on the group's first rank. On rank 0, runs callbacks and serves the pool.
    void report(const Json& data);
    /// Returns the next message that the controller has sent with TaskPool::send(), or nothing if none has arrived.
    /// Never waits for another rank. Returns nothing except on the group's first rank. Each message is returned once.
    std::optional<Json> receive();
    /// Returns true if the controller has asked the task to end. The task should then return soon, with the output that
    /// it has so far. Always false except on the group's first rank. For the same answer on all ranks, each calls
    /// !group.all(!cancelled(), ...).
    bool cancelled();

private:
    friend class Runner;
    TaskContext(Runner& runner, Group& group) : runner_(runner), group_(group) {}
    Runner& runner_;
    Group& group_;
};

using TaskFunction = std::function<Json(TaskContext&, const Json& args)>;
using TaskTable = std::map<std::string, TaskFunction>;

class TaskPool;

/// Refers to a submitted task. The pool must outlive it.
class Future {
public:
    const TaskRecord& record() const { return *record_; }
    bool ended() const;
    /// Blocks until the task has ended, and returns its record. Meanwhile, serves the pool: callbacks run, and rank 0
    /// may run a task. In a callback, throws Error unless the task has ended.
    const TaskRecord& wait();
    void send(const Json& data);
    void cancel(const std::string& reason = "");

private:
    friend class TaskPool;
    Future(TaskPool& pool, const TaskRecord& record) : pool_(&pool), record_(&record) {}
    TaskPool* pool_;
    const TaskRecord* record_;
};

/// The controller's side of the pool, on rank 0. Callbacks run on the controller, also while it runs its own task. An
/// exception in a callback should end the job, so `control` (run_task_pool) must not catch it. If it does, the pool's
/// next function that serves the ranks, or the end of run_task_pool(), throws it again. Exceptions of on_change that
/// come from submit(), cancel() or interrupt() are not thrown again.
class TaskPool {
public:
    TaskPool(const TaskPool&) = delete;
    TaskPool& operator=(const TaskPool&) = delete;
    ~TaskPool();

    /// Sets the ranks that run tasks, in ascending order; all by default. The other ranks wait for the end of the pool.
    /// Call it before the first submit(), or it throws Error.
    void set_ranks(std::vector<int> ranks);
    /// Queues a task that needs `ranks` ranks, or takes its result from the journal. Sends it to its ranks at once if
    /// enough are free and no other task waits. Throws Error if the function does not exist, or `ranks` is below 1 or
    /// above the number of ranks that run tasks.
    Future submit(const std::string& function, Json args, int ranks = 1);
    /// Blocks until all tasks have ended, and returns them in the order of submission.
    std::vector<const TaskRecord*> fetch_outputs();

    /// Sends data of any length to TaskContext::receive() of a task. Never blocks. Messages to a task and its cancel
    /// arrive in order; those to a queued task arrive when it starts. Does nothing if the task has ended. A task may
    /// also end before it has received all. The journal knows no messages: for the same function and arguments, it has
    /// the result that a task had with its messages. send() and cancel() throw Error if there is no task `id`.
    void send(int64_t id, const Json& data);
    /// Ends a queued task at once, and asks a running one to end. Does nothing if the task has ended. The journal keeps
    /// the reason.
    void cancel(int64_t id, const std::string& reason = "");
    /// Cancels all tasks, also those that are submitted later. Those that then end as cancelled stay out of the
    /// journal, so a later run repeats them.
    void interrupt();

    /// Sets the callback for the data that running tasks report. Data of one task arrive in order.
    void on_report(std::function<void(const TaskRecord&, const Json& data)> callback);
    /// Sets the callback for tasks that have just started or ended.
    void on_change(std::function<void(const TaskRecord&)> callback);

private:
    friend void run_task_pool(Link&, const TaskTable&, const std::function<void(TaskPool&)>&, const std::string&);
    friend class Future;
    TaskPool(Link& link, const TaskTable& functions, const std::string& journal);
    struct State;
    std::unique_ptr<State> state_;
};

/// Runs a pool. Collective: rank 0 runs `control`, and all ranks run tasks. Tasks that have not ended when control
/// returns are interrupted. `journal` is the path of a journal (journal.h), which only rank 0 uses; empty: no journal.
void run_task_pool(Link& link, const TaskTable& functions, const std::function<void(TaskPool&)>& control,
                   const std::string& journal = {});

} // namespace rg::par
