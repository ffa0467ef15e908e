// The reverse walk. Tensors are told apart by Tensor::key(), so a reshaped view is the same value as its source.
#include "core/tape.h"

#include "core/context.h"
#include "core/ops.h"

#include <algorithm>
#include <map>

namespace rg {

namespace {

/// Gradients by value, and where the caller wants some of them.
struct Slots {
    std::map<Tensor::Key, Tensor> gradient, target;

    void give(const Tensor& value, const Tensor& contribution) {
        const auto wanted = target.find(value.key());
        const Tensor into = wanted == target.end() ? Tensor() : wanted->second;
        auto [slot, first] = gradient.try_emplace(value.key(), contribution);
        if (!first) {
            const Tensor sum = into.defined() ? into.reshape(contribution.shape()) : Tensor();
            slot->second = run(op::add, {slot->second.reshape(contribution.shape()), contribution}, {}, {sum})[0];
        } else if (into.defined() && into.key() != contribution.key()) {
            slot->second = run(op::cast, {contribution.reshape(into.shape())}, CastOp{into.dtype()}, {into})[0];
        }
    }
};

/// A call that gradients do not flow through. A value that depends on a requested tensor through it is lost.
struct Barrier {
    const char *call, *instead;
};
constexpr Barrier kView{"a view of a part (Tensor::slice())",
                        "use slice() of core/ops.h, or ask for the gradient of the view"};

/// The inputs of a node that gradients have to flow to, as bits; and those that they should, but cannot.
struct Reach {
    uint32_t needed = 0, lost = 0;
    Barrier barrier = {};
};

/// Walks the nodes forwards to find which values depend on the requested tensors.
class Dependence {
public:
    explicit Dependence(std::span<const Tensor> of) {
        for (const Tensor& t : of) values_.emplace(t.key(), Value{t.bytes(), true, false, {}});
    }

    Reach visit(const Tape::Node& node) {
        Reach reach;
        for (size_t i = 0; i < node.in.size(); ++i) {
            const Tensor& t = node.in[i];
            const auto value = t.defined() ? overlapping(t) : values_.end();
            if (value == values_.end()) continue;
            const bool whole = is_whole(t, value);
            (whole && !value->second.lost ? reach.needed : reach.lost) |= 1u << i;
            if (value->second.lost)
                reach.barrier = value->second.barrier;
            else if (!whole)
                reach.barrier = kView;
        }
        const bool depends = reach.needed || reach.lost;
        for (size_t i = 0; i < node.out.size(); ++i) {
            const Tensor& t = node.out[i];
            if (!t.defined()) continue;
            const auto known = overlapping(t);
            if (known != values_.end() && known->second.requested) continue;
            if (known != values_.end() && !is_whole(t, known)) { // a part of it is overwritten
                known->second.lost = true;
                known->second.barrier = barrier_of(node);
            } else if (!depends)
                values_.erase(t.key()); // overwritten
            else if (node.backward && i == 0)
                values_[t.key()] = {t.bytes(), false, false, {}};
            else
                values_[t.key()] = {t.bytes(), false, true, reach.lost ? reach.barrier : barrier_of(node)};
        }
        return reach;
    }

    /// Why no gradient flows from the loss to the requested tensors that it depends on; null if one does.
    const Barrier* barrier_of(const Tensor& loss) const {
        const auto value = values_.find(loss.key());
        return value != values_.end() && value->second.lost ? &value->second.barrier : nullptr;
    }

private:
    struct Value {
        int64_t bytes;
        bool requested, lost;
        Barrier barrier;
    };

    using Position = std::map<Tensor::Key, Value>::iterator;

    static bool is_whole(const Tensor& t, Position value) {
        return value->first == t.key() && value->second.bytes == t.bytes();
    }

    static Barrier barrier_of(const Tape::Node& node) {
        return {node.name, node.instead ? node.instead : "this result of it has no gradient"};
    }

    /// The value that t is, perhaps of no elements, or shares memory with; values do not overlap each other.
    Position overlapping(const Tensor& t) {
        const Tensor::Key key = t.key();
        const auto next = values_.upper_bound(key);
        if (next != values_.begin()) {
            const auto& [place, value] = *std::prev(next);
            const bool same = place == key && value.bytes == t.bytes();
            const bool overlaps = place.id == key.id && place.offset + value.bytes > key.offset && t.bytes() > 0;
            if (same || overlaps) return std::prev(next);
        }
        if (next != values_.end() && next->first.id == key.id && next->first.offset < key.offset + t.bytes())
            return next;
        return values_.end();
    }

    std::map<Tensor::Key, Value> values_;
};

class NodeBackward final : public Backward {
public:
    NodeBackward(const Tape::Node& node, const Reach& reach, const Tensor& dy, Slots& slots)
        : node_(node), reach_(reach), dy_(dy), slots_(slots) {}
    const Attrs& attrs() const override { return node_.attrs; }
    const Tensor& in(int i) const override { return node_.in[size_t(i)]; }
    const Tensor& out(int i) const override { return node_.out[size_t(i)]; }
    const Tensor& dy() const override { return dy_; }
    bool wants(int i) const override {
        asked_ |= 1u << i;
        expect_reach(i);
        return reach_.needed >> i & 1;
    }
    Tensor into(int i) const override {
        const auto target = slots_.target.find(in(i).key());
        if (target == slots_.target.end() || slots_.gradient.contains(in(i).key())) return {};
        return target->second.reshape(in(i).shape());
    }
    void give(int i, const Tensor& gradient) override {
        asked_ |= 1u << i;
        expect_reach(i);
        slots_.give(in(i), gradient);
    }

    void covers(int i, int other) override {
        if (reach_.needed >> other & 1) covered_ |= 1u << i;
    }

    /// Throws if a gradient has to flow to an input for which the op's rule has none.
    void expect_all_asked() const {
        const uint32_t missed = (reach_.needed | (reach_.lost & ~covered_)) & ~asked_;
        for (int i = 0; i < kMaxInputs; ++i)
            RG_CHECK(!(missed >> i & 1), "gradients: expected tensors that ",
                     node_.name, " has gradients for, got its input ", i, "; make it a constant under NoTape");
    }

private:
    void expect_reach(int i) const {
        RG_CHECK(!(reach_.lost >> i & 1), "gradients: expected input ", i, " of ", node_.name,
                 " to come from ops that have gradients, got one that comes from ", reach_.barrier.call, "; ",
                 reach_.barrier.instead, ", or make a constant under NoTape");
    }
    const Tape::Node& node_;
    const Reach& reach_;
    const Tensor& dy_;
    Slots& slots_;
    mutable uint32_t asked_ = 0; // the inputs that the rule knows, as bits
    uint32_t covered_ = 0;       // the inputs whose gradient is part of another input's, as bits
};

/// Error if any of the tensors and destinations share memory: one gradient would be written over another, or over a
/// value that the walk has yet to read.
void expect_apart(std::span<const Tensor> of, std::span<const Tensor> into) {
    struct Place {
        Tensor::Key key;
        int64_t bytes;
        const char* what;
        size_t index;
    };
    std::vector<Place> places;
    for (size_t i = 0; i < of.size(); ++i) {
        places.push_back({of[i].key(), of[i].bytes(), "tensor ", i});
        places.push_back({into[i].key(), into[i].bytes(), "destination ", i});
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.key < b.key; });
    for (size_t i = 1; i < places.size(); ++i) {
        const Place &a = places[i - 1], &b = places[i];
        RG_CHECK(a.key.id != b.key.id || a.key.offset + a.bytes <= b.key.offset,
                 "gradients: expected tensors and destinations that share no memory, got ", a.what, a.index, " and ",
                 b.what, b.index, ", which do");
    }
}

} // namespace

Tape::Tape() : before_(static_cast<Tape*>(std::exchange(Scope::current().tape, this))) {}
Tape::~Tape() { Scope::current().tape = before_; }

Tape* Tape::active() {
    Tape* const innermost = static_cast<Tape*>(Scope::current().tape);
    return innermost && innermost->consumed_ ? innermost->outer() : innermost;
}

Tape* Tape::outer() const {
    Tape* tape = before_;
    while (tape && tape->consumed_) tape = tape->before_;
    return tape;
}

void Tape::push(Node node) {
    // For an outer tape, the results are values that no gradient reaches.
    if (Tape* const other = outer()) {
        Node hidden{.name = node.name, .instead = "compute it before the inner Tape begins"};
        for (size_t i = 0; i < node.in.size(); ++i) hidden.in[i] = node.in[i].without_memory();
        for (size_t i = 0; i < node.out.size(); ++i) hidden.out[i] = node.out[i].without_memory();
        other->push(std::move(hidden));
    }
    nodes_.push_back(std::move(node));
}

NoTape::NoTape() : before_(std::exchange(Scope::current().tape, nullptr)) {}
NoTape::~NoTape() { Scope::current().tape = before_; }

void Tape::record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) {
    if (consumed_) {
        if (Tape* const other = outer()) other->record(op, attrs, in, out);
        return;
    }
    const OpRow& r = *op;
    Node node{.name = r.name, .backward = r.backward, .attrs = attrs};
    for (size_t i = 0; i < in.size(); ++i) node.in[i] = r.saves & saves_in(int(i)) ? in[i] : in[i].without_memory();
    for (size_t i = 0; i < out.size(); ++i)
        node.out[i] = r.saves & saves_out(int(i)) ? out[i] : out[i].without_memory();
    push(std::move(node));
}

void Tape::record_copy(const char* call, const char* instead, const Tensor& from, const Tensor& to) {
    if (consumed_) {
        if (Tape* const other = outer()) other->record_copy(call, instead, from, to);
        return;
    }
    Node node{.name = call, .instead = instead};
    node.in[0] = from.without_memory(), node.out[0] = to.without_memory();
    push(std::move(node));
}

void Tape::gradients(const Tensor& loss, std::span<const Tensor> of, std::span<const Tensor> into) {
    RG_CHECK(!consumed_, "gradients: expected a tape that was not used, got one whose gradients were taken; ",
             "make another Tape, or ask for all gradients at once");
    RG_CHECK(loss.defined() && loss.numel() == 1, "gradients: the loss needs one element, got ", loss.shape().str());
    RG_CHECK(of.size() == into.size(), "gradients: ", of.size(), " tensors, ", into.size(), " destinations");
    const NoTape pause;
    Slots slots;
    for (size_t i = 0; i < of.size(); ++i) {
        RG_CHECK(of[i].defined() && into[i].defined(), "gradients: ", of[i].defined() ? "destination " : "tensor ", i,
                 " is undefined; parameters are defined by Parameters::allocate()");
        RG_CHECK(of[i].shape() == into[i].shape() && of[i].dtype() == into[i].dtype(), "gradients: destination ", i,
                 " is ", name_of(into[i].dtype()), " ", into[i].shape().str(), ", its tensor ", name_of(of[i].dtype()),
                 " ", of[i].shape().str());
        RG_CHECK(slots.target.emplace(of[i].key(), into[i]).second, "gradients: tensor ", i, " is listed twice");
    }
    expect_apart(of, into);
    consumed_ = true;
    std::vector<Reach> reach;
    Dependence dependence(of);
    for (const Node& node : nodes_) reach.push_back(dependence.visit(node));
    slots.give(loss, Tensor::constant(loss.shape(), 1, loss.dtype()));
    for (; !nodes_.empty(); nodes_.pop_back(), reach.pop_back()) {
        const Node& node = nodes_.back();
        const auto slot = slots.gradient.find(node.out[0].key());
        if (!node.backward || slot == slots.gradient.end() || !(reach.back().needed | reach.back().lost)) continue;
        const Tensor dy = slot->second.reshape(node.out[0].shape());
        // The gradient of an inner value has no other reader: let its memory go as soon as this node is done.
        if (!slots.target.contains(slot->first)) slots.gradient.erase(slot);
        NodeBackward backward(node, reach.back(), dy, slots);
        node.backward(backward);
        backward.expect_all_asked();
    }
    const auto reached = [&](const Tensor& t) { return slots.gradient.contains(t.key()); };
    const Barrier* const barrier = dependence.barrier_of(loss);
    RG_CHECK(!barrier, "gradients: expected a loss that comes from ops that have gradients, got one that comes from ",
             barrier->call, "; ", barrier->instead);
    RG_CHECK(of.empty() || std::any_of(of.begin(), of.end(), reached),
             "gradients: expected a loss that depends on the tensors asked for, got one that depends on none of the ",
             of.size(), "; compute it from them while the tape exists, without NoTape");
    for (size_t i = 0; i < of.size(); ++i)
        if (!reached(of[i]))
            run(op::cast, {Tensor::constant(of[i].shape(), 0, into[i].dtype())}, CastOp{into[i].dtype()}, {into[i]});
}

} // namespace rg
