// RollCall: which rank is missing when a wait takes long.
//
// A rank only sees that its neighbour has not come, and that one may itself be waiting for another. So a rank that has
// waited for a while calls all others, by one short message each; whoever is waiting, too, answers. A rank that does
// not is stopped, dead, or still computing: after some seconds a line on standard error names it, and at the deadline
// the first rank whose wait is over tells all others whom it misses. Each then fails with that name, and not with its
// neighbour's.
//
// An answer also says when the rank before the one that answers was heard last (Handshake): where the ranks share no
// memory nobody else knows how far a missing rank has come.
//
// Nothing is sent while waits are short. Messages that nobody was there to take are old ones when they are read at
// last, so an answer carries the number of its call.
#pragma once

#include "par/link.h"

#include <string>

namespace rg::par {

class RollCall {
public:
    /// The link looks here during its waits, for as long as this exists. Both arguments outlive it.
    RollCall(Link& link, const Handshake& handshake);
    ~RollCall();
    RollCall(const RollCall&) = delete;
    RollCall& operator=(const RollCall&) = delete;

    /// From within a wait that began then, has taken so many seconds and may take `limit`. True: another rank's wait
    /// has ended without success, and this one should.
    bool look(const Operation& op, double begin, double waited, double limit);
    /// The end of such a wait: tells the others, and gives the ranks that are missing; none if all are waiting.
    std::string close();

private:
    enum Kind : uint8_t { call, answer, verdict, kKinds };
    struct Message {
        uint64_t number = 0; // of the sender's call
        Kind kind = call;
        // Of a verdict: who is missing. Of an answer: when the rank before the sender was heard last. Ends with a zero.
        std::array<char, 503> text{};
    };
    struct Peer {
        struct {
            Message message;
            Channel channel;
        } out[kKinds];
        Message message;
        Channel in;
        bool present = false; // has answered
        std::string heard;    // what its answer says
    };
    void send(int rank, Kind kind, uint64_t number, std::string_view text = {});
    void send_all(Kind kind, std::string_view text = {});
    void listen();
    std::string last_seen(int rank) const;
    std::string missing() const;
    bool first_present() const;

    Link& link_;
    const Handshake& handshake_;
    std::vector<Peer> peers_;         // by rank; made in the first wait that is long
    double begin_ = 0, listened_ = 0; // of this wait; seconds into it
    int called_ = 0;                  // times, in this wait
    bool shown_ = false;              // the same
    uint64_t calls_ = 0;              // in all
    bool over_ = false;               // some rank has given up
    std::string verdict_;
};

} // namespace rg::par
