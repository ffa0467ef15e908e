// Packs filters and images for the tiles, places the tiles in the images, and estimates when tiles are fastest.
#include "ringgrad/core/cpu/tile_engine.h"

namespace rg::cpu {

namespace {

constexpr int64_t kSide = kTileSide, kRun = 32, kTile = kSide * kRun; // rows in a tile, bf16 in its row, bf16 in a tile

/// Approximate number of pixels in a pass over the weight gradient. Each pass loads and stores all sums, so a pass
/// should be long.
constexpr int64_t kPixelsPerPass = 800;

int64_t tiles_in(int64_t n) { return (n + kSide - 1) / kSide; }

/// Returns the number of windows from one row to the next in a run of tiles that continue through the padding into the
/// next row. Returns 0 if such a run is impossible.
int64_t run_row_of(const Padding& padding, PerAxis stride, int64_t pixels) {
    return stride == 1 && padding.columns % pixels == 0 ? padding.columns / pixels : 0;
}
/// Returns the number of tiles that cover p rows of q windows in such a run.
int64_t tiles_in_one_run(int64_t p, int64_t q, int64_t run_row) { return tiles_in((p - 1) * run_row + q); }
/// Returns the number of tiles for one run or for separate rows, whichever is smaller.
int64_t tiles_of(int64_t p, int64_t q, int64_t run_row) {
    const int64_t by_row = p * tiles_in(q);
    return run_row ? std::min(by_row, tiles_in_one_run(p, q, run_row)) : by_row;
}

} // namespace

template <>
Method method_for<uint16_t>(const Padding&, int64_t, int64_t, PerAxis stride, const Filters& f) {
    if (f.dilation != 1) return Method::direct;
    if (isa().tiles) return Method::tiles;
    return stride == 1 && Winograd::fits(f.k, f.r, f.s, f.c) ? Method::winograd : Method::direct;
}

// Estimates the cycles per image of each method. The factors are fitted to measurements with 3 x 3 and 5 x 5 filters on
// 8 x 8 to 32 x 32 pixels of 1 to 128 channels. Two hardware threads of a core share its tile unit, so tiles are chosen
// only if their estimate is below 80 % of the other method's.
template <>
Method method_for<float>(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& f) {
    if (f.dilation != 1) return Method::direct;
    const bool winograd = stride == 1 && Winograd::fits(f.k, f.r, f.s, f.c);
    const Method others = winograd ? Method::winograd : Method::direct;
    if (!isa().tiles || context().strict_fp32) return others;
    const int64_t pixels = pixels_per_vector(f, q, stride.w, kSide), windows = q / pixels, k_widened = f.k * pixels;
    const int64_t taps = WidenedFilters::width(f, pixels, stride.w) * f.c, runs = (taps + kRun - 1) / kRun;
    const int64_t tiles = tiles_of(p, windows, run_row_of(padding, stride, pixels));
    const double products = double(3 * tiles * tiles_in(k_widened) * f.r * runs);
    const double by_tiles = 24 * products + double(padding.values()) / 4;
    const double c = double(round_up(f.c, kSide)), k = double(round_up(k_widened, kSide));
    const double winograd_tiles = double((p + 3) / 4 * ((q + 3) / 4));
    const double by_others = winograd ? winograd_tiles * (36 * double(f.c) * k / 32 + 9 * (c + k))
                                      : 1.3 * double(p * windows * f.r * taps) * k / 32;
    return by_tiles < 0.8 * by_others ? Method::tiles : others;
}

template <class T>
TilePack<T>::TilePack(const Filters& f)
    : plane_(tiles_in(f.k) * f.r * ((f.s * f.c + kRun - 1) / kRun) * kTile), packed_(kPlanes<T> * plane_) {
    const int64_t taps = f.s * f.c, runs = (taps + kRun - 1) / kRun, tiles = tiles_in(f.k);
    parallel((tiles + 1) / 2 * f.r, [&](int64_t task) {
        const int64_t tile = task / f.r * 2, r = task % f.r, in_pair = std::min<int64_t>(2, tiles - tile);
        uint16_t* out = packed_ + (tile * f.r + r * in_pair) * runs * kTile;
        for (int64_t run = 0; run < runs; ++run)
            for (int64_t k = tile * kSide; k < (tile + in_pair) * kSide; k += kSide, out += kTile) {
                float values[kTile] = {}; // [32 taps][16 filters]
                uint16_t rounded[2][kTile];
                const int64_t filters = std::min(kSide, f.k - k), first = run * kRun;
                for (int64_t i = 0; i < std::min(kRun, taps - first); ++i) {
                    const float* tap = f.data + k * f.step_k + r * f.step_r + (first + i) / f.c * f.step_s +
                                       (first + i) % f.c * f.step_c;
                    for (int64_t j = 0; j < filters; ++j)
                        values[i * kSide + j] = tap[j * f.step_k] * (f.scale ? f.scale[k + j] : 1.0f);
                }
                isa().tiles->split(values, kTile, rounded[0], rounded[1]);
                for (int64_t plane = 0; plane < kPlanes<T>; ++plane)
                    for (int64_t i = 0; i < kSide; ++i)
                        for (int64_t j = 0; j < kSide; ++j) {
                            uint16_t* const pair = out + plane * plane_ + i * kRun + 2 * j;
                            pair[0] = rounded[plane][2 * i * kSide + j];
                            pair[1] = rounded[plane][(2 * i + 1) * kSide + j];
                        }
            }
    });
}

template <class T>
TileImage<T>::TileImage(const Padding& padding, int64_t slack)
    : padding_(padding),
      slack_(slack),
      values_(kPlanes<T> * plane(padding, slack)),
      whole_(kPlanes<T> == 2 ? padding.values() : 0) {}

template <class T>
void TileImage<T>::copy(const Images<T>& images, int64_t n) {
    const int64_t values = padding_.values(), next = plane(padding_, slack_);
    if constexpr (kPlanes<T> == 2) {
        padding_.copy(images, n, whole_.data());
        isa().tiles->split(whole_, values, values_, values_ + next);
    } else {
        padding_.copy(images, n, values_.data());
    }
    for (int64_t plane = 0; plane < kPlanes<T>; ++plane)
        std::fill_n(values_ + plane * next + values, slack_, uint16_t{0});
}

template <class T>
TileEngine<T>::TileEngine(const Padding& padding, int64_t p, int64_t q, PerAxis stride, const Filters& f,
                          ResultStride out, int64_t pixels)
    : widened_(f, pixels, stride.w),
      padding_(padding),
      filters_(widened_.filters()),
      from_(tiles_of(p, q / pixels, run_row_of(padding, stride, pixels))),
      to_(tiles_of(p, q / pixels, run_row_of(padding, stride, pixels)) * kSide),
      g_{pixels * f.k,
         f.r,
         (widened_.filters().s * f.c + kRun - 1) / kRun,
         padding.columns * f.c,
         pixels * stride.w * f.c,
         tiles_of(p, q / pixels, run_row_of(padding, stride, pixels)),
         from_,
         to_.data(),
         0,
         filters_.plane()} {
    g_.low = Image::plane(padding, slack());
    place_tiles(p, q / pixels, stride.h, run_row_of(padding, stride, pixels), {out.row / pixels, out.pixel});
}

template <class T>
void TileEngine<T>::place_tiles(int64_t p, int64_t q, int64_t stride, int64_t run_row, ResultStride out) {
    std::fill_n(to_.data(), g_.tiles * kSide, -1);
    int64_t t = 0;
    if (run_row && tiles_in_one_run(p, q, run_row) == g_.tiles) {
        for (; t < g_.tiles; ++t) {
            from_[t] = int32_t(t * kSide * g_.step);
            for (int64_t i = 0; i < kSide; ++i)
                if (const int64_t window = t * kSide + i, row = window / run_row, column = window % run_row;
                    row < p && column < q)
                    to_[t * kSide + i] = int32_t(row * out.row + column * out.pixel);
        }
        return;
    }
    for (int64_t row = 0; row < p; ++row)
        for (int64_t column = 0; column < q; column += kSide, ++t) {
            from_[t] = int32_t(row * stride * g_.row + column * g_.step);
            for (int64_t i = 0; i < kSide && column + i < q; ++i)
                to_[t * kSide + i] = int32_t(row * out.row + (column + i) * out.pixel);
        }
}

template <class T>
void TileEngine<T>::forward(const uint16_t* padded, const TileResult<T>& to) const {
    if constexpr (kPlanes<T> == 2)
        isa().tiles->forward_f32(g_, padded, filters_.data(), to);
    else
        isa().tiles->forward(g_, padded, filters_.data(), to);
}

template <class T>
void TileEngine<T>::run(const Images<T>& x, int64_t n, const float* bias, bool relu, T* y,
                        StatsCollector* stats) const {
    Image padded(padding_, slack());
    padded.copy(x, n);
    const int64_t channels = tiles_in(g_.k) * kSide;
    const Scratch<float> sums(stats ? 3 * channels : 0);
    forward(padded.data(), {y, bias, relu, stats ? sums.data() : nullptr, stats ? sums + channels : nullptr,
                            stats ? sums + 2 * channels : nullptr});
    if (stats) stats->add_sums(n, g_.k, sums, sums + channels, sums + 2 * channels);
}

template <class T>
void TileEngine<T>::convolve(const Image& padded, int64_t from, const float* bias, T* y) const {
    forward(padded.data() + from, {y, bias, false, nullptr, nullptr, nullptr});
}

template <class T>
int64_t TileEngine<T>::slack() const {
    return kSide * g_.step + kRun;
}

#define RG_TILES(T)                                                                                                    \
    template class TilePack<T>;                                                                                        \
    template class TileImage<T>;                                                                                       \
    template class TileEngine<T>;
RG_TILES(uint16_t)
RG_TILES(float)
#undef RG_TILES

TileWgrad::TileWgrad(const Padding& padding, int64_t p, int64_t q, int64_t k, int64_t r, int64_t s, int64_t stride)
    : padding_(padding), p_(p), q_(q), k_(k), r_(r), stride_(stride) {
    // With few channels, treat the taps of a filter row as the channels of a single tap. Their values are contiguous.
    const bool taps_as_channels = s * padding.c <= kSide;
    c_ = taps_as_channels ? s * padding.c : padding.c;
    columns_ = q + q % 2;
    const int64_t runs = (p * columns_ + kRun - 1) / kRun, copies = taps_as_channels ? stride : stride * s;
    batch_ = std::max<int64_t>(1, kPixelsPerPass / (runs * kRun));
    // A copy has all rows that the taps reach. The last run reads more values after these rows, and multiplies them by
    // zeros of dy.
    const int64_t rows = p + (r - 1) / stride, row = columns_ * kSide;
    const int64_t copy = rows * row + (runs * kRun - p * columns_) * kSide;
    g_ = {0,
          r,
          taps_as_channels ? 1 : s,
          stride,
          tiles_in(c_) * kSide,
          tiles_in(k) * kSide,
          runs,
          batch_ * runs * kRun + kRun,
          row,
          copy,
          batch_ * copies * copy,
          copies * copy};
}

void TileWgrad::add(const Images<uint16_t>& x, int64_t first, int64_t count, const uint16_t* dy, float* sums,
                    float*) const {
    TileGradient g = g_;
    g.images = count;
    const int64_t pixels = g.runs * kRun, rows = p_ + (r_ - 1) / stride_;
    // If taps count as channels, the taps of the last pixel reach beyond the image, so zeros follow it.
    const Scratch<uint16_t> pairs(g.c_step / kSide * g.block), dyt(g.k_step * g.line),
        widened(columns_ == q_ ? 0 : p_ * columns_ * k_), padded(padding_.values() + kSide);
    std::fill_n(padded + padding_.values(), kSide, uint16_t{0});
    for (int64_t i = 0; i < count; ++i) {
        padding_.copy(x, first + i, padded.data());
        for (int64_t a = 0; a < stride_; ++a)
            for (int64_t s = 0; s < g.s; ++s) {
                uint16_t* const copy = pairs + i * g.image + (a * g.s + s) * g.copy;
                for (int64_t row = 0; row < rows; ++row) {
                    const int64_t from = row * stride_ + a;
                    const bool inside = from < padding_.rows;
                    isa().tiles->interleave(padded + (inside ? from * padding_.columns + s : 0) * padding_.c,
                                            inside ? q_ : 0, stride_ * padding_.c, c_, columns_ / 2, copy + row * g.row,
                                            g.block);
                }
                for (int64_t c = 0; c < g.c_step / kSide; ++c)
                    std::fill_n(copy + c * g.block + rows * g.row, g.copy - rows * g.row, uint16_t{0});
            }
        const uint16_t* image = dy + i * p_ * q_ * k_;
        if (columns_ != q_) {
            for (int64_t row = 0; row < p_; ++row) {
                uint16_t* const to = widened + row * columns_ * k_;
                std::fill_n(std::copy_n(image + row * q_ * k_, q_ * k_, to), k_, uint16_t{0});
            }
            image = widened;
        }
        isa().tiles->transpose(image, p_ * columns_, k_, dyt + i * pixels, g.line);
    }
    isa().tiles->accumulate(g, dyt, pairs, sums);
}

void TileWgrad::combine(int64_t groups, float* sums, int64_t part, const Tensor& dw) const {
    if (groups == 0) return dw.fill(0);
    constexpr int64_t kValuesPerTask = 4096;
    parallel((this->sums() + kValuesPerTask - 1) / kValuesPerTask, [&](int64_t task) {
        const int64_t begin = task * kValuesPerTask, count = std::min(kValuesPerTask, this->sums() - begin);
        for (int64_t group = 1; group < groups; ++group)
            isa().elements->f32.add(sums + begin, sums + group * part + begin, sums + begin, count);
    });
    // [r s][k_step][c_step] -> [k][r][s c]
    const int64_t c = c_, rows = r_ * g_.s;
    float* out = dw.data<float>();
    for (int64_t k = 0; k < k_; ++k)
        for (int64_t rs = 0; rs < rows; ++rs)
            std::copy_n(sums + (rs * g_.k_step + k) * g_.c_step, c, out + (k * rows + rs) * c);
}

} // namespace rg::cpu
