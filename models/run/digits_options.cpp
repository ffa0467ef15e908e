// See digits_options.h.
#include "models/run/digits_options.h"

#include "data/digits.h"

namespace rg {

void DigitsOptions::declare_data(Options& o, const std::string& folder, const std::string& shards) {
    data.declare(o, folder + ", 28 x 28", shards, "drawn digits");
    o.add("batch-size", &batch_size, "images per step, over all ranks; on GPUs, if not given, times their number")
        .range(1, 1e6);
    o.add("shuffle", &shuffle, "a new order every epoch, or file order").one_of({"epoch", "never"});
    o.add("augment", &augment, "translate: by up to 2 pixels, at random").one_of({"translate", "none"});
    o.add("seed", &seed, "of everything that is random: initial values, the part for testing, order, augmentation")
        .at_least(0);
}

void DigitsOptions::declare_training(Options& o) {
    o.group("Training");
    o.add("epochs", &epochs, "passes over the data").range(1, 1e6);
    o.add("steps", &steps, "stop after so many steps in all; -1: after the epochs").at_least(-1);
    o.add("lr", &lr, "the highest learning rate; 0: what goes with the batch size").at_least(0);
    o.add("schedule", &schedule, {{"constant", ScheduleKind::constant}, {"cosine", ScheduleKind::cosine}},
          "learning rate over the training");
    o.add("l2", &l2, "weight decay, on all parameters").at_least(0);
}

data::TrainTest DigitsOptions::load(par::Group& group, const std::function<void()>& pulse) const {
    data::LoadOptions grey = data.load_options(seed);
    grey.channels = 1, grey.test_fraction = 0.1;
    data::TrainTest sets =
        data.path.empty() ? data::split_sets(data::draw_digits(1000, 0), grey.test_fraction, grey.seed, "drawn digits")
                          : load_data(group, data.path, grey, pulse);
    const data::ImageSet& train = sets.train;
    RG_CHECK(train.height == data::kDigitSide && train.width == data::kDigitSide && train.channels == 1,
             "digits: expected grey images of 28 x 28, got ", train.height, " x ", train.width, " x ", train.channels,
             " in ", sets.source);
    data.hold_out_validation(sets, seed);
    return sets;
}

data::LoaderOptions DigitsOptions::loader() const {
    return {.batch_size = batch_size,
            .shuffle = shuffle == "epoch",
            .seed = uint64_t(seed),
            .augment = {.translate = augment == "translate" ? 2 : 0},
            .normalise = data::kDigits};
}

} // namespace rg
