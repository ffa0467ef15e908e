// Fibers run the CUDA threads of a block in turn on one thread of the process. Each fiber has its own stack.
//
// A fiber runs until it suspends or its function ends; then resume() returns to the scheduler. Fibers never switch
// directly to each other. The way through the scheduler costs a second switch of a few nanoseconds, but only the
// scheduler decides who runs. On x86-64 the switch is written by hand, because swapcontext() makes a system call each
// time to save a signal mask that never changes. The switch notifies AddressSanitizer and ThreadSanitizer, which track
// stacks.
#pragma once

#include <cstddef>

namespace rg::simt {

class Fiber {
public:
    Fiber(); // allocates a stack with an inaccessible page below it
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// Lets the next resume() call function(argument), which must not throw. From then on, only one thread of the
    /// process may use the fiber. Precondition: the fiber is not suspended.
    void start(void (*function)(void*), void* argument);
    /// Runs the fiber until it suspends or ends. Must not be called within a fiber.
    void resume();
    /// Returns to the caller of resume(). Must be called within the fiber.
    void suspend();

private:
    static void enter();
    void switch_out(bool ended);
    void prepare();

    std::byte* memory_;
    size_t offset_;
    void* context_ = nullptr; // the fiber's saved stack pointer, or its ucontext_t
    void* caller_ = nullptr;  // the same for the caller of resume()
    void (*function_)(void*) = nullptr;
    void* argument_ = nullptr;
    // Used with sanitizers only.
    [[maybe_unused]] void* fake_stack_ = nullptr;
    [[maybe_unused]] const void* caller_bottom_ = nullptr;
    [[maybe_unused]] size_t caller_size_ = 0;
    void* tsan_ = nullptr;
    void* caller_tsan_ = nullptr;
};

} // namespace rg::simt
