// The controller exchanges mail with every other rank and knows which task each rank runs. Its function serve() reads
// the mail, gives tasks to free ranks, and finds ranks that have been silent for too long.
//
// Letters (mail.h) have the number of a task, or 0. To a rank: run (with function, args and the ranks of its group),
// message (with data), cancel, alive (the controller is alive), end. From the first rank of a group: report (with
// data), alive (the task is alive), done (with state, output and error, as in the journal). The other ranks of the
// group send nothing; they are free when the first rank's task has ended. Each rank keeps the letters to it in an
// inbox. Rank 0 runs tasks by the same letters, without mail.
#include "par/task_pool.h"

#include "core/clock.h"
#include "core/scope.h"
#include "par/journal.h"
#include "par/mail.h"
#include "par/sub_link.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <thread>

namespace rg::par {

namespace {

constexpr int kMailTag = 32;
constexpr const char* kStates[] = {"queued", "running", "finished", "failed", "cancelled"};

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

} // namespace

/// Runs the tasks of a rank. Meanwhile exchanges letters with the controller, on the first rank of a task's group.
class Runner {
public:
    Runner(Link& link, const TaskTable& functions) : link_(link), functions_(functions) {}
    virtual ~Runner() = default;

    /// Runs the task of a letter `run`. All ranks of its group call it; the first of them then posts the letter `done`.
    void run(const Json& task) {
        task_ = letter_number(task);
        std::erase_if(inbox_,
                      [&](const Json& letter) { return letter_number(letter) < task_; }); // letters of ended tasks
        knows_cancelled_ = false;
        last_posted_ = 0;
        std::vector<int> members;
        for (const Json& rank : task.at("ranks").as_array()) members.push_back(int(rank.as_int()));
        const bool is_first = members.front() == link_.rank();
        TaskLink task_link(link_, members, task_);
        std::string error;
        bool echo = false;
        Json output;
        Group group(task_link); // outlives the task's function: other ranks may still use the group's buffers
        try {
            TaskContext context(*this, group);
            const std::string& function = task.at("function").as_string();
            const auto entry = functions_.find(function);
            RG_CHECK(entry != functions_.end(), "task pool: rank ", link_.rank(), " has no function ", function);
            output = entry->second(context, task.at("args"));
        } catch (const RankMissing&) {
            throw; // ends the job: finish() would wait for the missing rank again
        } catch (const DeviceLost&) {
            throw; // ends the job: all further tasks of this rank would fail
        } catch (const PeerFailed& failure) {
            echo = true;
            error = failure.what();
        } catch (const std::bad_alloc&) {
            error = "out of memory";
        } catch (const std::exception& failure) {
            error = failure.what();
            if (error.empty()) error = "an error without a text";
        } catch (...) {
            error = "an exception that is no std::exception";
        }
        error = task_link.finish(error, echo);
        const TaskState state = !error.empty()     ? TaskState::failed
                                : knows_cancelled_ ? TaskState::cancelled
                                                   : TaskState::finished;
        if (state == TaskState::failed) output = {};
        if (is_first)
            post(letter("done", task_).set("state", name_of(state)).set("output", output).set("error", error));
    }

protected:
    /// Sends a letter to the controller.
    virtual void post(const Json& letter) = 0;
    /// Reads the mail. On rank 0, handles the letters of all ranks, and gives tasks to free ranks; another rank puts
    /// its letters into the inbox. Is also called within a task, so it must not start one.
    virtual void serve() = 0;
    /// Takes the first letter of this kind for this task out of the inbox.
    std::optional<Json> take(std::string_view kind, int64_t task) {
        const auto is_wanted = [&](const Json& letter) {
            return is_kind(letter, kind) && letter_number(letter) == task;
        };
        const auto first = std::ranges::find_if(inbox_, is_wanted);
        if (first == inbox_.end()) return {};
        std::optional<Json> letter(std::move(*first));
        inbox_.erase(first);
        return letter;
    }

    Link& link_;
    const TaskTable& functions_;
    std::deque<Json> inbox_; // letters that have arrived and are not yet handled, in order

private:
    friend class TaskContext;

    void tell(const Json& letter) {
        post(letter), last_posted_ = seconds_now();
        serve();
    }

    /// Returns the next letter of this kind to the running task, or nothing if none has arrived. Now and then tells the
    /// controller that the task is alive.
    std::optional<Json> take_next(std::string_view kind) {
        seconds_now() - last_posted_ > link_.deadline() / 4 ? tell(letter("alive", task_)) : serve();
        return take(kind, task_);
    }

    int64_t task_ = 0;             // the task that runs
    bool knows_cancelled_ = false; // the task's function knows that it is cancelled
    double last_posted_ = 0;
};

void TaskContext::report(const Json& data) {
    if (group_.rank() == 0) runner_.tell(letter("report", runner_.task_).set("data", data));
}

std::optional<Json> TaskContext::receive() {
    if (group_.rank() != 0) return {};
    const std::optional<Json> message = runner_.take_next("message");
    return message ? std::optional(message->at("data")) : std::nullopt;
}

bool TaskContext::cancelled() {
    if (group_.rank() == 0 && runner_.take_next("cancel")) runner_.knows_cancelled_ = true;
    return runner_.knows_cancelled_;
}

namespace {

/// Runs the tasks that the controller sends to another rank.
class TaskWorker final : public Runner {
public:
    TaskWorker(Link& link, const TaskTable& functions) : Runner(link, functions), mail_(link, 0, kMailTag) {}

    void work() {
        for (;;) {
            const Json letter = next();
            if (is_kind(letter, "end")) return;
            if (is_kind(letter, "run")) run(letter);
            // Ignores the rest: a sign that the controller is alive, or a letter to a task that has ended.
        }
    }

private:
    void post(const Json& letter) override { mail_.post(letter); }

    void serve() override {
        for (Json& letter : mail_.poll()) inbox_.push_back(std::move(letter));
    }

    Json next() {
        Backoff backoff;
        for (double begin = seconds_now(), last = begin;;) {
            serve();
            const double now = seconds_now();
            if (now - last > kSuspended) begin += now - last;
            last = now;
            if (!inbox_.empty()) {
                Json letter = std::move(inbox_.front());
                inbox_.pop_front();
                return letter;
            }
            // Waits for twice the deadline. If a rank is missing, rank 0 may be waiting for it within a task of its
            // own. The ranks of that task notice after one deadline, can name the missing rank, and end the job first.
            const double limit = 2 * link_.deadline();
            RG_CHECK(now - begin < limit, "task pool: expected a message from rank 0, got none in ", limit, " s (rank ",
                     link_.rank(),
                     "); its task may have stopped, or call report() too rarely; RG_DEADLINE_S sets the limit");
            backoff.pause();
        }
    }

    Mail mail_;
};

} // namespace

const char* name_of(TaskState state) { return kStates[size_t(state)]; }

struct TaskPool::State final : Runner {
    State(Link& link, const TaskTable& functions, const std::string& path) : Runner(link, functions), journal(path) {
        peers.emplace_back(); // rank 0, which needs no mail
        for (int r = 1; r < link.size(); ++r) peers.emplace_back().mail.emplace(link, r, kMailTag);
        for (int r = 0; r < link.size(); ++r) workers.push_back(r);
    }

    /// The controller's knowledge of a rank.
    struct Peer {
        std::optional<Mail> mail;
        int64_t task = 0; // id of the task that it runs, or 0 if it is free
        double task_begun = 0;
        double last_heard = 0, last_told = 0; // since when a letter from it is awaited; when it was last sent one
    };
    Peer& peer(int rank) { return peers[size_t(rank)]; }
    TaskRecord& record(int64_t id) {
        RG_CHECK(id >= 1 && size_t(id) <= tasks.size(), "task pool: expected a task in 1..", tasks.size(), ", got ",
                 id);
        return tasks[size_t(id) - 1];
    }
    bool all_ended() const { return queue.empty() && running == 0; }

    void tell(int rank, const Json& letter) {
        Peer& p = peer(rank);
        p.last_told = seconds_now();
        if (p.mail) return p.mail->post(letter);
        inbox_.push_back(letter);
    }

    /// Runs f, and saves an exception of f in `fatal`. If `control` or the controller's own task catches the exception,
    /// the next call of guarded() throws it again.
    template <class F>
    void guarded(const F& f) {
        if (fatal) std::rethrow_exception(fatal);
        try {
            f();
        } catch (...) {
            fatal = std::current_exception();
            throw;
        }
    }

    /// Handles a letter from the controller's own task.
    void post(const Json& letter) override {
        guarded([&] { handle(0, Json::parse(letter.dump(), "mail")); }); // the same data as from other ranks
    }

    void serve() override {
        guarded([&] {
            const double now = seconds_now();
            if (now - last_served > link_.deadline() / 2) // rank 0 has read no mail; the others may have written
                for (Peer& p : peers) p.last_heard = now;
            last_served = now;
            for (int r = 1; r < link_.size(); ++r) {
                for (const Json& letter : peer(r).mail->poll()) handle(r, letter);
                if (peer(r).mail->is_receiving()) peer(r).last_heard = now; // a part of a long letter
            }
            assign();
            for (int r = 1; r < link_.size(); ++r) watch(r, now);
        });
    }

    template <class F>
    void call_back(const F& f) {
        const Setting<bool> inside(calls_back, true);
        f();
    }

    void handle(int rank, const Json& letter) {
        peer(rank).last_heard = seconds_now();
        TaskRecord& task = record(letter_number(letter));
        if (is_kind(letter, "report") && on_report) call_back([&] { on_report(task, letter.at("data")); });
        if (is_kind(letter, "done")) finish(task, letter);
    }

    void watch(int rank, double now) {
        Peer& p = peer(rank);
        if (p.task == 0) {
            if (now - p.last_told > link_.deadline() / 4 && p.mail->all_sent()) tell(rank, letter("alive", 0));
            return;
        }
        const TaskRecord& task = record(p.task);
        if (task.ranks.front() != rank) return; // only the first rank of a group sends letters
        // A task on several ranks gets twice the deadline: if one of its ranks stops, the others notice after one
        // deadline, can name it, and end the job first.
        const double limit = link_.deadline() * (task.ranks.size() > 1 ? 2 : 1);
        RG_CHECK(now - p.last_heard < limit, "task pool: expected a message from rank ", rank, ", got none in ", limit,
                 " s (task ", task.id, ", ", task.function, "); it may have stopped, or call report() too rarely; ",
                 "RG_DEADLINE_S sets the limit");
    }

    /// Gives tasks to free ranks in the order of the queue. No task overtakes one that waits for many ranks.
    void assign() {
        while (!queue.empty()) {
            TaskRecord& task = record(queue.front());
            std::vector<int> free;
            for (const int r : workers)
                if (peer(r).task == 0 && int(free.size()) < task.size) free.push_back(r);
            if (int(free.size()) < task.size) return;
            queue.pop_front();
            ++running;
            task.state = TaskState::running;
            task.ranks = free;
            for (const int r : free) {
                peer(r).task = task.id;
                peer(r).task_begun = peer(r).last_heard = seconds_now();
                tell(r, describe(task, letter("run", task.id)));
            }
            for (const Json& message : messages[task.id]) tell(free.front(), message);
            if (on_change) call_back([&] { on_change(task); });
        }
    }

    /// Adds the function, the arguments and the ranks of a task to a letter or to a line of the journal.
    static Json describe(const TaskRecord& task, Json json) {
        return json.set("function", task.function)
            .set("args", task.args)
            .set("ranks", Json(Json::Array(task.ranks.begin(), task.ranks.end())));
    }

    /// Records the end of a task: its state, output and error. `end` is a letter `done`, a line of the journal, or an
    /// object with the same members.
    void finish(TaskRecord& task, const Json& end) {
        if (task.state == TaskState::running) {
            --running;
            task.seconds = seconds_now() - peer(task.ranks.front()).task_begun;
            for (const int r : task.ranks) peer(r).task = 0;
        }
        messages.erase(task.id);
        const auto name = std::find(std::begin(kStates), std::end(kStates), end.at("state").as_string());
        task.state = TaskState(name - std::begin(kStates));
        task.output = end.at("output");
        task.error = end.at("error").as_string();
        // A task that ends as cancelled after an interrupt stays out of the journal, so that the next run repeats it.
        if (!task.from_journal && !(interrupted && task.state == TaskState::cancelled))
            journal.write(describe(task, Json::object())
                              .set("state", *name)
                              .set("output", task.output)
                              .set("error", task.error)
                              .set("cancel_reason", task.cancel_reason)
                              .set("seconds", task.seconds));
        if (on_change) call_back([&] { on_change(task); });
    }

    void send(int64_t id, const Json& data) {
        const TaskRecord& task = record(id);
        const Json message = letter("message", id).set("data", data);
        if (task.state == TaskState::queued) messages[id].push_back(message);
        if (task.state == TaskState::running) tell(task.ranks.front(), message);
    }

    void cancel_one(int64_t id, const std::string& reason) {
        TaskRecord& task = record(id);
        if (task.state == TaskState::queued || task.state == TaskState::running) task.cancel_reason = reason;
        if (task.state == TaskState::running) tell(task.ranks.front(), letter("cancel", id));
        if (task.state != TaskState::queued) return;
        queue.erase(std::find(queue.begin(), queue.end(), id)); // quick in cancel_all(): each id is then at the front
        finish(task, Json::object().set("state", "cancelled").set("output", {}).set("error", ""));
    }

    void cancel_all() {
        for (size_t i = 0; i < tasks.size(); ++i) cancel_one(tasks[i].id, ""); // a callback may submit more tasks
    }

    /// Returns the letter of a task that rank 0 has yet to run, if it has been sent to the task's other ranks. The task
    /// must not start earlier: it may wait for these ranks before it next serves the mail.
    std::optional<Json> local_task() {
        if (peer(0).task == 0) return {};
        const std::vector<int>& ranks = record(peer(0).task).ranks;
        const bool sent = std::all_of(ranks.begin() + 1, ranks.end(), [&](int r) { return peer(r).mail->all_sent(); });
        return sent ? take("run", peer(0).task) : std::nullopt;
    }

    /// Serves the other ranks, and runs the controller's own tasks, until the condition holds.
    template <class Condition>
    void work_until(const Condition& condition) {
        for (Backoff backoff;;) {
            serve();
            if (condition()) return;
            RG_CHECK(!calls_back, "task pool: expected only tasks that have ended for wait() and fetch_outputs() in a ",
                     "callback, got others, which may wait for it; wait in control, where callbacks run meanwhile");
            if (const std::optional<Json> task = local_task()) {
                run(*task);
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
        for (int r = 1; r < link_.size(); ++r) tell(r, letter("end", 0));
        const double begin = seconds_now();
        Backoff backoff;
        for (int r = 1; r < link_.size(); ++r)
            while (!peer(r).mail->all_sent()) {
                peer(r).mail->poll();
                RG_CHECK(seconds_now() - begin < link_.deadline(), "task pool: expected rank ", r,
                         " to receive the end of the pool, got nothing in ", link_.deadline(), " s");
                backoff.pause();
            }
    }

    using Runner::link_, Runner::functions_;
    Journal journal;
    std::deque<Peer> peers;                        // the index is the rank
    std::vector<int> workers;                      // ranks that run tasks, in ascending order
    std::deque<TaskRecord> tasks;                  // tasks[id - 1]; a deque, so that records keep their addresses
    std::deque<int64_t> queue;                     // ids of queued tasks
    std::map<int64_t, std::vector<Json>> messages; // letters sent to queued tasks
    int running = 0;
    bool interrupted = false, calls_back = false;
    double last_served = seconds_now();
    std::exception_ptr fatal;
    std::function<void(const TaskRecord&, const Json&)> on_report;
    std::function<void(const TaskRecord&)> on_change;
};

TaskPool::TaskPool(Link& link, const TaskTable& functions, const std::string& journal)
    : state_(new State(link, functions, journal)) {}
TaskPool::~TaskPool() = default;

void TaskPool::set_ranks(std::vector<int> ranks) {
    const auto disordered = std::ranges::adjacent_find(ranks, std::greater_equal());
    RG_CHECK(state_->tasks.empty() && !ranks.empty() && disordered == ranks.end() && ranks.front() >= 0 &&
                 size_t(ranks.back()) < state_->peers.size(),
             "set_ranks: expected ascending ranks from 0 to ", state_->peers.size() - 1, " before the first submit()");
    state_->workers = std::move(ranks);
}

Future TaskPool::submit(const std::string& function, Json args, int ranks) {
    RG_CHECK(state_->functions_.contains(function), "submit: the pool has no function ", function);
    const size_t most = state_->workers.size();
    RG_CHECK(ranks >= 1 && size_t(ranks) <= most, "submit ", function, ": expected 1 to ", most, " ranks, got ", ranks);
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
        state_->finish(task, *entry);
    } else {
        state_->queue.push_back(task.id);
        state_->interrupted ? state_->cancel_one(task.id, "") : state_->assign();
    }
    return Future(*this, task);
}

std::vector<const TaskRecord*> TaskPool::fetch_outputs() {
    state_->work_until([&] { return state_->all_ended(); });
    std::vector<const TaskRecord*> all;
    for (const TaskRecord& task : state_->tasks) all.push_back(&task);
    return all;
}

void TaskPool::send(int64_t id, const Json& data) { state_->send(id, data); }

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

void Future::send(const Json& data) { pool_->send(record_->id, data); }

void Future::cancel(const std::string& reason) { pool_->cancel(record_->id, reason); }

void run_task_pool(Link& link, const TaskTable& functions, const std::function<void(TaskPool&)>& control,
                   const std::string& journal) {
    if (link.rank() != 0) {
        TaskWorker(link, functions).work();
        return;
    }
    TaskPool pool(link, functions, journal);
    control(pool);
    pool.state_->end_all();
}

} // namespace rg::par
