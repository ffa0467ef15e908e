// Sends calls and answers, and collects the names of the missing ranks. See roll_call.h.
#include "par/roll_call.h"

#include "core/text.h"

#include <algorithm>
#include <cstdio>

namespace rg::par {

namespace {

constexpr int kRollCallTag = 5;
// Least seconds between two checks for messages during a wait.
constexpr double kListenEvery = 0.005;
// A waiting rank sends its first call after kCallAfter seconds, or after a quarter of the wait's limit if that is
// shorter. If answers are still missing at twice that time, the lowest waiting rank names the missing ranks on standard
// error. Each waiting rank sends a second call after the fraction kCallAgain of the limit, so that the names at the
// deadline rest on recent answers.
constexpr double kCallAfter = 5, kCallAgain = 0.75;

} // namespace

RollCall::RollCall(Link& link, const Handshake& handshake) : link_(link), handshake_(handshake) {
    if (!link_.wait_observer_) link_.wait_observer_ = this;
}

RollCall::~RollCall() {
    if (link_.wait_observer_ == this) link_.wait_observer_ = nullptr;
}

bool RollCall::must_fail(const Operation& op, double begin, double waited, double limit) {
    if (begin != wait_begin_) wait_begin_ = begin, last_listen_ = 0, wait_calls_ = 0, warned_ = false;
    if (waited - last_listen_ < kListenEvery) return some_rank_gave_up_;
    last_listen_ = waited;
    listen();
    const double first = std::min(kCallAfter, limit / 4);
    if (wait_calls_ < 2 && waited > (wait_calls_ ? kCallAgain * limit : first)) {
        for (Peer& peer : peers_) peer.present = false;
        ++wait_calls_, ++all_calls_, last_call_ = waited;
        send_to_others("call");
    }
    if (wait_calls_ == 1 && !warned_ && waited > last_call_ + first) {
        warned_ = true;
        if (const std::string missing_ranks = missing(); !missing_ranks.empty() && first_present())
            std::fputs(printable(cat("waiting for ", missing_ranks, ": ", op.name, op.what.empty() ? "" : " ", op.what,
                                     " of step ", op.step, ", ", int(waited), " s so far"))
                           .append("\n")
                           .c_str(),
                       stderr);
    }
    return some_rank_gave_up_;
}

std::string RollCall::report_missing() {
    if (!some_rank_gave_up_ && wait_calls_) {
        listen();
        missing_ranks_ = missing();
        send_to_others("missing", missing_ranks_);
    }
    return missing_ranks_;
}

void RollCall::send_to_others(const char* kind, const std::string& text) {
    for (Peer& peer : peers_)
        if (peer.mail) peer.mail->post(letter(kind, all_calls_).set("text", text));
}

void RollCall::listen() {
    if (peers_.empty()) {
        peers_ = std::vector<Peer>(size_t(link_.size()));
        for (const int q : link_.others()) peers_[size_t(q)].mail.emplace(link_, q, kRollCallTag);
    }
    const std::string last_of_previous = handshake_.last_operation(link_.previous());
    for (Peer& peer : peers_) {
        if (!peer.mail) continue;
        for (const Json& received : peer.mail->poll()) {
            const std::string& text = received.at("text").as_string();
            const int64_t number = letter_number(received);
            if (is_kind(received, "call")) peer.mail->post(letter("answer", number).set("text", last_of_previous));
            if (is_kind(received, "answer") && number == all_calls_) peer.present = true, peer.last_operation = text;
            if (is_kind(received, "missing")) some_rank_gave_up_ = true, missing_ranks_ = text;
        }
    }
}

/// Returns the last operation of `rank` that this rank's handshake knows, or else the one in the answer of the rank
/// after `rank`.
std::string RollCall::last_operation(int rank) const {
    const Peer& after = peers_[size_t((rank + 1) % link_.size())];
    const std::string seen = handshake_.last_operation(rank);
    return seen.empty() && after.present ? after.last_operation : seen;
}

std::string RollCall::missing() const {
    std::string names;
    for (const int q : link_.others())
        if (!peers_[size_t(q)].present) names += cat(names.empty() ? "" : ", ", link_.name_of(q), last_operation(q));
    return names;
}

/// Returns true if no lower rank has answered the last call: this rank is then the lowest that is known to wait. Only
/// such a rank writes the line on standard error.
bool RollCall::first_present() const {
    return std::none_of(peers_.begin(), peers_.begin() + link_.rank(), [](const Peer& peer) { return peer.present; });
}

} // namespace rg::par
