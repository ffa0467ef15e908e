// train_digits: trains digits_net on drawn digits, MNIST or other images of 28 x 28, on one process or on several MPI
// ranks. Images in colour become grey.
#include "data/digits.h"
#include "models/programs.h"
#include "models/run/training.h"

using namespace rg;

namespace {

struct TrainDigits final : ImageTraining {
    TrainDigits() : ImageTraining({"digits"}) {
        data_texts = {"MNIST files or class folders of 28 x 28 PNGs", "drawn digits"};
        augmentations = {"translate", "crop", "rotate", "scale", "resized-crop"}, augment = "translate", translate = 2;
        default_rate = {0.01, 128};
        optimizer.weight_decay = 1e-4;
    }
    data::TrainTest load(par::Group& group, const std::function<void()>& poll_stop) const override {
        return load_digits(group, data_options, poll_stop);
    }
    data::Normalise normalise(const data::ImageSet&) const override { return data::kDigits; }
};

} // namespace

constinit const Program rg::train_digits{"train_digits",
                                         "trains a small network on digits, on one process or under mpiexec",
                                         make_training<TrainDigits>,
                                         {"--epochs 3", "--data ~/mnist --run-name mnist"},
                                         "--batch-size=128 --lr=0.01 --epochs=20 --schedule=constant --l2=0 "
                                         "--augment=none --normalise=none --initializer=glorot"};
