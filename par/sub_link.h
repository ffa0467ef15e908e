// SubLink: a link between some of the ranks of another link, for a task that runs on this group of ranks.
//
// The other link (`whole`) carries the messages, with the rank numbers of `whole` and with tags of this sub-link. So
// messages of two sub-links are not mistaken for each other, unless their `number`s differ by a multiple of 2000. A
// failure of one rank must neither end the program nor leave the others waiting for it. So every rank tells all others
// by mail how it ended (finish()), and a rank that learns of a failure while it waits throws PeerFailed. local_rank(),
// local_size() and core_sharers() are those of `whole`, because cores and GPUs are shared with other groups. Memory is
// shared only if the group contains all ranks of `whole`; otherwise sums use messages.
#pragma once

#include "par/mail.h"

#include <string>

namespace rg::par {

class SubLink final : public Link {
public:
    /// `members` are ranks of `whole` in ascending order and include this one. `number` is the same on all members and
    /// differs between sub-links. Sends no message. `whole` must outlive this object.
    SubLink(Link& whole, std::vector<int> members, int64_t number);

    /// Tells the other ranks how this one ended: without an error (empty text), with an error of its own, or with a
    /// PeerFailed (`echo` is true). Blocks until all other ranks have called finish(). All ranks return the same text,
    /// that of the lowest rank with an error of its own, or else of the lowest rank with a PeerFailed, or else "". If
    /// the group has several ranks, an own error ends with " (rank N)", where N counts in `whole`. Call it once on
    /// every rank, before the objects that use this link are destroyed. Throws RankMissing after the deadline.
    std::string finish(const std::string& error, bool echo);

    void abort(int code) override { whole_.abort(code); }
    std::string name_of(int rank) const override { return whole_.name_of(members_[size_t(rank)]); }

private:
    struct Peer {
        std::optional<Mail> mail;  // none for this rank
        std::optional<Json> ended; // the letter that says how the rank ended
    };
    std::unique_ptr<SharedWindow> do_open_shared(size_t bytes_per_rank) override;
    void do_open_channel(int slot, void* data) override;
    void do_start(int slot) override;
    bool do_test(int slot, size_t* bytes) override;
    void do_close(int slot) override;
    void check_peers() override;
    void serve();

    Link& whole_;
    std::vector<int> members_;
    int first_tag_;
    std::vector<Channel> channels_; // channels of `whole_`; the index is the slot of do_open_channel()
    std::vector<Peer> peers_;       // the index is the rank in this link
    bool failed_ = false;           // known after finish(): some rank of the group failed
    uint64_t polls_ = 0;
};

} // namespace rg::par
