// Tests the optimizer of a training against its formulas in double, over several steps.
#include "core/accelerate.h"
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "models/run/optimizer.h"
#include "tests/parameter_lists.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg {
namespace {

using Kind = OptimizerKind;
using Values = std::vector<double>;

/// Parameters of 6 x 4 weights, 6 biases and 4 filters, with gradients that are drawn for each step.
struct Toys {
    Parameters parameters;
    Toys() {
        parameters.add("weight", {6, 4}, Parameters::Entry::Start::random);
        parameters.add("bias", {6}, Parameters::Entry::Start::ones);
        parameters.add("filter", {4, 2, 3, 5}, Parameters::Entry::Start::random);
        parameters.entry("filter").scale_free = true;
        parameters.allocate(3, Init::he);
    }
    void draw_gradients(uint64_t step) {
        Rng random(step, Purpose::test);
        for (const Tensor& gradient : gradient_list(parameters))
            for (float& v : gradient.span<float>()) v = random.normal();
    }
};

/// Holds the values, state and factors that the reference keeps for one parameter tensor.
struct Reference {
    Values p, m, v, average;
    double rate = 1, decay = 0;
};

/// The update of one step in double.
void update(std::vector<Reference>& slots, const Parameters& parameters, const OptimizerOptions& o, double lr, int step) {
    double squares = 0;
    const std::vector<Tensor> gradients = gradient_list(parameters);
    for (const Tensor& g : gradients)
        for (const float v : g.span<float>()) squares += double(v) * double(v);
    const double clip = o.max_norm > 0 ? std::min(1.0, o.max_norm / (std::sqrt(squares) + 1e-6)) : 1;
    for (size_t s = 0; s < slots.size(); ++s) {
        Reference& slot = slots[s];
        const double rate = lr * slot.rate;
        for (size_t i = 0; i < slot.p.size(); ++i) {
            double g = clip * double(gradients[s].span<float>()[i]);
            if (o.kind == Kind::adamw)
                slot.p[i] *= 1 - rate * slot.decay;
            else
                g += slot.decay * slot.p[i];
            if (o.kind == Kind::sgd) {
                slot.v[i] = o.momentum * slot.v[i] + g;
                slot.p[i] -= rate * (o.nesterov ? g + o.momentum * slot.v[i] : slot.v[i]);
            } else {
                slot.m[i] = 0.9 * slot.m[i] + 0.1 * g;
                slot.v[i] = 0.999 * slot.v[i] + 0.001 * g * g;
                const double m = slot.m[i] / (1 - std::pow(0.9, step)), v = slot.v[i] / (1 - std::pow(0.999, step));
                slot.p[i] -= rate * m / (std::sqrt(v) + 1e-8);
            }
            const double keep = std::min(o.average, (1.0 + step) / (10.0 + step));
            slot.average[i] = keep * slot.average[i] + (1 - keep) * slot.p[i];
        }
    }
}

std::vector<double> values_in(const Tensor& t) { return {t.span<float>().begin(), t.span<float>().end()}; }

/// Returns true if a value differs by more than roundings of values of about 1, also of perturbed ones.
bool differ(const std::vector<double>& a, const std::vector<double>& b) {
    for (size_t i = 0; i < a.size(); ++i)
        if (std::abs(a[i] - b[i]) > 1e-4) return true;
    return false;
}

double largest_difference(const Parameters& parameters, const std::vector<Reference>& slots, Values Reference::*values) {
    double largest = 0;
    const std::vector<Tensor> tensors = value_list(parameters);
    for (size_t s = 0; s < slots.size(); ++s)
        for (size_t i = 0; i < (slots[s].*values).size(); ++i)
            largest = std::max(largest, std::abs(values_in(tensors[s])[i] - (slots[s].*values)[i]));
    return largest;
}

TEST_SUITE("models") {
    TEST_CASE("optimizer: follows the formulas, with groups, clipping and an average") {
        for (const Kind kind : {Kind::sgd, Kind::adam, Kind::adamw})
            for (const bool groups : {false, true})
                for (const double max_norm : {0.0, 2.0, 100.0}) {
                    INFO("kind ", int(kind), ", groups ", groups, ", max_norm ", max_norm);
                    OptimizerOptions options{
                        .kind = kind, .nesterov = true, .weight_decay = 0.05, .max_norm = max_norm};
                    options.average = 0.9;
                    options.decay_biases = !groups;
                    Toys toy;
                    if (groups) toy.parameters.entry("weight").rate = 0.5f;
                    std::vector<Reference> slots;
                    for (const Tensor& t : value_list(toy.parameters)) {
                        const Values zeros(size_t(t.numel()));
                        slots.push_back({values_in(t), zeros, zeros, values_in(t), 1, 0.05});
                    }
                    if (groups) slots[0].rate = 0.5, slots[1].decay = 0;
                    Optimizer optimizer(toy.parameters, options);
                    CHECK(std::ssize(optimizer.state()) == options.buffers());
                    for (int step = 1; step <= 20; ++step) {
                        toy.draw_gradients(uint64_t(step));
                        optimizer.set(0.01 * step, step);
                        optimizer.update(Tensor::zeros({}));
                        optimizer.end_step(step, 20);
                        update(slots, toy.parameters, options, double(float(0.01 * step)), step);
                    }
                    // The values are about 1. Each of the 20 steps adds a few roundings of 6e-8, or 1e-6 if perturbed.
                    CHECK(largest_difference(toy.parameters, slots, &Reference::p) < 5e-5);
                    optimizer.with_average(
                        [&] { CHECK(largest_difference(toy.parameters, slots, &Reference::average) < 5e-5); });
                    CHECK(largest_difference(toy.parameters, slots, &Reference::p) < 5e-5);
                }
    }

    TEST_CASE("optimizer: averages and lookahead hold batch norm's running statistics too") {
        Parameters parameters;
        parameters.add("gamma", {1}, Parameters::Entry::Start::ones);
        parameters.add_state("norm", 1);
        parameters.allocate(1, Init::he);
        const auto statistics = [&] { return values_in(parameters.states()[0].running); };
        Optimizer optimizer(parameters, {.average = 0.75, .lookahead = 0.5});
        parameters.states()[0].running.span<float>()[0] = 8; // the mean, 0 before
        parameters.states()[0].running.span<float>()[1] = 5; // the variance, 1 before
        // 1e-5 is above a few roundings and the perturbation of results.
        const auto about = [](double value) { return doctest::Approx(value).epsilon(1e-5); };
        optimizer.end_step(50, 50); // the average keeps 0.75, and lookahead 0.5
        CHECK(statistics()[0] == about(4));
        CHECK(statistics()[1] == about(3));
        optimizer.with_average([&] {
            CHECK(statistics()[0] == about(2));
            CHECK(statistics()[1] == about(2));
        });
        CHECK(statistics()[0] == about(4));
    }

    TEST_CASE("optimizer: leaves everything as it is if a value is not finite") {
        for (const Kind kind : {Kind::sgd, Kind::adamw, Kind::muon}) {
            Toys toy;
            Optimizer optimizer(toy.parameters, {.kind = kind, .max_norm = kind == Kind::muon ? 0.0 : 1, .average = 0.5});
            toy.draw_gradients(1);
            optimizer.set(0.1, 1);
            optimizer.update(Tensor::zeros({}));
            const std::vector<double> before = values_in(toy.parameters.values()), state = values_in(optimizer.state()[0].value);
            gradient_list(toy.parameters)[0].span<float>()[5] = INFINITY;
            optimizer.update(Tensor::zeros({}));
            CHECK(optimizer.non_finite_at().data<int32_t>()[0] >= 0);
            CHECK(values_in(toy.parameters.values()) == before);
            CHECK(values_in(optimizer.state()[0].value) == state);
        }
    }

    TEST_CASE("optimizer: a tape that records other steps has no part in an update") {
        Toys toys;
        Parameters& p = toys.parameters;
        Optimizer optimizer(p, {.max_norm = 1, .average = 0.5});
        const auto loss = [&] {
            const Tensor& weight = p.entry("weight").value;
            return mse_loss(weight, Tensor::zeros(weight.shape()));
        };
        Tape outer;
        for (int step = 1; step <= 2; ++step) {
            Tape inner;
            const Tensor l = loss();
            inner.gradients(l, p);
            optimizer.set(0.1, step);
            optimizer.update(l);
        }
        const Tensor l = loss();
        optimizer.with_average([] {});
        outer.gradients(l, p);
        CHECK(p.entry("weight").gradient.span<float>()[5] ==
              doctest::Approx(2 * p.entry("weight").value.span<float>()[5] / 24));
    }

    TEST_CASE("optimizer: no longer changes values whose epochs have passed, nor any with rate 0") {
        Toys toy;
        toy.parameters.entry("weight").rate = 0;
        toy.parameters.entry("bias").epochs = 2;
        const std::vector<double> weights = values_in(toy.parameters.entry("weight").value);
        Optimizer optimizer(toy.parameters, {.weight_decay = 0.1});
        for (int epoch = 1; epoch <= 4; ++epoch) {
            CAPTURE(epoch);
            const std::vector<double> before = values_in(toy.parameters.entry("bias").value);
            toy.draw_gradients(uint64_t(epoch));
            optimizer.begin_epoch(epoch);
            optimizer.set(0.1, epoch);
            optimizer.update(Tensor::zeros({}));
            CHECK(differ(values_in(toy.parameters.entry("bias").value), before) == (epoch <= 2));
            CHECK_FALSE(differ(values_in(toy.parameters.entry("weight").value), weights));
        }
    }

    TEST_CASE("optimizer: muon scales filters, and moves them by orthogonalised steps") {
        for (const bool nesterov : {false, true}) {
            Toys toy;
            toy.parameters.entry("filter").rate = 0.5f, toy.parameters.entry("bias").rate = 0;
            const std::vector<Tensor> values = value_list(toy.parameters), gradients = gradient_list(toy.parameters);
            Optimizer optimizer(toy.parameters,
                                      {.kind = Kind::muon, .momentum = 0.6, .nesterov = nesterov, .weight_decay = 0.1});
            const Shape matrix{4, 30};
            const Tensor g = gradients[2].reshape(matrix), v = Tensor::zeros(matrix);
            std::vector<Reference> weight{{values_in(values[0]), Values(24), Values(24), Values(24), 1, 0.1}};
            for (int step = 1; step <= 5; ++step) {
                toy.draw_gradients(uint64_t(step));
                v.copy_from(add(scale(v, 0.6f), g));
                const Values moved = values_in(orthogonalised(nesterov ? add(g, scale(v, 0.6f)) : v));
                Values expected = values_in(values[2]);
                double squares = 0;
                for (const double value : expected) squares += value * value;
                for (size_t i = 0; i < expected.size(); ++i) // 2 is the root of the number of filters
                    expected[i] = expected[i] * 2 / std::sqrt(squares) - 0.5 * 0.2 * moved[i];
                optimizer.set(0.2, step);
                optimizer.update(Tensor::zeros({}));
                CHECK_FALSE(differ(values_in(values[2]), expected));
                update(weight, toy.parameters, {.momentum = 0.6, .nesterov = nesterov}, double(0.2f), step);
            }
            CHECK_FALSE(differ(values_in(values[0]), weight[0].p)); // as SGD
            CHECK_FALSE(differ(values_in(values[1]), Values(6, 1)));
        }
    }

    TEST_CASE("optimizer: muon refuses what its steps do not depend on") {
        Parameters parameters;
        parameters.add("conv", {4, 3, 3, 2}, Parameters::Entry::Start::random);
        parameters.entry("conv").scale_free = true;
        parameters.allocate(3, Init::he);
        CHECK_ERROR("expected no limit for the norm of gradients with muon",
                    Optimizer(parameters, {.kind = Kind::muon, .max_norm = 1}));
        parameters.entry("conv").epochs = 2;
        CHECK_ERROR("expected that muon changes conv in all epochs, got a limit of 2",
                    Optimizer(parameters, {.kind = Kind::muon}));
    }

    TEST_CASE("optimizer: refuses to update without a learning rate and a step") {
        for (const Kind kind : {Kind::sgd, Kind::adam}) {
            Toys toy;
            Optimizer optimizer(toy.parameters, {.kind = kind});
            CHECK_ERROR("expected set() before update()", optimizer.update(Tensor::zeros({})));
            for (const double rate : {-0.1, double(INFINITY), double(NAN)})
                CHECK_ERROR("a learning rate of at least 0", optimizer.set(rate, 1));
            CHECK_ERROR("a step of at least 1", optimizer.set(0.1, 0));
            optimizer.set(0.1, 1);
            optimizer.update(Tensor::zeros({}));
        }
    }

    TEST_CASE("optimizer: scales the weight decay of an entry") {
        Toys toy;
        toy.parameters.entry("bias").decay = 0.25f;
        Optimizer optimizer(toy.parameters, {.weight_decay = 0.1});
        optimizer.set(0.5, 1);
        optimizer.update(Tensor::zeros({})); // the gradients are zero
        // The bias is 1 before. 1e-5 is above a rounding and the perturbation of results.
        CHECK(values_in(toy.parameters.entry("bias").value)[0] == doctest::Approx(1 - 0.5 * 0.1 * 0.25).epsilon(1e-5));
    }

    TEST_CASE("optimizer: lookahead moves the weights back every five steps, and at the end") {
        Toys toy;
        OptimizerOptions options;
        options.lookahead = 0.8;
        Optimizer optimizer(toy.parameters, options);
        CHECK(std::ssize(optimizer.state()) == options.buffers());
        double slow = 1; // the first bias
        const auto bias = [&]() -> float& { return toy.parameters.entry("bias").value.span<float>()[0]; };
        for (int step = 1; step <= 12; ++step) {
            CAPTURE(step);
            bias() += 1;
            double expected = double(bias());
            optimizer.end_step(step, 12);
            if (step % 5 == 0) {
                const double keep = 0.8 * std::pow(step / 12.0, 3);
                slow = keep * slow + (1 - keep) * expected;
            }
            if (step % 5 == 0 || step == 12) expected = slow;
            CHECK(double(bias()) == doctest::Approx(expected).epsilon(1e-5)); // a few roundings, or perturbed ones
        }
        Accelerated ends([&](auto in, bool) {
            optimizer.end_step(5, 12);
            return std::vector{scale(in[0], 1)};
        });
        CHECK_ERROR("expected end_step() after a traced function", ends({Tensor::zeros({1})}));
    }

    TEST_CASE("parameters: name an entry that does not exist") {
        Toys toy;
        CHECK_ERROR("got wieght", toy.parameters.entry("wieght"));
    }
}

} // namespace
} // namespace rg
