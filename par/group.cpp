// Implements the collectives. For an all-reduce, chooses the algorithm and caches its plan. all() and barrier() are
// all-reduces, too.
//
// Broadcast and allgather mostly serve start-up, checks and reports, where speed hardly matters. (If any rank has
// several workers, StateSum also uses allgather in each step.) So broadcast is a binomial tree that sends chunks, and
// allgather is a ring that passes on whole texts.

#include "ringgrad/par/group.h"

#include <algorithm>

namespace rg::par {

namespace {

constexpr int kGroupTag = 4;
constexpr size_t kBroadcastChunk = 1 << 20; // bytes; the levels of the tree transfer different chunks at once

/// Returns the plan for a vector, and makes it if there is none. The plan becomes the first in the list. If the list
/// was full, a new plan replaces the last one.
template <class Plan, class Make>
Plan& find_plan(std::vector<std::unique_ptr<Plan>>& plans, const Vector& vector, const Make& make) {
    auto match = std::find_if(plans.begin(), plans.end(), [&](const auto& plan) { return plan->serves(vector); });
    if (match == plans.end()) {
        if (plans.size() == Group::kPlans) plans.pop_back();
        plans.push_back(make());
        match = plans.end() - 1;
    }
    std::rotate(plans.begin(), match, match + 1);
    return *plans.front();
}

} // namespace

Group::Group(Link& link, size_t segment_bytes)
    : link_(link), segment_bytes_(segment_bytes), handshake_(link), roll_call_(link, handshake_) {
    RG_CHECK(segment_bytes >= 1, "Group: expected a segment of at least one byte, got none");
}

Operation Group::next_operation(const char* name, std::string_view what, size_t bytes, uint64_t detail) {
    return {name, what, bytes, ++operations_, step_, detail};
}

void Group::allreduce(const char* name, const Vector& vector, std::string_view what, Algorithm algorithm,
                      const VectorsPerRank& several) {
    if (size() == 1) {
        std::vector<std::byte*> sources;
        several.append(sources, vector.data, 0);
        if (sources.size() > 1) sum_vectors(sources, {&sources.back(), 1}, vector.count, vector.type);
        return;
    }
    if (vector.wire == Wire::bf16) {
        RG_CHECK(algorithm == Algorithm::automatic || algorithm == Algorithm::shared, name, " ", what,
                 ": expected algorithm automatic or shared, which alone can send bf16 between nodes");
        algorithm = Algorithm::shared;
    }
    const bool chosen = algorithm == Algorithm::automatic;
    const int nodes = link_.node().ranks.empty() ? size() : size() / int(link_.node().ranks.size());
    if (chosen)
        algorithm = !order_.empty() ? Algorithm::shared
                                    : choose(vector.bytes(), size(), nodes, shared_ && shared_->place_of(vector));
    if (algorithm == Algorithm::shared && !shared(name, what, vector.bytes())) {
        RG_CHECK(chosen, name, " ", what, ": expected memory that the ranks of a node share for algorithm shared, got ",
                 link_.node().ranks.empty() ? "nodes with different numbers of ranks" : "none from the MPI library",
                 " (rank ", rank(), ")");
        algorithm = choose(vector.bytes(), size(), size(), false);
    }
    if (algorithm == Algorithm::mpi) {
        RG_CHECK(link_.mpi_allreduce(vector.data, vector.count, size_of(vector.type)), name, " ", what,
                 ": expected an MPI link for algorithm mpi, got another link");
        return;
    }
    // Ranks must agree on everything that determines the messages: length, number type, wire, algorithm, segments,
    // position in shared memory.
    const uint64_t place = algorithm == Algorithm::shared ? shared_->place_of(vector) : 0;
    const uint64_t detail = (place ? place : segment_bytes_) << 8 |
                            (size_of(vector.type) | uint64_t(vector.wire)) << 4 | uint64_t(algorithm);
    const Operation op = next_operation(name, what, vector.bytes(), detail);
    try {
        if (algorithm == Algorithm::shared) {
            shared_->run(vector, handshake_, op, several);
            return;
        }
        handshake_.start(op);
        if (algorithm == Algorithm::ring) {
            // Finishes the handshake before data are sent. Otherwise an error in the handshake could make the caller
            // free the vector while a peer still reads it.
            handshake_.finish(op);
            find_plan(rings_, vector, [&] {
                return std::make_unique<RingPlan>(link_, vector, segment_bytes_);
            }).run(op);
        } else {
            find_plan(doublings_, vector, [&] {
                return std::make_unique<DoublingPlan>(link_, vector.bytes());
            }).run(vector, handshake_, op);
        }
    } catch (...) { // withdraws ring messages in flight: the caller may free their vector before this group ends
        rings_.clear();
        throw;
    }
}

Operation Group::agree(const char* name, std::string_view what, size_t bytes, uint64_t detail) {
    const Operation op = next_operation(name, what, bytes, detail);
    handshake_.start(op);
    handshake_.finish(op);
    return op;
}

SharedReducer* Group::shared(const char* name, std::string_view what, size_t bytes) {
    if (!tried_shared_ && !link_.node().ranks.empty()) {
        agree(name, what, bytes, segment_bytes_ << 8); // this wait can name a missing rank; open_shared() cannot
        std::unique_ptr<SharedWindow> window = link_.open_shared(SharedReducer::window_bytes(segment_bytes_));
        if (window) {
            shared_ = std::make_unique<SharedReducer>(link_, std::move(window), segment_bytes_);
            if (one_node()) handshake_.post_in(shared_->window(), SharedReducer::kPostOffset);
        }
    }
    tried_shared_ = true;
    return shared_.get();
}

std::span<std::byte> Group::memory(size_t bytes, std::string_view what) {
    if (size() > 1 && shared("memory", what, bytes)) {
        agree("memory", what, bytes, 0);
        if (std::unique_ptr<SharedWindow> window = link_.open_shared(bytes)) {
            std::byte* local_part = window->part(link_.node().place);
            shared_->adopt(std::move(window));
            return {local_part, bytes};
        }
    }
    constexpr size_t kLine = 64;
    std::byte* block = memories_.emplace_back(bytes + kLine - 1).data();
    return {block + (kLine - reinterpret_cast<uintptr_t>(block) % kLine) % kLine, bytes};
}

void Group::allreduce_sum(std::span<float> values, std::string_view what, Algorithm algorithm, Wire wire) {
    const Vector vector{reinterpret_cast<std::byte*>(values.data()), values.size(), Element::f32, wire};
    allreduce("allreduce", vector, what, algorithm);
}

void Group::allreduce_sum(std::span<double> values, std::string_view what, Algorithm algorithm) {
    const Vector vector{reinterpret_cast<std::byte*>(values.data()), values.size(), Element::f64};
    allreduce("allreduce", vector, what, algorithm);
}

void Group::set_workers(std::vector<int> of_rank) {
    RG_CHECK(!order_.empty() && of_rank.size() == size_t(size()) && std::ranges::min(of_rank) >= 1,
             "set_workers: expected at least one worker for each of ", size(), " ranks, after sum_in_order(); got ",
             of_rank.size(), " numbers");
    workers_ = std::move(of_rank);
}

void Group::sum_in_order() {
    if (size() > 1 && !shared("sum_in_order", {}, 0)) {
        link_.set_one_rank_per_node(); // then each rank has memory of its own
        tried_shared_ = false;
        shared("sum_in_order", {}, 0);
    }
    order_ = size() > 1 ? link_.node().order : std::vector{0};
}

void Group::sum_over_workers(std::span<float> values, size_t stride, std::string_view what) {
    RG_CHECK(!workers_.empty(), "sum_over_workers ", what, ": expected set_workers() first");
    const Vector vector{reinterpret_cast<std::byte*>(values.data()), values.size(), Element::f32};
    allreduce("allreduce", vector, what, Algorithm::automatic, {workers_, stride * sizeof(float)});
}

bool Group::all(bool value, std::string_view what) {
    double count = value ? 1.0 : 0.0;
    allreduce("all", {reinterpret_cast<std::byte*>(&count), 1, Element::f64}, what, quickest());
    return count == double(size());
}

void Group::barrier(std::string_view what) { allreduce("barrier", {}, what, quickest()); }

void Group::broadcast(std::span<std::byte> bytes, int root, std::string_view what) {
    const int p = size();
    RG_CHECK(root >= 0 && root < p, "broadcast ", what, ": expected a root in 0..", p - 1, ", got ", root);
    if (p == 1) return;
    const Operation op = agree("broadcast", what, bytes.size(), uint64_t(root));
    // Binomial tree. Ranks are numbered from the root; the parent's number is the rank's own without its lowest set
    // bit.
    const int number = (rank() - root + p) % p;
    const int lowest_bit = number == 0 ? p : number & -number;
    for (size_t begin = 0; begin < bytes.size(); begin += kBroadcastChunk) {
        const std::span<std::byte> chunk = bytes.subspan(begin, std::min(kBroadcastChunk, bytes.size() - begin));
        const auto transfer = [&](Channel channel) {
            link_.start(channel);
            link_.wait(channel, op, int(begin / kBroadcastChunk));
        };
        if (number != 0)
            transfer(link_.open_receive(chunk.data(), chunk.size(), (number - lowest_bit + root) % p, kGroupTag));
        for (int bit = 1; bit < lowest_bit && number + bit < p; bit *= 2)
            transfer(link_.open_send(chunk.data(), chunk.size(), (number + bit + root) % p, kGroupTag));
    }
}

std::vector<std::string> Group::allgather(std::string_view text, std::string_view what) {
    const int p = size();
    std::vector<std::string> texts(static_cast<size_t>(p));
    texts[size_t(rank())] = text;
    if (p == 1) return texts;
    std::vector<double> lengths(size_t(p), 0.0); // exact up to 2^53
    lengths[size_t(rank())] = double(text.size());
    allreduce_sum(lengths, what, quickest());
    for (int r = 0; r < p; ++r) texts[size_t(r)].resize(size_t(lengths[size_t(r)]));

    const Operation op = agree("allgather", what, 0, 0);
    for (int round = 0; round < p - 1; ++round) { // pass on the own text, then each one that arrived
        const std::string& outgoing = texts[size_t((rank() - round + p) % p)];
        std::string& incoming = texts[size_t((rank() - round - 1 + p) % p)];
        Channel in = link_.open_receive(incoming.data(), incoming.size(), link_.previous(), kGroupTag);
        Channel out = link_.open_send(outgoing.data(), outgoing.size(), link_.next(), kGroupTag);
        link_.start(in);
        link_.start(out);
        link_.wait(in, op, round);
        link_.wait(out, op, round);
    }
    return texts;
}

} // namespace rg::par
