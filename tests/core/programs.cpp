// Random programs: a plan computes what the program does, op by op; and gradients of ops that get one tensor in several
// places agree with differences. A failure names the seed of its program. RG_PROGRAMS=5000 tests that many.
#include "core/context.h"
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "tests/random_program.h"
#include "tests/sync_ranks.h"

#include <cmath>
#include <doctest/doctest.h>

using namespace rg;

namespace {

const Context kReference{.backend = Backend::reference};

/// A random function of tensors that all have the shape [4 3 3 4], so that each may be an image or a filter of any op,
/// and of vectors [4]. The same tensor often stands in two places.
struct Coincidences {
    explicit Coincidences(uint64_t seed_) : seed(seed_) {
        for (uint64_t i = 0; i < 2; ++i) {
            leaves.push_back(random_tensor({4, 3, 3, 4}, DType::f64, seed * 10 + i));
            leaves.push_back(random_tensor({4}, DType::f64, seed * 10 + 5 + i));
        }
    }

    Tensor loss(std::span<const Tensor> x) const {
        Rng random(seed, Purpose::test, 2);
        const auto draw = [&](size_t n) { return size_t(random.uniform_below(uint32_t(n))); };
        std::vector<Tensor> images{x[0], x[2]};
        const auto image = [&] { return images[draw(images.size())]; };
        const auto vector = [&] { return x[draw(2) * 2 + 1]; };
        for (size_t steps = 1 + draw(5); steps > 0; --steps) {
            const Tensor a = image(), b = image();
            switch (draw(10)) {
            case 0: images.push_back(tanh(conv2d(a, b, draw(2) ? vector() : Tensor(), {.pad = 1}))); break;
            case 1: images.push_back(batch_norm(a, channel_stats(a), vector(), vector(), {.epsilon = 0.1f})); break;
            case 2: images.push_back(layer_norm(a, vector(), vector(), 0.1f)); break;
            case 3: images.push_back(add(a, b)); break;
            case 4: images.push_back(sub(a, b)); break;
            case 5: images.push_back(mul(tanh(a), b)); break;
            case 6: images.push_back(scale(a, sum(tanh(b)).reshape({}))); break;
            case 7: images.push_back(slice(concat({a, b}), 0, {4, 3, 3, 4})); break;
            case 8: {
                const Tensor y = linear(a.reshape({4, 36}), b.reshape({4, 36}), draw(2) ? vector() : Tensor());
                images.push_back(add(a, concat({y, y, y, y, y, y, y, y, y}).reshape({4, 3, 3, 4})));
                break;
            }
            default: images.push_back(silu(avg_pool2d(a, {.window = 3, .pad = 1})));
            }
        }
        return mse_loss(tanh(images.back()), draw(2) ? image() : x[0]);
    }

    uint64_t seed;
    std::vector<Tensor> leaves;
};

/// Compares the gradients of a function with central differences along random directions. Returns the relative error.
double error_of_gradients(const Coincidences& f) {
    std::vector<Tensor> gradients;
    for (const Tensor& t : f.leaves) gradients.push_back(Tensor::zeros(t.shape(), DType::f64));
    {
        Tape tape;
        const Tensor loss = f.loss(f.leaves);
        tape.gradients(loss, f.leaves, gradients);
    }
    double worst = 0;
    for (size_t i = 0; i < f.leaves.size(); ++i) {
        const Tensor direction = random_tensor(f.leaves[i].shape(), DType::f64, 7);
        double expected = 0, found = 0, size = 1e-3;
        for (int64_t j = 0; j < direction.numel(); ++j) {
            expected += gradients[i].data<double>()[j] * direction.data<double>()[j];
            size += std::abs(gradients[i].data<double>()[j]);
        }
        constexpr double kStep = 1e-5;
        for (const double sign : {1.0, -1.0}) {
            std::vector<Tensor> moved = f.leaves;
            moved[i] = moved[i].clone();
            for (int64_t j = 0; j < direction.numel(); ++j)
                moved[i].data<double>()[j] += sign * kStep * direction.data<double>()[j];
            found += sign * f.loss(moved).data<double>()[0] / (2 * kStep);
        }
        worst = std::max(worst, std::abs(found - expected) / size);
    }
    return worst;
}

} // namespace

TEST_SUITE("core") {
    TEST_CASE("programs: on the reference backend, a plan has the bits of the program") {
        // In f64, where the reference rounds nothing that a plan leaves out
        const ContextScope scope(kReference);
        for (uint64_t seed = 1; seed <= programs_to_test(400); ++seed) {
            CAPTURE(seed);
            CHECK(plan_differs(seed, DType::f64, 0) == "");
        }
    }

    TEST_CASE("ops: in a plan of a random program, the kernels compute what they compute alone") {
        // A plan rounds in other places, so bf16 gives a ReLU other signs here and there. In 2000 programs, this
        // changed a gradient by 0.23 at most.
        for (uint64_t seed = 1; seed <= programs_to_test(100); ++seed) {
            CAPTURE(seed);
            CHECK(plan_differs(seed, DType::f32, 1e-3) == "");
            CHECK(plan_differs(seed, DType::bf16, 0.4) == "");
        }
    }

    TEST_CASE("programs: one tensor in several places gets the sum of its gradients") {
        const ContextScope scope(kReference);
        for (uint64_t seed = 1; seed <= programs_to_test(400); ++seed) {
            CAPTURE(seed);
            CHECK(error_of_gradients(Coincidences(seed)) < 1e-4); // differences are good to 1e-5
        }
    }
}
