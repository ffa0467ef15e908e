// Translates ranks and tags, and exchanges the notices that tell the ranks of a group how each of them ended.
#include "ringgrad/par/sub_link.h"

#include <algorithm>
#include <mutex>

namespace rg::par {

namespace {

// Tags of sub-links lie above all others. Each sub-link has kTagsEach tags; sub-link n + kLinks has the tags of
// sub-link n again, since MPI guarantees tags only up to 32767.
constexpr int kFirstTag = 64, kTagsEach = 16, kNoticeTag = kTagsEach - 1, kLinks = 2000;
// Number of polls for a message per check for notices: for each other rank, a check costs as much as such a poll.
constexpr uint64_t kPollsPerCheck = 64;
// First byte of a notice: the sender had no error, an error of its own, or a PeerFailed.
constexpr char kNoError = '.', kFailed = '!', kEchoed = '~';

/// Keeps the memory of a window until the process ends.
void keep(std::shared_ptr<void> memory) {
    static std::mutex mutex;
    static auto* const memories = new std::vector<std::shared_ptr<void>>;
    const std::lock_guard lock(mutex);
    memories->push_back(std::move(memory));
}

int place_of(const std::vector<int>& members, int rank) {
    const auto member = std::find(members.begin(), members.end(), rank);
    RG_CHECK(member != members.end(), "sub-link: expected rank ", rank, " among its members");
    return int(member - members.begin());
}

} // namespace

SubLink::SubLink(Link& whole, std::vector<int> members, int64_t number)
    : Link(place_of(members, whole.rank()), int(members.size()), whole.local_rank(), whole.local_size()),
      whole_(whole),
      members_(std::move(members)),
      first_tag_(kFirstTag + int(number % kLinks) * kTagsEach),
      notices_(members_.size()) {
    set_deadline(whole.deadline());
    set_core_sharers(whole.core_sharers());
    if (size() == whole.size()) set_node(whole.node());
    for (const int q : others()) {
        Notice& notice = notices_[size_t(q)];
        notice.in =
            whole_.open_receive(notice.received.data(), kNoticeBytes, members_[size_t(q)], first_tag_ + kNoticeTag);
        whole_.start(notice.in);
    }
}

std::string SubLink::finish(const std::string& error, bool echo) {
    const Operation op{"task", "end on all ranks of its group", kNoticeBytes};
    const char kind = error.empty() ? kNoError : echo ? kEchoed : kFailed;
    for (const int q : others()) {
        Notice& notice = notices_[size_t(q)];
        notice.sent[0] = kind;
        error.copy(notice.sent.data() + 1, kNoticeBytes - 2);
        notice.out = whole_.open_send(notice.sent.data(), kNoticeBytes, members_[size_t(q)], first_tag_ + kNoticeTag);
        whole_.start(notice.out);
    }
    const auto with_rank = [&](std::string_view text, int q) {
        return size() == 1 ? std::string(text) : cat(text, " (rank ", members_[size_t(q)], ")");
    };
    std::string first, echoed; // each from the lowest rank that has one, so that all ranks return the same text
    for (int q = 0; q < size(); ++q) {
        Notice& notice = notices_[size_t(q)];
        if (q != rank()) whole_.wait(notice.in, op);
        const char rank_kind = q == rank() ? kind : notice.received[0];
        const std::string_view text = q == rank() ? std::string_view(error) : notice.received.data() + 1;
        if (rank_kind == kFailed && first.empty()) first = with_rank(text, q);
        if (rank_kind == kEchoed && echoed.empty()) echoed = text;
    }
    for (const int q : others()) whole_.wait(notices_[size_t(q)].out, op);
    if (first.empty()) first = echoed;
    failed_ = !first.empty();
    // All other messages were sent before the notices. So they should have arrived by now, and can be discarded.
    for (const int q : others())
        for (int tag = 0; tag < kNoticeTag && failed_; ++tag) whole_.discard(members_[size_t(q)], first_tag_ + tag);
    return first;
}

std::unique_ptr<SharedWindow> SubLink::do_open_shared(size_t bytes_per_rank) {
    std::unique_ptr<SharedWindow> window = whole_.do_open_shared(bytes_per_rank);
    if (!window) return nullptr;
    // After a failure, keeps the window until the process ends: freeing it is collective and would block, because the
    // failed rank may have dropped its own window without freeing it.
    const auto release = [this, memory = std::move(window->memory)](void*) {
        if (failed_) keep(memory);
    };
    window->memory = std::shared_ptr<void>(nullptr, release);
    return window;
}

void SubLink::do_open(int i, void* data) {
    const Slot& s = slot(i);
    RG_CHECK(s.tag >= 0 && s.tag < kNoticeTag, "sub-link: expected a tag in 0..", kNoticeTag - 1, ", got ", s.tag);
    if (channels_.size() <= size_t(i)) channels_.resize(size_t(i) + 1);
    const int peer = members_[size_t(s.peer)], tag = first_tag_ + s.tag;
    channels_[size_t(i)] =
        s.send ? whole_.open_send(data, s.bytes, peer, tag) : whole_.open_receive(data, s.bytes, peer, tag);
}

void SubLink::do_start(int i) { whole_.start(channels_[size_t(i)]); }

bool SubLink::do_test(int i, size_t* bytes) {
    if (whole_.test(channels_[size_t(i)], bytes)) return true;
    if (++polls_ % kPollsPerCheck == 0) check_peers();
    return false;
}

void SubLink::do_close(int i) { Channel closed = std::move(channels_[size_t(i)]); }

void SubLink::check_peers() {
    whole_.check_peers();
    for (const int q : others()) {
        Notice& notice = notices_[size_t(q)];
        size_t bytes = 0;
        if (!notice.arrived && whole_.test(notice.in, &bytes)) notice.arrived = true;
        // A rank that ended without an error is no reason to stop: its last message may still be in flight.
        if (notice.arrived && notice.received[0] != kNoError) throw PeerFailed(notice.received.data() + 1);
    }
}

} // namespace rg::par
