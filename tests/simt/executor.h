// The executor: runs a grid of CUDA threads on the calling thread, and finds what a GPU would leave undefined.
//
// Blocks run one after the other; each of a block's threads is a fiber that runs until it waits for others. Whoever
// arrives last at a barrier or a warp collective does its work for all and marks the others runnable, so nothing is
// ever polled. When no thread can run and some have not returned, the block is stuck, and who waits where is the
// error. The order in which threads run is a setting: a kernel without races gives the same bits in each.
//
// Kernel files never include this; they include gpu/cuda.cuh.
#pragma once

#include "core/base.h"

#include <functional>
#include <span>
#include <vector>

namespace rg::simt {

struct Index3 {
    unsigned x, y, z;
};

/// A place in a kernel's text. As a default argument, here() is the place of the call.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

inline constexpr int kWarp = 32;

/// Which runnable thread goes first. Blocks are taken in the same kind of order.
enum class Order { forward, reverse, shuffled };

struct Settings {
    Order order = Order::forward;
    uint64_t seed = 1;
    /// Bulk copies and products take place when they are issued, instead of as late as a wait allows.
    bool eager_copies = false;
};
/// For all launches of this thread from here on.
Settings& settings();

/// Runs all blocks of a grid; throws Error, naming kernel, block and thread, for whatever a kernel must not do.
void run_grid(const char* kernel, Index3 grid, Index3 block, size_t shared_bytes, const std::function<void()>& body);

/// The kernels that this thread has launched since the last call.
std::vector<std::string> take_launched();

/// Runs f (which launches kernels and writes outputs) once in every order, each time from the same contents of the
/// outputs, and throws Error with the kernels' names if their bits differ. The results remain.
void run_in_every_order(const std::function<void()>& f, std::initializer_list<std::span<std::byte>> outputs);
template <class... T>
void run_in_every_order(const std::function<void()>& f, std::vector<T>&... outputs) {
    run_in_every_order(f, {std::as_writable_bytes(std::span(outputs))...});
}

// ---- for the CUDA names in language.h, called from within kernels ----

/// What the running fiber sees as threadIdx and so on.
inline thread_local constinit Index3 thread_index{}, block_index{}, block_extent{}, grid_extent{};

/// Throws Error with the place and the running thread in front.
[[noreturn]] void fail_here(Site site, const std::string& what);

/// All threads of the block wait for each other.
void block_barrier(Site site);

/// Lanes of a warp meet. Whoever comes last calls combine with each lane's data (null where it is not in the mask)
/// before any of them goes on. All must come with the same mask, name, argument and site.
using Combine = void (*)(void* const (&data)[kWarp], unsigned mask, int argument);
struct Collective {
    const char* name;
    int argument = 0;
    Combine combine = nullptr;
    bool orders_memory = false; // for ThreadSanitizer: what came before it, in any lane, is visible after it
};
void warp_collective(const Collective& collective, unsigned mask, void* data, Site site);
/// Lane of the running thread within its warp.
int lane_index();

} // namespace rg::simt
