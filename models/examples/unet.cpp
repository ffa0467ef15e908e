// unet: labels each pixel of an image, with a small U-Net (Ronneberger, Fischer and Brox, 2015).
//
//     build/unet --data photos --masks masks --size 64
//
// The mask of photos/1.jpg is masks/1.png, a PNG of the size --size, whose grey values or palette indices are below
// kLabels.
#include "ringgrad/data/image_folder.h"
#include "ringgrad/models/run/training.h"
#include "ringgrad/models/training_main.h"

using namespace rg;

namespace {

constexpr int64_t kLabels = 3;

struct UNet final : Network {
    ConvNorm down1, down2, bottom, up2, up1;
    Convolution scores;

    explicit UNet(const ImageTask& task, int64_t c = 16)
        : down1(parameters, "down1", {c, 3, task.channels, {.pad = 1}}),
          down2(parameters, "down2", {2 * c, 3, c, {.pad = 1}}),
          bottom(parameters, "bottom", {4 * c, 3, 2 * c, {.pad = 1}}),
          up2(parameters, "up2", {2 * c, 3, 6 * c, {.pad = 1}}),
          up1(parameters, "up1", {c, 3, 3 * c, {.pad = 1}}),
          scores(parameters, "scores", {kLabels, 1, c}) {
        parameters.allocate(task.seed, Init::he);
    }
    Tensor forward(const Tensor& images, Mode mode) const override {
        const Pool half{.window = 2, .stride = 2};
        const Tensor a = down1(images, mode), b = down2(max_pool2d(a, half), mode);
        const Tensor c = up2(concat({upsample(bottom(max_pool2d(b, half), mode), 2), b}), mode);
        return scores(up1(concat({upsample(c, 2), a}), mode));
    }
};
const RegisterNetwork<UNet> unet_network("unet");

struct UNetTraining final : ImageTraining {
    std::string masks;
    UNetTraining() : ImageTraining({"unet"}) {
        data_options.batch_size = 16, has_smoothing = false;
        augmentations = {}; // the masks would not move
    }
    void declare(Options& o) override {
        ImageTraining::declare(o);
        o.add("masks", &masks, "folder of masks, one for each image of --data").metavar("DIR").basic().by_rank();
    }
    data::Labels labels() const override { return data::Labels::none; }
    Task task(const data::ImageSet&) const override { return segmentation(kLabels); }
    std::vector<data::Column> columns(const data::ImageSet& images) const override {
        RG_CHECK(!masks.empty() && std::ssize(images.names) == images.count,
                 "--masks: expected --data and --masks, folders of images and ", "of their masks, got ",
                 masks.empty() ? "no masks" : "images without a folder", "; give both");
        RG_CHECK(data_options.test_path.empty(),
                 "--test-data: expected none, since the masks are those of --data; put the ",
                 "images for tests into a folder test there, beside train");
        return {data::rows(data::read_masks(images, masks, kLabels))};
    }
};
constinit const Program unet{
    "unet", "labels each pixel", make_training<UNetTraining>, {"--data photos --masks masks --size 64", "--resume"}};

} // namespace

int main(int argc, char** argv) { return run_training_main(argc, argv, unet); }
