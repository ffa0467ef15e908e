// Arrays of values that a kernel computes from parameters, such as packed filters.
#pragma once

#include "core/cpu/scratch.h"
#include "core/prepared_memory.h"
#include "core/scope.h"

namespace rg::cpu {

/// An array of `count` values that depend on parameters alone. If the step's plan keeps them (Plan::keep_prepared()),
/// the array lives as long as the plan, and keeps its values until a parameter changes. Otherwise the array is scratch
/// memory (scratch.h), and its values are computed in each call.
template <class T>
class PreparedArray {
public:
    explicit PreparedArray(int64_t count) : memory_(Scope::current().prepared) {
        const size_t bytes = size_t(count) * sizeof(T);
        data_ = static_cast<T*>(memory_ ? memory_->take(bytes) : scratch_stack::take(bytes));
        ready_ = memory_ && memory_->filled();
    }
    ~PreparedArray() {
        if (!memory_) scratch_stack::give_back(data_);
    }
    PreparedArray(const PreparedArray&) = delete;
    PreparedArray& operator=(const PreparedArray&) = delete;
    /// Returns true if an earlier call has already computed the values.
    bool ready() const { return ready_; }
    T* data() const { return data_; }
    operator T*() const { return data_; }

private:
    PreparedMemory* memory_;
    T* data_;
    bool ready_;
};

} // namespace rg::cpu
