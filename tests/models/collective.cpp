// Tests the collective calls of a training loop whose ranks have different work.
#include "models/run/collective.h"

#include "core/context.h"
#include "core/ops.h"
#include "core/tape.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <chrono>
#include <doctest/doctest.h>
#include <thread>

using namespace rg;

namespace {

void rest(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

} // namespace

TEST_SUITE("models") {
    TEST_CASE("while_meeting: work may take longer than the deadline, and all ranks wait for it") {
        std::atomic<int> done{0}, early{0};
        par::run_threads(3, [&](par::Link& link) {
            link.set_deadline(0.5);
            par::Group group(link);
            for (int worker = 0; worker < 3; ++worker) {
                run_while_polling(group, "checkpoint", [&] {
                    if (group.rank() == worker) rest(800), ++done;
                });
                early += done <= worker;
            }
        });
        CHECK(done == 3);
        CHECK(early == 0);
    }

    TEST_CASE("while_meeting: calls back on the calling thread while the work runs") {
        for (const int ranks : {1, 2})
            par::run_groups(ranks, [](par::Group& group) {
                std::atomic<int> pulses{0};
                const std::thread::id caller = std::this_thread::get_id();
                const auto load = [&] {
                    while (pulses < 3) rest(1);
                };
                run_while_polling(group, "data", load, [&] { pulses += std::this_thread::get_id() == caller; });
                CHECK(pulses >= 3);
            });
    }

    TEST_CASE("while_meeting: the work runs in the caller's context") {
        for (const int ranks : {1, 2})
            par::run_groups(ranks, [&](par::Group& group) {
                const Context reference{.backend = Backend::reference};
                const ContextScope scope(reference);
                DType type = DType::f32; // f64 is for that backend alone
                run_while_polling(group, "model", [&] { type = relu(Tensor::zeros({2}, DType::f64)).dtype(); });
                CHECK(type == DType::f64);
                const Tape tape;
                CHECK_ERROR("model: expected no tape", run_while_polling(group, "model", [] {}));
            });
    }

    TEST_CASE("while_meeting: rethrows an error of the work on its rank") {
        const auto meet = [](par::Link& link) {
            par::Group group(link);
            run_while_polling(group, "checkpoint", [&] { RG_CHECK(group.rank() != 1, "disk full"); });
            group.barrier();
        };
        CHECK_THROWS_WITH_AS(par::run_threads(3, meet), "disk full", Error);
        CHECK_THROWS_WITH_AS(par::run_threads(1,
                                              [](par::Link& link) {
                                                  par::Group group(link);
                                                  run_while_polling(group, "checkpoint", [] { fail("disk full"); });
                                              }),
                             "disk full", Error);
    }

    TEST_CASE("while_meeting: names a missing rank while another rank works") {
        std::atomic<bool> leave{false};
        std::atomic<int> ended{0};
        std::string text;
        par::run_threads(3, [&](par::Link& link) {
            link.set_deadline(link.rank() == 2 ? 0.5 : 100);
            par::Group group(link);
            if (link.rank() == 1) {
                while (!leave) rest(1);
                return;
            }
            try {
                run_while_polling(group, "checkpoint", [&] {
                    while (group.rank() == 0 && !leave) rest(1);
                });
            } catch (const par::RankMissing& error) {
                if (group.rank() == 2) text = error.what();
            }
            leave = true;
            for (++ended; ended < 2;) rest(1); // keep the group until both have the error
        });
        CAPTURE(text);
        CHECK(text.find("no word from rank 1") != std::string::npos);
        CHECK(text.find("rank 0:") == std::string::npos);
    }
}
