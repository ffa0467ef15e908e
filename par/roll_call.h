// RollCall: finds out which rank is missing when a wait takes long.
//
// A rank only notices that its neighbour is late, but that neighbour may itself be waiting for another rank. So a rank
// that has waited for a while sends a short call to all others, and every rank that is in a long wait too answers. A
// rank that does not answer has stopped, has died or is still computing. After some seconds a line on standard error
// names it. At the deadline, the first rank whose wait ends tells all others which ranks are missing. The other waits
// then fail with these names instead of the neighbour's.
//
// An answer also says in which operation the answering rank last heard from its previous rank (Handshake). Unless all
// ranks share memory, nobody else knows how far a missing rank has come.
//
// Letters are JSON objects: call, answer (with the text of Handshake::last_operation()), missing (with the names of the
// missing ranks). Short waits send nothing. A message may be read long after it was sent, so an answer repeats the
// number of its call.
#pragma once

#include "par/mail.h"

#include <optional>

namespace rg::par {

class RollCall final : public WaitObserver {
public:
    /// The link calls must_fail() during long waits of a Group's operations until this object is destroyed, unless it
    /// has an observer already (SubLink). Both arguments must outlive it.
    RollCall(Link& link, const Handshake& handshake);
    ~RollCall();
    RollCall(const RollCall&) = delete;
    RollCall& operator=(const RollCall&) = delete;

    /// Called from a wait that began at clock time `begin`, has taken `waited` seconds and may take `limit` seconds.
    /// Returns true if another rank's wait has failed; this one should then fail too.
    bool must_fail(const Operation& op, double begin, double waited, double limit) override;
    /// Called when a wait has failed. Returns the names of the missing ranks, or "" if none is known. Sends the names
    /// to all other ranks, if this rank has sent a call in this wait and had read no other rank's names before.
    std::string report_missing() override;

private:
    struct Peer {
        std::optional<Mail> mail;   // none for this rank
        bool present = false;       // true if it has answered this rank's last call
        std::string last_operation; // from its answer: the last operation in which it heard from its previous rank
    };
    void send_to_others(const char* kind, const std::string& text = {});
    void listen();
    std::string last_operation(int rank) const;
    std::string missing() const;
    bool first_present() const;

    Link& link_;
    const Handshake& handshake_;
    std::vector<Peer> peers_;                 // the index is the rank; filled in the first long wait
    double wait_begin_ = 0, last_listen_ = 0; // current wait: clock time of its begin; seconds from there to listen()
    int wait_calls_ = 0;                      // calls sent in the current wait
    double last_call_ = 0;                    // seconds from the begin of the wait to its last call
    bool warned_ = false;                     // this wait has written its line on stderr, or left it to another rank
    int64_t all_calls_ = 0;                   // calls sent in all waits; answers repeat this number
    bool some_rank_gave_up_ = false;          // a wait of another rank has failed
    std::string missing_ranks_;
};

} // namespace rg::par
