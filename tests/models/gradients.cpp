// Tests the gradients of a whole network: against central differences, and over ranks that share batch statistics.
#include "core/ops.h"
#include "core/tape.h"
#include "models/nets/cifar_net.h"
#include "tests/op_check.h"
#include "tests/parameter_lists.h"
#include "tests/sync_ranks.h"

#include <doctest/doctest.h>

namespace rg {
namespace {

const Context kReference{.backend = Backend::reference};

/// A network with parameters away from their initial values, and a batch.
struct NetworkCase {
    CifarNet net;
    Tensor x, labels;

    NetworkCase(const CifarNet::Options& options, int64_t batch)
        : net(options),
          x(random_tensor({batch, 32, 32, 3}, options.dtype, 5)),
          labels(random_labels(batch, options.classes, 6)) {
        const Tensor noise = random_tensor(net.parameters.values().shape(), DType::f64, 7);
        for (const Parameters::Entry& e : net.parameters.entries())
            for (int64_t i = 0; i < e.value.numel(); ++i)
                e.value.data<double>()[i] += 0.2 * noise.data<double>()[e.offset + i];
    }
    Tensor loss() { return cross_entropy(net.forward(x, Mode::train), labels, 0.1f); }
    Tensor step() {
        Tape tape;
        const Tensor l = loss();
        tape.gradients(l, value_list(net.parameters), gradient_list(net.parameters));
        return l;
    }
};

} // namespace

TEST_SUITE("models") {
    TEST_CASE("gradients: a whole network agrees with central differences in every parameter tensor") {
        const ContextScope scope(kReference);
        for (const CifarNet::Options& options :
             {CifarNet::Options{.width = 2, .depth = 1, .classes = 4, .seed = 3, .dtype = DType::f64},
              CifarNet::Options{.width = 3, .depth = 2, .classes = 10, .seed = 4, .dtype = DType::f64}}) {
            NetworkCase c(options, 2);
            c.step();
            Rng random(8, Purpose::test);
            for (const Parameters::Entry& e : c.net.parameters.entries()) {
                CAPTURE(e.name);
                const double largest = largest_of(e.gradient);
                // Batch norm subtracts the bias of a convolution again.
                const bool none = e.name.ends_with("conv.bias");
                if (none)
                    CHECK(largest < 1e-12);
                else
                    CHECK(largest > 1e-5);
                for (int trial = 0; trial < (options.depth == 1 ? 3 : 1); ++trial) {
                    const size_t i = random.uniform_below(uint32_t(e.value.numel()));
                    CAPTURE(i);
                    double& value = e.value.data<double>()[i];
                    const double kept = value;
                    for (double step : {1e-5, 1e-6}) {
                        double change = 0;
                        for (double sign : {1.0, -1.0}) {
                            value = kept + sign * step;
                            change += sign * c.loss().data<double>()[0];
                        }
                        value = kept;
                        CAPTURE(step);
                        const double error = std::abs(change / (2 * step) - e.gradient.data<double>()[i]);
                        CHECK(error <= (none ? 1e-8 : 1e-8 + 1e-5 * largest));
                    }
                }
            }
        }
    }

    TEST_CASE("gradients: a network over ranks that share statistics equals one rank on the whole batch") {
        const CifarNet::Options options{.width = 2, .depth = 1, .classes = 4, .seed = 3, .dtype = DType::f64};
        NetworkCase whole(options, 3);
        Tensor loss;
        {
            const ContextScope scope(kReference);
            loss = whole.step();
        }
        SyncRanks ranks({1, 2});
        const std::vector<double>& fractions = ranks.fractions();
        std::vector<Tensor> losses(2), gradients(2), states(2);
        ranks.run(Backend::reference, [&](size_t r) {
            NetworkCase mine(options, 3);
            mine.x = part_of(mine.x, ranks.begin(r), int64_t(r) + 1);
            mine.labels = part_of(mine.labels, ranks.begin(r), int64_t(r) + 1);
            losses[r] = mine.step();
            gradients[r] = mine.net.parameters.gradients();
            states[r] = mine.net.parameters.state();
        });
        const Tolerance tight{1e-10, 1e-9};
        CHECK(differs(weighted_sum(losses, fractions), loss, tight) == "");
        CHECK(differs(weighted_sum(gradients, fractions), whole.net.parameters.gradients(), tight) == "");
        CHECK(same_bits(states[0], states[1]));
        CHECK(differs(states[0], whole.net.parameters.state(), tight) == "");
    }
}

} // namespace rg
