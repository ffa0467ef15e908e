// Records nodes and walks them backwards. Tensor::key() says where a value begins in memory. A reshaped view has the
// key and the number of bytes of its source: it is the same value. A slice from the first element on has the key of its
// source, but fewer bytes. So class Dependence compares keys and numbers of bytes.
#include "core/tape.h"

#include "core/context.h"
#include "core/ops.h"

#include <algorithm>
#include <map>
#include <optional>

namespace rg {

namespace {

/// Holds the gradients that the walk or the caller still needs, and the destinations that the caller of gradients()
/// passed. Both maps are keyed by Tensor::key() of the value, not of its gradient.
struct Gradients {
    std::map<Tensor::Key, Tensor> gradient, destination;

    void add(const Tensor& value, const Tensor& contribution) {
        const auto requested = destination.find(value.key());
        const Tensor into = requested == destination.end() ? Tensor() : requested->second;
        auto [slot, first] = gradient.try_emplace(value.key(), contribution);
        if (!first) {
            const Tensor sum = into.defined() ? into.reshape(contribution.shape()) : Tensor();
            slot->second = run(op::add, {slot->second.reshape(contribution.shape()), contribution}, {}, {sum})[0];
        } else if (into.defined() && into.key() != contribution.key()) {
            slot->second = run(op::cast, {contribution.reshape(into.shape())}, CastOp{into.dtype()}, {into})[0];
        }
    }
};

/// A call that gradients do not flow through, such as a copy or an op without a backward rule, and a hint for the
/// error. A tensor is requested if the caller of gradients() asked for its gradient. A value is blocked if it depends
/// on a requested tensor through such a call.
struct Barrier {
    const char *call, *instead;
};
constexpr Barrier kView{"a view of a part (Tensor::slice())",
                        "use slice() of core/ops.h, or ask for the gradient of the view"};

/// The inputs of a node that depend on a requested tensor: bit i stands for input i. The inputs in `needed` need their
/// gradients. No gradient can flow to the inputs in `blocked`: they are blocked values, or overlap a value that depends
/// on a requested tensor only in part, as a view of a part does.
struct Dependents {
    uint32_t needed = 0, blocked = 0;
    Barrier barrier = {};                                           // the call that blocks the last blocked input
    std::array<std::optional<Tensor::Key>, kMaxInputs> origin = {}; // Value::origin of the blocked inputs
};

/// Walks the nodes forwards to find the values that depend on the requested tensors.
class Dependence {
public:
    explicit Dependence(std::span<const Tensor> requested) {
        for (const Tensor& t : requested) values_.emplace(t.key(), Value{t.bytes(), true});
    }

    Dependents visit(const Tape::Node& node) {
        Dependents inputs;
        for (size_t i = 0; i < node.in.size(); ++i) {
            const Tensor& t = node.in[i];
            const auto value = t.defined() ? overlapping(t) : values_.end();
            if (value == values_.end()) continue;
            const bool whole = is_whole(t, value);
            (whole && !value->second.blocked ? inputs.needed : inputs.blocked) |= 1u << i;
            if (value->second.blocked)
                inputs.barrier = value->second.barrier, inputs.origin[i] = value->second.origin;
            else if (!whole)
                inputs.barrier = kView;
        }
        const bool depends = inputs.needed || inputs.blocked;
        for (size_t i = 0; i < node.out.size(); ++i) {
            const Tensor& t = node.out[i];
            if (!t.defined()) continue;
            const auto known = overlapping(t);
            const auto is_t = [&](const Tensor& in) { return in.defined() && in.key() == t.key(); };
            const auto expect_apart = [&] {
                for (size_t j = 0; j < node.in.size(); ++j)
                    RG_CHECK(!((inputs.needed | inputs.blocked) >> j & 1) || is_t(node.in[j]),
                             "gradients: expected tensors apart, got one that comes from another through ", node.name,
                             "; ", node.backward && i == 0 ? kView.instead : barrier_of(node).instead,
                             ", or make it a constant under NoTape");
            };
            if (known != values_.end() && !is_whole(t, known)) { // the node overwrites bytes of known values
                if (block(known, t, barrier_of(node))) expect_apart();
            } else if (known != values_.end() && known->second.requested) {
                RG_CHECK(!node.backward || std::ranges::none_of(node.in, is_t),
                         "gradients: expected tensors that no op ", "overwrites, got one that ", node.name,
                         " changes in place; do so under NoTape");
                if (!node.backward || i > 0) expect_apart(); // else the gradient flows to the inputs
            } else if (!depends) {
                values_.erase(t.key()); // the node overwrites any value there
            } else if (node.backward && i == 0) {
                values_[t.key()] = {t.bytes()};
            } else {
                values_[t.key()] = {t.bytes(), false, true, inputs.blocked ? inputs.barrier : barrier_of(node),
                                    node.backward ? node.out[0].key() : origin_of(node, inputs)};
            }
        }
        return inputs;
    }

    /// Returns the call that blocks the loss, or null if the loss itself is not a blocked value.
    const Barrier* barrier_of(const Tensor& loss) const {
        const auto value = values_.find(loss.key());
        return value != values_.end() && value->second.blocked ? &value->second.barrier : nullptr;
    }

private:
    struct Value {
        int64_t bytes;
        bool requested = false, blocked = false;
        Barrier barrier = {};
        // The value through which a blocked value depends on the requested tensors, if there is only one. For example,
        // statistics depend on them through the images whose statistics they are.
        std::optional<Tensor::Key> origin = {};
    };

    using Iterator = std::map<Tensor::Key, Value>::iterator;

    static bool is_whole(const Tensor& t, Iterator value) {
        return value->first == t.key() && value->second.bytes == t.bytes();
    }

    static Barrier barrier_of(const Tape::Node& node) {
        return {node.name, node.instead ? node.instead : "it has no gradient for this result"};
    }

    /// For a node without a backward rule: returns the value through which its results depend on the requested tensors,
    /// if it is the only one. See Value::origin.
    static std::optional<Tensor::Key> origin_of(const Tape::Node& node, const Dependents& inputs) {
        std::optional<Tensor::Key> origin;
        for (size_t i = 0; i < node.in.size(); ++i) {
            if (!((inputs.needed | inputs.blocked) >> i & 1)) continue;
            const auto key = inputs.needed >> i & 1 ? node.in[i].key() : inputs.origin[i];
            if (!key || (origin && origin != key)) return std::nullopt;
            origin = key;
        }
        return origin;
    }

    /// Blocks the values from `first` on that overlap t, except requested tensors. Returns true if there is one of
    /// these.
    bool block(Iterator first, const Tensor& t, const Barrier& barrier) {
        const Tensor::Key key = t.key();
        bool requested = false;
        for (; first != values_.end() && first->first.id == key.id && first->first.offset < key.offset + t.bytes();
             ++first)
            if (first->second.requested)
                requested = true;
            else
                first->second.blocked = true, first->second.barrier = barrier, first->second.origin.reset();
        return requested;
    }

    /// Returns the first value in values_ that is t or overlaps t in memory, or end() if there is none. The values in
    /// values_ do not overlap each other. If t has no elements, finds only t itself.
    Iterator overlapping(const Tensor& t) {
        const Tensor::Key key = t.key();
        const auto next = values_.upper_bound(key);
        if (next != values_.begin()) {
            const auto& [before, value] = *std::prev(next);
            const bool same = before == key && value.bytes == t.bytes();
            const bool overlaps = before.id == key.id && before.offset + value.bytes > key.offset && t.bytes() > 0;
            if (same || overlaps) return std::prev(next);
        }
        if (next != values_.end() && next->first.id == key.id && next->first.offset < key.offset + t.bytes())
            return next;
        return values_.end();
    }

    std::map<Tensor::Key, Value> values_;
};

class NodeBackwardContext final : public BackwardContext {
public:
    NodeBackwardContext(const Tape::Node& node, const Dependents& inputs, const Tensor& dy, Gradients& gradients)
        : node_(node), inputs_(inputs), dy_(dy), gradients_(gradients) {}
    const Attrs& attrs() const override { return node_.attrs; }
    const Tensor& in(int i) const override { return node_.in[size_t(i)]; }
    const Tensor& out(int i) const override { return node_.out[size_t(i)]; }
    const Tensor& dy() const override { return dy_; }
    bool wants(int i) const override {
        handled_ |= 1u << i;
        expect_unblocked(i);
        return inputs_.needed >> i & 1;
    }
    Tensor into(int i) const override {
        for (int j = 0; j < kMaxInputs; ++j) // a tensor that is passed twice gets two gradients, which are added
            if (j != i && inputs_.needed >> j & 1 && in(j).key() == in(i).key()) return {};
        const auto requested = gradients_.destination.find(in(i).key());
        if (requested == gradients_.destination.end() || gradients_.gradient.contains(in(i).key())) return {};
        return requested->second.reshape(in(i).shape());
    }
    void give(int i, const Tensor& gradient) override {
        handled_ |= 1u << i;
        expect_unblocked(i);
        gradients_.add(in(i), gradient);
    }

    void covers(int i, int other) override {
        if (inputs_.needed >> other & 1 && inputs_.origin[size_t(i)] == in(other).key()) covered_ |= 1u << i;
    }

    void takes_as_constant(int i) override { covered_ |= 1u << i; }

    /// Throws Error if a gradient must flow to an input that the op's backward rule does not handle.
    void expect_all_handled() const {
        const uint32_t missed = (inputs_.needed | (inputs_.blocked & ~covered_)) & ~handled_;
        for (int i = 0; i < kMaxInputs; ++i)
            RG_CHECK(!(missed >> i & 1), "gradients: expected inputs for which ", node_.name,
                     " has a gradient, got its input ", i, "; make it a constant under NoTape");
    }

private:
    void expect_unblocked(int i) const {
        RG_CHECK(!(inputs_.blocked >> i & 1), "gradients: expected input ", i, " of ", node_.name,
                 " to come from ops that have gradients, got one that comes from ", inputs_.barrier.call, "; ",
                 inputs_.barrier.instead, ", or make a constant under NoTape");
    }
    const Tape::Node& node_;
    const Dependents& inputs_;
    const Tensor& dy_;
    Gradients& gradients_;
    mutable uint32_t handled_ = 0; // the inputs that the backward rule handles, as bits
    uint32_t covered_ = 0;         // the inputs that may be blocked, see covers() and takes_as_constant(), as bits
};

/// Throws Error if any two of the tensors and destinations share memory, or if a destination and a value that a node
/// saved share memory. A gradient could then overwrite another gradient, or a value that the walk still reads.
void expect_no_overlap(std::span<const Tensor> tensors, std::span<const Tensor> destinations,
                       std::span<const Tape::Node> nodes) {
    struct Range {
        Tensor t;
        bool destination;
        size_t index;
        std::string str() const { return cat(destination ? "destination " : "tensor ", index); }
    };
    std::vector<Range> ranges;
    for (size_t i = 0; i < tensors.size(); ++i) {
        ranges.push_back({tensors[i], false, i});
        ranges.push_back({destinations[i], true, i});
    }
    std::erase_if(ranges, [](const Range& range) { return range.t.bytes() == 0; });
    std::ranges::sort(ranges, {}, [](const Range& range) { return range.t.key(); });
    for (size_t i = 1; i < ranges.size(); ++i)
        RG_CHECK(!overlap(ranges[i - 1].t, ranges[i].t),
                 "gradients: expected tensors and destinations that share no memory, got ", ranges[i - 1].str(),
                 " and ", ranges[i].str(), ", which do; give each its own memory");
    std::erase_if(ranges, [](const Range& range) { return !range.destination; });
    const auto check = [&](const Tape::Node& node, const Tensor& saved) {
        const Tensor::Key end{saved.key().id, saved.key().offset + saved.bytes()};
        const auto after = std::ranges::lower_bound(ranges, end, {}, [](const Range& range) { return range.t.key(); });
        RG_CHECK(after == ranges.begin() || !overlap(after[-1].t, saved), "gradients: expected destinations apart ",
                 "from the values that ops have saved, got ", after[-1].str(), " in the memory of one that ", node.name,
                 " saved; give it its own memory");
    };
    for (const Tape::Node& node : nodes) {
        for (size_t i = 0; i < kMaxInputs; ++i)
            if (node.saved & input_bit(int(i))) check(node, node.in[i]);
        for (size_t i = 0; i < kMaxOutputs; ++i)
            if (node.saved & output_bit(int(i))) check(node, node.out[i]);
    }
}

} // namespace

Tape* Tape::active() {
    Tape* const innermost = static_cast<Tape*>(Scope::current().tape);
    return innermost && innermost->consumed_ ? innermost->outer() : innermost;
}

Tape* Tape::outer() const {
    Tape* const before = static_cast<Tape*>(tape_.before());
    return before && before->consumed_ ? before->outer() : before;
}

void Tape::push(Node node) {
    // The outer tape records the node without a backward rule. So gradients() of the outer tape throws Error if a
    // gradient must flow through the node.
    if (Tape* const other = outer()) {
        Node barrier{.name = node.name, .instead = "compute it before the inner Tape begins"};
        for (size_t i = 0; i < node.in.size(); ++i) barrier.in[i] = node.in[i].without_memory();
        for (size_t i = 0; i < node.out.size(); ++i) barrier.out[i] = node.out[i].without_memory();
        other->push(std::move(barrier));
    }
    nodes_.push_back(std::move(node));
}

void Tape::record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) {
    if (consumed_) {
        if (Tape* const other = outer()) other->record(op, attrs, in, out);
        return;
    }
    const OpRow& r = *op;
    const uint32_t saves = r.saves_for ? r.saves_for(attrs) : r.saves;
    Node node{.name = r.name, .backward = r.backward, .attrs = attrs, .saved = saves};
    for (size_t i = 0; i < in.size(); ++i) node.in[i] = saves & input_bit(int(i)) ? in[i] : in[i].without_memory();
    for (size_t i = 0; i < out.size(); ++i) node.out[i] = saves & output_bit(int(i)) ? out[i] : out[i].without_memory();
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

void Tape::gradients(const Tensor& loss, const Parameters& parameters) {
    const auto call = parameters.differentiator.call("Network");
    std::vector<Tensor> values, destinations;
    for (const Parameters::Entry& e : parameters.entries())
        if (e.rate != 0) values.push_back(e.value), destinations.push_back(e.gradient);
    gradients(loss, values, destinations);
}

void Tape::gradients(const Tensor& loss, std::span<const Tensor> tensors, std::span<const Tensor> destinations) {
    RG_CHECK(!consumed_, "gradients: expected the first call of this tape, got another; make another Tape, or ask for ",
             "all gradients at once");
    RG_CHECK(loss.defined() && loss.numel() == 1, "gradients: expected a loss with one element, got ",
             loss.shape().str(), "; sum or average it");
    RG_CHECK(tensors.size() == destinations.size(), "gradients: expected ", tensors.size(), " destinations, got ",
             destinations.size(), "; pass one for each tensor");
    const NoTape pause;
    Gradients computed;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const Tensor &t = tensors[i], &destination = destinations[i];
        RG_CHECK(t.defined() && destination.defined(), "gradients: expected defined tensors, got an undefined ",
                 t.defined() ? "destination " : "tensor ", i, "; call Parameters::allocate() first; a network of ",
                 "make_network() only predicts, so train one of its constructor, with values by load_state_dict()");
        RG_CHECK(t.shape() == destination.shape() && t.dtype() == destination.dtype(),
                 "gradients: expected destination ", i, " of ", name_of(t.dtype()), " ", t.shape().str(),
                 " like its tensor, got ", name_of(destination.dtype()), " ", destination.shape().str(),
                 "; allocate it with the tensor's type and shape");
        RG_CHECK(computed.destination.emplace(t.key(), destination).second,
                 "gradients: expected each tensor once, got tensor ", i, " twice; list it once");
    }
    expect_no_overlap(tensors, destinations, nodes_);
    consumed_ = true;
    std::vector<Dependents> dependents;
    Dependence dependence(tensors);
    for (const Node& node : nodes_) dependents.push_back(dependence.visit(node));
    computed.add(loss, Tensor::constant(loss.shape(), 1, loss.dtype()));
    for (; !nodes_.empty(); nodes_.pop_back(), dependents.pop_back()) {
        const Node& node = nodes_.back();
        const Dependents& inputs = dependents.back();
        const auto slot = computed.gradient.find(node.out[0].key());
        if (!node.backward || slot == computed.gradient.end() || !(inputs.needed | inputs.blocked)) continue;
        const Tensor dy = slot->second.reshape(node.out[0].shape());
        // Only this node reads the gradient of its result. Unless the caller requested that gradient, remove it from
        // the map. `dy` keeps its memory until the node is done.
        if (!computed.destination.contains(slot->first)) computed.gradient.erase(slot);
        NodeBackwardContext backward(node, inputs, dy, computed);
        node.backward(backward);
        backward.expect_all_handled();
    }
    const auto reached = [&](const Tensor& t) { return computed.gradient.contains(t.key()); };
    const Barrier* const barrier = dependence.barrier_of(loss);
    RG_CHECK(!barrier, "gradients: expected a loss that comes from ops that have gradients, got one that comes from ",
             barrier->call, "; ", barrier->instead);
    RG_CHECK(tensors.empty() || std::any_of(tensors.begin(), tensors.end(), reached),
             "gradients: expected a loss that depends on the tensors, got one that depends on none of the ",
             tensors.size(), "; compute it from them while the tape exists, without NoTape");
    for (size_t i = 0; i < tensors.size(); ++i) {
        const DType type = destinations[i].dtype();
        if (!reached(tensors[i]))
            run(op::cast, {Tensor::constant(tensors[i].shape(), 0, type)}, CastOp{type}, {destinations[i]});
    }
}

} // namespace rg
