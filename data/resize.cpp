// Resamples images. Pixels that are cropped away are not computed.
#include "data/resize.h"

#include "core/ops/augment.h"

#include <algorithm>
#include <cmath>

namespace rg::data {

namespace {

constexpr int kWeightBits = 22;

/// A result of `extent` pixels of which only the positions [begin, begin + count) are computed.
struct CroppedAxis {
    int64_t extent, begin, count;
};

/// The source pixels [first, first + count) that one pixel of the result uses, and the index of their first weight.
struct Support {
    int64_t first, count;
    size_t weights;
};

/// How one axis is resampled: the support of each computed position, and the weights of all supports.
struct ResampleFilter {
    std::vector<Support> supports;
    std::vector<int32_t> weights;
};

ResampleFilter filter_of(int64_t source, const CroppedAxis& part) {
    const double scale = double(source) / double(part.extent), reach = std::max(1.0, scale), inverse = 1 / reach;
    ResampleFilter filter;
    std::vector<double> weights;
    for (int64_t i = part.begin; i < part.begin + part.count; ++i) {
        const double centre = (double(i) + 0.5) * scale;
        const int64_t first = std::max<int64_t>(0, int64_t(centre - reach + 0.5)),
                      end = std::min(source, int64_t(centre + reach + 0.5));
        weights.clear();
        double sum = 0;
        for (int64_t pixel = first; pixel < end; ++pixel) {
            weights.push_back(std::max(0.0, 1 - std::abs((double(pixel) - centre + 0.5) * inverse)));
            sum += weights.back();
        }
        filter.supports.push_back({first, end - first, filter.weights.size()});
        for (const double weight : weights)
            filter.weights.push_back(int32_t(0.5 + weight / sum * double(1 << kWeightBits)));
    }
    return filter;
}

// Sums of weights times bytes stay below 2^31: weights add up to 2^22, and rounding to integers at most doubles each.
constexpr int32_t kHalf = 1 << (kWeightBits - 1);
uint8_t to_byte(int32_t sum) { return uint8_t(std::min(255, sum >> kWeightBits)); }

/// Resamples a row. kFixed is the number of channels, or 0 for any number.
template <int kFixed>
void resample_row(const ResampleFilter& filter, int any_channels, const uint8_t* row, uint8_t* out) {
    const int64_t channels = kFixed ? kFixed : any_channels;
    for (const Support& support : filter.supports) {
        int32_t sums[kFixed ? kFixed : kMaxImageChannels];
        std::fill_n(sums, channels, kHalf);
        const uint8_t* pixel = row + support.first * channels;
        const int32_t* const weights = filter.weights.data() + support.weights;
        for (int64_t i = 0; i < support.count; ++i, pixel += channels)
            for (int64_t c = 0; c < channels; ++c) sums[c] += weights[i] * pixel[c];
        for (int64_t c = 0; c < channels; ++c) *out++ = to_byte(sums[c]);
    }
}

void resample_row(const ResampleFilter& filter, int channels, const uint8_t* row, uint8_t* out) {
    switch (channels) {
    case 1: return resample_row<1>(filter, channels, row, out);
    case 3: return resample_row<3>(filter, channels, row, out);
    default: return resample_row<0>(filter, channels, row, out);
    }
}

/// Writes weighted sums of rows of `bytes` bytes to `out`. `rows` has the source rows from number `first_row` on.
void resample_column(const ResampleFilter& filter, const uint8_t* rows, int64_t first_row, int64_t bytes,
                     uint8_t* out) {
    std::vector<int32_t> sums(static_cast<size_t>(bytes));
    for (const Support& support : filter.supports) {
        std::fill(sums.begin(), sums.end(), kHalf);
        const uint8_t* row = rows + (support.first - first_row) * bytes;
        for (int64_t i = 0; i < support.count; ++i, row += bytes) {
            const int32_t weight = filter.weights[support.weights + size_t(i)];
            for (int64_t x = 0; x < bytes; ++x) sums[size_t(x)] += weight * row[x];
        }
        for (const int32_t sum : sums) *out++ = to_byte(sum);
    }
}

Image resample(const Image& image, const CroppedAxis& height, const CroppedAxis& width) {
    const ResampleFilter columns = filter_of(image.width, width), rows = filter_of(image.height, height);
    // Only these rows of the source contribute to the result.
    const int64_t first_row = rows.supports.front().first,
                  end_row = rows.supports.back().first + rows.supports.back().count;
    const int64_t in_bytes = image.width * image.channels, bytes = width.count * image.channels;
    std::vector<uint8_t> narrow(size_t((end_row - first_row) * bytes));
    for (int64_t y = first_row; y < end_row; ++y)
        resample_row(columns, image.channels, image.pixels.data() + y * in_bytes,
                     narrow.data() + (y - first_row) * bytes);
    Image result{width.count, height.count, image.channels, 8, std::vector<uint8_t>(size_t(height.count * bytes))};
    resample_column(rows, narrow.data(), first_row, bytes, result.pixels.data());
    return result;
}

void check(const char* function, const Image& image, int64_t height, int64_t width) {
    RG_CHECK(height >= 1 && width >= 1 && height <= kMaxPixels / width, function, ": expected a size of 1 to ",
             kMaxPixels, " pixels, got ", height, " x ", width);
    RG_CHECK(image.bit_depth == 8 && image.channels >= 1 && image.channels <= kMaxImageChannels, function,
             ": expected an image with 8 bits and 1 to ", kMaxImageChannels, " channels, got ", image.bit_depth,
             " bits and ", image.channels, " channels; convert it with to_u8()");
    RG_CHECK(image.height >= 1 && image.width >= 1 &&
                 int64_t(image.pixels.size()) == image.height * image.width * image.channels,
             function, ": expected ", image.height, " x ", image.width, " pixels of ", image.channels, " bytes, got ",
             image.pixels.size(), " bytes");
}

/// Returns the middle `count` of `extent` pixels.
CroppedAxis centre(int64_t extent, int64_t count) { return {extent, centre_offset(extent, count), count}; }

} // namespace

int64_t centre_offset(int64_t extent, int64_t count) {
    const int64_t half = (extent - count) / 2;
    return half + ((extent - count) % 2) * (half % 2);
}

Image resize(const Image& image, int64_t height, int64_t width) {
    check("resize", image, height, width);
    return resample(image, {height, 0, height}, {width, 0, width});
}

Image fit(const Image& image, int64_t height, int64_t width) {
    check("fit", image, height, width);
    if (image.height == height && image.width == width) return image;
    // The axis on which the image is shorter, relative to the result, is scaled to exactly the extent of the result.
    const bool wide = image.width * height >= image.height * width;
    return resample(image, centre(wide ? height : image.height * width / image.width, height),
                    centre(wide ? image.width * height / image.height : width, width));
}

} // namespace rg::data
