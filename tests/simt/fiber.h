// Fibers: the CUDA threads of a block, each with a stack of its own, taking turns on one thread of the process.
//
// A fiber runs until it suspends or its function ends; then resume() returns to the scheduler. There is no switch
// from fiber to fiber: going through the scheduler costs a second switch of a few nanoseconds and keeps one place
// that decides who runs. On x86-64 the switch is written by hand, because swapcontext() makes a system call each time
// to save a signal mask that never changes. Both sanitizers that track stacks are told of every switch.
#pragma once

#include <cstddef>

namespace rg::simt {

class Fiber {
public:
    Fiber(); // with a stack, below which lies a page that must not be touched
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// The next resume() enters `function` at its beginning. It must not throw, and all that follows must happen on
    /// one thread of the process. Not while the fiber is suspended.
    void start(void (*function)(void*), void* argument);
    /// Runs the fiber until it suspends or ends. Not from within a fiber.
    void resume();
    /// Back to the caller of resume(). Within the fiber only.
    void suspend();

private:
    static void enter();
    void switch_out(bool ended);
    void prepare();

    std::byte* memory_;
    size_t offset_;
    void* context_ = nullptr; // saved stack pointer, or ucontext_t
    void* caller_ = nullptr;  // the same for who called resume()
    void (*function_)(void*) = nullptr;
    void* argument_ = nullptr;
    // Sanitizers only.
    void* fake_stack_ = nullptr;
    const void* caller_bottom_ = nullptr;
    size_t caller_size_ = 0;
    void* tsan_ = nullptr;
    void* caller_tsan_ = nullptr;
};

} // namespace rg::simt
