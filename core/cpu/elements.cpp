// Element-wise ops: distributes the loops of elements_isa.cpp over threads.
#include "ringgrad/core/cpu/norm.h"
#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/ops/elements.h"
#include "ringgrad/core/rng.h"

namespace rg::cpu {

namespace {

/// Calls the kernel that pick() returns, kernel(a, y, count) or kernel(a, b, y, count), for all values of the tensors.
template <class Pick>
void map(const Call& call, Pick pick) {
    with_stored(call.out[0], [&](auto t) {
        using T = decltype(t);
        const auto kernel = pick(kernels<T>());
        each_chunk(call.out[0].numel(), [&](int64_t begin, int64_t count) {
            if constexpr (requires { kernel(stored<T>(call.in[0]), stored<T>(call.out[0]), count); })
                kernel(stored<T>(call.in[0]) + begin, stored<T>(call.out[0]) + begin, count);
            else
                kernel(stored<T>(call.in[0]) + begin, stored<T>(call.in[1]) + begin, stored<T>(call.out[0]) + begin,
                       count);
        });
    });
}

float widened(float value) { return value; }
float widened(uint16_t value) { return to_float(std::bit_cast<bf16>(value)); }

/// Stores f(x), or f(a, b), for all values of the inputs.
template <class F>
void map_values(const Call& call, F f) {
    with_stored(call.out[0], [&](auto t) {
        using T = decltype(t);
        const T *const a = stored<T>(call.in[0]), *const b = stored<T>(call.in[call.in.size() - 1]);
        T* const y = stored<T>(call.out[0]);
        each_chunk(call.out[0].numel(), [&](int64_t begin, int64_t count) {
            for (int64_t i = begin; i < begin + count; ++i) {
                float value;
                if constexpr (std::is_invocable_v<F, float>)
                    value = f(widened(a[i]));
                else
                    value = f(widened(a[i]), widened(b[i]));
                if constexpr (std::is_same_v<T, float>)
                    y[i] = value;
                else
                    y[i] = std::bit_cast<uint16_t>(to_bf16(value));
            }
        });
    });
}

} // namespace

void relu(const Call& call) {
    map(call, [](const auto& k) { return k.relu; });
}

void relu_grad(const Call& call) {
    using O = ReluGradOp;
    const Tensor &dy = call.in[O::dy], &y = call.in[O::y], &dx = call.out[O::dx];
    if (!call.in[O::a].defined() && !call.in[O::b].defined())
        return map(call, [](const auto& k) { return k.relu_grad; });
    const auto& attrs = call.attrs.as<O>();
    const int64_t values = image_values(dy);
    struct Operand {
        size_t x, dgamma;
        std::optional<Norm> norm = {};
        std::optional<NormSums> sums = {};
    } operands[] = {{O::a, O::a_dgamma}, {O::b, O::b_dgamma}};
    for (Operand& operand : operands) {
        make_norm(operand.norm, call.in.subspan(operand.x + 1, 3), operand.x == O::a ? attrs.a_norm : attrs.b_norm);
        if (operand.norm) operand.sums.emplace(*operand.norm, dy.extent(0));
    }
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        each_image(dy.extent(0), [&](int64_t n) {
            const int64_t offset = n * values;
            kernels<T>().relu_grad(stored<T>(dy) + offset, stored<T>(y) + offset, stored<T>(dx) + offset, values);
            for (Operand& operand : operands)
                if (operand.sums)
                    operand.sums->add(n, stored<T>(dx) + offset, stored<T>(call.in[operand.x]) + offset, values);
        });
    });
    for (const Operand& operand : operands)
        if (operand.sums) operand.sums->finish(call.out[operand.dgamma], call.out[operand.dgamma + 1]);
}

namespace {

/// Returns the probability that a standard normal variable is at most x.
float normal_cdf(float x) { return 0.5f * std::erfc(-x * 0.70710678f); }

} // namespace

void gelu(const Call& call) {
    map_values(call, [](float x) { return x * normal_cdf(x); });
}

void gelu_grad(const Call& call) {
    map_values(call, [](float dy, float x) {
        return dy * (normal_cdf(x) + x * 0.39894228f * std::exp(-0.5f * x * x));
    });
}

void add(const Call& call) {
    using O = AddOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &a = call.in[O::a], &b = call.in[O::b], &y = call.out[0];
    std::optional<Norm> a_norm, b_norm;
    make_norm(a_norm, call.in.subspan(O::a_stats, 3), attrs.a_norm);
    make_norm(b_norm, call.in.subspan(O::b_stats, 3), attrs.b_norm);
    if (!a_norm && !b_norm && !attrs.relu) return map(call, [](const auto& k) { return k.add; });
    const int64_t c = a.extent(3), values = image_values(a);
    const PerChannel a_scale(c, [&](int64_t k) { return a_norm ? a_norm->scale[k] : 1.0f; }),
        b_scale(c, [&](int64_t k) { return b_norm ? b_norm->scale[k] : 1.0f; }), shift(c, [&](int64_t k) {
            return (a_norm ? a_norm->shift[k] : 0.0f) + (b_norm ? b_norm->shift[k] : 0.0f);
        });
    with_stored(a, [&](auto t) {
        using T = decltype(t);
        each_image(a.extent(0), [&](int64_t n) {
            const int64_t offset = n * values;
            kernels<T>().affine_sum(stored<T>(a) + offset, stored<T>(b) + offset, stored<T>(y) + offset, values,
                                    period_of(c), a_scale, b_scale, shift, attrs.relu, past_cache(y));
        });
    });
}

void scale(const Call& call) {
    const Tensor &x = call.in[ScaleOp::x], &factor = call.in[ScaleOp::factor], &y = call.out[0];
    const float times = factor.defined() ? *factor.data<float>() : call.attrs.as<ScaleOp>().constant;
    const PerChannel multiplier(1, [&](int64_t) { return times; }), zero(1, [](int64_t) { return 0.0f; });
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        each_chunk(x.numel(), [&](int64_t begin, int64_t count) {
            kernels<T>().affine(stored<T>(x) + begin, stored<T>(y) + begin, count, period_of(1), multiplier, zero,
                                false, past_cache(y));
        });
    });
}

// Sums in double, per chunk and then over the chunks in order.
void scale_grad(const Call& call) {
    const Tensor &dy = call.in[ScaleGradOp::dy], &x = call.in[ScaleGradOp::x];
    const auto value = [](const Tensor& t, int64_t i) {
        return t.dtype() == DType::bf16 ? to_float(t.data<bf16>()[i]) : t.data<float>()[i];
    };
    const Scratch<double> sums(chunks_of(x.numel()));
    each_chunk(x.numel(), [&](int64_t begin, int64_t count) {
        double sum = 0;
        for (int64_t i = begin; i < begin + count; ++i) sum += double(value(dy, i)) * double(value(x, i));
        sums[begin / kChunk] = sum;
    });
    *call.out[0].data<float>() = float(std::accumulate(sums.data(), sums.data() + chunks_of(x.numel()), 0.0));
}

void cast(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    each_chunk(x.numel(), [&](int64_t begin, int64_t count) {
        if (x.dtype() == y.dtype())
            std::memcpy(y.bytes_data() + begin * size_of(y.dtype()), x.bytes_data() + begin * size_of(x.dtype()),
                        size_t(count * size_of(x.dtype())));
        else if (x.dtype() == DType::bf16)
            isa().elements->widen(stored<uint16_t>(x) + begin, stored<float>(y) + begin, count);
        else
            isa().elements->narrow(stored<float>(x) + begin, stored<uint16_t>(y) + begin, count);
    });
}

void slice(const Call& call) {
    const Tensor &x = call.in[SliceOp::x], &y = call.out[0];
    const int64_t size = size_of(x.dtype()), slice_begin = call.attrs.as<SliceOp>().begin;
    each_chunk(y.numel(), [&](int64_t begin, int64_t count) {
        std::memcpy(y.bytes_data() + begin * size, x.bytes_data() + (slice_begin + begin) * size,
                    size_t(count * size));
    });
}

void slice_grad(const Call& call) {
    const Tensor &dy = call.in[0], &dx = call.out[0];
    const int64_t size = size_of(dy.dtype());
    const int64_t dy_begin = call.attrs.as<SliceGradOp>().begin, dy_end = dy_begin + dy.numel();
    each_chunk(dx.numel(), [&](int64_t begin, int64_t count) {
        const int64_t end = begin + count;
        const int64_t copy_begin = std::clamp(dy_begin, begin, end), copy_end = std::clamp(dy_end, begin, end);
        std::memset(dx.bytes_data() + begin * size, 0, size_t((copy_begin - begin) * size));
        if (copy_end > copy_begin)
            std::memcpy(dx.bytes_data() + copy_begin * size, dy.bytes_data() + (copy_begin - dy_begin) * size,
                        size_t((copy_end - copy_begin) * size));
        std::memset(dx.bytes_data() + copy_end * size, 0, size_t((end - copy_end) * size));
    });
}

void dropout(const Call& call) {
    const auto& a = call.attrs.as<DropoutOp>();
    const Tensor &x = call.in[DropoutOp::x], &y = call.out[0];
    const float scale = 1 / (1 - a.probability);
    const uint64_t seed = seed_of(call.in[DropoutOp::seed].data<int32_t>());
    each_chunk(x.numel(), [&](int64_t begin, int64_t count) {
        for (int64_t i = begin; i < begin + count; ++i) {
            const bool dropped = Rng(seed, Purpose::dropout, a.stream, uint64_t(i)).uniform() < a.probability;
            if (x.dtype() == DType::bf16)
                y.data<bf16>()[i] = to_bf16(dropped ? 0 : to_float(x.data<bf16>()[i]) * scale);
            else
                y.data<float>()[i] = dropped ? 0 : x.data<float>()[i] * scale;
        }
    });
}

} // namespace rg::cpu
