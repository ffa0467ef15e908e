// train_digits_angles: trains a network with two heads, one for the class of a digit and one for the angle of its
// rotation. By default, it trains each epoch a second time, op by op (without a plan), and compares the times.
//
// The network, and so the saved model, gives the angle in degrees. The loss is cross-entropy + --angle-weight x the
// mean squared error in degrees^2.
#include "core/formatted.h"
#include "data/digits.h"
#include "models/programs.h"
#include "models/run/training.h"

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
        optimizer.kind = OptimizerKind::adam;
    }
    void declare(Options& o) override {
        ImageTraining::declare(o);
        o.add("angle-weight", &angle_weight_, "weight of the mean squared error in the loss").at_least(0);
        o.add(
            "compare", &compare_,
            "train each epoch a second time, op by op, and compare the times; off with --no-accelerate and in sweeps");
    }
    data::TrainTest load(par::Group& group, const std::function<void()>& poll_stop) const override;
    int train(Options& options, par::Group& group, TrainingObserver& observer) override;

private:
    /// Returns the task with two outputs: the scores of the classes, and the angle.
    Task task(const data::ImageSet&) const override {
        return classification(smoothing).with(regression({{"angle", "degrees"}}, 1, false), angle_weight_);
    }
    data::Normalise normalise(const data::ImageSet&) const override { return data::kDigits; }
    void after_training(TrainingRun& run, const Times& times) override;

    double angle_weight_ = 0.1;
    bool compare_ = true;
};

data::TrainTest TrainDigitsAngles::load(par::Group& group, const std::function<void()>& poll_stop) const {
    data::TrainTest data = load_digits(group, data_options, poll_stop);
    for (const data::ImageSet* set : {&data.train, &data.test})
        RG_CHECK(!set->targets.empty(), "train_digits_angles: expected images with angles (angles.csv), got ",
                 data.source);
    return data;
}

int TrainDigitsAngles::train(Options& options, par::Group& group, TrainingObserver& observer) {
    RG_CHECK(compute_options.accelerate || !compare_ || !options.was_given("compare"),
             "train_digits_angles: expected --accelerate with --compare, got --no-accelerate; omit one of them");
    repeats_plain = compare_ && compute_options.accelerate && observer.standalone();
    return ImageTraining::train(options, group, observer);
}

void TrainDigitsAngles::after_training(TrainingRun& run, const Times& times) {
    Json line = Json::object()
                    .set("accelerate", compute_options.accelerate)
                    .set("train_seconds", times.train)
                    .set("test_seconds", times.test)
                    .set("train_hit_rate", times.train_hits)
                    .set("test_hit_rate", times.test_hits);
    if (repeats_plain) line.set("plain_train_seconds", times.plain_train).set("plain_test_seconds", times.plain_test);
    run.log.log(line);
    run.log.note(formatted("training %.2f s, hit rate %.2f %%; prediction %.2f s, hit rate %.2f %%", times.train,
                           100 * times.train_hits, times.test, 100 * times.test_hits));
    Json groups = Json::array();
    const auto compare = [&](const char* name, double plain, double accelerated, double hits) {
        if (!(plain > 0 && accelerated > 0)) return; // for example if the training ended within its first epoch
        const std::string note =
            formatted("%.2f times as fast as op by op, hit rate %.2f %%", plain / accelerated, 100 * hits);
        groups.push(
            Json::object()
                .set("name", name)
                .set("bars", Json::Array{Json::Array{"op by op", plain}, Json::Array{"accelerated", accelerated}})
                .set("note", note));
        run.log.note(cat(name, ": ", note));
    };
    compare("training", times.plain_train, times.train, times.train_hits);
    compare("prediction", times.plain_test, times.test, times.test_hits);
    if (groups.as_array().empty()) return;
    run.log.set_in_report("bars", Json::object()
                                      .set("title", "Op by op and accelerated, epoch by epoch") // see report.h
                                      .set("unit", "seconds")
                                      .set("groups", groups));
}

} // namespace

constinit const Program rg::train_digits_angles{"train_digits_angles",
                                                "trains a network to recognise digits and the angles of their rotation",
                                                make_training<TrainDigitsAngles>,
                                                {"--epochs 3", "--data ~/digits --no-compare"},
                                                "--batch-size=32 --lr=0.001 --schedule=constant --angle-weight=0.05 "
                                                "--augment=none --normalise=none --initializer=glorot"};
