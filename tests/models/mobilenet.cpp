// Tests the MobileNets: names and sizes, initial values, results, gradients, and the plan of a training step.
// tools/compare_pytorch.py compares their values with torchvision.
#include "core/plan.h"
#include "models/nets/mobilenet.h"
#include "models/nets/networks.h"
#include "models/nets/state_dict.h"
#include "tests/op_check.h"
#include "tests/sync_ranks.h"
#include "tests/temp_dir.h"
#include "tests/training_step.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg {
namespace {

const std::vector<std::string> kMobileNets{"mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"};

std::unique_ptr<Network> make_mobile(const std::string& name, const ImageTask& task,
                                     std::vector<std::string> arguments = {}) {
    NetworkChoice choice(kMobileNets);
    Options options("test", "");
    choice.declare(options);
    arguments.push_back("--net=" + name);
    options.parse(arguments);
    return choice.make(task);
}

double length_of(const Tensor& t) {
    double square = 0;
    const Tensor values = t.to(DType::f32);
    for (const float v : values.span<float>()) square += double(v) * double(v);
    return std::sqrt(square);
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("mobilenet: parameters have torchvision's names, order and count") {
        struct Case {
            std::string name, width;
            int64_t count; // that of torchvision
            size_t tensors;
        };
        for (const Case& c : {Case{"mobilenet_v2", "1", 3504872, 314},
                              {"mobilenet_v2", "0.35", 1677128, 314},
                              {"mobilenet_v2", "1.4", 6108776, 314},
                              {"mobilenet_v3_small", "1", 2542856, 244},
                              {"mobilenet_v3_small", "0.75", 1653920, 244},
                              {"mobilenet_v3_small", "0.1", 136672, 232}, // some blocks do not expand their channels
                              {"mobilenet_v3_large", "1", 5483032, 312},
                              {"mobilenet_v3_large", "0.5", 1734576, 312}}) {
            CAPTURE(c.name);
            CAPTURE(c.width);
            const DryRun without_memory;
            const auto net = make_mobile(c.name, {224, 224, 3, 1000}, {"--width-mult", c.width});
            CHECK(net->parameters.count() == c.count);
            CHECK(net->parameters.entries().size() + 3 * net->parameters.states().size() == c.tensors);
        }
        const DryRun without_memory;
        const auto expect = [](const std::string& name, const std::vector<std::string>& begins,
                               const std::vector<std::string>& names) {
            const auto net = make_mobile(name, {224, 224, 3, 1000});
            std::vector<std::string> seen;
            for (const auto& e : net->parameters.entries())
                for (const std::string& begin : begins)
                    if (e.name.starts_with(begin)) seen.push_back(e.name);
            CHECK(seen == names);
        };
        expect("mobilenet_v2", {"features.1.", "classifier."},
               {"features.1.conv.0.0.weight", "features.1.conv.0.1.weight", "features.1.conv.0.1.bias",
                "features.1.conv.1.weight", "features.1.conv.2.weight", "features.1.conv.2.bias", "classifier.1.weight",
                "classifier.1.bias"});
        expect("mobilenet_v2", {"features.2."},
               {"features.2.conv.0.0.weight", "features.2.conv.0.1.weight", "features.2.conv.0.1.bias",
                "features.2.conv.1.0.weight", "features.2.conv.1.1.weight", "features.2.conv.1.1.bias",
                "features.2.conv.2.weight", "features.2.conv.3.weight", "features.2.conv.3.bias"});
        expect("mobilenet_v3_small", {"features.1.", "features.12.", "classifier."},
               {"features.1.block.0.0.weight", "features.1.block.0.1.weight", "features.1.block.0.1.bias",
                "features.1.block.1.fc1.weight", "features.1.block.1.fc1.bias", "features.1.block.1.fc2.weight",
                "features.1.block.1.fc2.bias", "features.1.block.2.0.weight", "features.1.block.2.1.weight",
                "features.1.block.2.1.bias", "features.12.0.weight", "features.12.1.weight", "features.12.1.bias",
                "classifier.0.weight", "classifier.0.bias", "classifier.3.weight", "classifier.3.bias"});
    }

    TEST_CASE("mobilenet: a file of torchvision's layout loads, whatever the size of the images") {
        const auto small = make_mobile("mobilenet_v3_small", {32, 32, 3, 4, 1}),
                   large = make_mobile("mobilenet_v3_small", {96, 65, 3, 4, 2});
        const TensorFile file{state_dict(large->parameters), {}, "file"};
        CHECK(file.tensor("features.1.block.1.fc1.weight", DType::f32, {8, 16, 1, 1}).numel() == 128);
        CHECK(file.tensor("features.1.block.0.0.weight", DType::f32, {16, 1, 3, 3}).numel() == 144); // depthwise
        load_state_dict(small->parameters, file);
        CHECK(same_bits(small->parameters.all().clone(), large->parameters.all().clone()));
        // The first block has stride 1 in the small network, and still no addition: without its last weights, it is
        // constant.
        small->parameters.entry("features.1.block.2.1.weight").value.fill(0);
        const LayerOutputs layers;
        const Tensor x = Tensor::empty({1, 32, 32, 3});
        for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = float(i % 7);
        small->forward(x, Mode::evaluate);
        for (const float value : layers.of("features.1").span<float>()) CHECK(value == 0);
        const auto narrow = make_mobile("mobilenet_v3_small", {96, 65, 3, 4}, {"--width-mult=0.5"});
        CHECK_ERROR("file: expected tensor features.1.block.1.fc1.weight of [8 8 1 1], got [8 16 1 1]",
                    load_state_dict(narrow->parameters, TensorFile{file}, {"features.0", "features.1.block.0"}));
    }

    TEST_CASE("mobilenet: has torchvision's initial values") {
        const auto net = make_mobile("mobilenet_v3_large", {32, 32, 3, 100});
        Parameters& p = net->parameters;
        for (const auto& [entry, deviation] : {std::pair("features.16.0.weight", std::sqrt(2.0 / 960)),
                                               {"features.15.block.1.0.weight", std::sqrt(2.0 / (25 * 960))}, // depthwise
                                               {"classifier.0.weight", 0.01},
                                               {"classifier.3.weight", 0.01}}) {
            const std::string name = entry; // clang 14 cannot capture structured bindings
            CAPTURE(name);
            const Tensor& t = p.entry(name).value;
            CHECK(length_of(t) / std::sqrt(double(t.numel())) == doctest::Approx(deviation).epsilon(0.03));
        }
        for (const char* const name : {"classifier.0.bias", "features.15.block.2.fc2.bias"})
            CHECK(length_of(p.entry(name).value) == 0);
        for (const auto& s : p.states()) CHECK(s.momentum == 0.01f);
        CHECK(make_mobile("mobilenet_v2", {32, 32, 3, 2})->parameters.states()[0].momentum == 0.1f);
    }

    TEST_CASE("mobilenet: takes images of any size, and rejects wrong use") {
        struct Case {
            std::string name;
            int64_t height, width, channels;
            Shape last; // extents of the last image
        };
        // Small images are divided by 8, and others by 32.
        for (const Case& c : {Case{"mobilenet_v2", 32, 40, 3, {1, 4, 5, 1280}},
                              {"mobilenet_v2", 65, 97, 1, {1, 3, 4, 1280}},
                              {"mobilenet_v3_small", 1, 1, 2, {1, 1, 1, 576}},
                              {"mobilenet_v3_large", 64, 65, 3, {1, 8, 9, 960}},
                              {"mobilenet_v3_large", 66, 70, 3, {1, 3, 3, 960}}}) {
            CAPTURE(c.name);
            const auto net = make_mobile(c.name, {c.height, c.width, c.channels, 3, 1});
            const Tensor x = random_tensor({1, c.height, c.width, c.channels}, DType::f32, 2);
            net->parameters.begin_step(1);
            const LayerOutputs layers;
            for (const Mode mode : {Mode::train, Mode::evaluate}) CHECK(net->forward(x, mode).shape() == Shape{1, 3});
            CHECK(layers.of(c.name == "mobilenet_v2"         ? "features.18"
                            : c.name == "mobilenet_v3_small" ? "features.12"
                                                             : "features.16")
                      .shape() == c.last);
            CHECK_ERROR(cat(c.name, ": expected images [n h w ", c.channels, "] with h and w of at least 1, got [2 8 8 ",
                            c.channels + 1, "]"),
                        net->forward(Tensor::zeros({2, 8, 8, c.channels + 1}), Mode::train));
        }
        CHECK_ERROR("mobilenet_v3_large, got mobilenet", MobileNet({.name = "mobilenet"}));
        CHECK_ERROR("mobilenet: expected at least one class and channel, got 0 and 3", MobileNet({.classes = 0}));
        CHECK_ERROR("option --width-mult: expected a number from 0.1 to 4, got \"0\"",
                    make_mobile("mobilenet_v2", {32, 32, 3, 2}, {"--width-mult=0"}));
        CHECK_ERROR("option --dropout: expected a number from 0 to 0.99, got \"1\"",
                    make_mobile("mobilenet_v2", {32, 32, 3, 2}, {"--dropout=1"}));
    }

    TEST_CASE("mobilenet: drops a fifth of the features in training") {
        const auto net = make_mobile("mobilenet_v2", {8, 8, 3, 2}),
                   without = make_mobile("mobilenet_v2", {8, 8, 3, 2}, {"--dropout=0"});
        const Tensor x = random_tensor({4, 8, 8, 3}, DType::f32, 2);
        std::vector<Tensor> inputs;
        for (const auto& n : {&net, &without}) {
            (*n)->parameters.begin_step(1);
            const LayerOutputs layers;
            (*n)->forward(x, Mode::train);
            inputs.push_back(layers.of("classifier.1.input"));
        }
        int64_t zeros = 0, others = 0;
        for (int64_t i = 0; i < inputs[0].numel(); ++i) {
            const float seen = inputs[0].data<float>()[i], whole = inputs[1].data<float>()[i];
            if (whole == 0) continue;
            zeros += seen == 0, others += std::abs(seen - whole / 0.8f) <= 1e-5f * whole;
        }
        CHECK(zeros + others > 4 * 1280 / 4); // ReLU6 sets about half of all to zero
        CHECK(double(zeros) / double(zeros + others) == doctest::Approx(0.2).epsilon(0.1)); // a deviation is 0.006
    }

    TEST_CASE("mobilenet: has the scores and gradients that torchvision computes in float64 with the same weights") {
        struct Case {
            std::string name;
            std::vector<double> trained, predicted; // scores of the first image, in training and in prediction
            std::vector<std::pair<std::string, double>> gradients; // their norms
        };
        const InContext reference{{.backend = Backend::reference}};
        const Tensor x = Tensor::empty({8, 16, 16, 3}), labels = Tensor::empty({8}, DType::i32);
        for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = float(i * 37 % 101) / 50 - 1;
        for (int64_t i = 0; i < 8; ++i) labels.data<int32_t>()[i] = int32_t(i % 4);
        for (const Case& c : {Case{"mobilenet_v2",
                               {-0.126772, 0.35578, -0.0764695, 0.402368},
                               {0.111943, -0.0340652, -0.108115, 0.0530626},
                               {{"features.0.0.weight", 137.941},
                                {"features.0.1.weight", 0.000790073},
                                {"features.9.conv.3.weight", 0.187252},
                                {"classifier.1.weight", 7.41286}}},
                              {"mobilenet_v3_small",
                               {0.00247651, 0.00398228, -0.0271793, -0.0637474},
                               {0.000110667, 0.000507318, 8.28745e-05, -7.91867e-05},
                               {{"features.0.0.weight", 1.41929},
                                {"features.7.block.0.1.weight", 0.00343087},
                                {"features.1.block.1.fc1.weight", 0.0539494},
                                {"classifier.3.weight", 0.765513}}},
                              {"mobilenet_v3_large",
                               {0.0350023, 0.0279829, 0.0474349, 0.0656883},
                               {0.000482137, -0.000652498, -0.000540328, 0.000603097},
                               {{"features.0.0.weight", 5.45359},
                                {"features.9.block.1.0.weight", 0.890669},
                                {"features.4.block.2.fc1.weight", 0.15491},
                                {"classifier.3.weight", 1.10007}}}}) {
            CAPTURE(c.name);
            MobileNet net({.name = c.name, .classes = 4, .dropout = 0, .small_images = true, .seed = 3, .dtype = DType::f64});
            Parameters& p = net.parameters;
            for (const auto& e : p.entries()) // with these values, batch norms reach all parts of the activations
                if (e.shape.rank() == 1 && e.name.ends_with(".weight")) e.value.fill(2);
            p.begin_step(1);
            Tape tape;
            const Tensor trained = net.forward(x.to(DType::f64), Mode::train);
            tape.gradients(cross_entropy(trained, labels), p);
            const auto check = [](double seen, double expected) { // which has six digits
                CHECK(std::abs(seen / expected - 1) < 1e-5);
            };
            for (const auto& [entry, norm] : c.gradients) {
                const std::string name = entry;
                CAPTURE(name);
                check(length_of(p.entry(name).gradient), norm);
            }
            const Tensor predicted = net.forward(x.to(DType::f64), Mode::evaluate); // with the statistics of this step
            for (size_t i = 0; i < 4; ++i) {
                CAPTURE(i);
                check(trained.data<double>()[i], c.trained[i]);
                check(predicted.data<double>()[i], c.predicted[i]);
            }
        }
    }

    TEST_CASE("mobilenet: a replayed step and a replayed prediction are the plain ones") {
        for (const auto& [net, side] : {std::pair("mobilenet_v2", 16), {"mobilenet_v3_small", 21}}) {
            const std::string name = net;
            CAPTURE(name);
            const Tensor x = random_tensor({8, side, side, 3}, DType::f32, 5), labels = random_labels(8, 4, 6);
            std::vector<std::unique_ptr<Network>> nets;
            std::vector<Accelerated> runs;
            std::vector<double> losses;
            for (const bool enabled : {false, true}) {
                nets.push_back(make_mobile(name, {side, side, 3, 4, 3}));
                runs.push_back(training_step(*nets.back()));
                runs.back().enabled = enabled;
                nets.back()->parameters.begin_step(1);
                losses.push_back(double(runs.back()({x, labels}, true)[0].data<float>()[0]));
            }
            CHECK(losses[1] == doctest::Approx(losses[0]).epsilon(1e-3));
            const Parameters &plain = nets[0]->parameters, &fused = nets[1]->parameters;
            CHECK(differs(fused.gradients(), plain.gradients(), {0.03, 3}) == ""); // see tests/models/resnet.cpp
            fused.state().copy_from(plain.state());
            CHECK(differs(runs[1]({x})[0], runs[0]({x})[0], {1e-3, 1e-2}) == "");
        }
    }
}

} // namespace rg
