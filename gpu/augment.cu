// Computes views of the images of a set: augmented training images, and windows of test images.
#include "gpu/elementwise.cuh"
#include "gpu/kernels.h"
#include "gpu/reduce.cuh"

namespace rg::RG_GPU {

namespace {

/// The images of a set, and the window that a view shows of each.
struct ViewedImages {
    const uint8_t* bytes;
    int64_t count;
    int height, width, channels, window_height, window_width;
    bool reflect;

    __device__ int pixels() const { return window_height * window_width; }
    /// Returns the byte of a channel that a view of image `index` shows in a pixel of the window.
    __device__ uint8_t byte(int index, const View& view, int row, int column, int c) const {
        const Neighbours at_y = neighbours(view.y(row, column), height, reflect),
                         at_x = neighbours(view.x(row, column), width, reflect);
        const auto byte_at = [&](int64_t y, int64_t x) {
            return bytes[((int64_t(index) * height + y) * width + x) * channels + c];
        };
        if (at_y.outside || at_x.outside) return 0;
        return bilinear(at_y, at_x, byte_at(at_y.first, at_x.first), byte_at(at_y.first, at_x.second),
                        byte_at(at_y.second, at_x.first), byte_at(at_y.second, at_x.second));
    }
};

/// Stores the mean grey, after the change of brightness, of each view that changes its contrast; 0 for the others.
/// Block i works on view i.
__global__ void __launch_bounds__(kThreads)
    augment_mean_grey_kernel(ViewedImages images, const int* indices, const int* views, int* means) {
    const int64_t n = blockIdx.x;
    const View view = view_at(views, n, false);
    const int index = indices[n];
    double sum = 0; // a sum of integers, so it is exact in any order
    if (view.contrast != kFactor && index >= 0 && index < images.count)
        for (int i = int(threadIdx.x); i < images.pixels(); i += kThreads) {
            const int row = i / images.window_width, column = i % images.window_width;
            sum += double(grey_of(images.channels, [&](int64_t c) {
                return brightened(view, images.byte(index, view, row, column, int(c)));
            }));
        }
    sum = block_sum(sum);
    if (threadIdx.x == 0) means[n] = int(rounded_mean(int64_t(sum), images.pixels()));
}

/// Writes the views. Stores NaN for an image whose index is outside of the data set. With kPositionsOnly, views consist
/// of positions alone, and `means` and `images_each` are not used.
template <class T, bool kPositionsOnly>
struct AugmentValue {
    ViewedImages images;
    const int *indices, *views, *means;
    const float* statistics;
    T* y;
    int images_each; // images per result: 2 if they are mixed, else 1

    __device__ bool exists(int64_t k) const { return indices[k] >= 0 && indices[k] < images.count; }
    /// Returns the byte of a channel that view k shows in a pixel, with its changes of colours.
    __device__ int shown(int64_t k, const View& view, int row, int column, int channel) const {
        const auto byte = [&](int64_t c) { return images.byte(indices[k], view, row, column, int(c)); };
        if (kPositionsOnly || !view.recolours()) return byte(channel);
        const auto changed = [&](int64_t c) { return contrasted(view, means[k], byte(c)); };
        return blended(grey_of(images.channels, changed), changed(channel), view.saturation);
    }
    __device__ float normalised(int64_t i) const {
        const int64_t n = i / (images.pixels() * images.channels);
        const int within = int(i - n * (images.pixels() * images.channels)), c = within % images.channels,
                  pixel = within / images.channels, row = pixel / images.window_width,
                  column = pixel % images.window_width;
        const bool mixes = !kPositionsOnly && images_each == 2;
        const int64_t k = mixes ? 2 * n : n;
        if (!exists(k) || (mixes && !exists(k + 1))) return NAN;
        const View view = view_at(views, k, kPositionsOnly);
        if (!kPositionsOnly && view.erased.has(row, column)) return 0;
        int byte = shown(k, view, row, column, c);
        if (mixes && view.mixed.has(row, column))
            byte = blended(byte, shown(k + 1, view_at(views, k + 1, false), row, column, c), view.mixed_share);
        return (float(byte) / 255.0f - statistics[c]) / statistics[images.channels + c];
    }
    __device__ void operator()(int64_t i) const { store(y + i, normalised(i)); }
};

} // namespace

void augment(const Call& call) {
    using O = AugmentOp;
    const Tensor &set = call.in[O::images], &y = call.out[0];
    const ViewedImages images{
        pointer<uint8_t>(set), set.extent(0),    int(set.extent(1)), int(set.extent(2)),
        int(set.extent(3)),    int(y.extent(1)), int(y.extent(2)),   call.attrs.as<O>().window.reflect};
    const int *const indices = pointer<int>(call.in[O::indices]), *const views = pointer<int>(call.in[O::views]);
    const float* const statistics = pointer<float>(call.in[O::statistics]);
    const bool positions_only = call.in[O::views].extent(1) == kPositionNumbers;
    const int64_t count = call.in[O::indices].numel();
    const DeviceScratch<int> means(positions_only ? 0 : size_t(count));
    if (!positions_only && count > 0)
        RG_LAUNCH(augment_mean_grey_kernel, unsigned(count), kThreads, 0, stream(), images, indices, views, means);
    with_stored(y, [&](auto t) {
        using T = decltype(t);
        const int images_each = call.in[O::indices].shape().rank();
        if (positions_only)
            elementwise(y.numel(),
                        AugmentValue<T, true>{images, indices, views, nullptr, statistics, pointer<T>(y), 1});
        else
            elementwise(y.numel(),
                        AugmentValue<T, false>{images, indices, views, means, statistics, pointer<T>(y), images_each});
    });
}

} // namespace rg::RG_GPU
