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
void with_kind(Activation kind, F f) {
    switch (kind) {
#define RG_CASE(name, ...)                                                                                             \
    case Activation::name: return f(std::integral_constant<Activation, Activation::name>());
        RG_ACTIVATIONS(RG_CASE)
#undef RG_CASE
    }
}

// The functions that RG_ACTIVATIONS uses, on float.
__device__ constexpr float of(double constant) { return float(constant); }
__device__ float larger(float a, float b) { return a > b ? a : b; }
__device__ float smaller(float a, float b) { return a < b ? a : b; }
__device__ float logistic(float x) { return 1 / (1 + expf(-x)); }
__device__ float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ float normal_cdf(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
__device__ float normal_pdf(float x) { return 0.39894228f * expf(-0.5f * x * x); }

template <Activation kKind>
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
template <Activation kKind>
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
struct Mul {
    __device__ float operator()(float a, float b) const { return a * b; }
};
struct Scale {
    const float* factor; // if null, `constant` is the factor
    float constant;
    __device__ float operator()(float v) const { return v * (factor ? *factor : constant); }
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

constexpr int64_t kSumChunk = 1 << 14;
/// Block b sums the values with indices in [b * chunk, (b + 1) * chunk), and stores the sum / divisor to sums[b].
template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(int64_t count, int64_t chunk, const From* values, double divisor, To* sums) {
    const int64_t begin = int64_t(blockIdx.x) * chunk, end = begin + chunk < count ? begin + chunk : count;
    double total = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) total += double(load(values + i));
    total = block_sum(total);
    if (threadIdx.x == 0) sums[blockIdx.x] = To(total / divisor);
}

template <class T>
struct SumGrad {
    const float* dy;
    T* dx;
    float divisor;
    __device__ void operator()(int64_t i) const { store(dx + i, *dy / divisor); }
};

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
        with_kind(attrs.kind,
                  [&](auto kind) { map<T, T>(x, call.out[0], Activate<decltype(kind)::value>{attrs.slope}); });
    });
}

void activation_grad(const Call& call) {
    using O = ActivationGradOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &dx = call.out[O::dx];
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        with_kind(attrs.kind, [&](auto kind) {
            combine<T>(dy, call.in[O::from], dx, ActivationGrad<decltype(kind)::value>{attrs.slope});
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
                                       a, b, pointer<T>(y), channels, {attrs.relu}});
            });
        });
    });
}

void mul(const Call& call) {
    with_stored(call.out[0],
                [&](auto t) { combine<decltype(t)>(call.in[MulOp::a], call.in[MulOp::b], call.out[0], Mul{}); });
}

// In the first launch, each block sums a chunk. In the second, a single block adds these sums and, for a mean, divides
// by the number of elements. The order is fixed.
void sum(const Call& call) {
    const Tensor& x = call.in[SumOp::x];
    const int64_t count = x.numel(), chunks = std::max<int64_t>(1, blocks_for(count, kSumChunk));
    const double divisor = call.attrs.as<SumOp>().mean && count > 0 ? double(count) : 1;
    const DeviceScratch<double> sums{size_t(chunks)};
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        RG_LAUNCH((sum_kernel<T, double>), unsigned(chunks), kThreads, 0, stream(), count, kSumChunk, pointer<T>(x), 1,
                  sums);
    });
    RG_LAUNCH((sum_kernel<double, float>), 1, kThreads, 0, stream(), chunks, chunks, sums, divisor,
              pointer<float>(call.out[0]));
}

void sum_grad(const Call& call) {
    const Tensor& dx = call.out[0];
    const float divisor = call.attrs.as<SumGradOp>().mean ? float(dx.numel()) : 1;
    with_stored(dx, [&](auto t) {
        using T = decltype(t);
        elementwise(dx.numel(), SumGrad<T>{pointer<float>(call.in[SumGradOp::dy]), pointer<T>(dx), divisor});
    });
}

void scale(const Call& call) {
    const Tensor& x = call.in[ScaleOp::x];
    const Scale f{pointer<float>(call.in[ScaleOp::factor]), call.attrs.as<ScaleOp>().constant};
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
