// Tests the task pool over threads: which rank runs which task and when, and tasks that fail, are cancelled or are
// interrupted. No check depends on time: tasks wait for each other's signals.

#include "core/atomic_file.h"
#include "par/journal.h"
#include "par/sub_link.h"
#include "par/task_pool.h"
#include "tests/par/ranks.h"
#include "tests/thread_link.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include <doctest/doctest.h>

using namespace rg;
using par::Group;
using par::Link;
using par::TaskContext;
using par::TaskPool;
using par::TaskRecord;
using par::TaskState;
using par::until_cancelled;

namespace {

/// Runs a pool on n ranks, which are threads. By default, a hang for 20 s fails the test.
void pool_on(int n, const par::TaskTable& table, const std::function<void(TaskPool&)>& control,
             const std::string& journal = {}, double deadline = 20) {
    par::run_threads(n, [&](Link& link) {
        link.set_deadline(deadline);
        par::run_task_pool(link, table, control, journal);
    });
}

Json squared(TaskContext&, const Json& x) { return x.as_int() * x.as_int(); }

std::vector<TaskState> states_of(const std::vector<const TaskRecord*>& tasks) {
    std::vector<TaskState> states;
    for (const TaskRecord* task : tasks) states.push_back(task->state);
    return states;
}

} // namespace

TEST_SUITE("par") {
    TEST_CASE("task pool: returns outputs in the order of submission, on any number of ranks") {
        for (int n = 1; n <= 4; ++n) {
            CAPTURE(n);
            std::vector<int64_t> outputs, ids;
            pool_on(n, {{"square", squared}}, [&](TaskPool& pool) {
                for (int i = 0; i < 40; ++i) pool.submit("square", i);
                for (const TaskRecord* task : pool.fetch_outputs()) {
                    outputs.push_back(task->output.as_int());
                    ids.push_back(task->id);
                }
            });
            REQUIRE(outputs.size() == 40);
            for (int i = 0; i < 40; ++i) {
                CHECK(outputs[size_t(i)] == i * i);
                CHECK(ids[size_t(i)] == i + 1);
            }
        }
    }

    TEST_CASE("task pool: handles no tasks, and tasks that a callback submits") {
        for (const int n : {1, 3}) {
            int64_t sum = 0;
            pool_on(n, {{"square", squared}}, [](TaskPool&) {});
            pool_on(n, {{"square", squared}}, [&](TaskPool& pool) {
                pool.on_change([&](const TaskRecord& task) {
                    if (task.state == TaskState::finished && task.id < 5) pool.submit("square", task.id);
                });
                pool.submit("square", 10);
                for (const TaskRecord* task : pool.fetch_outputs()) sum += task->output.as_int();
            });
            CHECK(sum == 100 + 1 + 4 + 9 + 16);
        }
    }

    TEST_CASE("task pool: a free rank takes the next task while another is busy") {
        // The first task ends only after all others. So no other task waits for the rank that runs it.
        for (const int n : {2, 4})
            for (const bool controller_is_busy : {true, false}) {
                std::atomic<int> ended{0};
                std::vector<int> ranks;
                std::vector<int64_t> order;
                const par::TaskTable table = {{"long",
                                               [&](TaskContext& context, const Json&) {
                                                   while (ended < 20) (void)context.cancelled();
                                                   return Json("long");
                                               }},
                                              {"short", [&](TaskContext&, const Json&) { return Json(++ended); }},
                                              {"first", [&](TaskContext&, const Json&) { return Json(); }}};
                pool_on(n, table, [&](TaskPool& pool) {
                    pool.on_change([&](const TaskRecord& task) {
                        if (task.state == TaskState::finished) order.push_back(task.id);
                    });
                    if (!controller_is_busy) pool.submit("first", {}); // rank 0 runs this one
                    const par::Future one = pool.submit("long", {});
                    for (int i = 0; i < 20; ++i) pool.submit("short", i);
                    pool.fetch_outputs();
                    ranks = one.record().ranks;
                });
                CHECK(ended == 20);
                CHECK((ranks == std::vector<int>{0}) == controller_is_busy);
                REQUIRE(order.size() == (controller_is_busy ? 21 : 22));
                // It is nearly the last: its end may arrive before the end of the last short tasks.
                const auto at = std::find(order.begin(), order.end(), controller_is_busy ? 1 : 2);
                CHECK(order.end() - at <= n);
            }
    }

    TEST_CASE("task pool: only the chosen ranks run tasks, and the others end with the pool") {
        for (const std::vector<int>& chosen : {std::vector{0, 2}, {1, 3}, {3}}) {
            std::set<int> used;
            pool_on(4, {{"square", squared}}, [&](TaskPool& pool) {
                pool.set_ranks(chosen);
                for (int i = 0; i < 8; ++i) pool.submit("square", i, 1 + i % int(chosen.size()));
                for (const TaskRecord* task : pool.fetch_outputs()) used.insert(task->ranks.begin(), task->ranks.end());
                CHECK_ERROR(cat("expected 1 to ", chosen.size(), " ranks, got 4"), pool.submit("square", 1, 4));
            });
            CHECK(used == std::set(chosen.begin(), chosen.end()));
        }
    }

    TEST_CASE("task pool: cancel ends a queued task at once, and a running one at its next check") {
        for (int n = 1; n <= 4; ++n) {
            CAPTURE(n);
            std::vector<TaskState> states;
            std::vector<std::vector<int>> ranks;
            int64_t reports = 0;
            bool at_once = false;
            pool_on(n, {{"until cancelled", until_cancelled}, {"square", squared}}, [&](TaskPool& pool) {
                std::vector<par::Future> endless;
                for (int i = 0; i < n; ++i) endless.push_back(pool.submit("until cancelled", {}));
                par::Future queued = pool.submit("square", 3), next = pool.submit("square", 4);
                queued.cancel();
                at_once = queued.ended() && next.record().state == TaskState::queued;
                // Every rank is busy. Cancel one task, so that its rank takes the next one. Then cancel the others.
                pool.on_report([&](const TaskRecord& task, const Json& times) {
                    if (times.as_int() == 3 && task.id == n) endless[size_t(n) - 1].cancel();
                });
                pool.on_change([&](const TaskRecord& task) {
                    if (task.id == next.record().id && task.state == TaskState::finished)
                        for (par::Future& one : endless) one.cancel();
                });
                const auto all = pool.fetch_outputs();
                states = states_of(all);
                for (const TaskRecord* task : all) ranks.push_back(task->ranks);
                reports = endless[size_t(n) - 1].record().output.as_int();
            });
            std::vector<TaskState> expected(size_t(n) + 1, TaskState::cancelled);
            expected.push_back(TaskState::finished);
            CHECK(states == expected);
            CHECK(at_once);
            CHECK(ranks[size_t(n)].empty());
            CHECK(ranks[size_t(n) + 1] == std::vector<int>{n - 1});
            CHECK(reports >= 3);
        }
    }

    TEST_CASE("task pool: heeds a cancel that arrives with its task") {
        for (const int n : {1, 2, 3}) {
            std::vector<TaskState> states;
            pool_on(n, {{"until cancelled", until_cancelled}}, [&](TaskPool& pool) {
                for (int round = 0; round < 100; ++round) {
                    for (int i = 0; i < n; ++i) pool.submit("until cancelled", {}).cancel();
                    states = states_of(pool.fetch_outputs());
                }
            });
            CHECK(states == std::vector<TaskState>(size_t(n) * 100, TaskState::cancelled));
        }
    }

    TEST_CASE("task pool: a task that throws has failed, and its rank continues") {
        const par::TaskTable table = {{"square", squared},
                                      {"fail", [](TaskContext&, const Json&) -> Json { fail("planted: 7 is odd"); }},
                                      {"memory", [](TaskContext&, const Json&) -> Json { throw std::bad_alloc(); }},
                                      {"number", [](TaskContext&, const Json&) -> Json { throw 7; }}};
        const char* const expected[] = {"planted: 7 is odd", "", "out of memory",
                                        "an exception that is no std::exception"};
        for (int n = 1; n <= 4; ++n) {
            std::vector<std::string> errors;
            std::vector<TaskState> states;
            pool_on(n, table, [&](TaskPool& pool) {
                for (int round = 0; round < 2; ++round)
                    for (const char* name : {"fail", "square", "memory", "number"}) pool.submit(name, 5);
                const auto all = pool.fetch_outputs();
                states = states_of(all);
                for (const TaskRecord* task : all) errors.push_back(task->error);
            });
            REQUIRE(errors.size() == 8);
            for (size_t i = 0; i < 8; ++i) {
                CHECK(errors[i] == expected[i % 4]);
                CHECK(states[i] == (errors[i].empty() ? TaskState::finished : TaskState::failed));
            }
        }
    }

    TEST_CASE("task pool: delivers all reports in order, also long and many ones") {
        for (const int n : {1, 2, 4}) {
            std::map<int64_t, int64_t> seen;
            int64_t wrong = 0;
            const par::TaskTable table = {{"talk", [](TaskContext& context, const Json& times) {
                                               for (int64_t i = 0; i < times.as_int(); ++i)
                                                   context.report(Json::object().set("i", i).set(
                                                       "text", std::string(i % 50 == 0 ? 9000 : 3, 'x')));
                                               return Json(std::string(20'000, 'y'));
                                           }}};
            pool_on(n, table, [&](TaskPool& pool) {
                pool.on_report([&](const TaskRecord& task, const Json& data) {
                    wrong += task.state != TaskState::running || data.at("i").as_int() != seen[task.id]++;
                });
                for (int i = 0; i < 6; ++i) pool.submit("talk", 200);
                for (const TaskRecord* task : pool.fetch_outputs())
                    wrong += task->output.as_string() != std::string(20'000, 'y') || seen[task->id] != 200;
            });
            CHECK(wrong == 0);
            CHECK(seen.size() == 6);
        }
    }

    TEST_CASE("task pool: tasks receive messages in order, also long ones, and those sent while they were queued") {
        const auto message = [](int64_t task, int64_t i) {
            return Json::object().set("task", task).set("i", i).set("text", std::string(i == 2 ? 90'000 : 3, '\xff'));
        };
        const par::TaskTable table = {{"listen", [&](TaskContext& context, const Json& id) {
                                           if (context.group().rank() > 0) return Json(!context.receive());
                                           for (int64_t i = 0; i < 9;) {
                                               const std::optional<Json> received = context.receive();
                                               if (!received) continue;
                                               if (!(*received == message(id.as_int(), i))) fail("not message ", i);
                                               context.report(++i);
                                           }
                                           return Json(!context.receive());
                                       }}};
        for (int n = 1; n <= 4; ++n) {
            CAPTURE(n);
            std::string wrong;
            pool_on(n, table, [&](TaskPool& pool) {
                pool.on_report([&](const TaskRecord& task, const Json& i) { // answers each of messages 2 to 7
                    if (i.as_int() >= 3 && i.as_int() < 9) pool.send(task.id, message(task.id, i.as_int()));
                });
                for (int id = 1; id <= 9; ++id) {
                    par::Future task = pool.submit("listen", id, 1 + id % n);
                    for (int i = 0; i < 3; ++i) task.send(message(id, i));
                }
                for (const TaskRecord* task : pool.fetch_outputs())
                    if (!(task->output == Json(true))) wrong += cat(task->id, ": ", task->error, "\n");
            });
            CHECK(wrong == "");
        }
    }

    TEST_CASE("task pool: a cancel comes after the messages before it; messages to tasks that have ended are dropped") {
        const par::TaskTable table = {{"count until cancelled", [](TaskContext& context, const Json&) {
                                           int messages = 0;
                                           while (!context.cancelled()) {}
                                           while (context.receive()) ++messages;
                                           return Json(messages);
                                       }},
                                      {"deaf", until_cancelled}};
        for (int n = 1; n <= 4; ++n) {
            CAPTURE(n);
            std::vector<int64_t> counts, expected;
            pool_on(n, table, [&](TaskPool& pool) {
                pool.on_change([&](const TaskRecord& task) {
                    if (task.state != TaskState::running) return pool.send(task.id, "too late");
                    for (int i = 0; i < 2; ++i) pool.send(task.id, std::string(5'000, 'x'));
                    pool.cancel(task.id);
                });
                for (int i = 0; i < 60; ++i) {
                    par::Future task = pool.submit(i % 2 ? "count until cancelled" : "deaf", i);
                    const bool queued = task.record().state == TaskState::queued;
                    if (queued) task.send("first");
                    if (i % 2) expected.push_back(2 + queued);
                }
                for (const TaskRecord* task : pool.fetch_outputs())
                    if (task->function != "deaf") counts.push_back(task->output.as_int());
                pool.send(60, "too late");
                CHECK_ERROR("task pool: expected a task in 1..60, got 61", pool.send(61, {}));
                CHECK_ERROR("expected a task in 1..60, got 0", pool.cancel(0));
                par::Future queued = pool.submit("deaf", {});
                for (int i = 0; i < n; ++i) queued = pool.submit("deaf", {});
                queued.send(1), queued.cancel(), queued.send(2);
            });
            CHECK(counts == expected);
            CHECK(counts.size() == 30);
        }
    }

    TEST_CASE("task pool: later small tasks do not overtake a task for many ranks") {
        std::vector<int64_t> begun;
        pool_on(3, {{"square", squared}}, [&](TaskPool& pool) {
            pool.on_change([&](const TaskRecord& task) {
                if (task.state == TaskState::running) begun.push_back(task.id);
            });
            for (int i = 0; i < 12; ++i) pool.submit("square", i, i % 3 == 1 ? 3 : 1);
            pool.fetch_outputs();
        });
        CHECK(std::is_sorted(begun.begin(), begun.end()));
        CHECK(begun.size() == 12);
    }

    TEST_CASE("task pool: an error of the caller or of a callback ends the job with its text") {
        const auto failure = [](int n, const std::function<void(TaskPool&)>& control) {
            return error_of([&] { pool_on(n, {{"square", squared}, {"until cancelled", until_cancelled}}, control); });
        };
        for (const int n : {1, 3}) {
            CHECK(failure(n, [](TaskPool& pool) { pool.submit("cube", 1); }) ==
                  "submit: the pool has no function cube");
            CHECK(contains(failure(n, [](TaskPool& pool) { pool.submit("square", 1, 4); }), "got 4"));
            CHECK(failure(n, [](TaskPool& pool) {
                      pool.on_report([](const TaskRecord&, const Json&) { fail("callback failed"); });
                      pool.submit("until cancelled", {});
                      pool.fetch_outputs();
                  }) == "callback failed");
            int caught = 0;
            CHECK(failure(n, [&](TaskPool& pool) {
                      pool.on_report([](const TaskRecord&, const Json&) { fail("callback failed"); });
                      for (int i = 0; i < n; ++i) pool.submit("until cancelled", {});
                      for (int i = 0; i < 2; ++i) caught += error_of([&] { pool.fetch_outputs(); }) != "";
                  }) == "callback failed");
            CHECK(caught == 2);
        }
    }

    TEST_CASE("task pool: a callback must not wait for tasks, and ranks must exist") {
        for (const int n : {1, 3}) {
            CHECK_ERROR("expected only tasks that have ended", pool_on(n, {{"square", squared}}, [](TaskPool& pool) {
                            pool.on_change([&](const TaskRecord& task) {
                                if (task.id == 1 && task.state == TaskState::finished) pool.submit("square", 2).wait();
                            });
                            pool.submit("square", 1);
                            pool.fetch_outputs();
                        }));
            for (const std::vector<int>& bad : {std::vector<int>{}, {0, n}, {-1}, {0, 0}})
                CHECK_ERROR("expected ascending ranks", pool_on(n, {}, [&](TaskPool& pool) { pool.set_ranks(bad); }));
        }
    }

    TEST_CASE("task pool: a rank that is silent beyond the deadline ends the job") {
        static thread_local int own_rank = -1; // in a task for one rank, the group's rank is always 0
        std::atomic<bool> leave{false};
        const par::TaskTable table = {{"silent", [&](TaskContext&, const Json&) {
                                           while (!leave && own_rank == 1) std::this_thread::yield();
                                           return Json();
                                       }}};
        const std::string text = error_of([&] {
            par::run_threads(2, [&](Link& link) {
                link.set_deadline(0.3);
                own_rank = link.rank();
                try {
                    par::run_task_pool(link, table, [&](TaskPool& pool) {
                        pool.submit("silent", {}); // runs on rank 0
                        pool.submit("silent", {}); // runs on rank 1, which is free
                        pool.fetch_outputs();
                    });
                } catch (...) {
                    leave = true;
                    throw;
                }
            });
        });
        CHECK(contains(text, "expected a message from rank 1, got none in 0.3 s (task 2, silent)"));
    }

    TEST_CASE("task pool: a rank that has lost its GPU ends the job, since its further tasks would fail") {
        const par::TaskTable table = {
            {"lost", [](TaskContext&, const Json&) -> Json { throw DeviceLost("the GPU is lost"); }}};
        CHECK(error_of([&] {
                  par::run_threads(2, [&](par::Link& link) {
                      par::run_task_pool(link, table, [&](TaskPool& pool) {
                          for (int i = 0; i < 5; ++i) pool.submit("lost", {});
                          pool.fetch_outputs();
                      });
                  });
              }) == "the GPU is lost");
    }

    TEST_CASE("task pool: long tasks and idle ranks outlive the deadline by heartbeats") {
        std::vector<TaskState> states;
        const par::TaskTable table = {{"short", [](TaskContext&, const Json&) { return Json(); }},
                                      {"long", [](TaskContext& context, const Json&) {
                                           using Clock = std::chrono::steady_clock;
                                           const auto end = Clock::now() + std::chrono::milliseconds(2500);
                                           while (Clock::now() < end) (void)context.cancelled();
                                           return Json();
                                       }}};
        pool_on(3, table, [&](TaskPool& pool) {
            pool.submit("long", {}).wait(); // runs on rank 0
            pool.submit("short", {});       // runs on rank 0
            pool.submit("long", {});        // runs on rank 1
            states = states_of(pool.fetch_outputs());
        }, "", 1);
        CHECK(states == std::vector<TaskState>(3, TaskState::finished));
    }

    TEST_CASE("task pool: cancels the tasks that the controller leaves running") {
        for (int n = 1; n <= 3; ++n) {
            std::atomic<int> begun = 0, ended = 0;
            const auto counted = [&](TaskContext& context, const Json& x) {
                ++begun;
                const Json times = until_cancelled(context, x);
                ++ended;
                return times;
            };
            pool_on(n, {{"until cancelled", counted}}, [&](TaskPool& pool) {
                for (int i = 0; i < 5; ++i) pool.submit("until cancelled", {});
            });
            CHECK(begun == ended);
        }
    }

    TEST_CASE("task pool: with a journal, a later run repeats only tasks that had not ended") {
        for (int n = 1; n <= 3; ++n) {
            const TempDir folder;
            const std::string path = folder / "journal.jsonl";
            std::mutex mutex;
            std::vector<int64_t> done;
            bool healthy = false;
            const par::TaskTable table = {{"work", [&](TaskContext&, const Json& x) {
                                               const std::lock_guard lock(mutex);
                                               done.push_back(x.as_int());
                                               if (x.as_int() == 3 && !healthy) fail("planted");
                                               return Json(x.as_int() * 1.1);
                                           }}};
            std::vector<double> outputs;
            std::vector<bool> kept;
            const auto work = [&](std::initializer_list<int> numbers) {
                done.clear(), outputs.clear(), kept.clear();
                pool_on(n, table, [&](TaskPool& pool) {
                    for (const int x : numbers) pool.submit("work", x);
                    for (const TaskRecord* task : pool.fetch_outputs()) {
                        kept.push_back(task->from_journal);
                        if (task->state == TaskState::finished) outputs.push_back(task->output.as_double());
                    }
                }, path);
                std::sort(done.begin(), done.end());
            };
            work({1, 2, 2, 3, 4});
            CHECK(std::count(done.begin(), done.end(), 2) == 2);

            // A kill interrupted the write of this line.
            const std::string whole = read_file(path);
            write_file_atomic(path, whole + "{\"function\":\"work\",\"ar");
            healthy = true;
            work({1, 2, 2, 2, 3, 4});
            CHECK(done == std::vector<int64_t>{2, 3}); // the third 2 is a new task, and 3 had failed
            CHECK(outputs == std::vector<double>{1 * 1.1, 2 * 1.1, 2 * 1.1, 2 * 1.1, 3 * 1.1, 4 * 1.1});
            CHECK(kept == std::vector<bool>{true, true, true, false, false, true});
            CHECK(read_file(path).starts_with(whole));

            work({1, 2, 2, 2, 3, 4});
            CHECK(done.empty());
        }
    }

    TEST_CASE("task pool: the journal records a cancel but no interruption") {
        for (const int n : {1, 2}) {
            const TempDir folder;
            const std::string path = folder / "journal.jsonl";
            std::vector<bool> kept;
            std::string reasons;
            const par::TaskTable table = {{"until cancelled", until_cancelled}};
            pool_on(n, table, [&](TaskPool& pool) {
                for (int i = 1; i <= 5; ++i) pool.submit("until cancelled", i);
                pool.cancel(5, "too slow");
                pool.on_report([&](const TaskRecord&, const Json& times) {
                    if (times.as_int() != 2) return;
                    pool.interrupt();
                    CHECK(pool.submit("until cancelled", 6).ended());
                });
                pool.fetch_outputs();
            }, path);
            pool_on(n, table, [&](TaskPool& pool) {
                for (int i = 1; i <= 5; ++i) {
                    const par::Future task = pool.submit("until cancelled", i);
                    kept.push_back(task.record().from_journal);
                    reasons += task.record().cancel_reason;
                }
            }, path);
            CHECK(kept == std::vector<bool>{false, false, false, false, true});
            CHECK(reasons == "too slow");
        }
    }

    TEST_CASE("journal: a damaged line in the middle is an error that names the line and the way out") {
        const TempDir folder;
        const std::string path = folder / "journal.jsonl";
        const std::string good = "{\"function\":\"f\",\"args\":1,\"state\":\"finished\"}\n";
        for (const std::string bad :
             {"{\"function\"", "", "5", "{}", "{\"state\":1}", "{\"state\":\"finished\",\"function\":[]}"}) {
            CAPTURE(bad);
            write_file_atomic(path, good + bad + "\n" + good);
            const std::string error = error_of([&] { par::Journal journal(path); });
            CHECK(error.starts_with(path + ", line 2: json: "));
            CHECK(error.ends_with("; remove this line, then its task runs again"));
        }
        write_file_atomic(path, good + "{\"function\""); // a kill cut the line
        CHECK(par::Journal(path).take("f", 1));
        CHECK(read_file(path) == good);
        CHECK_ERROR("cannot open", par::Journal journal(folder / "none/journal.jsonl"));
    }

    TEST_CASE("task link: keeps the same tags in two groups apart") {
        std::vector<int> got(4, -1);
        par::run_threads(4, [&](Link& link) {
            const int group = link.rank() % 2; // ranks 0 and 2, and ranks 1 and 3
            par::TaskLink sub(link, {group, group + 2}, 10 + group);
            const par::Operation op{"test", "pairs"};
            int mine = link.rank() * 11, theirs = -1;
            par::Channel in = sub.open_receive(&theirs, sizeof theirs, 1 - sub.rank(), 4);
            par::Channel out = sub.open_send(&mine, sizeof mine, 1 - sub.rank(), 4);
            sub.start(in);
            sub.start(out);
            sub.wait(in, op);
            sub.wait(out, op);
            got[size_t(link.rank())] = theirs;
            if (!sub.finish("", false).empty()) got[size_t(link.rank())] = -2;
        });
        CHECK(got == std::vector<int>{22, 33, 0, 11});
    }

    TEST_CASE("task link: all ranks return the error of the lowest rank that failed") {
        std::vector<std::string> errors(5);
        par::run_threads(5, [&](Link& link) {
            par::TaskLink sub(link, {0, 1, 2, 3, 4}, 10);
            const bool echo = link.rank() == 0, failed = link.rank() >= 2;
            const std::string text = cat("error ", link.rank(), std::string(20'000, '\n')); // longer than a message
            errors[size_t(link.rank())] = sub.finish(echo ? "echo" : failed ? text : "", echo);
        });
        CHECK(errors == std::vector<std::string>(5, cat("error 2", std::string(20'000, '\n'), " (rank 2)")));
    }
}
