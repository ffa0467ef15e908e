// See task.h.
#include "models/run/task.h"

#include "core/context.h"
#include "core/formatted.h"
#include "core/ops.h"
#include "models/run/confusion.h"
#include "models/run/report.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rg {
namespace {

const Tensor& head_of(Outputs outputs, size_t head) {
    RG_CHECK(head < outputs.size(), "task: expected a network with at least ", head + 1, " outputs, got ",
             outputs.size());
    return outputs[head];
}

const Tensor& column_of(const data::Batch& batch, size_t column) {
    RG_CHECK(column < batch.columns.size(), "task: expected at least ", column + 1, " columns in a batch, got ",
             batch.columns.size(), "; return them from ImageTraining::columns()");
    return batch.columns[column];
}

const Tensor& targets_of(const data::Batch& batch) {
    RG_CHECK(batch.targets.defined(), "task: expected images with targets (labels.csv or angles.csv), got none");
    return batch.targets;
}

/// Returns the index of the greatest of `n` values; of equal ones, the first.
int64_t argmax(const float* values, int64_t n) { return std::max_element(values, values + n) - values; }

struct Prediction {
    size_t label; // the class with the highest score
    double score; // its probability, by the softmax
};
Prediction prediction(std::span<const float> scores) {
    const size_t best = size_t(argmax(scores.data(), std::ssize(scores)));
    double sum = 0;
    for (const float score : scores) sum += std::exp(double(score - scores[best]));
    return {best, 1 / sum};
}

double sum_of_squared_errors(std::span<const float> a, std::span<const float> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double error = double(a[i]) - double(b[i]);
        sum += error * error;
    }
    return sum;
}

/// Returns the values of sample i.
template <class T = float>
std::span<const T> sample_of(const Tensor& values, int64_t i) {
    const int64_t n = values.numel() / values.extent(0);
    return {values.data<T>() + i * n, size_t(n)};
}
std::span<const float> output_of(const TestBatch& test, size_t head, int64_t i) {
    return sample_of(head_of(test.outputs, head), i);
}
std::span<const float> targets_of(const TestBatch& test, int64_t i) { return sample_of(targets_of(test.batch), i); }

/// Returns a function for Detail::keep that keeps all values of output `head`.
auto collect_values(size_t head) {
    return [head](Outputs outputs, const data::Batch&, std::span<double> numbers) {
        std::ranges::copy(head_of(outputs, head).span<float>(), numbers.begin());
    };
}

/// Adds the numbers of pixels of each class to `sums`: those that are right, predicted ones and true ones.
void count_pixels(std::span<const float> scores, std::span<const int32_t> labels, std::span<double> sums) {
    const int64_t classes = std::ssize(sums) / 3;
    for (size_t i = 0; i < labels.size(); ++i) {
        const int64_t seen = argmax(scores.data() + int64_t(i) * classes, classes), is = labels[i];
        RG_CHECK(is >= 0 && is < classes, "segmentation: expected labels of 0 to ", classes - 1, ", got ", is);
        sums[size_t(3 * seen)] += seen == is, ++sums[size_t(3 * seen + 1)], ++sums[size_t(3 * is + 2)];
    }
}

/// Returns the mean intersection / union of the classes that occur.
double mean_iou(std::span<const double> sums) {
    double total = 0, occurring = 0;
    for (size_t i = 0; i < sums.size(); i += 3)
        if (const double all = sums[i + 1] + sums[i + 2] - sums[i]; all > 0) total += sums[i] / all, ++occurring;
    return total / occurring;
}

} // namespace

std::string MetricInfo::format(double value, int decimals) const {
    if (unit == "%") return formatted("%s %.*f %%", shown().c_str(), decimals, 100 * value);
    const std::string number = formatted("%s %.*f", shown().c_str(), decimals + 1, value);
    return unit.empty() ? number : number + " " + unit;
}

Json MetricInfo::json() const {
    return Json::object()
        .set("name", name)
        .set("label", shown())
        .set("unit", unit)
        .set("higher_is_better", higher_is_better);
}

const MetricInfo& metric_named(const std::string& option, const std::string& name,
                               const std::vector<MetricInfo>& known) {
    std::string names;
    for (const MetricInfo& metric : known) {
        if (metric.name == name) return metric;
        names += (names.empty() ? "" : ", ") + metric.name;
    }
    fail(option, ": expected one of ", names, ", got ", name);
}

Task Task::with(const Task& other, double weight) const {
    Task both = *this;
    both.loss = [one = loss, two = other.loss, weight](Outputs outputs, const data::Batch& batch, Mode mode) {
        return rg::add(one(outputs, batch, mode), scale(two(outputs, batch, mode), float(weight)));
    };
    for (const Detail& detail : other.details)
        if (std::none_of(details.begin(), details.end(), [&](const Detail& d) { return d.member == detail.member; }))
            both.details.push_back(detail);
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    for (const Metric& metric : other.metrics)
        RG_CHECK(std::ranges::count(metrics, metric.name, &Metric::name) == 0, "task: expected metrics of different ",
                 "names, got ", metric.name, " twice; rename one: other.metrics[0].name = \"second\"");
    append(both.metrics, other.metrics), append(both.galleries, other.galleries);
    append(both.outputs.kinds, other.outputs.kinds), append(both.outputs.targets, other.outputs.targets);
    both.needs_images |= other.needs_images;
    both.mixes &= other.mixes, both.weighs |= other.weighs, both.scales_targets |= other.scales_targets;
    return both;
}

void Task::check_test_views() const {
    for (const std::string& kind : outputs.kinds)
        RG_CHECK(kind != "pixels" && kind != "reconstruction", "--test-views: expected classes, numbers or labels, ",
                 "which a mirrored image keeps, got ", kind, "; omit the option");
}

void Task::set_target_scales(const data::ImageSet& images, const TensorFile* model) {
    std::vector<TargetInfo>& targets = outputs.targets;
    if (!scales_targets) return;
    const std::vector<TargetInfo> stored = model ? stored_outputs(*model).targets : std::vector<TargetInfo>();
    if (std::ranges::equal(targets, stored, {}, &TargetInfo::name, &TargetInfo::name)) return void(targets = stored);
    const size_t k = images.target_names.size();
    RG_CHECK(images.count > 0 && k > 0, "task: expected images with targets, got none; --data needs labels.csv");
    for (size_t t = 0; t < targets.size(); ++t) {
        const auto moment = [&](double centre, int power) {
            double sum = 0;
            for (size_t i = t % k; i < images.targets.size(); i += k)
                sum += std::pow(double(images.targets[i]) - centre, power);
            return sum / double(images.count);
        };
        double &mean = targets[t].mean, &deviation = targets[t].deviation;
        mean = double(images.targets[t % k]);
        mean += moment(mean, 1); // relative to the first target, so that equal targets have a deviation of exactly 0
        deviation = std::sqrt(moment(mean, 2));
        if (deviation < double(std::numeric_limits<float>::min())) deviation = 1;
    }
}

Tensor Task::take_loss(std::vector<Tensor>& results, const data::Batch& batch, Mode mode) const {
    data::Batch standard = batch;
    if (scales_targets) standard.targets = standardised(targets_of(batch), outputs.targets, false);
    const Tensor value = loss(results, standard, mode);
    results = outputs.in_units(std::move(results));
    return value;
}

int64_t Task::sums() const {
    int64_t all = 0;
    for (const Metric& metric : metrics) all += metric.sums;
    return all;
}

void Task::add(Outputs outputs, const data::Batch& batch, std::span<double> sums) const {
    for (const Metric& metric : metrics) {
        metric.add(outputs, batch, sums.first(size_t(metric.sums)));
        sums = sums.subspan(size_t(metric.sums));
    }
}

std::vector<double> Task::values(std::span<const double> sums, double samples) const {
    std::vector<double> values;
    for (const Metric& metric : metrics) {
        const std::span<const double> own = sums.first(size_t(metric.sums));
        values.push_back(metric.finish ? metric.finish(own, samples) : own[0] / samples);
        sums = sums.subspan(size_t(metric.sums));
    }
    return values;
}

std::string Task::text(std::span<const double> values) const {
    std::string text;
    for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? " " : "") + metrics[i].format(values[i]);
    return text;
}

std::vector<Tensor> outputs_of(const Forward& forward, const Task& task, const data::Batch& batch, Mode mode) {
    std::vector<Tensor> outputs = forward(batch, mode);
    for (Tensor& output : outputs) output = cast(output, DType::f32);
    if (task.needs_images && context().device) outputs.push_back(cast(batch.x, DType::f32));
    return outputs;
}

void take_images(std::vector<Tensor>& outputs, data::Batch& batch, const Task& task) {
    if (!task.needs_images || batch.x.defined()) return;
    batch.x = outputs.back();
    outputs.pop_back();
}

Task classification(double smoothing, size_t head) {
    Metric accuracy{{"accuracy", "acc", "%", true}};
    accuracy.add = [head](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
        const Tensor& scores = head_of(outputs, head);
        const int64_t classes = scores.extent(1);
        for (int64_t i = 0; i < scores.extent(0); ++i) {
            const int64_t best = argmax(scores.data<float>() + i * classes, classes);
            double share = 1; // weight of the first label, as a fraction of both weights
            if (batch.second_labels.defined()) {
                const double first = double(batch.label_weights.data<float>()[i]),
                             second = double(batch.second_weights.data<float>()[i]);
                share = first / (first + second);
                sums[0] += (1 - share) * (best == batch.second_labels.data<int32_t>()[i]);
            }
            sums[0] += share * (best == batch.labels.data<int32_t>()[i]);
        }
    };
    const auto offer = [head](const TestBatch& test, int64_t i, WorstSamples& worst) {
        const std::vector<std::string>& classes = test.set.classes;
        const size_t truth = size_t(test.batch.labels.data<int32_t>()[i]);
        const Prediction found = prediction(output_of(test, head, i));
        if (found.label != truth)
            worst.offer(test, i, found.score, [&]() -> WorstSamples::ShownSample {
                return {cat(classes[truth], ", predicted ", classes[found.label],
                            formatted(", %.1f\u00a0%%", 100 * found.score)),
                        {test.image(i)}};
            });
    };
    return {.loss =
                [smoothing, head](Outputs outputs, const data::Batch& batch, Mode mode) {
                    const Tensor& scores = head_of(outputs, head);
                    const float spread = mode == Mode::train ? float(smoothing) : 0.0f;
                    const Tensor loss = cross_entropy(scores, batch.labels, spread, {}, batch.label_weights);
                    if (!batch.second_labels.defined()) return loss;
                    return rg::add(loss, cross_entropy(scores, batch.second_labels, spread, {}, batch.second_weights));
                },
            .metrics = {accuracy},
            .details = {{"confusion", 2,
                         [head](Outputs outputs, const data::Batch& batch, std::span<double> numbers) {
                             for (size_t i = 0; i < numbers.size() / 2; ++i) {
                                 const std::span scores = sample_of(head_of(outputs, head), int64_t(i));
                                 numbers[2 * i] = double(prediction(scores).label);
                                 numbers[2 * i + 1] = double(rank_of(scores, size_t(batch.labels.data<int32_t>()[i])));
                             }
                         },
                         report_confusion,
                         [](const data::ImageSet& set, std::span<const double> pairs) -> std::vector<Detail::CsvTable> {
                             const Confusion confusion(set, pairs);
                             return {{"confusion", confusion.text(size_t(set.count)), confusion.csv()},
                                     {"classes", "", confusion.csv_of_classes()}};
                         }}},
            .galleries = {{"mistakes with the highest scores", offer}},
            .outputs = {.kinds = {"classes"}},
            .mixes = true,
            .weighs = true};
}

/// Returns [{"name", "unit", "points": [[true value, predicted value], ...]}, ...] with an object for each target, and
/// the points of at most kPoints samples.
Json report_predicted(const std::vector<TargetInfo>& targets, const data::ImageSet& set,
                      std::span<const double> predicted) {
    constexpr size_t kPoints = 500;
    const size_t k = targets.size(), samples = predicted.size() / k, every = (samples + kPoints - 1) / kPoints;
    Json list = Json::array();
    for (size_t t = 0; t < k; ++t) {
        Json points = Json::array();
        for (size_t i = t; i < predicted.size(); i += k * every)
            points.push(Json(Json::Array{double(set.targets[i]), predicted[i]}));
        list.push(Json::object().set("name", targets[t].name).set("unit", targets[t].unit).set("points", points));
    }
    return list;
}

Task regression(const std::vector<TargetInfo>& targets, size_t head, bool scale_targets) {
    Task task{.outputs = {{"numbers"}, targets}, .mixes = true, .scales_targets = scale_targets};
    task.loss = [head](Outputs outputs, const data::Batch& batch, Mode) {
        return mse_loss(head_of(outputs, head), targets_of(batch));
    };
    for (size_t t = 0; t < targets.size(); ++t) {
        Metric rmse{{targets[t].name + "_rmse", targets[t].name + " rmse", targets[t].unit, false}};
        rmse.add = [head, t, k = targets.size()](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
            const Tensor &values = head_of(outputs, head), &truth = targets_of(batch);
            RG_CHECK(values.numel() == truth.numel() && truth.extent(1) == int64_t(k), "regression: expected outputs ",
                     "and targets of ", k, " numbers per image, got ", values.shape().str(), " and ",
                     truth.shape().str());
            for (size_t i = t; i < size_t(truth.numel()); i += k)
                sums[0] += std::pow(double(values.data<float>()[i]) - double(truth.data<float>()[i]), 2);
        };
        rmse.finish = [](std::span<const double> sums, double samples) { return std::sqrt(sums[0] / samples); };
        task.metrics.push_back(rmse);
    }
    const auto report = [targets](const data::ImageSet& set, std::span<const double> predicted) {
        return report_predicted(targets, set, predicted);
    };
    task.details.push_back({"predicted", std::ssize(targets), collect_values(head), report});
    const auto offer = [head, targets](const TestBatch& test, int64_t i, WorstSamples& worst) {
        const std::span<const float> values = output_of(test, head, i), truth = targets_of(test, i);
        worst.offer(test, i, sum_of_squared_errors(values, truth), [&] {
            WorstSamples::ShownSample shown{"", {test.image(i)}};
            for (size_t t = 0; t < targets.size(); ++t)
                shown.caption += formatted("%s%s %.4g, predicted %.4g", t > 0 ? "\n" : "", targets[t].name.c_str(),
                                           double(truth[t]), double(values[t]));
            return shown;
        });
    };
    task.galleries.push_back({"largest errors", offer});
    return task;
}

Task multi_label(const std::vector<std::string>& labels, size_t head) {
    Metric f1{{"f1", "F1", "%", true}, 3};
    f1.add = [head](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
        const Tensor &scores = head_of(outputs, head), &truth = targets_of(batch);
        RG_CHECK(scores.shape() == truth.shape(), "multi_label: expected scores of ", truth.shape().str(), ", got ",
                 scores.shape().str());
        for (int64_t i = 0; i < truth.numel(); ++i) {
            const bool seen = scores.data<float>()[i] > 0, is = truth.data<float>()[i] > 0.5f;
            sums[0] += seen && is, sums[1] += seen && !is, sums[2] += !seen && is;
        }
    };
    f1.finish = [](std::span<const double> s, double) {
        return s[0] + s[1] + s[2] > 0 ? 2 * s[0] / (2 * s[0] + s[1] + s[2]) : 0.0;
    };
    Task task{.loss = [head](Outputs outputs, const data::Batch& batch,
                             Mode) { return binary_cross_entropy(head_of(outputs, head), targets_of(batch)); },
              .metrics = {f1},
              .outputs = {.kinds = {"labels"}},
              .mixes = true};
    for (const std::string& label : labels) task.outputs.targets.push_back({label, ""});
    const auto offer = [head, labels](const TestBatch& test, int64_t i, WorstSamples& worst) {
        std::string seen, is;
        double wrong = 0;
        for (size_t k = 0; k < labels.size(); ++k) {
            const bool predicted = output_of(test, head, i)[k] > 0, truth = targets_of(test, i)[k] > 0.5f;
            if (predicted) seen += (seen.empty() ? "" : " | ") + labels[k];
            if (truth) is += (is.empty() ? "" : " | ") + labels[k];
            wrong += predicted != truth;
        }
        if (wrong > 0)
            worst.offer(test, i, wrong, [&]() -> WorstSamples::ShownSample {
                return {cat("true: ", is, "\npredicted: ", seen), {test.image(i)}};
            });
    };
    task.galleries.push_back({"most wrong labels", offer});
    const auto tables = [names = task.outputs.targets](const data::ImageSet& set, std::span<const double> scores) {
        return std::vector<Detail::CsvTable>{{"classes", "", csv_of_labels(names, scores, set.targets, 0)}};
    };
    task.details.push_back({"labels", std::ssize(labels), collect_values(head), {}, tables});
    return task;
}

Task segmentation(int64_t classes, size_t column, size_t head) {
    Metric iou{{"mean_iou", "mIoU", "%", true}, 3 * classes},
        pixels{{"pixel_accuracy", "pixel acc", "%", true}, 3 * classes};
    iou.add = pixels.add = [=](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
        const Tensor &scores = head_of(outputs, head), &labels = column_of(batch, column);
        RG_CHECK(scores.numel() == labels.numel() * classes && scores.extent(0) == labels.extent(0),
                 "segmentation: expected scores of ", labels.shape().str(), " pixels and ", classes, " classes, got ",
                 scores.shape().str());
        for (int64_t i = 0; i < labels.extent(0); ++i)
            count_pixels(sample_of(scores, i), sample_of<int32_t>(labels, i), sums);
    };
    iou.finish = [](std::span<const double> sums, double) { return mean_iou(sums); };
    pixels.finish = [](std::span<const double> sums, double) {
        double right = 0, all = 0;
        for (size_t i = 0; i < sums.size(); i += 3) right += sums[i], all += sums[i + 1];
        return right / all;
    };
    const auto offer = [=](const TestBatch& test, int64_t i, WorstSamples& worst) {
        const Tensor& column_values = column_of(test.batch, column);
        const std::span<const int32_t> labels = sample_of<int32_t>(column_values, i);
        const std::span<const float> scores = output_of(test, head, i);
        std::vector<double> sums(size_t(3 * classes));
        count_pixels(scores, labels, sums);
        const double mean = mean_iou(sums);
        worst.offer(test, i, 1 - mean, [&]() -> WorstSamples::ShownSample {
            std::vector<int32_t> seen;
            for (size_t k = 0; k < labels.size(); ++k)
                seen.push_back(int32_t(argmax(scores.data() + k * size_t(classes), classes)));
            const data::ImageSize size{column_values.extent(1), column_values.extent(2)};
            return {formatted("mean IoU %.1f\u00a0%%", 100 * mean),
                    {test.image(i), picture_of_classes(labels, size), picture_of_classes(seen, size)}};
        });
    };
    GallerySpec gallery{"lowest mean IoU (image, true classes, predicted classes)", offer};
    for (int64_t i = 0; i < classes; ++i) gallery.classes.push_back(cat("class ", i));
    return {.loss =
                [=](Outputs outputs, const data::Batch& batch, Mode) {
                    const Tensor& labels = column_of(batch, column);
                    return cross_entropy(head_of(outputs, head).reshape({labels.numel(), classes}),
                                         labels.reshape({labels.numel()}));
                },
            .metrics = {iou, pixels},
            .galleries = {gallery},
            .outputs = {.kinds = {"pixels"}}};
}

Task reconstruction(size_t head) {
    Metric rmse{{"rmse", "rmse", "", false}, 2};
    rmse.add = [head](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
        const Tensor& images = head_of(outputs, head);
        RG_CHECK(images.numel() == batch.x.numel(), "task: expected outputs of ", batch.x.shape().str(), ", got ",
                 images.shape().str());
        for (int64_t i = 0; i < images.extent(0); ++i)
            sums[0] += sum_of_squared_errors(sample_of(images, i), sample_of(batch.x, i));
        sums[1] += double(batch.x.numel());
    };
    rmse.finish = [](std::span<const double> sums, double) { return std::sqrt(sums[0] / sums[1]); };
    const auto offer = [head](const TestBatch& test, int64_t i, WorstSamples& worst) {
        const std::span<const float> image = sample_of(test.batch.x, i), output = output_of(test, head, i);
        const double error = std::sqrt(sum_of_squared_errors(output, image) / double(image.size()));
        worst.offer(test, i, error, [&]() -> WorstSamples::ShownSample {
            return {formatted("rmse %.3f", error), {test.image(i), test.image(output)}};
        });
    };
    return {.loss = [head](Outputs outputs, const data::Batch& batch,
                           Mode) { return mse_loss(head_of(outputs, head), cast(batch.x, DType::f32)); },
            .metrics = {rmse},
            .galleries = {{"largest errors (image, reconstruction)", offer}},
            .outputs = {.kinds = {"reconstruction"}},
            .needs_images = true,
            .mixes = true};
}

} // namespace rg
