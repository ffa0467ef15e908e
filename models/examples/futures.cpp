// futures: trains networks at the same time, each on a free rank; follows them, and cancels those that learn too
// slowly.
//
//     mpiexec -n 4 build/futures
#include "ringgrad/core/cpu/cpu_scope.h"
#include "ringgrad/core/layers.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/data/loader.h"
#include "ringgrad/par/session.h"
#include "ringgrad/par/task_pool.h"
#include <cmath>
#include <cstdio>

using namespace rg;

/// Learns the product of two numbers with one hidden layer. Returns the loss of the last epoch.
Json train(par::TaskContext& task, const Json& args) {
    const CpuScope one_thread(1);
    const auto numbers = [](auto& sample) {
        Rng random = data::Sample{.index = sample.index}.random(); // the same in each epoch
        const float a = random.uniform(), b = random.uniform();
        return std::array{a, b, a * b};
    };
    data::Column x = data::computed({2}, [&](auto& s, auto out) { std::copy_n(numbers(s).begin(), 2, out.begin()); });
    data::Column y = data::computed({1}, [&](auto& s, auto out) { out[0] = numbers(s)[2]; });
    x.count = 500;
    data::Loader batches({x, y}, {.batch_size = 50});
    Parameters parameters;
    const Dense hidden(parameters, "hidden", args.at("width").as_int(), 2),
        last(parameters, "last", 1, args.at("width").as_int());
    parameters.allocate(1, Init::he);
    const Tensor velocity = Tensor::zeros(parameters.values().shape());
    double mean_loss = 0;
    for (int64_t epoch = 1; epoch <= 20 && !task.cancelled(); ++epoch) {
        mean_loss = 0;
        for (batches.start(epoch); batches.has_next();) {
            const data::Batch batch = batches.next();
            Tape tape;
            const Tensor loss = mse_loss(last(relu(hidden(batch.columns[0]))), batch.columns[1]);
            tape.gradients(loss, parameters);
            sgdm_update(parameters.values(), velocity, parameters.gradients(),
                        {.lr = float(args.at("lr").as_double())});
            mean_loss += double(loss.data<float>()[0]) / double(batches.batches());
        }
        task.report(Json::object().set("epoch", epoch).set("loss", mean_loss));
    }
    return mean_loss;
}

/// Runs on rank 0, while all ranks train.
void control(par::TaskPool& pool) {
    pool.on_report([&](const par::TaskRecord& task, const Json& line) {
        const Json& value = line.at("loss"); // null if the loss is not finite
        const double loss = value.is_number() ? value.as_double() : INFINITY;
        std::printf("%s: epoch %d loss %.5f\n", task.args.dump().c_str(), int(line.at("epoch").as_int()), loss);
        if (line.at("epoch").as_int() >= 5 && loss > 0.02) pool.cancel(task.id, "its loss is above 0.02");
    });
    std::vector<par::Future> futures;
    for (const double lr : {0.1, 0.01, 0.0001})
        for (const int width : {4, 16})
            futures.push_back(pool.submit("train", Json::object().set("lr", lr).set("width", width)));
    for (par::Future& future : futures) {
        const par::TaskRecord& task = future.wait(); // reports arrive meanwhile
        std::printf("%s: %s, %s %s\n", task.args.dump().c_str(), par::name_of(task.state), task.output.dump().c_str(),
                    task.cancel_reason.c_str());
    }
}

int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [](par::Group& group) {
        par::run_task_pool(group.link(), {{"train", train}}, control);
        return 0;
    });
}
