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

/// Some rows of some columns of one group of a tensor [groups repeats period], whose rows have `period` values.
struct Block {
    int64_t group, row, rows, column, columns;
};
/// Splits a tensor [groups repeats period] into blocks of about kChunk values.
struct Blocks {
    static constexpr int64_t kColumns = 512;
    explicit Blocks(const Repeats& r)
        : all(r),
          columns(std::clamp<int64_t>(r.period, 1, kColumns)),
          rows(std::clamp<int64_t>(kChunk / columns, 1, std::max<int64_t>(1, r.repeats))),
          across((r.period + columns - 1) / columns),
          down((r.repeats + rows - 1) / rows) {}

    /// Calls f(Block) for all blocks in parallel.
    template <class F>
    void each(F f) const {
        const auto call = [&](int64_t begin, int64_t count) {
            for (int64_t i = begin; i < begin + count; ++i) {
                const int64_t column = i % across * columns, row = i / across % down * rows;
                f(Block{i / across / down, row, std::min(rows, all.repeats - row), column,
                        std::min(columns, all.period - column)});
            }
        };
        each_chunk(all.groups * down * across, call, std::max<int64_t>(1, kChunk / (rows * columns)));
    }
    /// Calls f(index of the first value, number of values) for parts of a block whose values are neighbours: the whole
    /// block, or each row of it.
    template <class F>
    void each_run(const Block& b, F f) const {
        const int64_t first = (b.group * all.repeats + b.row) * all.period + b.column;
        if (b.columns == all.period) return f(first, b.rows * b.columns);
        for (int64_t row = 0; row < b.rows; ++row) f(first + row * all.period, b.columns);
    }

    Repeats all;
    int64_t columns, rows; // extents of a block; the last blocks may be smaller
    int64_t across, down;  // number of blocks beside and below each other in a group
};

} // namespace

void activation(const Call& call) {
    const auto& a = call.attrs.as<ActivationOp>();
    const Tensor &x = call.in[ActivationOp::x], &y = call.out[0];
    const bool past = past_cache(y);
    each_stored_chunk(x, [&]<class T>(T, int64_t begin, int64_t count) {
        kernels<T>().activation(stored<T>(x) + begin, stored<T>(y) + begin, count, a.activation, past);
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
        kernels<T>().activation_grad(stored<T>(dy) + first, stored<T>(from) + first, to, values, attrs.activation,
                                     false);
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
    const bool past = past_cache(dx);
    each_stored_chunk(dy, [&]<class T>(T, int64_t begin, int64_t count) {
        kernels<T>().activation_grad(stored<T>(dy) + begin, stored<T>(from) + begin, stored<T>(dx) + begin, count,
                                     attrs.activation, past);
    });
}

void add(const Call& call) {
    using O = AddOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &a = call.in[O::a], &b = call.in[O::b], &y = call.out[0];
    const OptionalNorm a_norm(attrs.a_norm.given(call.in)), b_norm(attrs.b_norm.given(call.in));
    if (!a_norm && !b_norm && !attrs.activation.kind)
        return op::binary->cpu({BinaryOp{Binary::add}, call.in, call.out});
    const int64_t c = a.extent(3), values = image_values(a);
    const PerChannel a_scale(c, [&](int64_t k) { return a_norm ? a_norm->scale[k] : 1.0f; }),
        b_scale(c, [&](int64_t k) { return b_norm ? b_norm->scale[k] : 1.0f; }),
        shift(c, [&](int64_t k) { return (a_norm ? a_norm->shift[k] : 0.0f) + (b_norm ? b_norm->shift[k] : 0.0f); });
    const bool past = past_cache(y);
    each_stored_image(a, [&]<class T>(T, int64_t, int64_t first) {
        kernels<T>().affine_sum(stored<T>(a) + first, stored<T>(b) + first, stored<T>(y) + first, values, period_of(c),
                                a_scale, b_scale, shift, attrs.activation, past);
    });
}

namespace {

float widened(float value) { return value; }
float widened(uint16_t value) { return to_float(std::bit_cast<bf16>(value)); }
template <class T>
T narrowed(float value) {
    if constexpr (std::is_same_v<T, float>)
        return value;
    else
        return std::bit_cast<uint16_t>(to_bf16(value));
}

/// Returns the sum of `count` values, or of the products of x and `times` if this is not null. Partial sums take the
/// values in turn, so that the compiler can use vectors.
template <class T>
double sum_of(const T* x, const T* times, int64_t count) {
    constexpr int64_t kPartialSums = 16;
    double sums[kPartialSums] = {};
    const auto add = [&](auto value) {
        int64_t i = 0;
        for (; i + kPartialSums <= count; i += kPartialSums)
            for (int64_t j = 0; j < kPartialSums; ++j) sums[j] += value(i + j);
        for (int64_t j = 0; i + j < count; ++j) sums[j] += value(i + j);
    };
    if (times)
        add([&](int64_t i) { return double(widened(x[i])) * double(widened(times[i])); });
    else
        add([&](int64_t i) { return double(widened(x[i])); });
    return std::accumulate(sums, sums + kPartialSums, 0.0);
}

/// Sums the columns of a block of x, or of x * times, in float.
template <class T>
void sum_columns(const Blocks& blocks, const Block& b, const T* x, const T* times, double* to) {
    const int64_t lanes = period_of(b.columns);
    const Scratch<float> values(3 * lanes);
    float *const sums = values.zeroed(), *const unused = sums + lanes, *const zero = unused + lanes;
    blocks.each_run(b, [&](int64_t first, int64_t count) {
        if (times)
            kernels<T>().norm_sums(x + first, times + first, count, lanes, zero, zero, zero, Activation::none, sums,
                                   unused);
        else
            kernels<T>().channel_sums(x + first, count, lanes, zero, sums, unused);
    });
    std::copy_n(sums, b.columns, to);
    for (int64_t i = b.columns; i < lanes; ++i) to[i % b.columns] += double(sums[i]);
}

} // namespace

void binary(const Call& call) {
    using O = BinaryOp;
    const Binary kind = call.attrs.as<O>().kind;
    const Tensor &a = call.in[O::a], &b = call.in[O::b], &y = call.out[0];
    const Blocks blocks(repeats_of("binary", b.shape(), a.shape()));
    const bool past = past_cache(y);
    with_stored(y, [&]<class T>(T) {
        const T *const x = stored<T>(a), *const small = stored<T>(b);
        T* const to = stored<T>(y);
        if (blocks.all.repeats == 1)
            return each_chunk(y.numel(), [&](int64_t begin, int64_t count) {
                kernels<T>().binary(x + begin, small + begin, to + begin, count, kind, past);
            });
        blocks.each([&](const Block& block) {
            const T* const from = small + block.group * blocks.all.period + block.column;
            const PerChannel values(block.columns, [&](int64_t c) { return widened(from[c]); });
            blocks.each_run(block, [&](int64_t first, int64_t count) {
                kernels<T>().binary_repeated(x + first, values, to + first, count, period_of(block.columns), kind,
                                             past);
            });
        });
    });
}

// Adds the sums of the blocks in their order, so the result does not depend on the number of threads.
void sum(const Call& call) {
    const Tensor &x = call.in[SumOp::x], &times = call.in[SumOp::times], &y = call.out[0];
    const Blocks blocks(repeats_of("sum", y.shape(), x.shape()));
    const Repeats& all = blocks.all;
    const Scratch<double> sums(all.groups * blocks.down * all.period);
    with_stored(x, [&]<class T>(T) {
        blocks.each([&](const Block& b) {
            const T *const from = stored<T>(x), *const factors = times.defined() ? stored<T>(times) : nullptr;
            double* const to = sums + (b.group * blocks.down + b.row / blocks.rows) * all.period + b.column;
            if (all.period > 1) return sum_columns(blocks, b, from, factors, to);
            blocks.each_run(b, [&](int64_t first, int64_t count) {
                *to = sum_of(from + first, factors ? factors + first : nullptr, count);
            });
        });
    });
    const double divisor = call.attrs.as<SumOp>().mean && all.repeats > 0 ? double(all.repeats) : 1;
    with_stored(y, [&]<class T>(T) {
        for (int64_t i = 0; i < y.numel(); ++i) {
            double total = 0;
            for (int64_t j = 0; j < blocks.down; ++j)
                total += sums[(i / all.period * blocks.down + j) * all.period + i % all.period];
            stored<T>(y)[i] = narrowed<T>(float(total / divisor));
        }
    });
}

void sum_grad(const Call& call) {
    const Tensor &dy = call.in[SumGradOp::dy], &dx = call.out[0];
    const Blocks blocks(repeats_of("sum_grad", dy.shape(), dx.shape()));
    const float divisor = call.attrs.as<SumGradOp>().mean ? float(blocks.all.repeats) : 1;
    with_stored(dy, [&]<class From>(From) {
        with_stored(dx, [&]<class To>(To) {
            blocks.each([&](const Block& b) {
                const From* const from = stored<From>(dy) + b.group * blocks.all.period + b.column;
                To row[Blocks::kColumns];
                for (int64_t i = 0; i < b.columns; ++i) row[i] = narrowed<To>(widened(from[i]) / divisor);
                blocks.each_run(b, [&](int64_t first, int64_t count) {
                    if (b.columns == 1) std::fill_n(stored<To>(dx) + first, count, row[0]);
                    for (int64_t i = 0; b.columns > 1 && i < count; i += b.columns)
                        std::copy_n(row, b.columns, stored<To>(dx) + first + i);
                });
            });
        });
    });
}

void scale(const Call& call) {
    const Tensor &x = call.in[ScaleOp::x], &factor = call.in[ScaleOp::factor], &y = call.out[0];
    const auto& a = call.attrs.as<ScaleOp>();
    const PerChannel times(1, [&](int64_t) { return factor.defined() ? *factor.data<float>() : a.constant; }),
        plus(1, [&](int64_t) { return a.shift; });
    const bool past = past_cache(y);
    each_stored_chunk(x, [&]<class T>(T, int64_t begin, int64_t count) {
        kernels<T>().affine(stored<T>(x) + begin, stored<T>(y) + begin, count, period_of(1), times, plus, {}, past);
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
