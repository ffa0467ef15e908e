// Tests the residual networks: names and sizes, initial values, results, and the plan of a training step.
// tools/compare_pytorch.py compares their values with PyTorch.
#include "core/plan.h"
#include "models/nets/networks.h"
#include "models/nets/resnet.h"
#include "models/nets/state_dict.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"
#include "tests/temp_dir.h"
#include "tests/training_step.h"

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

namespace rg {
namespace {

std::unique_ptr<Network> make(const std::string& name, const ImageTask& task, std::vector<std::string> arguments = {}) {
    NetworkChoice choice({"resnet20", "resnet18", "resnet50", "wrn16-4"});
    Options options("test", "");
    choice.declare(options);
    arguments.push_back("--net=" + name);
    options.parse(arguments);
    return choice.make(task);
}

std::vector<std::string> names_of(const Network& net, const std::string& begin) {
    std::vector<std::string> names;
    for (const NamedTensor& t : state_dict(net.parameters))
        if (t.name.starts_with(begin)) names.push_back(t.name);
    return names;
}

double variance_of(const Tensor& t) {
    double square = 0;
    for (const float v : t.span<float>()) square += double(v) * double(v);
    return square / double(t.numel());
}

/// A network with a training step for images of random values.
struct Trainee {
    std::unique_ptr<Network> network;
    Tensor x, labels;
    Accelerated run;

    Trainee(std::unique_ptr<Network> net, const Shape& images, int64_t classes, DType type = DType::f32)
        : network(std::move(net)),
          x(random_tensor(images, DType::f32, 5)),
          labels(random_labels(images[0], classes, 6)),
          run(training_step(*network, type)) {}
};

int64_t count_of(const Plan& plan, Op op) {
    return std::count_if(plan.steps().begin(), plan.steps().end(), [&](const auto& s) { return s.op == op; });
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("resnet: parameters have torchvision's names, order and count") {
        struct Case {
            std::string name;
            int64_t side, classes, count;
        };
        // The counts are those of torchvision and of the papers. For small images, the stem of resnet18 has
        // 64 * 3 * (49 - 9) weights less.
        for (const Case& c : {Case{"resnet20", 32, 10, 272474},
                              {"resnet18", 224, 1000, 11689512},
                              {"resnet18", 32, 1000, 11689512 - 64 * 3 * 40},
                              {"resnet50", 224, 1000, 25557032},
                              {"wrn16-4", 32, 10, 2748890}}) {
            CAPTURE(c.name);
            const DryRun without_memory;
            CHECK(make(c.name, {c.side, c.side, 3, c.classes})->parameters.count() == c.count);
        }
        const auto net = make("resnet20", {32, 32, 1, 4});
        using Names = std::vector<std::string>;
        CHECK(names_of(*net, "layer2.0.") ==
              Names{"layer2.0.conv1.weight", "layer2.0.bn1.weight", "layer2.0.bn1.bias", "layer2.0.conv2.weight",
                    "layer2.0.bn2.weight", "layer2.0.bn2.bias", "layer2.0.downsample.0.weight",
                    "layer2.0.downsample.1.weight", "layer2.0.downsample.1.bias", "layer2.0.bn1.running_mean",
                    "layer2.0.bn1.running_var", "layer2.0.bn1.num_batches_tracked", "layer2.0.bn2.running_mean",
                    "layer2.0.bn2.running_var", "layer2.0.bn2.num_batches_tracked",
                    "layer2.0.downsample.1.running_mean", "layer2.0.downsample.1.running_var",
                    "layer2.0.downsample.1.num_batches_tracked"});
        CHECK(names_of(*net, "conv1") == Names{"conv1.weight"});
        CHECK(names_of(*net, "fc") == Names{"fc.weight", "fc.bias"});
        CHECK(net->parameters.entries()[0].shape == Shape{16, 3, 3, 1});
    }

    TEST_CASE("resnet: a file of another stem is an error that names the option") {
        const auto small = make("resnet18", {64, 64, 3, 10}), large = make("resnet18", {64, 64, 3, 10}, {"--stem", "imagenet"});
        const TensorFile file{state_dict(large->parameters), {}, "file"};
        CHECK_ERROR("got [64 3 7 7]; give --stem imagenet", check_state_dict(small->parameters, file));
    }

    TEST_CASE("resnet: has He's initial values by fan-out, and with --zero-last-gamma branches that start with 0") {
        const ImageTask task{32, 32, 3, 10};
        const auto net = make("resnet20", task), zero = make("resnet20", task, {"--zero-last-gamma"});
        Parameters& p = net->parameters;
        const Tensor &strided = p.entry("layer3.0.conv1.weight").value, &dense = p.entry("fc.weight").value;
        CHECK(variance_of(strided) == doctest::Approx(2.0 / (9 * 64)).epsilon(0.05)); // 64 filters of 3 x 3 x 32
        CHECK(variance_of(dense) == doctest::Approx(1.0 / (3 * 64)).epsilon(0.2));
        for (const Parameters::Entry& e : zero->parameters.entries()) {
            CAPTURE(e.name);
            const bool last = e.name.ends_with("bn2.weight");
            CHECK(same_bits(e.value.clone(), last ? Tensor::zeros(e.shape) : p.entry(e.name).value.clone()));
            if (last || e.name.ends_with("bn1.weight")) CHECK(variance_of(e.value) == (last ? 0 : 1));
        }
        const DryRun without_memory;
        const auto bottleneck = make("resnet50", {8, 8, 3, 2}, {"--zero-last-gamma"});
        using Start = Parameters::Entry::Start;
        CHECK(bottleneck->parameters.entry("layer1.0.bn2.weight").start == Start::ones);
        CHECK(bottleneck->parameters.entry("layer1.0.bn3.weight").start == Start::zeros);
    }

    TEST_CASE("resnet: takes images of any size, and rejects wrong use") {
        for (const auto& [name, height, width, channels] : {std::tuple("resnet20", 1, 1, 3),
                                                            {"resnet20", 21, 10, 1},
                                                            {"wrn16-4", 9, 12, 2},
                                                            {"resnet18", 70, 65, 3},
                                                            {"resnet50", 33, 3, 1}}) {
            const ImageTask task{height, width, channels, 3, 1};
            const auto net = make(name, task);
            const Tensor x = random_tensor({2, height, width, channels}, DType::f32, 2);
            for (const Mode mode : {Mode::train, Mode::evaluate}) CHECK(net->forward(x, mode).shape() == Shape{2, 3});
            CHECK_ERROR(cat(name, ": expected images [n h w ", channels, "] with h and w of at least 1, got [2 8 8 ",
                            channels + 1, "]"),
                        net->forward(Tensor::zeros({2, 8, 8, task.channels + 1}), Mode::train));
        }
        CHECK_ERROR("--stem: expected cifar or auto for resnet20, got imagenet",
                    make("resnet20", {32, 32, 3, 2}, {"--stem=imagenet"}));
        CHECK_ERROR("--zero-last-gamma: expected a network whose branches end with batch norm, got wrn16-4",
                    make("wrn16-4", {32, 32, 3, 2}, {"--zero-last-gamma"}));
        CHECK_ERROR("wrn16-4, got resnet19", ResNet({.name = "resnet19"}));
    }

    TEST_CASE("resnet: has the scores that PyTorch computes in float64 with the same weights") {
        struct Case {
            std::string name;
            std::vector<std::string> arguments;
            std::vector<double> scores; // of torchvision's modules, and those of tools/pytorch_nets.py
        };
        const Tensor x = Tensor::empty({1, 12, 10, 3});
        for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = float(i * 37 % 101) / 50 - 1;
        for (const Case& c : {Case{"resnet20", {}, {0.90721, -0.036379, 0.85234, -1.7488}},
                              {"wrn16-4", {}, {-0.043233, 0.14567, 0.18958, 0.079139}},
                              {"resnet50", {"--stem=imagenet"}, {-0.47692, -0.13334, -0.22772, 0.20959}}}) {
            CAPTURE(c.name);
            const Tensor scores = make(c.name, {32, 32, 3, 10, 3}, c.arguments)->forward(x, Mode::evaluate);
            for (size_t i = 0; i < c.scores.size(); ++i) {
                CAPTURE(i);
                CHECK(std::abs(double(scores.data<float>()[i]) - c.scores[i]) < 5e-3); // a structural error gives 0.05
            }
        }
    }

    TEST_CASE("resnet: a replayed step and a replayed prediction are the plain ones") {
        struct Case {
            std::string name;
            int64_t side;
            std::vector<std::string> arguments = {};
            bool deep = false; // true: batch norm of few values amplifies roundings too much to compare gradients
        };
        for (const Case& c : {Case{"resnet20", 16}, {"wrn16-4", 13}, {"resnet18", 66, {}, true}}) {
            CAPTURE(c.name);
            const ImageTask task{c.side, c.side, 3, 4, 3};
            const Shape images{c.deep ? 2 : 8, c.side, c.side, 3};
            Trainee plain(make(c.name, task, c.arguments), images, 4),
                fused(make(c.name, task, c.arguments), images, 4);
            plain.run.enabled = false;
            const Parameters &p = plain.network->parameters, &f = fused.network->parameters;
            const double expected = double(plain.run({plain.x, plain.labels}, true)[0].data<float>()[0]);
            CHECK(fused.run({fused.x, fused.labels}, true)[0].data<float>()[0] ==
                  doctest::Approx(expected).epsilon(c.deep ? 0.05 : 1e-3));
            // A ReLU whose input is nearly 0 may pass it in one of the two only. That changes single gradients, while a
            // wrong gradient of a layer changes all gradients before it.
            if (!c.deep) CHECK(differs(f.gradients(), p.gradients(), {0.03, 3}) == "");
            // The same statistics, so that predictions differ only by their own roundings.
            f.state().copy_from(p.state());
            CHECK(differs(fused.run({fused.x})[0], plain.run({plain.x})[0], {1e-3, 1e-2}) == "");
        }
    }

    TEST_CASE("resnet: a residual block is planned as its convolutions and one sum") {
        Trainee step(make("resnet20", {16, 16, 3, 4}), {4, 16, 16, 3}, 4);
        const Plan& training = step.run.plan({step.x, step.labels}, true);
        // 19 convolutions of 3 x 3, two shortcuts, and the dense layer. The only batch norm is that of the stem, whose
        // result is also the shortcut of the first block.
        for (const auto& c : {std::pair(op::conv2d, 22), {op::add, 9}, {op::activation, 0}, {op::channel_stats, 0},
                              {op::batch_norm, 1}, {op::conv2d_grad, 23}, // the dense layer has two
                              {op::activation_grad, 9}, {op::batch_norm_grad, 0}}) {
            CAPTURE(c.first->name);
            CHECK(count_of(training, c.first) == c.second);
        }
        const Plan& prediction = step.run.plan({step.x}, false);
        CHECK(count_of(prediction, op::conv2d) == 22);
        CHECK(count_of(prediction, op::add) == 9);
        CHECK(prediction.steps().size() == 22 + 9 + 1); // and the mean over all pixels
    }

    TEST_CASE("resnet: a training in bf16 learns, and its first loss is close to that in f32") {
        double first[2];
        for (const DType type : {DType::f32, DType::bf16}) {
            Trainee step(make("resnet20", {8, 8, 3, 4, 1}), {16, 8, 8, 3}, 4, type);
            const Parameters& p = step.network->parameters;
            const Tensor velocity = Tensor::zeros(p.values().shape());
            double loss = 0;
            for (int i = 0; i < 20; ++i) {
                loss = double(step.run({step.x, step.labels}, true)[0].data<float>()[0]);
                if (i == 0) first[type == DType::bf16] = loss;
                sgdm_update(p.values(), velocity, p.gradients(), {.lr = 0.05f, .momentum = 0.9f});
            }
            CHECK(loss < 0.3 * first[0]);
        }
        CHECK(first[1] == doctest::Approx(first[0]).epsilon(0.03));
    }
}

} // namespace rg
