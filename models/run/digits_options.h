// The options that the digit programs share, and what follows from them.
#pragma once

#include "core/schedule.h"
#include "data/loader.h"
#include "models/run/load_data.h"
#include "models/run/machine.h"
#include "models/run/training_run.h"

namespace rg {

struct DigitsOptions {
    DataOptions data;
    std::string augment = "translate", shuffle = "epoch";
    int64_t batch_size = 128, epochs = 20, steps = -1, seed = 0;
    double lr = 0, l2 = 0;
    ScheduleKind schedule = ScheduleKind::cosine;
    MachineOptions machine;
    RunOptions run;

    static constexpr const char* kMemoryAdvice = "make --batch-size smaller, or start fewer ranks";

    void declare_data(Options& options, const std::string& folder, const std::string& shards);
    void declare_training(Options& options);

    /// Grey images of --data, or 10,000 drawn ones. Where there is no test set, it is a tenth of each class, chosen at
    /// random by --seed; with --validation, a part of the training images takes its place. Collective; `pulse` as in
    /// load_data(). Errors: images of another size than 28 x 28, or what load_data() says.
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse = {}) const;
    /// The options of the training set's loader.
    data::LoaderOptions loader() const;
    Schedule rates() const { return {.kind = schedule, .base = lr, .epochs = double(epochs)}; }
};

} // namespace rg
