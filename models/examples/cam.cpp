// cam: shows which parts of an image speak for the class that a network predicts. Prints the class, and writes the
// image with these parts in red.
//
//     cam runs/NAME photo.jpg layer4 map.png
//
// The network must end in the means of a layer's channels over all pixels and a dense layer fc, as residual networks
// (layer4 or layer3) and cifar_net (block3) do. Then its score is the mean of a map: the channels, weighted by fc (Zhou
// et al., "Learning deep features for discriminative localization", 2016).
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/cpu/cpu_scope.h"
#include "ringgrad/core/options.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/resize.h"
#include "ringgrad/models/run/model_file.h"
#include <algorithm>
#include <iostream>

using namespace rg;

int run(int argc, const char* const* argv) {
    RG_CHECK(argc == 5, "cam: expected RUN IMAGE LAYER OUT.png, got ", argc - 1, " arguments");
    const CpuScope all_cores;
    const TensorFile model = load_model(argv[1]);
    const std::unique_ptr<Network> network = make_network(model);
    const ImageTask task = stored_task(model);
    const data::Normalise normalise = stored_normalise(model, {});
    const auto [height, width] = stored_resize(model);
    const data::Image whole = data::fit(data::to_u8(data::read_image(argv[2]), int(task.channels)), height, width);
    data::Image image{task.width, task.height, int(task.channels), 8, {}}; // the central window, as for predictions
    const int64_t top = data::centre_offset(height, task.height), left = data::centre_offset(width, task.width);
    for (int64_t y = top; y < top + task.height; ++y) {
        const auto row = whole.pixels.begin() + (y * width + left) * task.channels;
        image.pixels.insert(image.pixels.end(), row, row + task.width * task.channels);
    }
    const Tensor x = Tensor::empty_on_host({1, task.height, task.width, task.channels});
    for (size_t i = 0; i < image.pixels.size(); ++i) {
        const size_t c = i % size_t(task.channels);
        x.data<float>()[i] = (float(image.pixels[i]) / 255 - normalise.mean[c]) / normalise.deviation[c];
    }
    const LayerOutputs layers;
    const Tensor scores = network->forward(x, Mode::evaluate), y = layers.of(argv[3]); // [1 classes], [1 h w c]
    const Tensor weights = network->parameters.entry("fc.weight").value;               // [classes c]
    const float* const all = scores.data<float>();
    const int64_t c = weights.extent(1), best = std::max_element(all, all + scores.numel()) - all;
    RG_CHECK(y.shape().rank() == 4 && y.extent(3) == c, "cam: expected a layer that gives [1 h w ", c, "], got ",
             y.shape().str(), "; name the one before the mean over the pixels");
    const Tensor map = linear(y.reshape({y.numel() / c, c}), weights.slice(best * c, {1, c}), {}); // [h w 1]
    const float highest = std::max(1e-9f, std::ranges::max(map.span<float>()));
    data::Image heat{y.extent(2), y.extent(1), 1, 8, {}};
    for (const float value : map.span<float>()) heat.pixels.push_back(uint8_t(255 * std::max(0.0f, value) / highest));
    const data::Image red = data::resize(heat, task.height, task.width), rgb = data::to_u8(image, 3);
    std::vector<uint8_t> pixels;
    for (size_t i = 0; i < rgb.pixels.size(); ++i)
        pixels.push_back(uint8_t((rgb.pixels[i] + (i % 3 == 0 ? red.pixels[i / 3] : 0)) / 2));
    const std::vector<uint8_t> png = data::encode_png(task.width, task.height, 3, pixels);
    write_output(argv[4], std::string(png.begin(), png.end()));
    std::cout << stored_classes(model)[size_t(best)] << "\n";
    return 0;
}

int main(int argc, char** argv) { return run_main(argc, argv, run); }
