// Writes views of images (augment.h). The augment op distributes the images over threads.
#include "core/cpu/augment.h"

#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/ops/augment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>

namespace rg::cpu {

namespace {

/// Returns true if the view only shifts by whole pixels and flips, so that no pixel needs interpolation.
bool keeps_pixels(const View& v) {
    return std::abs(v.y_per_row) == kPixel && std::abs(v.x_per_column) == kPixel && v.y_per_column == 0 &&
           v.x_per_row == 0 && v.y0 % kPixel == 0 && v.x0 % kPixel == 0;
}

constexpr uint8_t kBlack[kMaxImageChannels] = {};

/// Writes a view for which keeps_pixels() is true, several times as fast as write_sampled(). kFixed is the number of
/// channels, or 0 for any number.
template <int kFixed, class T>
void write_pixels(const ViewShape& s, const View& view, const ByteTable<T>& table, const uint8_t* image, T* out) {
    const int64_t w = s.window_width, channels = kFixed ? kFixed : s.channels;
    const int64_t x0 = view.x0 / kPixel, step = view.x_per_column / kPixel;
    // Columns [inside, inside_end) of the window lie in the image.
    const int64_t inside = std::clamp<int64_t>(step > 0 ? -x0 : x0 - s.width + 1, 0, w),
                  inside_end = std::clamp<int64_t>(step > 0 ? s.width - x0 : x0 + 1, inside, w);
    const auto put = [&](const uint8_t* pixel) {
        for (size_t c = 0; c < size_t(channels); ++c) *out++ = table[c][pixel[c]];
    };
    for (int64_t y = 0; y < s.window_height; ++y) {
        const int64_t source = view.y(y, 0) / kPixel;
        const bool black = !s.reflect && (source < 0 || source >= s.height);
        const uint8_t* const row = image + (black ? 0 : mirrored(source, s.height) * s.width * channels);
        const auto put_outside = [&](int64_t x) {
            put(s.reflect ? row + mirrored(x0 + x * step, s.width) * channels : kBlack);
        };
        for (int64_t x = 0; x < (black ? w : inside); ++x) put_outside(x);
        if (black) continue;
        const uint8_t* pixel = row + (x0 + inside * step) * channels;
        for (int64_t x = inside; x < inside_end; ++x, pixel += step * channels) put(pixel);
        for (int64_t x = inside_end; x < w; ++x) put_outside(x);
    }
}

/// Writes any view, with bilinear interpolation. kFixed is the number of channels, or 0 for any number.
template <int kFixed, class T>
void write_sampled(const ViewShape& s, const View& view, const ByteTable<T>& table, const uint8_t* image, T* out) {
    const int64_t channels = kFixed ? kFixed : s.channels;
    for (int64_t row = 0; row < s.window_height; ++row)
        for (int64_t column = 0; column < s.window_width; ++column) {
            const Neighbours y = neighbours(view.y(row, column), s.height, s.reflect),
                             x = neighbours(view.x(row, column), s.width, s.reflect);
            const uint8_t* const above = image + y.first * s.width * channels;
            const uint8_t* const below = image + y.second * s.width * channels;
            const int64_t left = x.first * channels, right = x.second * channels;
            for (int64_t c = 0; c < channels; ++c) {
                const uint8_t byte = y.outside || x.outside ? uint8_t(0)
                                                            : bilinear(y, x, above[left + c], above[right + c],
                                                                       below[left + c], below[right + c]);
                *out++ = table[size_t(c)][byte];
            }
        }
}

template <int kFixed, class T>
void write(const ViewShape& s, const View& view, const ByteTable<T>& table, const uint8_t* image, T* out) {
    if (keeps_pixels(view))
        write_pixels<kFixed>(s, view, table, image, out);
    else
        write_sampled<kFixed>(s, view, table, image, out);
}

/// Writes the window of a view, normalised by `table`: shifted, flipped and transformed, but not recoloured, mixed or
/// erased.
template <class T>
void write_positions(const ViewShape& shape, const View& view, const ByteTable<T>& table, const uint8_t* image,
                     T* out) {
    switch (shape.channels) {
    case 1: return write<1>(shape, view, table, image, out);
    case 3: return write<3>(shape, view, table, image, out);
    default: return write<0>(shape, view, table, image, out);
    }
}

/// Returns the table that maps each byte to itself.
const ByteTable<uint8_t>& same_bytes() {
    static constexpr ByteTable<uint8_t> kTable = [] {
        ByteTable<uint8_t> table{};
        for (auto& channel : table)
            for (size_t value = 0; value < 256; ++value) channel[value] = uint8_t(value);
        return table;
    }();
    return kTable;
}

/// Writes the bytes of a view, with its brightness, contrast and saturation.
void write_bytes(const ViewShape& s, const View& view, const uint8_t* image, uint8_t* bytes) {
    write_positions(s, view, same_bytes(), image, bytes);
    if (!view.recolours()) return;
    const int64_t pixels = s.window_height * s.window_width, channels = s.channels;
    const auto replace = [&](const auto& replacement) {
        std::array<uint8_t, 256> table;
        for (size_t value = 0; value < 256; ++value) table[value] = uint8_t(replacement(int64_t(value)));
        for (uint8_t& byte : std::span(bytes, size_t(pixels * channels))) byte = table[byte];
    };
    const auto grey_at = [&](int64_t i) {
        return grey_of(channels, [&](int64_t c) { return int64_t(bytes[i * channels + c]); });
    };
    if (view.brightness != kFactor) replace([&](int64_t byte) { return brightened(view, byte); });
    if (view.contrast != kFactor) {
        int64_t sum = 0;
        for (int64_t i = 0; i < pixels; ++i) sum += grey_at(i);
        const int64_t mean = rounded_mean(sum, pixels);
        replace([&](int64_t byte) { return blended(mean, byte, view.contrast); });
    }
    if (view.saturation == kFactor) return;
    for (int64_t i = 0; i < pixels; ++i) {
        const int64_t grey = grey_at(i);
        for (int64_t c = 0; c < channels; ++c)
            bytes[i * channels + c] = blended(grey, bytes[i * channels + c], view.saturation);
    }
}

/// Calls f(begin, end) for each row of the part of `box` that lies in the window: the row's values have the indices
/// [begin, end) in the window.
template <class F>
void for_rows(const ViewShape& s, const Box& box, F f) {
    const int64_t left = std::clamp<int64_t>(box.left, 0, s.window_width),
                  right = std::clamp<int64_t>(box.right, left, s.window_width);
    const int64_t last = std::min<int64_t>(box.bottom, s.window_height);
    for (int64_t y = std::max(box.top, 0); y < last; ++y)
        f((y * s.window_width + left) * s.channels, (y * s.window_width + right) * s.channels);
}

template <class T>
void augment_as(const Call& call) {
    using O = AugmentOp;
    const Window& window = call.attrs.as<O>().window;
    const Tensor &images = call.in[O::images], &y = call.out[0];
    const ViewShape shape{images.extent(1), images.extent(2), images.extent(3),
                          window.height,    window.width,     window.reflect};
    const int32_t *indices = call.in[O::indices].data<int32_t>(), *views = call.in[O::views].data<int32_t>();
    const bool pairs = call.in[O::indices].shape().rank() == 2,
               positions_only = call.in[O::views].extent(1) == kPositionNumbers;
    const float* const mean = call.in[O::statistics].data<float>();
    const ByteTable<T> table = byte_table<T>(mean, mean + shape.channels, shape.channels);
    const auto image = [&](int64_t i) {
        return images.data<uint8_t>() + indices[i] * (images.numel() / images.extent(0));
    };
    parallel(y.extent(0), [&](int64_t n) {
        T* const out = y.data<T>() + n * (y.numel() / y.extent(0));
        if (pairs)
            write_view<T>(shape, view_at(views, 2 * n, false), table, image(2 * n), out,
                          view_at(views, 2 * n + 1, false), image(2 * n + 1));
        else
            write_view<T>(shape, view_at(views, n, positions_only), table, image(n), out);
    });
}

} // namespace

template <class T>
ByteTable<T> byte_table(const float* mean, const float* deviation, int64_t channels) {
    ByteTable<T> table{};
    for (size_t c = 0; c < size_t(channels); ++c)
        for (size_t value = 0; value < 256; ++value) {
            const float normalised = (float(value) / 255.0f - mean[c]) / deviation[c];
            if constexpr (std::is_same_v<T, bf16>)
                table[c][value] = to_bf16(normalised);
            else
                table[c][value] = normalised;
        }
    return table;
}

template <class T>
void write_view(const ViewShape& shape, const View& view, const ByteTable<T>& table, const uint8_t* image, T* out,
                const View& second_view, const uint8_t* second_image) {
    const int64_t channels = shape.channels, size = shape.window_height * shape.window_width * channels;
    const bool mixes = second_image && view.mixes();
    if (view.recolours() || mixes) {
        const Scratch<uint8_t> bytes(size), others(mixes ? size : 0);
        write_bytes(shape, view, image, bytes);
        if (mixes) {
            write_bytes(shape, second_view, second_image, others);
            for_rows(shape, view.mixed, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) bytes[i] = blended(bytes[i], others[i], view.mixed_share);
            });
        }
        for (int64_t i = 0; i < size; i += channels)
            for (int64_t c = 0; c < channels; ++c) out[i + c] = table[size_t(c)][bytes[i + c]];
    } else {
        write_positions(shape, view, table, image, out);
    }
    for_rows(shape, view.erased, [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, T{}); });
}

template ByteTable<float> byte_table(const float*, const float*, int64_t);
template ByteTable<bf16> byte_table(const float*, const float*, int64_t);
template void write_view(const ViewShape&, const View&, const ByteTable<float>&, const uint8_t*, float*, const View&,
                         const uint8_t*);
template void write_view(const ViewShape&, const View&, const ByteTable<bf16>&, const uint8_t*, bf16*, const View&,
                         const uint8_t*);

void augment(const Call& call) {
    if (call.out[0].dtype() == DType::bf16)
        augment_as<bf16>(call);
    else
        augment_as<float>(call);
}

} // namespace rg::cpu
