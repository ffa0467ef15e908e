// The controller exchanges mail with every other rank and knows which task each rank runs. Its function serve() reads
// the mail, gives tasks to free ranks, and finds ranks that have been silent for too long.
//
// Letters to a rank: run (a task, with function, arguments and the ranks of its group), cancel, alive (the controller
// is alive), end. Letters from the first rank of a group: report, alive (the task is alive), done, failed. The other
// ranks of the group send nothing; they are free when the first rank's task has ended.
#include "ringgrad/par/task_pool.h"

#include "ringgrad/core/clock.h"
#include "ringgrad/par/journal.h"
#include "ringgrad/par/mail.h"
#include "ringgrad/par/sub_link.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

namespace rg::par {

namespace {

enum Kind : char { run = 'r', cancel = 'c', alive = 'h', end = 'e', report = 'p', done = 'd', failed = 'f' };

/// Pauses between two checks of the mail on a rank without work, so that ranks that compute get the cores.
class Backoff {
public:
    void pause() {
        if (++times_ <= kYields)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(std::min(kLongest, 50 * (times_ - kYields))));
    }
    void reset() { times_ = 0; }

private:
    static constexpr int kYields = 100, kLongest = 1000;
    int times_ = 0;
};

/// Result of a task: this rank's output, or an error of a rank of the group.
struct Outcome {
    Json output;
    std::string error; // empty if the task succeeded
};

/// Runs a task on this rank; all ranks of its group call it. `make_context` makes the function's interface to the pool.
template <class MakeContext>
Outcome run_task(Link& link, const TaskTable& functions, int64_t id, const Json& task,
                 const MakeContext& make_context) {
    std::vector<int> members;
    for (const Json& rank : task.at("ranks").as_array()) members.push_back(int(rank.as_int()));
    SubLink sub_link(link, std::move(members), id);
    Outcome outcome;
    bool echo = false;
    Group group(sub_link); // outlives the task's function: other ranks may still use the group's buffers
    try {
        auto context = make_context(group);
        const std::string& function = task.at("function").as_string();
        const auto entry = functions.find(function);
        RG_CHECK(entry != functions.end(), "task pool: rank ", link.rank(), " has no function ", function);
        outcome.output = entry->second(context, task.at("args"));
    } catch (const RankMissing&) {
        throw; // ends the job: finish() would wait for the missing rank again
    } catch (const PeerFailed& error) {
        echo = true;
        outcome.error = error.what();
    } catch (const std::bad_alloc&) {
        outcome.error = "out of memory";
    } catch (const std::exception& error) {
        outcome.error = error.what();
        if (outcome.error.empty()) outcome.error = "an error without a text";
    } catch (...) {
        outcome.error = "an exception that is no std::exception";
    }
    outcome.error = sub_link.finish(outcome.error, echo);
    return outcome;
}

/// The work of a rank other than the controller.
class Worker {
public:
    Worker(Link& link, const TaskTable& functions) : link_(link), functions_(functions), mail_(link, 0) {}

    void work() {
        for (;;) {
            const Letter letter = next();
            if (letter.kind == Kind::end) return;
            if (letter.kind == Kind::run) execute(letter);
            // Ignores the rest: a sign that the controller is alive, or a cancel of a task that has ended. tell() has
            // seen the cancel, or it came too late.
        }
    }

private:
    struct Context final : TaskContext {
        Context(Worker& w, Group& g) : TaskContext(g), worker(w) {}
        void report(const Json& data) override { worker.tell(Kind::report, group(), data.dump()); }
        bool cancelled() override {
            worker.tell(Kind::alive, group(), {});
            return worker.knows_cancelled_ = worker.cancelled_;
        }
        Worker& worker;
    };

    void receive() {
        for (Letter& letter : mail_.poll()) inbox_.push_back(std::move(letter));
    }

    Letter next() {
        Backoff backoff;
        for (double begin = seconds_now();;) {
            receive();
            if (!inbox_.empty()) {
                const Letter letter = std::move(inbox_.front());
                inbox_.pop_front();
                return letter;
            }
            // Waits for twice the deadline. If a rank is missing, rank 0 may be waiting for it within a task of its
            // own. The ranks of that task notice after one deadline, can name the missing rank, and end the job first.
            const double limit = 2 * link_.deadline();
            RG_CHECK(seconds_now() - begin < limit, "task pool: expected a message from rank 0, got none in ", limit,
                     " s (rank ", link_.rank(),
                     "); its task may have stopped, or call report() too rarely; RG_DEADLINE_S sets the limit");
            backoff.pause();
        }
    }

    void execute(const Letter& letter) {
        task_ = letter.task;
        cancelled_ = knows_cancelled_ = false;
        last_sent_ = 0;
        const Json task = Json::parse(letter.text, "task");
        const Outcome outcome =
            run_task(link_, functions_, letter.task, task, [&](Group& group) { return Context(*this, group); });
        if (task.at("ranks").as_array().front().as_int() != link_.rank()) return;
        if (!outcome.error.empty())
            mail_.post({Kind::failed, task_, outcome.error});
        else
            mail_.post({Kind::done, task_,
                        Json::object().set("cancelled", knows_cancelled_).set("output", outcome.output).dump()});
    }

    /// Called within a task. Does nothing except on the group's first rank. Sends a report, or from time to time a sign
    /// that the task is alive. Then reads the mail to see if the task was cancelled.
    void tell(Kind kind, const Group& group, const std::string& text) {
        if (group.rank() != 0) return;
        const double now = seconds_now();
        if (kind == Kind::report || now - last_sent_ > link_.deadline() / 4) {
            mail_.post({kind, task_, text});
            last_sent_ = now;
        }
        receive();
        for (const Letter& letter : inbox_) // cancels may have arrived together with the task
            if (letter.kind == Kind::cancel && letter.task == task_) cancelled_ = true;
    }

    Link& link_;
    const TaskTable& functions_;
    Mail mail_;
    std::deque<Letter> inbox_; // not yet handled
    int64_t task_ = 0;
    bool cancelled_ = false, knows_cancelled_ = false; // a cancel has arrived; the task's function knows of it
    double last_sent_ = 0;
};

} // namespace

const char* name_of(TaskState state) {
    constexpr const char* kNames[] = {"queued", "running", "finished", "failed", "cancelled"};
    return kNames[size_t(state)];
}

struct TaskPool::State {
    State(Link& l, const TaskTable& f, const std::string& path) : link(l), functions(f), journal(path) {
        for (int r = 1; r < link.size(); ++r) peers.push_back(std::make_unique<Peer>(link, r));
    }

    /// The controller's knowledge of another rank.
    struct Peer {
        Peer(Link& link, int rank) : mail(link, rank) {}
        Mail mail;
        int64_t task = 0;                     // 0 if free
        double last_heard = 0, last_told = 0; // since when a letter from it is awaited; time of the last to it
    };
    Peer& peer(int rank) { return *peers[size_t(rank) - 1]; }

    /// The interface to the pool for a task that runs on rank 0, the controller.
    struct Context final : TaskContext {
        Context(State& s, Group& g) : TaskContext(g), state(s) {}
        void report(const Json& data) override {
            state.guarded([&] {
                if (state.on_report) state.on_report(state.record(state.local_task), data);
            });
            state.serve();
        }
        bool cancelled() override {
            state.serve();
            return state.local_task_knows = state.local_task_cancelled;
        }
        State& state;
    };

    TaskRecord& record(int64_t id) { return tasks.at(size_t(id) - 1); }
    int64_t& task_of(int rank) { return rank == 0 ? local_task : peer(rank).task; }
    bool all_ended() const { return queue.empty() && running == 0; }

    void tell(int rank, Kind kind, int64_t id, const std::string& text = {}) {
        peer(rank).mail.post({kind, id, text});
        peer(rank).last_told = seconds_now();
    }

    /// Runs f, work of the pool, and saves an error of f in `fatal`. If `control` or the controller's own task then
    /// catches the error, serve() throws it again. run_local_task() does not count it as an error of the task.
    template <class F>
    void guarded(const F& f) {
        try {
            f();
        } catch (...) {
            fatal = std::current_exception();
            throw;
        }
    }

    void serve() {
        if (fatal) std::rethrow_exception(fatal);
        guarded([&] {
            const double now = seconds_now();
            if (now - last_served > link.deadline() / 2) // rank 0 has read no mail; the others may have written
                for (auto& p : peers) p->last_heard = now;
            last_served = now;
            for (int r = 1; r < link.size(); ++r)
                for (const Letter& letter : peer(r).mail.poll()) take(r, letter);
            assign();
            for (int r = 1; r < link.size(); ++r) watch(r, now);
        });
    }

    void take(int rank, const Letter& letter) {
        peer(rank).last_heard = seconds_now();
        TaskRecord& task = record(letter.task);
        if (letter.kind == Kind::report && on_report) on_report(task, Json::parse(letter.text, "report"));
        if (letter.kind == Kind::failed) finish(task, TaskState::failed, {}, letter.text);
        if (letter.kind == Kind::done) {
            const Json end = Json::parse(letter.text, "output");
            finish(task, end.at("cancelled").as_bool() ? TaskState::cancelled : TaskState::finished, end.at("output"),
                   {});
        }
    }

    void watch(int rank, double now) {
        Peer& p = peer(rank);
        if (p.task == 0) {
            if (now - p.last_told > link.deadline() / 4 && p.mail.sent()) tell(rank, Kind::alive, 0);
            return;
        }
        const TaskRecord& task = record(p.task);
        if (task.ranks.front() != rank) return; // only the first rank of a group sends letters
        // A task on several ranks gets twice the deadline: if one of its ranks stops, the others notice after one
        // deadline, can name it, and end the job first.
        const double limit = link.deadline() * (task.ranks.size() > 1 ? 2 : 1);
        RG_CHECK(now - p.last_heard < limit, "task pool: expected a message from rank ", rank, ", got none in ", limit,
                 " s (task ", task.id, ", ", task.function, "); it may have stopped, or call report() too rarely; ",
                 "RG_DEADLINE_S sets the limit");
    }

    /// Gives tasks to free ranks in the order of the queue. No task overtakes one that waits for many ranks.
    void assign() {
        while (!queue.empty()) {
            TaskRecord& task = record(queue.front());
            std::vector<int> free;
            for (int r = 0; r < link.size() && int(free.size()) < task.size; ++r)
                if (task_of(r) == 0) free.push_back(r);
            if (int(free.size()) < task.size) return;
            queue.pop_front();
            ++running;
            task.state = TaskState::running;
            task.ranks = free;
            const std::string text = description(task).dump();
            for (const int r : free) {
                task_of(r) = task.id;
                if (r == 0) {
                    local_task_begun = local_task_cancelled = local_task_knows = false;
                } else {
                    peer(r).last_heard = seconds_now();
                    tell(r, Kind::run, task.id, text);
                }
            }
            start_times[task.id] = seconds_now();
            if (on_change) on_change(task);
        }
    }

    static Json description(const TaskRecord& task) {
        return Json::object()
            .set("function", task.function)
            .set("args", task.args)
            .set("ranks", Json(Json::Array(task.ranks.begin(), task.ranks.end())));
    }

    void finish(TaskRecord& task, TaskState state, Json output, const std::string& error) {
        if (task.state == TaskState::running) {
            --running;
            task.seconds = seconds_now() - start_times[task.id];
            for (const int r : task.ranks) task_of(r) = 0;
        }
        task.state = state;
        task.output = std::move(output);
        task.error = error;
        // A task that ends as cancelled after an interrupt stays out of the journal, so that the next run repeats it.
        if (!task.from_journal && !(interrupted && state == TaskState::cancelled))
            journal.write(description(task)
                              .set("state", name_of(state))
                              .set("output", task.output)
                              .set("error", error)
                              .set("cancel_reason", task.cancel_reason)
                              .set("seconds", task.seconds));
        unfetched.push_back(task.id);
        if (on_change) on_change(task);
    }

    void cancel_one(int64_t id, const std::string& reason) {
        TaskRecord& task = record(id);
        if (task.state == TaskState::queued || task.state == TaskState::running) task.cancel_reason = reason;
        if (task.state == TaskState::queued) {
            queue.erase(std::find(queue.begin(), queue.end(), id)); // cancel_all() finds each id at the front
            finish(task, TaskState::cancelled, {}, {});
        } else if (task.state == TaskState::running) {
            if (task.ranks.front() == 0)
                local_task_cancelled = true;
            else
                tell(task.ranks.front(), Kind::cancel, id);
        }
    }

    void cancel_all() {
        for (size_t i = 0; i < tasks.size(); ++i) cancel_one(tasks[i].id, ""); // a callback may submit more tasks
    }

    void run_local_task() {
        TaskRecord& task = record(local_task);
        local_task_begun = true;
        const Outcome outcome = run_task(link, functions, local_task, description(task),
                                         [&](Group& group) { return Context(*this, group); });
        if (fatal) std::rethrow_exception(fatal);
        if (!outcome.error.empty())
            finish(task, TaskState::failed, {}, outcome.error);
        else
            finish(task, local_task_knows ? TaskState::cancelled : TaskState::finished, outcome.output, {});
    }

    /// Returns true if the letters that start the controller's task have been sent to its other ranks. The task must
    /// not start earlier: it may wait for these ranks before it next serves the mail.
    bool local_task_sent() {
        const std::vector<int>& ranks = record(local_task).ranks;
        return std::all_of(ranks.begin() + 1, ranks.end(), [&](int r) { return peer(r).mail.sent(); });
    }

    /// Serves the other ranks, and runs the controller's own tasks, until the condition holds.
    template <class Condition>
    void work_until(const Condition& condition) {
        for (Backoff backoff;;) {
            serve();
            if (condition()) return;
            if (local_task && !local_task_begun && local_task_sent()) {
                run_local_task();
                backoff.reset();
            } else {
                backoff.pause();
            }
        }
    }

    void end_all() {
        interrupted = true;
        cancel_all();
        work_until([&] { return all_ended(); });
        for (int r = 1; r < link.size(); ++r) tell(r, Kind::end, 0);
        const double begin = seconds_now();
        Backoff backoff;
        for (int r = 1; r < link.size(); ++r)
            while (!peer(r).mail.sent()) {
                peer(r).mail.poll();
                RG_CHECK(seconds_now() - begin < link.deadline(), "task pool: expected rank ", r,
                         " to receive the end of the pool, got nothing in ", link.deadline(), " s");
                backoff.pause();
            }
    }

    Link& link;
    const TaskTable& functions;
    Journal journal;
    std::vector<std::unique_ptr<Peer>> peers; // ranks from 1 on
    std::deque<TaskRecord> tasks;             // by id, from 1; a deque, so that records keep their addresses
    std::deque<int64_t> queue, unfetched;     // ids of queued tasks, and of ended ones not yet returned
    std::map<int64_t, double> start_times;    // start time by id
    int running = 0;
    int64_t local_task = 0; // the task that rank 0 runs; 0 if free
    bool local_task_begun = false, local_task_cancelled = false, local_task_knows = false, interrupted = false;
    double last_served = seconds_now();
    std::exception_ptr fatal;
    std::function<void(const TaskRecord&, const Json&)> on_report;
    std::function<void(const TaskRecord&)> on_change;
};

TaskPool::TaskPool(Link& link, const TaskTable& functions, const std::string& journal)
    : state_(new State(link, functions, journal)) {}
TaskPool::~TaskPool() = default;

Link& TaskPool::link() { return state_->link; }

Future TaskPool::submit(const std::string& function, Json args, int ranks) {
    RG_CHECK(state_->functions.contains(function), "submit: the pool has no function ", function);
    RG_CHECK(ranks >= 1 && ranks <= state_->link.size(), "submit ", function, ": expected 1 to ", state_->link.size(),
             " ranks, got ", ranks);
    TaskRecord& task = state_->tasks.emplace_back();
    task.id = int64_t(state_->tasks.size());
    task.function = function;
    task.args = std::move(args);
    task.size = ranks;
    if (const std::optional<Json> entry = state_->journal.take(function, task.args)) {
        task.from_journal = true;
        for (const Json& rank : entry->at("ranks").as_array()) task.ranks.push_back(int(rank.as_int()));
        task.seconds = entry->at("seconds").as_double();
        if (const Json* reason = entry->find("cancel_reason")) task.cancel_reason = reason->as_string();
        const bool finished = entry->at("state").as_string() == "finished";
        state_->finish(task, finished ? TaskState::finished : TaskState::cancelled, entry->at("output"), {});
    } else {
        state_->queue.push_back(task.id);
        state_->assign();
    }
    return Future(*this, task);
}

std::vector<const TaskRecord*> TaskPool::fetch_outputs() {
    state_->work_until([&] { return state_->all_ended(); });
    state_->unfetched.clear();
    std::vector<const TaskRecord*> all;
    for (const TaskRecord& task : state_->tasks) all.push_back(&task);
    return all;
}

const TaskRecord* TaskPool::fetch_next() {
    state_->work_until([&] { return !state_->unfetched.empty() || state_->all_ended(); });
    if (state_->unfetched.empty()) return nullptr;
    const TaskRecord* task = &state_->record(state_->unfetched.front());
    state_->unfetched.pop_front();
    return task;
}

void TaskPool::cancel(int64_t id, const std::string& reason) { state_->cancel_one(id, reason); }

void TaskPool::interrupt() {
    state_->interrupted = true;
    state_->cancel_all();
}

void TaskPool::on_report(std::function<void(const TaskRecord&, const Json&)> callback) {
    state_->on_report = std::move(callback);
}

void TaskPool::on_change(std::function<void(const TaskRecord&)> callback) { state_->on_change = std::move(callback); }

bool Future::ended() const { return record_->state != TaskState::queued && record_->state != TaskState::running; }

const TaskRecord& Future::wait() {
    pool_->state_->work_until([&] { return ended(); });
    return *record_;
}

void Future::cancel(const std::string& reason) { pool_->cancel(record_->id, reason); }

void run_task_pool(Link& link, const TaskTable& functions, const std::function<void(TaskPool&)>& control,
                   const std::string& journal) {
    if (link.rank() != 0) {
        Worker(link, functions).work();
        return;
    }
    TaskPool pool(link, functions, journal);
    control(pool);
    pool.state_->end_all();
}

} // namespace rg::par
