// Moves steps of a trace into the steps before or after them, so that a step's result is used while it is in cache.
//
// Several ops, such as conv2d, conv2d_grad and add, have optional arguments for additional work: they normalise an
// operand on load, or process their result before they store it (core/ops/). Each rule below turns one kind of step
// into such additional work. Consider a layer of convolution, batch norm and activation that another convolution
// follows. The plan of a training step has only two steps for it that read or write images. conv2d normalises its input
// on load and computes the statistics of its result. conv2d_grad computes the gradient of the batch norm, both
// gradients of the convolution, and the sums for the batch norm of its input. The normalised activations of such a
// layer are never written to memory. In an evaluation, the batch norm goes into the filters and the bias.
//
// Fuser::run() lists the rules in the order in which they are applied, with the reasons for the order.
#include "core/fuse.h"

#include "core/context.h"
#include "core/ops.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace rg {

namespace {

using Id = uint64_t; // the number of a value's block of memory

Id id(const Tensor& t) { return t.key().id; }

/// Returns true if a and b begin at the same place in memory and have the same shape. A fused step takes the shape from
/// the tensor that it gets. So the rules fuse only steps that read a value in its own shape, and not through a view.
bool same(const Tensor& a, const Tensor& b) { return a.key() == b.key() && a.shape() == b.shape(); }

class Fuser {
public:
    Fuser(std::vector<Step>& steps, std::span<const Tensor> results) : steps_(steps), dead_(steps.size(), false) {
        for (const Tensor& t : results) results_.insert(id(t));
        index();
    }

    /// Applies all rules. Where a comment gives no reason, the order does not matter.
    void run() {
        apply(&Fuser::fold_norm, op::batch_norm);
        apply(&Fuser::add_in_gradient, op::add);
        apply(&Fuser::activation_of_sum, op::activation);
        apply(&Fuser::loss_gradient, op::cross_entropy_grad);
        // These two, and prepare_sums, save launches on devices. The first matches steps that the rules below change.
        apply(&Fuser::prepare_norm, op::batch_norm);
        apply(&Fuser::update_running, op::running_update);
        apply(&Fuser::normalise_gradient, op::batch_norm_grad);
        // After add_in_gradient, which cannot take an add that normalises an operand. After fold_norm, which may take
        // the same batch norms: they cost next to nothing in the filters, but something for each element in a sum.
        apply(&Fuser::normalise_sum, op::add);
        // After normalise_gradient: conv2d_grad can normalise x only if it also computes the gradient of a batch norm.
        apply(&Fuser::normalise_on_load, op::batch_norm);
        // After add_in_gradient: the sums must include the gradient that is added. After normalise_on_load:
        // conv2d_grad needs the statistics of x for the sums.
        apply(&Fuser::sum_in_gradient, op::batch_norm_grad_sums);
        // After all rules that make steps with the sums of a batch norm.
        apply(&Fuser::prepare_sums, op::combine_sums);
        size_t kept = 0;
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s]) std::swap(steps_[kept++], steps_[s]);
        steps_.resize(kept);
        split_gradients(); // split_gradients() and round_filters() insert steps, so they come after all rules
        if (context().device) round_filters();
    }

private:
    struct Use { // an input or output of a step
        size_t step, argument;
    };
    using Uses = std::map<Id, std::vector<Use>>; // the key is the block of the value that is used

    /// Calls a rule for each step of `op`. The rule changes nothing if that step cannot be fused. In the comments of
    /// the rules, a -> b means that step b reads a result of step a.
    void apply(void (Fuser::*rule)(size_t step), Op op) {
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == op) (this->*rule)(s);
    }

    /// Finds the steps that write and read each block.
    void index() {
        writers_.clear();
        readers_.clear();
        for (size_t s = 0; s < steps_.size(); ++s) {
            if (dead_[s]) continue;
            for (size_t i = 0; i < kMaxInputs; ++i)
                if (steps_[s].in[i].defined()) readers_[id(steps_[s].in[i])].push_back({s, i});
            for (size_t i = 0; i < kMaxOutputs; ++i)
                if (steps_[s].out[i].defined()) writers_[id(steps_[s].out[i])].push_back({s, i});
        }
    }

    /// Puts `step` at position s and marks the steps in `dead` as removed.
    void replace(size_t s, Step step, std::initializer_list<size_t> dead) {
        for (const size_t d : dead) dead_[d] = true;
        dead_[s] = false;
        steps_[s] = std::move(step);
        index();
    }

    /// Return true if a step from `first` to `last`, other than `except`, writes or reads a byte of t.
    bool written(const Tensor& t, size_t first, size_t last, size_t except = SIZE_MAX) const {
        return any_use(writers_, &Step::out, t, first, last, except);
    }
    bool read(const Tensor& t, size_t first, size_t last, size_t except) const {
        return any_use(readers_, &Step::in, t, first, last, except);
    }
    template <class Side>
    bool any_use(const Uses& uses, Side side, const Tensor& t, size_t first, size_t last, size_t except) const {
        const auto found = uses.find(id(t));
        return found != uses.end() && std::any_of(found->second.begin(), found->second.end(), [&](const Use& use) {
                   return first <= use.step && use.step <= last && use.step != except &&
                          overlap((steps_[use.step].*side)[use.argument], t);
               });
    }

    /// Returns true if step `to` can do the work of step `from` with the same results. This holds if no step from one
    /// to the other writes an input of `from`, or reads or writes an output of it. Does not check `links`, the values
    /// that pass between the two: the rule does. Every rule that moves work asks this function.
    bool can_move(size_t from, size_t to, std::initializer_list<Tensor> links) const {
        const auto [first, last] = std::minmax(from, to);
        const auto moves = [&](const Tensor& t) {
            return t.defined() && std::none_of(links.begin(), links.end(), [&](const Tensor& l) { return same(l, t); });
        };
        for (const Tensor& t : steps_[from].in)
            if (moves(t) && written(t, first, last, from)) return false;
        for (const Tensor& t : steps_[from].out)
            if (moves(t) && (written(t, first, last, from) || read(t, first, last, from))) return false;
        return true;
    }

    /// Returns the readers of t if it is an intermediate. Returns none if t is a result of the plan, if t has memory
    /// outside of the plan, if more than one step writes to its block, or if a reader takes a view of t.
    std::vector<Use> intermediate_readers(const Tensor& t) const {
        const auto found = readers_.find(id(t)), made = writers_.find(id(t));
        if (t.has_memory() || results_.contains(id(t)) || found == readers_.end() || made == writers_.end() ||
            made->second.size() > 1)
            return {};
        for (const Use& r : found->second)
            if (!same(steps_[r.step].in[r.argument], t)) return {};
        return found->second;
    }
    bool has_one_reader(const Tensor& intermediate) const { return intermediate_readers(intermediate).size() == 1; }
    /// Returns true if t is an intermediate, and `can` holds for all its readers.
    template <class F>
    bool all_readers(const Tensor& t, F can) const {
        const std::vector<Use> readers = intermediate_readers(t);
        return !readers.empty() && std::all_of(readers.begin(), readers.end(), can);
    }

    /// Returns the last step before `reader` that writes to t. Returns nothing if there is none, or if what that step
    /// writes there is not t itself (see same()).
    std::optional<size_t> maker(size_t reader, const Tensor& t) const {
        const auto found = writers_.find(id(t));
        if (found == writers_.end()) return std::nullopt;
        std::optional<size_t> last;
        for (const auto& [step, output] : found->second) { // in the order of the steps
            const Tensor& made = steps_[step].out[output];
            if (step >= reader || !overlap(made, t)) continue;
            last = same(made, t) ? std::optional(step) : std::nullopt;
        }
        return last;
    }
    /// Returns maker(reader, t) if t is output `output` of that step, and the step is one of `op`. Otherwise returns
    /// nothing.
    std::optional<size_t> maker(size_t reader, const Tensor& t, Op op, size_t output = 0) const {
        const std::optional<size_t> s = maker(reader, t);
        if (!s || steps_[*s].op != op || !same(steps_[*s].out[output], t)) return std::nullopt;
        return s;
    }

    /// Calls f with the attribute NormAt of the input that a conv2d, conv2d_grad or pooling can normalise on load.
    template <class F>
    static auto with_x_norm(Step& s, F f) {
        if (s.op == op::conv2d) return f(s.attrs.as<Conv2dOp>().x_norm);
        if (s.op == op::conv2d_grad) return f(s.attrs.as<Conv2dGradOp>().x_norm);
        return f(s.attrs.as<Pool2dOp>().x_norm);
    }

    /// Returns true if the step is a conv2d or conv2d_grad that takes fused steps.
    static bool fusible(const Step& s) {
        if (s.op == op::conv2d) return takes_fused_steps(s.attrs.as<Conv2dOp>().conv, s.in[Conv2dOp::w]);
        return s.op == op::conv2d_grad && takes_fused_steps(s.attrs.as<Conv2dGradOp>().conv, s.in[Conv2dGradOp::w]);
    }

    /// Replaces a value of two rows by one of four rows in all steps (core/ops/norm.h). Returns the new value.
    Tensor add_rows(const Tensor& value) {
        const DryRun no_memory; // the plan allocates the new value
        const Id replaced = id(value);
        const Tensor rows = Tensor::empty({4, value.extent(1)}, value.dtype());
        for (Step& s : steps_) {
            for (Tensor& t : s.in)
                if (t.defined() && id(t) == replaced) t = rows;
            for (Tensor& t : s.out)
                if (t.defined() && id(t) == replaced) t = rows;
        }
        return rows;
    }

    /// Returns the batch norm of a batch_norm, batch_norm_grad_sums or batch_norm_grad.
    static BatchNormTensors norm_of(const Step& s) {
        if (s.op == op::batch_norm) return s.attrs.as<BatchNormOp>().norm.given(s.in);
        if (s.op == op::batch_norm_grad_sums) return s.attrs.as<BatchNormGradSumsOp>().norm.given(s.in);
        return s.attrs.as<BatchNormGradOp>().norm.given(s.in);
    }

    /// On a device, conv2d with statistics -> batch_norm: conv2d also computes the coefficients of the batch norm, as
    /// two more rows of the statistics (core/ops/norm.h). The rule applies only if all readers of the statistics can
    /// take these rows.
    void prepare_norm(size_t norm) {
        using Conv = Conv2dOp;
        const Step n = steps_[norm];
        const BatchNormTensors given = n.attrs.as<BatchNormOp>().norm.given(n.in);
        const auto conv = maker(norm, given.stats, op::conv2d, Conv::stats);
        if (!context().device || !conv || !fusible(steps_[*conv])) return;
        const auto can_take_rows = [&](const Use& r) {
            const Step& s = steps_[r.step];
            if (s.op == op::running_update) return true;
            if (r.step != norm && s.op != op::batch_norm_grad_sums && s.op != op::batch_norm_grad) return false;
            const BatchNormTensors other = norm_of(s);
            return other.gamma.key() == given.gamma.key() && other.beta.key() == given.beta.key() &&
                   other.options.epsilon == given.options.epsilon && !written(given.gamma, *conv, r.step) &&
                   !written(given.beta, *conv, r.step);
        };
        if (!all_readers(given.stats, can_take_rows)) return;
        add_rows(given.stats);
        Step& fused = steps_[*conv];
        fused.attrs.as<Conv>().y_norm.set(fused.in, BatchNormTensors{{}, given.gamma, given.beta, given.options});
        index();
    }

    /// On a device, conv2d with statistics -> running_update: conv2d updates the running statistics.
    void update_running(size_t update) {
        using Update = RunningUpdateOp;
        const Step u = steps_[update];
        const auto conv = maker(update, u.in[Update::stats], op::conv2d, Conv2dOp::stats);
        if (!context().device || !conv || !fusible(steps_[*conv]) || steps_[*conv].in[Conv2dOp::running].defined() ||
            !can_move(update, *conv, {u.in[Update::stats]}))
            return;
        Step fused = steps_[*conv];
        const auto& attrs = u.attrs.as<Update>();
        const Shape& y = fused.out[Conv2dOp::y].shape();
        if (attrs.images != y[0] || attrs.pixels != y[1] * y[2]) return;
        fused.attrs.as<Conv2dOp>().momentum = attrs.momentum;
        fused.in[Conv2dOp::running] = u.in[Update::running];
        fused.out[Conv2dOp::new_running] = u.out[0];
        replace(*conv, std::move(fused), {update});
    }

    /// conv2d_grad or a gradient of pooling -> combine_sums: on a device, without Context::sync, the first step also
    /// computes the results of combine_sums, and the coefficients that the gradient of the batch norm needs.
    void prepare_sums(size_t sums) {
        const Step s = steps_[sums];
        const Tensor &dgamma = s.in[CombineSumsOp::dgamma], &dbeta = s.in[CombineSumsOp::dbeta];
        if (!context().device || context().sync) return;
        const auto can_take_rows = [&](const Use& r) {
            const Op op = steps_[r.step].op;
            return op == op::conv2d_grad || op == op::batch_norm_grad;
        };
        const auto made = maker(sums, dgamma);
        if (!all_readers(s.out[0], can_take_rows) || !made || !can_move(sums, *made, {dgamma, dbeta})) return;
        Step& grad = steps_[*made];
        const auto take = [&](size_t x_dgamma, size_t x_dbeta, size_t x_sums) {
            if (!same(grad.out[x_dgamma], dgamma) || !same(grad.out[x_dbeta], dbeta)) return;
            grad.out[x_sums] = add_rows(s.out[0]);
            dead_[sums] = true;
            index();
        };
        if (grad.op == op::conv2d_grad) take(Conv2dGradOp::x_dgamma, Conv2dGradOp::x_dbeta, Conv2dGradOp::x_sums);
        if (grad.op == op::max_pool2d_grad || grad.op == op::avg_pool2d_grad)
            take(Pool2dGradOp::x_dgamma, Pool2dGradOp::x_dbeta, Pool2dGradOp::x_sums);
    }

    /// conv2d -> batch_norm with constant statistics: conv2d normalises its result.
    void fold_norm(size_t norm) {
        const Step n = steps_[norm];
        const auto [x, given] = n.attrs.as<BatchNormOp>().norm.operand(n.in);
        const auto conv = maker(norm, x, op::conv2d);
        if (!given.options.frozen || !conv || !has_one_reader(x)) return;
        Step fused = steps_[*conv];
        auto& attrs = fused.attrs.as<Conv2dOp>();
        if (attrs.with_stats || attrs.y_norm.given(fused.in) || !fusible(fused) ||
            !can_move(*conv, norm, {fused.out[Conv2dOp::y]}))
            return;
        attrs.y_norm.set(fused.in, given);
        fused.out[Conv2dOp::y] = n.out[0];
        replace(norm, std::move(fused), {*conv});
    }

    /// batch_norm_grad -> conv2d_grad: conv2d_grad computes the gradient of the batch norm on load.
    void normalise_gradient(size_t norm) {
        using Grad = Conv2dGradOp;
        const Step n = steps_[norm];
        const auto& attrs = n.attrs.as<BatchNormGradOp>();
        const std::vector<Use> readers = intermediate_readers(n.out[0]);
        if (attrs.norm.frozen || readers.size() != 1) return;
        const auto [grad, argument] = readers[0];
        Step fused = steps_[grad];
        if (fused.op != op::conv2d_grad || !fusible(fused) || argument != Grad::dy || !fused.attrs.as<Grad>().filters ||
            fused.in[Grad::y].defined() || !can_move(norm, grad, {n.out[0]}))
            return;
        fused.attrs.as<Grad>().y_norm.set(fused.in, attrs.norm.operand(n.in));
        fused.in[Grad::dy] = n.in[BatchNormGradOp::dy];
        fused.in[Grad::y_sums] = n.in[BatchNormGradOp::sums];
        replace(grad, std::move(fused), {norm});
    }

    /// conv2d_grad -> add of two gradients: the conv2d_grad that makes the later gradient also adds the earlier one.
    /// Does not fuse an add into a destination of Tape::gradients(): such an add works in place, which conv2d_grad
    /// cannot.
    void add_in_gradient(size_t sum) {
        using Grad = Conv2dGradOp;
        const Step a = steps_[sum];
        const auto& attrs = a.attrs.as<AddOp>();
        if (attrs.activation.kind || attrs.a_norm.given(a.in) || attrs.b_norm.given(a.in)) return;
        const auto first = maker(sum, a.in[AddOp::a]), second = maker(sum, a.in[AddOp::b]);
        if (!first || !second || first == second) return;
        const size_t later = *first < *second ? AddOp::b : AddOp::a, other = later == AddOp::a ? AddOp::b : AddOp::a;
        const auto grad = maker(sum, a.in[later], op::conv2d_grad, Grad::dx);
        if (!grad || !has_one_reader(a.in[later]) || steps_[*grad].in[Grad::addend].defined()) return;
        Step fused = steps_[*grad];
        if (!fusible(fused) || !can_move(sum, *grad, {a.in[later]})) return;
        fused.in[Grad::addend] = a.in[other];
        fused.out[Grad::dx] = a.out[0];
        if (!wrong_alias(*fused.op, fused.inputs(), fused.outputs()).empty()) return;
        replace(*grad, std::move(fused), {sum});
    }

    /// batch_norm without an activation -> add: add normalises that operand, or both operands, on load.
    void normalise_sum(size_t sum) {
        Step fused = steps_[sum];
        const auto normalise = [&](auto& norm_of_operand) {
            const auto [x, given] = norm_of_operand.operand(fused.in);
            const auto norm = maker(sum, x, op::batch_norm);
            if (!norm || !has_one_reader(x) || given) return;
            const Step& n = steps_[*norm];
            const auto& options = n.attrs.as<BatchNormOp>().norm;
            if (options.activation.kind || !can_move(*norm, sum, {n.out[0]})) return;
            norm_of_operand.set(fused.in, options.operand(n.in));
            dead_[*norm] = true;
        };
        normalise(fused.attrs.as<AddOp>().a_norm);
        normalise(fused.attrs.as<AddOp>().b_norm);
        replace(sum, std::move(fused), {});
    }

    /// add -> activation: add applies it to its result, if is_fusible() allows the kind and add has no other one yet. A
    /// backward pass that reads the sum itself, as that of hardswish does, prevents this.
    void activation_of_sum(size_t activation) {
        const Step a = steps_[activation];
        const Activation applied = a.attrs.as<ActivationOp>().activation;
        const auto sum = maker(activation, a.in[ActivationOp::x], op::add);
        if (!is_fusible(applied) || !sum || !has_one_reader(a.in[ActivationOp::x])) return;
        Step fused = steps_[*sum];
        if (fused.in[AddOp::a].shape().rank() != 4 || fused.attrs.as<AddOp>().activation.kind ||
            !can_move(*sum, activation, {fused.out[0]}))
            return;
        fused.attrs.as<AddOp>().activation = applied;
        fused.out[0] = a.out[0];
        replace(activation, std::move(fused), {*sum});
    }

    /// batch_norm -> conv2d, pooling or conv2d_grad: these readers normalise their input x on load. The rule applies
    /// only if all readers of the batch norm can do that.
    void normalise_on_load(size_t norm) {
        const Step n = steps_[norm];
        const auto& batch_norm = n.attrs.as<BatchNormOp>().norm;
        const auto can_normalise = [&](const Use& r) {
            Step& s = steps_[r.step];
            const bool grad = s.op == op::conv2d_grad, pools = s.op == op::max_pool2d || s.op == op::avg_pool2d;
            return can_move(norm, r.step, {n.out[0]}) && (fusible(s) || pools) &&
                   (!grad || s.in[Conv2dGradOp::y].defined()) && with_x_norm(s, [&](const auto& x_norm) {
                       const auto [x, given] = x_norm.operand(s.in);
                       return &x == &s.in[r.argument] && !given;
                   });
        };
        if (batch_norm.frozen || !all_readers(n.out[0], can_normalise)) return;
        for (const Use& r : intermediate_readers(n.out[0])) {
            Step& s = steps_[r.step];
            with_x_norm(s, [&](auto& x_norm) { x_norm.set(s.in, batch_norm.operand(n.in)); });
        }
        dead_[norm] = true;
        index();
    }

    /// conv2d_grad, a gradient of pooling, or activation_grad -> batch_norm_grad_sums of its result: the step that
    /// computes the gradient also computes the sums.
    void sum_in_gradient(size_t sums) {
        const Step s = steps_[sums];
        const Tensor& gradient = s.in[BatchNormGradSumsOp::dy];
        const auto made = maker(sums, gradient);
        if (!made || results_.contains(id(gradient)) || gradient.has_memory() || !can_move(sums, *made, {gradient}))
            return;
        Step fused = steps_[*made];
        if (take_sums(fused, s)) replace(*made, std::move(fused), {sums});
    }
    /// Makes `step` also compute the results of the step `sums`. Returns false if `step` cannot do that.
    static bool take_sums(Step& step, const Step& sums) {
        using Sums = BatchNormGradSumsOp;
        const Operand summed = sums.attrs.as<Sums>().norm.operand(sums.in); // x and the batch norm of the sums
        const auto take_at = [&](auto& norm, Tensor& dgamma, Tensor& dbeta) {
            if (norm.operand(step.in).x.defined()) return false; // already has the sums of another batch norm
            norm.set(step.in, summed);
            dgamma = sums.out[Sums::dgamma], dbeta = sums.out[Sums::dbeta];
            return true;
        };
        if (step.op == op::conv2d_grad) { // computes the sums only if it already normalises its x by this batch norm
            using Grad = Conv2dGradOp;
            auto& attrs = step.attrs.as<Grad>();
            const auto [x, norm] = attrs.x_norm.operand(step.in);
            const bool same_norm = norm && norm.stats.key() == summed.norm.stats.key() &&
                                   norm.options == summed.norm.options && same(x, summed.x);
            if (attrs.with_sums || !same_norm || !same(step.out[Grad::dx], sums.in[Sums::dy])) return false;
            attrs.with_sums = true;
            step.out[Grad::x_dgamma] = sums.out[Sums::dgamma];
            step.out[Grad::x_dbeta] = sums.out[Sums::dbeta];
            return true;
        }
        if (step.op == op::max_pool2d_grad || step.op == op::avg_pool2d_grad) {
            using Grad = Pool2dGradOp;
            return take_at(step.attrs.as<Grad>().x_norm, step.out[Grad::x_dgamma], step.out[Grad::x_dbeta]);
        }
        if (step.op != op::activation_grad || summed.norm.options.activation.kind) return false;
        using Grad = ActivationGradOp;
        auto& attrs = step.attrs.as<Grad>();
        return take_at(attrs.a_norm, step.out[Grad::a_dgamma], step.out[Grad::a_dbeta]) ||
               take_at(attrs.b_norm, step.out[Grad::b_dgamma], step.out[Grad::b_dbeta]);
    }

    /// cross_entropy -> cross_entropy_grad: cross_entropy writes the gradient instead of the probabilities. The rule
    /// applies only if `dloss`, the gradient of the loss, is known before the loss.
    void loss_gradient(size_t grad) {
        using Loss = CrossEntropyOp;
        using Grad = CrossEntropyGradOp;
        const Step g = steps_[grad];
        const Tensor& probabilities = g.in[Grad::probabilities];
        const auto loss = maker(grad, probabilities, op::cross_entropy, Loss::probabilities);
        if (!loss || !has_one_reader(probabilities)) return;
        Step fused = steps_[*loss];
        if (!same(fused.in[Loss::labels], g.in[Grad::labels]) || !same(fused.in[Loss::weights], g.in[Grad::weights]) ||
            !same(fused.in[Loss::sample_weights], g.in[Grad::sample_weights]) ||
            fused.attrs.as<Loss>().smoothing != g.attrs.as<Grad>().smoothing || fused.in[Loss::dloss].defined() ||
            !can_move(grad, *loss, {probabilities}))
            return;
        fused.in[Loss::dloss] = g.in[Grad::dloss];
        fused.out[Loss::probabilities] = {};
        fused.out[Loss::dlogits] = g.out[0];
        replace(*loss, std::move(fused), {grad});
    }

    /// Splits a conv2d_grad that computes both gradients, and no gradient of a batch norm, into two steps. The second
    /// step computes dx and does not need the values of x, so dx can get their memory. In the network of
    /// train_digits_angles, this saved 15 % of the plan's memory and 2 to 3 % of a step's time.
    void split_gradients() {
        using Grad = Conv2dGradOp;
        std::vector<Step> steps;
        for (Step& s : steps_) {
            if (s.op == op::conv2d_grad && !s.in[Grad::y].defined() && s.attrs.as<Grad>().filters &&
                s.attrs.as<Grad>().data) {
                Step filters = s;
                filters.attrs.as<Grad>().data = false;
                filters.in[Grad::addend] = filters.out[Grad::dx] = {};
                steps.push_back(std::move(filters));
                s.attrs.as<Grad>().filters = false;
                s.in[Grad::x] = s.out[Grad::dw] = s.out[Grad::dbias] = {};
            }
            steps.push_back(std::move(s));
        }
        steps_ = std::move(steps);
    }

    /// Returns the filters of a convolution of bf16 images or of its gradient. Returns null for other steps, and if a
    /// batch norm is folded into the filters, since a device scales those in f32.
    static Tensor* filters_to_round(Step& s) {
        using Grad = Conv2dGradOp;
        if (s.op == op::conv2d && s.in[Conv2dOp::x].dtype() == DType::bf16 &&
            !s.attrs.as<Conv2dOp>().y_norm.given(s.in))
            return &s.in[Conv2dOp::w];
        return s.op == op::conv2d_grad && s.in[Grad::dy].dtype() == DType::bf16 ? &s.in[Grad::w] : nullptr;
    }

    /// Rounds the filters of bf16 convolutions at the start of the plan, with one step per flat buffer of parameters.
    /// Otherwise each convolution and each gradient would round its own filters. Every replay rounds again, so code
    /// that writes parameters between replays (an update, a resumed checkpoint) can ignore the rounded copies. Skips
    /// filters that an earlier step may write, and filters whose copy would not be aligned to 16 bytes.
    void round_filters() {
        std::map<Id, Tensor> rounded; // the rounded copy of each flat buffer
        std::set<Id> written;
        std::vector<Step> roundings;
        for (Step& s : steps_) {
            Tensor* const w = filters_to_round(s);
            if (w && w->has_memory() && w->key().offset % 32 == 0 && !written.contains(id(*w))) {
                const auto [copy, fresh] = rounded.try_emplace(id(*w));
                if (fresh) {
                    const DryRun no_memory; // the plan allocates the copy
                    copy->second = Tensor::empty(w->whole().shape(), DType::bf16);
                    roundings.push_back({op::cast, CastOp{DType::bf16}, {w->whole()}, {copy->second}});
                }
                *w = copy->second.slice(w->key().offset / size_of(w->dtype()), w->shape());
            }
            for (const Tensor& t : s.out)
                if (t.defined()) written.insert(id(t));
        }
        steps_.insert(steps_.begin(), roundings.begin(), roundings.end());
    }

    std::vector<Step>& steps_;
    std::vector<bool> dead_;
    std::set<Id> results_;
    Uses writers_, readers_;
};

} // namespace

void fuse(std::vector<Step>& steps, std::span<const Tensor> results) { Fuser(steps, results).run(); }

} // namespace rg
