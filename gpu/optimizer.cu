// The ops that update parameters, and the search for values that are not finite.
#include "gpu/elementwise.cuh"
#include "gpu/kernels.h"
#include "gpu/reduce.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

/// Returns true if first_non_finite() found a NaN or infinity. `non_finite_at` is its result; null if it did not run.
__device__ bool found_non_finite(const int* non_finite_at) { return non_finite_at && *non_finite_at >= 0; }

/// The inputs that the SGDM and Adam updates share (UpdateInputs in core/ops/optimizer.h), as device pointers.
struct DeviceUpdateFactors {
    const int* non_finite_at;
    const float *norm, *rates, *decays;
    float max_norm;
    DeviceUpdateFactors(std::span<const Tensor> in, float max_norm)
        : non_finite_at(pointer<int>(in[0])),
          norm(pointer<float>(in[1])),
          rates(pointer<float>(in[2])),
          decays(pointer<float>(in[3])),
          max_norm(max_norm) {}
    __device__ float clip() const { return max_norm > 0 ? clip_factor(*norm, max_norm) : 1; }
    __device__ float rate(float lr, int64_t i) const { return rates ? lr * rates[i] : lr; }
    __device__ float decay(float by, int64_t i) const { return decays ? by * decays[i] : by; }
};

struct SgdmUpdate {
    float *p, *v;
    const float *gradient, *lr;
    float momentum, weight_decay;
    bool nesterov;
    DeviceUpdateFactors factors;
    __device__ void operator()(int64_t i) const {
        if (found_non_finite(factors.non_finite_at)) return;
        const float g = factors.clip() * gradient[i] + factors.decay(weight_decay, i) * p[i];
        v[i] = momentum * v[i] + g;
        p[i] -= factors.rate(*lr, i) * (nesterov ? g + momentum * v[i] : v[i]);
    }
};

/// The Adam update. Computes 1 - beta^t as -expm1(t log(beta)), which loses no precision if beta is close to 1.
struct AdamUpdate {
    float *p, *m, *v;
    const float *gradient, *lr_and_step;
    float weight_decay, beta1, one_minus_beta1, beta2, one_minus_beta2, log_beta1, log_beta2, epsilon;
    bool decoupled;
    DeviceUpdateFactors factors;
    __device__ void operator()(int64_t i) const {
        if (found_non_finite(factors.non_finite_at)) return;
        const float lr = factors.rate(lr_and_step[0], i), decay = factors.decay(weight_decay, i), t = lr_and_step[1];
        float parameter = p[i], g = factors.clip() * gradient[i];
        if (decoupled)
            parameter -= lr * decay * parameter;
        else
            g += decay * parameter;
        const float mean = beta1 * m[i] + one_minus_beta1 * g;
        const float square = beta2 * v[i] + one_minus_beta2 * g * g;
        const float m_bias = -expm1f(t * log_beta1), v_bias = -expm1f(t * log_beta2);
        p[i] = parameter - lr / m_bias * mean / (sqrtf(square / v_bias) + epsilon);
        m[i] = mean, v[i] = square;
    }
};

struct Rescale {
    const float *x, *norm, *step, *lr;
    const int* non_finite_at;
    float* y; // may have the memory of x
    float length, rate;
    __device__ void operator()(int64_t i) const {
        const bool found = found_non_finite(non_finite_at);
        const float rescaled = found ? x[i] : length / (*norm + RescaleOp::kEpsilon) * x[i];
        y[i] = step && !found ? rescaled - rate * *lr * step[i] : rescaled;
    }
};

struct AverageUpdate {
    float* average;
    const float* p;
    float part;
    __device__ void operator()(int64_t i) const { average[i] += part * (p[i] - average[i]); }
};

constexpr int kSearchBlocks = 1024;

/// Stores the index of the first value of x that is not finite to *first, or -1 if there is none. If `loss` is not
/// null, it counts as value `count`. If `norm` is not null, stores the Euclidean norm of x there. `sums` has room for a
/// value per block. Uses two counters, which are 0 before and after: one for grid_sum(), one for the search.
__global__ void __launch_bounds__(kThreads)
    first_non_finite_kernel(int64_t count, const float* x, const float* loss, int* first, double* sums, float* norm,
                            unsigned* counters) {
    double sum = 0;
    const auto check = [&](float value, int64_t i) { // the largest complement is that of the first index
        if (value - value != 0) atomicMax(counters + 1, ~unsigned(i)); // true for NaN, and infinity - infinity is NaN
    };
    const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    for (int64_t i = thread; i < count; i += int64_t(gridDim.x) * kThreads) {
        const float value = x[i];
        check(value, i);
        sum += double(value) * double(value);
    }
    if (loss && thread == 0) check(*loss, count);
    if (!grid_sum(sum, sums, counters, sum) || threadIdx.x > 0) return;
    if (norm) *norm = float(std::sqrt(sum));
    *first = int(~counters[1]);
    counters[1] = 0;
}

} // namespace

void sgdm_update(const Call& call) {
    using O = SgdmUpdateOp;
    const auto& a = call.attrs.as<O>();
    const DeviceUpdateFactors factors(call.in.subspan(O::non_finite_at), a.max_norm);
    elementwise(call.in[O::parameters].numel(),
                SgdmUpdate{pointer<float>(call.in[O::parameters]), pointer<float>(call.in[O::velocity]),
                           pointer<float>(call.in[O::gradients]), pointer<float>(call.in[O::lr]), a.momentum,
                           a.weight_decay, a.nesterov, factors});
}

void adam_update(const Call& call) {
    using O = AdamUpdateOp;
    const auto& a = call.attrs.as<O>();
    const DeviceUpdateFactors factors(call.in.subspan(O::non_finite_at), a.max_norm);
    elementwise(call.in[O::parameters].numel(),
                AdamUpdate{pointer<float>(call.in[O::parameters]), pointer<float>(call.in[O::m]),
                           pointer<float>(call.in[O::v]), pointer<float>(call.in[O::gradients]),
                           pointer<float>(call.in[O::lr_and_step]), a.weight_decay, float(a.beta1), float(1 - a.beta1),
                           float(a.beta2), float(1 - a.beta2), float(std::log(a.beta1)), float(std::log(a.beta2)),
                           a.epsilon, a.decoupled, factors});
}

void rescale(const Call& call) {
    using O = RescaleOp;
    const auto& a = call.attrs.as<O>();
    elementwise(call.in[O::x].numel(),
                Rescale{pointer<float>(call.in[O::x]), pointer<float>(call.in[O::norm]),
                        pointer<float>(call.in[O::step]), pointer<float>(call.in[O::lr]),
                        pointer<int>(call.in[O::non_finite_at]), pointer<float>(call.out[0]), a.length, a.rate});
}

void average_update(const Call& call) {
    using O = AverageUpdateOp;
    elementwise(call.in[O::average].numel(),
                AverageUpdate{pointer<float>(call.in[O::average]), pointer<float>(call.in[O::parameters]),
                              float(1 - call.attrs.as<O>().keep)});
}

void first_non_finite(const Call& call) {
    using O = FirstNonFiniteOp;
    const int64_t count = call.in[O::values].numel();
    const int blocks = int(std::clamp<int64_t>(blocks_for(count, kThreads), 1, kSearchBlocks));
    const DeviceScratch<double> sums(kSearchBlocks);
    RG_LAUNCH(first_non_finite_kernel, blocks, kThreads, 0, stream(), count, pointer<float>(call.in[O::values]),
              pointer<float>(call.in[O::loss]), pointer<int>(call.out[0]), sums,
              call.attrs.as<O>().with_norm ? pointer<float>(call.out[O::norm]) : nullptr, arrival_counters());
}

} // namespace rg::RG_GPU
