// Implements the collectives. all() and barrier() are all-reduces, too.
//
// Broadcast and allgather serve start-up, checks and reports, where speed hardly matters. So broadcast is a binomial
// tree, and allgather is a ring that passes on whole texts.

#include "par/group.h"

#include <algorithm>

namespace rg::par {

namespace {

template <class T>
Vector vector_of(std::span<T> values) {
    constexpr Element type = std::is_same_v<T, float>    ? Element::f32
                             : std::is_same_v<T, double> ? Element::f64
                                                         : Element::byte;
    return {reinterpret_cast<std::byte*>(values.data()), values.size(), type};
}

} // namespace

Group::Group(Link& link, size_t chunk_bytes)
    : link_(link),
      chunk_bytes_(chunk_bytes),
      handshake_(link),
      roll_call_(link, handshake_),
      all_(link, link.ranks(), chunk_bytes) {
    RG_CHECK(chunk_bytes >= 1, "Group: expected chunks of at least one byte, got none");
}

Operation Group::next_operation(const char* name, std::string_view what, size_t bytes, uint64_t detail) {
    return {name, what, bytes, ++operations_, step_, detail};
}

void Group::allreduce(const char* name, const Vector& vector, std::string_view what, Algorithm algorithm, Wire wire,
                      const VectorsPerRank& several) {
    if (size() == 1) {
        std::vector<std::byte*> sources;
        several.append(sources, vector.data, 0);
        if (sources.size() > 1) sum_vectors(sources, {&sources.back(), 1}, vector.count, vector.type);
        return;
    }
    if (algorithm == Algorithm::automatic)
        algorithm =
            shared_reducer(name, what, vector.bytes()) ? Algorithm::shared : algorithm_for(vector.bytes(), size());
    const bool is_shared = algorithm == Algorithm::shared;
    RG_CHECK(!is_shared || shared_reducer(name, what, vector.bytes()), name, " ", what,
             ": expected memory that the ranks of a node share for algorithm shared, got ",
             link_.node().ranks.empty() ? "nodes with different numbers of ranks" : "none from the MPI library",
             " (rank ", rank(), ")");
    const bool in_order = is_shared && !sum_order_.empty();
    RG_CHECK(!in_order || wire == Wire::full, name, " ", what, ": expected Wire::full after set_ordered_sums()");
    // Ranks must agree on everything that determines the messages: length, number type, wire, algorithm, lengths of
    // chunks, position in shared memory.
    const uint64_t location = is_shared ? shared_->shared_address_of(vector) : 0;
    const uint64_t detail =
        (location ? location : chunk_bytes_) << 8 | (size_of(vector.type) | uint64_t(wire)) << 4 | uint64_t(algorithm);
    if (is_shared) {
        const Operation op = next_operation(name, what, vector.bytes(), detail);
        return shared_->run(vector, handshake_, op, {wire, in_order, several});
    }
    // Finishes the handshake before data are sent. Otherwise an error in the handshake could make the caller free the
    // vector while a peer still reads it.
    sum_over(all_, vector, algorithm, wire, agree(name, what, vector.bytes(), detail));
}

Operation Group::agree(const char* name, std::string_view what, size_t bytes, uint64_t detail) {
    const Operation op = next_operation(name, what, bytes, detail);
    handshake_.start(op);
    handshake_.finish(op);
    return op;
}

std::unique_ptr<SharedWindow> Group::open_shared(size_t window_bytes, const Operation& first) {
    const Operation op = agree(first.name, first.what, first.bytes, first.detail);
    double any = 0;
    if (size() > 1) sum_over(all_, vector_of(std::span(&any, 1)), Algorithm::halving, Wire::full, op);
    return link_.open_shared(window_bytes);
}

SharedReducer* Group::shared_reducer(const char* name, std::string_view what, size_t bytes) {
    if (!tried_shared_ && !link_.node().ranks.empty()) {
        std::unique_ptr<SharedWindow> window =
            open_shared(SharedReducer::window_bytes(chunk_bytes_), {name, what, bytes, 0, 0, chunk_bytes_ << 8});
        if (window) {
            shared_ = std::make_unique<SharedReducer>(link_, std::move(window), chunk_bytes_);
            if (int(link_.node().ranks.size()) == size())
                handshake_.set_post_window(shared_->shared_window(), SharedReducer::kPostOffset);
        }
    }
    tried_shared_ = true;
    return shared_.get();
}

std::span<std::byte> Group::allocate_shared(size_t bytes, std::string_view what) {
    if (size() > 1 && shared_reducer("memory", what, bytes)) {
        if (std::unique_ptr<SharedWindow> window = open_shared(bytes, {"memory", what, bytes})) {
            std::byte* local_part = window->parts[link_.node().place];
            shared_->adopt(std::move(window));
            return {local_part, bytes};
        }
    }
    constexpr size_t kLine = 64;
    std::byte* block = memories_.emplace_back(bytes + kLine - 1).data();
    return {block + (kLine - reinterpret_cast<uintptr_t>(block) % kLine) % kLine, bytes};
}

std::shared_ptr<void> Group::adopt(std::unique_ptr<SharedWindow> parts, std::string_view what) {
    if (!shared_reducer("adopt", what, parts->bytes)) return nullptr;
    agree("adopt", what, parts->bytes, 0);
    const uint64_t number = shared_->adopt(std::move(parts));
    return {shared_.get(), [number](SharedReducer* reducer) { reducer->release(number); }};
}

void Group::allreduce_sum(std::span<float> values, std::string_view what, Algorithm algorithm, Wire wire) {
    allreduce("allreduce", vector_of(values), what, algorithm, wire);
}

void Group::allreduce_sum(std::span<double> values, std::string_view what, Algorithm algorithm) {
    allreduce("allreduce", vector_of(values), what, algorithm);
}

void Group::set_workers(std::vector<int> of_rank) {
    RG_CHECK(!sum_order_.empty() && of_rank.size() == size_t(size()) && std::ranges::min(of_rank) >= 1,
             "set_workers: expected at least one worker for each of ", size(), " ranks, after set_ordered_sums(); got ",
             of_rank.size(), " numbers");
    workers_ = std::move(of_rank);
}

void Group::set_ordered_sums() {
    if (size() > 1 && !shared_reducer("ordered sums", {}, 0)) {
        link_.set_one_rank_per_node(); // so that each rank uses memory of its own
        tried_shared_ = false;
        shared_reducer("ordered sums", {}, 0);
    }
    sum_order_ = size() > 1 ? link_.node().order : std::vector{0};
}

void Group::sum_over_workers(std::span<float> values, size_t stride, std::string_view what) {
    RG_CHECK(!workers_.empty(), "sum_over_workers ", what, ": expected set_workers() first");
    allreduce("allreduce", vector_of(values), what, Algorithm::automatic, Wire::full,
              {workers_, stride * sizeof(float)});
}

bool Group::all(bool value, std::string_view what) {
    double count = value ? 1.0 : 0.0;
    allreduce("all", vector_of(std::span(&count, 1)), what, algorithm_for_few_bytes());
    return count == double(size());
}

void Group::barrier(std::string_view what) {
    double any = 0; // one element, since a sum of an empty vector would not wait
    allreduce("barrier", vector_of(std::span(&any, 1)), what, algorithm_for_few_bytes());
}

void Group::broadcast(std::span<std::byte> bytes, int root, std::string_view what) {
    const int p = size();
    RG_CHECK(root >= 0 && root < p, "broadcast ", what, ": expected a root in 0..", p - 1, ", got ", root);
    if (p == 1) return;
    const Operation op = agree("broadcast", what, bytes.size(), uint64_t(root));
    // Ranks are numbered from the root; the parent's number is the rank's own without its lowest set bit.
    const int number = (rank() - root + p) % p;
    const int lowest_bit = number == 0 ? p : number & -number;
    const Vector all = vector_of(bytes), none = all.subvector(0, 0);
    if (number != 0) all_.exchange(none, 0, all, (number - lowest_bit + root) % p, Peers::OnArrival::store, op, 0);
    for (int bit = 1; bit < lowest_bit && number + bit < p; bit *= 2)
        all_.exchange(all, (number + bit + root) % p, none, 0, Peers::OnArrival::store, op, bit);
}

std::vector<std::string> Group::allgather(std::string_view text, std::string_view what) {
    const int p = size();
    std::vector<std::string> texts(static_cast<size_t>(p));
    texts[size_t(rank())] = text;
    if (p == 1) return texts;
    std::vector<double> lengths(size_t(p), 0.0); // as doubles, exact up to 2^53
    lengths[size_t(rank())] = double(text.size());
    allreduce_sum(lengths, what, algorithm_for_few_bytes());
    for (int r = 0; r < p; ++r) texts[size_t(r)].resize(size_t(lengths[size_t(r)]));

    const Operation op = agree("allgather", what, 0, 0);
    const auto text_of = [&](int r) {
        return vector_of(std::as_writable_bytes(std::span(texts[size_t((r + p) % p)])));
    };
    for (int round = 0; round < p - 1; ++round) // first sends its own text, then passes on each text that arrives
        all_.exchange(text_of(rank() - round), link_.next(), text_of(rank() - round - 1), link_.previous(),
                      Peers::OnArrival::store, op, round);
    return texts;
}

} // namespace rg::par
