// two_inputs: classifies images with the help of a number for each, such as the angle by which a digit is rotated.
//
//     build/make_digits digits && build/two_inputs --data digits        digits/angles.csv: lines 0/1.png,-12.5
//     build/two_inputs predict runs/NAME digits
#include "ringgrad/models/run/training.h"
#include "ringgrad/models/training_main.h"

using namespace rg;

namespace {

struct TwoInputs final : Network {
    ConvNorm a, b, c;
    Dense number, fc;

    explicit TwoInputs(const ImageTask& task)
        : a(parameters, "a", {16, 3, task.channels, {.stride = 2, .pad = 1}}),
          b(parameters, "b", {32, 3, 16, {.stride = 2, .pad = 1}}),
          c(parameters, "c", {64, 3, 32, {.stride = 2, .pad = 1}}),
          number(parameters, "number", 8, task.targets),
          fc(parameters, "fc", task.classes, 64 + 8) {
        parameters.allocate(task.seed, Init::he);
    }
    std::vector<Tensor> outputs(const Tensor& images, const Tensor& numbers, Mode mode) const override {
        // With --precision bf16, the features are bf16, and a dense layer gives f32.
        const Tensor features = cast(global_avg_pool(c(b(a(images, mode), mode), mode)), DType::f32);
        return {fc(concat({features, relu(number(scale(numbers, 1.0f / 45)))}))}; // angles are -45 to 45
    }
};
const RegisterNetwork<TwoInputs> two_inputs_network("two-inputs");

struct TwoInputsTraining final : ImageTraining {
    TwoInputsTraining() : ImageTraining({"two-inputs"}) {
        takes_numbers = true; // outputs() gets them; the model's file has their names, for predictions
        data_options.batch_size = 32, augment = "translate", translate = 2, augmentations = {"translate"};
        optimizer.kind = OptimizerKind::adam, default_rate = {0.004, 32};
        data_texts = {"class folders of images with angles.csv", "none"};
    }
};
constinit const Program two_inputs{
    "two_inputs", "classifies images and numbers", make_training<TwoInputsTraining>, {"--data digits", "--resume"}};

} // namespace

int main(int argc, char** argv) { return run_training_main(argc, argv, two_inputs); }
