// Writes the results of a trained model for images, so that a script can compare them with another framework.
//
//     scores MODEL IMAGES.safetensors OUT.safetensors
//
// MODEL is a run's folder, its model.safetensors or a checkpoint. IMAGES holds the tensor "x", f32 [n h w c], with
// normalised values. OUT holds the results of the network as "0", "1", ...: the scores first.
#include "ringgrad/core/accelerate.h"
#include "ringgrad/core/cpu/cpu_scope.h"
#include "ringgrad/core/options.h"
#include "ringgrad/models/run/model_file.h"

#include <iostream>

namespace {

using namespace rg;

int run(int argc, const char* const* argv) {
    std::vector<std::string> files;
    std::string precision = "fp32";
    Options options("scores", "writes the results of a model for normalised images");
    options.positional("FILE", &files, "MODEL, then IMAGES.safetensors with x [n h w c], then OUT.safetensors", 3, 3);
    options.add("precision", &precision, "kernels; fp32-strict: only plain multiply-adds")
        .one_of({"fp32", "fp32-strict"});
    if (!options.parse(argc, argv)) {
        std::cout << options.answer();
        return 0;
    }
    ThreadPool threads(available_cores());
    const Context context{.threads = &threads, .strict_fp32 = precision == "fp32-strict"};
    const ContextScope scope(context);
    const std::unique_ptr<Network> network = make_network(load_model(files[0]));
    const TensorFile images = load_tensors(files[1]);
    const Tensor* x = images.find("x");
    RG_CHECK(x && x->dtype() == DType::f32, "scores: expected the tensor x in f32, got none in ", files[1]);
    Accelerated predict([&](auto in, bool) { return network->outputs(in[0], Mode::evaluate); });
    std::vector<NamedTensor> results;
    for (const Tensor& result : predict({*x})) results.push_back({cat(results.size()), result});
    save_tensors(files[2], results);
    return 0;
}

} // namespace

int main(int argc, char** argv) { return rg::run_main(argc, argv, run); }
