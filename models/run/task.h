// The task that a training teaches its network: a loss, and metrics, which say how good the network is.
//
//     Task task = classification();
//     Task both = classification().with(regression({{"angle", "degrees"}}, 1), 0.1); // two heads
//
// A program may also write a task of its own: a loss of ops, and functions that add up numbers over the samples of a
// batch. Run folder, progress, report, checkpoints, sweeps and --patience work for every task.
#pragma once

#include "core/layers.h"
#include "models/run/model_file.h"
#include "models/run/worst_samples.h"

namespace rg {

/// The name of a metric, and how to show its values.
struct MetricInfo {
    std::string name;              // in files; "accuracy" gives train_accuracy, test_accuracy and validation_accuracy
    std::string label = "";        // for people, such as "acc"; empty: the name
    std::string unit = "";         // "%": the value is a fraction, and people see percent; "": no unit
    bool higher_is_better = false; // for the best model, --patience and sweeps

    bool operator==(const MetricInfo&) const = default;
    const std::string& shown() const { return label.empty() ? name : label; }
    /// Returns true if `value` is better than `other`, and neither is NaN.
    bool is_better(double value, double other) const { return higher_is_better ? value > other : value < other; }
    /// Returns the label and the value for people, such as "acc 93.51 %". `decimals` is for values in percent; others
    /// have one more.
    std::string format(double value, int decimals = 2) const;
    /// Returns {"name", "label", "unit", "higher_is_better"}.
    Json json() const;
};

/// Returns the metric of this name among `known`. If there is none, throws Error, which begins with `option` and lists
/// the known names.
const MetricInfo& metric_named(const std::string& option, const std::string& name,
                               const std::vector<MetricInfo>& known);

/// A metric of a batch, an epoch or a set: sums over the samples, and the value that they give.
struct Metric : MetricInfo {
    int64_t sums = 1;
    /// Adds the terms of a batch to `sums`. All tensors are in host memory, as in Task::loss in Mode::evaluate.
    std::function<void(Outputs outputs, const data::Batch& batch, std::span<double> sums)> add = {};
    /// Returns the value. If this function is null, the value is sums[0] / samples.
    std::function<double(std::span<const double> sums, double samples)> finish = {};
};

/// The result of a test over a whole set.
struct Score {
    double loss = 0;
    std::vector<double> metrics = {};              // one value for each of Task::metrics
    std::vector<std::vector<double>> details = {}; // for each of Task::details: [samples numbers]
    Json samples = Json::array();                  // one gallery for each of Task::galleries; see report.h
};

/// A part of the report that needs numbers of all samples of the test set.
struct Detail {
    std::string member; // name of this part in report.html: a member of a RUN (report.h)
    int64_t numbers;    // how many numbers are kept for each sample
    /// Sets the numbers [n numbers] of a batch.
    std::function<void(Outputs outputs, const data::Batch& batch, std::span<double> numbers)> collect;
    /// Returns the value of `member`, from the numbers of the whole set [samples numbers]. If null, there is no such
    /// member.
    std::function<Json(const data::ImageSet& set, std::span<const double> numbers)> report = {};
    /// A file NAME.csv; `text` is a version for people, or empty.
    struct CsvTable {
        std::string name, text, csv;
    };
    /// Returns the tables of the set. If null, there are none.
    std::function<std::vector<CsvTable>(const data::ImageSet& set, std::span<const double> numbers)> tables = {};
};

struct Task {
    /// Returns the loss, a scalar: a mean over the samples. To use it, call take_loss(). In Mode::train, it may be
    /// traced, so it may only use ops. In Mode::evaluate, it gets outputs and batch in host memory.
    std::function<Tensor(Outputs outputs, const data::Batch& batch, Mode mode)> loss = {};
    /// The first metric is the main one: it chooses the best model, and sweeps rank by it.
    std::vector<Metric> metrics = {};
    std::vector<Detail> details = {};
    std::vector<GallerySpec> galleries = {};
    ModelOutputs outputs = {.kinds = {}}; // the meaning of the network's outputs, for the model's file
    bool needs_images = false;            // metrics read Batch::x, the normalised images
    bool mixes = false;  // takes mixed images: loss and metrics read Batch::second_labels, or no labels
    bool weighs = false; // the loss reads Batch::label_weights
    /// The loss compares outputs of the kind "numbers" with Batch::targets, and gets both standardised: minus the mean
    /// and divided by the deviation of the training set. So it does not depend on the units. Metrics, details and
    /// galleries get both in their units.
    bool scales_targets = false;

    /// If `scales_targets`, sets TargetInfo::mean and TargetInfo::deviation: those in the file of a model (unless it is
    /// null) if it has targets of the same names, else those of the images. The deviation of equal targets is 1.
    void set_target_scales(const data::ImageSet& images, const TensorFile* model);
    /// Throws Error if an output is an image: those for mirrored and shifted views do not lie on each other, so a mean
    /// over the views would be wrong.
    void check_test_views() const;
    /// Returns the loss of the network's outputs. If `scales_targets`, the loss compares standardised outputs and
    /// targets; afterwards, `outputs` holds values in the units of the targets.
    Tensor take_loss(std::vector<Tensor>& outputs, const data::Batch& batch, Mode mode) const;

    /// Returns a task that joins this one and `other`. Its loss is this loss + weight * the other's loss. The other's
    /// metrics, details and galleries follow. If both have a detail of the same member, only the first is kept.
    Task with(const Task& other, double weight = 1) const;

    /// Returns the number of sums of all metrics together.
    int64_t sums() const;
    /// Adds the terms of a batch to `sums`, for all metrics. `sums` has sums() elements.
    void add(Outputs outputs, const data::Batch& batch, std::span<double> sums) const;
    /// Returns the values of all metrics.
    std::vector<double> values(std::span<const double> sums, double samples) const;
    /// Returns the values of all metrics for people.
    std::string text(std::span<const double> values) const;
};

/// Returns the outputs of the network for a batch. They may be traced, so the function may only use ops.
using Forward = std::function<std::vector<Tensor>(const data::Batch& batch, Mode mode)>;

/// Returns the network's outputs in f32. If the task needs the images, and a device makes them, these follow.
std::vector<Tensor> outputs_of(const Forward& forward, const Task& task, const data::Batch& batch, Mode mode);
/// Moves the images that outputs_of() may have added from the outputs to the batch.
void take_images(std::vector<Tensor>& outputs, data::Batch& batch, const Task& task);

// The functions below make the tasks of the library. `head` is the number of the network's output, from 0. The report
// shows the images with the largest errors.

/// Returns the task of one class per image. The output is scores [n classes], the loss is the cross-entropy, in
/// training with label smoothing (Szegedy et al., 2016), and the metric is the accuracy. The report has the confusion
/// matrix and the mistakes. Each sample's loss has the weight of its label (Batch::label_weights). A mixed image has
/// two labels: its loss is the sum of both. The accuracy counts a predicted label by its share of the two weights, so
/// in training it cannot reach 1.
Task classification(double smoothing = 0, size_t head = 0);

/// Returns the task of numbers for each image. The output is [n k], as Batch::targets, for k names. The loss is the
/// mean squared error, the metrics are the root mean squared errors NAME_rmse. The report shows predicted over true
/// values. The targets of mixed images are mixed, too. With `scale_targets`, the loss is that of standardised numbers;
/// see Task::scales_targets.
Task regression(const std::vector<TargetInfo>& targets, size_t head = 0, bool scale_targets = true);

/// Returns the task of any number of labels for each image. The output is scores [n k], and Batch::targets has 0 or 1
/// for each label [n k], as with data::Labels::several_classes. The loss is the binary cross-entropy. A label is
/// predicted if its score is positive. The metric is the F1 score over all labels and samples, 2 tp / (2 tp + fp + fn),
/// or 0 if no label is true or predicted, as in scikit-learn.
Task multi_label(const std::vector<std::string>& labels, size_t head = 0);

/// Returns the task of a class for each pixel. The output is scores [n h w classes], and column `column` of the batch
/// has labels i32 [n h w]. The loss is the cross-entropy over all pixels. The main metric is the mean over the classes
/// of intersection / union (Everingham et al., "The PASCAL VOC challenge", 2010) over the whole set, without classes
/// that occur neither in labels nor in predictions. The second one is the accuracy of the pixels. The report shows the
/// images whose own mean of intersection / union is lowest, with the true and the predicted classes of their pixels.
Task segmentation(int64_t classes, size_t column = 0, size_t head = 0);

/// Returns the task of reconstructing the normalised image: the output has its shape, [n h w c]. The loss is the mean
/// squared error, the metric is its root. The report shows images beside their reconstructions.
Task reconstruction(size_t head = 0);

} // namespace rg
