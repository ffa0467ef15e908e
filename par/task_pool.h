// TaskPool: functions that run on whichever ranks are free, and what becomes of them.
//
//     run_task_pool(link, {{"square", [](TaskContext&, const Json& x) { return x.as_int() * x.as_int(); }}},
//                   [](TaskPool& pool) { // on rank 0, the controller
//                       for (int i = 0; i < 100; ++i) pool.submit("square", i);
//                       for (const TaskRecord* task : pool.fetch_outputs()) use(task->output);
//                   });
//
// Every rank has the same table of functions; what travels is a name and its arguments. Tasks start in the order of
// their submission, each as soon as there are as many free ranks as it asks for. Rank 0 takes tasks like any other: it
// hands out work and hears reports whenever its own task calls report() or cancelled(), so a free rank waits at most
// for the time between two such calls, a training step. A task that throws is a result, with the text of its error, and
// not the end of the job; a rank that does not answer within the link's deadline ends it.
#pragma once

#include "core/json.h"
#include "par/group.h"

#include <functional>
#include <map>

namespace rg::par {

enum class TaskState : uint8_t { queued, running, finished, failed, cancelled };
const char* name_of(TaskState state);

/// A task as the controller knows it.
struct TaskRecord {
    int64_t id = 0; // counts submissions, from 1
    std::string function;
    Json args;
    int size = 1; // ranks that it asks for
    TaskState state = TaskState::queued;
    std::vector<int> ranks;    // that run it
    Json output;               // finished, or cancelled while it ran: what it returned
    std::string error;         // failed: why
    double seconds = 0;        // that it took
    bool from_journal = false; // it ended in an earlier run
};

/// A running task's view of the pool. Every rank of its group has one.
class TaskContext {
public:
    virtual ~TaskContext() = default;
    /// The ranks that run this task; gone when it ends.
    Group& group() { return group_; }
    /// To the controller's after_each(); never waits. On the group's first rank; elsewhere it does nothing.
    virtual void report(const Json& data) = 0;
    /// Whether the controller has asked it to end. On the group's first rank; elsewhere always false, so agree on it.
    /// Then it should return soon, whatever it has.
    virtual bool cancelled() = 0;

protected:
    explicit TaskContext(Group& group) : group_(group) {}

private:
    Group& group_;
};

using TaskFunction = std::function<Json(TaskContext&, const Json& args)>;
using TaskTable = std::map<std::string, TaskFunction>;

class TaskPool;

/// A submitted task. The pool outlives it.
class Future {
public:
    const TaskRecord& record() const { return *record_; }
    bool ended() const;
    /// Until the task has ended; then its record.
    const TaskRecord& wait();
    void cancel();

private:
    friend class TaskPool;
    Future(TaskPool& pool, const TaskRecord& record) : pool_(&pool), record_(&record) {}
    TaskPool* pool_;
    const TaskRecord* record_;
};

/// The controller's side, on rank 0. Callbacks run on the controller, also while it runs a task of its own; an
/// exception in one ends the job.
class TaskPool {
public:
    TaskPool(const TaskPool&) = delete;
    TaskPool& operator=(const TaskPool&) = delete;
    ~TaskPool();
    Link& link();

    /// Queues a task for `ranks` ranks, or takes its end from the journal. Error: no such function, not so many ranks.
    Future submit(const std::string& function, Json args, int ranks = 1);
    /// Waits until all have ended, and gives them in the order of submission.
    std::vector<const TaskRecord*> fetch_outputs();
    /// Waits for the next task to end that was not given before; null when there are none.
    const TaskRecord* fetch_next();

    /// A queued task ends at once. A running one is asked to; whatever comes next in the queue follows it.
    void cancel(int64_t id);
    /// Cancels all, and keeps that out of the journal: a later run goes on with them.
    void interrupt();

    /// Called with what a running task reports, in the order in which that task did.
    void after_each(std::function<void(const TaskRecord&, const Json& data)> callback);
    /// Called when a task begins, and when it has ended.
    void after_change(std::function<void(const TaskRecord&)> callback);

private:
    friend void run_task_pool(Link&, const TaskTable&, const std::function<void(TaskPool&)>&, const std::string&);
    friend class Future;
    TaskPool(Link& link, const TaskTable& functions, const std::string& journal);
    struct State;
    std::unique_ptr<State> state_;
};

/// On every rank: rank 0 runs `control`, the others whatever tasks they are given. Tasks that have not ended when
/// control returns are interrupted. `journal`: the path of one (see journal.h), read on rank 0 alone.
void run_task_pool(Link& link, const TaskTable& functions, const std::function<void(TaskPool&)>& control,
                   const std::string& journal = {});

} // namespace rg::par
