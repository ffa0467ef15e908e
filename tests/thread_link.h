// Ranks as threads of one process: a Link without MPI, so that tests can run several ranks quickly.
//
// The sender or the receiver, whichever begins last, copies the message from the sender's buffer to the receiver's. A
// send is complete only after this copy. That is stricter than MPI, which buffers short messages, so an algorithm that
// works here does not depend on buffering.
#pragma once

#include "par/group.h"

#include <functional>

namespace rg::par {

class ThreadWorld {
public:
    /// If `per_node` is 0, all ranks share memory. Otherwise each `per_node` consecutive ranks form a node, and only
    /// they share memory.
    explicit ThreadWorld(int size, int per_node = 0);
    ~ThreadWorld();
    ThreadWorld(const ThreadWorld&) = delete;
    ThreadWorld& operator=(const ThreadWorld&) = delete;

    /// Returns the Link of one rank. It lives as long as the world, and one thread at a time may use it.
    Link& link(int rank);

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Runs body once per rank, each on its own thread. If a body throws, the other ranks throw PeerFailed when they next
/// start or await a message. Then this function throws the first error, and a PeerFailed only if there is no other.
/// `per_node` is that of ThreadWorld.
void run_threads(int size, const std::function<void(Link&)>& body, int per_node = 0);
/// Like run_threads(), but gives each rank a Group.
void run_groups(int size, const std::function<void(Group&)>& body);

} // namespace rg::par
