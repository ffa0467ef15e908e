// See task.h.
#include "ringgrad/models/run/task.h"

#include "ringgrad/core/formatted.h"
#include "ringgrad/core/ops.h"
#include "ringgrad/models/run/confusion.h"
#include "ringgrad/models/run/report.h"

#include <algorithm>
#include <cmath>

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
int64_t best_of(const float* values, int64_t n) { return std::max_element(values, values + n) - values; }

/// Returns the sum of the squared differences of two f32 tensors.
double squared_errors(const Tensor& a, const Tensor& b) {
    RG_CHECK(a.numel() == b.numel(), "task: expected outputs of ", b.shape().str(), ", got ", a.shape().str());
    double sum = 0;
    for (int64_t i = 0; i < a.numel(); ++i) {
        const double error = double(a.data<float>()[i]) - double(b.data<float>()[i]);
        sum += error * error;
    }
    return sum;
}

void keep_class_and_score(const Tensor& scores, std::span<double> numbers) {
    const Tensor probabilities = softmax(scores);
    const int64_t classes = probabilities.extent(1);
    for (int64_t i = 0; i < probabilities.extent(0); ++i) {
        const float* row = probabilities.data<float>() + i * classes;
        const int64_t best = best_of(row, classes);
        numbers[size_t(2 * i)] = double(best), numbers[size_t(2 * i + 1)] = double(row[best]);
    }
}

std::vector<Prediction> predictions_of(std::span<const double> numbers) {
    std::vector<Prediction> predictions;
    for (size_t i = 0; i < numbers.size(); i += 2) predictions.push_back({int32_t(numbers[i]), float(numbers[i + 1])});
    return predictions;
}

} // namespace

std::string MetricName::text(double value, int decimals) const {
    if (unit == "%") return formatted("%s %.*f %%", label.c_str(), decimals, 100 * value);
    const std::string number = formatted("%s %.*f", label.c_str(), decimals + 1, value);
    return unit.empty() ? number : number + " " + unit;
}

Json MetricName::json() const {
    return Json::object()
        .set("name", name)
        .set("label", label)
        .set("unit", unit)
        .set("higher_is_better", higher_is_better);
}

Task Task::with(const Task& other, double weight) const {
    Task both = *this;
    both.loss = [one = loss, two = other.loss, weight](Outputs outputs, const data::Batch& batch, Mode mode) {
        return rg::add(one(outputs, batch, mode), scale(two(outputs, batch, mode), float(weight)));
    };
    both.metrics.insert(both.metrics.end(), other.metrics.begin(), other.metrics.end());
    for (const Detail& detail : other.details)
        if (std::none_of(details.begin(), details.end(), [&](const Detail& d) { return d.member == detail.member; }))
            both.details.push_back(detail);
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(both.outputs.kinds, other.outputs.kinds), append(both.outputs.targets, other.outputs.targets);
    both.needs_images |= other.needs_images;
    both.mixes &= other.mixes, both.weighs |= other.weighs;
    return both;
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
        values.push_back(metric.value(sums.first(size_t(metric.sums)), samples));
        sums = sums.subspan(size_t(metric.sums));
    }
    return values;
}

std::string Task::text(std::span<const double> values) const {
    std::string text;
    for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? " " : "") + metrics[i].text(values[i]);
    return text;
}

Task classification(double smoothing, size_t head) {
    Metric accuracy{{"accuracy", "acc", "%", true}};
    accuracy.add = [head](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
        const Tensor& scores = head_of(outputs, head);
        const int64_t classes = scores.extent(1);
        for (int64_t i = 0; i < scores.extent(0); ++i) {
            const int64_t best = best_of(scores.data<float>() + i * classes, classes);
            double share = 1; // of the first label
            if (batch.second_labels.defined()) {
                const double first = double(batch.label_weights.data<float>()[i]),
                             second = double(batch.second_weights.data<float>()[i]);
                share = first / (first + second);
                sums[0] += (1 - share) * (best == batch.second_labels.data<int32_t>()[i]);
            }
            sums[0] += share * (best == batch.labels.data<int32_t>()[i]);
        }
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
                         [head](Outputs outputs, const data::Batch&, std::span<double> numbers) {
                             keep_class_and_score(head_of(outputs, head), numbers);
                         },
                         [](const data::ImageSet& set, std::span<const double> numbers) {
                             return report_confusion(set, predictions_of(numbers));
                         },
                         [](const data::ImageSet& set, std::span<const double> numbers) {
                             const Confusion confusion(set, predictions_of(numbers));
                             return Detail::Table{confusion.text(size_t(set.count)), confusion.csv()};
                         }}},
            .outputs = {.kinds = {"classes"}},
            .mixes = true,
            .weighs = true};
}

/// Returns [{"name", "unit", "points": [[true value, predicted value], ...]}, ...] with an object for each target, and
/// the points of at most kPoints samples.
Json report_predicted(const std::vector<Target>& targets, const data::ImageSet& set,
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

Task regression(const std::vector<Target>& targets, size_t head) {
    Task task{.outputs = {{"numbers"}, targets}, .mixes = true};
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
    const auto keep = [head](Outputs outputs, const data::Batch&, std::span<double> numbers) {
        std::ranges::copy(head_of(outputs, head).span<float>(), numbers.begin());
    };
    const auto report = [targets](const data::ImageSet& set, std::span<const double> predicted) {
        return report_predicted(targets, set, predicted);
    };
    task.details.push_back({"predicted", std::ssize(targets), keep, report});
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
        return s[0] + s[1] + s[2] > 0 ? 2 * s[0] / (2 * s[0] + s[1] + s[2]) : 1.0;
    };
    Task task{.loss = [head](Outputs outputs, const data::Batch& batch,
                             Mode) { return binary_cross_entropy(head_of(outputs, head), targets_of(batch)); },
              .metrics = {f1},
              .outputs = {.kinds = {"labels"}},
              .mixes = true};
    for (const std::string& label : labels) task.outputs.targets.push_back({label, ""});
    return task;
}

Task segmentation(int64_t classes, size_t column, size_t head) {
    Metric iou{{"mean_iou", "mIoU", "%", true}, 3 * classes}; // of each class: intersection, predicted, true pixels
    iou.add = [=](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
        const Tensor &scores = head_of(outputs, head), &labels = column_of(batch, column);
        RG_CHECK(scores.numel() == labels.numel() * classes, "segmentation: expected scores of ", labels.shape().str(),
                 " pixels and ", classes, " classes, got ", scores.shape().str());
        for (int64_t i = 0; i < labels.numel(); ++i) {
            const int64_t seen = best_of(scores.data<float>() + i * classes, classes);
            const int64_t is = labels.data<int32_t>()[i];
            RG_CHECK(is >= 0 && is < classes, "segmentation: expected labels of 0 to ", classes - 1, ", got ", is);
            sums[size_t(3 * seen)] += seen == is, ++sums[size_t(3 * seen + 1)], ++sums[size_t(3 * is + 2)];
        }
    };
    iou.finish = [](std::span<const double> sums, double) {
        double total = 0, occurring = 0;
        for (size_t i = 0; i < sums.size(); i += 3)
            if (const double all = sums[i + 1] + sums[i + 2] - sums[i]; all > 0) total += sums[i] / all, ++occurring;
        return total / occurring;
    };
    Metric pixels{{"pixel_accuracy", "pixel acc", "%", true}, 2};
    pixels.add = [=](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
        const Tensor &scores = head_of(outputs, head), &labels = column_of(batch, column);
        for (int64_t i = 0; i < labels.numel(); ++i)
            sums[0] += best_of(scores.data<float>() + i * classes, classes) == labels.data<int32_t>()[i];
        sums[1] += double(labels.numel());
    };
    pixels.finish = [](std::span<const double> sums, double) { return sums[0] / sums[1]; };
    return {.loss =
                [=](Outputs outputs, const data::Batch& batch, Mode) {
                    const Tensor& labels = column_of(batch, column);
                    return cross_entropy(head_of(outputs, head).reshape({labels.numel(), classes}),
                                         labels.reshape({labels.numel()}));
                },
            .metrics = {iou, pixels},
            .outputs = {.kinds = {"pixels"}}};
}

Task reconstruction(size_t head) {
    Metric rmse{{"rmse", "rmse", "", false}, 2};
    rmse.add = [head](Outputs outputs, const data::Batch& batch, std::span<double> sums) {
        sums[0] += squared_errors(head_of(outputs, head), batch.x), sums[1] += double(batch.x.numel());
    };
    rmse.finish = [](std::span<const double> sums, double) { return std::sqrt(sums[0] / sums[1]); };
    return {.loss = [head](Outputs outputs, const data::Batch& batch,
                           Mode) { return mse_loss(head_of(outputs, head), cast(batch.x, DType::f32)); },
            .metrics = {rmse},
            .outputs = {.kinds = {"reconstruction"}},
            .needs_images = true,
            .mixes = true};
}

} // namespace rg
