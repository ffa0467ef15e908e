// Recursive doubling (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005). If the number of ranks p is not a power of two, some ranks are folded into others.
//
// p = 6: the largest power of two is 4, so there are 2 ranks too many. Ranks 0 and 2 send their vectors to 1 and 3, and
// wait. The other four ranks (1 3 4 5) are numbered 0 1 2 3. There is one round for each bit of these numbers. In it,
// each rank exchanges vectors with the rank whose number differs in that bit:
//
//   fold          0 -> 1   2 -> 3   .   .
//   bit 0              1 <-> 3      4 <-> 5
//   bit 1              1 <-> 4      3 <-> 5
//   unfold        1 -> 0   3 -> 2
//
// After the round of bit k, groups of 2^(k+1) numbered ranks hold equal sums. Both partners add the same two numbers,
// and a + b has the bits of b + a, unless both are NaN. So by induction all ranks hold the same bits except those of
// NaN. The order of the additions depends only on p. Cost: log2 p rounds, rounded down, that each send and add the
// whole vector. Folding takes two more rounds.

#include "ringgrad/par/doubling.h"

#include <bit>
#include <cstring>

namespace rg::par {

namespace {
constexpr int kDoublingTag = 3;
}

DoublingPlan::DoublingPlan(Link& link, size_t bytes) : link_(link), bytes_(bytes), sum_(bytes), received_(bytes) {
    const int p = link.size(), power = int(std::bit_floor(unsigned(p))), extra = p - power, r = link.rank();
    const bool folded = r < 2 * extra;
    if (folded && r % 2 == 0) { // send the vector, then receive the finished sum
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
    if (sends) round.out = link_.open_send(sum_.data(), bytes_, peer, kDoublingTag);
    if (receives) round.in = link_.open_receive(adds ? received_.data() : sum_.data(), bytes_, peer, kDoublingTag);
    rounds_.push_back(std::move(round));
}

void DoublingPlan::run(const Vector& vector, Handshake& handshake, const Operation& op) {
    if (bytes_) std::memcpy(sum_.data(), vector.data, bytes_);
    for (size_t i = 0; i < rounds_.size(); ++i) {
        Round& round = rounds_[i];
        if (round.sends) link_.start(round.out);
        if (i == 0) handshake.finish(op); // overlaps with the first message
        if (round.receives) {
            link_.start(round.in);
            const size_t bytes = link_.wait(round.in, op, int(i));
            RG_CHECK(bytes == bytes_, op.name, " ", op.what, ": expected ", bytes_, " bytes from rank ", round.peer,
                     ", got ", bytes, " (rank ", link_.rank(), ", round ", i, ", operation ", op.number, ")");
        }
        if (round.sends) link_.wait(round.out, op, int(i)); // must complete before the sum changes
        if (round.adds) add_into(vector.type, sum_.data(), received_.data(), vector.count);
    }
    if (bytes_) std::memcpy(vector.data, sum_.data(), bytes_);
}

} // namespace rg::par
