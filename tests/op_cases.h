// The table of cases with which every op is tested. The tests in core/ops.cpp and core/gradients.cpp iterate
// over it: they compare kernels with the reference, put guards around every buffer, check that runs give the same bits,
// and check gradients.
//
// A case has an op, its attributes, the shapes of its inputs and how their values are drawn, and the allowed difference
// from the reference (Tolerance). Extents include 1, odd numbers, and numbers that are not multiples of any vector (4,
// 8, 16) or tile (6, 8, 12); the number of images goes from 0 to more than the number of parts into which a kernel
// splits a mini-batch.
#pragma once

#include "core/op_table.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace rg {

/// How the values of an input are drawn.
enum class Draw : uint8_t {
    absent,         // an undefined tensor
    normal,         // standard normal, approximately
    offset,         // normal with mean 30, so that sums cancel
    away,           // both signs, magnitude at least 0.1: far from the kink of ReLU, and no gradient vanishes
    distinct,       // any two values are at least 0.04 apart
    ties,           // small whole numbers: many values are equal, and zeros have both signs
    special,        // normal with some NaN and infinities
    statistics,     // [2 c]: random means, positive variances
    own_statistics, // [2 c]: means and variances of input 0, as in training
    labels,         // i32: random classes; input 0 has a column for each class
    positions,      // u8: random positions in a pooling window
    bytes,          // u8: random bytes
    indices,        // i32: random indices of samples of input 0
    views,          // i32 [n 6], [n 18] or [n 36]: views of input 0: shifts and flips, rotations, and ones far outside
    damaged,        // the largest float with both signs; in the last quarter also some NaN and infinities
    seed,           // i32 [2]: random bits
    fractions,      // in [0, 1], many of them 0 or 1
    squares,        // squares of normal values, so never negative
    positive,       // at least 0.3: far from where 1 / x grows fast
    lr,             // f32: learning rate 0.3
    lr_and_step,    // f32: learning rate 0.02, step 7
    not_a_number,   // only NaN
    none_found,     // i32: -1, as if first_non_finite had found nothing
    found,          // i32: 0, as if the first value was not finite
    probabilities   // rows that sum to 1
};

struct Input {
    Shape shape;
    Draw draw = Draw::normal;
};

/// The allowed errors of a result. `rms` bounds the root mean square of the errors, relative to the root mean square of
/// the reference's result. `max` bounds each error, relative to the larger of that root mean square and the reference's
/// element. Each bound is at least 4 times the error that perturb.h causes.
struct Tolerance {
    double rms, max;
    bool operator==(const Tolerance&) const = default;
};
/// For copies, comparisons and selections, which round nothing.
constexpr Tolerance kExact{0, 0};
/// For results of a few roundings of 6e-8 each.
constexpr Tolerance kRounded{2e-6, 5e-6};
/// For sums in float of up to some thousand terms.
constexpr Tolerance kSummed{4e-6, 4e-5};
/// For convolutions by any algorithm, which may trade accuracy for speed. With strict_fp32, kSummed holds instead.
constexpr Tolerance kConvolved{1e-5, 8e-5};
/// Like kConvolved, for a convolution with a batch norm of its result, and for its gradients. A channel of small variance
/// has large results and gradients, so single errors are larger, compared with the mean of all channels: above all if an
/// activation like relu6 limits the results.
constexpr Tolerance kNormConvolved{1e-5, 3e-4};
/// For sums of results of convolutions that have both signs.
constexpr Tolerance kConvolvedSums{1e-4, 2e-4};
/// For results that are rounded to bf16: the error is half a unit in the eighth bit, and sometimes a whole unit.
constexpr Tolerance kNarrow{8e-3, 8e-2};
/// Like kNarrow, for convolutions whose results relu6 or hardsigmoid limits. The errors are those of much larger values
/// before the activation: up to 7.5e-3 and 0.36.
constexpr Tolerance kNarrowLimited{3e-2, 1.5};
/// For gradients of a network. If a rounding changes the sign of one value before a ReLU, or the maximum of one window,
/// single elements change by a tenth, and the whole gradient by a thousandth.
constexpr Tolerance kGradients{5e-3, 0.5};
/// For x * scale + shift where the two terms cancel: with |mean| / sigma = 30, the error is 30 roundings.
constexpr Tolerance kCancelled{1e-5, 1e-4};

struct OpCase {
    Op op;
    std::vector<Input> in;
    Attrs attrs = {};
    Tolerance tolerance = kExact;
    uint32_t narrow = 0; // bit i is set if input i is bf16
};

/// One geometry of a convolution. add_conv() makes cases of the forward pass and of both gradients from it.
struct ConvCase {
    int64_t n, h, w, c, k, r, s;
    PerAxis stride, pad;
    bool bias = true, stats = false;
    Draw values = Draw::normal;
    PerAxis dilation = 1;
    int64_t groups = 1;
    Conv conv() const { return {stride, pad, dilation, groups}; }
    bool takes_fused_steps() const { return groups == 1 || (c == groups && k == groups); }
    Shape x() const { return {n, h, w, c}; }
    Shape w_shape() const { return {k, r, s, c / groups}; }
    Shape y() const {
        return {n, (h + 2 * pad.h - (r - 1) * dilation.h - 1) / stride.h + 1,
                (w + 2 * pad.w - (s - 1) * dilation.w - 1) / stride.w + 1, k};
    }
};

inline void add_conv(std::vector<OpCase>& cases, const ConvCase& g) {
    const Conv conv = g.conv();
    const Shape x = g.x(), w = g.w_shape(), y = g.y();
    cases.push_back({op::conv2d, {{x, g.values}, {w}, {{g.k}, g.bias ? Draw::normal : Draw::absent}},
                     Conv2dOp{.conv = conv, .with_stats = g.stats}, kConvolved});
    cases.push_back({op::conv2d_grad, {{y, g.values}, {x}, {w}}, Conv2dGradOp{.conv = conv, .filters = false},
                     kConvolved});
    const Input addend{x, g.takes_fused_steps() ? Draw::normal : Draw::absent};
    cases.push_back(
        {op::conv2d_grad, {{y, g.values}, {x}, {w}, addend}, Conv2dGradOp{.conv = conv, .filters = false}, kConvolved});
    cases.push_back({op::conv2d_grad, {{y}, {x, g.values}, {w}}, Conv2dGradOp{.conv = conv, .data = false},
                     kConvolved});
    if (g.values == Draw::normal)
        cases.push_back({op::conv2d_grad, {{y}, {x}, {w}, addend}, Conv2dGradOp{.conv = conv}, kConvolved});
}

inline void add_convs(std::vector<OpCase>& cases) {
    for (const ConvCase& g : std::initializer_list<ConvCase>{
             // n h w c k  r s stride pad
             {1, 1, 1, 1, 1, 1, 1, 1, 0},
             {1, 5, 5, 3, 8, 3, 3, 1, 1, true, true},
             {2, 7, 9, 3, 16, 3, 3, 1, 1, false},
             {3, 8, 8, 16, 16, 3, 3, 1, 1, true, true},
             {2, 6, 10, 5, 7, 3, 3, 1, 1, true, true},
             {2, 9, 11, 8, 9, 3, 3, 2, 1},
             {1, 10, 13, 9, 11, 5, 5, 1, 2},
             {2, 7, 6, 11, 17, 1, 1, 1, 0, true, true},
             {2, 7, 6, 17, 20, 1, 1, 2, 0, false},
             {1, 12, 5, 20, 31, 3, 5, 1, 2},
             {1, 5, 12, 7, 8, 5, 1, 1, 1},
             {2, 11, 9, 31, 33, 3, 3, 3, 0},
             {1, 9, 19, 32, 64, 3, 3, 1, 1, false, true},
             {3, 6, 7, 33, 5, 5, 3, 2, 2},
             {1, 6, 6, 4, 3, 2, 2, 2, 0},
             {1, 6, 7, 4, 32, 4, 4, 3, 1},
             {2, 4, 5, 4, 6, 1, 1, 1, 1},                  // some windows lie wholly in the padding
             {2, 5, 4, 3, 4, 3, 3, 2, 4},                  // some windows lie wholly in the padding, with stride 2
             {1, 3, 3, 5, 8, 3, 3, 1, 3, true, true},      //
             {2, 5, 5, 4, 8, 5, 5, 1, 0},                  // the window covers the image
             {1, 7, 7, 2, 3, 1, 1, 4, 0},                  // the stride is larger than the window
             {2, 1, 5, 4, 6, 3, 3, 2, 1, true, true},      // the stride is larger than the image's height
             {0, 6, 6, 3, 8, 3, 3, 1, 1, true, true},      // no images
             {0, 6, 6, 16, 32, 3, 3, 1, 1, true, true},    //
             {19, 5, 5, 3, 16, 3, 3, 1, 1, true, true},    // more images than parts of the weight gradient
             {35, 3, 3, 16, 20, 3, 3, 1, 1, true, true},   //
             {150, 2, 2, 2, 3, 3, 3, 1, 1, true, true},    // several images per task
             {70, 4, 4, 16, 16, 3, 3, 1, 1, true, true},   //
             {17, 24, 24, 16, 16, 3, 3, 1, 1, true, true}, // large images
             {2, 5, 6, 16, 32, 3, 3, 1, 0, true, true},    //
             {3, 4, 6, 32, 16, 3, 3, 1, 2},                //
             {1, 3, 4, 16, 16, 3, 3, 1, 3, true, true},    //
             {2, 6, 8, 8, 8, 3, 3, 1, 1, true, true},      // few filters: neighbours share vectors
             {3, 32, 32, 3, 8, 3, 3, 1, 1, true, true},    //
             {5, 8, 24, 24, 8, 3, 3, 1, 1, true, true},    //
             {2, 9, 16, 7, 4, 5, 5, 1, 2, true, true},     //
             {1, 5, 34, 20, 1, 3, 3, 1, 0, true, true},    //
             {2, 7, 31, 5, 2, 3, 3, 2, 1, true, true},     //
             {2, 6, 20, 16, 8, 1, 1, 1, 0, true, true},    //
             {1, 8, 17, 8, 4, 3, 2, 2, 1, false, true},    //
             {2, 8, 8, 64, 64, 3, 3, 1, 1, true, true},    // too many filters to be cached at once
             {9, 8, 8, 32, 32, 3, 3, 1, 1, true, true},    // whole tiles on Hopper GPUs, of each width
             {2, 16, 16, 32, 64, 3, 3, 1, 1, true, true},  //
             {1, 24, 32, 64, 32, 3, 3, 1, 1},              //
             {1, 24, 16, 64, 64, 3, 3, 1, 1},              //
             {3, 9, 7, 64, 32, 3, 3, 1, 1, true, true},    // extents that no tile of 4 divides
             {3, 8, 8, 128, 128, 3, 3, 1, 1, true, true},  // on Hopper GPUs, two chunks of filters
             {1, 6, 9, 128, 48, 3, 3, 1, 0},               //
             {3, 9, 7, 64, 64, 3, 3, 1, 1, true, true},    // Hopper GPUs pack these images: several tiles
             {2, 6, 5, 128, 192, 3, 3, 1, 0, true, true},  // packed images without padding
             {3, 7, 10, 64, 128, 3, 3, 2, 1, true, true},  // packed images in phases of the stride
             {2, 5, 7, 128, 64, 3, 3, {1, 2}, {2, 0}},     //
             {2, 7, 9, 128, 128, 1, 1, 2, 0, true, true},  // packed images in phases, of which one is used
             {3, 11, 9, 64, 192, 1, 1, 1, 0, true, true},  // packed images for filters of one tap
             {2, 9, 11, 24, 64, 3, 3, 1, 1, true, true},   // packed pixels of 24 channels, in cells of 32
             {2, 9, 7, 32, 128, 3, 3, 2, 1, true, true},   //
             {2, 9, 11, 3, 64, 7, 7, 2, 3, true, true},    // packed rows, as in a first layer
             {3, 9, 8, 3, 128, 3, 3, 1, 1, true, true},    //
             {1, 5, 6, 200, 24, 5, 5, 1, 2},               //
             {1, 20, 40, 32, 32, 3, 3, 1, 1, true, true},  // several bands of the weight gradient
             {1, 3, 65, 3, 40, 3, 3, 1, 1},                // a wide row
             {1, 113, 33, 1, 2, 1, 1, 1, 0, true, true},   // the last tile on a GPU has no results
             {1, 1, 37, 50, 10, 1, 1, 1, 0},               // a linear layer: its samples are the pixels of one image
             {1, 1, 1, 70, 3, 1, 1, 1, 0},                 //
             {1, 1, 256, 128, 10, 1, 1, 1, 0},             //
             {3, 1, 8, 700, 11, 1, 1, 1, 0},               // a linear layer with many input channels
             {1, 1, 37, 530, 70, 1, 1, 1, 0},              // a linear layer with several tasks
             {2, 11, 9, 3, 32, 3, 3, 2, 1, false, true},   // the first layer of a MobileNet
             {3, 1, 1, 16, 8, 1, 1, 1, 0},                 // squeeze and excite: one pixel per image
             {2, 1, 1, 120, 480, 1, 1, 1, 0},              //
             {1, 2, 2, 960, 160, 1, 1, 1, 0, false, true}, // many channels before or after 1 x 1 filters
             {1, 2, 2, 160, 960, 1, 1, 1, 0, false, true}, //
             {5, 2, 3, 256, 256, 3, 3, 1, 1, true, true},  // bf16: filters larger than the images
             {3, 3, 5, 256, 264, 3, 3, 2, 1},              //
             {13, 16, 16, 64, 128, 3, 3, 2, 1},            // bf16: f32 sums of several parts of the mini-batch
             {2, 9, 12, 3, 24, 7, 7, 2, 3, true, true},    // bf16: the taps of a row fill two tiles
             {2, 7, 8, 3, 5, 3, 3, 1, 1, true, false, Draw::special}, // NaN reaches the results that depend on it
             // Options that differ between the axes.
             {2, 8, 9, 6, 8, 3, 3, {1, 2}, {0, 1}, true, true},
             {2, 8, 9, 16, 32, 3, 3, {2, 1}, 1, true, true},
             {1, 7, 16, 32, 32, 1, 7, 1, {0, 3}, true, true},
             {1, 16, 7, 32, 24, 7, 1, {2, 1}, {3, 0}},
             {3, 5, 16, 4, 4, 2, 3, {1, 3}, {1, 2}}})
        add_conv(cases, g);
    const Draw normal = Draw::normal, special = Draw::special;
    for (const ConvCase& g : std::initializer_list<ConvCase>{
             // n h w c k  r s stride pad bias stats values dilation groups
             {2, 9, 8, 5, 7, 3, 3, 1, 2, true, true, normal, 2},
             {1, 11, 12, 16, 16, 3, 3, 1, 2, true, true, normal, 2},
             {1, 9, 11, 64, 64, 3, 3, {2, 1}, 2, true, true, normal, {1, 3}},
             {2, 9, 10, 8, 20, 3, 3, 2, 2, true, false, normal, 2}, // stride and dilation have a common factor
             {1, 10, 9, 4, 6, 3, 2, {2, 3}, {1, 2}, true, true, normal, {3, 2}},
             {1, 13, 12, 4, 6, 3, 3, {4, 2}, 1, true, true, normal, {2, 4}},
             {1, 5, 34, 20, 8, 3, 3, 1, {1, 2}, true, true, normal, {1, 2}}, // few filters
             {1, 5, 34, 20, 8, 3, 3, 1, {2, 1}, true, true, normal, {2, 1}},
             {1, 10, 9, 40, 70, 5, 5, 1, 4, true, true, normal, 2}, // too many filters to be cached at once
             {2, 7, 8, 3, 5, 3, 3, 1, 2, true, false, special, 2},
             {2, 7, 8, 16, 16, 3, 3, 1, 1, true, true, normal, 1, 16}, // depthwise
             {2, 9, 7, 5, 5, 3, 3, 2, 1, true, true, normal, 1, 5},
             {2, 9, 10, 33, 33, 5, 5, 2, 2, false, true, normal, 1, 33},
             {1, 8, 8, 6, 18, 3, 3, 1, 1, true, true, normal, 1, 6}, // three filters per channel
             {1, 6, 9, 7, 7, 3, 3, {2, 1}, {1, 2}, true, true, normal, {2, 3}, 7},
             {1, 5, 6, 4, 4, 1, 1, 3, 0, true, true, normal, 1, 4},      // pixels that no tap reaches
             {1, 44, 70, 32, 32, 3, 3, 1, 1, true, true, normal, 1, 32}, // several bands of rows
             {1, 71, 40, 20, 20, 3, 3, 3, 1, true, true, normal, 1, 20},
             {1, 90, 67, 20, 20, 3, 3, 2, 1, true, true, normal, 1, 20},
             {19, 3, 4, 4, 4, 3, 3, 1, 1, true, true, normal, 1, 4},
             {0, 6, 6, 4, 4, 3, 3, 1, 1, true, true, normal, 1, 4},
             {5, 9, 8, 3, 3, 3, 3, 1, 0, true, true, normal, 1, 3},
             {1, 3, 2, 9, 9, 5, 5, 1, 2, true, true, normal, 1, 9}, // filters larger than the image
             {2, 9, 29, 24, 24, 5, 5, 1, 2, true, true, normal, 1, 24},
             {1, 6, 33, 17, 17, 3, 5, {1, 2}, {1, 2}, true, true, normal, 1, 17},
             {1, 7, 12, 40, 40, 7, 7, 1, 3, true, true, normal, 1, 40},
             {1, 5, 9, 8, 8, 2, 4, 1, {1, 2}, false, true, normal, 1, 8},
             {2, 14, 15, 20, 20, 5, 5, 2, 1, true, true, normal, 1, 20},
             {1, 6, 5, 12, 12, 3, 3, 1, 4, true, true, normal, 1, 12}, // some windows lie wholly in the padding
             {2, 9, 10, 8, 8, 5, 5, 3, 2, true, false, special, 1, 8},
             {1, 9, 8, 96, 96, 3, 3, 2, 1, false, true, normal, 1, 96}, // depthwise with many channels, as in MobileNets
             {1, 7, 7, 240, 240, 5, 5, 1, 2, false, true, normal, 1, 240},
             {1, 7, 6, 672, 672, 5, 5, 2, 2, false, true, normal, 1, 672},
             {2, 4, 4, 960, 960, 3, 3, 1, 1, false, true, normal, 1, 960},
             {1, 17, 18, 11, 11, 3, 3, 2, 2, true, true, normal, 2, 11},
             {2, 7, 8, 6, 6, 3, 3, 1, 1, true, false, special, 1, 6},
             {1, 8, 9, 12, 8, 3, 3, 1, 1, true, true, normal, 1, 4}, // few channels in a group
             {1, 6, 9, 16, 16, 3, 3, {3, 2}, {1, 2}, true, true, normal, {2, 1}, 8},
             {2, 5, 5, 8, 16, 3, 3, 2, 0, false, true, special, 1, 4},
             {2, 7, 6, 24, 40, 3, 3, 2, 1, true, true, normal, 1, 2}, // many channels in a group
             // Groups whose channels fill a part of a vector, one or two vectors, or do not divide a vector.
             {1, 8, 8, 64, 64, 3, 3, 1, 1, true, true, normal, 1, 4},
             {19, 7, 10, 32, 64, 3, 3, 1, 1, true, true, normal, 1, 4},
             {2, 9, 7, 32, 32, 3, 3, 1, 1, true, true, normal, 1, 8},
             {1, 6, 8, 64, 32, 3, 3, 1, 1, true, true, normal, 1, 8},
             {2, 6, 5, 16, 64, 3, 3, 1, 0, true, true, normal, 1, 2},
             {1, 4, 9, 64, 16, 3, 3, 1, 2, true, true, normal, 1, 2},
             {1, 7, 6, 24, 24, 3, 3, 1, 1, true, true, normal, 1, 3},
             {1, 5, 7, 24, 48, 3, 3, 1, 1, true, true, normal, 1, 2},
             // Dilations that split an image into sub-images of different sizes, that Winograd takes in several pieces,
             // or that leave few results.
             {2, 13, 15, 16, 24, 3, 3, 1, {2, 3}, true, true, normal, {2, 3}},
             {1, 34, 29, 16, 16, 3, 3, 1, 1, true, true, normal, {1, 2}},
             {3, 9, 14, 32, 32, 3, 3, 1, 2, true, true, normal, {2, 1}, 4},
             {1, 8, 9, 32, 32, 3, 3, 1, 2, true, true, normal, 2, 4}, // more groups than taps in a filter row
             {1, 7, 7, 16, 16, 3, 3, 1, 4, true, true, normal, 4},
             {9, 40, 40, 16, 10, 1, 1, 1, 0, true, true, normal, 1, 2}, // 1 x 1 filters on large images
             {0, 4, 4, 32, 32, 3, 3, 1, 1, true, true, normal, 1, 2}})
        add_conv(cases, g);
}

/// Returns the inputs x, stats, gamma and beta of a batch norm. `values` and `stats` say how x and stats are drawn.
inline std::vector<Input> norm_inputs(const Shape& x, Draw values, Draw stats) {
    return {{x, values}, {{2, x[3]}, stats}, {{x[3]}, Draw::away}, {{x[3]}, Draw::away}};
}

/// Returns the inputs stats, gamma and beta of a fused batch norm.
inline std::vector<Input> norm_of(const Shape& x) {
    const std::vector<Input> all = norm_inputs(x, Draw::normal, Draw::statistics);
    return {all.begin() + 1, all.end()};
}

inline std::vector<Input> operator+(std::vector<Input> a, const std::vector<Input>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

/// The activations that can be part of other ops.
inline const std::vector<Activation>& fusible_activations() {
    static const std::vector<Activation> kFusible = [] {
        std::vector<Activation> all;
        for (const Activation::Kind kind : kActivations)
            if (is_fusible(kind)) all.push_back({kind, 0.3f});
        return all;
    }();
    return kFusible;
}

inline void add_norms(std::vector<OpCase>& cases) {
    const auto add = [&](const Shape& x, Activation activation, Draw values, Tolerance tolerance, Tolerance sums) {
        const BatchNorm norm{.epsilon = 1e-3f, .activation = activation};
        const BatchNorm frozen{.epsilon = 1e-3f, .activation = activation, .frozen = true};
        cases.push_back({op::channel_stats, {{x, values}}, {}, kCancelled});
        cases.push_back({op::batch_norm, norm_inputs(x, values, Draw::own_statistics), BatchNormOp{norm}, tolerance});
        cases.push_back({op::batch_norm, norm_inputs(x, values, Draw::statistics), BatchNormOp{frozen}, tolerance});
        std::vector<Input> grad = norm_inputs(x, values, Draw::statistics);
        grad.insert(grad.begin(), {x});
        cases.push_back({op::batch_norm_grad_sums, grad, BatchNormGradSumsOp{norm}, sums});
        grad.push_back({{2, x[3]}});
        cases.push_back({op::batch_norm_grad, grad, BatchNormGradOp{norm}, tolerance});
    };
    for (const Shape& x : std::initializer_list<Shape>{
             {2, 1, 1, 1}, {2, 3, 5, 1}, {1, 4, 4, 3}, {3, 3, 3, 5}, {2, 5, 3, 7}, {2, 1, 9, 8}, {2, 4, 3, 11},
             {5, 3, 2, 16}, {2, 3, 3, 17}, {3, 5, 5, 20}, {70, 2, 3, 31}, {2, 7, 5, 64}})
        for (const Activation a : fusible_activations()) add(x, a, Draw::normal, kRounded, kSummed);
    add({0, 4, 4, 6}, Activation::relu, Draw::normal, kRounded, kSummed);
    add({16, 64, 65, 16}, Activation::relu, Draw::normal, kRounded, kSummed); // stores bypass the caches
    add({3, 5, 7, 9}, Activation::none, Draw::offset, kCancelled, kCancelled);
    // This case has so many pixels that a GPU adds their sums in two levels.
    cases.push_back({op::channel_stats, {{{131, 32, 32, 2}, Draw::normal}}, {}, kCancelled});
    const Shape x{2, 4, 5, 3};
    for (const Activation a : fusible_activations())
        cases.push_back({op::batch_norm, norm_inputs(x, Draw::special, Draw::statistics),
                         BatchNormOp{BatchNorm{.epsilon = 0, .activation = a}}, kRounded});
    for (int64_t count : {0, 1, 2, 1000})
        cases.push_back({op::running_update, {{{2, 5}, Draw::statistics}, {{2, 5}, Draw::statistics}},
                         RunningUpdateOp{count, 1, 0.1f}, kRounded});
}

inline void add_layer_norms(std::vector<OpCase>& cases) {
    const auto add = [&](const Shape& x, Draw values, Tolerance tolerance, float epsilon = 1e-3f) {
        const Shape channels{x[x.rank() - 1]};
        cases.push_back({op::layer_norm, {{x, values}, {channels, Draw::away}, {channels, Draw::away}},
                         LayerNormOp{epsilon}, tolerance});
        cases.push_back({op::layer_norm_grad, {{x}, {x, values}, {channels, Draw::away}}, LayerNormGradOp{epsilon},
                         tolerance == kRounded ? kSummed : tolerance});
    };
    // No case has one or two channels: dx would be a rounding error.
    for (const Shape& x : std::initializer_list<Shape>{
             {4, 3}, {1, 5}, {7, 8}, {33, 17},
             {130, 20}, {300, 31}, // more rows than a task has
             {2, 3, 5, 64}, {2, 1000},
             {600, 40}, // several slabs of rows on a GPU
             {0, 6}})
        add(x, Draw::normal, kRounded);
    add({40, 33}, Draw::offset, kCancelled);
    add({20, 11}, Draw::special, kRounded, 0); // a NaN reaches its whole row, and nothing else but dgamma
}

inline void add_elementwise(std::vector<OpCase>& cases) {
    for (const Shape& x : std::initializer_list<Shape>{
             {1}, {3}, {4}, {15, 1}, {16}, {17}, {0, 5}, {33, 5}, {2, 7, 9, 11}, {1 << 15}, {5, 20011},
             {3, 3, 5, 64}}) {
        for (Draw values : {Draw::away, Draw::ties, Draw::special}) {
            cases.push_back({op::activation, {{x, values}}});
            cases.push_back({op::activation_grad, {{x, values == Draw::special ? Draw::normal : values}, {x, values}}});
            cases.push_back({op::add, {{x, values}, {x}}, {}, kRounded});
        }
        cases.push_back({op::scale, {{x}}, ScaleOp{-0.7f, 0.2f}, kRounded});
        cases.push_back({op::scale, {{x}, {{}, Draw::away}}, {}, kRounded});
        for (const bool mean : {false, true}) // the sums are in double, so they are accurate even where terms cancel
            for (Draw values : {Draw::normal, Draw::squares, Draw::special})
                cases.push_back({op::sum, {{x, values}}, SumOp{mean}, kRounded});
        for (float rate : {0.0f, 0.5f, 0.3f})
            for (uint32_t stream : {0u, 0xABCDEFu})
                cases.push_back({op::dropout, {{x, Draw::away}, {{2}, Draw::seed}}, DropoutOp{rate, stream}, kRounded});
        for (Draw found : {Draw::absent, Draw::none_found, Draw::found})
            for (float decay : {0.0f, 0.03f}) {
                for (bool nesterov : {false, true})
                    cases.push_back({op::sgdm_update, {{x}, {x}, {x}, {{1}, Draw::lr}, {{}, found}},
                                     SgdmUpdateOp{0.8f, decay, nesterov}, kRounded});
                for (double beta2 : {0.999, 0.5})
                    cases.push_back({op::adam_update,
                                     {{x}, {x}, {x, Draw::squares}, {x}, {{2}, Draw::lr_and_step}, {{}, found}},
                                     AdamUpdateOp{0.9, beta2, 0.1f, decay}, kRounded});
            }
        // Cases with factors of single parameters, and with limits that the norm of the gradients exceeds, or not.
        const Input squares{x, Draw::squares};
        const std::vector<Input> factors{{{}, Draw::absent}, {{}, Draw::squares}, squares, squares};
        const std::vector<Input> sgdm{{x}, {x}, {x}, {{1}, Draw::lr}};
        const std::vector<Input> adam{{x}, {x}, squares, {x}, {{2}, Draw::lr_and_step}};
        for (float max_norm : {0.02f, 1e9f}) {
            cases.push_back({op::sgdm_update, sgdm + factors, SgdmUpdateOp{0.8f, 0.03f, false, max_norm}, kRounded});
            for (bool decoupled : {false, true})
                cases.push_back({op::adam_update, adam + factors,
                                 AdamUpdateOp{0.9, 0.999, 0.1f, 0.03f, decoupled, max_norm}, kRounded});
        }
        const Input norm{{}, Draw::away};
        cases.push_back({op::rescale, {{x}, norm}, RescaleOp{2}, kRounded});
        for (Draw found : {Draw::absent, Draw::none_found, Draw::found})
            cases.push_back({op::rescale, {{x}, norm, {x}, {{1}, Draw::lr}, {{}, found}}, RescaleOp{2, 0.3f}, kRounded});
        cases.push_back({op::average_update, {{x}, {x}}, AverageUpdateOp{0.9}, kRounded});
        for (Draw values : {Draw::offset, Draw::special, Draw::damaged})
            for (Draw loss : {Draw::absent, Draw::normal, Draw::not_a_number})
                cases.push_back({op::first_non_finite, {{x, values}, {{}, loss}}});
        cases.push_back({op::first_non_finite, {{x, Draw::offset}}, FirstNonFiniteOp{true}, kSummed});
    }
}

/// Adds the activations beside ReLU, and arithmetic beside addition. Their loops are those of add_elementwise(), so few
/// large cases suffice. Large cases take the executor (tests/simt) longest.
inline void add_other_elementwise(std::vector<OpCase>& cases) {
    for (const Shape& x : std::initializer_list<Shape>{{1}, {0, 5}, {17}, {2, 7, 9, 11}, {3, 3, 5, 64}})
        for (const Activation::Kind kind : kActivations) {
            if (kind == Activation::relu) continue; // add_elementwise() has it
            const bool of_positive =
                kind == Activation::log || kind == Activation::sqrt || kind == Activation::reciprocal;
            for (Draw values : {of_positive ? Draw::positive : Draw::away, Draw::ties, Draw::special}) {
                cases.push_back({op::activation, {{x, values}}, ActivationOp{{kind, 0.3f}}, kRounded});
                cases.push_back({op::activation_grad,
                                 {{x, values == Draw::special ? Draw::normal : values}, {x, values}},
                                 ActivationGradOp{{kind, 0.3f}}, kRounded});
            }
        }
    for (const Shape& x : std::initializer_list<Shape>{{}, {1}, {0, 5}, {17}, {2, 7, 9, 11}, {40001}}) {
        cases.push_back({op::sum_grad, {{{}, Draw::away}}, SumGradOp{x, DType::f32, true}, kRounded});
        cases.push_back({op::sum_grad, {{{}, Draw::away}}, SumGradOp{x, DType::bf16, false}, kNarrow});
    }
}

/// Adds ops on a tensor and a smaller one, whose elements repeat, and on tensors of the same shape.
inline void add_repeated(std::vector<OpCase>& cases) {
    struct Pair {
        Shape large, small;
    };
    for (const auto& [x, y] : std::initializer_list<Pair>{
             {{}, {}}, {{17}, {17}}, {{0, 5}, {0, 5}}, {{2, 7, 9, 11}, {2, 7, 9, 11}}, {{40001}, {40001}},
             {{7}, {}}, {{3, 5}, {1}}, {{4, 6}, {6}}, {{9, 10}, {9, 1}}, {{40, 64}, {40, 1}}, {{0, 4, 4, 8}, {8}},
             {{3, 5, 7, 16}, {16}}, {{3, 5, 7, 16}, {3, 16}}, {{2, 9, 5, 17}, {2, 1, 1, 17}}, {{2, 3, 3, 70}, {2, 70}},
             {{2, 3, 4, 24}, {2, 3, 4, 1}}, {{2, 3, 4, 5}, {1, 1, 4, 5}}, {{2, 3, 4, 5}, {2, 1, 4, 5}},
             {{2, 4, 3, 7}, {2, 1, 1, 1}}, {{5, 3, 700}, {3, 700}}, {{37, 1100}, {1100}}, {{0, 3}, {3}},
             {{3, 140, 90, 3}, {3, 3}}, {{2, 50, 60, 16}, {16}}, {{70001, 3}, {3}}}) {
        const bool same = x == y;
        for (const Binary kind : kBinaries)
            for (const Draw values : {Draw::away, Draw::special})
                if (x.numel() < 5000 || kind == Binary::mul) // large cases take the executor longest
                    cases.push_back({op::binary, {{x, values}, {y, Draw::away}}, BinaryOp{kind}, kRounded});
        if (same) continue;
        for (const bool mean : {false, true}) {
            cases.push_back({op::sum, {{x, x.numel() < 5000 ? Draw::offset : Draw::normal}}, SumOp{mean, y}, kSummed});
            cases.push_back({op::sum, {{x}, {x, Draw::squares}}, SumOp{mean, y}, kSummed});
            cases.push_back({op::sum_grad, {{y, Draw::away}}, SumGradOp{x, DType::f32, mean}, kRounded});
        }
    }
}

inline void add_slices(std::vector<OpCase>& cases) {
    struct Slice {
        int64_t of, begin, count;
    };
    for (const Slice& s : std::initializer_list<Slice>{
             {1, 0, 1}, {17, 0, 5}, {17, 3, 7},
             {33, 16, 17}, // up to the end
             {0, 0, 0},
             {5 * 20011, 32769, 40000}, {5 * 20011, 1, 5 * 20011 - 1}}) // spans the chunks of several threads
        for (Draw values : {Draw::normal, Draw::special}) {
            cases.push_back({op::slice, {{{s.of}, values}}, SliceOp{s.begin, s.count}});
            cases.push_back({op::slice_grad, {{{s.count}, values}}, SliceGradOp{s.begin, s.of}});
        }
}

inline void add_concats(std::vector<OpCase>& cases) {
    struct Concat {
        Shape rows; // extents before the channels
        std::vector<int64_t> channels;
    };
    for (const Concat& c : std::initializer_list<Concat>{
             {{1}, {1}}, {{}, {3, 4}}, {{2, 3, 5}, {7, 1, 9}},
             {{2, 3, 5}, {16, 8, 24}}, // rows of whole vectors
             {{5}, {0, 3, 0, 2}}, {{0, 4, 4}, {3, 2}}, {{4}, {2, 6, 10, 4}},
             {{3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
             {{2}, {33000, 100}},    // a row is longer than a CPU task
             {{31, 50}, {5, 17}}}) { // several CPU tasks
        const auto shape = [&](int64_t channels) {
            std::vector<int64_t> extents(c.rows.extents().begin(), c.rows.extents().end());
            extents.push_back(channels);
            return Shape(extents);
        };
        std::vector<Input> in;
        for (const int64_t channels : c.channels) in.push_back({shape(channels)});
        cases.push_back({op::concat, in});
        const int64_t all = std::accumulate(c.channels.begin(), c.channels.end(), int64_t{0});
        int64_t begin = 0;
        for (const int64_t channels : c.channels) {
            cases.push_back({op::concat_grad, {{shape(all)}}, ConcatGradOp{begin, channels}});
            begin += channels;
        }
    }
}

inline void add_pools(std::vector<OpCase>& cases) {
    struct PoolCase {
        int64_t n, h, w, c;
        PerAxis window, stride, pad = 0;
    };
    for (const PoolCase& p : std::initializer_list<PoolCase>{{1, 1, 1, 1, 1, 1},
                                                             {2, 4, 4, 3, 2, 2},
                                                             {1, 5, 7, 5, 2, 2},  // a last row and column in no window
                                                             {2, 7, 8, 16, 3, 2}, // overlapping windows
                                                             {2, 6, 5, 17, 3, 1},
                                                             {1, 8, 8, 33, 8, 8}, // the window is the image
                                                             {3, 9, 9, 7, 2, 3},  // pixels in no window
                                                             {1, 15, 15, 9, 15, 1},
                                                             {1, 40, 40, 7, 15, 1}, // threads share the image
                                                             {70, 2, 2, 20, 2, 2},
                                                             {0, 4, 4, 8, 2, 2},
                                                             {2, 9, 8, 19, 3, 2, 1}, // as in networks for ImageNet
                                                             {2, 6, 7, 70, 3, 1, 1},
                                                             {1, 2, 1, 5, 3, 1, 2}, // all windows touch the padding
                                                             {2, 5, 9, 8, {1, 4}, {2, 3}, {0, 2}},
                                                             {1, 8, 3, 33, {5, 2}, {1, 2}, {3, 1}},
                                                             {2, 16, 16, 3, 16, 1}}) { // the largest window
        const Shape x{p.n, p.h, p.w, p.c};
        const Shape y{p.n, (p.h + 2 * p.pad.h - p.window.h) / p.stride.h + 1,
                      (p.w + 2 * p.pad.w - p.window.w) / p.stride.w + 1, p.c};
        const Pool pool{.window = p.window, .stride = p.stride, .pad = p.pad, .drop_rest = true};
        for (Draw values : {Draw::distinct, Draw::ties, Draw::special}) {
            cases.push_back({op::max_pool2d, {{x, values}}, Pool2dOp{pool}});
            cases.push_back({op::avg_pool2d, {{x, values}}, Pool2dOp{pool}, kSummed});
        }
        const Input absent{{0}, Draw::absent};
        cases.push_back({op::max_pool2d_grad, {{y}, absent, absent, absent, absent, {y, Draw::positions}},
                         Pool2dGradOp{pool, p.h, p.w}, kRounded});
        cases.push_back({op::avg_pool2d_grad, {{y}}, Pool2dGradOp{pool, p.h, p.w}, kSummed});
        if (p.pad == 0) continue;
        Pool uncounted = pool;
        uncounted.count_pad = false;
        cases.push_back({op::avg_pool2d, {{x}}, Pool2dOp{uncounted}, kSummed});
        cases.push_back({op::avg_pool2d_grad, {{y}}, Pool2dGradOp{uncounted, p.h, p.w}, kSummed});
    }
}

inline void add_losses(std::vector<OpCase>& cases) {
    for (const Shape& x : std::initializer_list<Shape>{
             {1, 1}, {1, 2}, {3, 10}, {7, 5}, {64, 10}, {2, 100}, {35, 33}, {1400, 3}, {0, 10}}) {
        const Input labels{{x[0]}, Draw::labels};
        std::vector<Draw> class_weights{Draw::absent};
        if (x[1] > 1) class_weights.push_back(Draw::squares); // with a single class, the gradient is a rounding error
        for (Draw values : {Draw::normal, Draw::offset}) {
            cases.push_back({op::softmax, {{x, values}}, {}, kRounded});
            for (float smoothing : {0.0f, 0.1f})
                for (const Draw weights : class_weights)
                    for (const Draw of_samples : class_weights)
                        for (const Draw dloss : {Draw::absent, Draw::away})
                            cases.push_back(
                                {op::cross_entropy,
                                 {{x, values}, labels, {{x[1]}, weights}, {{x[0]}, of_samples}, {{}, dloss}},
                                 CrossEntropyOp{smoothing},
                                 kRounded});
            cases.push_back({op::binary_cross_entropy, {{x, values}, {x, Draw::fractions}}, {}, kRounded});
            cases.push_back({op::binary_cross_entropy_grad, {{x, values}, {x, Draw::fractions}, {{}, Draw::away}}, {},
                             kRounded});
        }
        cases.push_back({op::softmax_grad, {{x}, {x, Draw::probabilities}}, {}, kRounded});
        for (float smoothing : {0.0f, 0.1f})
            for (const Draw weights : class_weights)
                for (const Draw of_samples : class_weights)
                    cases.push_back(
                        {op::cross_entropy_grad,
                         {{x, Draw::probabilities}, labels, {{x[1]}, weights}, {{x[0]}, of_samples}, {{}, Draw::away}},
                         CrossEntropyGradOp{smoothing},
                         kRounded});
        cases.push_back({op::mse_loss, {{x}, {x}}, {}, kRounded});
        cases.push_back({op::mse_loss_grad, {{x}, {x}, {{}, Draw::away}}, {}, kRounded});
    }
}

/// Adds ops with the optional steps that a plan fuses into them: a batch norm before or after, pooling, sums.
inline void add_fused(std::vector<OpCase>& cases) {
    const Draw normal = Draw::normal;
    const Input absent{{0}, Draw::absent};
    const std::vector<Input> no_norm(3, absent);
    // Each geometry has ReLU before or after the convolution, and two other activations.
    size_t next = 0;
    const auto pairs = [&] {
        const std::vector<Activation>& all = fusible_activations();
        const auto other = [&](size_t i) { return all[2 + (next + i) % (all.size() - 2)]; };
        ++next;
        return std::vector<std::pair<Activation, Activation>>{
            {Activation::none, Activation::relu}, {Activation::relu, Activation::none}, {other(0), other(1)}};
    };
    for (const ConvCase& g : std::initializer_list<ConvCase>{
             {1, 5, 5, 3, 8, 3, 3, 1, 1}, {3, 8, 8, 16, 16, 3, 3, 1, 1, true, true},
             {2, 6, 10, 5, 7, 3, 3, 1, 1, false, true}, {35, 4, 3, 9, 20, 3, 3, 1, 1, true, true},
             {2, 9, 8, 20, 33, 3, 3, 2, 1}, {2, 7, 6, 11, 17, 1, 1, 2, 0, true, true},
             {2, 13, 10, 17, 4, 3, 3, 2, 1, true, true}, {1, 10, 9, 3, 16, 5, 5, 1, 2, false},
             {18, 8, 8, 32, 48, 3, 3, 1, 1, true, true}, {2, 8, 32, 32, 32, 3, 3, 1, 1, true, true},
             {18, 8, 16, 8, 8, 3, 3, 1, 1, true, true}, {3, 16, 16, 4, 8, 5, 5, 1, 2, true, true},
             {1, 16, 16, 64, 32, 3, 3, 1, 1, true, true}, {3, 8, 8, 64, 64, 3, 3, 1, 1, false, true},
             {5, 8, 8, 64, 128, 3, 3, 1, 1, true, true}, {3, 8, 8, 128, 64, 3, 3, 1, 1, true, true},
             {2, 4, 4, 72, 16, 3, 3, 1, 1, true, true}, {2, 4, 4, 16, 72, 3, 3, 1, 1, true, true},
             {5, 2, 3, 176, 176, 3, 3, 1, 1, true, true}, {0, 4, 4, 8, 8, 3, 3, 1, 1},
             {3, 9, 8, 16, 16, 3, 3, 1, 1, true, true, normal, 1, 16},
             {2, 7, 11, 33, 33, 5, 5, 2, 2, false, true, normal, 1, 33},
             {18, 4, 5, 3, 3, 3, 3, {2, 1}, 1, true, true, normal, 1, 3},
             {1, 34, 33, 8, 8, 3, 3, 1, {2, 3}, true, true, normal, {2, 3}, 8},
             {1, 48, 50, 32, 32, 3, 3, 1, 1, true, true, normal, 1, 32}, // several threads share the image
             {0, 4, 4, 8, 8, 3, 3, 1, 1, true, true, normal, 1, 8}})
        for (const auto& [first, second] : pairs()) {
            const Shape x = g.x(), w = g.w_shape(), y = g.y();
            const BatchNorm norm{.epsilon = 1e-3f, .activation = first}, other{.epsilon = 1e-2f, .activation = second};
            const bool adds = first.kind;
            const std::vector<Input> filter{{x}, {w}, {{g.k}, g.bias ? Draw::normal : Draw::absent}};
            Conv2dOp a{.conv = g.conv(), .with_stats = g.stats, .x_norm = norm, .y_norm = other};
            cases.push_back({op::conv2d, filter + norm_of(x), a, kConvolved});
            a.with_stats = false;
            cases.push_back({op::conv2d, filter + norm_of(x) + norm_of(y), a, kNormConvolved});
            cases.push_back({op::conv2d, filter + no_norm + norm_of(y), a, kNormConvolved});
            Conv2dGradOp grad{.conv = g.conv(), .y_norm = norm, .x_norm = other};
            const auto inputs = [&](bool addend, const std::vector<Input>& x_norm) {
                return std::vector<Input>{{y}, {x}, {w}, addend ? Input{x} : absent, {y}} + norm_of(y) +
                       std::vector<Input>{{{2, g.k}}} + x_norm;
            };
            cases.push_back({op::conv2d_grad, inputs(adds, no_norm), grad, kNormConvolved});
            grad.with_sums = true;
            cases.push_back({op::conv2d_grad, inputs(!adds, norm_of(x)), grad, kConvolvedSums});
            grad.with_sums = grad.data = false;
            cases.push_back({op::conv2d_grad, inputs(false, norm_of(x)), grad, kNormConvolved});
        }
    for (const Shape& x : std::initializer_list<Shape>{{2, 4, 4, 3}, {35, 6, 7, 9}, {1, 8, 8, 32}, {0, 4, 4, 8}}) {
        const BatchNorm plain{.epsilon = 1e-3f}, other{.epsilon = 1e-2f};
        const Shape half{x[0], x[1] / 2, x[2] / 2, x[3]}, overlapping{x[0], (x[1] + 1) / 2, (x[2] + 1) / 2, x[3]};
        const std::vector<Input> norm = norm_of(x), normed = std::vector<Input>{{x}} + norm;
        for (const auto& [pool, y] : {std::pair{Pool{.window = 2, .stride = 2, .drop_rest = true}, half},
                                      {Pool{.window = 3, .stride = 2, .pad = 1}, overlapping}})
            for (const Activation a : fusible_activations()) {
                const BatchNorm of_x{.epsilon = 1e-3f, .activation = a};
                cases.push_back({op::max_pool2d, normed, Pool2dOp{pool, of_x}, kRounded});
                cases.push_back({op::avg_pool2d, normed, Pool2dOp{pool, of_x}, kSummed});
                cases.push_back({op::max_pool2d_grad,
                                 std::vector<Input>{{y}} + normed + std::vector<Input>{{y, Draw::positions}},
                                 Pool2dGradOp{pool, x[1], x[2], of_x}, kConvolved});
                cases.push_back({op::avg_pool2d_grad, std::vector<Input>{{y}} + normed,
                                 Pool2dGradOp{pool, x[1], x[2], of_x}, kConvolved});
            }
        for (const Activation activation : fusible_activations())
            for (const auto& [a, b] : {std::pair{norm, norm}, {norm, no_norm}, {no_norm, norm}, {no_norm, no_norm}})
                cases.push_back({op::add, std::vector<Input>{{x}, {x}} + a + b, AddOp{activation, plain, other}, kSummed});
        for (const Activation::Kind kind : {Activation::relu, Activation::silu})
            for (const std::vector<Input>& b : {normed, {}})
                cases.push_back({op::activation_grad, std::vector<Input>{{x}, {x}} + normed + b,
                                 ActivationGradOp{kind, plain, other}, kSummed});
    }
}

/// Returns a mask in which bit i is set if input i of the case is an activation.
inline uint32_t activations(const OpCase& c) {
    uint32_t bits = 0;
    for (size_t i = 0; i < c.in.size(); ++i)
        bits |= uint32_t(c.op->inputs[i].type == Type::activation) << i;
    return bits;
}

/// Adds a copy of each case that has activations, with these in bf16.
inline void add_narrow(std::vector<OpCase>& cases) {
    for (size_t i = 0, n = cases.size(); i < n; ++i) {
        OpCase c = cases[i];
        c.narrow = activations(c);
        const bool convolves = c.op == op::conv2d || c.op == op::conv2d_grad;
        // Leaves out convolutions of NaN and infinities: incomplete tiles are filled with zeros, and 0 * NaN is NaN in
        // results that should not depend on it.
        if (!c.narrow || (convolves && (c.in[0].draw == Draw::special || c.in[1].draw == Draw::special))) continue;
        const bool wide_result = c.op == op::batch_norm_grad_sums || c.op == op::channel_stats ||
                                 (c.op == op::sum && c.attrs.as<SumOp>().shape.rank() == 0) ||
                                 (c.op == op::conv2d_grad && !c.attrs.as<Conv2dGradOp>().data &&
                                  c.in.size() <= Conv2dGradOp::y);
        const auto limits = [](Activation a) { return a.kind == Activation::relu6 || a.kind == Activation::hardsigmoid; };
        const bool limited = c.op == op::conv2d && limits(c.attrs.as<Conv2dOp>().y_norm.activation);
        if (c.tolerance.rms > 0 && !wide_result) c.tolerance = limited ? kNarrowLimited : kNarrow;
        cases.push_back(c);
    }
}

inline void add_views(std::vector<OpCase>& cases) {
    struct Case {
        int64_t of, h, w, c, n, height, width;
    };
    for (const Case& v : std::initializer_list<Case>{
             {1, 3, 3, 1, 1, 3, 3}, {5, 7, 9, 3, 11, 7, 9}, {40, 32, 32, 3, 6, 32, 32}, {3, 8, 6, 2, 5, 5, 4},
             {2, 4, 5, 4, 100, 4, 2}, {3, 4, 5, 5, 9, 9, 7}, {2, 1, 1, 3, 8, 3, 2}, {2, 4, 5, 3, 0, 4, 5}})
        for (bool reflect : {false, true})
            for (DType to : {DType::f32, DType::bf16})
                for (int64_t numbers : {kPositionNumbers, kViewNumbers, 2 * kViewNumbers})
                    cases.push_back({op::augment,
                                     {{{v.of, v.h, v.w, v.c}, Draw::bytes},
                                      {numbers > kViewNumbers ? Shape{v.n, 2} : Shape{v.n}, Draw::indices},
                                      {{v.n, numbers}, Draw::views},
                                      {{2, v.c}, Draw::statistics}},
                                     AugmentOp{{v.height, v.width, reflect, to}},
                                     to == DType::f32 ? kRounded : kNarrow});
}

inline void add_casts(std::vector<OpCase>& cases) {
    for (const Shape& x : std::initializer_list<Shape>{{1}, {17}, {5, 20011}, {2, 3, 5, 64}, {0, 3}})
        for (Draw values : {Draw::normal, Draw::special})
            for (DType to : {DType::f32, DType::bf16}) cases.push_back({op::cast, {{x, values}}, CastOp{to}});
}

inline void add_ranks(std::vector<OpCase>& cases) { // for a single rank; tests of par/ cover several ranks
    cases.push_back({op::combine_stats, {{{2, 5}, Draw::statistics}}, {}, kRounded});
    cases.push_back({op::combine_sums, {{{7}}, {{7}}}, {}, kRounded});
}

/// Returns true for a convolution in groups with fused steps, and for a fused activation that no device takes.
inline bool only_on_cpus(const OpCase& c) {
    const auto other = [](Activation a) { return !is_fusible(a, true); };
    if (c.op == op::add) return other(c.attrs.as<AddOp>().activation);
    if (c.op == op::batch_norm) return other(c.attrs.as<BatchNormOp>().norm.activation);
    if (c.op == op::batch_norm_grad) return other(c.attrs.as<BatchNormGradOp>().norm.activation);
    if (c.op == op::batch_norm_grad_sums) return other(c.attrs.as<BatchNormGradSumsOp>().norm.activation);
    if (c.op == op::max_pool2d || c.op == op::avg_pool2d) return other(c.attrs.as<Pool2dOp>().x_norm.activation);
    if (c.op == op::max_pool2d_grad || c.op == op::avg_pool2d_grad)
        return other(c.attrs.as<Pool2dGradOp>().x_norm.activation);
    if (c.op != op::conv2d && c.op != op::conv2d_grad) return false;
    const bool forward = c.op == op::conv2d;
    const auto of = [&](const auto& a) {
        return std::pair(a.conv, other(a.x_norm.activation) || other(a.y_norm.activation));
    };
    const auto [conv, takes_other] = forward ? of(c.attrs.as<Conv2dOp>()) : of(c.attrs.as<Conv2dGradOp>());
    const auto first_fused = c.in.begin() + (forward ? int(Conv2dOp::x_stats) : int(Conv2dGradOp::addend));
    return takes_other || (conv.groups > 1 && std::any_of(first_fused, c.in.end(),
                                                          [](const Input& i) { return i.draw != Draw::absent; }));
}

inline const std::vector<OpCase>& op_cases() {
    static const std::vector<OpCase> kCases = [] {
        std::vector<OpCase> cases;
        add_convs(cases);
        add_norms(cases);
        add_layer_norms(cases);
        add_elementwise(cases);
        add_other_elementwise(cases);
        add_repeated(cases);
        add_slices(cases);
        add_concats(cases);
        add_pools(cases);
        add_fused(cases);
        add_casts(cases);
        add_ranks(cases);
        add_losses(cases);
        add_views(cases);
        add_narrow(cases);
        for (OpCase& c : cases) c.in.resize(c.op->inputs.size(), {{0}, Draw::absent});
        return cases;
    }();
    return kCases;
}

} // namespace rg
