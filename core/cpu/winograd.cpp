// Winograd convolution: calls the kernels of winograd_isa.cpp for a few rows of tiles, and one or two vectors of output
// channels at a time. So the transformed inputs (2.25 times the pixels) and the products stay in the second-level cache
// of the core.
//
// A convolution with dilation d consists of d * d convolutions without dilation. Each of them computes the results
// whose row and column have given remainders modulo d. The rows of all inputs that it reads have one remainder in
// common, and so have the columns.
//
// A convolution in groups is computed bundle by bundle. A bundle consists of one group, or of several groups whose
// output channels together fill a vector. In the second case, the filters are zero where a filter and a channel belong
// to different groups. So all lanes are busy. Small bundles take fewer tiles at once, so that these stay in a faster
// cache.
#include "core/cpu/winograd.h"

#include <algorithm>

namespace rg::cpu {

namespace {

/// Approximate number of tiles (rows of the products) that are computed at once. With more tiles, each tile costs less:
/// the forward pass reads the filters only once for all of them, and the weight gradient reads and writes the
/// transformed gradient only once. For c = k = 128, that gradient has 2.25 MiB, more than most second-level caches.
constexpr int64_t kTilesForward = 32, kTilesBackward = 64;
/// A bundle whose c * k is at most kSmallBundle takes about kTilesOfSmallBundle tiles at once.
constexpr int64_t kSmallBundle = 32 * 32, kTilesOfSmallBundle = 16;
/// Returns the distance between the arrays of neighbouring components, of `floats` floats each: this size plus a cache
/// line. If the distance were a power of two, the 36 stores of a tile could all use one set of the first-level cache.
int64_t component(int64_t floats) { return floats + 16; }

/// Returns the number of tiles, of 4 results each, that an axis with `results` results needs. With a dilation d, every
/// d-th result is computed together, and the number is that of the largest such set.
int64_t tiles_of(int64_t results, int64_t dilation) { return divide_up(divide_up(results, dilation), 4); }

/// Returns the number of groups in a bundle, for `groups` groups of `channels` channels each: 1 if a group fills whole
/// vectors or is the only one, else as many groups as fill a vector. Returns 0 if that number is not whole, or does not
/// divide `groups`.
int64_t groups_in_bundle(int64_t channels, int64_t groups) {
    const int64_t width = isa().width;
    if (groups == 1 || channels % width == 0) return 1;
    return width % channels == 0 && groups % (width / channels) == 0 ? width / channels : 0;
}

} // namespace

bool Winograd::applicable(const Filters& f, PerAxis stride) {
    return stride == 1 && f.r == 3 && f.s == 3 && groups_in_bundle(f.k / f.groups, f.groups) > 0 &&
           groups_in_bundle(f.c / f.groups, f.groups) > 0;
}

int64_t Winograd::tiles_of_image(int64_t p, int64_t q, PerAxis dilation) {
    return dilation.h * dilation.w * tiles_of(p, dilation.h) * tiles_of(q, dilation.w);
}

Winograd::Winograd(const Padding& padding, int64_t p, int64_t q, const Filters& f)
    : whole_{.h = padding.h,
             .w = padding.w,
             .c = padding.c,
             .rows = (padding.h - 1) * padding.spacing.h + 1,
             .columns = (padding.w - 1) * padding.spacing.w + 1,
             .spacing = padding.spacing},
      top_(padding.top),
      left_(padding.left),
      dilation_(f.dilation),
      p_(p),
      q_(q),
      down_(tiles_of(p, dilation_.h)),
      groups_(f.groups),
      bundles_(groups_ / std::max<int64_t>(1, groups_in_bundle(f.k / groups_, groups_))),
      g_{.across = tiles_of(q, dilation_.w),
         .c = f.c / bundles_,
         .k = f.k / bundles_,
         .padded_c = round_up(f.c / bundles_, isa().width),
         .padded_k = round_up(f.k / bundles_, isa().width),
         .x_row = dilation_.h * whole_.columns * f.c,
         .x_pixel = dilation_.w * f.c,
         .y_row = dilation_.h * q * f.k,
         .y_pixel = dilation_.w * f.k},
      u_(f.data ? bundles_ * bundle_floats() : 0) {
    const int64_t tiles = f.data ? kTilesForward : kTilesBackward;
    images_at_once_ = std::max<int64_t>(1, tiles / (tile_rows_of_image() * g_.across));
    tile_rows_at_once_ = std::max<int64_t>(1, (g_.c * g_.k > kSmallBundle ? tiles : kTilesOfSmallBundle) / g_.across);
    if (f.data && !u_.ready()) pack(f);
}

void Winograd::pack(const Filters& filters) {
    const int64_t width = isa().width, vectors = g_.padded_k / width, group_k = filters.k / groups_,
                  group_c = filters.c / groups_;
    parallel(bundles_ * vectors, [&](int64_t task) {
        const int64_t bundle = task / vectors, first = task % vectors * width,
                      block = first / (2 * width) * (2 * width);
        const int64_t lanes = std::min(2 * width, g_.padded_k - block);
        float* const u = u_ + bundle * bundle_floats() + block * kComponents * g_.c + first - block;
        for (int64_t c = 0; c < g_.c; ++c) {
            alignas(64) float taps[9 * 16] = {};
            for (int64_t i = 0; i < std::min(width, g_.k - first); ++i) {
                const int64_t group = (first + i) / group_k, channel = c - group * group_c;
                if (channel < 0 || channel >= group_c) continue;
                const Filters of_group = filters.group(bundle * (groups_ / bundles_) + group);
                for (int64_t rs = 0; rs < 9; ++rs)
                    taps[rs * width + i] = of_group((first + i) % group_k, rs / 3, rs % 3, channel);
            }
            isa().winograd->filter(taps, u + c * lanes, g_.c * lanes);
        }
    });
}

Winograd::TileRow Winograd::tile_row(int64_t i) const {
    const int64_t image = i / tile_rows_of_image(), phase = i / down_ % (dilation_.h * dilation_.w);
    const int64_t row = i % down_ * 4 * dilation_.h + phase / dilation_.w, column = phase % dilation_.w;
    const int64_t top = row - top_, left = column - left_; // position of the first input in the image
    return {.x = ((image * whole_.rows + top) * whole_.columns + left) * whole_.c,
            .y = ((image * p_ + row) * q_ + column) * bundles_ * g_.k,
            .rows = divide_up(p_ - row, dilation_.h),
            .columns = divide_up(q_ - column, dilation_.w),
            .window = {.top = divide_up(-top, dilation_.h),
                       .bottom = divide_up(whole_.rows - top, dilation_.h),
                       .left = divide_up(-left, dilation_.w),
                       .right = divide_up(whole_.columns - left, dilation_.w)}};
}

template <class F>
void Winograd::for_each_tile_row_block(int64_t images, Share share, F f) const {
    const int64_t all = images * tile_rows_of_image(), first = share.begin(all), rows = share.end(all) - first;
    const int64_t pieces = divide_up(rows, tile_rows_at_once_);
    for (int64_t i = 0; i < pieces; ++i)
        for (int64_t bundle = 0; bundle < bundles_; ++bundle)
            f(bundle, first + rows * i / pieces, first + rows * (i + 1) / pieces);
}

template <class T>
void Winograd::run(const Images<T>& in, int64_t first, int64_t images, const ConvResult<float>& to, Share share) const {
    const int64_t most_tiles = tile_rows_at_once_ * g_.across, v_component = component(most_tiles * g_.padded_c);
    const int64_t block = 2 * isa().width, blocks = divide_up(g_.k, block);
    // If the transformed filters are larger than the transformed inputs, and there are enough blocks of them, each
    // thread takes a part of the filters. Otherwise, it takes a part of the rows of tiles.
    const bool share_filters = blocks >= share.shares && g_.k > images * tile_rows_of_image() * g_.across;
    const Share of_blocks = share_filters ? share : Share{}, of_rows = share_filters ? Share{} : share;
    const PaddedImages x(whole_, 0, in, first, images);
    const Scratch<float> v(kComponents * v_component), m(kComponents * most_tiles * block);
    for_each_tile_row_block(images, of_rows, [&](int64_t bundle, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            isa().winograd->input(g_, tile_row(i).window, x.data() + tile_row(i).x + bundle * g_.c,
                                  v + (i - begin) * g_.across * g_.padded_c, v_component);
        for (int64_t k = of_blocks.begin(blocks) * block; k < std::min(g_.k, of_blocks.end(blocks) * block);
             k += block) {
            const int64_t lanes = std::min(block, g_.padded_k - k), channel = bundle * g_.k + k;
            isa().winograd->multiply(g_, v, v_component, (end - begin) * g_.across,
                                     u_ + bundle * bundle_floats() + k * kComponents * g_.c, int(lanes), m);
            for (int64_t i = begin; i < end; ++i) {
                const TileRow at = tile_row(i);
                isa().winograd->output(g_, at.rows, at.columns, m + (i - begin) * g_.across * kComponents * lanes,
                                       int(lanes), int(std::min(lanes, g_.k - k)), to.at(at.y + channel, channel));
            }
        }
    });
}

template <class T>
void Winograd::accumulate(const Images<T>& in, int64_t first, int64_t images, const float* dy, float* du) const {
    const int64_t most_tiles = tile_rows_at_once_ * g_.across;
    const int64_t v_component = component(most_tiles * g_.padded_c), z_component = component(most_tiles * g_.padded_k);
    const PaddedImages x(whole_, 0, in, first, images);
    const Scratch<float> v(kComponents * v_component), z(kComponents * z_component);
    for_each_tile_row_block(images, {}, [&](int64_t bundle, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const TileRow from = tile_row(i);
            const int64_t tile = (i - begin) * g_.across;
            isa().winograd->input(g_, from.window, x.data() + from.x + bundle * g_.c, v + tile * g_.padded_c,
                                  v_component);
            isa().winograd->gradient(g_, from.rows, from.columns, dy + from.y + bundle * g_.k, z + tile * g_.padded_k,
                                     z_component);
        }
        isa().winograd->accumulate(g_, v, z, v_component, z_component, (end - begin) * g_.across,
                                   du + bundle * bundle_floats());
    });
}

template void Winograd::run(const Images<float>&, int64_t, int64_t, const ConvResult<float>&, Share) const;
template void Winograd::run(const Images<uint16_t>&, int64_t, int64_t, const ConvResult<float>&, Share) const;
template void Winograd::accumulate(const Images<float>&, int64_t, int64_t, const float*, float*) const;
template void Winograd::accumulate(const Images<uint16_t>&, int64_t, int64_t, const float*, float*) const;

void Winograd::transform_gradient(const float* du, float* dw) const {
    const int64_t width = isa().width, group_k = bundles_ * g_.k / groups_, group_c = bundles_ * g_.c / groups_,
                  row_floats = (bundles_ - 1) * g_.k + g_.padded_k;
    alignas(64) float g[9 * 16];
    for (int64_t bundle = 0; bundle < bundles_; ++bundle, du += bundle_floats())
        for (int64_t c = 0; c < g_.c; ++c)
            for (int64_t k = 0; k < g_.padded_k; k += width) {
                isa().winograd->filter_gradient(du + c * g_.padded_k + k, g_.c * g_.padded_k, g);
                for (int64_t rs = 0; rs < 9 && groups_ == bundles_; ++rs)
                    std::copy_n(g + rs * width, width, dw + (rs * g_.c + c) * row_floats + bundle * g_.k + k);
                for (int64_t i = 0; i < width && groups_ > bundles_; ++i) {
                    const int64_t channel = c - (k + i) / group_k * group_c; // c within the group of filter k + i
                    for (int64_t rs = 0; rs < 9 && channel >= 0 && channel < group_c; ++rs)
                        dw[(rs * group_c + channel) * row_floats + bundle * g_.k + k + i] = g[rs * width + i];
                }
            }
}

} // namespace rg::cpu
