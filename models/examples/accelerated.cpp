// accelerated: trains a network with two heads, the class and the angle of drawn digits, op by op and then accelerated.
#include "ringgrad/core/accelerate.h"
#include "ringgrad/core/clock.h"
#include "ringgrad/core/cpu/cpu_scope.h"
#include "ringgrad/core/options.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/data/digits.h"
#include "ringgrad/data/loader.h"
#include "ringgrad/models/nets/digits_net.h"
#include "ringgrad/models/run/optimizer.h"
#include <cstdio>

using namespace rg;

/// Trains a new network, prints the last loss and the time of each epoch.
void train(const data::ImageSet& digits, bool accelerated) {
    data::Loader batches(digits, {.batch_size = 32, .keep_partial = true, .normalise = data::kDigits});
    const DigitsAnglesNet net({});
    Optimizer optimizer(net.parameters, {.kind = OptimizerKind::adam});
    Accelerated step(
        [&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            Tape tape;
            const std::vector<Tensor> heads = net.outputs(in[0], Mode::train); // scores [n 10], degrees [n 1]
            const Tensor loss = add(cross_entropy(heads[0], in[1]), scale(mse_loss(heads[1], in[2]), 0.1f));
            tape.gradients(loss, net.parameters);
            optimizer.update(loss);
            return {loss};
        },
        accelerated);
    for (int64_t epoch = 1, steps = 0; epoch <= 3; ++epoch) {
        float loss = 0;
        const double seconds = wall_seconds([&] {
            for (batches.start(epoch); batches.has_next();) {
                const data::Batch batch = batches.next();
                optimizer.set(0.002, ++steps); // in tensors, so a replay picks up the new values
                loss = step({batch.x, batch.labels, batch.targets}, true)[0].data<float>()[0];
            }
        });
        std::printf("%s: loss %.2f, %.3f s\n", accelerated ? "accelerated" : "op by op", double(loss), seconds);
    }
    std::printf("%.0f plans, hit rate %.3f\n", step.occupancy() * double(step.cache_size), step.hit_rate());
}

int run(int, const char* const*) {
    const CpuScope all_cores;
    const data::ImageSet digits = data::draw_digits(40, 0);
    train(digits, false);
    train(digits, true);
    return 0;
}

int main(int argc, char** argv) { return run_main(argc, argv, run); }
