// autoencoder: learns to reconstruct images from a sixteenth of their pixels, with few channels.
//
//     build/autoencoder --data photos --size 32
#include "ringgrad/models/run/training.h"
#include "ringgrad/models/training_main.h"

using namespace rg;

namespace {

struct Autoencoder final : Network {
    ConvNorm in, code, out;
    Convolution image;

    explicit Autoencoder(const ImageTask& task, int64_t c = 32)
        : in(parameters, "in", {c, 3, task.channels, {.stride = 2, .pad = 1}}),
          code(parameters, "code", {8, 3, c, {.stride = 2, .pad = 1}}),
          out(parameters, "out", {c, 3, 8, {.pad = 1}}),
          image(parameters, "image", {task.channels, 3, c, {.pad = 1}}) {
        RG_CHECK(task.height % 4 == 0 && task.width % 4 == 0, "autoencoder: expected a size divisible by 4, got ",
                 task.height, " x ", task.width, "; give --size 32");
        parameters.allocate(task.seed, Init::he);
    }
    Tensor forward(const Tensor& images, Mode mode) const override {
        const Tensor small = code(in(images, mode), mode);
        return image(upsample(out(upsample(small, 2), mode), 2));
    }
};
const RegisterNetwork<Autoencoder> autoencoder_network("autoencoder");

struct AutoencoderTraining final : ImageTraining {
    AutoencoderTraining() : ImageTraining({"autoencoder"}) {
        data_options.batch_size = 32, has_smoothing = false;
        optimizer.kind = OptimizerKind::adam, default_rate = {0.002, 32};
    }
    data::Labels labels() const override { return data::Labels::none; }
    Task task(const data::ImageSet&) const override { return reconstruction(); }
};
constinit const Program autoencoder{"autoencoder", "reconstructs images", make_training<AutoencoderTraining>};

} // namespace

int main(int argc, char** argv) { return run_training_main(argc, argv, autoencoder); }
