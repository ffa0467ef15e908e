// Which steps are joined, and why that is allowed.
//
// Each rule looks at how a value is produced and by whom it is read; a value that nobody reads any more is then never
// made. In a training step of convolution - batch norm - ReLU layers this leaves per layer: the convolution, which
// normalises its input while it loads it and takes the statistics of its result (norm_conv2d); and one backward step,
// which turns the gradient at the normalised result into that at the convolution's (batch_norm_grad) image by image,
// while the image is in cache, feeds both gradients of the convolution with it, and sums up what the normalisation
// before needs (conv2d_norm_grad). The normalised activations exist in no memory. Where a network is only evaluated,
// normalisation with fixed statistics goes into the filters and the bias, and max pooling to where the convolution's
// image is still in cache (conv2d_norm).
//
// On a device, convolutions of bf16 also take filters that are rounded already: one step at the plan's beginning rounds
// all of them, or every convolution and data gradient would do so for itself. It is a part of each replay, so whoever
// writes the parameters in between (an update, a checkpoint, a rollback) need not know of the rounded ones.
#include "core/fuse.h"

#include "core/context.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace rg {

namespace {

using Id = uint64_t; // of a value's block

Id id(const Tensor& t) { return t.key().id; }

/// The same elements in the same shape. Rules join what reads all of a value as it was made, no view of it: a joined
/// step takes its extents from the value.
bool same(const Tensor& a, const Tensor& b) { return a.key() == b.key() && a.shape() == b.shape(); }

class Fuser {
public:
    Fuser(std::vector<Step>& steps, std::span<const Tensor> results) : steps_(steps), dead_(steps.size(), false) {
        for (const Tensor& t : results) results_.insert(id(t));
        index();
    }

    void run() {
        for (size_t s = 0; s < steps_.size(); ++s)
            if (steps_[s].op == Op::batch_norm && steps_[s].attrs.frozen) fold_into_convolution(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (steps_[s].op == Op::max_pool2d) pool_where_made(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (steps_[s].op == Op::batch_norm_grad) join_backward(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::add && !add_where_made(s)) add_normalised(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::relu_grad) sum_past_relu(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::batch_norm && !steps_[s].attrs.frozen) normalise_on_load(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::batch_norm_sums) sum_where_made(s);
        for (size_t s = 0; s < steps_.size(); ++s)
            if (!dead_[s] && steps_[s].op == Op::cross_entropy_grad) differentiate_where_made(s);
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

    void replace(size_t s, Step step, std::initializer_list<size_t> dead) {
        for (const size_t d : dead) dead_[d] = true;
        dead_[s] = false;
        steps_[s] = std::move(step);
        index();
    }

    /// The readers of a value that lies within the plan, is no result, and is read as it is by all; none otherwise.
    std::vector<Reader> inner_readers(const Tensor& t) const {
        const auto found = readers_.find(id(t));
        if (t.has_memory() || results_.contains(id(t)) || found == readers_.end()) return {};
        for (const Reader& r : found->second)
            if (!same(steps_[r.step].in[size_t(r.argument)], t)) return {};
        return found->second;
    }

    /// The step that makes t, as it is.
    std::optional<size_t> maker(const Tensor& t) const {
        const auto found = maker_.find(id(t));
        if (found == maker_.end()) return std::nullopt;
        for (const Tensor& made : steps_[found->second].out)
            if (made.defined() && same(made, t)) return found->second;
        return std::nullopt;
    }

    /// conv2d -> batch_norm with constant statistics, nothing else reading the convolution: one convolution.
    void fold_into_convolution(size_t norm) {
        const Step& n = steps_[norm];
        const auto conv = maker(n.in[0]);
        if (!conv || steps_[*conv].op != Op::conv2d || steps_[*conv].attrs.stats || inner_readers(n.in[0]).size() != 1)
            return;
        const Step& c = steps_[*conv];
        Attrs attrs = c.attrs;
        attrs.relu = n.attrs.relu, attrs.epsilon = n.attrs.epsilon;
        replace(norm, {Op::conv2d_norm, attrs, {c.in[0], c.in[1], c.in[2], n.in[1], n.in[2], n.in[3]}, {n.out[0]}},
                {*conv});
    }

    /// conv2d_norm -> max_pool2d by windows side by side, nothing else reading the convolution: one step.
    void pool_where_made(size_t pool) {
        const Step& p = steps_[pool];
        const auto conv = maker(p.in[0]);
        if (!conv || steps_[*conv].op != Op::conv2d_norm || steps_[*conv].attrs.window > 1 ||
            inner_readers(p.in[0]).size() != 1 || p.attrs.stride != p.attrs.window)
            return;
        if (readers_.contains(id(p.out[1])) || results_.contains(id(p.out[1]))) return; // the positions
        Step joined = steps_[*conv];
        joined.attrs.window = p.attrs.window;
        joined.out[0] = p.out[0];
        replace(pool, std::move(joined), {*conv});
    }

    /// batch_norm_grad -> conv2d_wgrad [and conv2d_dgrad] of one convolution: one step, image by image.
    void join_backward(size_t norm) {
        const Step& n = steps_[norm];
        if (n.attrs.frozen) return;
        const std::vector<Reader> readers = inner_readers(n.out[0]);
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
        // The filters are found through the convolution that made y.
        const auto conv = maker(n.in[1]);
        if (!wgrad || !conv || steps_[*conv].op != Op::conv2d) return;
        const Step &w = steps_[*wgrad], &c = steps_[*conv];
        if (!same(c.in[0], w.in[1]) || c.attrs.stride != w.attrs.stride || c.attrs.pad != w.attrs.pad) return;
        if (dgrad && !same(steps_[*dgrad].in[1], c.in[1])) return;
        Step joined{Op::conv2d_norm_grad,
                    {.stride = c.attrs.stride, .pad = c.attrs.pad, .relu = n.attrs.relu, .epsilon = n.attrs.epsilon},
                    {n.in[0], n.in[1], n.in[2], n.in[3], n.in[4], n.in[5], w.in[1], {}, {}, {}, c.in[1]},
                    {w.out[0], w.out[1]}};
        if (dgrad) joined.out[2] = steps_[*dgrad].out[0];
        // Where the first of them was: what they make may be read before the last (filters that are used twice).
        replace(norm, std::move(joined), {*wgrad, dgrad.value_or(*wgrad)});
    }

    /// The sum of two gradients, one of which a convolution makes for it alone: that is added to the other there.
    bool add_where_made(size_t sum) {
        const Step a = steps_[sum];
        if (a.out[0].has_memory()) return false;
        const auto first = maker(a.in[0]), second = maker(a.in[1]);
        if (!first || !second || first == second) return false;
        const size_t other = *first < *second ? 0 : 1;
        const size_t last = std::max(*first, *second);
        Step m = steps_[last];
        if (inner_readers(a.in[1 - other]).size() != 1) return false;
        if (m.op == Op::conv2d_dgrad && !m.in[2].defined())
            m.in[2] = a.in[other], m.out[0] = a.out[0];
        else if (m.op == Op::conv2d_norm_grad && !m.in[11].defined() && same(m.out[2], a.in[1 - other]))
            m.in[11] = a.in[other], m.out[2] = a.out[0];
        else
            return false;
        replace(last, std::move(m), {sum});
        return true;
    }

    /// add of what batch_norm makes for it alone, and ReLU after it: one pass.
    void add_normalised(size_t sum) {
        const Step& a = steps_[sum];
        Step joined{Op::norm_add, {}, {a.in[0], {}, {}, {}, a.in[1]}, {a.out[0]}};
        std::vector<size_t> parts;
        for (size_t b : {size_t(0), size_t(1)}) {
            const auto norm = maker(a.in[b]);
            if (!norm || steps_[*norm].op != Op::batch_norm || steps_[*norm].attrs.relu ||
                inner_readers(a.in[b]).size() != 1)
                continue;
            const Step& n = steps_[*norm];
            if (!parts.empty() && n.attrs.epsilon != joined.attrs.epsilon) continue;
            joined.attrs.epsilon = n.attrs.epsilon;
            std::copy_n(n.in.begin(), 4, joined.in.begin() + std::ptrdiff_t(4 * b));
            parts.push_back(*norm);
        }
        size_t at = sum;
        const std::vector<Reader> readers = inner_readers(a.out[0]);
        if (readers.size() == 1 && steps_[readers[0].step].op == Op::relu) {
            at = readers[0].step;
            joined.attrs.relu = true;
            joined.out[0] = steps_[at].out[0];
        }
        if ((parts.empty() && !joined.attrs.relu) || joined.in[0].shape().rank() != 4) return;
        for (const size_t part : parts) dead_[part] = true;
        replace(at, std::move(joined), {sum});
    }

    /// batch_norm_sums of what ReLU's gradient lets through, for one or two normalisations that were added up.
    void sum_past_relu(size_t mask) {
        const Step r = steps_[mask];
        Step joined{Op::norm_add_grad, {}, {r.in[0], r.in[1]}, {r.out[0]}};
        std::vector<size_t> sums;
        for (const Reader& reader : readers_[id(r.out[0])]) {
            const Step& s = steps_[reader.step];
            if (s.op != Op::batch_norm_sums || reader.argument != 0 || s.attrs.relu || !same(s.in[0], r.out[0]) ||
                sums.size() == 2 || (!sums.empty() && s.attrs.epsilon != joined.attrs.epsilon))
                continue;
            joined.attrs.epsilon = s.attrs.epsilon;
            std::copy_n(s.in.begin() + 1, 4, joined.in.begin() + std::ptrdiff_t(2 + 4 * sums.size()));
            joined.out[1 + 2 * sums.size()] = s.out[0], joined.out[2 + 2 * sums.size()] = s.out[1];
            sums.push_back(reader.step);
        }
        if (sums.empty()) return;
        for (const size_t s : sums) dead_[s] = true;
        replace(mask, std::move(joined), {});
    }

    /// batch_norm whose readers can all apply it themselves: it is never made.
    void normalise_on_load(size_t norm) {
        const Step n = steps_[norm];
        const std::vector<Reader> readers = inner_readers(n.out[0]);
        const auto can = [&](const Reader& r) {
            const Step& s = steps_[r.step];
            return ((s.op == Op::conv2d || s.op == Op::max_pool2d || s.op == Op::avg_pool2d) && r.argument == 0) ||
                   (s.op == Op::conv2d_norm_grad && r.argument == 6 && s.attrs.epsilon == n.attrs.epsilon);
        };
        if (readers.empty() || !std::all_of(readers.begin(), readers.end(), can)) return;
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

    /// batch_norm_sums of a gradient: taken by the step that makes the gradient.
    void sum_where_made(size_t sums) {
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

    /// cross_entropy and its gradient, where that of the loss is a constant: the probabilities are never made.
    void differentiate_where_made(size_t grad) {
        const Step g = steps_[grad];
        const auto loss = maker(g.in[0]);
        if (!loss || steps_[*loss].op != Op::cross_entropy || inner_readers(g.in[0]).size() != 1) return;
        const Step c = steps_[*loss];
        if (!same(c.in[1], g.in[1]) || c.attrs.rate != g.attrs.rate) return;
        if (!g.in[2].has_memory() || maker(g.in[2]) || g.in[2].shape() != Shape{}) return;
        replace(*loss, {Op::cross_entropy_with_grad, c.attrs, {c.in[0], c.in[1], g.in[2]}, {c.out[0], g.out[0]}},
                {grad});
    }

    /// What a convolution or its data gradient multiplies by; null: another op.
    static Tensor* filters(Step& s) {
        switch (s.op) {
        case Op::conv2d:
        case Op::conv2d_dgrad: return &s.in[1];
        case Op::norm_conv2d: return &s.in[4];
        case Op::conv2d_norm_grad: return &s.in[10];
        default: return nullptr;
        }
    }

    /// Filters of bf16 convolutions: parameters, in one step for the flat buffer that they lie in, unless an earlier
    /// step writes it. The rounded ones are to be aligned to 16 bytes.
    void round_filters() {
        std::map<Id, Tensor> rounded; // by block
        std::set<Id> written;
        std::vector<Step> roundings;
        for (Step& s : steps_) {
            Tensor* const w = filters(s);
            if (w && s.in[0].dtype() == DType::bf16 && w->has_memory() && w->key().offset % 32 == 0 &&
                !written.contains(id(*w))) {
                const auto [copy, fresh] = rounded.try_emplace(id(*w));
                if (fresh) {
                    const DryRun without_memory; // the plan gives it a place
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
