// Fuses steps of a trace, in several passes. Each pass looks for one pattern of a value, its producer and its readers.
//
// A training step of convolution - batch norm - ReLU layers keeps two steps per layer:
// - norm_conv2d, the convolution. It normalises its input while it loads it, and computes the statistics of its result.
// - conv2d_norm_grad, the backward step. Image by image, while the image is in cache, it computes batch_norm_grad, then
//   both gradients of the convolution, and the sums that the normalisation of its input needs for its gradients.
// The normalised activations are never written to memory. In an evaluation, the normalisation with constant statistics
// goes into the filters and the bias, and max pooling runs while the convolution's image is in cache (conv2d_norm).
//
// On a device, one step at the start of the plan rounds all filters of bf16 convolutions. Otherwise each convolution
// and each data gradient would round its own. Every replay rounds again, so code that writes parameters between
// replays (an update, a checkpoint, a rollback) can ignore the rounded copies.
//
// run() calls the passes in this order:
//   1 fold_norm_into_conv     2 pool_in_conv              3 fuse_conv_backward
//   4 add_in_gradient, and fuse_norm_add for the adds that it leaves
//   5 fuse_relu_grad_sums     6 normalise_on_load         7 sum_in_gradient
//   8 fuse_loss_gradient      9 round_filters, after the removal of dead steps
// The order matters here:
// - 1 before 2: pass 2 looks for the conv2d_norm that pass 1 makes.
// - 1 before 4: fuse_norm_add would also take a normalisation with constant statistics. In the filters it is free.
// - 3 before 4: pass 4 gives a data gradient one more operand, to add. Pass 3 would drop it, and the sum with it.
// - 3 before 6: pass 3 finds the filters at a plain conv2d, which pass 6 replaces. Pass 6 needs conv2d_norm_grad,
//   because conv2d_wgrad cannot normalise its input.
// - 4 before 7: pass 7 lets a step sum over the data gradient that it makes. If pass 4 then added to this data
//   gradient, the sums would be wrong.
// - 6 before 7: pass 7 needs the statistics of the input, which pass 6 gives to conv2d_norm_grad.
// - 9 last: it inserts steps, and it must not see the filters that pass 1 folds: conv2d_norm scales f32 filters
//   before it rounds them.
// Any other two passes work on different steps, or on different arguments of a step, so their order does not matter.
// In particular, passes 5 and 8 may run anywhere before 9.
#include "core/fuse.h"

#include "core/context.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace rg {

namespace {

using Id = uint64_t; // the number of a value's block of memory

Id id(const Tensor& t) { return t.key().id; }

/// Returns true if a and b have the same elements and the same shape. A fused step takes its extents from the value, so
/// the passes accept only readers of the whole value in its own shape, no views.
bool same(const Tensor& a, const Tensor& b) { return a.key() == b.key() && a.shape() == b.shape(); }

class Fuser {
public:
    Fuser(std::vector<Step>& steps, std::span<const Tensor> results) : steps_(steps), dead_(steps.size(), false) {
        for (const Tensor& t : results) results_.insert(id(t));
        index();
    }

    void run() {
        for (size_t s = 0; s < steps_.size(); ++s)
            if (steps_[s].op == Op::batch_norm && steps_[s].attrs.frozen) fold_norm_into_conv(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (steps_[s].op == Op::max_pool2d) pool_in_conv(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (steps_[s].op == Op::batch_norm_grad) fuse_conv_backward(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::add && !add_in_gradient(s)) fuse_norm_add(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::relu_grad) fuse_relu_grad_sums(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::batch_norm && !steps_[s].attrs.frozen) normalise_on_load(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::batch_norm_sums) sum_in_gradient(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::cross_entropy_grad) fuse_loss_gradient(s);
        size_t kept = 0;
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s]) std::swap(steps_[kept++], steps_[s]);
        steps_.resize(kept);
        if (context().device) round_filters();
    }

private:
    struct Reader {
        size_t step;
        int argument;
    };

    /// Finds the maker and the readers of every value.
    void index() {
        maker_.clear();
        readers_.clear();
        for (size_t s = 0; s < steps_.size(); ++s) {
            if (dead_[s]) continue;
            for (size_t i = 0; i < kMaxInputs; ++i)
                if (steps_[s].in[i].defined()) readers_[id(steps_[s].in[i])].push_back({s, int(i)});
            for (const Tensor& t : steps_[s].out)
                if (t.defined()) maker_[id(t)] = s;
        }
    }

    /// Puts `step` at position s and removes the steps in `dead`.
    void replace(size_t s, Step step, std::initializer_list<size_t> dead) {
        for (const size_t d : dead) dead_[d] = true;
        dead_[s] = false;
        steps_[s] = std::move(step);
        index();
    }

    /// Returns the readers of an intermediate. Returns none if t is a result or outside of the plan, or if any reader
    /// takes a view of it.
    std::vector<Reader> intermediate_readers(const Tensor& t) const {
        const auto entry = readers_.find(id(t));
        if (t.has_memory() || results_.contains(id(t)) || entry == readers_.end()) return {};
        for (const Reader& r : entry->second)
            if (!same(steps_[r.step].in[size_t(r.argument)], t)) return {};
        return entry->second;
    }

    /// Returns the step that makes t, or nothing if t is a view of another value.
    std::optional<size_t> maker(const Tensor& t) const {
        const auto entry = maker_.find(id(t));
        if (entry == maker_.end()) return std::nullopt;
        for (const Tensor& made : steps_[entry->second].out)
            if (made.defined() && same(made, t)) return entry->second;
        return std::nullopt;
    }

    /// conv2d -> batch_norm with constant statistics becomes conv2d_norm. No other step may read the convolution.
    void fold_norm_into_conv(size_t norm) {
        const Step& n = steps_[norm];
        const auto conv = maker(n.in[0]);
        if (!conv || steps_[*conv].op != Op::conv2d || steps_[*conv].attrs.stats ||
            intermediate_readers(n.in[0]).size() != 1)
            return;
        const Step& c = steps_[*conv];
        Attrs attrs = c.attrs;
        attrs.relu = n.attrs.relu, attrs.epsilon = n.attrs.epsilon;
        replace(norm, {Op::conv2d_norm, attrs, {c.in[0], c.in[1], c.in[2], n.in[1], n.in[2], n.in[3]}, {n.out[0]}},
                {*conv});
    }

    /// conv2d_norm -> max_pool2d with non-overlapping windows becomes one conv2d_norm. No other step may read the
    /// convolution.
    void pool_in_conv(size_t pool) {
        const Step& p = steps_[pool];
        const auto conv = maker(p.in[0]);
        if (!conv || steps_[*conv].op != Op::conv2d_norm || steps_[*conv].attrs.window > 1 ||
            intermediate_readers(p.in[0]).size() != 1 || p.attrs.stride != p.attrs.window)
            return;
        if (readers_.contains(id(p.out[1])) || results_.contains(id(p.out[1]))) return; // a fused step has no positions
        Step fused = steps_[*conv];
        fused.attrs.window = p.attrs.window;
        fused.out[0] = p.out[0];
        replace(pool, std::move(fused), {*conv});
    }

    /// batch_norm_grad -> conv2d_wgrad [and conv2d_dgrad] of one convolution become conv2d_norm_grad.
    void fuse_conv_backward(size_t norm) {
        const Step& n = steps_[norm];
        if (n.attrs.frozen) return;
        const std::vector<Reader> readers = intermediate_readers(n.out[0]);
        std::optional<size_t> wgrad, dgrad;
        for (const Reader& r : readers) {
            if (r.argument != 0) return;
            if (steps_[r.step].op == Op::conv2d_wgrad && !wgrad)
                wgrad = r.step;
            else if (steps_[r.step].op == Op::conv2d_dgrad && !dgrad)
                dgrad = r.step;
            else
                return;
        }
        // conv2d_wgrad does not read the filters. Take them from the convolution that made y.
        const auto conv = maker(n.in[1]);
        if (!wgrad || !conv || steps_[*conv].op != Op::conv2d) return;
        const Step &w = steps_[*wgrad], &c = steps_[*conv];
        if (!same(c.in[0], w.in[1]) || c.attrs.stride != w.attrs.stride || c.attrs.pad != w.attrs.pad) return;
        if (dgrad && !same(steps_[*dgrad].in[1], c.in[1])) return;
        Step fused{Op::conv2d_norm_grad,
                   {.stride = c.attrs.stride, .pad = c.attrs.pad, .relu = n.attrs.relu, .epsilon = n.attrs.epsilon},
                   {n.in[0], n.in[1], n.in[2], n.in[3], n.in[4], n.in[5], w.in[1], {}, {}, {}, c.in[1]},
                   {w.out[0], w.out[1]}};
        if (dgrad) fused.out[2] = steps_[*dgrad].out[0];
        // Use the position of the first step: if filters are used twice, a reader can come before the last one.
        replace(norm, std::move(fused), {*wgrad, dgrad.value_or(*wgrad)});
    }

    /// Removes an add of two gradients: if a convolution's backward step makes the later one, that step also adds the
    /// other. No other step may read the later gradient. Returns true on success.
    bool add_in_gradient(size_t sum) {
        const Step a = steps_[sum];
        if (a.out[0].has_memory()) return false;
        const auto first = maker(a.in[0]), second = maker(a.in[1]);
        if (!first || !second || first == second) return false;
        const size_t other = *first < *second ? 0 : 1;
        const size_t last = std::max(*first, *second);
        Step m = steps_[last];
        if (intermediate_readers(a.in[1 - other]).size() != 1) return false;
        if (m.op == Op::conv2d_dgrad && !m.in[2].defined())
            m.in[2] = a.in[other], m.out[0] = a.out[0];
        else if (m.op == Op::conv2d_norm_grad && !m.in[11].defined() && same(m.out[2], a.in[1 - other]))
            m.in[11] = a.in[other], m.out[2] = a.out[0];
        else
            return false;
        replace(last, std::move(m), {sum});
        return true;
    }

    /// add becomes norm_add, together with the batch_norm of each operand and the relu of the sum. No other step may
    /// read a batch_norm that is fused, or the sum if the relu is fused.
    void fuse_norm_add(size_t sum) {
        const Step& a = steps_[sum];
        Step fused{Op::norm_add, {}, {a.in[0], {}, {}, {}, a.in[1]}, {a.out[0]}};
        std::vector<size_t> norms;
        for (size_t b : {size_t(0), size_t(1)}) {
            const auto norm = maker(a.in[b]);
            if (!norm || steps_[*norm].op != Op::batch_norm || steps_[*norm].attrs.relu ||
                intermediate_readers(a.in[b]).size() != 1)
                continue;
            const Step& n = steps_[*norm];
            if (!norms.empty() && n.attrs.epsilon != fused.attrs.epsilon) continue;
            fused.attrs.epsilon = n.attrs.epsilon;
            std::copy_n(n.in.begin(), 4, fused.in.begin() + std::ptrdiff_t(4 * b));
            norms.push_back(*norm);
        }
        size_t last = sum;
        const std::vector<Reader> readers = intermediate_readers(a.out[0]);
        if (readers.size() == 1 && steps_[readers[0].step].op == Op::relu) {
            last = readers[0].step;
            fused.attrs.relu = true;
            fused.out[0] = steps_[last].out[0];
        }
        if ((norms.empty() && !fused.attrs.relu) || fused.in[0].shape().rank() != 4) return;
        for (const size_t norm : norms) dead_[norm] = true;
        replace(last, std::move(fused), {sum});
    }

    /// relu_grad -> batch_norm_sums, once or twice, becomes norm_add_grad: the backward step of norm_add.
    void fuse_relu_grad_sums(size_t mask) {
        const Step r = steps_[mask];
        Step fused{Op::norm_add_grad, {}, {r.in[0], r.in[1]}, {r.out[0]}};
        std::vector<size_t> sums;
        for (const Reader& reader : readers_[id(r.out[0])]) {
            const Step& s = steps_[reader.step];
            if (s.op != Op::batch_norm_sums || reader.argument != 0 || s.attrs.relu || !same(s.in[0], r.out[0]) ||
                sums.size() == 2 || (!sums.empty() && s.attrs.epsilon != fused.attrs.epsilon))
                continue;
            fused.attrs.epsilon = s.attrs.epsilon;
            std::copy_n(s.in.begin() + 1, 4, fused.in.begin() + std::ptrdiff_t(2 + 4 * sums.size()));
            fused.out[1 + 2 * sums.size()] = s.out[0], fused.out[2 + 2 * sums.size()] = s.out[1];
            sums.push_back(reader.step);
        }
        if (sums.empty()) return;
        for (const size_t s : sums) dead_[s] = true;
        replace(mask, std::move(fused), {});
    }

    /// Removes a batch_norm if every reader can normalise its input itself, and lets the readers do so.
    void normalise_on_load(size_t norm) {
        const Step n = steps_[norm];
        const std::vector<Reader> readers = intermediate_readers(n.out[0]);
        const auto can_normalise = [&](const Reader& r) {
            const Step& s = steps_[r.step];
            return ((s.op == Op::conv2d || s.op == Op::max_pool2d || s.op == Op::avg_pool2d) && r.argument == 0) ||
                   (s.op == Op::conv2d_norm_grad && r.argument == 6 && s.attrs.epsilon == n.attrs.epsilon);
        };
        if (readers.empty() || !std::all_of(readers.begin(), readers.end(), can_normalise)) return;
        for (const Reader& r : readers) {
            Step& s = steps_[r.step];
            if (s.op == Op::conv2d_norm_grad) {
                std::copy_n(n.in.begin(), 4, s.in.begin() + 6);
                s.attrs.input_relu = n.attrs.relu;
                continue;
            }
            s.attrs.relu = n.attrs.relu, s.attrs.epsilon = n.attrs.epsilon;
            if (s.op == Op::conv2d)
                s.op = Op::norm_conv2d, s.in = {n.in[0], n.in[1], n.in[2], n.in[3], s.in[1], s.in[2]};
            else
                s.op = s.op == Op::max_pool2d ? Op::norm_max_pool2d : Op::norm_avg_pool2d,
                s.in = {n.in[0], n.in[1], n.in[2], n.in[3]};
        }
        dead_[norm] = true;
        index();
    }

    /// Lets the step that makes a gradient compute the batch_norm_sums of it: conv2d_norm_grad, or a pooling gradient,
    /// which becomes norm_pool2d_grad.
    void sum_in_gradient(size_t sums) {
        const Step s = steps_[sums];
        const auto made = maker(s.in[0]);
        if (!made || results_.contains(id(s.in[0])) || s.in[0].has_memory()) return;
        Step m = steps_[*made];
        if (m.op == Op::conv2d_norm_grad && id(m.out[2]) == id(s.in[0]) && m.in[7].defined() &&
            same(m.in[6], s.in[1]) && m.in[7].key() == s.in[2].key() && m.attrs.input_relu == s.attrs.relu) {
            m.attrs.stats = true;
            m.out[3] = s.out[0], m.out[4] = s.out[1];
        } else if (m.op == Op::max_pool2d_grad || m.op == Op::avg_pool2d_grad) {
            Attrs attrs = s.attrs;
            attrs.window = m.attrs.window, attrs.stride = m.attrs.stride;
            attrs.height = m.attrs.height, attrs.width = m.attrs.width;
            m = {Op::norm_pool2d_grad,
                 attrs,
                 {m.in[0], m.in[1], s.in[1], s.in[2], s.in[3], s.in[4]},
                 {m.out[0], s.out[0], s.out[1]}};
        } else {
            return;
        }
        replace(*made, std::move(m), {sums});
    }

    /// cross_entropy -> cross_entropy_grad becomes one step that does not store the probabilities. The gradient of the
    /// loss must be a constant.
    void fuse_loss_gradient(size_t grad) {
        const Step g = steps_[grad];
        const auto loss = maker(g.in[0]);
        if (!loss || steps_[*loss].op != Op::cross_entropy || intermediate_readers(g.in[0]).size() != 1) return;
        const Step c = steps_[*loss];
        if (!same(c.in[1], g.in[1]) || c.attrs.rate != g.attrs.rate) return;
        if (!g.in[2].has_memory() || maker(g.in[2]) || g.in[2].shape() != Shape{}) return;
        replace(*loss, {Op::cross_entropy_with_grad, c.attrs, {c.in[0], c.in[1], g.in[2]}, {c.out[0], g.out[0]}},
                {grad});
    }

    /// Returns the filters of a convolution or a data gradient that accepts rounded filters, or null for other ops.
    static Tensor* filters(Step& s) {
        switch (s.op) {
        case Op::conv2d:
        case Op::conv2d_dgrad: return &s.in[1];
        case Op::norm_conv2d: return &s.in[4];
        case Op::conv2d_norm_grad: return &s.in[10];
        default: return nullptr;
        }
    }

    /// Rounds the filters of bf16 convolutions at the start of the plan, with one step per flat buffer of parameters.
    /// Skips buffers that an earlier step writes, and filters whose rounded copy would not be aligned to 16 bytes.
    void round_filters() {
        std::map<Id, Tensor> rounded; // by flat buffer
        std::set<Id> written;
        std::vector<Step> roundings;
        for (Step& s : steps_) {
            Tensor* const w = filters(s);
            if (w && s.in[0].dtype() == DType::bf16 && w->has_memory() && w->key().offset % 32 == 0 &&
                !written.contains(id(*w))) {
                const auto [copy, fresh] = rounded.try_emplace(id(*w));
                if (fresh) {
                    const DryRun no_memory; // the plan allocates the copy
                    copy->second = Tensor::empty(w->whole().shape(), DType::bf16);
                    roundings.push_back({Op::cast, {.dtype = DType::bf16}, {w->whole()}, {copy->second}});
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
    std::map<Id, size_t> maker_;
    std::map<Id, std::vector<Reader>> readers_;
};

} // namespace

void fuse(std::vector<Step>& steps, std::span<const Tensor> results) { Fuser(steps, results).run(); }

} // namespace rg
