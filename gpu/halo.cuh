// Tiles of a convolution, and the pixels that a tile reads, staged in shared memory, for conv.cu and conv_grad.cu.
//
// Here, a tap is a position in the filters: a row, a column, or a pair of both. A tile is 128 consecutive pixels of a
// strip of the results, counted by image, row and column. A strip is a range of at most 32 columns of all images. At
// stride 1, a tile reads the same pixels of the input and a halo around them. A block loads and transforms each of them
// once for all taps, for 32 channels at a time, or for 8 if a number of channels is no multiple of 8. In shared memory,
// another tap is only another address:
//
//   a plane of staged pixels   [octet of channels][row][column][8 channels]
//
// The rows of an image follow the rows of the image before, each image with its own halo. Pixels outside of an image
// are 0. The distance of the octets puts 4 octets of 2 neighbouring pixels into different banks.
//
// With a stride, neighbouring results read pixels that are `stride` apart. So taps are staged together only if the
// distances of the pixels that they read are multiples of the stride. Other pixels are not staged. If taps and pixels
// would take too much shared memory, a block takes fewer taps at a time.
#pragma once

#include "gpu/divisor.cuh"
#include "gpu/geometry.cuh"
#include "gpu/planes.cuh"

#include <algorithm>
#include <numeric>

namespace rg::RG_GPU {

constexpr int kTilePixels = 128, kTileThreads = 128;

/// Returns count / step, rounded up; 0 if count is negative.
__host__ __device__ inline int steps_in(int count, int step) {
    return count > 0 ? int(unsigned(count + step - 1) / unsigned(step)) : 0; // signed division takes more instructions
}

/// A range of taps along one axis: rows (columns) first + i * step of the filters for 0 <= i < count. If count is 0 or
/// less, the range is empty. For the result at position p, tap i reads the input at (p + i * distance) * scale +
/// origin; `distance` is ConvGeometry::dy_step. In the data gradient, p is counted within a phase (TapAxis).
struct TapRange {
    int first, step, count, scale, origin;
};

/// How a convolution is cut into tiles. In the data gradient, the pixels of dx that use the same taps of the filters
/// form a phase (TapAxis). The results of a tile are from one phase, and the extents are those of the largest phase.
struct Tiling {
    int rows, width;          // result rows of an image, columns of a strip
    int strips, strip_blocks; // number of strips, tiles of a strip
    Axes taps;                // the most taps in a TapRange of each axis
    int columns, cells;       // staged columns, and staged pixels, of a tile
    int octet_cells;          // staged pixels from an octet of channels to the next octet, with padding
    Divisor by_columns, by_image_rows, by_width, by_rows, by_strip_blocks;
    __host__ __device__ int blocks() const { return strips * strip_blocks; }
};

/// Returns the tiling. `result_step` is the distance between neighbouring results of a phase: the stride in the data
/// gradient, else 1. A block takes at most `max_taps` pairs of a row and a column of the filters at a time. A staged
/// pixel takes pixel_bytes bytes of shared memory, and each of these pairs tap_bytes.
inline Tiling tiling_of(const ConvGeometry& g, Axes result_step, int max_taps, int pixel_bytes, int tap_bytes) {
    constexpr int kMaxBytes = 64 << 10, kMaxWidth = 32;
    const int rows = std::max(1, steps_in(g.to_h, result_step.h)), all = std::max(1, steps_in(g.to_w, result_step.w));
    const int strips = steps_in(all, kMaxWidth), width = steps_in(all, strips);
    // Returns the largest number of rows, or of images, that a tile touches if each has `length` pixels. Tiles begin at
    // multiples of kTilePixels.
    const auto touched = [](int length) {
        return (length - std::gcd(length, kTilePixels) + kTilePixels - 1) / length + 1;
    };
    Axes taps = PerAxis(steps_in(g.r, g.tap_step.h), steps_in(g.s, g.tap_step.w));
    while (true) {
        const int halo = (taps.h - 1) * g.dy_step.h, columns = width + (taps.w - 1) * g.dy_step.w;
        const int cells = (touched(width) + touched(rows * width) * halo) * columns,
                  octet_cells = (cells + 5) / 8 * 8 + 2;
        const int count = taps.h * taps.w;
        if (count > 1 && (count > max_taps || octet_cells * pixel_bytes + count * tap_bytes > kMaxBytes)) {
            int& more = taps.h >= taps.w ? taps.h : taps.w;
            more = steps_in(more, 2);
            continue;
        }
        RG_CHECK(std::max(g.pixels(), int64_t(g.images) * (rows + halo) * width) < INT32_MAX - kTilePixels,
                 "conv2d: expected fewer than 2^31 pixels, got ", g.pixels());
        const int blocks = steps_in(g.images * rows * width, kTilePixels);
        return {rows,
                width,
                strips,
                blocks,
                taps,
                columns,
                cells,
                octet_cells,
                Divisor(columns),
                Divisor(rows + halo),
                Divisor(width),
                Divisor(rows),
                Divisor(std::max(1, blocks))};
    }
}

/// The taps of one axis, cut into ranges of at most `limit` taps.
struct TapAxis {
    int taps, stride, pad, dilation, step, distance, limit;
    static __host__ __device__ __forceinline__ TapAxis rows(const ConvGeometry& g, const Tiling& t) {
        return {g.r, g.stride.h, g.pad.h, g.dilation.h, g.tap_step.h, g.dy_step.h, t.taps.h};
    }
    static __host__ __device__ __forceinline__ TapAxis columns(const ConvGeometry& g, const Tiling& t) {
        return {g.s, g.stride.w, g.pad.w, g.dilation.w, g.tap_step.w, g.dy_step.w, t.taps.w};
    }
    /// Return the number of all ranges, and the number for one phase of the data gradient.
    __host__ __device__ __forceinline__ int ranges() const { return step * phase_ranges(); }
    __host__ __device__ __forceinline__ int phase_ranges() const { return steps_in(steps_in(taps, step), limit); }
    __device__ __forceinline__ TapRange range(int number) const {
        const int start = int(unsigned(number) % unsigned(step)),
                  begin = int(unsigned(number) / unsigned(step)) * limit;
        const int count = steps_in(taps - start, step);
        return {start + begin * step, step, min(limit, count - begin), stride,
                start * dilation - pad + begin * distance * stride};
    }
    /// Returns a range of a phase of the data gradient. A phase is a set of pixels of dx that use the same filter taps.
    /// Row i of dx gets contributions from rows (i + pad - r dilation) / stride of dy, for the filter rows r for which
    /// the division is exact. So rows belong to the same phase if they differ by multiples of the stride. Columns
    /// follow the same rule. Later pixels of dy belong to earlier taps, so the step is negative.
    __device__ __forceinline__ TapRange phase_range(int phase, int number) const {
        int start = 0;
        while (start < taps && (phase + pad - start * dilation) % stride != 0) ++start;
        const int last = steps_in(taps - start, step) - 1 - number * limit;
        return {start + last * step, -step, min(limit, last + 1), 1,
                (phase + pad - start * dilation) / stride - last * distance};
    }
};

/// A tile: the number of its first pixel within its strip, the first column of the strip, and the first row that is
/// staged, counted through all images with their halos.
struct Tile {
    int first_pixel, first_column, first_row;
    __device__ __forceinline__ Tile(const Tiling& t, int block)
        : first_pixel(block % t.by_strip_blocks * kTilePixels), first_column(block / t.by_strip_blocks * t.width) {
        const int row = first_pixel / t.by_width, image = row / t.by_rows;
        first_row = row + image * (int(t.by_image_rows) - t.rows);
    }
    /// Returns the number of the tile's pixels that lie in an image. An image has `columns` columns of results.
    __device__ __forceinline__ int results(const Tiling& t, int images, int columns) const {
        const int end = min(first_pixel + kTilePixels, images * t.rows * t.width);
        const int valid = min(t.width, columns - first_column);
        const auto before = [&](int pixel) { return pixel / t.by_width * valid + min(pixel % t.by_width, valid); };
        return before(end) - before(first_pixel);
    }
};

/// A pixel of a tile: the result that it stands for (in the data gradient, counted within the phase), and the staged
/// pixel that the first tap of a TapRange reads for it.
struct TilePixel {
    int image, row, column, cell;
    __device__ __forceinline__ TilePixel(const Tiling& t, const Tile& tile, int number) {
        const int pixel = tile.first_pixel + number, row_of_all = pixel / t.by_width;
        image = row_of_all / t.by_rows;
        row = row_of_all - image * t.rows;
        const int in_strip = pixel - row_of_all * t.width;
        column = tile.first_column + in_strip;
        cell = (row_of_all + image * (int(t.by_image_rows) - t.rows) - tile.first_row) * t.columns + in_strip;
    }
};

/// Lists the units of a range of rows, a range of columns and `octets` octets of channels. A unit is an octet of
/// channels at one row and column of the filters. cells[unit] receives the distance from a result's first staged pixel
/// to the one that the unit reads, and places[unit] the index of the unit's first value within a filter. If kPairs and
/// the number is odd, adds a unit that reads the octet after the last and has places[unit] = -1. Returns the number of
/// units.
template <bool kPairs>
__device__ __forceinline__ int list_units(const ConvGeometry& g, const Tiling& t, const TapRange& rows,
                                          const TapRange& columns, int first_channel, int octets, int* cells,
                                          int* places) {
    const int count = rows.count * columns.count * octets, units = kPairs ? (count + 1) / 2 * 2 : count;
    for (int unit = int(threadIdx.x); unit < units; unit += kTileThreads) {
        const unsigned tap = unsigned(unit) / unsigned(octets);
        const int octet = unit - int(tap) * octets;
        const int r = int(tap / unsigned(columns.count)), s = int(tap) - r * columns.count;
        const int place = (rows.first + r * rows.step) * g.s + columns.first + s * columns.step;
        cells[unit] = unit < count ? octet * t.octet_cells + r * g.dy_step.h * t.columns + s * g.dy_step.w
                                   : octets * t.octet_cells;
        places[unit] = unit < count ? place * g.from_c + first_channel + 8 * octet : -1;
    }
    return units;
}

/// Stages the pixels that a tile reads for the taps `rows` and `columns`, 8 kOctets channels from `first_channel` on.
/// Stages 0 where there is no pixel or no channel. The planes of `staged` (planes.cuh) are `plane` values apart.
template <class T, bool kWhole, int kOctets, class Reader>
__device__ __forceinline__ void stage_pixels(const ConvGeometry& g, const Tiling& t, const Tile& tile,
                                             const TapRange& rows, const TapRange& columns, const Reader& reader,
                                             int first_channel, bf16* staged, int plane) {
    // The loads of kBatch pixels are in flight together. For 3 x 3 filters, most tiles stage some 200 pixels.
    constexpr int kStep = kTileThreads / kOctets, kBatch = kOctets == 1 ? 2 : 4;
    const int octet = int(threadIdx.x) % kOctets, channel = first_channel + 8 * octet;
    const bool channel_inside = channel < g.from_c;
    const OctetSource<kWhole, Reader> source(reader, channel_inside ? channel : 0);
    bf16* const to = staged + size_t(octet * t.octet_cells * 8);
    for (int begin = int(threadIdx.x) / kOctets; begin < t.cells; begin += kBatch * kStep) {
        typename OctetSource<kWhole, Reader>::Loaded loaded[kBatch];
        bool inside[kBatch];
        RG_UNROLL
        for (int i = 0; i < kBatch; ++i) {
            const int cell = begin + i * kStep, staged_row = cell / t.by_columns;
            const int row_of_all = tile.first_row + staged_row, image = row_of_all / t.by_image_rows;
            const int row = row_of_all % t.by_image_rows * rows.scale + rows.origin;
            const int column = (tile.first_column + cell - staged_row * t.columns) * columns.scale + columns.origin;
            inside[i] = channel_inside && cell < t.cells && image < g.images && row >= 0 && row < g.from_h &&
                        column >= 0 && column < g.from_w;
            const size_t index =
                inside[i] ? (size_t(image * g.from_h + row) * g.from_w + column) * g.from_c + channel : 0;
            load_octet<kWhole, Reader>(source, index, inside[i], channel, g.from_c, loaded[i]);
        }
        RG_UNROLL
        for (int i = 0; i < kBatch; ++i)
            if (const int cell = begin + i * kStep; cell < t.cells)
                store_planes<T>(to + cell * 8, plane, select(inside[i], source.transform(loaded[i]), 0));
    }
}

} // namespace rg::RG_GPU
