// See roll_call.h.
#include "par/roll_call.h"

#include "core/text.h"

#include <algorithm>
#include <cstdio>

namespace rg::par {

namespace {

constexpr int kRollCallTag = 5;
// Seconds between two looks at the messages of all ranks.
constexpr double kListenEvery = 0.005;
// A wait that long calls, and one twice as long tells the user; a quarter of the limit where that is shorter. It calls
// again when three quarters of the limit are over, so that the verdict is not based on what was long ago.
constexpr double kCallAfter = 5, kCallAgain = 0.75;

} // namespace

RollCall::RollCall(Link& link, const Handshake& handshake) : link_(link), handshake_(handshake) {
    link_.set_roll_call(this);
}

RollCall::~RollCall() { link_.set_roll_call(nullptr); }

bool RollCall::look(const Operation& op, double begin, double waited, double limit) {
    if (begin != begin_) begin_ = begin, listened_ = 0, called_ = 0, shown_ = false;
    if (waited - listened_ < kListenEvery) return over_;
    listened_ = waited;
    listen();
    const double first = std::min(kCallAfter, limit / 4);
    if (called_ < 2 && waited > (called_ ? kCallAgain * limit : first)) {
        for (Peer& peer : peers_) peer.present = false;
        ++called_, ++calls_;
        send_all(call);
    }
    if (called_ == 1 && !shown_ && waited > 2 * first) {
        shown_ = true;
        if (const std::string late = missing(); !late.empty() && first_present())
            std::fputs(printable(cat("waiting for ", late, ": ", op.name, op.what.empty() ? "" : " ", op.what,
                                     " of step ", op.step, ", ", int(waited), " s so far"))
                           .append("\n")
                           .c_str(),
                       stderr);
    }
    return over_;
}

std::string RollCall::close() {
    if (!over_ && called_) {
        listen();
        verdict_ = missing();
        send_all(verdict, verdict_);
    }
    return verdict_;
}

void RollCall::send(int rank, Kind kind, uint64_t number, std::string_view text) {
    auto& out = peers_[size_t(rank)].out[kind];
    out.channel = {}; // an older message that was not taken is withdrawn
    out.message = {number, kind, {}};
    text.copy(out.message.text.data(), out.message.text.size() - 1);
    out.channel = link_.open_send(&out.message, sizeof out.message, rank, kRollCallTag);
    link_.start(out.channel);
}

void RollCall::send_all(Kind kind, std::string_view text) {
    for (int q = 0; q < link_.size(); ++q)
        if (q != link_.rank()) send(q, kind, calls_, text);
}

void RollCall::listen() {
    if (peers_.empty()) {
        peers_ = std::vector<Peer>(size_t(link_.size()));
        for (int q = 0; q < link_.size(); ++q) {
            if (q == link_.rank()) continue;
            Peer& peer = peers_[size_t(q)];
            peer.in = link_.open_receive(&peer.message, sizeof peer.message, q, kRollCallTag);
            link_.start(peer.in);
        }
    }
    size_t bytes = 0;
    const std::string before = handshake_.last_seen((link_.rank() + link_.size() - 1) % link_.size());
    for (int q = 0; q < link_.size(); ++q) {
        if (q == link_.rank()) continue;
        Peer& peer = peers_[size_t(q)];
        while (link_.test(peer.in, &bytes)) {
            const Message& message = peer.message;
            if (message.kind == call) send(q, answer, message.number, before);
            if (message.kind == answer && message.number == calls_)
                peer.present = true, peer.heard = message.text.data();
            if (message.kind == verdict) over_ = true, verdict_ = message.text.data();
            link_.start(peer.in);
        }
    }
}

/// As this rank knows it, or the one after that rank.
std::string RollCall::last_seen(int rank) const {
    const Peer& after = peers_[size_t((rank + 1) % link_.size())];
    const std::string seen = handshake_.last_seen(rank);
    return seen.empty() && after.present ? after.heard : seen;
}

std::string RollCall::missing() const {
    std::string names;
    for (int q = 0; q < link_.size(); ++q)
        if (q != link_.rank() && !peers_[size_t(q)].present)
            names += cat(names.empty() ? "" : ", ", link_.name_of(q), last_seen(q));
    return names;
}

/// One rank speaks for all that wait.
bool RollCall::first_present() const {
    return std::none_of(peers_.begin(), peers_.begin() + link_.rank(), [](const Peer& peer) { return peer.present; });
}

} // namespace rg::par
