// See tile_engine.h.
#include "core/cpu/tile_engine.h"

namespace rg::cpu {

namespace {

constexpr int64_t kSide = 16, kRun = 32, kTile = kSide * kRun; // rows of a tile, bf16 in a row, bf16 in a tile

/// Pixels that make a pass over the filters' gradient worth its loads and stores.
constexpr int64_t kPixelsAtOnce = 800;

int64_t tiles_in(int64_t n) { return (n + kSide - 1) / kSide; }

/// Tiles for q pixels of p rows when each row is covered for itself.
int64_t tiles_by_row(int64_t p, int64_t q) { return p * tiles_in(q); }
/// The same in one run through the padding.
int64_t tiles_in_one_run(int64_t p, int64_t q, int64_t columns) { return tiles_in((p - 1) * columns + q); }
int64_t tiles_of(int64_t p, int64_t q, int64_t columns, int64_t stride) {
    return stride == 1 ? std::min(tiles_by_row(p, q), tiles_in_one_run(p, q, columns)) : tiles_by_row(p, q);
}


} // namespace

TilePack::TilePack(const Filters& f) : packed_(tiles_in(f.k) * f.r * ((f.s * f.c + kRun - 1) / kRun) * kTile) {
    const int64_t taps = f.s * f.c, runs = (taps + kRun - 1) / kRun, tiles = tiles_in(f.k);
    parallel((tiles + 1) / 2 * f.r, [&](int64_t task) {
        const int64_t tile = task / f.r * 2, r = task % f.r, here = std::min<int64_t>(2, tiles - tile);
        uint16_t* out = packed_ + (tile * f.r + r * here) * runs * kTile;
        for (int64_t run = 0; run < runs; ++run)
            for (int64_t k = tile * kSide; k < (tile + here) * kSide; k += kSide, out += kTile) {
                float values[kTile] = {}; // [32 taps][16 filters]
                uint16_t rounded[kTile];
                const int64_t filters = std::min(kSide, f.k - k), first = run * kRun;
                for (int64_t i = 0; i < std::min(kRun, taps - first); ++i) {
                    const float* at = f.at + k * f.step_k + r * f.step_r + (first + i) / f.c * f.step_s +
                                      (first + i) % f.c * f.step_c;
                    for (int64_t j = 0; j < filters; ++j)
                        values[i * kSide + j] = at[j * f.step_k] * (f.scale ? f.scale[k + j] : 1.0f);
                }
                isa().elements->narrow(values, rounded, kTile);
                for (int64_t i = 0; i < kSide; ++i)
                    for (int64_t j = 0; j < kSide; ++j) {
                        out[i * kRun + 2 * j] = rounded[2 * i * kSide + j];
                        out[i * kRun + 2 * j + 1] = rounded[(2 * i + 1) * kSide + j];
                    }
            }
    });
}

TileEngine::TileEngine(const Padding& padding, int64_t p, int64_t q, int64_t stride, const Filters& f, Spread out)
    : padding_(padding),
      filters_(f),
      from_(tiles_of(p, q, padding.columns, stride)),
      to_(tiles_of(p, q, padding.columns, stride) * kSide),
      g_{f.k, f.r, (f.s * f.c + kRun - 1) / kRun, padding.columns * f.c, stride * f.c, 0, from_, to_} {
    place_tiles(p, q, stride, out);
}

void TileEngine::place_tiles(int64_t p, int64_t q, int64_t stride, Spread out) {
    g_.tiles = tiles_of(p, q, padding_.columns, stride);
    std::fill_n(to_.data(), g_.tiles * kSide, -1);
    const int64_t c = padding_.c;
    int64_t t = 0;
    if (stride == 1 && tiles_in_one_run(p, q, padding_.columns) == g_.tiles) {
        for (; t < g_.tiles; ++t) {
            from_[t] = int32_t(t * kSide * c);
            for (int64_t i = 0; i < kSide; ++i)
                if (const int64_t pixel = t * kSide + i, row = pixel / padding_.columns,
                    column = pixel % padding_.columns;
                    row < p && column < q)
                    to_[t * kSide + i] = int32_t(row * out.row + column * out.pixel);
        }
        return;
    }
    for (int64_t row = 0; row < p; ++row)
        for (int64_t column = 0; column < q; column += kSide, ++t) {
            from_[t] = int32_t((row * stride * padding_.columns + column * stride) * c);
            for (int64_t i = 0; i < kSide && column + i < q; ++i)
                to_[t * kSide + i] = int32_t(row * out.row + (column + i) * out.pixel);
        }
}

void TileEngine::run(const Images<uint16_t>& x, int64_t n, const float* bias, bool relu, uint16_t* y,
                     StatsCollector* stats) const {
    const Scratch<uint16_t> padded(padding_.values() + slack());
    padding_.copy(x, n, padded.data());
    std::fill_n(padded + padding_.values(), slack(), uint16_t{0});
    const int64_t channels = tiles_in(g_.k) * kSide;
    const Scratch<float> sums(stats ? 3 * channels : 0);
    isa().tiles->forward(g_, padded, filters_.data(),
                         {y, bias, relu, stats ? sums.data() : nullptr, stats ? sums + channels : nullptr,
                          stats ? sums + 2 * channels : nullptr});
    if (stats) stats->add_sums(n, sums, sums + channels, sums + 2 * channels);
}

void TileEngine::convolve(const uint16_t* padded, const float* bias, uint16_t* y) const {
    isa().tiles->forward(g_, padded, filters_.data(), {y, bias, false, nullptr, nullptr, nullptr});
}

int64_t TileEngine::slack() const { return kSide * g_.step + kRun; }

TileFilterGradient::TileFilterGradient(const Padding& padding, int64_t p, int64_t q, int64_t k, int64_t r, int64_t s,
                                       int64_t stride)
    : padding_(padding), p_(p), q_(q), k_(k), r_(r), stride_(stride) {
    // Few channels: the taps of a filter row, which are contiguous, take their place.
    const bool join = s * padding.c <= kSide;
    c_ = join ? s * padding.c : padding.c;
    columns_ = q + q % 2;
    const int64_t runs = (p * columns_ + kRun - 1) / kRun, copies = join ? stride : stride * s;
    batch_ = std::max<int64_t>(1, kPixelsAtOnce / (runs * kRun));
    // A copy has as many rows as the taps reach, and what the last run reads beyond, which meets zeros of dy.
    const int64_t rows = p + (r - 1) / stride, row = columns_ * kSide;
    const int64_t copy = rows * row + (runs * kRun - p * columns_) * kSide;
    g_ = {0,
          r,
          join ? 1 : s,
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

void TileFilterGradient::add(const Images<uint16_t>& x, int64_t first, int64_t count, const uint16_t* dy,
                             float* sums) const {
    TileGradient g = g_;
    g.images = count;
    const int64_t pixels = g.runs * kRun, rows = p_ + (r_ - 1) / stride_;
    // The last pixel's taps reach beyond the image where taps take the channels' place.
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

void TileFilterGradient::finish(const float* sums, const Tensor& dw) const {
    // [r s][k_step][c_step] -> [k][r][s c]
    const int64_t c = c_, rows = r_ * g_.s;
    float* out = dw.data<float>();
    for (int64_t k = 0; k < k_; ++k)
        for (int64_t rs = 0; rs < rows; ++rs)
            std::copy_n(sums + (rs * g_.k_step + k) * g_.c_step, c, out + (k * rows + rs) * c);
}

} // namespace rg::cpu
