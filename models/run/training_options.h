// The options that all training programs share.
#pragma once

#include "ringgrad/core/schedule.h"
#include "ringgrad/models/run/load_data.h"
#include "ringgrad/models/run/machine.h"
#include "ringgrad/models/run/optimizer.h"
#include "ringgrad/models/run/training_run.h"

namespace rg {

/// The learning rate for a mini-batch size: `rate` at `batch`, and otherwise proportional to the size, or to its square
/// root.
struct DefaultRate {
    double rate = 0.1, batch = 256;
    bool root = false;
    double at(int64_t batch_size) const;
    std::string text() const; // the formula, for --help
};

/// Programs change the defaults before they declare the options.
struct TrainingOptions {
    /// The texts for --help: what folders and what remote shards may contain, and what is used without --data.
    struct DataTexts {
        std::string folder = "CIFAR binary files or class folders of PNGs", shards = "either",
                    none = "the embedded sample of CIFAR-10";
    };
    DataTexts data_texts;
    DataOptions data_options;
    /// The augmentations that do not change what an image shows. --augment takes the first three names, and each other
    /// name has an option of its own, which is not declared without it here.
    std::vector<std::string> augmentations{"flip", "flip-vertical", "translate", "rotate", "scale", "resized-crop"};
    std::string augment = "flip,translate", partial = "discard";
    int64_t translate = 4, translate_x = -1, translate_y = -1;
    double rotate = 0;
    std::string scale = "1:1", resized_crop = "1:1";
    data::Fill fill = data::Fill::zero;

    int64_t epochs = 20, steps = -1;
    DefaultRate default_rate;
    Schedule schedule{.kind = ScheduleKind::cosine, .base = 0};
    std::string drops = "45";
    OptimizerOptions optimizer;
    double smoothing = 0;

    MachineOptions machine_options;
    RunOptions run_options;

    /// These declare the options of the data and of the training. machine_options and run_options declare their own.
    void declare_data(Options& options);
    void declare_training(Options& options);
    /// Sets the schedule, once the mini-batch size is known. Throws Error if the options do not fit together.
    void complete_schedule(const Options& options);
    /// Returns the options for the loader of the training set. Throws Error if --augment has an unknown name, or if a
    /// range is not of the form MIN:MAX.
    data::LoaderOptions loader_options(const data::Normalise& normalise) const;

private:
    bool allows(const std::string& augmentation) const;
    /// Returns the names of --augment that `augmentations` has.
    std::vector<std::string> augment_names() const;
    data::Augment augmentation() const;

    OptimizerOptions::Kind default_optimizer_ = OptimizerOptions::Kind::sgd; // that of default_rate
};

} // namespace rg
