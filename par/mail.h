// Mail: letters of any length between two ranks that never wait for each other.
//
// Posting queues, and sends what can be sent; poll() sends the rest by and by, and gives what has come. So a rank that
// is in the middle of a training step costs its peers nothing, and letters that gather meanwhile leave together in one
// message. Beneath it is one stream of bytes in each direction, in pieces of the length of a receive.
#pragma once

#include "par/link.h"

#include <string>

namespace rg::par {

struct Letter {
    char kind = 0;
    int64_t task = 0;
    std::string text;
};

class Mail {
public:
    /// One on either side. The link outlives it; end it only when both have nothing left to send.
    Mail(Link& link, int peer);

    void post(const Letter& letter);
    /// The letters that have come, in order. To be called often. What comes meanwhile is left for the next call, so it
    /// returns also when the peer never stops writing.
    std::vector<Letter> poll();
    /// Nothing posted is left here.
    bool sent() const { return waiting_.empty() && sending_.empty(); }

private:
    void send();

    Link& link_;
    int peer_;
    std::string waiting_; // posted, in order; from begin_ on
    size_t begin_ = 0;
    std::string sending_; // the piece that is on its way
    std::string arrived_; // letters, the last perhaps cut
    std::vector<char> piece_;
    Channel out_, in_;
};

} // namespace rg::par
