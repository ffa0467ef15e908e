// See training_options.h.
#include "ringgrad/models/run/training_options.h"

#include "ringgrad/data/digits.h"

namespace rg {

void TrainingOptions::declare_training(Options& o, const std::string& default_lr,
                                       const std::vector<std::pair<std::string, ScheduleKind>>& schedules) {
    o.group("Training");
    o.add("epochs", &epochs, "number of epochs").range(1, 1e6);
    o.add("steps", &steps, "total number of steps; -1: those of --epochs epochs").at_least(-1);
    o.add("lr", &schedule.base, cat("highest learning rate; 0: ", default_lr)).at_least(0);
    o.add("schedule", &schedule.kind, schedules, "schedule of the learning rate");
    o.add("l2", &l2, "weight decay of all parameters").at_least(0);
}

void DigitsOptions::declare(Options& o, const std::string& folder, const std::string& shards,
                            const std::string& default_lr) {
    data_options.declare(o, folder, shards, "drawn digits");
    o.add("augment", &augment, "augmentation; translate: by up to 2 pixels in each direction")
        .one_of({"translate", "none"});
    declare_training(o, default_lr, {{"constant", ScheduleKind::constant}, {"cosine", ScheduleKind::cosine}});
}

data::TrainTest DigitsOptions::load(par::Group& group, const std::function<void()>& pulse) const {
    data::LoadOptions grey = data_options.load_options();
    grey.channels = 1, grey.test_fraction = 0.1;
    data::TrainTest sets = data_options.path.empty()
                               ? data::split_sets(data::draw_digits(1000, 0), grey.test_fraction, grey.seed,
                                                  "drawn digits")
                               : load_data(group, data_options.path, grey, pulse);
    data_options.hold_out_validation(sets, {data::kDigitSide, data::kDigitSide, 1});
    return sets;
}

data::LoaderOptions DigitsOptions::loader_options() const {
    return data_options.loader_options({.translate = augment == "translate" ? 2 : 0}, data::kDigits);
}

} // namespace rg
