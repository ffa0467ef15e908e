// Elementwise ops: activations, arithmetic, copies, conversions and dropout. Only sums have a kernel of their own.
#include "core/rng.h"
#include "gpu/elementwise.cuh"
#include "gpu/kernels.h"
#include "gpu/norm.cuh"
#include "gpu/octets.cuh"
#include "gpu/reduce.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

/// Calls f with the kind as a constant, so that each kind has kernels of its own.
template <class F>
void with_kind(Activation::Kind kind, F f) {
    switch (kind) {
#define RG_CASE(name, ...)                                                                                             \
    case Activation::name: return f(std::integral_constant<Activation::Kind, Activation::name>());
        RG_ACTIVATIONS(RG_CASE)
#undef RG_CASE
    }
}

// The functions that the lists of activation.h use, on float.
__device__ constexpr float of(double constant) { return float(constant); }
__device__ float larger(float a, float b) { return a > b ? a : b; }
__device__ float smaller(float a, float b) { return a < b ? a : b; }
__device__ float absolute(float x) { return fabsf(x); }
__device__ float square_root(float x) { return sqrtf(x); }
__device__ float exponential(float x) { return expf(x); }
__device__ float logarithm(float x) { return logf(x); }
__device__ float logarithm_of_one_plus(float x) { return log1pf(x); }
__device__ float logistic(float x) { return 1 / (1 + expf(-x)); }
__device__ float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ float normal_cdf(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
__device__ float normal_pdf(float x) { return 0.39894228f * expf(-0.5f * x * x); }

template <Activation::Kind kKind>
struct Activate {
    float slope;
    __device__ float operator()(float x) const {
        switch (kKind) {
#define RG_CASE(name, from, value, gradient)                                                                           \
    case Activation::name: return value;
            RG_ACTIVATIONS(RG_CASE)
#undef RG_CASE
        }
        return x;
    }
};

/// Returns dy times the derivative of the activation. `from` is x or the result y, according to RG_ACTIVATIONS.
template <Activation::Kind kKind>
struct ActivationGrad {
    float slope;
    __device__ float operator()(float dy, float from) const {
        [[maybe_unused]] const float x = from, y = from;
        switch (kKind) {
#define RG_CASE(name, from, value, gradient)                                                                           \
    case Activation::name: return gradient;
            RG_ACTIVATIONS(RG_CASE)
#undef RG_CASE
        }
        return dy;
    }
};

struct Add {
    bool relu;
    __device__ float operator()(float a, float b) const { return relu ? relu_of(a + b) : a + b; }
};
template <Binary kKind>
struct BinaryOf {
    __device__ float operator()(float a, float b) const {
        switch (kKind) {
#define RG_CASE(name, value, ...)                                                                                      \
    case Binary::name: return value;
            RG_BINARIES(RG_CASE)
#undef RG_CASE
        }
        return a;
    }
};
struct Scale {
    const float* factor; // if null, `constant` is the factor
    float constant, shift;
    __device__ float operator()(float v) const { return v * (factor ? *factor : constant) + shift; }
};
/// Stores f(x) to y.
template <class From, class To, class F>
void map(const Tensor& x, const Tensor& y, const F& f) {
    From* const from = pointer<From>(x);
    To* const to = pointer<To>(y);
    elementwise_groups(y.numel(), y.numel(), {from, to}, Map<To, Plain<From>, F>{{from}, to, 1, f});
}

/// Stores f(a, b) to y.
template <class T, class F>
void combine(const Tensor& a, const Tensor& b, const Tensor& y, const F& f) {
    T *const of_a = pointer<T>(a), *const of_b = pointer<T>(b), *const to = pointer<T>(y);
    elementwise_groups(y.numel(), y.numel(), {of_a, of_b, to},
                       Combine<T, Plain<T>, Plain<T>, F>{{of_a}, {of_b}, to, 1, f});
}

/// Reads a tensor of T [groups period], whose elements repeat in a larger one as `r` says.
template <class T>
struct Repeated {
    const T* x;
    Repeats r;
    /// Reads the values for kWidth elements of the larger tensor, from index i on. They belong to the same row of
    /// `period` values or, if this is 1, to the same group.
    template <int kWidth>
    __device__ void read(int64_t i, float (&v)[kWidth]) const {
        const int64_t group = i / (r.repeats * r.period);
        if (kWidth == 1 || r.period == 1) {
            v[0] = load(x + group * r.period + i % r.period);
            RG_UNROLL
            for (int j = 1; j < kWidth; ++j) v[j] = v[0];
        } else {
            VectorReader<kWidth, Plain<T>>({x}, 0).read(size_t(group * r.period + i % r.period), v);
        }
    }
    /// Returns the length of a row. Rows begin at its multiples, and what one read() takes must lie within a row.
    int64_t row() const { return r.period == 1 ? r.repeats : r.period; }
};

/// Stores f(a, b) to y, where b repeats.
template <class T, class F>
struct CombineRepeated {
    const T* a;
    Repeated<T> b;
    T* y;
    F f;
    template <int kWidth>
    __device__ void at(int64_t i) const {
        float v[kWidth], other[kWidth];
        VectorReader<kWidth, Plain<T>>({a}, 0).read(size_t(i), v);
        b.template read<kWidth>(i, other);
        RG_UNROLL
        for (int j = 0; j < kWidth; ++j) v[j] = f(v[j], other[j]);
        store_rounded(y + i, v);
    }
};

/// Stores the elements of x, divided by a number, to the larger tensor y, in which they repeat.
template <class From, class To>
struct Repeat {
    Repeated<From> x;
    To* y;
    float divisor;
    template <int kWidth>
    __device__ void at(int64_t i) const {
        float v[kWidth];
        x.template read<kWidth>(i, v);
        RG_UNROLL
        for (float& each : v) each /= divisor;
        store_rounded(y + i, v);
    }
};

/// The shape of the blocks of sum_kernel. A block computes `sums` sums, each with `lanes` threads; both are powers of
/// two. It adds up to `rows` elements to each sum. The sums are of neighbouring columns or, if there is only one
/// column, of neighbouring groups. `rows` is so large that one block can add the results of all blocks of a sum.
struct SumBlocks {
    explicit SumBlocks(const Repeats& r) {
        const auto enough = [](int64_t count, int most) {
            int n = 1;
            while (n < most && n < count) n *= 2;
            return n;
        };
        lanes = r.period == 1 ? enough(r.repeats / 4, kThreads) : kThreads / enough(r.period, 32);
        sums = kThreads / lanes;
        rows = std::max<int64_t>(64 * lanes, blocks_for(r.repeats, 64 * lanes));
        across = int64_t(blocks_for(r.period == 1 ? r.groups : r.period, sums));
        down = std::max<int64_t>(1, blocks_for(r.repeats, rows));
        count = across * down * (r.period == 1 ? 1 : r.groups);
    }
    int lanes, sums;
    int64_t rows, across, down, count; // across, down: number of blocks that cover the sums, and the rows of a sum
};

/// Sums the rows of x [groups repeats period], or of x * times if that is not null, and stores the sums, divided by
/// `divisor`, to y [groups down period], where down is that of SumBlocks.
template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(Repeats r, SumBlocks blocks, const From* x, const From* times, double divisor, To* y) {
    SHARED(double, partial, kThreads);
    const int thread = int(threadIdx.x), lanes = blocks.lanes, sums = blocks.sums;
    const bool one_column = r.period == 1;
    const int lane = one_column ? thread % lanes : thread / sums, place = one_column ? thread / lanes : thread % sums;
    const int64_t sum = int64_t(blockIdx.x) % blocks.across * sums + place, rest = int64_t(blockIdx.x) / blocks.across;
    const int64_t group = one_column ? sum : rest / blocks.down, column = one_column ? 0 : sum;
    const int64_t part = rest % blocks.down, first = part * blocks.rows;
    const int64_t end = first + blocks.rows < r.repeats ? first + blocks.rows : r.repeats;
    const bool inside = group < r.groups && column < r.period;
    double total = 0;
    for (int64_t row = first + lane; inside && row < end; row += lanes) {
        const int64_t i = (group * r.repeats + row) * r.period + column;
        total += times ? double(load(x + i)) * double(load(times + i)) : double(load(x + i));
    }
    partial[lane * sums + place] = total;
    for (int step = kThreads / 2; step >= sums; step /= 2) {
        __syncthreads();
        if (thread < step) partial[thread] += partial[thread + step];
    }
    __syncthreads();
    if (lane == 0 && inside) store(y + (group * blocks.down + part) * r.period + column, partial[place] / divisor);
}

template <class T>
struct SliceGrad {
    const T* dy;
    T* dx;
    int64_t begin, count;
    __device__ void operator()(int64_t i) const {
        store(dx + i, i >= begin && i - begin < count ? load(dy + i - begin) : 0);
    }
};

/// Copies rows of `columns` units. from_step and to_step are the distances from one row's start to the next, in units.
template <class Unit>
struct CopyRows {
    const Unit* from;
    Unit* to;
    int64_t from_step, to_step, columns;
    __device__ void operator()(int64_t i) const {
        const int64_t row = i / columns, column = i - row * columns;
        to[row * to_step + column] = from[row * from_step + column];
    }
};

/// Value i uses the first number of Rng(seed, Purpose::dropout, stream, i) (core/rng.h).
template <class T>
struct DropoutForward {
    const T* x;
    T* y;
    float rate;
    const int32_t* seed;
    uint32_t stream;
    __device__ void operator()(int64_t i) const {
        const std::array<uint32_t, 4> bits =
            philox({0, uint32_t(Purpose::dropout) << 24 ^ stream, uint32_t(i), uint32_t(uint64_t(i) >> 32)},
                   {uint32_t(seed[0]), uint32_t(seed[1])});
        const float uniform = float(bits[0] >> 8) * 0x1p-24f;
        store(y + i, uniform < rate ? 0 : load(x + i) / (1 - rate));
    }
};

} // namespace

void activation(const Call& call) {
    const auto& attrs = call.attrs.as<ActivationOp>();
    const Tensor& x = call.in[ActivationOp::x];
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        with_kind(attrs.activation.kind, [&](auto kind) {
            map<T, T>(x, call.out[0], Activate<decltype(kind)::value>{attrs.activation.slope});
        });
    });
}

void activation_grad(const Call& call) {
    using O = ActivationGradOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &dx = call.out[O::dx];
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        with_kind(attrs.activation.kind, [&](auto kind) {
            combine<T>(dy, call.in[O::from], dx, ActivationGrad<decltype(kind)::value>{attrs.activation.slope});
        });
    });
    const auto sum = [&](const Operand& of, const Tensor& dgamma, const Tensor& dbeta) {
        if (of.norm) NormGradientSums(NormCoefficients(of.norm), dx, of.x, dgamma, dbeta).compute();
    };
    sum(attrs.a_norm.operand(call.in), call.out[O::a_dgamma], call.out[O::a_dbeta]);
    sum(attrs.b_norm.operand(call.in), call.out[O::b_dgamma], call.out[O::b_dbeta]);
}

void add(const Call& call) {
    using O = AddOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor& y = call.out[0];
    const int rank = y.shape().rank();
    const int channels = rank ? int(std::max<int64_t>(1, y.extent(rank - 1))) : 1;
    with_stored(y, [&](auto t) {
        using T = decltype(t);
        with_reader<T>(attrs.a_norm.operand(call.in), [&](const auto& a) {
            with_reader<T>(attrs.b_norm.operand(call.in), [&](const auto& b) {
                elementwise_groups(y.numel(), channels, {a.x, b.x, pointer<T>(y)},
                                   Combine<T, std::decay_t<decltype(a)>, std::decay_t<decltype(b)>, Add>{
                                       a, b, pointer<T>(y), channels, {is_relu(attrs.activation)}});
            });
        });
    });
}

void binary(const Call& call) {
    const Tensor &a = call.in[BinaryOp::a], &b = call.in[BinaryOp::b], &y = call.out[0];
    const Repeats r = repeats_of("binary", b.shape(), a.shape());
    const auto launch = [&](auto zero, auto f) {
        using T = decltype(zero);
        if (r.repeats == 1) return combine<T>(a, b, y, f);
        const Repeated<T> repeated{pointer<T>(b), r};
        elementwise_groups(y.numel(), repeated.row(), {pointer<T>(a), repeated.x, pointer<T>(y)},
                           CombineRepeated<T, decltype(f)>{pointer<T>(a), repeated, pointer<T>(y), f});
    };
    with_stored(y, [&](auto t) {
        switch (call.attrs.as<BinaryOp>().kind) {
#define RG_CASE(name, ...)                                                                                             \
    case Binary::name: return launch(t, BinaryOf<Binary::name>());
            RG_BINARIES(RG_CASE)
#undef RG_CASE
        }
    });
}

// If a sum has the elements of several blocks, a second launch adds the sums of these blocks. The order is fixed.
void sum(const Call& call) {
    const Tensor &x = call.in[SumOp::x], &y = call.out[0];
    if (y.numel() == 0) return;
    const Repeats r = repeats_of("sum", y.shape(), x.shape());
    const double divisor = call.attrs.as<SumOp>().mean && r.repeats > 0 ? double(r.repeats) : 1;
    const auto launch = [&](const Repeats& of, auto* from, auto* times, double by, auto* to) {
        const SumBlocks blocks(of);
        RG_LAUNCH((sum_kernel<std::decay_t<decltype(*from)>, std::decay_t<decltype(*to)>>), unsigned(blocks.count),
                  kThreads, 0, stream(), of, blocks, from, times, by, to);
    };
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        T *const from = pointer<T>(x), *const times = pointer<T>(call.in[SumOp::times]);
        const int64_t parts = SumBlocks(r).down;
        with_stored(y, [&](auto zero) {
            auto* const to = pointer<decltype(zero)>(y);
            if (parts == 1) return launch(r, from, times, divisor, to);
            const DeviceScratch<double> sums{size_t(r.groups * parts * r.period)};
            double* const partial = sums;
            launch(r, from, times, 1, partial);
            launch({r.groups, parts, r.period}, partial, static_cast<double*>(nullptr), divisor, to);
        });
    });
}

void sum_grad(const Call& call) {
    const Tensor &dy = call.in[SumGradOp::dy], &dx = call.out[0];
    const Repeats r = repeats_of("sum_grad", dy.shape(), dx.shape());
    const float divisor = call.attrs.as<SumGradOp>().mean ? float(r.repeats) : 1;
    with_stored(dy, [&](auto from) {
        with_stored(dx, [&](auto to) {
            using From = decltype(from);
            using To = decltype(to);
            const Repeated<From> x{pointer<From>(dy), r};
            elementwise_groups(dx.numel(), x.row(), {x.x, pointer<To>(dx)},
                               Repeat<From, To>{x, pointer<To>(dx), divisor});
        });
    });
}

void scale(const Call& call) {
    const Tensor& x = call.in[ScaleOp::x];
    const auto& attrs = call.attrs.as<ScaleOp>();
    const Scale f{pointer<float>(call.in[ScaleOp::factor]), attrs.constant, attrs.shift};
    with_stored(x, [&](auto t) { map<decltype(t), decltype(t)>(x, call.out[0], f); });
}

void cast(const Call& call) {
    with_stored(call.in[0], [&](auto from) {
        with_stored(call.out[0],
                    [&](auto to) { map<decltype(from), decltype(to)>(call.in[0], call.out[0], Identity{}); });
    });
}

void slice_grad(const Call& call) {
    const Tensor &dy = call.in[SliceGradOp::dy], &dx = call.out[0];
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        elementwise(dx.numel(),
                    SliceGrad<T>{pointer<T>(dy), pointer<T>(dx), call.attrs.as<SliceGradOp>().begin, dy.numel()});
    });
}

namespace {

/// Copies `size` bytes of each row. from_step and to_step are the distances from a row's start to the next row's, in
/// bytes. A thread copies 16 bytes if addresses, steps and size are multiples of 16, else 4 bytes if they are multiples
/// of 4, else 2 bytes.
void copy_rows(int64_t rows, const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step, int64_t size) {
    if (size == 0) return;
    const auto copy = [&](auto unit) {
        using Unit = decltype(unit);
        constexpr int64_t kUnit = sizeof(Unit);
        elementwise(rows * size / kUnit,
                    CopyRows<Unit>{reinterpret_cast<const Unit*>(from), reinterpret_cast<Unit*>(to), from_step / kUnit,
                                   to_step / kUnit, size / kUnit});
    };
    const auto divisible = [&](int64_t by) {
        const intptr_t addresses = reinterpret_cast<intptr_t>(from) | reinterpret_cast<intptr_t>(to);
        return (addresses | from_step | to_step | size) % by == 0;
    };
    if (divisible(16))
        copy(uint4{});
    else if (divisible(4))
        copy(uint32_t{});
    else
        copy(uint16_t{});
}

} // namespace

void slice(const Call& call) {
    const Tensor &x = call.in[SliceOp::x], &y = call.out[0];
    const int64_t begin = call.attrs.as<SliceOp>().begin * size_of(x.dtype());
    copy_rows(1, x.bytes_data() + begin, 0, y.bytes_data(), 0, y.bytes());
}

void concat(const Call& call) {
    const Tensor& y = call.out[0];
    if (y.numel() == 0) return;
    std::byte* to = y.bytes_data();
    for (const Tensor& x : call.in) {
        if (!x.defined()) continue;
        copy_rows(y.numel() / channels_of(y), x.bytes_data(), row_bytes(x), to, row_bytes(y), row_bytes(x));
        to += row_bytes(x);
    }
}

void concat_grad(const Call& call) {
    const Tensor &dy = call.in[ConcatGradOp::dy], &dx = call.out[0];
    if (dx.numel() == 0) return;
    const int64_t offset = call.attrs.as<ConcatGradOp>().begin * size_of(dy.dtype());
    copy_rows(dx.numel() / channels_of(dx), dy.bytes_data() + offset, row_bytes(dy), dx.bytes_data(), row_bytes(dx),
              row_bytes(dx));
}

void dropout(const Call& call) {
    const auto& a = call.attrs.as<DropoutOp>();
    const Tensor &x = call.in[DropoutOp::x], &y = call.out[0];
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        elementwise(y.numel(), DropoutForward<T>{pointer<T>(x), pointer<T>(y), a.probability,
                                                 pointer<int32_t>(call.in[DropoutOp::seed]), a.stream});
    });
}

} // namespace rg::RG_GPU
