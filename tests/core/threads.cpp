// Tests the thread pool (tasks, exceptions, many short rounds, long waits), and the scratch memory of a thread.
#include "core/cpu/cores.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "tests/allocations.h"
#include "tests/temp_dir.h"

#include <chrono>
#include <doctest/doctest.h>
#include <numeric>

namespace rg {
TEST_SUITE("core") {
    TEST_CASE("thread pool: runs every task once, for any number of threads and tasks") {
        for (int threads = 1; threads <= 4; ++threads) {
            ThreadPool pool(threads);
            CHECK(pool.size() == threads);
            for (int64_t tasks : {0, 1, 2, 3, 4, 5, 64, 1000}) {
                CAPTURE(threads);
                CAPTURE(tasks);
                std::vector<int> runs(size_t(tasks), 0); // not atomic, since the end of a round orders the writes
                pool.run(tasks, [&](int64_t task) { ++runs[size_t(task)]; });
                CHECK(runs == std::vector<int>(size_t(tasks), 1));
            }
        }
    }

    TEST_CASE("thread pool: each of many short rounds sees the results of the round before") {
        ThreadPool pool(3);
        std::vector<int64_t> values(7, 0);
        for (int64_t round = 0; round < 300; ++round)
            pool.run(7, [&](int64_t task) {
                const size_t t = size_t(task);
                values[t] = values[t] == round ? round + 1 : -1;
            });
        CHECK(values == std::vector<int64_t>(7, 300));
    }

    TEST_CASE("thread pool: threads take the tasks of one that is busy") {
        ThreadPool pool(2);
        std::atomic<int> others = 0;
        pool.run(8, [&](int64_t task) { // tasks 0 to 3 belong to the same thread
            if (task != 0) return void(++others);
            for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
                 others < 7 && std::chrono::steady_clock::now() < end;)
                std::this_thread::yield();
            CHECK(others == 7);
        });
    }

    TEST_CASE("thread pool: a round during another is refused") {
        ThreadPool pool(2);
        CHECK_ERROR("ThreadPool: expected one call at a time", pool.run(2, [&](int64_t) { pool.run(1, [](int64_t) {}); }));
        int runs = 0;
        CHECK_NOTHROW(pool.run(1, [&](int64_t) { ++runs; }));
        CHECK(runs == 1);
    }

    TEST_CASE("thread pool: wakes sleeping workers") {
        ThreadPool pool(4);
        for (int round = 0; round < 3; ++round) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            std::atomic<int> runs = 0;
            pool.run(8, [&](int64_t) {
                ++runs;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            });
            CHECK(runs == 8);
        }
    }

    TEST_CASE("thread pool: rethrows an exception once, and stays usable") {
        for (int threads = 1; threads <= 4; ++threads) {
            CAPTURE(threads);
            ThreadPool pool(threads);
            for (int64_t bad : {0, 5, 99}) {
                const std::string error = error_of(
                    [&] { pool.run(100, [&](int64_t task) { RG_CHECK(task != bad, "task ", task, " failed"); }); });
                CHECK(error == cat("task ", bad, " failed"));
                std::vector<int> runs(10, 0);
                CHECK(error_of([&] { pool.run(10, [&](int64_t task) { ++runs[size_t(task)]; }); }).empty());
                CHECK(runs == std::vector<int>(10, 1));
            }
            CHECK(contains(error_of([&] { pool.run(50, [](int64_t task) { fail("task ", task); }); }), "task "));
        }
    }

    TEST_CASE("thread pool: many pools are created and destroyed") {
        for (int i = 0; i < 100; ++i) {
            ThreadPool pool(1 + i % 4);
            if (i % 3 == 0) continue; // destroy it unused
            std::vector<int64_t> squares(20);
            pool.run(20, [&](int64_t task) { squares[size_t(task)] = task * task; });
            CHECK(std::accumulate(squares.begin(), squares.end(), int64_t{0}) == 2470);
        }
        CHECK(available_cores() >= 1);
    }

    TEST_CASE("thread pool: parallel() uses the context's pool, or the calling thread alone") {
        const auto on_this_thread = [] {
            const auto caller = std::this_thread::get_id();
            std::atomic<int> here = 0;
            parallel(6, [&](int64_t) { here += std::this_thread::get_id() == caller; });
            return here.load();
        };
        CHECK(on_this_thread() == 6);
        ThreadPool pool(2);
        const Context with_pool{.threads = &pool};
        const ContextScope scope(with_pool);
        std::atomic<bool> other = false;
        parallel(2, [&, caller = std::this_thread::get_id()](int64_t) {
            // The first task to start waits for the other thread to take the second.
            if (std::this_thread::get_id() == caller)
                while (!other) std::this_thread::yield();
            else
                other = true;
        });
        CHECK(other);
        CHECK(on_this_thread() <= 6);
    }

    TEST_CASE("scratch: without enough memory, throws and keeps the blocks in use") {
        if (allocations() < 0) return; // a sanitizer would end the process
        std::string error;
        bool intact = false, reused = false;
        std::jthread([&] { // a new thread has a stack of its own
            const cpu::Scratch<int> outer(100);
            const int* inner_data = nullptr;
            std::fill_n(outer.data(), 100, 7);
            error = error_of([&] {
                const cpu::Scratch<int> inner(100);
                inner_data = inner;
                const cpu::Scratch<std::byte> too_large(int64_t{1} << 60);
            });
            intact = std::count(outer.data(), outer.data() + 100, 7) == 100;
            reused = cpu::Scratch<int>(100).data() == inner_data;
        }).join();
        CHECK(contains(error, "bytes are not available"));
        CHECK(intact);
        CHECK(reused);
    }
}
} // namespace rg
