// Updates of the parameters: distributes the loops of elements_isa.cpp over threads.
#include "ringgrad/core/cpu/isa.h"
#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/ops/optimizer.h"

#include <atomic>
#include <cmath>

namespace rg::cpu {

namespace {

void expect_in_place(const char* op, const Call& call) {
    for (size_t i = 0; i < call.out.size(); ++i)
        RG_CHECK(call.out[i].key() == call.in[i].key(), op, ": expected the first ", call.out.size(),
                 " inputs as outputs, got other tensors; the op works in place");
}

} // namespace

void sgdm_update(const Call& call) {
    using O = SgdmUpdateOp;
    expect_in_place("sgdm_update", call);
    if (found_non_finite(call.in[O::non_finite_at])) return;
    const auto& a = call.attrs.as<O>();
    const float lr = *call.in[O::lr].data<float>();
    float *const p = call.in[O::parameters].data<float>(), *const v = call.in[O::velocity].data<float>();
    const float* const gradients = call.in[O::gradients].data<float>();
    each_chunk(call.in[O::parameters].numel(), [&](int64_t begin, int64_t count) {
        isa().elements->sgdm(p + begin, v + begin, gradients + begin, count, lr, a.momentum, a.weight_decay,
                             a.nesterov);
    });
}

void adam_update(const Call& call) {
    using O = AdamUpdateOp;
    expect_in_place("adam_update", call);
    if (found_non_finite(call.in[O::non_finite_at])) return;
    const auto& a = call.attrs.as<O>();
    const float* const lr_and_step = call.in[O::lr_and_step].data<float>();
    const double lr = lr_and_step[0], t = lr_and_step[1];
    const AdamStep step{.decay = a.weight_decay,
                        .m_part = float(1 - a.beta1),
                        .v_keep = float(a.beta2),
                        .v_part = float(1 - a.beta2),
                        .rate = float(lr / (1 - std::pow(a.beta1, t))),
                        .unbias = float(1 / std::sqrt(1 - std::pow(a.beta2, t))),
                        .epsilon = a.epsilon};
    float *const p = call.in[O::parameters].data<float>(), *const m = call.in[O::m].data<float>(),
                *const v = call.in[O::v].data<float>();
    const float* const gradients = call.in[O::gradients].data<float>();
    each_chunk(call.in[O::parameters].numel(), [&](int64_t begin, int64_t count) {
        isa().elements->adam(p + begin, m + begin, v + begin, gradients + begin, count, step);
    });
}

void first_non_finite(const Call& call) {
    const Tensor &values = call.in[FirstNonFiniteOp::values], &loss = call.in[FirstNonFiniteOp::loss];
    const int64_t size = values.numel();
    const float* x = values.data<float>();
    std::atomic<int64_t> first{size};
    each_chunk(size, [&](int64_t begin, int64_t count) {
        if (begin > first) return;
        const int64_t non_finite = begin + isa().elements->first_non_finite(x + begin, count);
        if (non_finite == begin + count) return;
        int64_t smallest = first;
        while (non_finite < smallest && !first.compare_exchange_weak(smallest, non_finite)) {}
    });
    const bool bad_loss = loss.defined() && !std::isfinite(*loss.data<float>());
    *call.out[0].data<int32_t>() = first < size || bad_loss ? int32_t(first) : -1;
}

} // namespace rg::cpu
