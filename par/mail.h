// Mail: JSON values of any length between two ranks. Sending and receiving never block.
//
// post() queues a letter and sends as much as possible. Later calls of poll() send the rest, and return letters that
// have arrived. So a rank in the middle of a training step does not delay its peer. A letter is one line of text, as in
// a journal (journal.h): JSON has no line breaks inside texts. Strings may hold any bytes; see Json::dump().
#pragma once

#include "core/json.h"
#include "par/link.h"

#include <string>

namespace rg::par {

/// Returns a letter: an object with a kind and a number, to which the sender may add members.
inline Json letter(const char* kind, int64_t number) { return Json::object().set("kind", kind).set("number", number); }
/// Returns true if a letter is of this kind.
inline bool is_kind(const Json& letter, std::string_view kind) { return letter.at("kind").as_string() == kind; }
/// Returns the number in a letter.
inline int64_t letter_number(const Json& letter) { return letter.at("number").as_int(); }

class Mail {
public:
    /// Each of the two ranks makes one Mail with the same tag. The link must outlive it. Destroy it only after both
    /// ranks have sent everything.
    Mail(Link& link, int peer, int tag);

    void post(const Json& letter);
    /// Returns the letters that have arrived, in order. Call it often. Each call reads a limited number of messages, so
    /// it returns even if the peer keeps writing.
    std::vector<Json> poll();
    /// Returns true if the last call of poll() has received something, and the letter is not complete yet.
    bool is_receiving() const { return receives_ && !received_.empty(); }
    /// Returns true if everything posted had been sent at the last call of post() or poll().
    bool all_sent() const { return queued_.empty() && sending_.empty(); }

private:
    void send_next_chunk();

    Link& link_;
    int peer_, tag_;
    std::string queued_; // posted letters, in order; bytes before begin_ have been sent or are in flight
    size_t begin_ = 0;
    std::string sending_;  // the message in flight; empty if none
    std::string received_; // the part of a letter that has arrived
    bool receives_ = false;
    std::vector<char> chunk_;
    Channel to_peer_, from_peer_;
};

} // namespace rg::par
