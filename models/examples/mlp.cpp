// mlp: trains a small network on arrays of numbers, and predicts. It learns on which of two spirals a point lies.
#include "ringgrad/core/cpu/cpu_scope.h"
#include "ringgrad/core/layers.h"
#include "ringgrad/core/options.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/data/loader.h"
#include <cmath>
#include <cstdio>

using namespace rg;

int run(int, const char* const*) {
    const CpuScope all_cores;
    std::vector<float> points; // x and y of each point
    std::vector<int32_t> spirals;
    for (int i = 0; i < 1000; ++i) {
        const float t = 4 * std::sqrt(float(i) / 1000), angle = t + 3.14159265f * float(i % 2);
        points.insert(points.end(), {t * std::cos(angle), t * std::sin(angle)});
        spirals.push_back(i % 2);
    }
    const Tensor x = Tensor::of<float>({1000, 2}, points), y = Tensor::of<int32_t>({1000}, spirals);
    data::Loader batches({data::rows(x), data::rows(y)}, {.batch_size = 50});
    Parameters parameters;
    const Dense a(parameters, "a", 64, 2), b(parameters, "b", 64, 64), c(parameters, "c", 2, 64);
    parameters.allocate(1, Init::he);
    const auto network = [&](const Tensor& x) { return c(relu(b(relu(a(x))))); };
    const Tensor velocity = Tensor::zeros(parameters.values().shape());
    for (int epoch = 1; epoch <= 30; ++epoch)
        for (batches.start(epoch); batches.has_next();) {
            const data::Batch batch = batches.next();
            Tape tape;
            tape.gradients(cross_entropy(network(batch.columns[0]), batch.columns[1]), parameters);
            sgdm_update(parameters.values(), velocity, parameters.gradients(), {.lr = 0.05f});
        }
    const Tensor scores = softmax(network(x)); // probabilities [1000 2]
    for (const size_t i : {998, 999}) std::printf("point %zu: %.4f on spiral 1\n", i, scores.span<float>()[2 * i + 1]);
    return 0;
}

int main(int argc, char** argv) { return run_main(argc, argv, run); }
