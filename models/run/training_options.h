// The options of the training programs, and the data of the digit programs.
#pragma once

#include "ringgrad/core/schedule.h"
#include "ringgrad/models/run/load_data.h"
#include "ringgrad/models/run/machine.h"
#include "ringgrad/models/run/training_run.h"

namespace rg {

/// The options that all training programs share. Programs change the defaults before they declare the options.
struct TrainingOptions {
    DataOptions data_options;
    std::string augment = "translate";
    int64_t epochs = 20, steps = -1;
    double momentum = 0.9, l2 = 0;
    Schedule schedule{.kind = ScheduleKind::cosine, .base = 0};
    MachineOptions machine_options;
    RunOptions run_options;

    /// Declares length, learning rate and weight decay. `default_lr` says in --help which formula replaces a learning
    /// rate of 0.
    void declare_training(Options& o, const std::string& default_lr,
                          const std::vector<std::pair<std::string, ScheduleKind>>& schedules);
};

struct DigitsOptions : TrainingOptions {
    static constexpr const char* kMemoryAdvice = "make --batch-size smaller, or start fewer ranks";

    void declare(Options& o, const std::string& folder, const std::string& shards, const std::string& default_lr);
    /// Collective. Returns the grey images of --data, or 10,000 drawn ones. Data without a test set get one: a tenth of
    /// each class, chosen by --seed. With --validation, a fraction of the training images takes the place of the test
    /// set. Throws Error if the images are not 28 x 28, and what load_data() throws. `pulse`: see load_data().
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse = {}) const;
    /// Returns the options for the training set's loader.
    data::LoaderOptions loader_options() const;
};

} // namespace rg
