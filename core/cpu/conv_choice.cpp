// The table of the choices, the estimates of time that it compares, and the limits that were measured.
#include "core/cpu/conv_choice.h"

#include "core/cpu/tile_engine.h"
#include "core/cpu/winograd.h"
#include "core/profile.h"

namespace rg::cpu {

namespace {

/// Returns true if Winograd's transformed filters [k 3 3 c], or their gradient, exceed 4 MiB and so the second-level
/// cache. Then each call reads them from a slower cache or from memory.
bool exceeds_cache(int64_t k, int64_t c) { return kComponents * k * c > 1 << 20; }

/// Returns true if Winograd in f32, where it is applicable, takes less time than products of bf16 for k filters of c
/// channels. This is so with AVX512-BF16 while the transformed filters fit the cache, but never with AMX. On a Zen 5,
/// Winograd then computes 1.05 to 1.4 times as many results in the same time. isa().tiles must not be null.
bool winograd_beats_bf16(int64_t k, int64_t c) { return !isa().tiles->forward_f32 && !exceeds_cache(k, c); }

/// Returns true if Winograd is applicable to results [p q], and faster than register tiles.
bool winograd_pays(const Filters& f, PerAxis stride, int64_t p, int64_t q) {
    const int64_t k = f.k / f.groups, c = f.c / f.groups;
    const int64_t least = f.groups > 1 ? 4 : 8; // with fewer channels in a group, the transforms cost too much
    if (context().strict_fp32 || k < least || c < least || !Winograd::applicable(f, stride)) return false;
    if (f.groups > 1) // the transformed filters should stay in the second-level cache, or serve many tiles
        return kComponents * f.k * c <= 1 << 19 || Winograd::tiles_of_image(p, q, 1) >= 32;
    // With a large dilation, tiles may compute many results beyond the image.
    return f.dilation == 1 || 16 * Winograd::tiles_of_image(p, q, f.dilation) <= 2 * p * q;
}

/// An engine's view of a problem: a convolution of `padding` with the filters f, to results [p q]. For most data
/// gradients, this is a convolution of dy with stride 1. With stride 2, it is the largest of the four convolutions of
/// Stride2Gradient.
struct Candidate {
    const ConvProblem& problem;
    Filters f{}; // without values
    PerAxis stride;
    int64_t p, q;
    Padding padding;
    bool in_quarters = false; // true: Stride2Gradient

    explicit Candidate(const ConvProblem& of)
        : problem(of), stride(of.conv.stride), p(of.y[1]), q(of.y[2]), padding(padding_of(of.x, of.conv.pad)) {
        f.k = of.w[0], f.r = of.w[1], f.s = of.w[2], f.c = of.x[3];
        f.dilation = of.conv.dilation, f.groups = of.conv.groups;
        if (of.pass != Pass::dgrad) return;
        std::swap(f.k, f.c);
        stride = 1, p = of.x[1], q = of.x[2];
        padding = dgrad_padding(of.x, of.w, of.y, of.conv);
        in_quarters = of.conv.stride == 2 && of.conv.dilation == 1;
        if (!in_quarters) return;
        f.r = (f.r + 1) / 2, f.s = (f.s + 1) / 2, p = (p + 1) / 2, q = (q + 1) / 2;
        padding = {.h = of.y[1], .w = of.y[2], .c = f.c, .rows = p + f.r - 1, .columns = q + f.s - 1};
    }

    bool has_groups() const { return f.groups > 1; }
    bool is_depthwise() const { return has_groups() && f.k == f.groups && f.c == f.groups; }
    bool winograd_takes_groups() const {
        const bool tiles_win = std::max(f.k, f.c) > 4 * f.groups && isa().tiles && problem.images == DType::bf16 &&
                               !winograd_beats_bf16(f.k / f.groups, f.c / f.groups);
        return !tiles_win && winograd_pays(f, problem.conv.stride, problem.y[1], problem.y[2]);
    }
    bool is_dense() const {
        return problem.alone && problem.images == DType::f32 && f.r == 1 && f.s == 1 && problem.conv.stride == 1 &&
               problem.conv.pad == 0 && problem.x[3] >= 512;
    }
    /// The weight gradient does not use Winograd if several results share a vector.
    bool winograd() const {
        const bool shares = problem.pass == Pass::wgrad && pixels_per_vector(f, q, stride.w, isa().width) > 1;
        return !shares && !in_quarters && winograd_pays(f, stride, p, q);
    }
    /// Tiles have 32-bit indices of values within an image.
    bool tiles_are_applicable() const {
        const int64_t values = std::max(padding.values(), p * q * f.k);
        return isa().tiles && values < int64_t{1} << 30 && f.dilation == 1 &&
               (problem.pass != Pass::wgrad || stride.h == stride.w);
    }
    bool tiles_in_bf16() const {
        return problem.read == DType::bf16 && tiles_are_applicable() && !(winograd() && winograd_beats_bf16(f.k, f.c));
    }
    bool tiles_in_f32() const {
        if (problem.read != DType::f32 || context().strict_fp32 || !tiles_are_applicable() || !isa().tiles->forward_f32)
            return false;
        if (problem.pass == Pass::wgrad && winograd()) return exceeds_cache(f.k, f.c);
        // Two hardware threads of a core share one tile unit, so tiles must take less than 80 % of the other time.
        return tile_cycles() < 0.8 * (winograd() ? winograd_cycles() : direct_cycles());
    }
    /// With 512 channels on a Xeon, Winograd and register tiles take the same time for 8 tiles.
    bool waits_for_filters() const {
        return problem.pass == Pass::forward && exceeds_cache(f.k, f.c) &&
               problem.x[0] * Winograd::tiles_of_image(p, q, 1) < 8;
    }

    // Estimates of the cycles per image in f32. Their factors are fitted to measurements with AMX: 3 x 3 and 5 x 5
    // filters, 8 x 8 to 32 x 32 pixels, 1 to 128 channels.

    /// A product of two tiles of f32 consists of three products of tiles of bf16, which take 24 cycles each. The rest
    /// is the time to split the images into bf16, and for the weight gradient also to rearrange them.
    double tile_cycles() const {
        constexpr int64_t kCycles = 3 * 24;
        if (problem.pass == Pass::wgrad) {
            const TileGradient g = tile_gradient(padding, problem.x[0], p, q, f, stride.h, kPlanes<float>);
            return double(kCycles * (g.columns * (g.padded_k / kTileSide) * g.runs)) +
                   3 * double(p * q * f.k + g.image * g.padded_c / kTileSide);
        }
        const int64_t pixels = pixels_per_row(), tiles = cover_of(padding, p, q, stride, pixels).tiles;
        return double(kCycles * (tiles * divide_up(f.k * pixels, kTileSide) * f.r * divide_up(taps(), kTileRun))) +
               double(padding.values()) / 4;
    }
    /// A core executes at most 32 multiply-adds of f32 per cycle.
    double direct_cycles() const {
        const int64_t pixels = pixels_per_row();
        return 1.3 * double(p * (q / pixels) * f.r * taps() * round_up(f.k * pixels, kTileSide)) / 32;
    }
    double winograd_cycles() const {
        const double c = double(round_up(f.c, kTileSide)), k = double(round_up(f.k, kTileSide));
        const double tiles = double(Winograd::tiles_of_image(p, q, 1));
        // Transformed filters that exceed the cache are read once per 32 tiles, with 8 bytes per cycle.
        const double filters_again = exceeds_cache(f.k, f.c) ? 36.0 * 4 / 8 * double(f.c * f.k) * tiles / 32 : 0;
        return tiles * (36 * double(f.c) * k / 32 + 9 * (c + k)) + filters_again;
    }

private:
    int64_t pixels_per_row() const { return pixels_per_vector(f, q, stride.w, kTileSide); }
    int64_t taps() const { return MultiPixelFilters::width(f, pixels_per_row(), stride.w) * f.c; }
};

struct Rule {
    Method method;
    bool (*applies)(const Candidate&);
    const char* reason;
};

// The first rule that applies decides.
constexpr Rule kRules[] = {
    {Method::depthwise, [](const Candidate& c) { return c.is_depthwise(); },
     "one filter per channel: a vector computes as many channels as it has lanes"},
    {Method::winograd, [](const Candidate& c) { return c.has_groups() && c.winograd_takes_groups(); },
     "3x3 filters in groups: Winograd computes all groups at once"},
    {Method::group_by_group, [](const Candidate& c) { return c.has_groups(); },
     "groups of several channels or filters, and Winograd does not fit or is slower"},
    {Method::dense, [](const Candidate& c) { return c.is_dense(); },
     "1x1 filters for 512 channels or more: a product of two matrices"},
    {Method::tiles, [](const Candidate& c) { return c.tiles_in_bf16(); },
     "bf16 images: this CPU multiplies bf16 fastest"},
    {Method::tiles, [](const Candidate& c) { return c.tiles_in_f32(); },
     "three products of bf16 for one of f32 should take less time"},
    {Method::direct, [](const Candidate& c) { return c.in_quarters; },
     "stride 2: each quarter of dx uses a quarter of the filters"},
    {Method::direct, [](const Candidate& c) { return c.winograd() && c.waits_for_filters(); },
     "Winograd's filters exceed the cache, and serve few results"},
    {Method::winograd, [](const Candidate& c) { return c.winograd(); },
     "3x3 filters with stride 1: Winograd needs a quarter of the products"},
    {Method::direct, [](const Candidate&) { return context().strict_fp32; }, "fp32-strict: plain multiply-adds"},
    {Method::direct, [](const Candidate&) { return true; }, "neither Winograd nor products of bf16 fit and pay off"},
};

} // namespace

Method method_for(const ConvProblem& problem) {
    constexpr const char* kPasses[] = {"conv2d", "conv2d_grad: dx", "conv2d_grad: dw"};
    constexpr const char* kMethods[] = {"depthwise", "group by group", "dense", "tiles", "Winograd", "direct"};
    const Candidate candidate(problem);
    const Rule* rule = kRules;
    while (!rule->applies(candidate)) ++rule;
    if (context().profile)
        context().profile->note({kPasses[size_t(problem.pass)], kMethods[size_t(rule->method)], rule->reason, problem.x,
                                 problem.w, problem.y, problem.images});
    return rule->method;
}

} // namespace rg::cpu
