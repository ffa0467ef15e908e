// A letter in the stream: its kind (1 byte), task and length of the text (8 bytes each), the text.
#include "par/mail.h"

#include <cstring>

namespace rg::par {

namespace {

constexpr int kMailTag = 32;
constexpr size_t kPiece = 4096, kHead = 17; // short enough that MPI libraries send it without asking the receiver
constexpr int kPiecesAtOnce = 16;

template <class T>
void append(std::string& out, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out.append(bytes, sizeof value);
}

template <class T>
T read(const std::string& in, size_t at) {
    T value;
    std::memcpy(&value, in.data() + at, sizeof value);
    return value;
}

} // namespace

Mail::Mail(Link& link, int peer) : link_(link), peer_(peer), piece_(kPiece) {
    in_ = link_.open_receive(piece_.data(), kPiece, peer_, kMailTag);
    link_.start(in_);
}

void Mail::post(const Letter& letter) {
    append(waiting_, letter.kind);
    append(waiting_, letter.task);
    append(waiting_, uint64_t(letter.text.size()));
    waiting_ += letter.text;
    send();
}

void Mail::send() {
    size_t bytes = 0;
    while (sending_.empty() || link_.test(out_, &bytes)) {
        out_ = {};
        sending_ = waiting_.substr(begin_, kPiece);
        begin_ += sending_.size();
        if (begin_ > waiting_.size() / 2) waiting_.erase(0, std::exchange(begin_, 0));
        if (sending_.empty()) return;
        out_ = link_.open_send(sending_.data(), sending_.size(), peer_, kMailTag);
        link_.start(out_);
    }
}

std::vector<Letter> Mail::poll() {
    send();
    size_t bytes = 0;
    for (int pieces = 0; pieces < kPiecesAtOnce && link_.test(in_, &bytes); ++pieces) {
        arrived_.append(piece_.data(), bytes);
        link_.start(in_);
    }
    std::vector<Letter> letters;
    size_t begin = 0;
    while (arrived_.size() - begin >= kHead) {
        const auto length = size_t(read<uint64_t>(arrived_, begin + 9));
        if (arrived_.size() - begin - kHead < length) break;
        letters.push_back(
            {arrived_[begin], read<int64_t>(arrived_, begin + 1), arrived_.substr(begin + kHead, length)});
        begin += kHead + length;
    }
    arrived_.erase(0, begin);
    return letters;
}

} // namespace rg::par
