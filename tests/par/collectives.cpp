// Tests the collectives besides the all-reduce, and the task pool, on ranks of any kind.

#include "par/sub_link.h"
#include "tests/par/ranks.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <thread>

#include <doctest/doctest.h>

using namespace rg;
using par::Algorithm;
using par::Group;
using par::Link;
using par::TaskRecord;
using par::TaskState;

TEST_SUITE("par") {
    TEST_CASE("link: each rank has a place on its node") {
        par::on_nodes([](Link& link) {
            CHECK(link.local_size() >= 1);
            CHECK(link.local_rank() < link.local_size());
            if (!link.node().ranks.empty()) CHECK(link.node().ranks[size_t(link.local_rank())] == link.rank());
        });
    }

    TEST_CASE("task link: messages of a task that has failed do not reach a later one with the same tags") {
        par::on_ranks([](Link& link) {
            if (link.size() < 4 || link.rank() > 2) return; // ranks 0 to 2 of more share no memory, so they send messages
            {
                par::TaskLink task(link, {0, 1, 2}, 1);
                Group group(task);
                std::vector<float> values(250000);
                std::string error = "broken";
                try {
                    if (link.rank() == 2)
                        std::this_thread::sleep_for(std::chrono::milliseconds(100)); // rank 1 sends meanwhile
                    else
                        group.allreduce_sum(values, "values");
                } catch (const par::PeerFailed& failure) {
                    error = failure.what();
                }
                CHECK(contains(task.finish(error, link.rank() < 2), "broken"));
            }
            par::SubLink same(link, {0, 1, 2});
            Group(same).barrier(); // in a pool, there are 1999 tasks between the two
            par::TaskLink task(link, {0, 1, 2}, 2001);
            Group group(task);
            std::vector<float> values(250000, float(link.rank()));
            group.allreduce_sum(values, "values");
            CHECK(values == std::vector<float>(250000, 3.0f));
            CHECK(task.finish("", false) == "");
        });
    }

    TEST_CASE("sub-link: some ranks sum in the memory that they share, while the others wait for them in a sum of all") {
        par::on_nodes([](Link& link) {
            Group all(link);
            std::vector<int> members, others;
            for (int r = 0; r < link.size(); ++r) (r % 3 == 1 ? others : members).push_back(r);
            for (int round = 0; round < 2; ++round) { // a later sub-link has the tags of an earlier one
                if (link.rank() % 3 != 1) {
                    par::SubLink sub(link, members);
                    Group some(sub);
                    REQUIRE(sub.size() == std::ssize(members));
                    CHECK(members[size_t(sub.rank())] == link.rank());
                    CHECK(sub.name_of(sub.rank()) == link.name_of(link.rank()));
                    if (link.node().ranks.size() == size_t(link.size()))
                        CHECK(sub.node().ranks.size() == members.size());
                    const std::span<std::byte> memory = some.allocate_shared(3000 * sizeof(float), "values");
                    const std::span values(reinterpret_cast<float*>(memory.data()), 3000);
                    for (const auto algorithm : {Algorithm::automatic, Algorithm::ring}) {
                        for (size_t i = 0; i < values.size(); ++i) values[i] = par::value_of(i, link.rank());
                        some.allreduce_sum(values, "values", algorithm);
                        size_t wrong = 0;
                        for (size_t i = 0; i < values.size(); ++i) {
                            float sum = 0;
                            for (const int r : members) sum += par::value_of(i, r);
                            wrong += values[i] != sum;
                        }
                        CHECK(wrong == 0);
                    }
                }
                CHECK(all.all(true, "after the sums"));
            }
        });
    }

    TEST_CASE("broadcast: sends from every root, also in several chunks") {
        par::on_ranks([](Link& link) {
            Group group(link);
            for (const size_t count : {size_t(0), size_t(1), size_t(1000), size_t(700'000)}) {
                if (count > 1000 && link.size() > 5) continue; // takes long
                CAPTURE(count);
                for (int root = 0; root < link.size(); ++root) {
                    std::vector<uint32_t> words(count);
                    for (size_t i = 0; i < count; ++i) words[i] = uint32_t(i * 7919 + size_t(link.rank()));
                    group.broadcast(std::as_writable_bytes(std::span(words)), root, "words");
                    size_t wrong = 0;
                    for (size_t i = 0; i < count; ++i) wrong += words[i] != uint32_t(i * 7919 + size_t(root));
                    CHECK(wrong == 0);
                }
            }
        });
    }

    TEST_CASE("allgather: returns strings of different lengths, also empty ones") {
        par::on_ranks([](Link& link) {
            Group group(link);
            std::vector<std::string> expected;
            for (int r = 0; r < link.size(); ++r) expected.push_back(std::string(size_t(r * 5 % 7), char('a' + r)));
            CHECK(group.allgather(expected[size_t(link.rank())], "names") == expected);
        });
    }

    TEST_CASE("all: returns true only if every rank passes true") {
        par::on_ranks([](Link& link) {
            Group group(link);
            for (int no = -1; no < link.size(); ++no) // the rank that passes false; -1 for none
                CHECK(group.all(link.rank() != no, "has data") == (no == -1));
        });
    }

    TEST_CASE("task pool: groups sum at the same time; a rank that fails, or a cancel, ends only its task") {
        const par::TaskTable table = {
            {"sum",
             [](par::TaskContext& task, const Json& odd) -> Json {
                 Group& group = task.group();
                 std::vector<float> values(odd.as_int() < group.size() ? 900 : 50'000);
                 for (const auto algorithm :
                      {Algorithm::automatic, Algorithm::ring, Algorithm::halving, Algorithm::automatic}) {
                     for (size_t i = 0; i < values.size(); ++i) values[i] = par::value_of(i, group.rank());
                     group.allreduce_sum(values, "values", algorithm);
                     if (algorithm == Algorithm::ring && group.rank() == odd.as_int()) fail("planted");
                     task.report(group.size());
                 }
                 return values.back() == par::sum_of(values.size() - 1, group.link());
             }},
            {"late",
             [](par::TaskContext& task, const Json&) -> Json { // fails while the others wait for memory to share
                 if (task.group().rank() == task.group().size() / 2) {
                     std::this_thread::sleep_for(std::chrono::milliseconds(20));
                     fail("planted");
                 }
                 std::vector<float> values(900);
                 task.group().allreduce_sum(values, "values");
                 return {};
             }},
            {"long", [](par::TaskContext&, const Json& bytes) -> Json { return std::string(size_t(bytes.as_int()), 'x'); }},
            {"endless", par::until_cancelled},
        };
        par::on_ranks([&](Link& link) {
            if (link.size() > 4) return; // takes long
            par::run_task_pool(link, table, [&](par::TaskPool& pool) {
                int reports = 0, expected_reports = 0;
                pool.on_report([&](const TaskRecord& task, const Json& data) {
                    if (task.function == "endless" && data.as_int() == 5) pool.cancel(task.id);
                    const bool no_rank_fails = task.function == "sum" && task.args.as_int() == task.size;
                    reports += no_rank_fails && data.as_int() == task.size;
                });
                for (int round = 0; round < 3; ++round)
                    for (int size = 1; size <= link.size(); ++size)
                        for (int odd = 0; odd <= size; ++odd) { // if odd == size, no rank fails
                            pool.submit("sum", odd, size);
                            pool.submit("endless", {});
                        }
                pool.submit("late", {}, link.size());
                for (int i = 0; i < link.size(); ++i) pool.submit("long", 5'000'000); // more than Mail::poll() takes at once
                for (const TaskRecord* task : pool.fetch_outputs()) {
                    if (task->function == "long") {
                        CHECK(task->output.as_string() == std::string(5'000'000, 'x'));
                        continue;
                    }
                    if (task->function == "late") {
                        CHECK(task->state == TaskState::failed);
                        CHECK(task->error.starts_with("planted"));
                        continue;
                    }
                    CHECK(int(task->ranks.size()) == task->size);
                    CHECK(std::is_sorted(task->ranks.begin(), task->ranks.end()));
                    if (task->function == "endless") {
                        CHECK(task->state == TaskState::cancelled);
                        CHECK(task->output.as_int() >= 5);
                    } else if (const int odd = int(task->args.as_int()); odd < task->size) {
                        const std::string at = task->size > 1 ? cat(" (rank ", task->ranks[size_t(odd)], ")") : "";
                        CHECK(task->state == TaskState::failed);
                        CHECK(task->error == "planted" + at);
                    } else {
                        CHECK(task->state == TaskState::finished);
                        CHECK(task->output.as_bool());
                        expected_reports += 4;
                    }
                }
                CHECK(reports == expected_reports);
            });
            Group(link).barrier("after the pool");
        });
    }

    TEST_CASE("task pool: a group's first rank receives messages while its ranks sum") {
        const par::TaskTable table = {{"add", [](par::TaskContext& task, const Json&) -> Json {
            int64_t sum = 0;
            for (std::vector<float> value = {1}; value[0] > 0;) {
                value[0] = 1;
                if (const std::optional<Json> message = task.receive()) {
                    sum += std::ssize(message->as_string());
                    if (task.group().rank() > 0) fail("expected no message");
                    task.report(sum);
                }
                if (task.cancelled()) value[0] = float(-task.group().size());
                task.group().allreduce_sum(value, "go on");
            }
            return sum;
        }}};
        par::on_ranks([&](Link& link) {
            if (link.size() > 4) return; // takes long
            par::run_task_pool(link, table, [&](par::TaskPool& pool) {
                pool.on_report([&](const TaskRecord& task, const Json& sum) {
                    const int64_t length = task.args.as_int();
                    if (sum.as_int() == 3 * length) return pool.cancel(task.id);
                    pool.send(task.id, std::string(size_t(length), 'x'));
                });
                for (const int length : {1, 3000, 300'000})
                    for (int size = 1; size <= link.size(); ++size)
                        pool.submit("add", length, size).send(std::string(size_t(length), 'x'));
                for (const TaskRecord* task : pool.fetch_outputs()) {
                    CHECK(task->state == TaskState::cancelled);
                    CHECK(task->output == Json(3 * task->args.as_int()));
                }
            });
            Group(link).barrier("after the pool");
        });
    }
}
