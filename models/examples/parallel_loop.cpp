// parallel_loop: a training loop of one's own, on one rank or many, on CPUs or GPUs: own images, loss and checkpoints.
//
//     mpiexec -n 3 build/parallel_loop           # Ctrl-C, or Stop in tools/monitor, ends it with a checkpoint
//     mpiexec -n 3 build/parallel_loop --resume
//
// Each rank computes its part of a mini-batch, and the parts may differ in size. A part counts by its share of the
// images: in the gradients (GradientSum), and in the loss and batch norm's running statistics (StepSums).
#include "ringgrad/core/accelerate.h"
#include "ringgrad/core/checkpoint.h"
#include "ringgrad/core/layers.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/core/version.h"
#include "ringgrad/data/loader.h"
#include "ringgrad/models/run/gradient_sum.h"
#include "ringgrad/models/run/machine.h"
#include "ringgrad/models/run/optimizer.h"
#include "ringgrad/models/run/progress.h"
#include "ringgrad/models/run/run_folder.h"
#include "ringgrad/models/run/signals.h"
#include "ringgrad/par/session.h"
#include <cmath>
#include <optional>

using namespace rg;

/// Draws 302 images of a ring, as a column of mini-batches, or gives the rings' radii, which the network learns.
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
    MachineOptions settings;
    int64_t epochs = 20;
    bool resume = false, sync_bn = true;
    Options options("parallel_loop", "trains a network to measure rings");
    options.add("epochs", &epochs, "number of epochs").range(1, 1e6);
    options.add("resume", &resume, "continue the newest run from its last checkpoint");
    options.add("sync-bn", &sync_bn, "batch norm over the images of all ranks; off: of each rank's part");
    settings.declare_compute(options);
    if (!options.parse(argc, argv)) return options.print_answer(group.rank() == 0);
    install_stop_signals();
    Machine machine(settings, options, group);
    GroupSync sync(group);
    Context context = machine.context();
    if (sync_bn) context.sync = &sync;
    const ContextScope scope(context);

    data::Loader loader({rings(false), rings(true)},
                        {.batch_size = 50, .keep_partial = true, .first_part = group.rank(), .parts = group.size()});
    Parameters parameters;
    const ConvNorm conv(parameters, "conv",
                        {.out = 16, .kernel = 3, .in = 1, .conv = {.stride = 2, .pad = 1}, .bias = false});
    const Dense dense(parameters, "dense", 1, 8 * 8 * 16);
    parameters.allocate(1, Init::he);
    GradientSum gradient_sum(group, parameters, par::Algorithm::automatic, false);
    Optimizer optimizer(parameters, {.momentum = 0.9});
    Accelerated forward_backward([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        Tape tape;
        const Tensor error = sub(dense(conv(in[0], Mode::train)), in[1]), loss = mean(mul(error, error));
        tape.gradients(loss, parameters);
        return {loss};
    });

    std::optional<RunFolder> folder; // only rank 0 writes files and prints
    std::optional<Progress> progress;
    if (group.rank() == 0) {
        const std::string runs = default_runs_folder(), &program = options.program();
        folder.emplace(resume ? RunFolder::open(runs, program, "") : RunFolder::create(runs, program, ""));
        folder->lock(); // shows the monitor that the run is alive
        folder->write_config(Json::object().set("program", program).set("version", kVersion));
        progress.emplace(ProgressKind::automatic);
    }
    const std::string checkpoints = group.allgather(folder ? folder->checkpoint_path() : "", "run")[0];
    std::vector<NamedTensor> state = optimizer.state();
    state.push_back({"network", parameters.all()});
    int64_t step = 0;
    if (resume) {
        const LoadedCheckpoint saved = load_latest_checkpoint(checkpoints);
        for (const auto& [name, value] : state) value.copy_from(saved.state.tensor(name, value.dtype(), value.shape()));
        step = saved.step;
        if (folder) folder->cut_metrics(step, step / loader.batches());
    }

    const Tensor loss_of_all = Tensor::zeros({});
    const int64_t batches = loader.batches(), steps = epochs * batches;
    bool stopped = false;
    while (step < steps && !stopped) {
        const int64_t epoch = step / batches + 1;
        double epoch_loss = 0, images = 0;
        for (loader.start(epoch, step % batches); loader.has_next() && !stopped;) {
            const data::Batch batch = loader.next(); // this rank's part, which may be empty
            const double share = double(batch.size) / double(batch.global_size);
            sync.samples = batch.global_size, sync.fraction = share;
            StepSums step_sums(group, parameters);
            gradient_sum.begin(share);
            const Tensor loss = forward_backward(batch.columns, true)[0].to_host();
            gradient_sum.finish(); // the gradients are now those of the whole mini-batch
            double sums[] = {share > 0 ? share * double(loss.data<float>()[0]) : 0.0,
                             double(stop_requested() || (folder && folder->take_stop_request()))};
            step_sums.add(share, sums);
            step_sums.finish(sums);
            RG_CHECK(std::isfinite(sums[0]), "training: expected a finite loss, got ", sums[0], " in step ", step + 1);
            loss_of_all.fill(sums[0]);
            optimizer.set(0.0003, ++step);
            optimizer.update(loss_of_all);
            stopped = sums[1] > 0; // by a request on any rank
            epoch_loss += sums[0] * double(batch.global_size), images += double(batch.global_size);
            if (!folder) continue;
            folder->log(Json::object().set("step", step).set("epoch", epoch).set("loss", sums[0]));
            progress->step(
                {epoch, epochs, step, steps, epoch_loss / images, "", batch.global_size, batches - 1 - batch.index});
        }
        if (!folder) continue;
        progress->note(cat("epoch ", epoch, "  loss ", epoch_loss / images));
        save_checkpoint(checkpoints, step, {state, {}, {}}, 2);
    }
    return stopped ? stopped_exit_code(group) : 0;
}

int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) { return train(group, argc, argv); });
}
