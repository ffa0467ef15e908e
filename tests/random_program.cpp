#include "tests/random_program.h"

#include "core/accelerate.h"
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

namespace rg {

namespace {

using Start = Parameters::Entry::Start;

constexpr float kEpsilon = 0.05f; // a batch norm multiplies values, and their rounding, by at most 4.5

/// Writes to t, which is a parameter or a running statistic, between the ops that read it.
void rescale(const Tensor& t) {
    const NoTape update;
    run(op::scale, {t}, ScaleOp{0.8f}, {t});
}

} // namespace

RandomProgram::RandomProgram(uint64_t seed, DType type) : seed_(seed), type_(type) {
    Rng random_numbers(seed, Purpose::test);
    const int64_t c = channels_ = int64_t{4} << random_numbers.uniform_below(3);
    parameters_.add("filters", {c, 3, 3, c}, Start::random);
    parameters_.add("gamma", {c}, Start::ones);
    parameters_.add("shared beta", {c}, Start::zeros);
    parameters_.add("other filters", {c, 3, 3, c}, Start::random);
    parameters_.add("other gamma", {c}, Start::ones);
    parameters_.add("depthwise filters", {c, 3, 3, 1}, Start::random);
    parameters_.add("filters of two groups", {c, 3, 3, c / 2}, Start::random);
    parameters_.add("narrow", {c, 1, 1, c}, Start::random);
    parameters_.add("wide", {c, 1, 1, 2 * c}, Start::random);
    parameters_.add("bias", {c}, Start::zeros);
    for (const char* name : {"first", "second"}) parameters_.add_state(name, c);
    parameters_.allocate(seed, Init::he, precise());
    uint64_t number = 1;
    for (const Parameters::Entry& e : parameters_.entries())
        if (e.start != Start::random) // near 1, or of the order of 1
            run(op::add, {e.value, scale(random(e.shape, ++number), 0.3f)}, {}, {e.value});
    for (const Parameters::State& s : parameters_.states()) {
        running_.push_back(s.running);
        run(op::add, {s.running.slice(0, {c}), random({c}, ++number)}, {}, {s.running.slice(0, {c})});
    }
    const auto value = [&](const char* name) { return parameters_.entry(name).value; };
    filters_ = {value("filters"), value("other filters"), value("depthwise filters"), value("filters of two groups")};
    gammas_ = {value("gamma"), value("other gamma")};
    betas_ = {value("shared beta"), value("bias")};
    narrow_ = value("narrow"), wide_ = value("wide"), bias_ = value("bias");
    for (const char* name : {"filters", "gamma", "shared beta", "other filters", "wide", "bias"})
        if (random_numbers.uniform_below(4) == 0) parameters_.entry(name).rate = 0; // frozen
    parameters_.gradients().fill(0);
    given_ = Tensor::zeros({2, 3 * 8 * 8 * c}, type);
    velocity_ = Tensor::zeros(parameters_.values().shape(), precise());
    rate_ = Tensor::constant({1}, 0.01);
    noise_ = random({3 * 8 * 8 * 2 * c}, 0);
}

Tensor RandomProgram::random(const Shape& shape, uint64_t number) const {
    return random_tensor(shape, precise(), seed_ * 100 + number).to_device();
}

std::vector<Tensor> RandomProgram::inputs(int number) const {
    const int64_t n = number % 2 ? 2 : 3, side = number % 2 ? 6 : 8;
    return {random({n, side, side, channels_}, 20 + uint64_t(number))};
}

std::vector<Tensor> RandomProgram::operator()(std::span<const Tensor> in, bool training) const {
    Rng random(seed_, Purpose::test, 1); // each call draws the same program
    const auto draw = [&](size_t n) { return size_t(random.uniform_below(uint32_t(n))); };
    const auto pick = [&](const std::vector<Tensor>& from) { return from[draw(from.size())]; };
    std::optional<Tape> tape;
    if (training) tape.emplace();
    std::vector<Tensor> values{cast(in[0], type_)};
    const auto value = [&] { return draw(2) ? values.back() : pick(values); };
    const auto conv_of = [&](const Tensor& w) { return Conv{.pad = 1, .groups = channels_ / w.extent(3)}; };
    const auto convolve = [&](const Tensor& x) {
        const Tensor w = pick(filters_);
        Conv conv = conv_of(w);
        if (draw(5) == 0 && x.extent(1) >= 4) conv.stride = 2;
        return conv2d(x, w, draw(2) ? bias_ : Tensor(), conv);
    };
    // The kinds after softplus grow fast, or take only positive values.
    const auto draw_activation = [&](bool fusible = false) -> Activation {
        if (draw(3)) return draw(2) ? Activation::relu : Activation::none;
        return kActivations[draw(fusible ? size_t(Activation::gelu) : size_t(Activation::softplus) + 1)];
    };
    const auto norm = [&](const Tensor& x, const Tensor& stats, bool frozen) {
        return batch_norm(x, stats, pick(gammas_), pick(betas_),
                          {.epsilon = kEpsilon, .activation = draw_activation(true), .frozen = frozen});
    };
    const auto update = [&](const Tensor& stats, const Tensor& of) {
        if (draw(2)) update_running(pick(running_), stats, of.extent(0), of.extent(1) * of.extent(2), 0.3f);
    };
    for (size_t steps = 4 + draw(10); steps > 0; --steps) {
        const Tensor x = value();
        switch (draw(16)) {
        case 0:
        case 1: values.push_back(convolve(x)); break;
        case 2: values.push_back(conv2d(x, narrow_)); break;
        case 3:
        case 4: { // a layer in training
            const Tensor w = pick(filters_);
            const auto [y, stats] = conv2d_stats(x, w, {}, conv_of(w));
            update(stats, y);
            const Tensor normalised = norm(y, stats, false);
            update(stats, y);
            values.push_back(normalised);
            break;
        }
        case 5: { // a norm of its own, as before an activation of a residual network
            const Tensor stats = channel_stats(x);
            values.push_back(norm(x, stats, false));
            update(stats, x);
            break;
        }
        case 6: values.push_back(norm(x, pick(running_), true)); break;
        case 7: { // a layer in prediction
            const Tensor y = convolve(x);
            if (draw(4) == 0) rescale(pick(running_));
            values.push_back(norm(y, pick(running_), true));
            break;
        }
        case 8:
            if (const Activation drawn = draw_activation(); drawn.kind) values.push_back(activation(x, drawn));
            break;
        case 9: {
            const Tensor other = value();
            values.push_back(other.shape() == x.shape() ? add(x, other) : leaky_relu(x));
            break;
        }
        case 10: {
            if (x.extent(1) % 2) break;
            const bool largest = draw(2) == 0;
            values.push_back(largest ? max_pool2d(x, {.window = 2, .stride = 2}) : avg_pool2d(x, {2, 2}));
            break;
        }
        case 11: values.push_back(conv2d(concat({x, relu(x)}), wide_)); break;
        case 12: rescale(draw(2) ? pick(gammas_) : pick(running_)); break;
        case 13: { // in place, which a tape does not see
            const Tensor other = value();
            if (training || x.key() == in[0].key()) break;
            if (other.shape() == x.shape() && other.key() != x.key())
                run(op::add, {other, x}, {}, {x});
            else
                run(op::activation, {x}, ActivationOp{Activation::silu}, {x});
            break;
        }
        case 14: { // arithmetic, also with a gate for each channel or pixel of an image
            const Tensor other = value(), gate = sigmoid(draw(2) ? global_avg_pool(x) : mean(x, {-1}));
            const Tensor operand = other.shape() == x.shape() ? other : gate;
            const Activation::Kind kind = kActivations[draw(std::size(kActivations))];
            switch (draw(7)) {
            case 0: values.push_back(x * gate); break;
            case 1: values.push_back(x - operand); break;
            case 2: values.push_back(maximum(x, operand)); break;
            case 3: values.push_back(minimum(operand, x)); break;
            case 4: values.push_back(x / (gate + 1)); break;
            case 5: values.push_back(clamp(x, -1, 2)); break;
            default: values.push_back(activation(sigmoid(x) + 0.1f, kind));
            }
            break;
        }
        default: { // a residual block
            const Tensor w = pick(filters_), y = conv2d(x, w, {}, conv_of(w)), stats = channel_stats(y);
            const bool frozen = draw(2) == 0;
            const Tensor branch = batch_norm(y, frozen ? pick(running_) : stats, pick(gammas_), pick(betas_),
                                             {.epsilon = kEpsilon, .frozen = frozen});
            if (draw(4) == 0) rescale(pick(gammas_));
            values.push_back(activation(add(branch, x), draw_activation()));
        }
        }
    }
    const Tensor last = cast(conv2d(values.back(), narrow_), precise());
    const Tensor intermediate = values.size() > 1 ? values[1 + draw(values.size() - 1)] : last; // no input of the plan
    if (!training) return {last, cast(intermediate, precise())};
    const Tensor loss = mse_loss(last, noise_.slice(0, last.shape()));
    std::vector<Tensor> results{loss};
    if (draw(3) == 0)
        tape->gradients(loss, parameters_);
    else
        for (const Tensor& t : gradients(*tape, loss, values, draw)) results.push_back(t);
    if (draw(2)) sgdm_update(parameters_.values(), velocity_, parameters_.gradients(), {}, rate_);
    if (draw(2)) results.insert(results.end(), {last, cast(intermediate, precise())});
    return results;
}

std::vector<Tensor> RandomProgram::gradients(Tape& tape, const Tensor& loss, const std::vector<Tensor>& values,
                                             const std::function<size_t(size_t)>& draw) const {
    std::vector<Tensor> of, into, made;
    const auto ask = [&](const Tensor& t, const Tensor& given) {
        if (std::any_of(of.begin(), of.end(), [&](const Tensor& other) { return other.key() == t.key(); })) return;
        of.push_back(t);
        into.push_back(draw(2) ? given : Tensor::empty(t.shape(), t.dtype()));
        if (into.back().key() != given.key()) made.push_back(into.back());
    };
    for (const Parameters::Entry& e : parameters_.entries())
        if (e.rate != 0) ask(e.value, e.gradient);
    for (const int64_t i : {0, 1}) {
        const Tensor t = draw(3) ? values[draw(values.size())] : values[0];
        if (draw(4)) ask(t, given_.slice(i * given_.extent(1), t.shape()));
    }
    tape.gradients(loss, of, into);
    std::vector<Tensor> results;
    for (const Tensor& t : made) {
        if (draw(4) == 0) rescale(t);
        if (draw(2)) results.push_back(draw(2) ? t : add(t, t));
    }
    return results;
}

std::vector<Tensor> RandomProgram::state() const {
    std::vector<Tensor> all;
    for (const Tensor& t : {parameters_.values(), parameters_.gradients(), velocity_, parameters_.state(), given_})
        all.push_back(t.to_host().clone());
    return all;
}

std::vector<Tensor> results_of_program(uint64_t seed, DType type, bool traced) {
    const RandomProgram program(seed, type);
    Accelerated step([&](std::span<const Tensor> in, bool training) { return program(in, training); }, traced);
    std::vector<Tensor> all;
    const std::vector<Tensor> inputs[] = {program.inputs(0), program.inputs(1)};
    for (const int call : {0, 1, 2, 3})
        for (const Tensor& t : step(inputs[call % 2], (seed + uint64_t(call) / 2) % 2 == 0))
            all.push_back(t.to_host().clone());
    for (const Tensor& t : program.state()) all.push_back(t);
    return all;
}

std::string plan_differs(uint64_t seed, DType type, double tolerance) {
    const std::vector<Tensor> plain = results_of_program(seed, type, false),
                              traced = results_of_program(seed, type, true);
    if (plain.size() != traced.size()) return cat(plain.size(), " results, and ", traced.size(), " of plans");
    for (size_t i = 0; i < plain.size(); ++i) {
        if (same_bits(plain[i], traced[i])) continue;
        double error = 0, size = 0;
        const Tensor x = traced[i].to(DType::f64), y = plain[i].to(DType::f64);
        for (int64_t j = 0; j < x.numel(); ++j) {
            // A training may diverge, and then one rounding decides whether a value is still finite.
            const auto diverged = [](double value) { return !(std::abs(value) < 1e30); };
            if (diverged(x.data<double>()[j]) && diverged(y.data<double>()[j])) continue;
            error += std::pow(x.data<double>()[j] - y.data<double>()[j], 2);
            size += std::pow(y.data<double>()[j], 2);
        }
        // Where terms cancel, as in the gradient of a bias before a batch norm, all of a small result may be rounding.
        const double least = 1e-5 * double(x.numel());
        if (!(std::sqrt(error) <= tolerance * std::sqrt(std::max(size, least))) || tolerance == 0)
            return cat("result ", i, " of ", plain.size(), ", ", plain[i].shape().str(), ": the error is ",
                       std::sqrt(error / size), " of the norm");
    }
    return {};
}

uint64_t programs_to_test(uint64_t usual) {
    const char* const asked = std::getenv("RG_PROGRAMS");
    return asked ? std::strtoull(asked, nullptr, 10) : usual;
}

} // namespace rg
