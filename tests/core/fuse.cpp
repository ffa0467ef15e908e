// Tests each rule of fuse.cpp alone: on a function that the rule applies to, and on one where another reader of the
// value prevents it. Both must compute what the plain function computes.
#include "core/accelerate.h"
#include "core/ops.h"
#include "core/tape.h"
#include "tests/op_cases.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"

#include <doctest/doctest.h>

using namespace rg;

namespace {

using Function = std::function<std::vector<Tensor>(const Tensor& x)>;

/// Values that the functions below share. x is [4 6 6 8].
struct Values {
    Tensor x = random({4, 6, 6, 8}, 1), w = random({8, 3, 3, 8}, 2), gamma = random({8}, 3), beta = random({8}, 4);
    Tensor stats = Tensor::constant({2, 8}, 0.5), target = random({4, 6, 6, 8}, 5);
    Tensor dw = Tensor::zeros({8, 3, 3, 8}), dgamma = Tensor::zeros({8}), dx = Tensor::zeros({4, 6, 6, 8});

    static Tensor random(const Shape& shape, uint64_t seed) { return random_tensor(shape, DType::f32, seed); }
    Tensor conv(const Tensor& in) const { return conv2d(in, w, {}, {.pad = 1}); }
    Tensor norm(const Tensor& in, Activation a = {}) const {
        return batch_norm(in, channel_stats(in), gamma, beta, {.activation = a});
    }
    Tensor frozen(const Tensor& in, Activation a = {}) const {
        return batch_norm(in, stats, gamma, beta, {.activation = a, .frozen = true});
    }
    /// Computes the gradients of the squared distance of f() to a random target with respect to w and gamma. (The mean
    /// square of a batch norm is constant, so its gradient would be rounding alone.) Returns the loss.
    std::vector<Tensor> gradients(const std::function<Tensor()>& f) const {
        Tape tape;
        const Tensor y = f(), loss = mse_loss(y, target.slice(0, y.shape()));
        tape.gradients(loss, std::array{w, gamma}, std::array{dw, dgamma});
        return {loss};
    }
};

/// Plans the function, checks that its replay agrees with the plain function, and returns the steps that satisfy a
/// condition.
template <class Condition>
int64_t count_steps(const Values& v, const Function& f, Condition condition) {
    Accelerated step([&](std::span<const Tensor> in, bool) { return f(in[0]); });
    step.check = true;
    CHECK_NOTHROW(step({v.x}, true));
    const std::vector<Step>& steps = step.plan({v.x}, true).steps();
    return std::count_if(steps.begin(), steps.end(), condition);
}

/// A condition: a step of this op with this input, which only fusing passes.
auto with(Op op, size_t input) {
    return [=](const Step& s) { return s.op == op && s.in[input].defined(); };
}

auto is(Op op) {
    return [=](const Step& s) { return s.op == op; };
}

} // namespace

TEST_SUITE("core") {
    TEST_CASE("fuse: conv2d takes a batch norm of its result with constant statistics") {
        const Values v;
        const auto f = [&](const Tensor& x) { return std::vector{v.frozen(v.conv(x))}; };
        CHECK(count_steps(v, f, with(op::conv2d, Conv2dOp::y_stats)) == 1);
        CHECK(count_steps(v, f, is(op::batch_norm)) == 0);
        const auto read_twice = [&](const Tensor& x) {
            const Tensor y = v.conv(x);
            return std::vector{add(v.frozen(y), y)};
        };
        CHECK(count_steps(v, read_twice, with(op::conv2d, Conv2dOp::y_stats)) == 0);
    }

    TEST_CASE("fuse: of convolutions in several groups, only depthwise ones take other steps, and only on CPUs") {
        const Values v;
        const auto fused = [](const Step& s) {
            const bool forward = s.op == op::conv2d;
            if (!forward && s.op != op::conv2d_grad) return false;
            const auto from = s.in.begin() + (forward ? int(Conv2dOp::x_stats) : int(Conv2dGradOp::addend));
            return std::any_of(from, s.in.end(), [](const Tensor& t) { return t.defined(); });
        };
        for (const int64_t groups : {2, 8}) {
            CAPTURE(groups);
            const Tensor w = Values::random({8, 3, 3, 8 / groups}, 6), dw = Tensor::zeros(w.shape());
            const Conv options{.pad = 1, .groups = groups};
            const auto predict = [&](const Tensor& x) {
                return std::vector{max_pool2d(v.frozen(conv2d(x, w, {}, options)), {2, 2})};
            };
            CHECK(count_steps(v, predict, fused) == (groups == 8 ? 1 : 0));
            const auto train = [&](const Tensor& x) {
                Tape tape;
                const auto layer = [&](const Tensor& in) {
                    const auto [y, stats] = conv2d_stats(in, w, {}, options);
                    return batch_norm(y, stats, v.gamma, v.beta, {.activation = Activation::relu});
                };
                const Tensor loss = mse_loss(layer(layer(x)), v.target);
                tape.gradients(loss, std::array{w}, std::array{dw});
                return std::vector{loss};
            };
            // Both gradients take the gradient of a batch norm. The second convolution and its gradient normalise x.
            CHECK(count_steps(v, train, fused) == (groups == 8 ? 3 : 0));
            CHECK(count_steps(v, train, is(op::batch_norm)) == (groups == 8 ? 1 : 2));
            CHECK(count_steps(v, train, is(op::batch_norm_grad_sums)) == (groups == 8 ? 1 : 2));
        }
    }

    TEST_CASE("fuse: conv2d_grad takes the gradient of a batch norm of the convolution's result") {
        const Values v;
        const auto f = [&](const Tensor& x) { return v.gradients([&] { return v.norm(v.conv(x)); }); };
        CHECK(count_steps(v, f, with(op::conv2d_grad, Conv2dGradOp::y_stats)) == 1);
        CHECK(count_steps(v, f, is(op::batch_norm_grad)) == 0);
        // activation_grad reads the gradient of the batch norm here.
        const auto between = [&](const Tensor& x) { return v.gradients([&] { return v.norm(relu(v.conv(x))); }); };
        CHECK(count_steps(v, between, with(op::conv2d_grad, Conv2dGradOp::y_stats)) == 0);
    }

    TEST_CASE("fuse: conv2d_grad adds the gradient of another branch") {
        const Values v;
        const auto f = [&](const Tensor& x) {
            return v.gradients([&] {
                const Tensor y = relu(v.conv(x));
                return add(v.conv(y), y);
            });
        };
        CHECK(count_steps(v, f, with(op::conv2d_grad, Conv2dGradOp::addend)) == 1);
        CHECK(count_steps(v, f, is(op::add)) == 2); // the sum of the branches, and the two gradients of w
    }

    TEST_CASE("fuse: batch norms with any activation that they may have are fused") {
        const Values v;
        for (const Activation& a : fusible_activations()) {
            CAPTURE(int(a.kind));
            const auto predict = [&](const Tensor& x) { return std::vector{v.frozen(v.conv(x), a)}; };
            CHECK(count_steps(v, predict, with(op::conv2d, Conv2dOp::y_stats)) == 1);
            const auto train = [&](const Tensor& x) {
                return v.gradients([&] { return v.norm(v.conv(v.norm(v.conv(x), a))); });
            };
            CHECK(count_steps(v, train, with(op::conv2d, Conv2dOp::x_stats)) == 1);
            CHECK(count_steps(v, train, with(op::conv2d_grad, Conv2dGradOp::x_stats)) == 1);
            CHECK(count_steps(v, train, is(op::batch_norm_grad)) == 0);
        }
    }

    TEST_CASE("fuse: add applies an activation to the sum, unless its gradient needs the sum") {
        const Values v;
        for (const Activation::Kind kind : kActivations) {
            if (kind == Activation::none) continue; // is no step
            CAPTURE(int(kind));
            const auto sum = [&](const Tensor& x) { return activation(add(v.conv(x), x), {kind, 0.3f}); };
            const auto predict = [&](const Tensor& x) { return std::vector{sum(x)}; };
            CHECK(count_steps(v, predict, is(op::activation)) == (is_fusible(kind) ? 0 : 1));
            // A sum takes one activation, so another one after it remains a step.
            const auto twice = [&](const Tensor& x) { return std::vector{relu(sum(x))}; };
            CHECK(count_steps(v, twice, is(op::activation)) == (is_fusible(kind) ? 1 : 2));
            const auto train = [&](const Tensor& x) { return v.gradients([&] { return sum(x); }); };
            const bool reads_result =
                kind == Activation::relu || kind == Activation::leaky_relu || kind == Activation::relu6;
            CHECK(count_steps(v, train, is(op::activation)) == (reads_result ? 0 : 1));
        }
    }

    TEST_CASE("fuse: add normalises its operands, and applies ReLU to the sum") {
        const Values v;
        const auto f = [&](const Tensor& x) { return std::vector{relu(add(v.norm(x), x))}; };
        CHECK(count_steps(v, f, with(op::add, AddOp::a_stats)) == 1);
        CHECK(count_steps(v, f, is(op::batch_norm)) == 0);
        CHECK(count_steps(v, f, is(op::activation)) == 0);
        const auto other_side = [&](const Tensor& x) { return std::vector{add(x, v.norm(x))}; };
        CHECK(count_steps(v, other_side, with(op::add, AddOp::b_stats)) == 1);
        const auto read_twice = [&](const Tensor& x) {
            const Tensor y = v.norm(x), sum = add(y, x);
            return std::vector{relu(sum), softmax(sum.reshape({4, 288})), softmax(y.reshape({4, 288}))};
        };
        CHECK(count_steps(v, read_twice, is(op::batch_norm)) == 1);
        CHECK(count_steps(v, read_twice, is(op::activation)) == 1);
    }

    TEST_CASE("fuse: conv2d and pooling normalise their input on load, if all of its readers can") {
        const Values v;
        const auto f = [&](const Tensor& x) {
            const Tensor y = v.norm(x);
            return std::vector{v.conv(y), max_pool2d(y, {2, 2}), avg_pool2d(y, {3, 3})};
        };
        CHECK(count_steps(v, f, is(op::batch_norm)) == 0);
        CHECK(count_steps(v, f, with(op::conv2d, Conv2dOp::x_stats)) == 1);
        CHECK(count_steps(v, f, with(op::max_pool2d, Pool2dOp::x_stats)) == 1);
        CHECK(count_steps(v, f, with(op::avg_pool2d, Pool2dOp::x_stats)) == 1);
        const auto one_cannot = [&](const Tensor& x) {
            const Tensor y = v.norm(x);
            return std::vector{v.conv(y), dropout(y, 0.5f, Tensor::constant({2}, 1, DType::i32))};
        };
        CHECK(count_steps(v, one_cannot, is(op::batch_norm)) == 1);
    }

    TEST_CASE("fuse: the step that makes a gradient sums it for the batch norm before it") {
        const Values v;
        const auto sums_of = [&](const std::function<Tensor(const Tensor&)>& after) {
            const auto f = [&](const Tensor& x) { return v.gradients([&] { return after(v.norm(v.conv(x))); }); };
            return count_steps(v, f, is(op::batch_norm_grad_sums));
        };
        CHECK(sums_of([](const Tensor& y) { return max_pool2d(y, {2, 2}); }) == 0);
        CHECK(sums_of([](const Tensor& y) { return avg_pool2d(y, {2, 2}); }) == 0);
        CHECK(sums_of([](const Tensor& y) { return relu(y); }) == 0);
        CHECK(sums_of([](const Tensor& y) { return silu(y); }) == 0);
        CHECK(sums_of([&](const Tensor& y) { return v.norm(v.conv(y)); }) == 1); // that of the loss's gradient remains
        CHECK(sums_of([](const Tensor& y) { return scale(y, 2); }) == 1);
    }

    TEST_CASE("fuse: cross_entropy writes its gradient, if nothing else reads the probabilities") {
        const Values v;
        const Tensor w = Values::random({3, 288}, 5), dw = Tensor::zeros({3, 288});
        const Tensor labels = random_labels(4, 3, 6);
        // Returns a function that computes a loss of the scores of x, and its gradient in w.
        const auto trained = [&](const std::function<Tensor(const Tensor& scores)>& loss_of) -> Function {
            return [&, loss_of](const Tensor& x) -> std::vector<Tensor> {
                Tape tape;
                const Tensor loss = loss_of(linear(x.reshape({4, 288}), w));
                tape.gradients(loss, std::array{w}, std::array{dw});
                return {loss, dw};
            };
        };
        const Function f = trained([&](const Tensor& scores) { return cross_entropy(scores, labels); });
        CHECK(count_steps(v, f, with(op::cross_entropy, CrossEntropyOp::dloss)) == 1);
        CHECK(count_steps(v, f, is(op::cross_entropy_grad)) == 0);
        const Tensor class_weights = floats({3}, 0.5, 1, 2);
        const Function weighted =
            trained([&](const Tensor& scores) { return cross_entropy(scores, labels, 0.1f, class_weights); });
        CHECK(count_steps(v, weighted, with(op::cross_entropy, CrossEntropyOp::dloss)) == 1);
        CHECK(count_steps(v, weighted, is(op::cross_entropy_grad)) == 0);
        const Tensor of_samples = floats({4}, 1, 0, 2, 0.5), others = random_labels(4, 3, 7);
        const Function two_labels = trained([&](const Tensor& scores) { // of mixed images
            return add(cross_entropy(scores, labels, 0, {}, of_samples),
                       cross_entropy(scores, others, 0, class_weights, of_samples));
        });
        CHECK(count_steps(v, two_labels, with(op::cross_entropy, CrossEntropyOp::dloss)) == 2);
        CHECK(count_steps(v, two_labels, is(op::cross_entropy_grad)) == 0);
        const Function scaled_loss =
            trained([&](const Tensor& scores) { return scale(cross_entropy(scores, labels), 0.5f); });
        CHECK(count_steps(v, scaled_loss, is(op::cross_entropy_grad)) == 1); // dloss is no constant
    }

    TEST_CASE("fuse: an argument that only a plan passes is an error where gradients are recorded") {
        const Values v;
        const Tape tape;
        CHECK_THROWS_WITH(run(op::max_pool2d, {v.x, v.stats, v.gamma, v.beta}, Pool2dOp{{2, 2}}),
                          "max_pool2d: expected no x_stats where gradients are recorded, got one; only a plan passes "
                          "it");
    }

    TEST_CASE("fuse: the gradient of an add that includes an activation is an error") {
        const Values v;
        Tape tape;
        const Tensor y = run(op::add, {v.x, v.x}, AddOp{.activation = Activation::relu})[0];
        const Tensor loss = mse_loss(y, v.target);
        CHECK_THROWS_AS(tape.gradients(loss, std::array{v.x}, std::array{v.dx}), Error);
    }
}
