// train_cifar: trains a classifier on CIFAR-10 or other images, on one process or on several MPI ranks.
//
// This file chooses the networks and the defaults. main.cpp calls run_training_main(), which calls Program::run() in
// models/run/program.cpp. From there, ImageTraining::train() loads the data and trains.
#include "data/cifar.h"
#include "models/programs.h"
#include "models/run/training.h"

using namespace rg;

namespace {

struct TrainCifar final : ImageTraining {
    TrainCifar()
        : ImageTraining({"cifar", "resnet20", "resnet18", "resnet50", "wrn16-4", "mobilenet_v2", "mobilenet_v3_small",
                         "mobilenet_v3_large"}) {
        data_options.batch_size = 256;
        epochs = 50;
        optimizer.weight_decay = 1e-10;
        schedule.kind = ScheduleKind::piecewise;
    }
    data::Normalise normalise(const data::ImageSet& images) const override {
        const bool cifar10 = images.classes == data::class_names(data::CifarKind::cifar10);
        return cifar10 ? data::kCifar10 : ImageTraining::normalise(images);
    }
};

} // namespace

constinit const Program rg::train_cifar{
    "train_cifar",
    "trains a convolutional network on CIFAR-10 or class folders of images, on one process or under mpiexec",
    make_training<TrainCifar>,
    {"--epochs 3", "--data ~/photos --size 32 --net resnet18"},
    "--batch-size=256 --epochs=50 --drop-every=45 --initializer=glorot"};
