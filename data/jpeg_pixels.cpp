// See jpeg_pixels.h. Vectors of 8 lanes of 16 bits hold all numbers but the sums of the DCT.
#include "data/jpeg_pixels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace rg::data {

static_assert(std::endian::native == std::endian::little, "bytes are stored in groups as larger numbers");

namespace {

typedef int16_t I16x8 __attribute__((vector_size(16)));
typedef uint16_t U16x8 __attribute__((vector_size(16)));
typedef int32_t I32x4 __attribute__((vector_size(16)));
typedef uint8_t U8x8 __attribute__((vector_size(8)));

template <class Vector>
Vector load_lanes(const void* from) {
    Vector lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}
U16x8 load_bytes(const uint8_t* from) { return __builtin_convertvector(load_lanes<U8x8>(from), U16x8); }
I16x8 clamp_lanes(I16x8 lanes) {
    lanes = lanes < 0 ? I16x8{} : lanes;
    return lanes > 255 ? I16x8{} + 255 : lanes;
}

I16x8 interleave_low(I16x8 a, I16x8 b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
I16x8 interleave_high(I16x8 a, I16x8 b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }

/// Returns a * x + b * y for the pairs (x, y) of lanes.
I32x4 weighted_sums(I16x8 pairs, int16_t a, int16_t b) {
#ifdef __SSE2__
    const I16x8 factors = {a, b, a, b, a, b, a, b};
    return I32x4(_mm_madd_epi16(__m128i(pairs), __m128i(factors)));
#else
    const I32x4 x = {pairs[0], pairs[2], pairs[4], pairs[6]}, y = {pairs[1], pairs[3], pairs[5], pairs[7]};
    return x * a + y * b;
#endif
}

/// Replaces eight coefficients of each of eight columns by their samples, shifted to the right. T.81, section A.3.3.
/// The factors have 13 bits after the point. They are the cosines that the algorithm of Loeffler, Ligtenberg and
/// Moschytz (ICASSP 1989) gives if its own factors are rounded to 13 bits, so that the samples are those of libjpeg. No
/// sum exceeds 31 bits, because the absolute factors of a sample sum to 61213.
template <int kShift>
void inverse_dct(I16x8 (&x)[8], int32_t round) {
    I32x4 halves[2][8];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        const auto pair = [&](int i, int j) { return half ? interleave_high(x[i], x[j]) : interleave_low(x[i], x[j]); };
        const I16x8 x04 = pair(0, 4), x26 = pair(2, 6), x13 = pair(1, 3), x57 = pair(5, 7);
        const I32x4 sum = weighted_sums(x04, 8192, 8192) + round, difference = weighted_sums(x04, 8192, -8192) + round;
        const I32x4 outer = weighted_sums(x26, 10703, 4433), inner = weighted_sums(x26, 4433, -10704);
        const I32x4 even[4] = {sum + outer, difference + inner, difference - inner, sum - outer};
        const I32x4 odd[4] = {weighted_sums(x13, 11363, 9633) + weighted_sums(x57, 6437, 2260),
                              weighted_sums(x13, 9633, -2259) + weighted_sums(x57, -11362, -6436),
                              weighted_sums(x13, 6437, -11362) + weighted_sums(x57, 2261, 9633),
                              weighted_sums(x13, 2260, -6436) + weighted_sums(x57, 9633, -11363)};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            halves[half][i] = (even[i] + odd[i]) >> kShift;
            halves[half][7 - i] = (even[i] - odd[i]) >> kShift;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        typedef int32_t I32x8 __attribute__((vector_size(32)));
        const I32x8 both = __builtin_shufflevector(halves[0][i], halves[1][i], 0, 1, 2, 3, 4, 5, 6, 7);
        x[i] = __builtin_convertvector(both, I16x8);
    }
}

/// Interleaves the rows of one half with those of the other; three times that exchanges rows and columns.
void transpose(I16x8 (&x)[8]) {
#pragma GCC unroll 3
    for (int stage = 0; stage < 3; ++stage) {
        I16x8 y[8];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            y[2 * i] = interleave_low(x[i], x[i + 4]);
            y[2 * i + 1] = interleave_high(x[i], x[i + 4]);
        }
        std::copy_n(y, 8, x);
    }
}

/// Makes rows of the image's width from a component that may have fewer samples. Rows have room to be read 8 samples at
/// a time.
class Upsampler {
public:
    Upsampler(const JpegPlane& plane, int h_max, int v_max)
        : p_(plane),
          h_max_(h_max),
          v_max_(v_max),
          wide_(size_t(p_.stride * h_max / p_.h)),
          sums_(size_t(p_.stride + 2)) {}

    /// Returns row y of the image. As in libjpeg, samples are interpolated linearly if there are half as many; in all
    /// other cases each is repeated. Samples lie in the middle of their pixels, so the nearer one weighs 3/4.
    const uint8_t* row(int64_t y) {
        const int64_t at = y * p_.v / v_max_, beside = std::clamp<int64_t>(at + (y % 2 ? 1 : -1), 0, p_.height - 1);
        const uint8_t* const line = &p_.samples[size_t(at * p_.stride)];
        const uint8_t* const near = &p_.samples[size_t(beside * p_.stride)];
        const bool half_rows = v_max_ == 2 * p_.v, half_columns = h_max_ == 2 * p_.h && p_.width > 2;
        if (h_max_ == p_.h) {
            if (!half_rows) return line;
            const uint16_t round = y % 2 ? 2 : 1;
            for (int64_t x = 0; x < p_.width; x += 8) {
                const U16x8 sums = 3 * load_bytes(line + x) + load_bytes(near + x) + round;
                const U8x8 means = __builtin_convertvector(sums >> 2, U8x8);
                std::memcpy(&wide_[size_t(x)], &means, sizeof means);
            }
        } else if (half_columns && (half_rows || v_max_ == p_.v)) {
            for (int64_t x = 0; x < p_.width; x += 8) {
                U16x8 sums = load_bytes(line + x);
                if (half_rows) sums = 3 * sums + load_bytes(near + x);
                std::memcpy(&sums_[size_t(x + 1)], &sums, sizeof sums);
            }
            half_rows ? double_columns<4>(8, 7) : double_columns<2>(1, 2);
        } else {
            for (int64_t x = 0; x < p_.width * h_max_ / p_.h; ++x) wide_[size_t(x)] = line[x * p_.h / h_max_];
        }
        return wide_.data();
    }

private:
    /// Writes twice as many samples, interpolated between neighbouring sums. The two roundings differ, so that they do
    /// not change the mean.
    template <int kShift>
    void double_columns(uint16_t round_left, uint16_t round_right) {
        sums_.front() = sums_[1];
        sums_[size_t(p_.width + 1)] = sums_[size_t(p_.width)];
        for (size_t x = 0; x < size_t(p_.width); x += 8) {
            const U16x8 sums = 3 * load_lanes<U16x8>(&sums_[x + 1]);
            const U16x8 left = (sums + load_lanes<U16x8>(&sums_[x]) + round_left) >> kShift;
            const U16x8 right = (sums + load_lanes<U16x8>(&sums_[x + 2]) + round_right) >> kShift;
            const U16x8 pairs = left | right << 8;
            std::memcpy(&wide_[2 * x], &pairs, sizeof pairs);
        }
    }

    const JpegPlane& p_;
    int h_max_, v_max_;
    std::vector<uint8_t> wide_;
    std::vector<uint16_t> sums_; // sums of a row, with a copy of the first before it and of the last after it
};

/// Returns a * x + b * y in units of 1/65536, rounded. The factors are 256 * high + low, so that 16 bits suffice for x
/// and y of -128 to 127.
I16x8 rounded_sum(I16x8 x, int16_t a_high, int16_t a_low, I16x8 y, int16_t b_high, int16_t b_low) {
    const U16x8 low = U16x8(x * a_low + y * b_low) + uint16_t{32768}; // not negative
    return (x * a_high + y * b_high + I16x8(low >> 8)) >> 8;
}

/// Converts YCbCr to RGB. JFIF 1.02, section 7: R = Y + 1.402 Cr, G = Y - 0.344136 Cb - 0.714136 Cr, B = Y + 1.772 Cb.
/// rounded_sum() takes the rests of these factors after 1, -1 and 1: 0.402, -0.344136, 0.285864 and 0.772. Writes 8
/// pixels at a time, and one byte after them.
void ycc_to_rgb(const uint8_t* luma, const uint8_t* blue, const uint8_t* red, int64_t pixels, uint8_t* out) {
    for (int64_t x = 0; x < pixels; x += 8, out += 24) {
        const I16x8 y = I16x8(load_bytes(luma + x)), zero{};
        const I16x8 cb = I16x8(load_bytes(blue + x)) - 128, cr = I16x8(load_bytes(red + x)) - 128;
        const I16x8 r = clamp_lanes(y + cr + rounded_sum(cr, 102, 233, zero, 0, 0));           // factor 26345
        const I16x8 g = clamp_lanes(y - cr + rounded_sum(cb, -88, -26, cr, 73, 46));           // factors -22554, 18734
        const I16x8 b = clamp_lanes(y + cb + rounded_sum(cb, 197, 162, zero, 0, 0));           // factor 50594
        const I16x8 rgb0[2] = {interleave_low(r | g << 8, b), interleave_high(r | g << 8, b)}; // 4 bytes per pixel
        const auto* from = reinterpret_cast<const uint8_t*>(rgb0);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) std::memcpy(out + 3 * i, from + 4 * i, 4);
    }
}

/// Multiplies the RGB of the pixels by black / 255, rounded as in Pillow. 255 is no ink, as Adobe writes it. If
/// `inverted`, `out` holds 255 - RGB before the call.
void apply_black(const uint8_t* black, int64_t pixels, bool inverted, uint8_t* out) {
    for (int64_t i = 0; i < 3 * pixels; ++i) {
        const int k = black[i / 3], product = (inverted ? out[i] : 255 - out[i]) * k + 128;
        out[i] = uint8_t(k - ((product + (product >> 8)) >> 8)); // not negative: the product is at most k
    }
}

} // namespace

void write_jpeg_block(const int16_t* block, bool only_dc, uint8_t* out, int64_t stride) {
    if (only_dc) {
        const int value = std::clamp(((block[0] + 4) >> 3) + 128, 0, 255);
        for (int y = 0; y < 8; ++y) std::memset(out + y * stride, value, 8);
        return;
    }
    I16x8 x[8];
#pragma GCC unroll 8
    for (int y = 0; y < 8; ++y) x[y] = load_lanes<I16x8>(block + 8 * y);
    inverse_dct<11>(x, 1 << 10); // keeps two bits after the point
    transpose(x);
    inverse_dct<18>(x, (128 << 18) + (1 << 17));
    transpose(x);
#pragma GCC unroll 8
    for (int y = 0; y < 8; ++y) {
        const U8x8 row = __builtin_convertvector(clamp_lanes(x[y]), U8x8);
        std::memcpy(out + y * stride, &row, sizeof row);
    }
}

Image jpeg_image(int64_t width, int64_t height, JpegColours colours, std::span<const JpegPlane* const> planes) {
    const int channels = colours == JpegColours::grey ? 1 : 3;
    const bool ycc = colours == JpegColours::ycc || colours == JpegColours::ycck;
    const size_t bytes = size_t(width * height * channels);
    Image image{width, height, channels, 8, std::vector<uint8_t>(bytes + 22)}; // ycc_to_rgb() writes 7 pixels more
    int h_max = 1, v_max = 1;
    for (const JpegPlane* p : planes) h_max = std::max(h_max, p->h), v_max = std::max(v_max, p->v);
    std::vector<Upsampler> upsamplers;
    for (const JpegPlane* p : planes) upsamplers.emplace_back(*p, h_max, v_max);
    uint8_t* to = image.pixels.data();
    for (int64_t y = 0; y < height; ++y, to += width * channels) {
        const uint8_t* rows[4] = {};
        for (size_t i = 0; i < planes.size(); ++i) rows[i] = upsamplers[i].row(y);
        if (ycc) {
            ycc_to_rgb(rows[0], rows[1], rows[2], width, to);
        } else {
            for (int64_t x = 0; x < width; ++x)
                for (int64_t k = 0; k < channels; ++k) to[channels * x + k] = rows[k][x];
        }
        if (planes.size() == 4) apply_black(rows[3], width, ycc, to);
    }
    image.pixels.resize(bytes);
    return image;
}

Image oriented(const Image& image, int orientation) {
    const bool swap = orientation >= 5;
    const bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    const int64_t width = image.width, height = image.height, n = image.channels;
    Image out{swap ? height : width, swap ? width : height, image.channels, 8, {}};
    out.pixels.resize(image.pixels.size());
    const int64_t step_x = flip_x ? -n : n, step_y = (flip_y ? -n : n) * width;
    const int64_t first = (flip_x ? (width - 1) * n : 0) + (flip_y ? (height - 1) * width * n : 0);
    uint8_t* to = out.pixels.data();
    for (int64_t y = 0; y < out.height; ++y)
        for (int64_t x = 0; x < out.width; ++x, to += n)
            std::copy_n(&image.pixels[size_t(first + (swap ? y * step_x + x * step_y : x * step_x + y * step_y))], n,
                        to);
    return out;
}

} // namespace rg::data
