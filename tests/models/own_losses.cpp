// Tests the losses of models/examples/own_losses.h: their values, and their gradients against central differences.
#include "models/examples/own_losses.h"

#include "core/tape.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg {
namespace {

using Loss = Tensor (*)(const Tensor&, const Tensor&);

Tensor values(const Shape& shape, std::initializer_list<double> list, DType type = DType::f32) {
    return Tensor::of<double>(shape, std::vector<double>(list)).to(type);
}

double loss_of(Loss loss, const Tensor& x, const Tensor& target) {
    return loss(x, target).to(DType::f64).data<double>()[0];
}

Tensor huber(const Tensor& x, const Tensor& target) { return huber_loss(x, target, 2); }

struct Gradient {
    Gradient(Loss loss, const Tensor& x, const Tensor& target) : dx(Tensor::empty(x.shape(), x.dtype())) {
        Tape tape;
        tape.gradients(loss(x, target), {{x}}, {{dx}});
    }
    Tensor dx;
};

} // namespace

TEST_SUITE("models") {
    TEST_CASE("own losses: their values are those of the formulas") {
        const Tensor logits = values({2, 2}, {0, std::log(3.0), 50, -50}), labels = values({2, 2}, {0.5, 0.5, 0, 1});
        const double first = 0.5 * std::log(0.5 / 0.25) + 0.5 * std::log(0.5 / 0.75);
        CHECK(loss_of(soft_label_loss, logits, labels) == doctest::Approx((first + 100) / 2));
        CHECK(loss_of(huber, values({4}, {1, -1, 5, 0}), values({4}, {0, 0, 0, 2})) ==
              doctest::Approx((0.5 + 0.5 + 2 * (5 - 1) + 2) / 4));
        const double focal = 0.75 * 0.75 * std::log(4.0) + 0.25 * 0.25 * std::log(4.0 / 3) + 200;
        CHECK(loss_of(focal_loss, values({3}, {std::log(3.0), std::log(3.0), 200}), values({3}, {0, 1, 0})) ==
              doctest::Approx(focal / 3));
        // A probability near 1 loses no digits: the loss is exp(-3 * 20), but for a factor of 1 + 1e-8. The relative
        // error is 60 times that of the exponent.
        CHECK(loss_of(focal_loss, values({1}, {-20}), values({1}, {0})) / std::exp(-60.0) ==
              doctest::Approx(1).epsilon(3e-4));
        const Tensor masks = values({2, 1, 2, 1}, {1, 0, 0, 0});
        CHECK(loss_of(dice_loss, values({2, 1, 2, 1}, {0, 0, -99, -99}), masks) ==
              doctest::Approx(1 - ((2 * 0.5 + 1) / (1 + 1 + 1) + 1) / 2));
    }

    TEST_CASE("own losses: gradients agree with central differences, and in f32 with those in f64") {
        const Shape image{2, 1, 2, 3}, rows{4, 3};
        for (const auto& [loss, shape] : {std::pair<Loss, Shape>{soft_label_loss, rows}, {huber, rows},
                                          {focal_loss, image}, {dice_loss, image}}) {
            const Tensor x = random_tensor(shape, DType::f64, 1);
            const Tensor target = values(shape, {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0}, DType::f64);
            for (double& v : x.span<double>()) v *= 3;
            const Context reference{.backend = Backend::reference};
            const ContextScope scope(reference);
            const Tensor dx = Gradient(loss, x, target).dx;
            for (int64_t i = 0; i < x.numel(); ++i) {
                CAPTURE(i);
                const double step = 1e-5, at = x.data<double>()[i];
                x.data<double>()[i] = at + step;
                const double above = loss_of(loss, x, target);
                x.data<double>()[i] = at - step;
                const double below = loss_of(loss, x, target);
                x.data<double>()[i] = at;
                CHECK(dx.data<double>()[i] == doctest::Approx((above - below) / (2 * step)).epsilon(1e-6));
            }
            const Context cpu;
            const ContextScope on_cpu(cpu);
            CHECK(differs(Gradient(loss, x.to(DType::f32), target.to(DType::f32)).dx, dx, {1e-5, 1e-5}) == "");
        }
    }
}

} // namespace rg
