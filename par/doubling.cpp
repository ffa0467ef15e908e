// Recursive doubling (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
// MPICH", 2005), with the ranks beyond a power of two folded in.
//
// p = 6: the largest power of two is 4, so 2 ranks are too many. Ranks 0 2 give their vector to 1 3 and wait; the
// four that remain (1 3 4 5, renumbered 0 1 2 3) exchange with the number that differs in bit 0, then bit 1:
//
//   fold          0 -> 1   2 -> 3   .   .
//   bit 0              1 <-> 3      4 <-> 5
//   bit 1              1 <-> 4      3 <-> 5
//   unfold        1 -> 0   3 -> 2
//
// After the round of bit k, groups of 2^(k+1) hold equal sums. Both partners add the same two numbers, and a + b has
// the bits of b + a, so by induction all ranks hold the same bits, and the order depends on p alone.
// Cost: log2 p rounds (two more when folding), all bytes and all additions in each.

#include "par/doubling.h"

#include <bit>
#include <cstring>

namespace rg::par {

namespace {
constexpr int kDataTag = 3;
}

DoublingPlan::DoublingPlan(Link& link, size_t bytes) : link_(link), bytes_(bytes), sum_(bytes), arrived_(bytes) {
    const int p = link.size(), power = int(std::bit_floor(unsigned(p))), extra = p - power, r = link.rank();
    const bool folded = r < 2 * extra;
    if (folded && r % 2 == 0) { // give, and take the finished sum
        add_round(r + 1, true, false, false);
        add_round(r + 1, false, true, false);
        return;
    }
    if (folded) add_round(r - 1, false, true, true);
    const int number = folded ? r / 2 : r - extra;
    for (int bit = 1; bit < power; bit *= 2) {
        const int other = number ^ bit;
        add_round(other < extra ? 2 * other + 1 : other + extra, true, true, true);
    }
    if (folded) add_round(r - 1, true, false, false);
}

void DoublingPlan::add_round(int peer, bool sends, bool receives, bool adds) {
    Round round{peer, sends, receives, adds, {}, {}};
    if (sends) round.out = link_.open_send(sum_.data(), bytes_, peer, kDataTag);
    if (receives) round.in = link_.open_receive(adds ? arrived_.data() : sum_.data(), bytes_, peer, kDataTag);
    rounds_.push_back(std::move(round));
}

void DoublingPlan::run(const Vector& vector, Handshake& handshake, const Operation& op) {
    if (bytes_) std::memcpy(sum_.data(), vector.data, bytes_);
    for (size_t i = 0; i < rounds_.size(); ++i) {
        Round& round = rounds_[i];
        if (round.sends) link_.start(round.out);
        if (i == 0) handshake.finish(op); // beside the first message
        if (round.receives) {
            link_.start(round.in);
            const size_t bytes = link_.wait(round.in, op, int(i));
            RG_CHECK(bytes == bytes_, op.name, " ", op.what, ": expected ", bytes_, " bytes from rank ", round.peer,
                     ", got ", bytes, " (rank ", link_.rank(), ", round ", i, ", operation ", op.number, ")");
        }
        if (round.sends) link_.wait(round.out, op, int(i)); // before the sum changes
        if (round.adds) add_into(vector.type, sum_.data(), arrived_.data(), vector.count);
    }
    if (bytes_) std::memcpy(vector.data, sum_.data(), bytes_);
}

} // namespace rg::par
