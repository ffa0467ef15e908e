// Element-wise ops: distributes the loops of elements_isa.cpp, and simpler loops that are here, over threads.
#include "core/ops/elements.h"
#include "core/cpu/norm.h"
#include "core/cpu/parallel.h"
#include "core/rng.h"

namespace rg::cpu {

namespace {

/// Calls f(zero, first value, size of the chunk) for all chunks of t's values in parallel. `zero` has the type that t
/// is stored as.
template <class F>
void each_stored_chunk(const Tensor& t, F f) {
    with_stored(
        t, [&](auto zero) { each_chunk(t.numel(), [&](int64_t begin, int64_t count) { f(zero, begin, count); }); });
}

/// Computes the output from the two inputs, chunk by chunk, with the kernel(a, b, y, count) that pick(kernels) returns.
template <class Pick>
void map_pairs(const Call& call, Pick pick) {
    each_stored_chunk(call.out[0], [&]<class T>(T, int64_t begin, int64_t count) {
        pick(kernels<T>())(stored<T>(call.in[0]) + begin, stored<T>(call.in[1]) + begin, stored<T>(call.out[0]) + begin,
                           count);
    });
}

} // namespace

void activation(const Call& call) {
    const auto& a = call.attrs.as<ActivationOp>();
    const Tensor &x = call.in[ActivationOp::x], &y = call.out[0];
    each_stored_chunk(x, [&]<class T>(T, int64_t begin, int64_t count) {
        kernels<T>().activation(stored<T>(x) + begin, stored<T>(y) + begin, count, a.kind, a.slope, past_cache(y));
    });
}

namespace {

/// For an activation of batch_norm(a) + batch_norm(b): computes dx, the gradient of this sum, and the gradients of
/// gamma and beta of both batch norms. One of the batch norms may be missing.
void activation_grad_and_sums(const Call& call) {
    using O = ActivationGradOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &from = call.in[O::from], &dx = call.out[O::dx];
    const int64_t values = image_values(dy);
    const OptionalNorm a_norm(attrs.a_norm.given(call.in)), b_norm(attrs.b_norm.given(call.in));
    std::optional<NormSums> a_sums, b_sums;
    if (a_norm) a_sums.emplace(*a_norm, dy.extent(0));
    if (b_norm) b_sums.emplace(*b_norm, dy.extent(0));
    each_stored_image(dy, [&]<class T>(T, int64_t n, int64_t first) {
        T* const to = stored<T>(dx) + first;
        kernels<T>().activation_grad(stored<T>(dy) + first, stored<T>(from) + first, to, values, attrs.kind,
                                     attrs.slope, false);
        if (a_sums) a_sums->add(n, to, stored<T>(call.in[O::a]) + first, values);
        if (b_sums) b_sums->add(n, to, stored<T>(call.in[O::b]) + first, values);
    });
    if (a_sums) a_sums->finish(call.out[O::a_dgamma], call.out[O::a_dbeta]);
    if (b_sums) b_sums->finish(call.out[O::b_dgamma], call.out[O::b_dbeta]);
}

} // namespace

void activation_grad(const Call& call) {
    using O = ActivationGradOp;
    if (call.in[O::a].defined() || call.in[O::b].defined()) return activation_grad_and_sums(call);
    const auto& attrs = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &from = call.in[O::from], &dx = call.out[O::dx];
    each_stored_chunk(dy, [&]<class T>(T, int64_t begin, int64_t count) {
        kernels<T>().activation_grad(stored<T>(dy) + begin, stored<T>(from) + begin, stored<T>(dx) + begin, count,
                                     attrs.kind, attrs.slope, past_cache(dx));
    });
}

void add(const Call& call) {
    using O = AddOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &a = call.in[O::a], &b = call.in[O::b], &y = call.out[0];
    const OptionalNorm a_norm(attrs.a_norm.given(call.in)), b_norm(attrs.b_norm.given(call.in));
    if (!a_norm && !b_norm && !attrs.relu) return map_pairs(call, [](const auto& k) { return k.add; });
    const int64_t c = a.extent(3), values = image_values(a);
    const PerChannel a_scale(c, [&](int64_t k) { return a_norm ? a_norm->scale[k] : 1.0f; }),
        b_scale(c, [&](int64_t k) { return b_norm ? b_norm->scale[k] : 1.0f; }),
        shift(c, [&](int64_t k) { return (a_norm ? a_norm->shift[k] : 0.0f) + (b_norm ? b_norm->shift[k] : 0.0f); });
    each_stored_image(a, [&]<class T>(T, int64_t, int64_t first) {
        kernels<T>().affine_sum(stored<T>(a) + first, stored<T>(b) + first, stored<T>(y) + first, values, period_of(c),
                                a_scale, b_scale, shift, attrs.relu, past_cache(y));
    });
}

void mul(const Call& call) {
    map_pairs(call, [](const auto& k) { return k.mul; });
}

namespace {

float widened(float value) { return value; }
float widened(uint16_t value) { return to_float(std::bit_cast<bf16>(value)); }

/// Returns the sum of `count` values. Partial sums take the values in turn, so that the compiler can use vectors.
template <class T>
double sum_of(const T* x, int64_t count) {
    constexpr int64_t kPartialSums = 16;
    double sums[kPartialSums] = {};
    int64_t i = 0;
    for (; i + kPartialSums <= count; i += kPartialSums)
        for (int64_t j = 0; j < kPartialSums; ++j) sums[j] += double(widened(x[i + j]));
    for (int64_t j = 0; i + j < count; ++j) sums[j] += double(widened(x[i + j]));
    return std::accumulate(sums, sums + kPartialSums, 0.0);
}

} // namespace

// Adds the sums of the chunks in their order, so the result does not depend on the number of threads.
void sum(const Call& call) {
    const Tensor& x = call.in[SumOp::x];
    const int64_t chunks = chunks_of(x.numel());
    const Scratch<double> sums(chunks);
    each_stored_chunk(x, [&]<class T>(T, int64_t begin, int64_t count) {
        sums[begin / kChunk] = sum_of(stored<T>(x) + begin, count);
    });
    const double total = std::accumulate(sums.data(), sums.data() + chunks, 0.0);
    const bool divide = call.attrs.as<SumOp>().mean && x.numel() > 0;
    *call.out[0].data<float>() = float(divide ? total / double(x.numel()) : total);
}

void sum_grad(const Call& call) {
    const Tensor& dx = call.out[0];
    const float dy = *call.in[SumGradOp::dy].data<float>();
    const float value = call.attrs.as<SumGradOp>().mean ? dy / float(dx.numel()) : dy;
    each_chunk(dx.numel(), [&](int64_t begin, int64_t count) {
        if (dx.dtype() == DType::bf16)
            std::fill_n(dx.data<bf16>() + begin, count, to_bf16(value));
        else
            std::fill_n(dx.data<float>() + begin, count, value);
    });
}

void scale(const Call& call) {
    const Tensor &x = call.in[ScaleOp::x], &factor = call.in[ScaleOp::factor], &y = call.out[0];
    const float times = factor.defined() ? *factor.data<float>() : call.attrs.as<ScaleOp>().constant;
    const PerChannel multiplier(1, [&](int64_t) { return times; }), zero(1, [](int64_t) { return 0.0f; });
    each_stored_chunk(x, [&]<class T>(T, int64_t begin, int64_t count) {
        kernels<T>().affine(stored<T>(x) + begin, stored<T>(y) + begin, count, period_of(1), multiplier, zero, false,
                            past_cache(y));
    });
}

void cast(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    each_chunk(x.numel(), [&](int64_t begin, int64_t count) {
        if (x.dtype() == y.dtype())
            std::memmove(y.bytes_data() + begin * size_of(y.dtype()), x.bytes_data() + begin * size_of(x.dtype()),
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
        std::memcpy(y.bytes_data() + begin * size, x.bytes_data() + (slice_begin + begin) * size, size_t(count * size));
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

namespace {

/// Describes a slice of each row of a matrix: the same columns in all rows.
struct RowSlices {
    std::byte* first; // the slice of the first row
    int64_t step;     // bytes from one row to the next
};

/// Copies the first `size` bytes of each slice `from` to the slice `to`, for `count` rows from `begin` on.
void copy_rows(const RowSlices& from, const RowSlices& to, int64_t size, int64_t begin, int64_t count) {
    if (size == 0) return;
    for (int64_t row = begin; row < begin + count; ++row)
        std::memcpy(to.first + row * to.step, from.first + row * from.step, size_t(size));
}

/// Splits the rows of t into tasks of about kChunk values, and calls f(first row, number of rows) for each in parallel.
template <class F>
void each_rows(const Tensor& t, F f) {
    const int64_t channels = channels_of(t);
    if (t.numel() > 0) each_chunk(t.numel() / channels, f, std::max<int64_t>(1, kChunk / channels));
}

} // namespace

void concat(const Call& call) {
    const Tensor& y = call.out[0];
    each_rows(y, [&](int64_t begin, int64_t count) {
        RowSlices to{y.bytes_data(), row_bytes(y)};
        for (const Tensor& x : call.in) {
            if (!x.defined()) continue;
            copy_rows({x.bytes_data(), row_bytes(x)}, to, row_bytes(x), begin, count);
            to.first += row_bytes(x);
        }
    });
}

void concat_grad(const Call& call) {
    const Tensor &dy = call.in[ConcatGradOp::dy], &dx = call.out[0];
    const int64_t offset = call.attrs.as<ConcatGradOp>().begin * size_of(dy.dtype());
    const RowSlices from{dy.bytes_data() + offset, row_bytes(dy)}, to{dx.bytes_data(), row_bytes(dx)};
    each_rows(dx, [&](int64_t begin, int64_t count) { copy_rows(from, to, row_bytes(dx), begin, count); });
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
