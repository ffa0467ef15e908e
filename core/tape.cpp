// The reverse walk. Tensors are told apart by Tensor::key(), so a reshaped view is the same value as its source.
#include "core/tape.h"

#include "core/context.h"

#include <map>
#include <set>

namespace rg {

namespace {

thread_local Tape* active_tape = nullptr;

/// Gradients by value, and where the caller wants some of them.
struct Slots {
    std::map<Tensor::Key, Tensor> gradient, target;
    std::set<Tensor::Key> needed; // values that lie between the loss and a requested tensor

    void give(const Tensor& value, const Tensor& contribution) {
        const auto wanted = target.find(value.key());
        const Tensor into = wanted == target.end() ? Tensor() : wanted->second;
        auto [slot, first] = gradient.try_emplace(value.key(), contribution);
        if (!first) {
            const Tensor sum = into.defined() ? into.reshape(contribution.shape()) : Tensor();
            slot->second = run(Op::add, {slot->second.reshape(contribution.shape()), contribution}, {}, {sum})[0];
        } else if (into.defined() && into.key() != contribution.key()) {
            slot->second = run(Op::cast, {contribution.reshape(into.shape())}, {.dtype = into.dtype()}, {into})[0];
        }
    }
};

class NodeBackward final : public Backward {
public:
    NodeBackward(const Tape::Node& node, const Tensor& dy, Slots& slots) : node_(node), dy_(dy), slots_(slots) {}
    const Attrs& attrs() const override { return node_.attrs; }
    const Tensor& in(int i) const override { return node_.in[size_t(i)]; }
    const Tensor& out(int i) const override { return node_.out[size_t(i)]; }
    const Tensor& dy() const override { return dy_; }
    bool wants(int i) const override { return in(i).defined() && slots_.needed.contains(in(i).key()); }
    Tensor into(int i) const override {
        const auto target = slots_.target.find(in(i).key());
        if (target == slots_.target.end() || slots_.gradient.contains(in(i).key())) return {};
        return target->second.reshape(in(i).shape());
    }
    void give(int i, const Tensor& gradient) override { slots_.give(in(i), gradient); }

private:
    const Tape::Node& node_;
    const Tensor& dy_;
    Slots& slots_;
};

} // namespace

Tape::Tape() : before_(active_tape) { active_tape = this; }
Tape::~Tape() { active_tape = before_; }
Tape* Tape::active() { return active_tape; }

NoTape::NoTape() : before_(active_tape) { active_tape = nullptr; }
NoTape::~NoTape() { active_tape = before_; }

void Tape::record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) {
    Node node{op, attrs, {}, {}};
    const uint32_t saves = row(op).saves;
    for (size_t i = 0; i < in.size(); ++i) node.in[i] = saves & saves_in(int(i)) ? in[i] : in[i].without_memory();
    for (size_t i = 0; i < out.size(); ++i) node.out[i] = saves & saves_out(int(i)) ? out[i] : out[i].without_memory();
    nodes_.push_back(std::move(node));
}

void Tape::gradients(const Tensor& loss, std::span<const Tensor> of, std::span<const Tensor> into) {
    RG_CHECK(loss.defined() && loss.numel() == 1, "gradients: the loss needs one element, got ", loss.shape().str());
    RG_CHECK(of.size() == into.size(), "gradients: ", of.size(), " tensors, ", into.size(), " destinations");
    const NoTape pause;
    Slots slots;
    for (size_t i = 0; i < of.size(); ++i) {
        RG_CHECK(of[i].shape() == into[i].shape(), "gradients: destination ", i, " has shape ", into[i].shape().str(),
                 ", its tensor ", of[i].shape().str());
        RG_CHECK(slots.target.emplace(of[i].key(), into[i]).second, "gradients: tensor ", i, " is listed twice");
        slots.needed.insert(of[i].key());
    }
    for (const Node& node : nodes_)
        for (const Tensor& t : node.in)
            if (t.defined() && slots.needed.contains(t.key())) {
                slots.needed.insert(node.out[0].key());
                break;
            }
    slots.give(loss, Tensor::constant(loss.shape(), 1, loss.dtype()));
    for (; !nodes_.empty(); nodes_.pop_back()) {
        const Node& node = nodes_.back();
        const auto slot = slots.gradient.find(node.out[0].key());
        if (slot == slots.gradient.end() || !slots.needed.contains(node.out[0].key())) continue;
        const Tensor dy = slot->second.reshape(node.out[0].shape());
        // The gradient of an inner value has no other reader: let its memory go as soon as this node is done.
        if (!slots.target.contains(slot->first)) slots.gradient.erase(slot);
        NodeBackward backward(node, dy, slots);
        row(node.op).backward(backward);
    }
    for (size_t i = 0; i < of.size(); ++i)
        if (!slots.gradient.contains(of[i].key()))
            run(Op::cast, {Tensor::constant(of[i].shape(), 0, into[i].dtype())}, {.dtype = into[i].dtype()}, {into[i]});
}

} // namespace rg
