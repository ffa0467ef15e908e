// parallel_loop: a training loop of one's own, on one rank or many, on CPUs or GPUs: own images, loss and metrics.
//
//     mpiexec -n 3 build/parallel_loop           # Ctrl-C, or Stop in tools/monitor, ends it with a checkpoint
//     mpiexec -n 3 build/parallel_loop --resume
//
// Each rank computes its part of a mini-batch, and the parts may differ in size. A part counts by its share of the
// images: in the gradients (GradientSum), in batch norm's statistics (GroupSync), and in the loss, which StepSums adds.
// Without the lines with `sync`, each rank normalises its own part, and StepSums combines the running statistics. The
// rmse of an epoch is the mean of those of its steps.
#include "ringgrad/core/accelerate.h"
#include "ringgrad/core/layers.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/data/loader.h"
#include "ringgrad/models/run/compute.h"
#include "ringgrad/models/run/gradient_sum.h"
#include "ringgrad/models/run/saver.h"
#include "ringgrad/par/session.h"
#include <cmath>

using namespace rg;

/// Returns a column of 302 images, each of one ring, or the column of their radii, which the network learns.
data::Column rings(bool radii) {
    data::Column column = data::computed(radii ? Shape{1} : Shape{16, 16, 1}, [radii](auto& sample, auto out) {
        Rng random = data::Sample{.index = sample.index}.random(); // the same in each epoch
        const float radius = 2 + 4 * random.uniform(), light = 0.5f + random.uniform();
        for (size_t i = 0; i < out.size(); ++i)
            out[i] = radii ? radius : std::abs(std::hypot(i % 16 - 7.5f, i / 16 - 7.5f) - radius) < 1 ? light : 0;
    });
    column.count = 302;
    return column;
}

int train(par::Group& group, int argc, const char* const* argv) {
    ComputeOptions compute_options;
    RunOptions run_options;
    int64_t epochs = 20;
    Options options("parallel_loop", "trains a network to measure rings");
    options.add("epochs", &epochs, "number of epochs").range(1, 1e6);
    compute_options.declare_device_options(options);
    run_options.declare(options);
    if (!options.parse(argc, argv)) return options.print_help_or_version(group.rank() == 0);
    RunLog log(run_options, options, group);
    return log.supervise([&] {
        Saver saver(log);
        Compute compute(compute_options, options, group);
        GroupSync sync(compute.group()); // batch norm over the images of all ranks
        Context context = compute.context();
        context.sync = &sync;
        const ContextScope scope(context);

        const Workers& ranks = compute.workers(); // without spare ones, if there are fewer GPUs than ranks
        const data::LoaderOptions part{
            .batch_size = 50, .keep_partial = true, .first_part = ranks.first, .parts = ranks.count};
        data::Loader loader({rings(false), rings(true)}, part);
        Parameters parameters;
        const ConvNorm conv(parameters, "conv", {.out = 16, .kernel = 3, .in = 1, .conv = {.stride = 2, .pad = 1}});
        const Dense dense(parameters, "dense", 1, 8 * 8 * 16);
        parameters.allocate(1, Init::he);
        GradientSum gradient_sum(compute.group(), parameters, par::Algorithm::automatic, false);
        Optimizer optimizer(parameters, {.momentum = 0.9});
        Accelerated forward_backward([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            Tape tape;
            const Tensor error = sub(dense(conv(in[0], Mode::train)), in[1]), loss = mean(mul(error, error));
            tape.gradients(loss, parameters);
            return {loss};
        });

        saver.restore(parameters, optimizer.state());
        log.begin({{{"loss"}, {"rmse", "", "pixels"}}, epochs * loader.batches(), loader.batches(), compute.text()});
        while (log.goes_on()) {
            for (loader.start(log.position.epoch, log.position.batch); loader.has_next() && log.goes_on();) {
                const data::Batch batch = loader.next(); // this rank's part, which may be empty
                const double n = double(batch.global_size), share = double(batch.size) / n;
                sync.samples = batch.global_size, sync.fraction = share;
                StepSums step_sums(compute.group(), parameters);
                gradient_sum.begin(share);
                const Tensor loss = forward_backward(batch.columns, true)[0]; // in[0] and in[1] are the columns
                gradient_sum.finish(); // the gradients are now those of the whole mini-batch
                double sums[] = {share > 0 ? share * double(loss.to_host().data<float>()[0]) : 0.0};
                step_sums.add(share, sums);
                step_sums.finish(sums);
                compute.add_idle(sums); // so that all ranks have them
                optimizer.set(0.0003, log.position.step + 1);
                optimizer.update(Tensor::constant({}, sums[0]));
                log.step({{"loss", sums[0]}, {"rmse", std::sqrt(sums[0])}}, n, optimizer.non_finite_at());
            }
            if (log.epoch_is_complete()) log.end_epoch();
            saver.save();
        }
        return log.end();
    });
}

int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) { return train(group, argc, argv); });
}
