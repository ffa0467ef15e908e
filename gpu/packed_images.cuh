// Packed images, for the convolutions of Hopper GPUs (sm_90a) that cover many shapes: conv_packed_hopper.cu and
// conv_grad_packed_hopper.cu. pack_hopper.cu brings images into an order in which these copy them in bulk, and applies
// batch norm, ReLU or their gradient once per value. An octet is a group of 8 channels:
//
//   packed images   [phase][octet of channels][cell][8 channels]
//
// A cell holds a pixel, or zeros around the images. The rows of all images follow each other. After each row come cells
// of zeros, which serve as the right padding of this row and as the left padding of the next; after each image come
// rows of zeros. So each row and column of the filters (tap) reads a cell at a fixed offset from the result's. With a
// stride, the pixels whose row and column leave the same remainders form a phase, which is packed like an image of its
// own. Pixels of 24 channels get 8 more, with zeros. In a first layer, a cell holds no pixel, but all values of a row
// of x that the filters read for a result, as 32 channels. So its filters have a single column.
#pragma once

#include "gpu/divisor.cuh"
#include "gpu/geometry.cuh"
#include "gpu/scratch.cuh"

#include <optional>

namespace rg::RG_GPU {

constexpr int kSmallCell = 32; // channels of a cell in a first layer, and of one that holds a pixel of 24 or 32
constexpr int kMaxTaps = 9, kMaxPhases = 4, kMaxStages = 4;
/// A plane (see CellLayout) has a multiple of this number of cells between its two margins.
constexpr int kCellStep = 256;
/// Number of cells of dy in the smaller tile of the weight gradient (conv_grad_packed_hopper.cu).
constexpr int kSmallTile = 64;
/// The most bytes of shared memory that the forward pass or the data gradient uses for filters.
constexpr int kSlotsBytes = 48 << 10;
/// Bytes of dynamic shared memory for a block that has an SM to itself. Arrays of fixed size take less than kFixedBytes
/// more.
constexpr int kFixedBytes = 2 << 10, kSharedBytes = (227 << 10) - kFixedBytes;

/// The rows and columns of the filters (taps), sorted by phase. A phase is the set of pixels of x, or in the data
/// gradient of dx, with the same remainders by the stride. The result in cell i reads cell i + offset of the tap's
/// phase. In the data gradient, cell i of a phase of dx reads cell i - offset of dy.
struct PackedTaps {
    int count = 0, phases = 0, min_offset = 0, max_offset = 0; // min_offset <= 0 <= max_offset
    int begin[kMaxPhases + 1] = {}; // index of the first tap of each phase in `place` and `offset`
    int place[kMaxTaps] = {}, offset[kMaxTaps] = {};
    __host__ __device__ bool empty(int phase) const { return begin[phase] == begin[phase + 1]; }
};

/// The cells of a plane, which holds one octet of channels of one phase. A plane begins and ends with a margin:
/// `margin` cells of zeros, since offsets lead there. Cell 0 is the first one after the first margin.
struct CellLayout {
    Divisor per_image, per_row;
    int images, margin, count; // `count` includes the margins
    int stride_h, stride_w;
};

/// How a convolution is computed with packed images.
struct PackedPlan {
    PackedTaps taps;
    CellLayout cells;
    bool first_layer;
    int channels, values; // channels of a cell; values of a filter per tap, at most as many
    int in_h, in_w, out_h, out_w;
};

/// Returns the number of channels in a cell that holds a pixel of `channels`, or 0 if no kernel has such cells.
inline int cell_channels(int channels) {
    return channels == 24 || channels == kSmallCell ? kSmallCell : channels % 64 == 0 ? channels : 0;
}

/// Returns the plan of a convolution, for its gradients as well. Requires strides of at most 2 and at most kMaxTaps
/// taps (in a first layer, rows). Returns none if it would hold too many zeros, or not fit into shared memory.
std::optional<PackedPlan> packed_plan_of(const ConvGeometry& g);

/// Return x and dy as packed images. Only Plain<bf16> can read the x of a first layer.
template <class Reader>
DeviceScratch<bf16> pack_x(const PackedPlan& plan, const ConvGeometry& g, const Reader& reader);
template <class Reader>
DeviceScratch<bf16> pack_dy(const PackedPlan& plan, const ConvGeometry& g, const Reader& reader);

/// Returns filters w [k][taps][values] as [chunk of n results][tap][chunk of c channels][octet of channels][result][8
/// channels]. In the forward pass, results are the k filters, and channels those of a cell. In the data gradient,
/// results are the values of a filter, with zeros up to a multiple of n, and channels the k filters.
template <bool kDgrad>
DeviceScratch<bf16> pack_filters(const PackedPlan& plan, int c, int n, int channels, int results,
                                 const GivenFilters& w);

/// Defined in conv_grad_packed_hopper.cu. Computes the weight gradient dw and the bias gradient db from packed images.
void wgrad_packed(const ConvGeometry& g, const PackedPlan& plan, const bf16* dy, const bf16* x, const Tensor& dw,
                  const Tensor& db);

/// The place of a cell within its phase. A cell whose image, row or column lies beyond the last one holds no pixel.
struct CellPlace {
    int image, row, column;
    __device__ __forceinline__ CellPlace(const CellLayout& cells, int cell) {
        image = cell / cells.per_image;
        const int in_image = cell - image * cells.per_image;
        row = in_image / cells.per_row;
        column = in_image - row * cells.per_row;
    }
};

} // namespace rg::RG_GPU
