// Optimizer steps, the moving average of the parameters, and the search for NaN and infinity. Distributes the loops,
// most of which are in elements_isa.cpp, over threads.
#include "core/ops/optimizer.h"
#include "core/cpu/isa.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"

#include <atomic>
#include <cmath>
#include <numeric>

namespace rg::cpu {

namespace {

/// Returns the factors for the kernels. `in` holds the tensors of UpdateInputs, in the order of its members.
UpdateFactors factors_of(std::span<const Tensor> in, float max_norm) {
    const auto pointer = [](const Tensor& t) { return t.defined() ? t.data<float>() : nullptr; };
    return {max_norm > 0 ? clip_factor(*in[1].data<float>(), max_norm) : 1, pointer(in[2]), pointer(in[3])};
}

} // namespace

void sgdm_update(const Call& call) {
    using O = SgdmUpdateOp;
    if (found_non_finite(call.in[O::non_finite_at])) return;
    const auto& a = call.attrs.as<O>();
    const float lr = *call.in[O::lr].data<float>();
    float *const p = call.in[O::parameters].data<float>(), *const v = call.in[O::velocity].data<float>();
    const float* const gradients = call.in[O::gradients].data<float>();
    const SgdmStep step{lr, a.momentum, a.weight_decay, a.nesterov};
    const UpdateFactors factors = factors_of(call.in.subspan(O::non_finite_at), a.max_norm);
    each_chunk(call.in[O::parameters].numel(), [&](int64_t begin, int64_t count) {
        isa().elements->sgdm(p + begin, v + begin, gradients + begin, count, step, factors.at(begin));
    });
}

void adam_update(const Call& call) {
    using O = AdamUpdateOp;
    if (found_non_finite(call.in[O::non_finite_at])) return;
    const auto& a = call.attrs.as<O>();
    const float* const lr_and_step = call.in[O::lr_and_step].data<float>();
    const double lr = lr_and_step[0], t = lr_and_step[1];
    const AdamStep step{.decay = a.decoupled ? float(lr * double(a.weight_decay)) : a.weight_decay,
                        .m_keep = float(a.beta1),
                        .m_part = float(1 - a.beta1),
                        .v_keep = float(a.beta2),
                        .v_part = float(1 - a.beta2),
                        .rate = float(lr / (1 - std::pow(a.beta1, t))),
                        .unbias = float(1 / std::sqrt(1 - std::pow(a.beta2, t))),
                        .epsilon = a.epsilon,
                        .decoupled = a.decoupled};
    const UpdateFactors factors = factors_of(call.in.subspan(O::non_finite_at), a.max_norm);
    float *const p = call.in[O::parameters].data<float>(), *const m = call.in[O::m].data<float>(),
                 *const v = call.in[O::v].data<float>();
    const float* const gradients = call.in[O::gradients].data<float>();
    each_chunk(call.in[O::parameters].numel(), [&](int64_t begin, int64_t count) {
        isa().elements->adam(p + begin, m + begin, v + begin, gradients + begin, count, step, factors.at(begin));
    });
}

void first_non_finite(const Call& call) {
    const Tensor &values = call.in[FirstNonFiniteOp::values], &loss = call.in[FirstNonFiniteOp::loss];
    const bool with_norm = call.attrs.as<FirstNonFiniteOp>().with_norm;
    const int64_t size = values.numel();
    const float* x = values.data<float>();
    std::atomic<int64_t> first{size};
    // Each chunk has its own sum, so that the result does not depend on the number of threads.
    Scratch<double> squares(with_norm ? chunks_of(size) : 0);
    each_chunk(size, [&](int64_t begin, int64_t count) {
        if (with_norm) {
            double& sum = squares[begin / kChunk] = double(isa().elements->sum_of_squares(x + begin, count));
            if (!std::isfinite(sum)) // the sum of squares may exceed the range of float, so repeat it in double
                sum = std::transform_reduce(x + begin, x + begin + count, 0.0, std::plus(),
                                            [](float v) { return double(v) * double(v); });
        }
        if (begin > first) return;
        const int64_t non_finite = begin + isa().elements->first_non_finite(x + begin, count);
        if (non_finite == begin + count) return;
        int64_t smallest = first;
        while (non_finite < smallest && !first.compare_exchange_weak(smallest, non_finite)) {}
    });
    const bool bad_loss = loss.defined() && !std::isfinite(*loss.data<float>());
    *call.out[0].data<int32_t>() = first < size || bad_loss ? int32_t(first) : -1;
    if (!with_norm) return;
    double sum = 0;
    for (int64_t i = 0; i < chunks_of(size); ++i) sum += squares[i];
    *call.out[1].data<float>() = float(std::sqrt(sum));
}

void rescale(const Call& call) {
    using O = RescaleOp;
    const auto& a = call.attrs.as<O>();
    const bool found = found_non_finite(call.in[O::non_finite_at]), steps = call.in[O::step].defined() && !found;
    const float factor = found ? 1 : a.length / (*call.in[O::norm].data<float>() + O::kEpsilon);
    const float rate = steps ? a.rate * *call.in[O::lr].data<float>() : 0;
    const float *const x = call.in[O::x].data<float>(), *const step = steps ? call.in[O::step].data<float>() : nullptr;
    float* const y = call.out[0].data<float>(); // the memory of x, if the op runs in place
    each_chunk(call.in[O::x].numel(), [&](int64_t begin, int64_t count) {
        for (int64_t i = begin; i < begin + count; ++i) y[i] = factor * x[i];
        for (int64_t i = begin; steps && i < begin + count; ++i) y[i] -= rate * step[i];
    });
}

void average_update(const Call& call) {
    using O = AverageUpdateOp;
    const double keep = call.attrs.as<O>().keep;
    const float part = float(1 - keep);
    float* const average = call.in[O::average].data<float>();
    const float* const p = call.in[O::parameters].data<float>();
    each_chunk(call.in[O::average].numel(), [&](int64_t begin, int64_t count) {
        for (int64_t i = begin; i < begin + count; ++i) average[i] += part * (p[i] - average[i]);
    });
}

} // namespace rg::cpu
