// trainings: trains networks of the library at the same time, follows their epochs, and predicts with each of them.
//     mpiexec -n 2 build/trainings
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/data/digits.h"
#include "ringgrad/models/programs.h"
#include "ringgrad/models/run/training.h"
#include "ringgrad/models/run/predictor.h"
#include "ringgrad/par/session.h"
#include "ringgrad/par/task_pool.h"
#include <filesystem>
#include <iostream>
#include <unistd.h>

using namespace rg;

struct Observer final : TrainingObserver {
    par::TaskContext& task;
    explicit Observer(par::TaskContext& task) : task(task) {}
    bool standalone() const override { return false; } // prints nothing
    bool on_metrics(const Json& line) override { return task.report(line), task.cancelled(); }
};
Json train(par::TaskContext& task, const Json& lr) { // on one rank; returns the bytes of the network's file
    Observer observer(task);
    const std::string runs = std::filesystem::temp_directory_path(), id = cat("training-", getpid());
    train_digits.run(task.group(), {"--epochs=1", "--lr=" + lr.dump(), "--runs=" + runs, "--run-name=" + id}, observer);
    const std::string network = read_file(runs + "/" + id + "/model.safetensors");
    return std::filesystem::remove_all(runs + "/" + id), network;
}
void control(par::TaskPool& pool) { // on rank 0, while all ranks train
    pool.on_report([](const par::TaskRecord& task, const Json& line) {
        if (!line.find("step")) std::cout << "lr " << task.args.dump() << ": " << line.dump() << std::endl;
    });
    for (par::Future future : std::array{pool.submit("train", 0.01), pool.submit("train", 0.0001)}) {
        RG_CHECK(future.wait().error.empty(), future.record().error);
        Predictor network(decode_model(future.record().output.as_string(), "network"));
        const Tensor scores = network.predict(data::draw_digits(1, 7).image(3)).scores; // of an image of a 3
        std::cout << "probability of a 3: " << scores.data<float>()[3] << std::endl;
    }
}
int work(par::Group& group) { return par::run_task_pool(group.link(), {{"train", train}}, control), 0; }
int main(int argc, char** argv) { return par::run_ranks_main(argc, argv, work); }
