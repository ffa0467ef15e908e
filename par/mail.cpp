// The transport is one stream of bytes per direction, cut into messages, if possible between letters. So if a new Mail
// receives messages that an old one left, it still finds the begin of a letter.
#include "par/mail.h"

namespace rg::par {

namespace {

constexpr size_t kChunk = 4096;     // short enough that MPI libraries send it at once, without asking the receiver
constexpr int kChunksAtOnce = 1024; // 4 MiB

} // namespace

Mail::Mail(Link& link, int peer, int tag) : link_(link), peer_(peer), tag_(tag), chunk_(kChunk) {
    from_peer_ = link_.open_receive(chunk_.data(), kChunk, peer_, tag_);
    link_.start(from_peer_);
}

void Mail::post(const Json& letter) {
    queued_ += letter.dump() + "\n";
    send_next_chunk();
}

void Mail::send_next_chunk() {
    size_t bytes = 0;
    while (sending_.empty() || link_.test(to_peer_, &bytes)) {
        to_peer_ = {};
        sending_ = queued_.substr(begin_, kChunk);
        if (const size_t line_end = sending_.rfind('\n'); line_end != std::string::npos) sending_.resize(line_end + 1);
        begin_ += sending_.size();
        if (begin_ > queued_.size() / 2) queued_.erase(0, std::exchange(begin_, 0));
        if (sending_.empty()) return;
        to_peer_ = link_.open_send(sending_.data(), sending_.size(), peer_, tag_);
        link_.start(to_peer_);
    }
}

std::vector<Json> Mail::poll() {
    send_next_chunk();
    size_t bytes = 0;
    size_t end = received_.size(); // no letter ends before
    receives_ = false;
    for (int chunks = 0; chunks < kChunksAtOnce && link_.test(from_peer_, &bytes); ++chunks) {
        receives_ = true;
        received_.append(chunk_.data(), bytes);
        link_.start(from_peer_);
    }
    std::vector<Json> letters;
    size_t begin = 0;
    for (; (end = received_.find('\n', end)) != std::string::npos; begin = ++end)
        letters.push_back(Json::parse(std::string_view(received_).substr(begin, end - begin), "mail"));
    received_.erase(0, begin);
    return letters;
}

} // namespace rg::par
