// Tests messages between threads, and ranks that are late, missing or in another operation. Deadlines are short only
// where no rank will ever answer. No check depends on how long something takes.

#include "par/group.h"
#include "par/mpi_link.h"
#include "par/verify.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

using namespace rg;
using par::Algorithm;
using par::Group;
using par::Link;

namespace {

/// Returns the text of the error that ends the job, or "" if none does.
std::string failure(int n, const std::function<void(Link&)>& body) {
    return error_of([&] { par::run_threads(n, body); });
}

/// A call that one rank makes while the others sum 1000 floats as "gradients" by an algorithm.
struct OtherCall {
    const char* what;
    std::function<void(Group&, std::span<float>, Algorithm)> call;
};
const OtherCall kOtherCalls[] = {
    {"count", [](Group& g, auto v, auto a) { g.allreduce_sum(v.first(999), "gradients", a); }},
    {"name", [](Group& g, auto v, auto a) { g.allreduce_sum(v, "state", a); }},
    {"algorithm", [](Group& g, auto v, auto) { g.allreduce_sum(v, "gradients", Algorithm::halving); }},
    {"barrier", [](Group& g, auto, auto) { g.barrier("gradients"); }},
    {"broadcast", [](Group& g, auto v, auto) { g.broadcast(std::as_writable_bytes(v), 0, "gradients"); }},
    {"type",
     [](Group& g, auto, auto a) {
         std::vector<double> half(500);
         g.allreduce_sum(half, "gradients", a);
     }},
};

/// Checks that these calls and kOtherCalls are rejected, whichever rank makes them. With `in_memory`, the floats lie in
/// the group's memory.
void check_rejected(Algorithm algorithm, bool in_memory, std::vector<OtherCall> calls) {
    calls.insert(calls.end(), std::begin(kOtherCalls), std::end(kOtherCalls));
    for (const OtherCall& other : calls)
        for (int n = 2; n <= 5; ++n)
            for (int odd = 0; odd < n; ++odd) {
                const std::string text = failure(n, [&](Link& link) {
                    Group group(link);
                    std::vector<float> ordinary(1000);
                    std::span<float> values(ordinary);
                    if (in_memory) {
                        const std::span<std::byte> memory = group.allocate_shared(4000, "vectors");
                        values = {reinterpret_cast<float*>(memory.data()), 1000};
                    }
                    if (link.rank() == odd)
                        other.call(group, values, algorithm);
                    else
                        group.allreduce_sum(values, "gradients", algorithm);
                });
                INFO("what ", other.what, ", in_memory ", in_memory, ", n ", n, ", odd ", odd);
                CHECK(text == Containing{"all ranks must make the same calls in the same order"});
            }
}

} // namespace

TEST_SUITE("par") {
    TEST_CASE("barrier: no rank leaves before the last has entered") {
        for (const int n : {1, 2, 3, 5, 8}) {
            std::atomic<int> inside{0};
            std::atomic<int> early{0};
            par::run_groups(n, [&](Group& group) {
                for (int round = 1; round <= 20; ++round) {
                    ++inside;
                    group.barrier();
                    if (inside < round * n) ++early;
                }
            });
            CHECK(early == 0);
        }
    }

    TEST_CASE("group: threads of one process are all on this node") {
        int local = 0;
        par::run_groups(3, [&](Group& group) {
            if (group.rank() == 2) local = 10 * group.local_rank() + group.local_size();
        });
        CHECK(local == 23);
    }

#if RG_HAVE_MPI
    TEST_CASE("mpi: a rank ends with its launcher, also if the launcher ended first") {
        for (const bool in_time : {true, false}) {
            const pid_t child = ::fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                std::signal(SIGTERM, SIG_DFL);
                par::end_with(in_time ? ::getppid() : -1);
                ::_exit(0);
            }
            int status = 0;
            REQUIRE(::waitpid(child, &status, 0) == child);
            CHECK(WIFSIGNALED(status) == !in_time);
            CHECK((in_time ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGTERM));
        }
    }

    TEST_CASE("cores: ranks share them if their affinity masks overlap") {
        const auto cores = [](int first, int count) {
            cpu_set_t set;
            CPU_ZERO(&set);
            for (int core = first; core < first + count; ++core) CPU_SET(core, &set);
            return set;
        };
        const cpu_set_t all = cores(0, 32);
        std::vector<cpu_set_t> sets(4, all);
        CHECK(par::count_sharers(all, sets) == 4);
        for (const int rank : {0, 1, 2, 3}) sets[size_t(rank)] = cores(8 * rank, 8);
        for (const cpu_set_t& own : sets) CHECK(par::count_sharers(own, sets) == 1);
        sets[3] = cores(15, 8);
        CHECK(par::count_sharers(sets[0], sets) == 1);
        CHECK(par::count_sharers(sets[1], sets) == 2);
        CHECK(par::count_sharers(sets[3], sets) == 3);
    }
#endif

    TEST_CASE("link: rejects a message that is longer than its receive") {
        const std::string text = failure(2, [](Link& link) {
            const par::Operation op{"test", "long message"};
            float values[4] = {};
            par::Channel channel =
                link.rank() == 0 ? link.open_send(values, 16, 1, 7) : link.open_receive(values, 12, 0, 7);
            link.start(channel);
            link.wait(channel, op);
        });
        CHECK(text == "receive: expected at most 12 bytes from rank 0, got a longer message (rank 1)");
    }

    TEST_CASE("link: keeps the order of messages within a tag, and separates tags") {
        std::vector<int> got(4, -1);
        par::run_threads(2, [&](Link& link) {
            const par::Operation op{"test", "order"};
            int values[4] = {10, 11, 12, 13};
            std::vector<par::Channel> channels;
            for (const size_t i : {size_t(0), size_t(1), size_t(2), size_t(3)}) {
                // The receiver starts tag 8 first, and the sender starts tag 7 first.
                const size_t k = link.rank() == 0 ? i : (i + 2) % 4;
                const int tag = k < 2 ? 7 : 8;
                void* where = link.rank() == 0 ? &values[k] : &got[k];
                channels.push_back(link.rank() == 0 ? link.open_send(where, sizeof(int), 1, tag)
                                                    : link.open_receive(where, sizeof(int), 0, tag));
                link.start(channels.back());
            }
            for (par::Channel& channel : channels) link.wait(channel, op);
        });
        CHECK(got == std::vector<int>{10, 11, 12, 13});
    }

    TEST_CASE("link: rejects invalid peers and a second start") {
        par::ThreadWorld world(2);
        Link& link = world.link(0);
        int value = 0;
        CHECK_ERROR("expected a peer in 0..1", link.open_send(&value, 4, 2, 7));
        CHECK_THROWS_AS(link.open_send(&value, 4, 0, 7), Error);
        CHECK_THROWS_AS(link.open_send(&value, size_t(1) << 31, 1, 7), Error);
        par::Channel channel = link.open_send(&value, 4, 1, 7);
        link.start(channel);
        CHECK_ERROR("still in flight", link.start(channel));
        CHECK_THROWS_AS(link.set_deadline(0), Error);
    }

    TEST_CASE("deadline: names a missing rank with the operation, step and bytes") {
        const std::string text = failure(3, [](Link& link) {
            if (link.rank() == 1) return;
            link.set_deadline(link.rank() == 2 ? 0.1 : 100);
            Group group(link);
            group.set_step(42);
            std::vector<float> values(1000);
            group.allreduce_sum(values, "gradients, bucket 2", Algorithm::ring);
        });
        CHECK(text == Containing{"allreduce gradients, bucket 2: expected a message from rank 1",
                                 "(rank 2, round 0, 4000 bytes in all, operation 1, step 42)", "RG_DEADLINE_S"});
    }

    TEST_CASE("deadline: names the round of a message that is lost in the ring") {
        const std::string text = failure(3, [](Link& link) {
            link.set_deadline(link.rank() == 0 ? 0.1 : 100);
            const par::Operation op{"allreduce", "x", 1200, 5, 6, 0};
            par::Handshake handshake(link);
            std::vector<float> values(300);
            const par::Vector vector{reinterpret_cast<std::byte*>(values.data()), 300, par::Element::f32};
            par::Peers peers(link, {0, 1, 2});
            handshake.start(op);
            handshake.finish(op);
            if (link.rank() != 2) return par::sum_along_ring(peers, vector, op);
            // This rank takes part in round 0 and stops.
            par::Channel out = link.open_send(values.data() + 200, 400, 0, 2);
            par::Channel in = link.open_receive(values.data() + 100, 400, 1, 2);
            link.start(out);
            link.start(in);
            link.wait(in, op);
            link.wait(out, op);
        });
        CHECK(text == Containing{"allreduce x: expected", "rank 2",
                                 "(rank 0, round 1, 1200 bytes in all, operation 5, step 6)"});
    }

    TEST_CASE("deadline: names a rank that stops between sums in shared memory") {
        const std::string text = failure(3, [](Link& link) {
            Group group(link, 1000);
            std::vector<float> values(1000);
            group.allreduce_sum(values, "before", Algorithm::shared);
            if (link.rank() == 1) return;
            link.set_deadline(link.rank() == 2 ? 0.1 : 100);
            group.set_step(42);
            group.allreduce_sum(values, "gradients", Algorithm::shared);
        });
        CHECK(text == Containing{"allreduce gradients: expected rank 1 to begin the operation, got nothing in 0.",
                                 "(rank 2, round 0, 4000 bytes in all, operation 3, step 42)", "RG_DEADLINE_S"});
    }

    TEST_CASE("deadline: names a rank that stops within a sum in shared memory, with the chunk") {
        const std::string text = failure(3, [](Link& link) {
            link.set_deadline(link.rank() == 0 ? 0.1 : 100);
            const par::Operation op{"allreduce", "x", 1200, 5, 6, 0};
            par::Handshake handshake(link);
            par::SharedReducer reducer(link, link.open_shared(par::SharedReducer::window_bytes(400)), 400);
            handshake.set_post_window(reducer.shared_window(), par::SharedReducer::kPostOffset);
            std::vector<float> values(300);
            const par::Vector vector{reinterpret_cast<std::byte*>(values.data()), 300, par::Element::f32};
            if (link.rank() != 2) return reducer.run(vector, handshake, op, {});
            // This rank posts its first chunk, adds its slice of it (all zeros), and stops.
            handshake.post(op);
            std::byte* stage = reducer.shared_window().parts[2];
            std::atomic_ref(*reinterpret_cast<uint64_t*>(stage)).store(2);
        });
        CHECK(text == Containing{"allreduce x: expected rank 2 to bring its part",
                                 "(rank 0, round 1, 1200 bytes in all, operation 5, step 6)"});
    }

    TEST_CASE("failure: a rank that throws between sums in shared memory stops the others") {
        for (const bool with_barrier : {false, true}) {
            CAPTURE(with_barrier);
            const std::string text = failure(4, [&](Link& link) {
                Group group(link, 4096);
                std::vector<float> values(50'000);
                for (int i = 0; i < 10; ++i) {
                    if (i == 7 && link.rank() == 2) fail("disk full");
                    group.allreduce_sum(values, "gradients", Algorithm::shared);
                    if (with_barrier) group.barrier();
                }
            });
            CHECK(text == "disk full");
        }
    }

    TEST_CASE("failure: a rank that throws stops the others, and its error is reported") {
        std::mutex mutex;
        int echoes = 0;
        const std::string text = failure(4, [&](Link& link) {
            Group group(link);
            std::vector<float> values(5000);
            try {
                group.allreduce_sum(values, "first");
                if (link.rank() == 2) fail("disk full");
                group.allreduce_sum(values, "second");
            } catch (const par::PeerFailed& error) {
                const std::lock_guard lock(mutex);
                echoes += contains(error.what(), "rank 2 failed");
                throw;
            }
        });
        CHECK(text == "disk full");
        CHECK(echoes == 3);
    }

    TEST_CASE("mismatch: rejects ranks in different operations, whichever rank differs and however") {
        const auto one_more = [](Group& g, auto v, auto a) {
            g.barrier();
            g.allreduce_sum(v, "gradients", a);
        };
        const auto segment = [](Group& g, auto v, auto a) { Group(g.link(), 64).allreduce_sum(v, "gradients", a); };
        check_rejected(Algorithm::ring, false, {{"one more", one_more}, {"segment", segment}});
    }

    TEST_CASE("mismatch: rejects different operations in shared memory, at the first sum and later") {
        const auto ring = [](Group& g, auto v, auto) { g.allreduce_sum(v, "gradients", Algorithm::ring); };
        const auto memory = [](Group& g, auto, auto) { g.allocate_shared(4000, "gradients"); };
        const auto place = [](Group& g, auto, auto a) {
            std::vector<float> elsewhere(1000);
            g.allreduce_sum(elsewhere, "gradients", a);
        };
        check_rejected(Algorithm::shared, false, {{"ring", ring}, {"memory", memory}});
        check_rejected(Algorithm::shared, true, {{"ring", ring}, {"memory", memory}, {"place", place}});
    }

    TEST_CASE("verify_same: names the first part that differs and its ranks, also if a rank has fewer parts") {
        const auto error = [](const std::vector<std::vector<std::string>>& parts_of_rank) {
            std::vector<std::string> texts(parts_of_rank.size());
            par::run_groups(int(texts.size()), [&](Group& group) {
                const auto rank = size_t(group.rank());
                try {
                    par::verify_same(group, "arguments", parts_of_rank[rank], "give the same");
                } catch (const par::RanksDiffer& error) {
                    texts[rank] = error.what();
                }
            });
            for (const std::string& text : texts) CHECK(text == texts[0]);
            return texts[0];
        };
        const auto got = [](const char* first, int rank, const char* other, int other_rank) {
            return cat("arguments: expected the same on all ranks, got ", first, " (rank ", rank, ") and ", other,
                       " (rank ", other_rank, "); give the same");
        };
        CHECK(error({{"a", "b"}}) == "");
        CHECK(error({{"a", "b"}, {"a", "b"}}) == "");
        CHECK(error({{}, {}}) == "");
        CHECK(error({{"a", "b", "c"}, {"a", "x", "c"}}) == got("b", 0, "x", 1));
        CHECK(error({{"a", "b"}, {"a"}}) == got("b", 0, "nothing", 1));
        CHECK(error({{}, {"a"}}) == got("nothing", 0, "a", 1));
        for (const char* word : {"none", "nothing"}) { // a text may equal the word for a missing one
            CHECK(error({{"a"}, {"a", word}}) == got("nothing", 0, word, 1));
            CHECK(error({{"a", word, "b"}, {"a"}}) == got(word, 0, "nothing", 1));
        }
        CHECK(error({{"a"}, {"a"}, {"x"}, {"y"}}) == got("a", 0, "x", 2)); // no majority: rank 0 is right
        CHECK(error({{"x"}, {"a"}, {"a"}}) == got("a", 1, "x", 0));        // the majority is right
    }
}
