// Tests that ranks name the missing rank, also if they wait for a rank that waits for it. Deadlines are short, and no
// check depends on how long something takes.

#include "par/group.h"
#include "par/sub_link.h"
#include "par/task_pool.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

using namespace rg;
using par::Algorithm;
using par::Group;
using par::Link;

namespace {

/// Returns the error of each rank if one leaves. Every rank calls `sums` with its group. The missing rank returns from
/// it, and the others must fail. Groups exist until all ranks have failed, as in a program.
std::vector<std::string> said(int n, const std::function<void(Group&)>& sums) {
    std::vector<std::string> texts(static_cast<size_t>(n));
    std::atomic<int> ended{0};
    par::run_threads(n, [&](Link& link) {
        link.set_deadline(1);
        Group group(link, 1000);
        try {
            sums(group);
        } catch (const par::RankMissing& error) {
            texts[size_t(link.rank())] = error.what();
        }
        for (++ended; ended < n;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    return texts;
}

} // namespace

TEST_SUITE("par") {
    TEST_CASE("roll call: every rank names the missing rank and no other") {
        for (const auto algorithm : {Algorithm::shared, Algorithm::ring, Algorithm::halving})
            for (const int n : {2, 5}) {
                const int missing = n / 2;
                const std::vector<std::string> texts = said(n, [&](Group& group) {
                    std::vector<float> values(5000);
                    for (int step = 1; step <= 3; ++step) {
                        group.set_step(step);
                        if (step == 3 && group.rank() == missing) return;
                        group.allreduce_sum(values, "gradients", algorithm);
                    }
                });
                for (int r = 0; r < n; ++r) {
                    INFO("algorithm ", int(algorithm), ", r ", r);
                    const std::string& text = texts[size_t(r)];
                    CAPTURE(text);
                    if (r == missing) {
                        CHECK(text.empty());
                        continue;
                    }
                    CHECK(text.starts_with("allreduce gradients: expected "));
                    const int last = algorithm == Algorithm::shared ? 3 : 2; // the first sum opens the shared memory
                    CHECK(text == Containing{cat("(rank ", r, ", "),
                                             cat(", step 3); no word from rank ", missing, " (last in operation ", last,
                                                 ", step 2): stopped, or slow; RG_DEADLINE_S")});
                }
            }
    }

    TEST_CASE("roll call: names two missing ranks") {
        const std::vector<std::string> texts = said(5, [&](Group& group) {
            if (group.rank() == 1 || group.rank() == 4) return;
            group.barrier();
        });
        for (const size_t r : {0, 2, 3}) CHECK(texts[r] == Containing{"no word from rank 1, rank 4: stopped"});
    }

    TEST_CASE("roll call: a rank that is missing in a sum of some ranks is named there and by the others, and no other") {
        const std::vector<std::string> texts = said(4, [&](Group& group) {
            if (group.rank() == 1) return;
            if (group.rank() == 3) return group.barrier();
            par::SubLink sub(group.link(), {0, 1, 2});
            Group some(sub);
            some.barrier();
        });
        for (const size_t r : {0, 2, 3}) CHECK(texts[r] == Containing{"no word from rank 1: stopped"});
    }

    TEST_CASE("roll call: waits for ranks that are late in turn, and ignores old messages") {
        for (const auto algorithm : {Algorithm::shared, Algorithm::ring}) {
            std::vector<float> sums(3);
            par::run_threads(3, [&](Link& link) {
                link.set_deadline(2); // so the first call is after 0.5 s
                Group group(link, 1000);
                for (int round = 0; round < 3; ++round) {
                    if (round == link.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(600));
                    std::vector<float> values(5000, 1.0f);
                    group.allreduce_sum(values, "gradients", algorithm);
                    sums[size_t(link.rank())] += values[4999];
                }
            });
            CHECK(sums == std::vector<float>(3, 9.0f));
        }
    }

    TEST_CASE("roll call: a rank that is missing in a pool's task ends the job, and is named") {
        std::atomic<bool> leave{false};
        std::atomic<int> ended{0};
        std::string text;
        const auto stuck = [&](par::TaskContext& task, const Json&) -> Json {
            while (task.group().rank() == 1 && !leave) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            task.group().barrier("to the end");
            return {};
        };
        par::run_threads(4, [&](Link& link) {
            link.set_deadline(0.5);
            try {
                par::run_task_pool(link, {{"stuck", stuck}}, [&](par::TaskPool& pool) {
                    pool.submit("stuck", {}, 1); // runs on rank 0
                    pool.submit("stuck", {}, 2); // runs on ranks 1 and 2
                    pool.fetch_outputs();
                });
            } catch (const par::RankMissing& error) {
                if (link.rank() == 1) text = error.what();
            } catch (const Error&) { // the controller or an idle rank fails in its wait
            }
            if (++ended == 3) leave = true;
        });
        CHECK(text.starts_with("barrier to the end: expected "));
        CHECK(text == Containing{"no word from rank 2"});
    }
}
