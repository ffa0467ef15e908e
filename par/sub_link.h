// Links between some of the ranks of another link, `whole`.
//
// `whole` carries the messages, with its own rank numbers, and with other tags than those of messages between all
// ranks. local_rank(), local_size() and core_sharers() are those of `whole`, because cores and GPUs are shared with
// ranks that are no members.
#pragma once

#include "par/mail.h"

#include <string>

namespace rg::par {

/// A link between some ranks of another one, such as those that compute. In a long wait, its members look for missing
/// ranks together with all ranks of `whole`, if that has a Group.
class SubLink : public Link {
public:
    /// `members` are ranks of `whole` in ascending order and include this one. Sends no message. `whole` and its Group
    /// must outlive this object. Meanwhile, `whole` must have no other SubLink with some of these members.
    SubLink(Link& whole, std::vector<int> members) : SubLink(whole, std::move(members), kFirstTag, true) {
        wait_observer_ = whole.wait_observer_;
    }

    void abort(int code) override { whole_.abort(code); }
    std::string name_of(int rank) const override { return whole_.name_of(members_[size_t(rank)]); }

protected:
    SubLink(Link& whole, std::vector<int> members, int first_tag, bool shares_memory);
    // Tags of messages, from first_tag_ on, are below kEndTag. kFirstTag leaves room for those of a Group of `whole`.
    static constexpr int kEndTag = 15, kFirstTag = 8;

    std::unique_ptr<SharedWindow> do_open_shared(size_t bytes_per_rank, std::span<const int> ranks) override;
    bool do_test(int slot, size_t* bytes) override { return whole_.test(channels_[size_t(slot)], bytes); }
    void check_peers() override { whole_.check_peers(); }

    Link& whole_;
    const std::vector<int> members_;
    const int first_tag_;

private:
    void do_open_channel(int slot, void* data) override;
    void do_start(int slot) override { whole_.start(channels_[size_t(slot)]); }
    void do_close(int slot) override { Channel closed = std::move(channels_[size_t(slot)]); }

    std::vector<Channel> channels_; // channels of `whole_`; the index is the slot of do_open_channel()
};

/// A SubLink for a task that runs on a group of ranks. A failure of one rank must neither end the program nor leave the
/// others waiting for it. So every rank tells all others by mail how it ended (finish()), and a rank that learns of a
/// failure while it waits throws PeerFailed. Memory is shared only if the group contains all ranks of `whole`;
/// otherwise sums use messages, since a rank that fails before the memory is opened would leave the others there.
class TaskLink final : public SubLink {
public:
    /// See SubLink. `number` is the same on all members. Messages of two links that exist at the same time are not
    /// mistaken for each other unless their numbers differ by a multiple of 2000.
    TaskLink(Link& whole, const std::vector<int>& members, int64_t number);

    /// Tells the other ranks how this one ended: without an error (empty text), with an error of its own, or with a
    /// PeerFailed (`echo` is true). Blocks until all other ranks have called finish(). All ranks return the same text,
    /// that of the lowest rank with an error of its own, or else of the lowest rank with a PeerFailed, or else "". If
    /// the group has several ranks, an own error ends with " (rank N)", where N counts in `whole`. Call it once on
    /// every rank, before the objects that use this link are destroyed. Throws RankMissing after the deadline.
    std::string finish(const std::string& error, bool echo);

private:
    struct Peer {
        std::optional<Mail> mail;  // none for this rank
        std::optional<Json> ended; // the letter that says how the rank ended
    };
    std::unique_ptr<SharedWindow> do_open_shared(size_t bytes_per_rank, std::span<const int> ranks) override;
    bool do_test(int slot, size_t* bytes) override;
    void check_peers() override;
    void serve();

    std::vector<Peer> peers_; // the index is the rank in this link
    bool failed_ = false;     // known after finish(): some rank of the group failed
    uint64_t polls_ = 0;
};

} // namespace rg::par
