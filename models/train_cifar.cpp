// train_cifar: trains cifar_net on CIFAR-10, on one process or on several MPI ranks.
//
// This file has the network's options and the defaults. ImageTraining (models/run/image_training.h) trains, with the
// loop of Trainer (models/run/trainer.h).
#include "ringgrad/data/cifar.h"
#include "ringgrad/models/nets/cifar_net.h"
#include "ringgrad/models/programs.h"
#include "ringgrad/models/run/image_training.h"

using namespace rg;

namespace {

struct TrainCifar final : ImageTraining {
    CifarNet::Options size;

    TrainCifar() {
        data_texts.none = "the embedded sample, where the defaults are --epochs 10 --drops 8, and --batch-size 50 for "
                          "any number of GPUs";
        data_options.batch_size = 256;
        epochs = 50;
        optimizer.weight_decay = 1e-10;
        schedule.kind = ScheduleKind::piecewise;
    }
    void declare_network(Options& o) override {
        o.add("width", &size.width, "channels of the first block").range(1, 4096);
        o.add("depth", &size.depth, "convolutions per block").range(1, 64);
        o.add("initializer", &size.init,
              {{"he", Init::he}, {"glorot", Init::glorot}, {"narrow-normal", Init::narrow_normal}},
              "distribution of the initial weights");
    }
    void complete(const Options& options, const Workers& workers, bool resumed) override {
        if (!data_options.path.empty() || resumed) return ImageTraining::complete(options, workers, resumed);
        if (!options.was_given("batch-size")) data_options.batch_size = 50;
        if (!options.was_given("epochs")) epochs = 10;
        if (!options.was_given("drops")) drops = std::string("8"); // g++ 12 warns of a plain literal
    }
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override {
        data::TrainTest sets = ImageTraining::load(group, pulse);
        expect_images(sets, {32, 32, 3});
        return sets;
    }
    data::Normalise normalise(const data::ImageSet& images) const override {
        const bool cifar10 = images.classes == data::class_names(data::CifarKind::cifar10);
        return cifar10 ? data::kCifar10 : ImageTraining::normalise(images);
    }
    std::unique_ptr<Network> make_network(const data::ImageSet& images) const override {
        CifarNet::Options options = size;
        options.classes = int64_t(images.classes.size()), options.seed = seed();
        return std::make_unique<CifarNet>(options);
    }
};

} // namespace

constinit const Program rg::train_cifar{"train_cifar",
                                        "trains a convolutional network on CIFAR-10, on one process or under mpiexec",
                                        make_training<TrainCifar>};
