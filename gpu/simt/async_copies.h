// The asynchronous copies that one CUDA thread has under way.
//
// They take place as late as the thread's waits allow, so that whoever reads the destination without a wait, or
// without a barrier after another thread's wait, finds NaN there. Run eagerly instead, a copy into a buffer that is
// still being read shows.
#pragma once

#include "gpu/simt/executor.h"
#include "gpu/simt/sanitizers.h"

#include <cstring>
#include <deque>

namespace rg::simt {

class AsyncCopies {
public:
    struct Copy {
        void* to;
        const void* from;
        int bytes, source_bytes; // the rest is zeros
        Site site;
    };

    void issue(const Copy& copy, bool at_once) {
        if (at_once) carry_out(copy);
        open_.push_back(copy);
        done_early_ = at_once;
    }
    void commit() {
        groups_.push_back(std::move(open_));
        open_.clear();
    }
    /// The oldest groups, until at most `pending` are left.
    void wait(int pending) {
        for (; int(groups_.size()) > pending; groups_.pop_front())
            if (!done_early_)
                for (const Copy& copy : groups_.front()) carry_out(copy);
    }
    bool pending() const {
        for (const auto& group : groups_)
            if (!group.empty()) return true;
        return !open_.empty();
    }
    Site first_site() const {
        for (const auto& group : groups_)
            if (!group.empty()) return group.front().site;
        return open_.front().site;
    }
    void clear() {
        groups_.clear();
        open_.clear();
    }

private:
    static void carry_out(const Copy& copy) {
        const size_t source_bytes = size_t(copy.source_bytes);
        note_read(copy.from, source_bytes);
        note_write(copy.to, size_t(copy.bytes));
        std::memcpy(copy.to, copy.from, source_bytes);
        std::memset(static_cast<std::byte*>(copy.to) + source_bytes, 0, size_t(copy.bytes) - source_bytes);
    }

    std::vector<Copy> open_;
    std::deque<std::vector<Copy>> groups_;
    bool done_early_ = false;
};

} // namespace rg::simt
