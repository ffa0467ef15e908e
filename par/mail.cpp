// Format of a letter in the stream: kind, task and length of the text (8 bytes each), text.
#include "ringgrad/par/mail.h"

#include <cstring>

namespace rg::par {

namespace {

constexpr int kMailTag = 32;
constexpr size_t kChunk = 4096; // short enough that MPI libraries send it at once, without asking the receiver
constexpr int kChunksAtOnce = 16;

/// All fields have 8 bytes, so there is no padding between them, whose bytes would be undefined.
struct Header {
    int64_t kind, task;
    uint64_t length;
};

} // namespace

Mail::Mail(Link& link, int peer) : link_(link), peer_(peer), chunk_(kChunk) {
    from_peer_ = link_.open_receive(chunk_.data(), kChunk, peer_, kMailTag);
    link_.start(from_peer_);
}

void Mail::post(const Letter& letter) {
    const Header header{letter.kind, letter.task, letter.text.size()};
    queued_.append(reinterpret_cast<const char*>(&header), sizeof header);
    queued_ += letter.text;
    send();
}

void Mail::send() {
    size_t bytes = 0;
    while (sending_.empty() || link_.test(to_peer_, &bytes)) {
        to_peer_ = {};
        sending_ = queued_.substr(begin_, kChunk);
        begin_ += sending_.size();
        if (begin_ > queued_.size() / 2) queued_.erase(0, std::exchange(begin_, 0));
        if (sending_.empty()) return;
        to_peer_ = link_.open_send(sending_.data(), sending_.size(), peer_, kMailTag);
        link_.start(to_peer_);
    }
}

std::vector<Letter> Mail::poll() {
    send();
    size_t bytes = 0;
    for (int chunks = 0; chunks < kChunksAtOnce && link_.test(from_peer_, &bytes); ++chunks) {
        received_.append(chunk_.data(), bytes);
        link_.start(from_peer_);
    }
    std::vector<Letter> letters;
    size_t begin = 0;
    for (Header header; received_.size() - begin >= sizeof header; begin += sizeof header + header.length) {
        std::memcpy(&header, received_.data() + begin, sizeof header);
        if (received_.size() - begin - sizeof header < header.length) break;
        letters.push_back({char(header.kind), header.task, received_.substr(begin + sizeof header, header.length)});
    }
    received_.erase(0, begin);
    return letters;
}

} // namespace rg::par
