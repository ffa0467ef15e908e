// Implements the switch between stacks.
//
// rg_simt_switch(save, load) pushes the registers that a function must preserve, and stores the stack pointer in *save.
// Then it sets the stack pointer to `load` and pops the registers from there. To the compiler it is an ordinary call,
// so all other registers are already saved. The floating-point control words are not switched, since kernels do not
// change them. prepare() lays out the stack of a new fiber as if it had been suspended just before its first
// instruction:
//
//     top - 8    0          return address of enter(), which never returns; ends backtraces
//     top - 16   enter      target of the switch's ret; leaves rsp = 8 mod 16, as at the entry of any function
//     top - 64   6 zeros    rbp rbx r12 r13 r14 r15
#include "tests/simt/fiber.h"

#include "core/base.h"
#include "tests/simt/sanitizers.h"

#include <sys/mman.h>
#if !defined(__x86_64__) && !defined(RG_SIMT_UCONTEXT)
#define RG_SIMT_UCONTEXT // may also be defined by hand, to test this implementation on x86-64
#endif
#ifdef RG_SIMT_UCONTEXT
#include <ucontext.h>
#endif

namespace rg::simt {
namespace {

// Sanitizers put redzones around every local variable, so frames are several times as large.
constexpr size_t kStackBytes = kAsan || kTsan ? 256 << 10 : 64 << 10;
constexpr size_t kGuardBytes = 4 << 10;
// Stacks begin at different offsets within their pages. Otherwise, all would compete for the same few sets of the L1
// cache.
constexpr size_t kOffsets = 32;
constexpr size_t kOffsetStep = 128;

thread_local constinit Fiber* running = nullptr; // set by resume() for enter(), which has no argument

} // namespace

#ifndef RG_SIMT_UCONTEXT

extern "C" void rg_simt_switch(void** save, void* load);
asm(R"(
    .text
    .p2align 4
    .globl rg_simt_switch
    .hidden rg_simt_switch
    .type rg_simt_switch, @function
rg_simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size rg_simt_switch, . - rg_simt_switch
)");

void Fiber::prepare() {
    void** top = reinterpret_cast<void**>(memory_ + kGuardBytes + kStackBytes - offset_);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&Fiber::enter);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    context_ = top;
}

#else

namespace {
void rg_simt_switch(void** save, void* load) {
    swapcontext(static_cast<ucontext_t*>(*save), static_cast<ucontext_t*>(load));
}
} // namespace

void Fiber::prepare() {
    if (!context_) context_ = new ucontext_t;
    if (!caller_) caller_ = new ucontext_t;
    ucontext_t* const context = static_cast<ucontext_t*>(context_);
    getcontext(context);
    context->uc_stack.ss_sp = memory_ + kGuardBytes;
    context->uc_stack.ss_size = kStackBytes;
    context->uc_link = nullptr;
    makecontext(context, &Fiber::enter, 0);
}

#endif

Fiber::Fiber() {
    void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RG_CHECK(memory != MAP_FAILED, "simt: not enough memory for the stack of a fiber");
    memory_ = static_cast<std::byte*>(memory);
    mprotect(memory_, kGuardBytes, PROT_NONE);
    static thread_local size_t count = 0;
    offset_ = count++ % kOffsets * kOffsetStep;
#ifdef RG_SIMT_TSAN
    tsan_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef RG_SIMT_TSAN
    __tsan_destroy_fiber(tsan_);
#endif
#ifdef RG_SIMT_UCONTEXT
    delete static_cast<ucontext_t*>(context_);
    delete static_cast<ucontext_t*>(caller_);
#endif
    unpoison(memory_ + kGuardBytes, kStackBytes); // these addresses may be reused
    munmap(memory_, kGuardBytes + kStackBytes);
}

void Fiber::start(void (*function)(void*), void* argument) {
    function_ = function;
    argument_ = argument;
    prepare();
}

void Fiber::resume() {
    running = this;
#ifdef RG_SIMT_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, memory_ + kGuardBytes, kStackBytes);
#endif
#ifdef RG_SIMT_TSAN
    caller_tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_, __tsan_switch_to_fiber_no_sync);
#endif
    rg_simt_switch(&caller_, context_);
#ifdef RG_SIMT_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::switch_out([[maybe_unused]] bool ended) {
#ifdef RG_SIMT_ASAN
    // Passing null frees the fake stack: an ended fiber does not run again.
    __sanitizer_start_switch_fiber(ended ? nullptr : &fake_stack_, caller_bottom_, caller_size_);
#endif
#ifdef RG_SIMT_TSAN
    __tsan_switch_to_fiber(caller_tsan_, __tsan_switch_to_fiber_no_sync);
#endif
    rg_simt_switch(&context_, caller_);
#ifdef RG_SIMT_ASAN
    __sanitizer_finish_switch_fiber(fake_stack_, &caller_bottom_, &caller_size_);
#endif
}

void Fiber::suspend() { switch_out(false); }

void Fiber::enter() {
    Fiber* const fiber = running;
#ifdef RG_SIMT_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &fiber->caller_bottom_, &fiber->caller_size_);
#endif
    fiber->function_(fiber->argument_);
    fiber->switch_out(true);
    __builtin_unreachable();
}

} // namespace rg::simt
