// Convolution with Conv::groups > 1: each group is a convolution of its own, on copies of its channels. The copies cost
// less than the products, unless a group has only a few channels. Depthwise convolutions have an engine (depthwise.h),
// and Winograd takes many groups of at least four channels.
#include "core/cpu/conv_choice.h"

#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/ops/norm.h"

namespace rg::cpu {

namespace {

/// The channels of one group of a tensor [n h w c], which may be undefined, as a tensor of their own.
class GroupChannels {
public:
    GroupChannels(const Tensor& all, int64_t groups) : all_(all), memory_(all.defined() ? all.bytes() / groups : 0) {
        if (!all.defined()) return;
        const Shape& s = all.shape();
        group = Tensor::borrow(memory_, {s[0], s[1], s[2], s[3] / groups}, all.dtype());
    }
    Tensor group;
    /// Copy the channels of group number i: read() from the tensor to `group`, write() back.
    void read(int64_t i) const { copy(i, true); }
    void write(int64_t i) const { copy(i, false); }

private:
    void copy(int64_t i, bool read) const {
        if (!all_.defined()) return;
        const int64_t size = group.extent(3) * size_of(all_.dtype()), step = all_.extent(3) * size_of(all_.dtype());
        const int64_t pixels = all_.extent(1) * all_.extent(2);
        parallel(all_.extent(0), [&](int64_t image) {
            std::byte* own = group.bytes_data() + image * pixels * size;
            std::byte* whole = all_.bytes_data() + image * pixels * step + i * size;
            for (int64_t pixel = 0; pixel < pixels; ++pixel, own += size, whole += step)
                std::memcpy(read ? own : whole, read ? whole : own, size_t(size));
        });
    }
    Tensor all_;
    Scratch<std::byte> memory_;
};

/// Returns the filters or biases of group number `group`; the first axis of `t` counts filters. Returns an undefined or
/// empty tensor as it is.
Tensor filters_of_group(const Tensor& t, int64_t group, int64_t groups) {
    if (!t.defined() || t.numel() == 0) return t;
    const int64_t k = t.extent(0) / groups;
    const Shape part = t.shape().rank() == 1 ? Shape{k} : Shape{k, t.extent(1), t.extent(2), t.extent(3)};
    return t.slice(group * part.numel(), part);
}

} // namespace

void group_by_group::conv2d(const Call& call) {
    using O = Conv2dOp;
    O attrs = call.attrs.as<O>();
    const Tensor &w = call.in[O::w], &b = call.in[O::bias], &y = call.out[O::y];
    const int64_t groups = attrs.conv.groups;
    const GroupChannels x_group(call.in[O::x], groups), y_group(y, groups);
    attrs.conv.groups = 1, attrs.with_stats = false;
    for (int64_t i = 0; i < groups; ++i) {
        Tensor in[kMaxInputs], out[2] = {y_group.group, {}};
        in[O::x] = x_group.group, in[O::w] = filters_of_group(w, i, groups),
        in[O::bias] = filters_of_group(b, i, groups);
        x_group.read(i);
        op::conv2d->cpu({attrs, in, out});
        y_group.write(i);
    }
    if (call.attrs.as<O>().with_stats) op::channel_stats->cpu({{}, {{y}}, {{call.out[O::stats]}}});
}

void group_by_group::conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    O attrs = call.attrs.as<O>();
    const int64_t groups = attrs.conv.groups;
    attrs.conv.groups = 1;
    const GroupChannels dy_group(call.in[O::dy], groups), x_group(attrs.filters ? call.in[O::x] : Tensor(), groups),
        dx_group(attrs.data ? call.out[O::dx] : Tensor(), groups);
    for (int64_t i = 0; i < groups; ++i) {
        Tensor in[kMaxInputs], out[kMaxOutputs];
        in[O::dy] = dy_group.group, in[O::x] = x_group.group, in[O::w] = filters_of_group(call.in[O::w], i, groups);
        out[O::dw] = filters_of_group(call.out[O::dw], i, groups),
        out[O::dbias] = filters_of_group(call.out[O::dbias], i, groups), out[O::dx] = dx_group.group;
        dy_group.read(i), x_group.read(i);
        op::conv2d_grad->cpu({attrs, in, out});
        dx_group.write(i);
    }
}

} // namespace rg::cpu
