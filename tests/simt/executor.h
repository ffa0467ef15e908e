// The executor: runs a grid of CUDA threads on the calling thread, and detects operations that are undefined on a GPU.
//
// Blocks run one after the other. Each thread of a block is a fiber, which runs until it waits for other threads. The
// last thread to arrive at a barrier or a warp collective does the work for all and marks the others ready, so nothing
// is ever polled. If no thread can run and some have not returned, the block is deadlocked; the error lists who waits
// where. The order in which threads run is a setting. A kernel without races gives the same bits in every order.
//
// Kernel files include gpu/cuda.cuh instead of this file.
#pragma once

#include "core/base.h"
#include "core/formatted.h"

#include <functional>
#include <span>
#include <vector>

namespace rg::simt {

struct Index3 {
    unsigned x, y, z;
};

/// A position in a kernel's source. As a default argument, here() is the position of the call.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu; // the mask of a whole warp
/// Returns a mask as in "0xff", for errors.
inline std::string hex(unsigned mask) { return formatted("0x%x", mask); }

/// The order in which ready threads run. Blocks run in the same kind of order.
enum class Order { forward, reverse, shuffled };

struct Settings {
    Order order = Order::forward;
    uint64_t seed = 1;
    /// If true, bulk copies and products execute when they are issued. If false, they execute as late as a wait allows.
    bool eager_copies = false;
};
/// The settings of the calling thread's launches.
Settings& settings();

/// Runs all blocks of a grid. Throws Error with kernel, block and thread if the kernel does something undefined.
void run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes, const std::function<void()>& body);

/// A launch, with the bytes of each parameter.
struct Launch {
    const void* kernel; // the function, as compiled for the executor
    Index3 grid, block;
    size_t shared_bytes;
    std::vector<std::vector<std::byte>> parameters;
};
/// Takes launches, and provides scratch memory and counters, in place of the executor. tests/ptx/ records launches.
class Interceptor {
public:
    virtual ~Interceptor() = default;
    virtual void launch(Launch launch) = 0;
    virtual void* scratch(size_t bytes) = 0;
    virtual unsigned* counters() = 0;
};
/// The interceptor of the calling thread, or null.
inline thread_local Interceptor* interceptor = nullptr;

/// Returns the names of the kernels that this thread has launched since the last call.
std::vector<std::string> take_launched();

/// Runs f once in every order of threads. f launches kernels and writes the outputs, which have the same initial
/// contents each time. Throws Error with the kernels' names if results differ in any bit. The outputs keep the last
/// results.
void run_in_every_order(const std::function<void()>& f, std::initializer_list<std::span<std::byte>> outputs);
template <class... T>
void run_in_every_order(const std::function<void()>& f, std::vector<T>&... outputs) {
    run_in_every_order(f, {std::as_writable_bytes(std::span(outputs))...});
}

// ---- called from within kernels, by language.h ----

/// The running fiber's threadIdx, blockIdx, blockDim and gridDim.
inline thread_local constinit Index3 thread_index{}, block_index{}, block_extent{}, grid_extent{};

/// Throws Error with the kernel, the block, the running thread and the site.
[[noreturn]] void fail_here(Site site, const std::string& what);

/// Blocks until all threads of the block have arrived.
void block_barrier(Site site);

/// A collective of the lanes in a mask. The last lane to arrive calls combine() before any lane continues. `data` has
/// each lane's pointer, and null for lanes outside of the mask. All lanes must pass the same mask, name, argument and
/// site.
using Combine = void (*)(void* const (&data)[kWarp], unsigned mask, int argument);
struct Collective {
    const char* name;
    int argument = 0;
    Combine combine = nullptr;
    bool orders_memory = false; // for ThreadSanitizer: accesses before it in any lane happen before those after it
};
void warp_collective(const Collective& collective, unsigned mask, void* data, Site site);
/// Returns the lane of the running thread within its warp.
int lane_index();

} // namespace rg::simt
