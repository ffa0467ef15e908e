// Packs filters, images and gradients for the bf16 matrix tiles of tiles_isa.cpp, and chooses the pixels of each tile.
#include "core/cpu/tile_engine.h"

namespace rg::cpu {

namespace {

/// Approximate number of result pixels that one call of TileWgrad::add() processes. Each call loads and stores all sums
/// of the weight gradient, so it should have many pixels.
constexpr int64_t kPixelsPerPass = 800;
int64_t images_per_pass(const TileGradient& g) { return std::max<int64_t>(1, kPixelsPerPass / (g.runs * kTileRun)); }

int64_t tiles_in(int64_t n) { return divide_up(n, kTileSide); }
int64_t tiles_of_pixels(int64_t n) { return divide_up(n, isa().tiles->pixels); }
/// Returns the number of runs of 32 taps in a filter row.
int64_t runs_in(const Filters& f) { return divide_up(f.s * f.c, kTileRun); }

/// Packs filters [k, k + 16) at the 32 taps of row r that begin at tap `first`, with zeros for filters and taps that do
/// not exist. `low` is null, or gets the low parts of the values.
void pack_tile(const Filters& f, int64_t k, int64_t r, int64_t first, uint16_t* high, uint16_t* low) {
    float values[kTileValues] = {}, scale[kTileSide] = {}; // [32 taps][16 filters], [16 filters]
    const int64_t filters = std::min<int64_t>(kTileSide, f.k - k), count = std::min(kTileRun, f.s * f.c - first);
    const float* const row = f.data + k * f.step_k + r * f.step_r;
    if (f.step_k == 1) // neighbouring filters are contiguous, as in rotated filters
        for (int64_t i = first; i < first + count; ++i)
            std::copy_n(row + i / f.c * f.step_s + i % f.c * f.step_c, filters, values + (i - first) * kTileSide);
    else // the taps of a row are contiguous
        isa().tiles->transpose_taps(row + first, f.step_k, filters, count, values);
    for (int64_t j = 0; j < filters; ++j) scale[j] = f.scale ? f.scale[k + j] : 1;
    isa().tiles->pack(values, scale, high, low);
}

} // namespace

TileCover cover_of(const Padding& padding, int64_t p, int64_t q, PerAxis stride, int64_t pixels) {
    const TileCover by_row{p * tiles_of_pixels(q / pixels), 0};
    if (stride != 1 || padding.columns % pixels != 0) return by_row;
    const int64_t row_step = padding.columns / pixels;
    const TileCover through_padding{tiles_of_pixels((p - 1) * row_step + q / pixels), row_step};
    return through_padding.tiles <= by_row.tiles ? through_padding : by_row;
}

TileGradient tile_gradient(const Padding& padding, int64_t images, int64_t p, int64_t q, const Filters& filters,
                           int64_t stride, int64_t planes) {
    // With few channels, treat the taps of a filter row as the channels of a single tap. Their values are contiguous.
    const int64_t s = filters.s, c = padding.c;
    const bool taps_as_channels = tiles_in(s * c) < s * tiles_in(c);
    const int64_t channels = taps_as_channels ? s * c : c, columns = round_up(q, 2);
    TileGradient g{};
    g.r = filters.r, g.s = taps_as_channels ? 1 : s, g.stride = stride;
    g.padded_c = tiles_in(channels) * kTileSide, g.padded_k = tiles_in(filters.k) * kTileSide;
    g.columns = tiles_in(channels) * g.s * g.r;
    g.runs = divide_up(p * columns, kTileRun);
    // A copy has all rows that the taps reach. The last run reads more values after these rows, and multiplies them by
    // zeros of dy.
    g.row = columns * kTileSide;
    g.copy = (p + (g.r - 1) / stride) * g.row + (g.runs * kTileRun - p * columns) * kTileSide;
    g.image = std::min(g.r, stride) * g.s * g.copy;
    // If dw has more than a quarter as many values as all images of x and dy, the packed images are kept for combine().
    const int64_t image_values = padding.h * padding.w * c + p * q * filters.k;
    g.add = 4 * g.r * g.s * g.padded_c * g.padded_k <= images * image_values;
    const int64_t packed = g.add ? images_per_pass(g) : images;
    g.filter_step = packed * g.runs * kTileRun + kTileRun;
    g.block = packed * g.image;
    if (planes == 2) g.low_x = g.padded_c / kTileSide * g.block, g.low_dy = g.padded_k * g.filter_step;
    return g;
}

template <class T>
TileImages<T>::TileImages(const Padding& padding, int64_t slack, const Images<T>& images, int64_t first, int64_t count)
    : values_(kPlanes<T> * count * (padding.values() + slack)) {
    const int64_t values = padding.values(), next = values + slack;
    const Scratch<float> whole(kPlanes<T> == 2 ? values : 0);
    for (int64_t i = 0; i < count; ++i) {
        uint16_t *const high = values_ + i * next, *const low = high + count * next;
        if constexpr (kPlanes<T> == 2) {
            padding.copy(images, first + i, whole.data());
            isa().tiles->split(whole, values, high, low);
            std::fill_n(low + values, slack, uint16_t{0});
        } else {
            padding.copy(images, first + i, high);
        }
        std::fill_n(high + values, slack, uint16_t{0});
    }
}

template <class T>
TileEngine<T>::TileEngine(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& f,
                          ResultStride out, int64_t pixels)
    : widened_(f, pixels, stride.w),
      padding_(padding),
      y_image_(p * q * f.k),
      plane_(tiles_in(f.k * pixels) * f.r * runs_in(widened_.filters()) * kTileValues),
      packed_(kPlanes<T> * plane_),
      from_(cover_of(padding, p, q, stride, pixels).tiles),
      to_(cover_of(padding, p, q, stride, pixels).tiles * isa().tiles->pixels) {
    const TileCover cover = cover_of(padding, p, q, stride, pixels);
    const Filters& wide = widened_.filters();
    g_ = {.k = wide.k,
          .r = f.r,
          .pairs = divide_up(wide.s * wide.c, 2),
          .runs = runs_in(wide),
          .row = padding.columns * f.c,
          .step = pixels * stride.w * f.c,
          .tiles = cover.tiles,
          .from = from_,
          .to = to_,
          .low_w = plane_,
          .k_end = wide.k};
    g_.image = padding.values() + slack();
    place_tiles(p, q / pixels, stride.h, cover.row_step, {out.row / pixels, out.pixel});
    if (!packed_.ready()) pack(wide);
}

template <class T>
void TileEngine<T>::pack(const Filters& f) {
    const int64_t tiles = tiles_in(f.k);
    parallel(divide_up(tiles, 2) * f.r, [&](int64_t task) {
        const int64_t tile = task / f.r * 2, r = task % f.r, in_pair = std::min<int64_t>(2, tiles - tile);
        uint16_t* out = packed_ + (tile * f.r + r * in_pair) * g_.runs * kTileValues;
        for (int64_t run = 0; run < g_.runs; ++run)
            for (int64_t i = tile; i < tile + in_pair; ++i, out += kTileValues)
                pack_tile(f, i * kTileSide, r, run * kTileRun, out, kPlanes<T> == 2 ? out + plane_ : nullptr);
    });
}

template <class T>
void TileEngine<T>::place_tiles(int64_t p, int64_t q, int64_t stride, int64_t row_step, ResultStride out) {
    const int64_t pixels = isa().tiles->pixels;
    std::fill_n(to_.data(), g_.tiles * pixels, -1);
    int64_t t = 0;
    if (row_step > 0) {
        for (; t < g_.tiles; ++t) {
            from_[t] = int32_t(t * pixels * g_.step);
            for (int64_t i = 0; i < pixels; ++i)
                if (const int64_t window = t * pixels + i, row = window / row_step, column = window % row_step;
                    row < p && column < q)
                    to_[t * pixels + i] = int32_t(row * out.row + column * out.pixel);
        }
        return;
    }
    for (int64_t row = 0; row < p; ++row)
        for (int64_t column = 0; column < q; column += pixels, ++t) {
            from_[t] = int32_t(row * stride * g_.row + column * g_.step);
            for (int64_t i = 0; i < pixels && column + i < q; ++i)
                to_[t * pixels + i] = int32_t(row * out.row + (column + i) * out.pixel);
        }
}

template <class T>
void TileEngine<T>::forward(const uint16_t* padded, int64_t count, int64_t y_image, const ConvResult<T>& to,
                            Share share, float* stats) const {
    TileConv g = g_;
    g.images = count, g.y_image = y_image, g.low = count * g.image;
    const int64_t filter_pairs = (tiles_in(g.k) + 1) / 2, pixel_pairs = (g.tiles + 1) / 2;
    if (filter_pairs >= share.shares && plane_ > count * g.image) { // share the larger: filters (if enough) or images
        g.k_begin = share.begin(filter_pairs) * 2 * kTileSide;
        g.k_end = std::min(g.k, share.end(filter_pairs) * 2 * kTileSide);
    } else {
        const int64_t tile = share.begin(pixel_pairs) * 2;
        g.tiles = std::min(g.tiles, share.end(pixel_pairs) * 2) - tile;
        g.from += tile, g.to += tile * isa().tiles->pixels;
    }
    if constexpr (kPlanes<T> == 2)
        isa().tiles->forward_f32(g, padded, packed_, to, stats);
    else
        isa().tiles->forward(g, padded, packed_, to, stats);
}

template <class T>
void TileEngine<T>::run(const Images<T>& x, int64_t first, int64_t count, const ConvResult<T>& to, Share share,
                        StatsCollector* stats) const {
    const Image padded(padding_, slack(), x, first, count);
    const int64_t channels = tiles_in(g_.k) * kTileSide;
    const Scratch<float> sums(stats ? count * 3 * channels : 0);
    forward(padded.data(), count, y_image_, to, share, stats ? sums.data() : nullptr);
    for (int64_t i = 0; stats && i < count; ++i) {
        const float* const of_image = sums + i * 3 * channels;
        stats->add_sums(first + i, g_.k, of_image, of_image + channels, of_image + 2 * channels);
    }
}

template <class T>
void TileEngine<T>::convolve(const Image& padded, int64_t from, int64_t count, const ConvResult<T>& to,
                             int64_t y_image) const {
    forward(padded.data() + from, count, y_image, to, {}, nullptr);
}

template <class T>
int64_t TileEngine<T>::slack() const {
    return isa().tiles->pixels * g_.step + kTileRun;
}

template <class T>
TileWgrad<T>::TileWgrad(const Padding& padding, int64_t images, int64_t p, int64_t q, const Filters& filters,
                        int64_t stride)
    : padding_(padding),
      p_(p),
      q_(q),
      k_(filters.k),
      r_(filters.r),
      stride_(stride),
      images_(images),
      g_(tile_gradient(padding, images, p, q, filters, stride, kPlanes<T>)),
      c_(filters.s * padding.c / g_.s),
      images_at_once_(images_per_pass(g_)),
      columns_(round_up(q, 2)),
      pairs_(all_at_end() ? packed_x() : 0),
      dyt_(all_at_end() ? packed_dy() : 0) {}

template <class T>
void TileWgrad<T>::pack(const Images<T>& x, int64_t n, const T* dy, int64_t to, uint16_t* pairs, uint16_t* dyt) const {
    const TileImages<T> padded(padding_, 0, x, n, 1);
    for (int64_t plane = 0; plane < kPlanes<T>; ++plane)
        for (int64_t i = 0; i < std::min(r_, stride_) * g_.s; ++i)
            pack_copy(padded.data() + plane * padding_.values(), i,
                      pairs + plane * g_.low_x + to * g_.image + i * g_.copy);
    uint16_t* const image = dyt + to * g_.runs * kTileRun;
    if constexpr (kPlanes<T> == 2) {
        const int64_t values = p_ * q_ * k_;
        const Scratch<uint16_t> planes(2 * values);
        isa().tiles->split(dy, values, planes, planes + values);
        transpose_dy(planes, image);
        transpose_dy(planes + values, image + g_.low_dy);
    } else {
        transpose_dy(dy, image);
    }
}

template <class T>
void TileWgrad<T>::pack_copy(const uint16_t* plane, int64_t i, uint16_t* copy) const {
    const int64_t rows = p_ + (r_ - 1) / stride_;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t from = row * stride_ + i / g_.s;
        const bool inside = from < padding_.rows;
        const uint16_t* const pixels = plane + (inside ? from * padding_.columns + i % g_.s : 0) * padding_.c;
        isa().tiles->interleave(pixels, inside ? q_ : 0, stride_ * padding_.c, c_, columns_ / 2, copy + row * g_.row,
                                g_.block);
    }
    for (int64_t c = 0; c < g_.padded_c / kTileSide; ++c)
        std::fill_n(copy + c * g_.block + rows * g_.row, g_.copy - rows * g_.row, uint16_t{0});
}

template <class T>
void TileWgrad<T>::transpose_dy(const uint16_t* dy, uint16_t* dyt) const {
    if (columns_ == q_) return isa().tiles->transpose(dy, p_ * q_, k_, dyt, g_.filter_step);
    const Scratch<uint16_t> widened(p_ * columns_ * k_);
    for (int64_t row = 0; row < p_; ++row)
        std::fill_n(std::copy_n(dy + row * q_ * k_, q_ * k_, widened + row * columns_ * k_), k_, uint16_t{0});
    isa().tiles->transpose(widened, p_ * columns_, k_, dyt, g_.filter_step);
}

template <class T>
void TileWgrad<T>::add(const Images<T>& x, int64_t first, int64_t count, const T* dy, float* sums, float*) const {
    const int64_t values = p_ * q_ * k_;
    if (all_at_end()) {
        for (int64_t i = 0; i < count; ++i) pack(x, first + i, dy + i * values, first + i, pairs_, dyt_);
        return;
    }
    const Scratch<uint16_t> pairs(packed_x()), dyt(packed_dy());
    for (int64_t i = 0; i < count; ++i) pack(x, first + i, dy + i * values, i, pairs, dyt);
    TileGradient g = g_;
    g.images = count;
    for (int64_t column = 0; column < g.columns; column += kTileColumns)
        isa().tiles->accumulate(g, 0, g.padded_k, column, dyt, pairs, sums);
}

template <class T>
void TileWgrad<T>::combine(int64_t parts, float* sums, int64_t step, const Tensor& dw) const {
    if (parts == 0) return dw.fill(0);
    if (all_at_end()) return multiply_all(dw);
    constexpr int64_t kValuesPerTask = 4096;
    parallel(divide_up(all_sums(), kValuesPerTask), [&](int64_t task) {
        const int64_t begin = task * kValuesPerTask, count = std::min(kValuesPerTask, all_sums() - begin);
        for (int64_t part = 1; part < parts; ++part)
            isa().elements->f32.add(sums + begin, sums + part * step + begin, sums + begin, count);
    });
    copy_to(sums, dw);
}

template <class T>
void TileWgrad<T>::multiply_all(const Tensor& dw) const {
    TileGradient g = g_;
    g.images = images_;
    const bool whole_tiles = g.padded_c == c_ && g.padded_k == k_; // then dw has the layout of the sums
    const Scratch<float> scratch(whole_tiles ? 0 : all_sums());
    float* const sums = whole_tiles ? dw.data<float>() : scratch.data();
    // A task computes one block of columns for some filters. Consecutive tasks have the same filters and read the same
    // dy, which stays in cache.
    constexpr int64_t kValuesOfDy = 512 << 10;
    const int64_t filters = std::max<int64_t>(1, kValuesOfDy / (kPlanes<T> * kTileSide * g.filter_step)) * kTileSide;
    const int64_t blocks = divide_up(g.columns, kTileColumns);
    parallel(divide_up(g.padded_k, filters) * blocks, [&](int64_t task) {
        const int64_t k = task / blocks * filters;
        isa().tiles->accumulate(g, k, std::min(filters, g.padded_k - k), task % blocks * kTileColumns, dyt_, pairs_,
                                sums);
    });
    if (!whole_tiles) copy_to(sums, dw);
}

/// Copies sums [padded_k][r s][padded_c] to dw [k][r][s c].
template <class T>
void TileWgrad<T>::copy_to(const float* sums, const Tensor& dw) const {
    for (int64_t row = 0; row < k_ * r_ * g_.s; ++row)
        std::copy_n(sums + row * g_.padded_c, c_, dw.data<float>() + row * c_);
}

template class TileImages<uint16_t>;
template class TileImages<float>;
template class TileEngine<uint16_t>;
template class TileEngine<float>;
template class TileWgrad<uint16_t>;
template class TileWgrad<float>;

} // namespace rg::cpu
