// Writes files on another thread while the training goes on.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <utility>

namespace rg {

class FileWriter {
public:
    using Work = std::function<void()>;

    /// Blocks until less than kMost pieces of work are unfinished. Call this before the copies for further work are
    /// made, so that a slow disk does not fill the memory. Throws like check().
    void wait_for_room() { check(), wait(kMost - 1); }
    /// Runs `work` after all earlier work, unless that threw an exception. Returns its future. `work` must only use
    /// values that the caller does not change meanwhile.
    std::shared_future<void> add(Work work) {
        std::shared_future<void> before = work_.empty() ? std::shared_future<void>() : work_.back();
        work_.push_back(std::async(std::launch::async, [before = std::move(before), work = std::move(work)]() mutable {
            if (before.valid()) std::exchange(before, {}).get();
            std::exchange(work, {})(); // frees the copies now: the future may live on
        }));
        return work_.back();
    }
    /// Throws the exception of the first piece of work that failed, if one has. Does not block.
    void check() {
        while (!work_.empty() && work_.front().wait_for(std::chrono::seconds(0)) == std::future_status::ready)
            wait(work_.size() - 1);
    }
    /// Blocks until all work is done. Throws like check().
    void finish() { wait(0); }

    /// Room for the large files of an epoch: the best model, the last model, a checkpoint and the report.
    static constexpr size_t kMost = 4;

private:
    void wait(size_t unfinished) {
        for (; work_.size() > unfinished; work_.pop_front()) work_.front().get();
    }
    std::deque<std::shared_future<void>> work_; // the destructor waits for it
};

} // namespace rg
