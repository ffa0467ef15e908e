// example: a network and its training in one short file, to begin your own from. The README shows this program.
#include "ringgrad/core/accelerate.h"
#include "ringgrad/core/cpu/cores.h"
#include "ringgrad/core/cpu/thread_pool.h"
#include "ringgrad/core/layers.h"
#include "ringgrad/core/options.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/data/loader.h"
#include "ringgrad/data/open.h"

#include <algorithm>
#include <cstdio>

using namespace rg;

struct Net {
    Parameters parameters;
    ConvNorm conv1{parameters, "conv1", {32, 3, 3, {.stride = 2}}};  // 32 x 32 x 3 -> 15 x 15 x 32
    ConvNorm conv2{parameters, "conv2", {64, 3, 32, {.stride = 2}}}; // -> 7 x 7 x 64
    Dense fc{parameters, "fc", 10, 7 * 7 * 64};
    Net() { parameters.allocate(0, Init::he); }
    Tensor operator()(const Tensor& x, Mode mode) const { return fc(conv2(conv1(x, mode), mode)); }
};

int run(int argc, const char* const* argv) {
    ThreadPool threads(available_cores());
    const Context context{.threads = &threads};
    const ContextScope scope(context);
    const data::TrainTest images = data::load(argc > 1 ? argv[1] : ""); // a folder, or the built-in sample
    const data::LoaderOptions options{.batch_size = 50, .normalise = data::kCifar10};
    data::Loader train(images.train, options), test(images.test, options);
    Net net;
    const Parameters& p = net.parameters;
    const Tensor velocity = Tensor::zeros(p.values().shape()), rate = Tensor::constant({1}, 0.01);
    Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        Tape tape;
        const Tensor loss = cross_entropy(net(in[0], Mode::train), in[1]);
        tape.gradients(loss, p.value_list(), p.gradient_list());
        sgdm_update(p.values(), velocity, p.gradients(), {.momentum = 0.9f}, rate);
        return {loss};
    });
    for (int epoch = 1; epoch <= 5; ++epoch) {
        double loss = 0, correct = 0;
        for (train.start(epoch); train.has_next();) {
            const data::Batch batch = train.next();
            loss += double(step({batch.x, batch.labels})[0].data<float>()[0]);
        }
        for (test.start(epoch); test.has_next();) {
            const data::Batch batch = test.next();
            const Tensor scores = net(batch.x, Mode::evaluate);
            for (int64_t i = 0; i < batch.labels.numel(); ++i) {
                const std::span row = scores.span<float>().subspan(size_t(10 * i), 10);
                correct += std::max_element(row.begin(), row.end()) - row.begin() == batch.labels.data<int32_t>()[i];
            }
        }
        std::printf("epoch %d  loss %.4f  test accuracy %.1f %%\n", epoch, loss / double(train.batches()),
                    100 * correct / double(50 * test.batches()));
    }
    return 0;
}

int main(int argc, char** argv) { return run_main(argc, argv, run); }
