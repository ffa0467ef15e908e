// Translates ranks and tags, and exchanges the letters that tell the ranks of a group how each of them ended: kind
// finished, failed (an error of its own) or echoed (a PeerFailed), with the text of the error.
#include "par/sub_link.h"

#include <algorithm>
#include <mutex>

namespace rg::par {

namespace {

// Tags of tasks lie above all others. Each task has kTagsEach tags, the last one for mail. Task n + kTasks has the tags
// of task n again, since MPI guarantees tags only up to 32767.
constexpr int kFirstTaskTag = 64, kTagsEach = 16, kTasks = 2000;
// Number of polls for a message before each check for mail. For each other rank, a check costs as much as one poll.
constexpr uint64_t kPollsPerCheck = 64;

/// Keeps the memory of a window until the process ends.
void keep_until_exit(std::shared_ptr<void> memory) {
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

SubLink::SubLink(Link& whole, std::vector<int> members, int first_tag, bool shares_memory)
    : Link(place_of(members, whole.rank()), int(members.size()), whole.local_rank(), whole.local_size()),
      whole_(whole),
      members_(std::move(members)),
      first_tag_(first_tag) {
    set_deadline(whole.deadline());
    set_core_sharers(whole.core_sharers());
    if (!shares_memory || whole.node_of_.empty()) return;
    std::vector<int> node_of;
    for (const int member : members_) node_of.push_back(whole.node_of_[size_t(member)]);
    set_nodes(std::move(node_of));
}

std::unique_ptr<SharedWindow> SubLink::do_open_shared(size_t bytes_per_rank, std::span<const int> ranks) {
    std::vector<int> of_whole;
    for (const int rank : ranks) of_whole.push_back(members_[size_t(rank)]);
    return whole_.do_open_shared(bytes_per_rank, of_whole);
}

void SubLink::do_open_channel(int i, void* data) {
    const ChannelState& s = slot(i);
    RG_CHECK(s.tag >= 0 && s.tag < kEndTag, "sub-link: expected a tag in 0..", kEndTag - 1, ", got ", s.tag);
    if (channels_.size() <= size_t(i)) channels_.resize(size_t(i) + 1);
    const int peer = members_[size_t(s.peer)], tag = first_tag_ + s.tag;
    channels_[size_t(i)] =
        s.send ? whole_.open_send(data, s.bytes, peer, tag) : whole_.open_receive(data, s.bytes, peer, tag);
}

TaskLink::TaskLink(Link& whole, const std::vector<int>& members, int64_t number)
    : SubLink(whole, members, kFirstTaskTag + int(number % kTasks) * kTagsEach, int(members.size()) == whole.size()),
      peers_(members.size()) {
    static_assert(kTagsEach == kEndTag + 1);
    for (const int q : others()) peers_[size_t(q)].mail.emplace(whole_, members_[size_t(q)], first_tag_ + kEndTag);
}

std::string TaskLink::finish(const std::string& error, bool echo) {
    const Operation op{"task", "end on all ranks of its group"};
    Peer& own = peers_[size_t(rank())];
    own.ended = letter(error.empty() ? "finished" : echo ? "echoed" : "failed", 0).set("error", error);
    for (const int q : others()) peers_[size_t(q)].mail->post(*own.ended);
    std::string first, echoed; // each from the lowest rank that has one, so that all ranks return the same text
    for (int q = 0; q < size(); ++q) {
        const Peer& peer = peers_[size_t(q)];
        const auto done = [&] { return serve(), peer.ended && (!peer.mail || peer.mail->all_sent()); };
        whole_.wait_until(done, members_[size_t(q)], "to tell how it ended, and to be told", op);
        const std::string& text = peer.ended->at("error").as_string();
        if (is_kind(*peer.ended, "failed") && first.empty())
            first = size() == 1 ? text : cat(text, " (rank ", members_[size_t(q)], ")");
        if (is_kind(*peer.ended, "echoed") && echoed.empty()) echoed = text;
    }
    if (first.empty()) first = echoed;
    failed_ = !first.empty();
    // All other messages were sent before the letters. So they should have arrived by now, and can be discarded.
    for (const int q : others())
        for (int tag = 0; tag < kEndTag && failed_; ++tag) whole_.discard(members_[size_t(q)], first_tag_ + tag);
    return first;
}

std::unique_ptr<SharedWindow> TaskLink::do_open_shared(size_t bytes_per_rank, std::span<const int> ranks) {
    std::unique_ptr<SharedWindow> window = SubLink::do_open_shared(bytes_per_rank, ranks);
    if (!window) return nullptr;
    // After a failure, keeps the window until the process ends: freeing it is collective and would block, because the
    // failed rank may have dropped its own window without freeing it.
    const auto release = [this, memory = std::move(window->memory)](void*) {
        if (failed_) keep_until_exit(memory);
    };
    window->memory = std::shared_ptr<void>(nullptr, release);
    return window;
}

bool TaskLink::do_test(int i, size_t* bytes) {
    if (SubLink::do_test(i, bytes)) return true;
    if (++polls_ % kPollsPerCheck == 0) check_peers();
    return false;
}

void TaskLink::check_peers() {
    SubLink::check_peers();
    serve();
    // A rank that ended without an error is no reason to stop: its last message may still be in flight.
    for (const Peer& peer : peers_)
        if (peer.ended && !is_kind(*peer.ended, "finished")) throw PeerFailed(peer.ended->at("error").as_string());
}

/// Reads and sends mail.
void TaskLink::serve() {
    for (const int q : others())
        for (Json& letter : peers_[size_t(q)].mail->poll()) peers_[size_t(q)].ended = std::move(letter);
}

} // namespace rg::par
