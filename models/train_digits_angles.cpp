// train_digits_angles: trains a network with two heads, one for the class of a digit and one for the angle of its
// rotation. By default, it then repeats the training with --no-accelerate (op by op, without a plan) and compares the
// times. The second training is a separate run, so the first can be resumed like any other.
//
// The network, and so the saved model, gives the angle in degrees. The loss is cross-entropy + --angle-weight x the
// mean squared error in degrees^2. By default, training leaves out the last mini-batch of an epoch if it is smaller
// than the others
// (--partial-batch). The test uses all images.
#include "ringgrad/core/formatted.h"
#include "ringgrad/data/digits.h"
#include "ringgrad/models/programs.h"
#include "ringgrad/models/run/training.h"

#include <filesystem>

using namespace rg;

namespace {

class TrainDigitsAngles final : public ImageTraining {
public:
    TrainDigitsAngles() : ImageTraining({"digits-angles"}) {
        data_texts = {"class folders of 28 x 28 PNGs with angles.csv", "drawn digits"};
        data_options.batch_size = 32;
        augmentations = {"translate", "crop", "scale"}; // flips, rotate and resized-crop change the angle
        augment = "translate", translate = 2;
        default_rate = {0.002, 32, true};
        optimizer.kind = OptimizerOptions::Kind::adam;
    }
    void declare(Options& o) override {
        ImageTraining::declare(o);
        o.add("angle-weight", &angle_weight_, "weight of the mean squared error in the loss").at_least(0);
        o.add("compare", &compare_,
              "train a second time, op by op, and compare the times; with --run-name NAME the second run is "
              "NAME-plain; off with --resume or --no-accelerate");
    }
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override;
    int train(Options& options, par::Group& group, TrainingObserver& observer) override;

private:
    /// The class by the first head, the angle by the second.
    Task task(const data::ImageSet&) const override {
        return classification(smoothing).with(regression({{"angle", "degrees"}}, 1, false), angle_weight_);
    }
    data::Normalise normalise(const data::ImageSet&) const override { return data::kDigits; }
    void trained(TrainingRun& run, const Times& times) override;

    double angle_weight_ = 0.1;
    bool compare_ = true;
    Times times_;                      // of the last training
    bool stopped_ = false;             // how it ended
    std::optional<Times> accelerated_; // of the first training, during and after the second one
};

data::TrainTest TrainDigitsAngles::load(par::Group& group, const std::function<void()>& pulse) const {
    data::TrainTest data = load_digits(group, data_options, pulse);
    for (const data::ImageSet* set : {&data.train, &data.test})
        RG_CHECK(!set->targets.empty(), "train_digits_angles: expected images with angles (angles.csv), got ",
                 data.source);
    return data;
}

void TrainDigitsAngles::trained(TrainingRun& run, const Times& times) {
    times_ = times, stopped_ = run.stopped();
    run.log(Json::object()
                .set("accelerate", machine_options.accelerate)
                .set("train_seconds", times.train)
                .set("test_seconds", times.test)
                .set("train_hit_rate", times.train_hits)
                .set("test_hit_rate", times.test_hits));
    if (compare_ && machine_options.accelerate && run.resumed())
        run.note("not compared with a training op by op, since this run was resumed");
    run.note(formatted("training %.2f s, hit rate %.2f %%; prediction %.2f s, hit rate %.2f %%", times.train,
                       100 * times.train_hits, times.test, 100 * times.test_hits));
    if (!accelerated_) return;
    Json groups = Json::array();
    const auto compare = [&](const char* name, double plain, double accelerated, double hits) {
        std::string note = "not measured"; // for example no test, if the training ended within its first epoch
        if (plain > 0 && accelerated > 0)
            note = formatted("%.2f times as fast, hit rate %.2f %%", plain / accelerated, 100 * hits);
        groups.push(
            Json::object()
                .set("name", name)
                .set("bars", Json::Array{Json::Array{"op by op", plain}, Json::Array{"accelerated", accelerated}})
                .set("note", note));
        if (!stopped_) run.note(cat(name, ": ", note)); // else the trainings have different lengths
    };
    compare("training", times.train, accelerated_->train, accelerated_->train_hits);
    compare("prediction", times.test, accelerated_->test, accelerated_->test_hits);
    run.set_in_report("bars", Json::object()
                                  .set("title", "Op by op and accelerated") // see report.h
                                  .set("unit", "seconds")
                                  .set("groups", groups));
}

int TrainDigitsAngles::train(Options& options, par::Group& group, TrainingObserver& observer) {
    const bool can_compare = observer.standalone() && machine_options.accelerate;
    RG_CHECK(machine_options.accelerate || !compare_ || !options.was_given("compare"),
             "train_digits_angles: expected --accelerate with --compare, got --no-accelerate; omit one of them");
    const bool trains_twice = compare_ && can_compare && !run_options.resume;
    const std::string plain_name = run_options.name.empty() ? "" : run_options.name + "-plain";
    RG_CHECK(!trains_twice || plain_name.empty() || !std::filesystem::exists(run_options.runs + "/" + plain_name),
             "train_digits_angles: expected no run ", run_options.runs, "/", plain_name,
             ", which --compare creates, got one; give another --run-name, or --no-compare");
    data::TrainTest data;
    const auto train_once = [&] {
        stopped_ = true; // remains if a stop request ends the loading of data
        TrainingRun run(run_options, options, group, observer);
        return run.supervise([&] { return train_with(run, options, data); });
    };
    const int64_t batch_size = data_options.batch_size; // train() may change it
    const int code = train_once();
    if (!trains_twice || stopped_) return code;
    accelerated_ = times_;
    run_options.name = plain_name;
    data_options.batch_size = batch_size;
    machine_options.accelerate = false;
    return train_once();
}

} // namespace

constinit const Program rg::train_digits_angles{"train_digits_angles",
                                                "trains a network to recognise digits and the angles of their rotation",
                                                make_training<TrainDigitsAngles>,
                                                {"--epochs 3", "--data ~/digits --no-compare"},
                                                "--batch-size=32 --lr=0.001 --schedule=constant --angle-weight=0.05 "
                                                "--augment=none --normalise=none --initializer=glorot"};
