// See data_parallel.h.
#include "ringgrad/models/run/data_parallel.h"

#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/ops.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/par/verify.h"

#include <algorithm>
#include <chrono>
#include <future>

namespace rg {
namespace {

/// Returns the current context without its device.
Context host_context() {
    Context host = context();
    host.device = nullptr;
    return host;
}

} // namespace

void run_while_polling(par::Group& group, std::string_view what, const std::function<void()>& work,
                       const std::function<void()>& pulse) {
    constexpr std::chrono::milliseconds kPollInterval{20};
    RG_CHECK(!Tape::active() && !DryRun::active(), what,
             ": expected no tape, trace or dry run, got one; end it first, ",
             "since it does not see the ops of another thread");
    if (group.size() == 1 && !pulse) return work();
    std::future<void> result = std::async(std::launch::async, in_this_context(work));
    while (!group.all(result.wait_for(kPollInterval) == std::future_status::ready, what))
        if (pulse) pulse();
    result.get();
}

StepSums::StepSums(par::Group& group, const Parameters& parameters)
    : group_(group), parameters_(parameters), workers_left_(group.workers(group.rank())) {
    if (workers_left_ > 1) before_ = parameters.state().clone();
}

std::vector<par::StateBlock> StepSums::blocks() const {
    std::vector<par::StateBlock> blocks;
    if (!state_.defined()) return blocks;
    for (const auto& s : parameters_.states()) {
        float* mean = state_.data<float>() + s.offset;
        blocks.push_back({mean, mean + s.channels, s.channels, double(s.momentum)});
    }
    return blocks;
}

void StepSums::add(double share, std::span<const double> sums) {
    const bool alone = group_.size() == 1 && group_.most_workers() == 1;
    if (!alone && !context().sync) state_ = parameters_.state().to_host();
    sum_.add(blocks(), share, sums);
    if (--workers_left_ > 0) parameters_.state().copy_from(before_);
}

void StepSums::finish(std::span<double> sums) {
    sum_.finish(group_, blocks(), sums);
    if (!state_.defined()) return;
    state_.note_write();
    if (parameters_.state().device()) parameters_.state().copy_from(state_);
}

void verify_same_options(par::Group& group, const Options& options) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : options.values())
        if (name != "data" && name != "test-data" && name != "cache" && name != "threads")
            parts.push_back(cat("--", name, " ", value));
    par::verify_same(group, "options", parts, "start all ranks with the same options");
}

int64_t count_correct(const Tensor& scores, const Tensor& labels) {
    const int64_t classes = scores.extent(1);
    int64_t correct = 0;
    for (int64_t i = 0; i < scores.extent(0); ++i) {
        const float* row = scores.data<float>() + i * classes;
        correct += std::max_element(row, row + classes) - row == labels.data<int32_t>()[i];
    }
    return correct;
}

double host_cross_entropy(const Tensor& scores, const Tensor& labels) {
    const Context host = host_context();
    const ContextScope scope(host);
    return double(cross_entropy(scores, labels).data<float>()[0]);
}

void Predictions::add(int64_t first, const Tensor& scores) {
    const Context host = host_context();
    const ContextScope scope(host);
    const Tensor probabilities = softmax(scores);
    const int64_t classes = probabilities.extent(1);
    for (int64_t i = 0; i < probabilities.extent(0); ++i) {
        const auto row = probabilities.span<float>().subspan(size_t(i * classes), size_t(classes));
        const auto best = std::max_element(row.begin(), row.end());
        labels_and_scores_[size_t(2 * (first + i))] = double(best - row.begin());
        labels_and_scores_[size_t(2 * (first + i) + 1)] = double(*best);
    }
}

std::vector<Prediction> Predictions::gather(par::Group& group) {
    group.allreduce_sum(std::span<double>(labels_and_scores_), "predictions");
    std::vector<Prediction> all;
    for (size_t i = 0; i < labels_and_scores_.size(); i += 2)
        all.push_back({int32_t(labels_and_scores_[i]), float(labels_and_scores_[i + 1])});
    return all;
}

Score evaluate(par::Group& group, data::Range range, const data::ImageSet& set, const data::Normalise& normalise,
               const std::function<Tensor(const Tensor&)>& forward, const std::vector<data::WeightedView>& views) {
    const data::Augmenter augmenter(set.height, set.width, set.channels, {.fill = data::Fill::reflect}, normalise);
    double sums[2] = {0, 0}; // sum of the losses, number of correct predictions
    Predictions predictions(set.count);
    for (int64_t begin = range.begin; begin < range.end; begin += kEvaluationBatch) {
        const int64_t n = std::min(kEvaluationBatch, range.end - begin);
        const Tensor x = Tensor::on_host({n, set.height, set.width, set.channels});
        const Tensor labels =
            Tensor::of<int32_t>({n}, std::span<const int32_t>(set.labels).subspan(size_t(begin), size_t(n)));
        Tensor scores;
        for (const auto& [view, weight] : views) {
            parallel(n, [&, &view = view](int64_t i) {
                augmenter.apply(set.image(begin + i), view, x.data<float>() + i * set.image_bytes());
            });
            const Tensor of_view = forward(x).to_host();
            if (!scores.defined()) scores = Tensor::on_host(of_view.shape()), scores.fill(0);
            for (int64_t i = 0; i < scores.numel(); ++i) scores.data<float>()[i] += weight * of_view.data<float>()[i];
        }
        sums[0] += double(n) * host_cross_entropy(scores, labels);
        sums[1] += double(count_correct(scores, labels));
        predictions.add(begin, scores);
    }
    group.allreduce_sum(std::span<double>(sums), "evaluation");
    return {sums[0] / double(set.count), sums[1] / double(set.count), predictions.gather(group)};
}

} // namespace rg
