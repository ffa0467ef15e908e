// Tests par with real MPI: mpiexec -n 1..4 ./mpi_par. Prints "mpi_par: N ranks: M checks passed" and returns 0, or
// prints a line per failure and ends the job with 1. The tests with threads are more thorough; this one shows that the
// MPI link behaves the same.
//
//   --throw RANK STEP       the rank throws at the step; the job must end at once with a code other than 0
//   --mismatch RANK STEP    the rank sums another length; the job must end in the same way
//   --late RANK STEP        the rank stops answering; the deadline of the others (2 s) must end the job
//   --alone RANK STEP       like --late, while the others are in a call of the MPI library, which has no deadline

#include "ringgrad/core/rng.h"
#include "ringgrad/par/aggregate.h"
#include "ringgrad/par/session.h"
#include "ringgrad/par/task_pool.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

using namespace rg;
using par::Algorithm;
using par::Group;

namespace {

struct Checks {
    Group& group;
    int passed = 0;

    /// Throws Error unless the condition is true. All ranks call it.
    void expect(bool condition, const std::string& what) {
        RG_CHECK(condition, "mpi_par: expected ", what, ", got otherwise (rank ", group.rank(), ")");
        ++passed;
    }
};

float value_of(size_t i, int rank) { return float((i * 31 + 7) % 1009 * size_t(rank + 1) + size_t(rank)); }

void check_allreduce(Checks& checks, Algorithm algorithm) {
    Group& group = checks.group;
    const size_t n = size_t(group.size());
    for (const size_t count : {size_t(0), size_t(1), n - 1, n, n + 1, size_t(1000), size_t(20'000), size_t(676'714)}) {
        std::vector<float> values(count);
        size_t wrong = 0;
        for (int repeat = 0; repeat < 3; ++repeat) {
            for (size_t i = 0; i < count; ++i) values[i] = value_of(i, group.rank());
            group.allreduce_sum(values, "exact", algorithm);
            for (size_t i = 0; i < count; ++i) {
                float sum = 0;
                for (int r = 0; r < group.size(); ++r) sum += value_of(i, r);
                wrong += values[i] != sum;
            }
        }
        checks.expect(wrong == 0, cat("exact sums of ", count, " values"));
        Rng rng(5, Purpose::test, 0, uint64_t(group.rank()));
        for (float& v : values) v = rng.normal();
        group.allreduce_sum(values, "random", algorithm);
        par::verify_identical(group, values, "random sums");
        ++checks.passed;
    }
}

/// Checks sums through the window, and sums of ranges of the group's memory in place.
void check_shared(Checks& checks) {
    check_allreduce(checks, Algorithm::shared);
    Group& group = checks.group;
    const std::span<std::byte> bytes = group.memory(100'003 * sizeof(float), "vectors");
    const std::span<float> values(reinterpret_cast<float*>(bytes.data()), 100'003);
    checks.expect(std::count(values.begin(), values.end(), 0.0f) == 100'003, "memory that is zero at first");
    for (const size_t begin : {size_t(0), size_t(5), size_t(16), size_t(99'990)}) {
        for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(i, group.rank());
        group.allreduce_sum(values.subspan(begin), "in place", Algorithm::shared);
        size_t wrong = 0;
        for (size_t i = 0; i < values.size(); ++i) {
            float sum = i < begin ? value_of(i, group.rank()) : 0;
            for (int r = 0; r < group.size() && i >= begin; ++r) sum += value_of(i, r);
            wrong += values[i] != sum;
        }
        checks.expect(wrong == 0, cat("exact sums in place from ", begin));
    }
}

void check_others(Checks& checks) {
    Group& group = checks.group;
    const int n = group.size(), rank = group.rank();
    checks.expect(group.local_size() >= 1 && group.local_rank() < group.local_size(), "a place on the node");
    for (int root = 0; root < n; ++root) {
        std::vector<int> words(600'000, rank); // more than one chunk
        group.broadcast(std::as_writable_bytes(std::span(words)), root, "words");
        checks.expect(words == std::vector<int>(600'000, root), cat("the words of root ", root));
        checks.expect(!group.all(rank != root, "one says no") && group.all(true, "all say yes"), "the and of all");
    }
    const std::vector<std::string> names = group.allgather(std::string(size_t(rank * 3), char('a' + rank)), "names");
    for (int r = 0; r < n; ++r)
        checks.expect(names[size_t(r)] == std::string(size_t(r * 3), char('a' + r)), cat("the string of rank ", r));
    for (int i = 0; i < 50; ++i) group.barrier();

    float mean = float(rank), variance = 1;
    const par::StateBlock block{&mean, &variance, 1};
    par::StateSum state;
    state.add({&block, 1}, 1.0 / n);
    state.finish(group, {&block, 1});
    checks.expect(mean == float(n - 1) / 2, "the mean of 0 .. n - 1");
    checks.expect(std::abs(variance - (1 + float(n * n - 1) / 12)) < 1e-6f,
                  "the variance with the spread of the means");

    std::vector<float> parameters(1000, 0.5f);
    if (rank == n - 1 && n > 1) parameters[77] = 0.25f;
    bool named = n == 1;
    try {
        par::verify_identical(group, parameters, "parameters");
    } catch (const Error& error) {
        const std::string rank_named = cat("on rank ", n - 1, " (");
        named = std::string_view(error.what()).find(rank_named) != std::string_view::npos;
    }
    checks.expect(named, "the differing rank named");
}

/// Checks tasks on one rank and on groups, failures of one rank or of all ranks of a group, a cancel, and reports.
void check_task_pool(Checks& checks) {
    const int n = checks.group.size();
    const par::TaskTable table = {
        {"sum",
         [](par::TaskContext& task, const Json& odd) -> Json {
             Group& group = task.group();
             std::vector<float> values(odd.as_int() < group.size() ? 900 : 50'000);
             for (const auto algorithm :
                  {Algorithm::automatic, Algorithm::ring, Algorithm::small, Algorithm::automatic}) {
                 for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(i, group.rank());
                 group.allreduce_sum(values, "values", algorithm);
                 if (algorithm == Algorithm::ring && group.rank() == odd.as_int()) fail("planted");
                 task.report(group.size());
             }
             return double(values.back());
         }},
        {"endless",
         [](par::TaskContext& task, const Json&) {
             int64_t times = 0;
             for (; !task.cancelled(); ++times) task.report(times), usleep(100);
             return Json(times);
         }},
    };
    par::run_task_pool(checks.group.link(), table, [&](par::TaskPool& pool) {
        int reports = 0;
        pool.on_report([&](const par::TaskRecord& task, const Json& data) {
            if (task.function == "endless" && data.as_int() == 5) pool.cancel(task.id);
            reports += task.function == "sum" && data.as_int() == task.size;
        });
        int wrong = 0, expected_reports = 0;
        for (int round = 0; round < 3; ++round)
            for (int size = 1; size <= n; ++size)
                for (int odd = 0; odd <= size; ++odd) { // if odd == size, no rank fails
                    pool.submit("sum", odd, size);
                    pool.submit("endless", {});
                }
        for (const par::TaskRecord* task : pool.fetch_outputs()) {
            if (task->function == "endless") {
                wrong += task->state != par::TaskState::cancelled || task->output.as_int() < 5;
                continue;
            }
            const int odd = int(task->args.as_int());
            float sum = 0;
            for (int r = 0; r < task->size; ++r) sum += value_of(49'999, r);
            if (odd < task->size) {
                const std::string at = task->size > 1 ? cat(" (rank ", task->ranks[size_t(odd)], ")") : "";
                wrong += task->state != par::TaskState::failed || task->error != "planted" + at;
            } else {
                wrong += task->state != par::TaskState::finished || task->output.as_double() != double(sum);
                expected_reports += 4;
            }
        }
        checks.expect(wrong == 0, "tasks that end as they should");
        checks.expect(reports >= expected_reports, "all reports");
    });
    checks.group.barrier("after the pool");
}

/// Makes one rank misbehave. An error or the end of the job must follow.
void misbehave(Group& group, std::string_view how, int odd, int64_t at) {
    std::vector<float> values(100'000, 1.0f);
    group.link().set_deadline(how == "--late" || how == "--alone" ? 2 : 60);
    for (int64_t step = 1; step < at + 3; ++step) {
        group.set_step(step);
        if (group.rank() == odd && step == at) {
            if (how == "--throw") fail("mpi_par: this rank was told to throw");
            if (how == "--late" || how == "--alone") sleep(60);
            values.resize(99'999);
        }
        if (how == "--alone" && step == at) group.link().open_shared(1000);
        group.allreduce_sum(values, "gradients");
    }
}

int run(Group& group, int argc, char** argv) {
    if (argc == 4) {
        misbehave(group, argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
        return 0; // the fault was not detected, and the caller expects another code
    }
    RG_CHECK(argc == 1, "mpi_par: expected no arguments, or a fault, a rank and a step");
    Checks checks{group};
    check_allreduce(checks, Algorithm::ring);
    check_allreduce(checks, Algorithm::small);
    check_allreduce(checks, Algorithm::automatic);
    if (!group.link().node().ranks.empty()) check_shared(checks);
    check_others(checks);
    check_task_pool(checks);
    if (group.size() > 1) {
        std::vector<float> values(1000, 1.0f);
        group.allreduce_sum(values, "the library's own", Algorithm::mpi);
        checks.expect(values == std::vector<float>(1000, float(group.size())), "the library's own sum");
    }
    group.barrier("end");
    if (group.rank() == 0) std::printf("mpi_par: %d ranks: %d checks passed\n", group.size(), checks.passed);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](Group& group) { return run(group, argc, argv); });
}
