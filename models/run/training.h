// Training programs: the training of a network on images, with the options, tests and files that each program has. By
// default, the network is a classifier; see task().
//
//     struct MyTraining : ImageTraining {
//         MyTraining() : ImageTraining({"mine"}) { epochs = 10; } // the name of a registered network
//     };
//     constinit const Program my_training{"my_training", "trains my network", make_training<MyTraining>};
//     int main(int argc, char** argv) { return run_training_main(argc, argv, my_training); } // training_main.h
//
// Each rank holds the whole network. A worker takes m of the M images of a mini-batch, a share of f = m / M. The
// gradient and the loss of the mini-batch are sums over the workers of f times the worker's value. Batch norm's running
// mean is such a sum too. Its running variance also contains the differences between the workers' means
// (par/aggregate.h). All ranks then apply the same update. A rank is one worker, or with --workers several, one after
// another. Idle ranks (see Workers in compute.h) take no images. The order of the images in an epoch does not depend on
// the number of ranks.
//
// training.cpp reads from top to bottom: the run, its epochs, the step, and the part of the step that is replayed. For
// other data, write the loop yourself, with RunLog (run_log.h), Saver (saver.h), Loader (data/loader.h), GradientSum
// (gradient_sum.h) and Optimizer (optimizer.h).
#pragma once

#include "models/nets/networks.h"
#include "models/run/task.h"
#include "models/run/training_options.h"

#include <array>

namespace rg {

/// The result of a test of a model. `text` and `values` have its metrics, `report` has members of a RUN (report.h).
/// `folder` is the path of the images, as in --data.
struct TestResult {
    std::string text;
    Json values, report;
    data::ImageSet images;
    std::string folder;
    std::vector<std::string> warnings;
    std::vector<Detail::CsvTable> tables = {};
};

class ImageTraining : public TrainingOptions {
public:
    /// Takes the names of the networks that --net chooses from; see NetworkChoice. For a single name, --net is absent.
    explicit ImageTraining(std::vector<std::string> networks) : network_(std::move(networks)) {}
    virtual ~ImageTraining() = default;
    virtual void declare(Options& options);
    /// Collective. Loads the sets for training and test that the options choose, regardless of --validation. Without
    /// --size, all images must have the same size. Throws Error if the program cannot train on these data. `poll_stop`:
    /// see run_while_polling() in collective.h.
    virtual data::TrainTest load(par::Group& group, const std::function<void()>& poll_stop) const;
    /// Collective. Returns the data of load(), with the validation images held out. Adds warnings if all images have
    /// one class, so that nothing can be learned, or if images for tests are training images too.
    data::TrainTest checked_data(par::Group& group, const std::function<void()>& poll_stop) const;
    /// Collective. Trains, and returns the exit code.
    virtual int train(Options& options, par::Group& group, TrainingObserver& observer);
    /// Tests a model (see load_model()) on the test set that the options choose. Ignores --validation. Throws Stopped
    /// after a stop request. `group` must have a single rank.
    TestResult test(Options& options, par::Group& group, const std::string& model);
    /// Returns the metrics of a training on these images; the first one is the main one.
    std::vector<MetricInfo> metrics(const data::ImageSet& images) const;

protected:
    /// Returns the loss and the metrics of the network. This base version returns classification() with
    /// --label-smoothing.
    virtual Task task(const data::ImageSet& /*images*/) const { return classification(smoothing); }
    /// Returns the labels that the images must have. This base version returns one_class.
    virtual data::Labels labels() const { return data::Labels::one_class; }
    /// Returns further values of each image, for the task or the network: see Batch::columns. `images` outlives them.
    virtual std::vector<data::Column> columns(const data::ImageSet& /*images*/) const { return {}; }
    /// Returns the outputs of the network. The call may be traced, so it may only use ops. This base version returns
    /// those for batch.x and, with takes_numbers, batch.targets. A network may also take inputs from Batch::columns,
    /// but then no program can predict with its file.
    virtual std::vector<Tensor> forward(const Network& network, const data::Batch& batch, Mode mode) const {
        return takes_numbers ? network.outputs(batch.x, batch.targets, mode) : network.outputs(batch.x, mode);
    }
    /// Sets the defaults of a new training that depend on other options, when the mini-batch size is known. This base
    /// version does nothing.
    virtual void set_dependent_defaults(const Options& /*options*/) {}
    /// Returns the normalisation of a new run with `--normalise auto`. This base version returns
    /// normalisation_of(images).
    virtual data::Normalise normalise(const data::ImageSet& images) const { return data::normalisation_of(images); }
    /// Changes the initial values of the network. After this, a resumed run or --init replaces the values by those of a
    /// file. This base version does nothing.
    virtual void initialise(Network&, const data::ImageSet& /*images*/, const data::Normalise&) const {}
    /// Seconds, summed over all complete epochs in this process, and Accelerated::hit_rate() of training and tests.
    struct Times {
        double train = 0, test = 0; // of the steps, and of the tests after epochs
        double train_hits = 0, test_hits = 0;
        double plain_train = 0, plain_test = 0; // of the same op by op; 0 without `repeats_plain`
    };
    /// If true, repeats each complete epoch and its test op by op, from the state before the epoch. Keeps only the
    /// times of this, and restores the state after the epoch.
    bool repeats_plain = false;
    /// Called at the end of a training, also of a stopped one, after all tests.
    virtual void after_training(TrainingRun&, const Times&) {}

private:
    class Trainer; // training.cpp

    /// Collective. Loads the data. If the run begins with a model (from a checkpoint or --init) whose file says which
    /// images its training held out, holds out the same ones, so that no image of that training is tested. If the file
    /// does not say so, warns.
    data::TrainTest data_for(TrainingRun& run);

    NetworkChoice network_;
    bool test_views_ = false, sync_bn_ = false, profile_ = false, plan_dump_ = false;
};

/// Describes a training program, so that a sweep (models/sweep/trials.h) can check its arguments and run it.
struct Program {
    const char *name, *description;
    std::unique_ptr<ImageTraining> (*make)();
    /// The arguments of the two examples in --help. The examples of `sweep` begin with the first one.
    std::array<const char*, 2> examples{"--epochs 3", "--resume"};
    /// The arguments of --preset matlab, with a space between them. Their --batch-size is that of one GPU. If empty,
    /// there is no such option.
    const char* matlab = "";

    /// Parses the arguments of a command line, without the program's name, and returns the values of all options.
    /// Throws Error if a name is unknown or a value is bad.
    Json check(const std::vector<std::string>& args) const;
    /// Like check(), but returns only the options that a resumed run cannot change, and --epochs and --steps.
    Json check_fixed(const std::vector<std::string>& args) const;
    /// The result of check_data() has warnings for users, the metrics of the training, and in `sets`, for the name of
    /// each set of images, such as "training set", its fingerprint.
    struct DataCheck {
        std::vector<std::string> warnings;
        std::vector<MetricInfo> metrics;
        Json sets;
    };
    /// Collective. Loads the data as a training with these arguments does. Throws Error if an argument is bad, or if
    /// the program cannot train on the data.
    DataCheck check_data(par::Group& group, const std::vector<std::string>& args) const;
    /// Tests a model of a run of this program (see load_model()) on the images that the run was tested on in the end.
    /// Takes the options from `given`, an object with their values by name, and those that it lacks from the run's
    /// config.json, except --threads, --batch-size and --gpus. Warns if the images have changed. Throws Stopped after a
    /// stop request. `group` must have a single rank.
    TestResult test_run(par::Group& group, const std::string& model, const Json& given) const;
    /// Collective. Trains on all ranks of the group. For --help, --help-all and --version, rank 0 prints the answer
    /// instead, with the `commands` of the program. Returns the exit code.
    int run(par::Group& group, const std::vector<std::string>& args, TrainingObserver& observer,
            const std::vector<std::pair<std::string, std::string>>& commands = {}) const;
};

/// Makes a training for Program::make.
template <class T>
std::unique_ptr<ImageTraining> make_training() {
    return std::make_unique<T>();
}

} // namespace rg
