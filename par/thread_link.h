// Ranks as threads of one process: a Link without MPI, so that tests run one to nine ranks in milliseconds.
//
// A message is copied straight from the sender's buffer to the receiver's when both have started, by whichever came
// second; a send is done only then. That is stricter than MPI, which buffers short messages, so an algorithm that
// works here does not depend on buffering. A world of one rank is also the Link of a program built without MPI.
#pragma once

#include "par/link.h"

#include <functional>

namespace rg::par {

class ThreadWorld {
public:
    explicit ThreadWorld(int size);
    ~ThreadWorld();
    ThreadWorld(const ThreadWorld&) = delete;
    ThreadWorld& operator=(const ThreadWorld&) = delete;

    /// The Link of one rank; lives as long as the world. Each is used by one thread.
    Link& link(int rank);

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Runs body once per rank, each on a thread of its own, and joins them. A body that throws stops the others at
/// their next wait; then the first error (not its echoes) is thrown here.
void run_threads(int size, const std::function<void(Link&)>& body);

} // namespace rg::par
