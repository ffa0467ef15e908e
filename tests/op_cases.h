// THE case table: what every op is tried with. The tests in test_core_ops.cpp and test_core_gradients.cpp iterate over
// it: kernels against the reference, guards around every buffer, bits, gradients.
//
// A case is an op, its attributes, its inputs with the way they are drawn, and the error that is allowed against the
// reference with the reason for it. Extents include 1, odd numbers, and numbers that are not multiples of any vector
// (4, 8, 16) or tile (6, 8, 12); batches go from none to more than the groups that a kernel splits them into.
#pragma once

#include "core/op_table.h"

#include <vector>

namespace rg {

/// How the values of an input are drawn.
enum class Draw : uint8_t {
    absent,         // an undefined tensor
    normal,         // standard normal
    offset,         // normal around 30: sums that cancel
    away,           // 0.1 or more away from zero, of both signs: no kink, no vanishing gradient; not 1
    distinct,       // no two values closer than 0.02
    ties,           // small whole numbers: many equal values, zeros of both signs
    special,        // normal with some NaN and infinities
    statistics,     // [2 c]: any mean, positive variance
    own_statistics, // [2 c]: those of input 0, as batch_norm means them in training
    labels,         // i32, classes of input 0
    positions,      // u8, places in the window
    bytes,          // u8
    indices,        // i32, of samples of input 0
    views,          // i32 [n 3]: flipped or not, and where a window of the case begins, up to 2 outside of input 0
    damaged,        // huge values, and in the last quarter some NaN and infinities
    seed,           // i32, any bits
    squares,        // not negative
    lr,             // f32, 0.3
    lr_and_step,    // f32, 0.02 and the 7th
    not_a_number,   // nothing else
    none_found,     // i32, -1
    found,          // i32, 0
    probabilities   // rows that sum to 1
};

struct Input {
    Shape shape;
    Draw draw = Draw::normal;
};

/// The root mean square of the errors, relative to that of the reference's result, and the largest error, relative to
/// the larger of that and the element. Each is at least 4 times what perturb.h causes.
struct Tolerance {
    double rms, max;
    bool operator==(const Tolerance&) const = default;
};
/// Copies, comparisons, selections: nothing is rounded.
constexpr Tolerance kExact{0, 0};
/// A few roundings of 6e-8 each.
constexpr Tolerance kRounded{2e-6, 5e-6};
/// Float sums of up to some thousand terms.
constexpr Tolerance kSummed{4e-6, 4e-5};
/// Convolutions by any algorithm: they may trade accuracy for speed. With strict_fp32: kSummed.
constexpr Tolerance kConvolved{1e-5, 8e-5};
/// Sums of their results, of both signs.
constexpr Tolerance kConvolvedSums{1e-4, 2e-4};
/// Results that are rounded to bf16: half a unit in the eighth bit, and sometimes the neighbouring value.
constexpr Tolerance kNarrow{8e-3, 8e-2};
/// Gradients of a network: a rounding that changes the sign of one value before a ReLU, or the maximum of one window,
/// moves single elements by a tenth, and the whole by a thousandth.
constexpr Tolerance kGradients{5e-3, 0.5};
/// x * scale + shift where the two cancel: |mean| / sigma = 30 times the rounding.
constexpr Tolerance kCancelled{1e-5, 1e-4};

struct OpCase {
    Op op;
    std::vector<Input> in;
    Attrs attrs = {};
    Tolerance tolerance = kExact;
    int in_place = 0;    // so many outputs are the inputs of the same number, for updates
    uint32_t narrow = 0; // inputs that are bf16, as bits
};

/// One geometry of convolution: forward, data gradient and weight gradient.
struct ConvCase {
    int64_t n, h, w, c, k, r, s, stride, pad;
    bool bias = true, stats = false;
    Draw values = Draw::normal;
};

inline void add_conv(std::vector<OpCase>& cases, const ConvCase& g) {
    const Attrs a{.stride = g.stride, .pad = g.pad, .stats = g.stats};
    const Attrs restore{.stride = g.stride, .pad = g.pad, .height = g.h, .width = g.w};
    const Attrs filter{.stride = g.stride, .pad = g.pad, .height = g.r, .width = g.s};
    const Shape x{g.n, g.h, g.w, g.c}, w{g.k, g.r, g.s, g.c};
    const Shape y{g.n, (g.h + 2 * g.pad - g.r) / g.stride + 1, (g.w + 2 * g.pad - g.s) / g.stride + 1, g.k};
    cases.push_back({Op::conv2d, {{x, g.values}, {w}, {{g.k}, g.bias ? Draw::normal : Draw::absent}}, a, kConvolved});
    cases.push_back({Op::conv2d_dgrad, {{y, g.values}, {w}, {{0}, Draw::absent}}, restore, kConvolved});
    cases.push_back({Op::conv2d_dgrad, {{y, g.values}, {w}, {x}}, restore, kConvolved});
    cases.push_back({Op::conv2d_wgrad, {{y}, {x, g.values}}, filter, kConvolved});
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
             {2, 4, 5, 4, 6, 1, 1, 1, 1},                  // padding of more than the window reaches
             {2, 5, 4, 3, 4, 3, 3, 2, 4},                  // the same with a stride
             {1, 3, 3, 5, 8, 3, 3, 1, 3, true, true},      //
             {2, 5, 5, 4, 8, 5, 5, 1, 0},                  // the window is the image
             {1, 7, 7, 2, 3, 1, 1, 4, 0},                  // a stride beyond the window
             {2, 1, 5, 4, 6, 3, 3, 2, 1, true, true},      // a stride beyond the image
             {0, 6, 6, 3, 8, 3, 3, 1, 1, true, true},      // no images
             {0, 6, 6, 16, 32, 3, 3, 1, 1, true, true},    //
             {19, 5, 5, 3, 16, 3, 3, 1, 1, true, true},    // more images than groups of the weight gradient
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
             {2, 8, 8, 64, 64, 3, 3, 1, 1, true, true},    // filters that are cached in parts
             {9, 8, 8, 32, 32, 3, 3, 1, 1, true, true},    // whole tiles on Hopper GPUs, of each width
             {2, 16, 16, 32, 64, 3, 3, 1, 1, true, true},  //
             {1, 24, 32, 64, 32, 3, 3, 1, 1},              //
             {3, 9, 7, 64, 32, 3, 3, 1, 1, true, true},    // extents that no tile of 4 divides
             {1, 8, 8, 128, 128, 3, 3, 1, 1},              //
             {1, 6, 9, 128, 48, 3, 3, 1, 0},               //
             {1, 5, 6, 200, 24, 5, 5, 1, 2},               //
             {1, 20, 40, 32, 32, 3, 3, 1, 1, true, true},  // several bands of the weight gradient
             {1, 3, 65, 3, 40, 3, 3, 1, 1},                // a wide row
             {1, 1, 37, 50, 10, 1, 1, 1, 0},               // linear: the samples are the pixels of one image
             {1, 1, 1, 70, 3, 1, 1, 1, 0},                 //
             {1, 1, 256, 128, 10, 1, 1, 1, 0},             //
             {3, 1, 8, 700, 11, 1, 1, 1, 0},               // the same with many inputs
             {2, 7, 8, 3, 5, 3, 3, 1, 1, true, false, Draw::special}}) // a NaN reaches what the definition says
        add_conv(cases, g);
}

/// Inputs x, stats, gamma, beta.
inline std::vector<Input> norm_inputs(const Shape& x, Draw values, Draw stats) {
    return {{x, values}, {{2, x[3]}, stats}, {{x[3]}, Draw::away}, {{x[3]}, Draw::away}};
}

inline void add_norms(std::vector<OpCase>& cases) {
    const auto add = [&](const Shape& x, bool relu, Draw values, Tolerance tolerance, Tolerance sums) {
        const Attrs a{.relu = relu, .epsilon = 1e-3f};
        const Attrs frozen{.relu = relu, .frozen = true, .epsilon = 1e-3f};
        cases.push_back({Op::channel_stats, {{x, values}}, {}, kCancelled});
        cases.push_back({Op::batch_norm, norm_inputs(x, values, Draw::own_statistics), a, tolerance});
        cases.push_back({Op::batch_norm, norm_inputs(x, values, Draw::statistics), frozen, tolerance});
        std::vector<Input> grad = norm_inputs(x, values, Draw::statistics);
        grad.insert(grad.begin(), {x});
        cases.push_back({Op::batch_norm_sums, grad, a, sums});
        grad.push_back({{2, x[3]}});
        cases.push_back({Op::batch_norm_grad, grad, a, tolerance});
    };
    for (const Shape& x : std::initializer_list<Shape>{{2, 1, 1, 1},
                                                       {2, 3, 5, 1},
                                                       {1, 4, 4, 3},
                                                       {3, 3, 3, 5},
                                                       {2, 5, 3, 7},
                                                       {2, 1, 9, 8},
                                                       {2, 4, 3, 11},
                                                       {5, 3, 2, 16},
                                                       {2, 3, 3, 17},
                                                       {3, 5, 5, 20},
                                                       {70, 2, 3, 31},
                                                       {2, 7, 5, 64}})
        for (bool relu : {false, true}) add(x, relu, Draw::normal, kRounded, kSummed);
    add({0, 4, 4, 6}, true, Draw::normal, kRounded, kSummed);
    add({16, 64, 65, 16}, true, Draw::normal, kRounded, kSummed); // results that bypass the caches
    add({3, 5, 7, 9}, false, Draw::offset, kCancelled, kCancelled);
    // So many pixels that a GPU adds up their sums in two levels.
    cases.push_back({Op::channel_stats, {{{131, 32, 32, 2}, Draw::normal}}, {}, kCancelled});
    const Shape x{2, 4, 5, 3};
    cases.push_back({Op::batch_norm, norm_inputs(x, Draw::special, Draw::statistics), {.relu = true}, kRounded});
    for (int64_t count : {0, 1, 2, 1000})
        cases.push_back({Op::running_update,
                         {{{2, 5}, Draw::statistics}, {{2, 5}, Draw::statistics}},
                         {.height = count, .width = 1, .rate = 0.1f},
                         kRounded,
                         1});
}

inline void add_elementwise(std::vector<OpCase>& cases) {
    for (const Shape& x : std::initializer_list<Shape>{{1},
                                                       {3},
                                                       {4},
                                                       {15, 1},
                                                       {16},
                                                       {17},
                                                       {0, 5},
                                                       {33, 5},
                                                       {2, 7, 9, 11},
                                                       {1 << 15},
                                                       {5, 20011},
                                                       {3, 3, 5, 64}}) {
        for (Draw values : {Draw::away, Draw::ties, Draw::special}) {
            cases.push_back({Op::relu, {{x, values}}});
            cases.push_back({Op::relu_grad, {{x, values == Draw::special ? Draw::normal : values}, {x, values}}});
            cases.push_back({Op::add, {{x, values}, {x}}, {}, kRounded});
        }
        for (float rate : {0.0f, 0.5f, 0.3f})
            for (uint32_t stream : {0u, 0xABCDEFu})
                cases.push_back(
                    {Op::dropout, {{x, Draw::away}, {{2}, Draw::seed}}, {.rate = rate, .stream = stream}, kRounded});
        for (Draw found : {Draw::absent, Draw::none_found, Draw::found})
            for (float decay : {0.0f, 0.03f}) {
                for (bool nesterov : {false, true})
                    cases.push_back({Op::sgdm_update,
                                     {{x}, {x}, {x}, {{1}, Draw::lr}, {{}, found}},
                                     {.momentum = 0.8f, .weight_decay = decay, .nesterov = nesterov},
                                     kRounded,
                                     2});
                for (double beta2 : {0.999, 0.5})
                    cases.push_back({Op::adam_update,
                                     {{x}, {x}, {x, Draw::squares}, {x}, {{2}, Draw::lr_and_step}, {{}, found}},
                                     {.epsilon = 0.1f, .weight_decay = decay, .beta1 = 0.9, .beta2 = beta2},
                                     kRounded,
                                     3});
            }
        for (Draw values : {Draw::offset, Draw::special, Draw::damaged})
            for (Draw loss : {Draw::absent, Draw::normal, Draw::not_a_number})
                cases.push_back({Op::first_non_finite, {{x, values}, {{}, loss}}});
    }
}

inline void add_slices(std::vector<OpCase>& cases) {
    struct Slice {
        int64_t of, begin, count;
    };
    for (const Slice& s : std::initializer_list<Slice>{{1, 0, 1},
                                                       {17, 0, 5},
                                                       {17, 3, 7},
                                                       {33, 16, 17}, // the end
                                                       {0, 0, 0},
                                                       {5 * 20011, 32769, 40000}, // from piece to piece
                                                       {5 * 20011, 1, 5 * 20011 - 1}})
        for (Draw values : {Draw::normal, Draw::special}) {
            cases.push_back({Op::slice, {{{s.of}, values}}, {.width = s.count, .begin = s.begin}});
            cases.push_back({Op::slice_grad, {{{s.count}, values}}, {.width = s.of, .begin = s.begin}});
        }
}

inline void add_pools(std::vector<OpCase>& cases) {
    struct Pool {
        int64_t n, h, w, c, window, stride;
    };
    for (const Pool& p : std::initializer_list<Pool>{{1, 1, 1, 1, 1, 1},
                                                     {2, 4, 4, 3, 2, 2},
                                                     {1, 5, 7, 5, 2, 2},  // a last row and column in no window
                                                     {2, 7, 8, 16, 3, 2}, // overlapping windows
                                                     {2, 6, 5, 17, 3, 1},
                                                     {1, 8, 8, 33, 8, 8}, // the window is the image
                                                     {3, 9, 9, 7, 2, 3},  // pixels in no window
                                                     {1, 15, 15, 9, 15, 1},
                                                     {70, 2, 2, 20, 2, 2},
                                                     {0, 4, 4, 8, 2, 2}}) {
        const Attrs a{.stride = p.stride, .window = p.window};
        const Attrs restore{.stride = p.stride, .window = p.window, .height = p.h, .width = p.w};
        const Shape x{p.n, p.h, p.w, p.c};
        const Shape y{p.n, (p.h - p.window) / p.stride + 1, (p.w - p.window) / p.stride + 1, p.c};
        for (Draw values : {Draw::distinct, Draw::ties, Draw::special}) {
            cases.push_back({Op::max_pool2d, {{x, values}}, a});
            cases.push_back({Op::avg_pool2d, {{x, values}}, a, kSummed});
        }
        cases.push_back({Op::max_pool2d_grad, {{y}, {y, Draw::positions}}, restore, kRounded});
        cases.push_back({Op::avg_pool2d_grad, {{y}}, restore, kSummed});
    }
}

inline void add_losses(std::vector<OpCase>& cases) {
    for (const Shape& x : std::initializer_list<Shape>{
             {1, 1}, {1, 2}, {3, 10}, {7, 5}, {64, 10}, {2, 100}, {35, 33}, {1030, 3}, {0, 10}}) {
        const Input labels{{x[0]}, Draw::labels};
        for (Draw values : {Draw::normal, Draw::offset}) {
            cases.push_back({Op::softmax, {{x, values}}, {}, kRounded});
            for (float smoothing : {0.0f, 0.1f})
                for (const Op op : {Op::cross_entropy, Op::cross_entropy_with_grad}) {
                    cases.push_back({op, {{x, values}, labels}, {.rate = smoothing}, kRounded});
                    if (op != Op::cross_entropy) cases.back().in.push_back({{}, Draw::away});
                }
        }
        cases.push_back({Op::softmax_grad, {{x}, {x, Draw::probabilities}}, {}, kRounded});
        for (float smoothing : {0.0f, 0.1f})
            cases.push_back({Op::cross_entropy_grad,
                             {{x, Draw::probabilities}, labels, {{}, Draw::away}},
                             {.rate = smoothing},
                             kRounded});
        cases.push_back({Op::mse_loss, {{x}, {x}}, {}, kRounded});
        cases.push_back({Op::mse_loss_grad, {{x}, {x}, {{}, Draw::away}}, {}, kRounded});
    }
}

/// Ops that a plan joins: batch norm before or after a convolution, or before pooling.
inline void add_joined(std::vector<OpCase>& cases) {
    const auto joined = [](std::vector<Input> a, const std::vector<Input>& b) {
        a.insert(a.end(), b.begin(), b.end());
        return a;
    };
    for (const ConvCase& g : std::initializer_list<ConvCase>{{1, 5, 5, 3, 8, 3, 3, 1, 1},
                                                             {3, 8, 8, 16, 16, 3, 3, 1, 1, true, true},
                                                             {2, 6, 10, 5, 7, 3, 3, 1, 1, false, true},
                                                             {35, 4, 3, 9, 20, 3, 3, 1, 1, true, true},
                                                             {2, 9, 8, 20, 33, 3, 3, 2, 1},
                                                             {2, 7, 6, 11, 17, 1, 1, 2, 0, true, true},
                                                             {2, 13, 10, 17, 4, 3, 3, 2, 1, true, true},
                                                             {1, 10, 9, 3, 16, 5, 5, 1, 2, false},
                                                             {18, 8, 8, 32, 48, 3, 3, 1, 1, true, true},
                                                             {2, 8, 32, 32, 32, 3, 3, 1, 1, true, true},
                                                             {18, 8, 16, 8, 8, 3, 3, 1, 1, true, true},
                                                             {3, 16, 16, 4, 8, 5, 5, 1, 2, true, true},
                                                             {1, 16, 16, 64, 32, 3, 3, 1, 1, true, true},
                                                             {3, 8, 8, 64, 64, 3, 3, 1, 1, false, true},
                                                             {2, 4, 4, 72, 16, 3, 3, 1, 1, true, true},
                                                             {2, 4, 4, 16, 72, 3, 3, 1, 1, true, true},
                                                             {0, 4, 4, 8, 8, 3, 3, 1, 1}})
        for (bool relu : {false, true}) {
            const Shape x{g.n, g.h, g.w, g.c}, w{g.k, g.r, g.s, g.c};
            const Shape y{g.n, (g.h + 2 * g.pad - g.r) / g.stride + 1, (g.w + 2 * g.pad - g.s) / g.stride + 1, g.k};
            const std::vector<Input> x_norm = norm_inputs(x, Draw::normal, Draw::statistics),
                                     y_norm = norm_inputs(y, Draw::normal, Draw::statistics);
            const std::vector<Input> filter{{w}, {{g.k}, g.bias ? Draw::normal : Draw::absent}};
            Attrs a{.stride = g.stride, .pad = g.pad, .stats = g.stats, .relu = relu, .epsilon = 1e-3f};
            cases.push_back({Op::norm_conv2d, joined(x_norm, filter), a, kConvolved});
            a.stats = false;
            cases.push_back(
                {Op::conv2d_norm, joined(joined({{x}}, filter), {y_norm.begin() + 1, y_norm.end()}), a, kConvolved});
            for (int64_t window : {2, 3}) {
                if (y[1] < window || y[2] < window) continue;
                Attrs pooled = a;
                pooled.window = window;
                cases.push_back({Op::conv2d_norm, joined(joined({{x}}, filter), {y_norm.begin() + 1, y_norm.end()}),
                                 pooled, kConvolved});
            }
            const std::vector<Input> dy = joined(joined({{y}}, y_norm), {{{2, g.k}}});
            const Input absent{{0}, Draw::absent};
            const std::vector<Input> plain{{x}, absent, absent, absent};
            cases.push_back(
                {Op::conv2d_norm_grad, joined(joined(dy, plain), {{w}, relu ? Input{x} : absent}), a, kConvolved});
            a.stats = true, a.input_relu = !relu;
            cases.push_back(
                {Op::conv2d_norm_grad, joined(joined(dy, x_norm), {{w}, relu ? absent : Input{x}}), a, kConvolvedSums});
        }
    for (const Shape& x : std::initializer_list<Shape>{{2, 4, 4, 3}, {35, 6, 7, 9}, {1, 8, 8, 32}, {0, 4, 4, 8}}) {
        const Attrs a{.stride = 2, .window = 2, .relu = true, .epsilon = 1e-3f};
        const std::vector<Input> norm = norm_inputs(x, Draw::normal, Draw::statistics);
        const Shape y{x[0], x[1] / 2, x[2] / 2, x[3]};
        cases.push_back({Op::norm_max_pool2d, norm, a, kRounded});
        const Input absent{{0}, Draw::absent};
        const std::vector<Input> plain{{x}, absent, absent, absent}, none(4, absent);
        for (bool relu : {false, true}) {
            const Attrs sum{.relu = relu, .epsilon = 1e-3f};
            for (const auto& [first, second] : {std::pair{norm, norm}, {norm, plain}, {plain, norm}, {plain, plain}})
                cases.push_back({Op::norm_add, joined(first, second), sum, kSummed});
        }
        for (const std::vector<Input>& second : {norm, none})
            cases.push_back({Op::norm_add_grad, joined(joined({{x}, {x}}, norm), second), {.epsilon = 1e-3f}, kSummed});
        cases.push_back({Op::norm_avg_pool2d, norm, a, kSummed});
        for (const Draw positions : {Draw::positions, Draw::absent})
            cases.push_back({Op::norm_pool2d_grad, joined({{y}, {y, positions}}, norm), a, kConvolved});
    }
}

/// Inputs that are bf16 where activations are: none for what takes no activations.
inline uint32_t activations(Op op) {
    switch (op) {
    case Op::conv2d:
    case Op::channel_stats:
    case Op::batch_norm:
    case Op::relu:
    case Op::dropout:
    case Op::slice:
    case Op::slice_grad:
    case Op::max_pool2d:
    case Op::max_pool2d_grad:
    case Op::avg_pool2d:
    case Op::avg_pool2d_grad:
    case Op::norm_conv2d:
    case Op::conv2d_norm:
    case Op::norm_max_pool2d:
    case Op::norm_avg_pool2d: return 1;
    case Op::conv2d_wgrad:
    case Op::batch_norm_sums:
    case Op::batch_norm_grad:
    case Op::relu_grad:
    case Op::add: return 3;
    case Op::norm_add: return 1 | 1 << 4;
    case Op::norm_add_grad: return 1 | 2 | 1 << 2 | 1 << 6;
    case Op::norm_pool2d_grad: return 5;
    case Op::conv2d_dgrad: return 1 | 1 << 2;
    case Op::conv2d_norm_grad: return 1 | 2 | 1 << 6 | 1 << 11;
    default: return 0;
    }
}

/// All cases once more with activations in bf16.
inline void add_narrow(std::vector<OpCase>& cases) {
    for (size_t i = 0, n = cases.size(); i < n; ++i) {
        OpCase c = cases[i];
        c.narrow = activations(c.op);
        const bool convolves = c.op == Op::conv2d || c.op == Op::conv2d_dgrad || c.op == Op::conv2d_wgrad;
        // Tiles are filled up with zeros, which carry a NaN to results that it has no part in.
        if (!c.narrow || (convolves && (c.in[0].draw == Draw::special || c.in[1].draw == Draw::special))) continue;
        const bool wide_result = c.op == Op::conv2d_wgrad || c.op == Op::batch_norm_sums || c.op == Op::channel_stats;
        if (c.tolerance.rms > 0 && !wide_result) c.tolerance = kNarrow;
        cases.push_back(c);
    }
}

inline void add_views(std::vector<OpCase>& cases) {
    struct Case {
        int64_t of, h, w, c, n, height, width;
    };
    for (const Case& v : std::initializer_list<Case>{{1, 3, 3, 1, 1, 3, 3},
                                                     {5, 7, 9, 3, 11, 7, 9},
                                                     {40, 32, 32, 3, 6, 32, 32},
                                                     {3, 8, 6, 2, 5, 5, 4},
                                                     {2, 4, 5, 4, 33, 4, 2},
                                                     {2, 4, 5, 3, 0, 4, 5}})
        for (bool reflect : {false, true})
            for (DType to : {DType::f32, DType::bf16})
                cases.push_back({Op::augment,
                                 {{{v.of, v.h, v.w, v.c}, Draw::bytes},
                                  {{v.n}, Draw::indices},
                                  {{v.n, 3}, Draw::views},
                                  {{2, v.c}, Draw::statistics}},
                                 {.height = v.height, .width = v.width, .dtype = to, .reflect = reflect},
                                 to == DType::f32 ? kRounded : kNarrow});
}

inline void add_casts(std::vector<OpCase>& cases) {
    for (const Shape& x : std::initializer_list<Shape>{{1}, {17}, {5, 20011}, {2, 3, 5, 64}, {0, 3}})
        for (Draw values : {Draw::normal, Draw::special})
            for (DType to : {DType::f32, DType::bf16})
                for (uint32_t narrow : {0u, 1u})
                    cases.push_back({Op::cast, {{x, values}}, {.dtype = to}, kExact, 0, narrow});
}

inline void add_ranks(std::vector<OpCase>& cases) { // of a single rank; tests of par/ have more
    cases.push_back({Op::rank_stats, {{{2, 5}, Draw::statistics}}, {}, kRounded});
    cases.push_back({Op::rank_sums, {{{7}}, {{7}}}, {}, kRounded});
}

inline const std::vector<OpCase>& op_cases() {
    static const std::vector<OpCase> kCases = [] {
        std::vector<OpCase> cases;
        add_convs(cases);
        add_norms(cases);
        add_elementwise(cases);
        add_slices(cases);
        add_pools(cases);
        add_joined(cases);
        add_narrow(cases);
        add_casts(cases);
        add_ranks(cases);
        add_losses(cases);
        add_views(cases);
        return cases;
    }();
    return kCases;
}

} // namespace rg
