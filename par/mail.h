// Mail: letters of any length between two ranks. Sending and receiving never block.
//
// post() queues a letter and sends as much as possible. Later calls of poll() send the rest, and return letters that
// have arrived. So a rank in the middle of a training step does not delay its peer. The transport is one byte stream
// per direction, cut into messages of at most 4096 bytes; a message may hold several letters.
#pragma once

#include "ringgrad/par/link.h"

#include <string>

namespace rg::par {

struct Letter {
    char kind = 0;
    int64_t task = 0;
    std::string text;
};

class Mail {
public:
    /// Each of the two ranks makes one Mail. The link must outlive it. Destroy it only after both ranks have sent
    /// everything.
    Mail(Link& link, int peer);

    void post(const Letter& letter);
    /// Returns the letters that have arrived, in order. Call it often. Each call reads a limited number of messages, so
    /// it returns even if the peer keeps writing.
    std::vector<Letter> poll();
    /// Returns true if everything posted had been sent at the last call of post() or poll().
    bool sent() const { return queued_.empty() && sending_.empty(); }

private:
    void send();

    Link& link_;
    int peer_;
    std::string queued_; // posted letters, in order; bytes before begin_ have been sent or are in flight
    size_t begin_ = 0;
    std::string sending_;  // the message in flight; empty if none
    std::string received_; // received letters; the last may be incomplete
    std::vector<char> chunk_;
    Channel to_peer_, from_peer_;
};

} // namespace rg::par
