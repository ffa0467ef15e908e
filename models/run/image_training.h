// The training of a network on images, with the options, tests and files that every training program has. By default,
// the network is a classifier; see task().
//
//     struct MyTraining final : ImageTraining {
//         MyTraining() : ImageTraining({"mine"}) { epochs = 10; } // the name of a registered network
//     };
//     constinit const Program my_training{"my_training", "trains my network", make_training<MyTraining>};
//     int main(int argc, char** argv) { return run_training_main(argc, argv, my_training); } // training_main.h
//
// Each rank holds the whole network and takes its share of every mini-batch (none, if it is idle by --spare-ranks).
// Trainer (trainer.h) has the loop and the steps. The order of the images in an epoch does not depend on the number of
// ranks.
#pragma once

#include "ringgrad/models/nets/networks.h"
#include "ringgrad/models/run/program.h"
#include "ringgrad/models/run/task.h"
#include "ringgrad/models/run/trainer.h"
#include "ringgrad/models/run/training_options.h"

namespace rg {

class ImageTraining : public Training, public TrainingOptions {
public:
    /// Takes the names of the networks that --net chooses from; see NetworkChoice. For a single name, --net is absent.
    explicit ImageTraining(std::vector<std::string> networks) : network_(std::move(networks)) {}
    void declare(Options& options) override;
    /// Collective. Loads the data that the options choose. Without --size, all images must have the same size. `pulse`:
    /// see run_while_polling() in data_parallel.h.
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override;
    std::vector<MetricName> metrics(const data::ImageSet& images) const override;
    int train(Options& options, par::Group& group, Trial& trial) override;
    TestResult test(Options& options, par::Group& group, const std::string& model) override;

protected:
    /// Returns what the network learns. This base version returns classification() with --label-smoothing.
    virtual Task task(const data::ImageSet& /*images*/) const { return classification(smoothing); }
    /// Returns the labels that the images must have. This base version returns one_class.
    virtual data::Labels labels() const { return data::Labels::one_class; }
    /// Returns further values of each image, for the task or the network. `images` outlives them.
    virtual std::vector<data::Column> columns(const data::ImageSet& /*images*/) const { return {}; }
    /// Returns the outputs of the network. It may be traced, so it may only use ops. A network of several inputs takes
    /// some of them from Batch::columns. This base version returns network.outputs(batch.x, mode).
    virtual std::vector<Tensor> forward(const Network& network, const data::Batch& batch, Mode mode) const {
        return network.outputs(batch.x, mode);
    }
    /// Sets the defaults that depend on other options. This base version multiplies the default mini-batch size by the
    /// number of GPUs, except in a resumed run.
    virtual void complete(const Options& options, const Workers& workers, bool resumed);
    /// Returns the normalisation, which the model's file stores. This base version returns normalisation_of(images).
    virtual data::Normalise normalise(const data::ImageSet& images) const { return data::normalisation_of(images); }
    /// Changes the initial values of the network. After this, a resumed run or --init replaces the values by those of a
    /// file. This base version does nothing.
    virtual void initialise(Network&, const data::ImageSet& /*images*/, const data::Normalise&) const {}
    /// Collective. Trains once. Keeps the data in `data`, or takes them from there if it holds some.
    int train(TrainingRun& run, const Options& options, data::TrainTest& data);
    /// Called after the last step of train().
    virtual void trained(TrainingRun&, const Trainer&, const Trainer::Seconds&, const Evaluation&) {}

private:
    NetworkChoice network_;
    bool test_views_ = false, sync_bn_ = false, profile_ = false, plan_dump_ = false;
};

} // namespace rg
