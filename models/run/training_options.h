// The options that all training programs share.
#pragma once

#include "core/schedule.h"
#include "models/run/compute.h"
#include "models/run/load_data.h"
#include "models/run/optimizer.h"
#include "models/run/task.h"
#include "models/run/training_run.h"

#include <set>

namespace rg {

/// The default learning rate as a function of the mini-batch size. It is `rate` at size `batch`, and proportional to
/// the size, or with `root` to its square root.
struct DefaultRate {
    double rate = 0.1, batch = 256;
    bool root = false;
    double at(int64_t batch_size) const;
    std::string text() const; // the formula, for --help
};

/// The options and their defaults. A program may change the defaults before it declares the options.
struct TrainingOptions {
    /// The texts for --help: the contents of a folder, and the data without --data.
    struct DataTexts {
        std::string folder = "CIFAR binary files or class folders of PNGs and JPEGs",
                    none = "the embedded sample of CIFAR-10";
    };
    DataTexts data_texts;
    DataOptions data_options;
    enum class Normalisation : uint8_t { automatic, imagenet, none } normalisation = Normalisation::automatic;
    /// The augmentations that the program allows, since they do not change the class or target of its images. The
    /// flips, "translate" and "crop" are values of --augment. Each of the others has an option of its own, which is
    /// declared only if the list has its name.
    std::set<std::string> augmentations{"flip", "alternating-flip", "flip-vertical", "translate",
                                        "crop", "rotate",           "scale",         "resized-crop"};
    enum class Partial : uint8_t { automatic, keep, discard } partial = Partial::automatic;
    std::string augment = "auto"; // a training replaces auto by the result of default_augment()
    int64_t translate = 4, translate_x = -1, translate_y = -1;
    double rotate = 0;
    std::string scale = "1:1", resized_crop = "1:1";
    data::Fill fill = data::Fill::zero;
    std::string jitter = "0,0,0", class_weights = "none", sampler = "uniform";
    double erase = 0, mixup = 0, cutmix = 0;

    int64_t epochs = 20, steps = -1;
    bool scales_batch_size = true;   // multiply the default of --batch-size by the number of GPUs
    bool batch_size_per_gpu = false; // multiply --batch-size by the number of GPUs, whatever the number of images
    DefaultRate default_rate;
    Schedule schedule{.kind = ScheduleKind::cosine, .base = 0};
    std::string drops = "0.9";
    double drop_every = 0;
    OptimizerOptions optimizer;
    std::string freeze, rate_factors;
    double smoothing = 0;
    // False: there is no --label-smoothing, --class-weights and --sampler, for a task() that does not use classes.
    bool has_smoothing = true;
    // True: the network takes Batch::targets, the numbers that the table of the images has, as a second input.
    bool takes_numbers = false;

    ComputeOptions compute_options;
    TrainingRunOptions run_options;

    /// Declare the options of the data and of the training. compute_options and run_options declare their own.
    void declare_data(Options& options);
    void declare_training(Options& options);
    /// Throws Error if the options of the optimizer, the schedule or the augmentation are invalid or do not fit
    /// together.
    void check(const Options& options) const;
    /// Sets the default of --batch-size for so many training images: that of the program, times the number of GPUs if
    /// scales_batch_size, but at most a sixteenth of the images, as a power of two of at least 8. With
    /// batch_size_per_gpu, multiplies --batch-size by the number of GPUs instead.
    void fit_batch_size(int64_t images, const Workers& workers);
    /// Returns the highest learning rate: --lr, or without it the default of the optimizer and the mini-batch size.
    double highest_rate() const;
    /// Returns `schedule` with the highest rate, the epochs and the drops. Call this when the mini-batch size is known.
    /// Throws Error if it is invalid.
    Schedule full_schedule() const;
    /// Freezes the layers of --freeze, and sets the factors of --lr-scale. Call this before the optimizer is made.
    /// Throws Error if a layer does not exist, if --init-skip leaves out a part of one to freeze, or if a factor is no
    /// number of at least 0.
    void set_rates(Parameters& parameters) const;
    /// Returns the value that replaces `--augment auto`: flip and translate, as far as the program allows them, if
    /// `keeps_labels`, else none. They keep classes and reconstructions, but not numbers, masks or other values.
    std::string default_augment(bool keeps_labels) const;
    /// Returns the options for the loader of the training set. Throws Error if --augment is empty or has an unknown
    /// name, if it has crop without --store-size, if a range is not of the form MIN:MAX, if a list of numbers has a
    /// wrong form or length, or if the task does not support the mixing of images, or weights.
    data::LoaderOptions loader_options(const data::ImageSet& images, const data::Normalise& normalise,
                                       const Task& task) const;

private:
    /// Returns the names in `augmentations` that --augment accepts.
    std::vector<std::string> augment_names() const;
    data::Augment augmentation() const;
    std::vector<float> weights_of_classes(const data::ImageSet& images) const;

    bool default_momentum_ = true; // true if default_rate is for sgd and muon, false if it is for Adam
};

} // namespace rg
