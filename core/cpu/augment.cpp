// Writes views of images row by row. The augment op works on the images in parallel.
#include "ringgrad/core/cpu/augment.h"

#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/ops/augment.h"

#include <algorithm>

namespace rg::cpu {

namespace {

/// Returns i if it lies in [0, extent), else i mirrored at the nearer edge. The edge pixel itself is not repeated.
/// Requires that i is less than `extent` beyond the edge.
int64_t mirrored(int64_t i, int64_t extent) { return i < 0 ? -i : i >= extent ? 2 * (extent - 1) - i : i; }

/// kFixed is the number of channels, or 0 for any number.
template <int kFixed, class T>
void write(const ViewShape& s, const View& view, const ByteTable<T>& table, const uint8_t* image, T* out) {
    const int64_t h = s.window_height, w = s.window_width, channels = kFixed ? kFixed : s.channels;
    // Columns [inside, inside_end) of the window lie in the image.
    const int64_t inside = std::clamp<int64_t>(-view.x0, 0, w),
                  inside_end = std::clamp<int64_t>(s.width - view.x0, inside, w);
    const int64_t step = view.flip ? -channels : channels;
    const auto put = [&](const uint8_t* pixel, T* out_pixel) {
        for (size_t c = 0; c < size_t(channels); ++c) out_pixel[c] = table[c][pixel[c]];
    };
    static constexpr uint8_t kBlack[kMaxImageChannels] = {};
    for (int64_t y = 0; y < h; ++y, out += w * channels) {
        const int64_t source = view.y0 + y;
        const bool outside = source < 0 || source >= s.height;
        const uint8_t* row = outside && !s.reflect ? nullptr : image + mirrored(source, s.height) * s.width * channels;
        T* const begin = view.flip ? out + (w - 1) * channels : out; // column 0 of the window
        const auto put_outside = [&](int64_t x) {
            put(row && s.reflect ? row + mirrored(view.x0 + x, s.width) * channels : kBlack, begin + x * step);
        };
        if (!row) {
            for (int64_t x = 0; x < w; ++x) put_outside(x);
            continue;
        }
        for (int64_t x = 0; x < inside; ++x) put_outside(x);
        const uint8_t* pixel = row + (view.x0 + inside) * channels;
        T* out_pixel = begin + inside * step;
        for (int64_t x = inside; x < inside_end; ++x, pixel += channels, out_pixel += step) put(pixel, out_pixel);
        for (int64_t x = inside_end; x < w; ++x) put_outside(x);
    }
}

template <class T>
void augment_as(const Call& call) {
    using O = AugmentOp;
    const Window& window = call.attrs.as<O>().window;
    const Tensor &images = call.in[O::images], &y = call.out[0];
    const ViewShape shape{images.extent(1), images.extent(2), images.extent(3),
                          window.height,    window.width,     window.reflect};
    const int32_t *indices = call.in[O::indices].data<int32_t>(), *views = call.in[O::views].data<int32_t>();
    const float* const mean = call.in[O::statistics].data<float>();
    const ByteTable<T> table = byte_table<T>(mean, mean + shape.channels, shape.channels);
    parallel(y.extent(0), [&](int64_t n) {
        const View view{views[3 * n] != 0, views[3 * n + 1], views[3 * n + 2]};
        RG_CHECK(!shape.reflect || within_reach(shape, view), "augment: expected the view of sample ", n,
                 " within the mirrored image, got one that begins at ", view.y0, ", ", view.x0);
        write_view<T>(shape, view, table, images.data<uint8_t>() + indices[n] * (images.numel() / images.extent(0)),
                      y.data<T>() + n * (y.numel() / y.extent(0)));
    });
}

} // namespace

bool within_reach(const ViewShape& s, const View& v) {
    return v.y0 > -s.height && v.x0 > -s.width && v.y0 + s.window_height < 2 * s.height &&
           v.x0 + s.window_width < 2 * s.width;
}

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
void write_view(const ViewShape& shape, const View& view, const ByteTable<T>& table, const uint8_t* image, T* out) {
    switch (shape.channels) {
    case 1: return write<1>(shape, view, table, image, out);
    case 2: return write<2>(shape, view, table, image, out);
    case 3: return write<3>(shape, view, table, image, out);
    case 4: return write<4>(shape, view, table, image, out);
    default: return write<0>(shape, view, table, image, out);
    }
}

template ByteTable<float> byte_table(const float*, const float*, int64_t);
template ByteTable<bf16> byte_table(const float*, const float*, int64_t);
template void write_view(const ViewShape&, const View&, const ByteTable<float>&, const uint8_t*, float*);
template void write_view(const ViewShape&, const View&, const ByteTable<bf16>&, const uint8_t*, bf16*);

void augment(const Call& call) {
    if (call.out[0].dtype() == DType::bf16)
        augment_as<bf16>(call);
    else
        augment_as<float>(call);
}

} // namespace rg::cpu
