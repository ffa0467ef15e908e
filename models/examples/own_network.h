// A residual network of one's own, and its training on a folder of images, on one rank or many, on a GPU if there is
// one. It can be stopped and resumed.
#pragma once

#include "ringgrad/models/run/training.h"

namespace example {

using namespace rg;

struct OwnNetwork final : Network {
    ConvNorm stem, in, out;
    Dense fc;

    OwnNetwork(int64_t channels, int64_t classes, int64_t width, uint64_t seed)
        : stem(parameters, "stem", {width, 3, channels, {.stride = 2, .pad = 1}}),
          in(parameters, "in", {width, 3, width, {.pad = 1}}),
          out(parameters, "out", {width, 3, width, {.pad = 1}, Activation::none}),
          fc(parameters, "fc", classes, width) {
        parameters.allocate(seed, Init::he);
    }
    Tensor forward(const Tensor& images, Mode mode) const override {
        const Tensor x = stem(images, mode), y = relu(add(x, out(in(x, mode), mode)));
        return fc(global_avg_pool(y));
    }
};

struct OwnNetworks final : NetworkFamily {
    int64_t width = 16;
    OwnNetworks() : NetworkFamily({"own"}) {}
    void declare(Options& o) override { o.add("width", &width, "channels").range(1, 1024); }
    std::unique_ptr<Network> make(const std::string&, const ImageTask& task) const override {
        return std::make_unique<OwnNetwork>(task.channels, task.classes, width, task.seed);
    }
};
inline const RegisterNetworks<OwnNetworks> own_networks; // predictions find the network by its name, "own"

struct OwnTraining : ImageTraining {
    OwnTraining() : ImageTraining({"own"}) {
        data_options.batch_size = 32;
        augment = "flip,translate", translate = 4, fill = data::Fill::reflect;
        epochs = 10;
    }
};

inline constinit const Program own_network{"own_network", "trains my network", make_training<OwnTraining>};

} // namespace example
