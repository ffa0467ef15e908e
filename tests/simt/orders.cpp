// Implements run_in_every_order(): repeats launches in several orders of threads.
//
// Results that differ between orders show a race or a read of memory that was never written. Eager copies show a buffer
// that is overwritten while it is in use. Late copies show a missing wait.
#include "tests/simt/executor.h"

#include <algorithm>

namespace rg::simt {
namespace {

struct Run {
    const char* name;
    Settings settings;
};

constexpr Run kRuns[] = {
    {"forward", {Order::forward, 1, false}},
    {"reverse", {Order::reverse, 1, false}},
    {"shuffled", {Order::shuffled, 1, false}},
    {"shuffled with another seed", {Order::shuffled, 2, false}},
    {"forward with eager copies", {Order::forward, 1, true}},
    {"reverse with eager copies", {Order::reverse, 1, true}},
};

struct RestoreSettings {
    Settings saved = settings();
    ~RestoreSettings() { settings() = saved; }
};

} // namespace

void run_in_every_order(const std::function<void()>& f, std::initializer_list<std::span<std::byte>> outputs) {
    const RestoreSettings restore;
    using Bytes = std::vector<std::vector<std::byte>>;
    const auto contents = [&] {
        Bytes bytes;
        for (const auto output : outputs) bytes.emplace_back(output.begin(), output.end());
        return bytes;
    };
    const Bytes before = contents();
    Bytes expected;
    for (const Run& run : kRuns) {
        for (size_t i = 0; i < before.size(); ++i)
            std::copy(before[i].begin(), before[i].end(), outputs.begin()[i].begin());
        settings() = run.settings;
        take_launched();
        try {
            f();
        } catch (const Error& error) {
            fail(error.what(), " (threads ran ", run.name, ")");
        }
        if (expected.empty()) {
            expected = contents();
            continue;
        }
        const Bytes actual = contents();
        for (size_t i = 0; i < actual.size(); ++i) {
            const auto differs = std::mismatch(actual[i].begin(), actual[i].end(), expected[i].begin()).first;
            if (differs == actual[i].end()) continue;
            std::string kernels;
            for (const std::string& kernel : take_launched()) kernels += cat(kernels.empty() ? "" : ", ", kernel);
            fail(kernels, ": output ", i, " differs at byte ", differs - actual[i].begin(), " when threads run ",
                 run.name, " instead of forward: a barrier or a wait is missing, or ",
                 "a thread reads memory that was never written");
        }
    }
}

} // namespace rg::simt
