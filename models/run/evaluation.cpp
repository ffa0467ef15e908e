// See evaluation.h.
#include "models/run/evaluation.h"

#include "core/ops.h"
#include "models/run/predictor.h"

#include <algorithm>

namespace rg {

Evaluation::Evaluation(par::Group& group, const Compute& compute, const data::ImageSet& set,
                       std::vector<data::Column> columns, const data::Normalise& normalise, int64_t batch_size,
                       const Task& task, const Forward& forward, const Accelerated* training)
    : predict([this, forward](std::span<const Tensor> in,
                              bool) { return outputs_of(forward, task_, feed_.batch(in), Mode::evaluate); },
              compute.options().accelerate),
      group_(group),
      compute_(compute),
      set_(set),
      normalise_(normalise),
      task_(task),
      feed_(set,
            {.batch_size = batch_size,
             .shuffle = data::Shuffle::never,
             .keep_partial = true,
             .augment = {.fill = data::Fill::reflect},
             .normalise = normalise,
             .views = true},
            compute, std::move(columns)) {
    if (training) predict.share_memory(*training);
}

Score Evaluation::score(const std::vector<data::WeightedView>& views, const std::function<void()>& poll_stop) {
    Context host = context(); // for the loss of the outputs, which are in host memory
    host.device = nullptr;
    Score score;
    for (const Detail& detail : task_.details) score.details.emplace_back(size_t(set_.count * detail.numbers));
    std::vector<WorstSamples> worst(task_.galleries.begin(), task_.galleries.end());
    std::vector<double> sums(1 + size_t(task_.sums())); // loss, and the sums of the metrics
    feed_.loader.start(1);
    for (int64_t part = 0; feed_.loader.has_next(); ++part) {
        if (poll_stop && part % compute_.workers().own == 0) poll_stop(); // once per mini-batch, not per worker
        const data::Batch indices = feed_.loader.next();
        if (indices.size == 0) continue;
        data::Batch batch;
        std::vector<Tensor> outputs;
        for (const auto& [view, weight] : views) {
            batch = feed_.with_view(indices, view);
            const std::span<const Tensor> results = predict(feed_.inputs(batch));
            std::vector<Tensor> of_view(results.begin(), results.end());
            to_host(of_view);
            take_images(of_view, batch, task_);
            add_weighted(outputs, of_view, weight);
        }
        const ContextScope scope(host);
        sums[0] += double(batch.size) * double(task_.take_loss(outputs, batch, Mode::evaluate).data<float>()[0]);
        task_.add(outputs, batch, std::span(sums).subspan(1));
        for (size_t d = 0; d < task_.details.size(); ++d) {
            const size_t numbers = size_t(task_.details[d].numbers);
            task_.details[d].collect(
                outputs, batch,
                std::span(score.details[d]).subspan(size_t(batch.first) * numbers, size_t(batch.size) * numbers));
        }
        for (WorstSamples& samples : worst) samples.add({set_, normalise_, batch, outputs});
    }
    group_.allreduce_sum(std::span<double>(sums), "evaluation");
    // Each rank has set the numbers of its own images, and left those of the others at 0.
    for (std::vector<double>& detail : score.details) group_.allreduce_sum(std::span<double>(detail), "evaluation");
    for (const WorstSamples& samples : worst) score.samples.push(samples.gather(group_, set_));
    score.loss = sums[0] / double(set_.count);
    score.metrics = task_.values(std::span(sums).subspan(1), double(set_.count));
    return score;
}

Json Evaluation::report_members(const Score& score) const {
    Json members = Json::object();
    for (size_t d = 0; d < task_.details.size(); ++d)
        if (const Detail& detail = task_.details[d]; detail.report)
            members.set(detail.member, detail.report(set_, score.details[d]));
    return members.set("samples", score.samples);
}

std::vector<Detail::CsvTable> Evaluation::tables(const Score& score) const {
    std::vector<Detail::CsvTable> all;
    for (size_t d = 0; d < task_.details.size(); ++d)
        if (const Detail& detail = task_.details[d]; detail.tables)
            std::ranges::move(detail.tables(set_, score.details[d]), std::back_inserter(all));
    return all;
}

void Evaluation::plan() {
    if (!predict.enabled) return;
    for (const int64_t n : feed_.sizes()) predict.plan(feed_.inputs(n));
}

} // namespace rg
