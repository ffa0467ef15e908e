// Format of a letter in the stream: kind (1 byte), task and length of the text (8 bytes each), text.
#include "par/mail.h"

#include <cstring>

namespace rg::par {

namespace {

constexpr int kMailTag = 32;
constexpr size_t kChunk = 4096, kHeader = 17; // MPI libraries send such short chunks eagerly, without a handshake
constexpr int kChunksAtOnce = 16;

template <class T>
void append(std::string& out, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out.append(bytes, sizeof value);
}

template <class T>
T read(const std::string& in, size_t position) {
    T value;
    std::memcpy(&value, in.data() + position, sizeof value);
    return value;
}

} // namespace

Mail::Mail(Link& link, int peer) : link_(link), peer_(peer), chunk_(kChunk) {
    from_peer_ = link_.open_receive(chunk_.data(), kChunk, peer_, kMailTag);
    link_.start(from_peer_);
}

void Mail::post(const Letter& letter) {
    append(queued_, letter.kind);
    append(queued_, letter.task);
    append(queued_, uint64_t(letter.text.size()));
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
    while (received_.size() - begin >= kHeader) {
        const auto length = size_t(read<uint64_t>(received_, begin + 9));
        if (received_.size() - begin - kHeader < length) break;
        letters.push_back(
            {received_[begin], read<int64_t>(received_, begin + 1), received_.substr(begin + kHeader, length)});
        begin += kHeader + length;
    }
    received_.erase(0, begin);
    return letters;
}

} // namespace rg::par
