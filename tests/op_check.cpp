// See op_check.h.
#include "tests/op_check.h"

#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "tests/perturb.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace rg {

namespace {

const Context kReference{.backend = Backend::reference};

bool differentiable(Draw draw) {
    return draw == Draw::normal || draw == Draw::offset || draw == Draw::away || draw == Draw::distinct ||
           draw == Draw::positive || draw == Draw::probabilities;
}
bool smooth(Draw draw) { return draw != Draw::special && draw != Draw::ties; }

/// Nearly standard normal, at most 3.5: the sum of four uniform numbers, made faster than Rng::normal().
double nearly_normal(Rng& random) {
    const uint32_t a = random.next(), b = random.next();
    const uint32_t sum = (a & 0xFFFF) + (a >> 16) + (b & 0xFFFF) + (b >> 16);
    return (double(sum) * 0x1p-16 - 2) * 1.7320508;
}

/// Value number i of n.
double draw_value(Draw draw, int64_t i, int64_t n, Rng& random, std::span<const uint32_t> order) {
    const double z = nearly_normal(random);
    switch (draw) {
    case Draw::offset: return 30 + z;
    case Draw::away: return z < 0 ? z - 0.1 : z + 0.1;
    case Draw::positive: return std::abs(z) + 0.3;
    case Draw::distinct: return 0.05 * (double(order[size_t(i)]) - double(n) / 2) + 0.01 * random.uniform();
    case Draw::ties: {
        const double whole = double(random.uniform_below(4)) - 2;
        return whole == 0 && z < 0 ? -0.0 : whole;
    }
    case Draw::special: {
        const uint32_t kind = random.uniform_below(24);
        if (kind == 0) return std::numeric_limits<double>::quiet_NaN();
        if (kind == 1)
            return z < 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
        return z;
    }
    case Draw::damaged: {
        const double huge = std::numeric_limits<float>::max();
        if (i < n - n / 4 || random.uniform_below(24) < 22) return z < 0 ? -huge : huge;
        return random.uniform_below(2) ? std::numeric_limits<double>::quiet_NaN()
                                       : z * std::numeric_limits<double>::infinity();
    }
    case Draw::statistics: return i < n / 2 ? z : 0.2 + z * z;
    case Draw::fractions: return std::clamp(0.5 + 0.5 * z, 0.0, 1.0);
    case Draw::squares: return z * z;
    case Draw::lr: return 0.3;
    case Draw::lr_and_step: return i == 0 ? 0.02 : 7;
    case Draw::not_a_number: return std::numeric_limits<double>::quiet_NaN();
    case Draw::none_found: return -1;
    case Draw::found: return 0;
    default: return z;
    }
}

Tensor draw_floats(const Input& input, Rng random) {
    const int64_t n = input.shape.numel();
    std::vector<uint32_t> order(input.draw == Draw::distinct ? size_t(n) : 0);
    std::iota(order.begin(), order.end(), 0u);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.uniform_below(uint32_t(i))]);
    const Tensor t = Tensor::empty(input.shape, DType::f64);
    double* const values = t.data<double>();
    for (int64_t i = 0; i < n; ++i) values[i] = draw_value(input.draw, i, n, random, order);
    return t;
}

/// Whole numbers below `bound`.
Tensor draw_whole(const Input& input, DType type, uint32_t bound, Rng random) {
    const Tensor t = Tensor::empty(input.shape, DType::f64);
    for (double& v : t.span<double>()) v = random.uniform_below(bound);
    return t.to(type);
}

/// The first result of an op's reference kernel, which nothing perturbs.
Tensor reference(Op op, const Tensor& x) {
    const OutputSpec y = infer(*op, {{x}}, {})[0];
    const Tensor out = Tensor::empty_on_host(y.shape, y.dtype);
    op->reference({{}, {{x}}, {{out}}});
    return out;
}

/// Inputs that follow from input 0.
void derive(const OpCase& c, std::vector<Tensor>& in) {
    for (size_t i = 0; i < c.in.size(); ++i)
        if (c.in[i].draw == Draw::own_statistics) in[i] = reference(op::channel_stats, in[0]);
}

/// An op's number among the streams of random numbers, which other ops do not change (FNV-1a).
uint32_t number_of(Op op) {
    uint32_t hash = 2166136261u;
    for (const char* c = op->name; *c; ++c) hash = (hash ^ uint32_t(*c)) * 16777619u;
    return hash >> 8;
}

Tensor draw_views(const OpCase& c, const Input& input, Rng random) {
    const Tensor t = Tensor::empty(input.shape, DType::i32);
    const Window& window = c.attrs.as<AugmentOp>().window;
    // Returns a number of [least, most).
    const auto draw = [&](int64_t least, int64_t most) {
        return int32_t(least + int64_t(random.uniform_below(uint32_t(most - least))));
    };
    // The first pixel of a window that leaves the image by up to 2 pixels, and the step, which is negative if flipped.
    const auto draw_axis = [&](int64_t extent, int64_t size, int32_t& first, int32_t& step) {
        const bool flip = draw(0, 2) != 0;
        first = (draw(-2, std::max<int64_t>(0, extent - size) + 3) + int32_t(flip ? size - 1 : 0)) * int32_t(kPixel);
        step = int32_t(flip ? -kPixel : kPixel);
    };
    const auto draw_box = [&]() -> Box { // some are empty, some reach beyond the window
        const int32_t top = draw(-1, window.height), left = draw(-1, window.width);
        return {top, left, draw(top, window.height + 2), draw(left, window.width + 2)};
    };
    const bool positions_only = input.shape[1] == kPositionNumbers;
    const int64_t numbers = positions_only ? kPositionNumbers : kViewNumbers;
    for (int64_t i = 0; i < input.shape.numel() / numbers; ++i) {
        const int64_t h = c.in[0].shape[1], w = c.in[0].shape[2];
        View view;
        draw_axis(h, window.height, view.y0, view.y_per_row);
        draw_axis(w, window.width, view.x0, view.x_per_column);
        const int kind = draw(0, 6); // 3 to 5: whole pixels
        if (kind == 0)               // a rotation with a factor of up to 2, and shifts by parts of a pixel
            view = {draw(-2 * kPixel, h * kPixel), draw(-2 * kPixel, 2 * kPixel), draw(-2 * kPixel, 2 * kPixel),
                    draw(-2 * kPixel, w * kPixel), draw(-2 * kPixel, 2 * kPixel), draw(-2 * kPixel, 2 * kPixel)};
        if (kind == 1) // any view, far outside of the image
            view = {int32_t(random.next()), int32_t(random.next()), int32_t(random.next()),
                    int32_t(random.next()), int32_t(random.next()), int32_t(random.next())};
        if (kind == 2) view.x0 += int32_t(kPixel / 2); // between two pixels
        if (!positions_only) {
            for (int32_t* factor : {&view.brightness, &view.contrast, &view.saturation})
                if (draw(0, 3) > 0) *factor = draw(0, 5 * kFactor / 2);
            view.mixed_share = draw(0, kFactor + 1), view.mixed = draw_box(), view.erased = draw_box();
        }
        std::memcpy(t.data<int32_t>() + numbers * i, &view, size_t(numbers) * sizeof(int32_t));
    }
    return t;
}

Tensor draw_seed(Rng random) {
    const int32_t halves[] = {int32_t(random.next()), int32_t(random.next() | 0x80000000)};
    return Tensor::of<int32_t>({2}, halves);
}

Tensor margin_around(const Shape& shape, DType type, int64_t margin) {
    const Tensor whole = Tensor::empty({shape.numel() + 2 * margin}, type);
    std::memset(whole.bytes_data(), 0xEE, size_t(whole.bytes()));
    return whole;
}

} // namespace

std::string describe(const OpCase& c) {
    std::string text = c.op->name;
    for (size_t i = 0; i < c.in.size(); ++i)
        if (c.in[i].draw != Draw::absent)
            text += cat(" ", c.op->inputs[i].name, c.in[i].shape.str(), "#", int(c.in[i].draw));
    return text + (c.narrow ? " bf16" : "") + cat(" (case ", &c - op_cases().data(), ")");
}

std::vector<Tensor> draw_inputs(const OpCase& c, DType type, uint64_t seed) {
    std::vector<Tensor> in(c.in.size());
    for (size_t i = 0; i < in.size(); ++i) {
        const Input& input = c.in[i];
        const Rng random(seed, Purpose::test, number_of(c.op), i);
        if (input.draw == Draw::absent || input.draw == Draw::own_statistics) continue;
        if (input.draw == Draw::labels)
            in[i] = draw_whole(input, DType::i32, uint32_t(c.in[0].shape[1]), random);
        else if (input.draw == Draw::bytes)
            in[i] = draw_whole(input, DType::u8, 256, random);
        else if (input.draw == Draw::indices)
            in[i] = draw_whole(input, DType::i32, uint32_t(c.in[0].shape[0]), random);
        else if (input.draw == Draw::views)
            in[i] = draw_views(c, input, random);
        else if (input.draw == Draw::seed)
            in[i] = draw_seed(random);
        else if (input.draw == Draw::lr || input.draw == Draw::lr_and_step)
            in[i] = draw_floats(input, random).to(DType::f32);
        else if (input.draw == Draw::none_found || input.draw == Draw::found)
            in[i] = draw_floats(input, random).to(DType::i32);
        else if (input.draw == Draw::positions) {
            const PerAxis window = c.attrs.as<Pool2dGradOp>().pool.window;
            in[i] = draw_whole(input, DType::u8, uint32_t(window.h * window.w), random);
        } else
            in[i] = draw_floats(input, random).to(c.narrow >> i & 1 ? DType::bf16 : type);
        if (input.draw == Draw::probabilities) in[i] = reference(op::softmax, in[i]);
    }
    derive(c, in);
    return in;
}

// ---- guarded buffers -----------------------------------------------------------------------------------------------

Guarded::Guarded(const Shape& shape, DType type, int64_t margin) : whole_(margin_around(shape, type, margin)) {
    value = whole_.slice(margin, shape);
    if (type == DType::f32 || type == DType::bf16 || type == DType::f64)
        value.fill(std::numeric_limits<double>::quiet_NaN());
}

Guarded::Guarded(const Tensor& source, int64_t margin, bool constant)
    : whole_(margin_around(source.shape(), source.dtype(), margin)) {
    value = whole_.slice(margin, source.shape());
    if (source.bytes()) std::memcpy(value.bytes_data(), source.bytes_data(), size_t(source.bytes()));
    if (constant) copy_ = source.clone();
}

bool Guarded::intact() const {
    if (!whole_.defined()) return true;
    if (copy_.defined() && !same_bits(copy_, value)) return false;
    const int64_t margin = (whole_.bytes() - value.bytes()) / 2;
    const std::byte* bytes = whole_.bytes_data();
    for (int64_t i = 0; i < margin; ++i)
        if (bytes[i] != std::byte{0xEE} || bytes[whole_.bytes() - 1 - i] != std::byte{0xEE}) return false;
    return true;
}

std::vector<Alias> allowed_aliases(const OpCase& c, std::span<const Tensor> inputs) {
    std::vector<Alias> aliases;
    const OutputSpecs out = infer(*c.op, inputs, c.attrs);
    for (size_t o = 0; o < size_t(c.op->outputs); ++o)
        for (size_t i = 0; i < inputs.size(); ++i)
            if (c.op->may_be[o] >> i & 1 && inputs[i].defined() && inputs[i].shape() == out[o].shape &&
                inputs[i].dtype() == out[o].dtype)
                aliases.push_back({int(o), int(i)});
    return aliases;
}

KernelRun run_kernel(const OpCase& c, std::span<const Tensor> inputs, Backend backend, int64_t margin, Alias alias) {
    return run_kernel(c, inputs, backend == Backend::cpu ? c.op->cpu : c.op->reference, margin, alias);
}

KernelRun run_kernel(const OpCase& c, std::span<const Tensor> inputs, Kernel kernel, int64_t margin, Alias alias) {
    const OpRow& r = *c.op;
    std::vector<Tensor> all(inputs.begin(), inputs.end());
    all.resize(r.inputs.size());
    const OutputSpecs specs = infer(r, all, c.attrs);
    std::vector<Guarded> guards;
    std::vector<Tensor> in(all.size()), out(static_cast<size_t>(r.outputs));
    for (size_t i = 0; i < in.size(); ++i) {
        if (!all[i].defined()) continue;
        guards.emplace_back(all[i], margin, int(i) >= r.in_place && int(i) != alias.in);
        in[i] = guards.back().value;
    }
    for (size_t i = 0; i < out.size(); ++i) {
        if (int(i) < r.in_place || int(i) == alias.out) {
            out[i] = in[int(i) == alias.out ? size_t(alias.in) : i];
            continue;
        }
        guards.emplace_back(specs[i].shape, specs[i].dtype, margin);
        out[i] = guards.back().value;
    }
    const Call call{c.attrs, in, out};
    kernel(call);
    if (kernel != r.reference) perturb(c.op, call);
    KernelRun run{out, {}};
    for (size_t i = 0; i < guards.size(); ++i)
        if (!guards[i].intact()) run.error += cat("the guards of buffer ", i, " (inputs first) are damaged. ");
    return run;
}

// ---- comparison ----------------------------------------------------------------------------------------------------

std::string differs(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
    if (got.shape() != want.shape()) return cat("shape ", got.shape().str(), ", expected ", want.shape().str());
    const Tensor wide_got = got.to(DType::f64), wide_want = want.to(DType::f64);
    const std::span<const double> a = wide_got.span<double>(), b = wide_want.span<double>();
    double squares = 0, error = 0, worst_square = 0;
    size_t finite = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double x = a[i], y = b[i];
        if (std::isnan(x) != std::isnan(y) || ((std::isinf(x) || std::isinf(y)) && x != y && !std::isnan(x)))
            return cat("element ", i, " of ", a.size(), " is ", x, ", expected ", y);
        if (!std::isfinite(y)) continue;
        ++finite;
        squares += y * y;
        error += (x - y) * (x - y);
        worst_square = std::max(worst_square, (x - y) * (x - y));
    }
    if (error == 0) return {};
    const double scale = std::sqrt(squares / double(finite)),
                 rms = std::sqrt(std::max(0.0, error - worst_square) / double(finite));
    double largest = 0;
    size_t worst = 0;
    for (size_t i = 0; i < a.size(); ++i)
        if (const double e = std::abs(a[i] - b[i]) / std::max(scale, std::abs(b[i])); e > largest) largest = e, worst = i;
    if (rms <= tolerance.rms * scale && largest <= tolerance.max) return {};
    return cat("error rms ", rms / scale, " (at most ", tolerance.rms, "), largest ", largest, " (at most ",
               tolerance.max, ") at element ", worst, " of ", a.size(), ": ", a[worst], ", expected ", b[worst]);
}

bool Floats::operator==(const Floats& other) const {
    if (size() != other.size()) return false;
    float peak = 0;
    for (const float v : other) peak = std::max(peak, std::abs(v));
    for (size_t i = 0; i < size(); ++i)
        if (!(std::abs((*this)[i] - other[i]) <= 1e-5f * peak)) return false;
    return true;
}

Floats list(const Tensor& t) {
    const auto values = t.span<float>();
    return Floats(values.begin(), values.end());
}

bool same_bits(const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() && a.dtype() == b.dtype() &&
           (a.bytes() == 0 || std::memcmp(a.bytes_data(), b.bytes_data(), size_t(a.bytes())) == 0);
}

// ---- gradients -----------------------------------------------------------------------------------------------------

bool GradientCase::possible(const OpCase& c) {
    if (!c.op->backward || c.in[0].shape.numel() == 0 || c.narrow || c.op == op::cast) return false;
    if (c.op == op::add && c.attrs.as<AddOp>().activation.kind) return false; // only a plan uses it
    for (size_t i = 0; i < c.in.size(); ++i) {
        const bool fused = c.op->inputs[i].presence == Presence::fused;
        if (!smooth(c.in[i].draw) || (fused && c.in[i].draw != Draw::absent)) return false;
    }
    return true;
}

double GradientCase::work(const OpCase& c) {
    const bool filters = c.in.size() > 1 && c.in[1].shape.rank() == 4;
    const double per_value = filters ? double(c.in[1].shape.numel()) / double(c.in[1].shape[3]) : 1;
    return double(c.in[0].shape.numel()) * per_value;
}

GradientCase::GradientCase(const OpCase& c, DType type) : case_(c), inputs_(draw_inputs(c, type)) {
    const Shape y = infer(*c.op, inputs_, c.attrs)[0].shape;
    weights_ = draw_floats({y, Draw::away}, Rng(2, Purpose::test));
}

Tensor GradientCase::forward(std::span<const Tensor> inputs) const {
    const NoTape pause;
    const ContextScope scope(kReference);
    return run(case_.op, inputs, case_.attrs)[0];
}

std::vector<Tensor> GradientCase::backward() const {
    std::vector<Tensor> gradients(inputs_.size()), of, into;
    for (size_t i = 0; i < inputs_.size(); ++i) {
        if (!differentiable(case_.in[i].draw)) continue;
        gradients[i] = Tensor::empty(inputs_[i].shape(), inputs_[i].dtype());
        of.push_back(inputs_[i]);
        into.push_back(gradients[i]);
    }
    Tape tape;
    const Tensor y = run(case_.op, inputs_, case_.attrs)[0];
    // The mean squared distance to y - r n / 2 has the gradient r in y.
    Tensor target;
    {
        const NoTape constant;
        target = y.to(DType::f64);
        for (int64_t i = 0; i < y.numel(); ++i)
            target.data<double>()[i] -= 0.5 * double(y.numel()) * weights_.data<double>()[i];
        target = target.to(y.dtype());
    }
    tape.gradients(mse_loss(y, target), of, into);
    return gradients;
}

/// (<r, f(x + step v)> - <r, f(x - step v)>) / (2 step)
double GradientCase::slope(size_t i, std::span<const double> direction, double step) const {
    double change = 0;
    for (double sign : {1.0, -1.0}) {
        std::vector<Tensor> in = inputs_;
        in[i] = inputs_[i].clone();
        for (size_t j = 0; j < direction.size(); ++j) in[i].data<double>()[j] += sign * step * direction[j];
        derive(case_, in);
        const Tensor y = forward(in);
        double dot = 0;
        for (int64_t j = 0; j < y.numel(); ++j) dot += weights_.data<double>()[j] * y.data<double>()[j];
        change += sign * dot;
    }
    return change / (2 * step);
}

std::string GradientCase::judge(size_t i, const Tensor& gradient, bool entries) const {
    constexpr double kTolerance = 1e-6; // differences at these steps are good to 1e-8
    const auto g = gradient.span<double>();
    double norm = 1e-30, largest = 1e-3; // a gradient below the second is measured against it
    for (double v : g) norm += v * v, largest = std::max(largest, std::abs(v));
    norm = std::sqrt(norm);
    Rng random(3, Purpose::test, 0, i);
    std::vector<double> direction(g.size());
    const auto compare = [&](double expected, double scale, const std::string& what) -> std::string {
        for (double step : {1e-4, 1e-5})
            if (const double found = slope(i, direction, step); !(std::abs(found - expected) <= kTolerance * scale))
                return cat("input ", i, ", ", what, ", step ", step, ": gradient ", expected, ", differences ", found);
        return {};
    };
    for (int trial = 0; trial < 2; ++trial) {
        // Half of the direction along the gradient, so that the inner product does not vanish by chance.
        double dot = 0;
        for (size_t j = 0; j < g.size(); ++j) {
            direction[j] = random.normal() / std::sqrt(double(g.size())) + g[j] / norm;
            dot += direction[j] * g[j];
        }
        if (const std::string error = compare(dot, std::max(norm, 1e-3), "along a direction"); !error.empty())
            return error;
    }
    std::fill(direction.begin(), direction.end(), 0.0);
    for (int trial = 0; entries && trial < 12; ++trial) {
        const size_t j = g.size() <= 12 ? size_t(trial) % g.size() : random.uniform_below(uint32_t(g.size()));
        direction[j] = 1;
        if (const std::string error = compare(g[j], largest, cat("entry ", j)); !error.empty()) return error;
        direction[j] = 0;
    }
    return {};
}

} // namespace rg
