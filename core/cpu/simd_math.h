// Exponentials and logarithms of vectors, and functions that are computed from exponentials. The results are accurate
// to a few units in the last place, except the small values in the tails of normal_cdf, where the rounding error of x^2
// counts. A NaN stays NaN. The polynomials are minimax approximations (Remez).
#pragma once

#include "core/cpu/simd.h"

namespace rg::cpu::RG_ISA {

typedef int32_t IntVec __attribute__((vector_size(kWidth * 4)));

/// Returns c[0] + c[1] x + c[2] x^2 + ...
template <int kTerms>
static inline Vec polynomial(Vec x, const float (&c)[kTerms]) {
    Vec sum = splat(c[kTerms - 1]);
    RG_UNROLL
    for (int i = kTerms - 2; i >= 0; --i) sum = sum * x + splat(c[i]);
    return sum;
}

/// Returns 2^n for -127 < n < 128.
static inline Vec power_of_two(IntVec n) { return (Vec)((n + 127) << 23); }

static inline Vec absolute(Vec x) { return (Vec)((IntVec)x & 0x7FFFFFFF); }

/// Returns v * 2^n for the whole number n = shifted - shift, where `shift` is 1.5 * 2^23 and -160 < n < 128. The result
/// may underflow.
static inline Vec scaled(Vec v, Vec shifted, Vec shift) {
#if defined(__AVX512F__)
    return _mm512_scalef_ps(v, shifted - shift);
#else
    const IntVec exponent = (IntVec)shifted - (IntVec)shift, half = exponent >> 1;
    return v * power_of_two(half) * power_of_two(exponent - half); // two factors, since 2^n may be too small
#endif
}

/// Returns e^x for x <= 100. Computes it as 2^n e^r, where n is the whole number nearest to x / log(2), and
/// r = x - n * log(2). So |r| <= log(2) / 2.
static inline __attribute__((always_inline)) Vec exponential_up_to_100(Vec x) {
    x = larger(splat(-110), x);         // e^x is 0 below
    const Vec shift = splat(0x1.8p23f); // adding it rounds to a whole number, which the last bits of the sum then hold
    const Vec shifted = x * splat(1.44269504f) + shift, n = shifted - shift;
    // Subtract n * log(2) in two parts. The product with the first part is exact.
    const Vec r = x - n * splat(0.693359375f) - n * splat(-2.12194440e-4f);
    constexpr float kTerms[] = {0.49999994f, 0.16666515f, 0.041668456f, 0.0083694188f, 0.0013813151f};
    const Vec value = r * r * polynomial(r, kTerms) + r + splat(1); // the polynomial's part of the error is 4e-9
    return scaled(value, shifted, shift);
}

static inline Vec exponential(Vec x) { return exponential_up_to_100(smaller(splat(100), x)); }

/// Returns the natural logarithm of x. Computes it as n log(2) + log(1 + r), where x = 2^n (1 + r), and 1 + r lies
/// between sqrt(1/2) and sqrt(2). For x < 0 these values do not matter, but must not overflow.
static inline Vec logarithm(Vec x) {
    const IntVec subnormal = x < splat(0x1p-126f), root_of_half = (IntVec)splat(0.70710678f);
    const IntVec bits = (IntVec)absolute(subnormal ? x * splat(0x1p23f) : x), n = (bits - root_of_half) >> 23;
    const Vec r = (Vec)(bits - (n << 23)) - splat(1);
    const Vec exponent = __builtin_convertvector(n - (subnormal & 23), Vec);
    constexpr float kTerms[] = {0.33333331f, -0.25000823f, 0.20001227f, -0.16623355f,
                                0.14201751f, -0.13160197f, 0.12761641f, -0.076345384f};
    const Vec square = r * r, rest = square * r * polynomial(r, kTerms) - exponent * splat(2.12194440e-4f);
    const Vec value = exponent * splat(0.693359375f) + (r + (rest - splat(0.5f) * square));
    const Vec infinity = splat(__builtin_inff());
    return x > Vec{} ? x < infinity ? value : x : x == Vec{} ? -infinity : splat(__builtin_nanf(""));
}

/// Returns log(1 + x) for x from 0 to 1. Adds the part of x that the rounding of 1 + x loses.
static inline Vec logarithm_of_one_plus(Vec x) {
    const Vec one = splat(1), sum = one + x;
    return logarithm(sum) + (x - (sum - one)) / sum;
}

/// Returns 1 / (1 + e^-x).
static inline __attribute__((always_inline)) Vec logistic(Vec x) {
    const Vec one = splat(1), e = exponential_up_to_100(-absolute(x));
    return (x < Vec{} ? e : one) / (one + e);
}

static inline __attribute__((always_inline)) Vec hyperbolic_tangent(Vec x) {
    const Vec one = splat(1), size = absolute(x), square = x * x;
    const Vec e = exponential_up_to_100(size * splat(-2)), far = (one - e) / (one + e);
    constexpr float kTerms[] = {-0.33333281f, 0.13331442f, -0.053739715f, 0.020639084f, -0.0057049845f};
    const Vec near = x + x * square * polynomial(square, kTerms); // for small x, 1 - e would lose digits
    return size < splat(0.625f) ? near : x < Vec{} ? -far : far;
}

/// Returns the density of a standard normal variable at x.
static inline __attribute__((always_inline)) Vec normal_pdf(Vec x) {
    return exponential_up_to_100(x * x * splat(-0.5f)) * splat(0.39894228f);
}

/// Returns the distribution function of a standard normal variable at x.
static inline __attribute__((always_inline)) Vec normal_cdf(Vec x) {
    // Mills' ratio, cdf(-|x|) / pdf(x), is a smooth function of t = 1 / (1 + 0.35 |x|). t * polynomial(t) approximates
    // this ratio, divided by sqrt(2 pi), with a relative error below 8e-8 for |x| <= 15.
    const Vec one = splat(1), e = exponential_up_to_100(x * x * splat(-0.5f)),
              t = reciprocal(smaller(splat(1e20f), one + splat(0.35f) * absolute(x)));
    constexpr float kTerms[] = {0.13962126f, 0.13986433f,  0.11981557f, 0.10557452f,  -0.023263147f,
                                0.15939191f, -0.25590098f, 0.14406039f, -0.029163841f};
    const Vec tail = e * t * polynomial(t, kTerms);
    return x > Vec{} ? one - tail : tail;
}

} // namespace rg::cpu::RG_ISA
