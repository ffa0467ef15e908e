// Defines OneCaller, which finds threads that use an object at the same time.
#pragma once

#include "core/base.h"

#include <atomic>
#include <memory>

namespace rg {

/// A member of a class whose objects serve one call at a time. Functions that use such an object begin with call().
class OneCaller {
public:
    OneCaller() = default;
    OneCaller(OneCaller&&) noexcept {} // an object that is moved takes no calls with it
    OneCaller& operator=(OneCaller&&) noexcept { return *this; }
    /// Returns an object that stands for the call. Throws Error if that of another call exists. `type` is the name of
    /// the class.
    [[nodiscard]] auto call(const char* type) {
        RG_CHECK(!called_.exchange(true, std::memory_order_acquire), type, ": expected one call at a time, got one ",
                 "during another; give each thread its own ", type, ", or lock a mutex around each use");
        const auto end = [](std::atomic<bool>* called) { called->store(false, std::memory_order_release); };
        return std::unique_ptr<std::atomic<bool>, decltype(end)>(&called_, end);
    }

private:
    std::atomic<bool> called_{false};
};

} // namespace rg
