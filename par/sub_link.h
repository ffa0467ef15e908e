// SubLink: a link of some ranks of another link, for a task that runs on a group of them.
//
// Messages go over the link below with ranks translated and tags of their own, so that they meet neither those of
// other groups nor those that a failed group left behind. A failure of one rank must not end the program, nor leave the
// others waiting for it: every rank tells all others how it ended (finish()), and whoever waits meanwhile and hears of
// a failure gets a PeerFailed. Place on the machine is that of the link below, as cores and GPUs are shared with the
// other groups. Memory is shared only where the group is everybody: elsewhere sums go by messages.
#pragma once

#include "par/link.h"

#include <string>

namespace rg::par {

class SubLink final : public Link {
public:
    /// `members`: ranks of `whole`, ascending, this one among them. `number`: the same on all members, another one for
    /// every sub-link. No message is needed for it. `whole` outlives this.
    SubLink(Link& whole, std::vector<int> members, int64_t number);

    /// How this rank ended: well (no text), by an error of its own, or by the echo of another's. Waits for all others,
    /// and gives the error that began it, with the rank of the whole where there are several, or none. Call it once,
    /// at the end, on every rank, before what uses this link goes. Error: a rank does not answer within the deadline.
    std::string finish(const std::string& error, bool echo);

    void abort(int code) override { whole_.abort(code); }
    std::string name_of(int rank) const override { return whole_.name_of(members_[size_t(rank)]); }
    std::unique_ptr<SharedWindow> open_shared(size_t bytes_per_rank) override;

private:
    static constexpr size_t kNoticeBytes = 1024;
    struct Notice { // between this rank and another one; ends with a zero
        std::array<char, kNoticeBytes> mine{}, theirs{};
        Channel out, in;
        bool come = false;
    };
    void do_open(int slot, void* data) override;
    void do_start(int slot) override;
    bool do_test(int slot, size_t* bytes) override;
    void do_close(int slot) override;
    void check_peers() override;

    Link& whole_;
    std::vector<int> members_;
    int first_tag_;
    std::vector<Channel> channels_; // by slot
    std::vector<Notice> notices_;   // by rank
    bool failed_ = false;           // some rank did
    uint64_t polls_ = 0;
};

} // namespace rg::par
