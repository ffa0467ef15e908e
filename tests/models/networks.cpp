// Tests that the files of models describe their networks, and that networks can be made from them.
#include "core/accelerate.h"
#include "core/ops.h"
#include "core/tape.h"
#include "models/nets/cifar_net.h"
#include "models/nets/digits_net.h"
#include "models/nets/state_dict.h"
#include "models/run/model_file.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"

#include <doctest/doctest.h>

namespace rg {
namespace {

/// A network of a program's own: a dense layer.
struct Flat final : Network {
    Flat(const ImageTask& task, bool wide)
        : fc(parameters, wide ? "wide" : "fc", task.classes, task.height * task.width * task.channels) {
        parameters.allocate(task.seed, Init::he);
    }
    Tensor forward(const Tensor& x, Mode) const override { return fc(x); }
    Dense fc;
};
struct Flats final : NetworkFamily {
    bool wide = false;
    Flats() : NetworkFamily({"flat", "flat2"}) {}
    void declare(Options& o) override { o.add("wide", &wide, "other name"); }
    std::unique_ptr<Network> make(const std::string&, const ImageTask& task) const override {
        return std::make_unique<Flat>(task, wide);
    }
};
const RegisterNetworks<Flats> flats;

data::ImageSet images_of(int64_t height, int64_t width, int64_t channels, int classes) {
    data::ImageSet set{.height = height, .width = width, .channels = channels};
    for (int i = 0; i < classes; ++i) set.classes.push_back(cat("class ", i));
    return set;
}

struct Saved {
    std::unique_ptr<Network> network;
    TensorFile file;
};

/// Makes a network like a program with these arguments, and its file.
Saved saved(const std::vector<std::string>& names, const std::vector<std::string>& arguments,
            const data::ImageSet& images) {
    NetworkChoice choice(names);
    Options options("test", "");
    choice.declare(options);
    options.parse(arguments);
    choice.check(options);
    std::unique_ptr<Network> network = choice.make(task_of(images, 7));
    TensorFile file{state_dict(network->parameters), describe_model(choice.describe(), images, {}), "saved"};
    return {std::move(network), std::move(file)};
}

std::string replaced(const TensorFile& file, const std::string& key, const std::string& text) {
    TensorFile changed = file;
    for (auto& [name, value] : changed.metadata)
        if (name == key) value = text;
    return error_of([&] { make_network(changed); });
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("networks: the file of a model says how to make its network") {
        struct Case {
            std::vector<std::string> names, arguments;
            data::ImageSet images;
            std::string description;
        };
        for (const Case& c : {Case{{"cifar", "flat"},
                                   {"--width", "3", "--depth=2", "--initializer", "glorot"},
                                   images_of(9, 7, 1, 4),
                                   R"({"name": "cifar", "width": 3, "depth": 2, "initializer": "glorot"})"},
                              Case{{"cifar", "flat", "flat2"},
                                   {"--net", "flat2", "--wide"},
                                   images_of(2, 3, 3, 2),
                                   R"({"name": "flat2", "wide": true})"},
                              Case{{"digits"}, {}, images_of(28, 28, 1, 3), R"({"name": "digits", "initializer": "he"})"},
                              Case{{"digits-angles"},
                                   {},
                                   images_of(28, 28, 1, 3),
                                   R"({"name": "digits-angles", "initializer": "he"})"}}) {
            CAPTURE(c.description);
            const data::ImageSet& images = c.images;
            const Saved model = saved(c.names, c.arguments, images);
            CHECK(model.file.text("network") == c.description);
            CHECK(stored_classes(model.file) == images.classes);
            const ImageTask task = stored_task(model.file);
            CHECK(Shape{task.height, task.width, task.channels, task.classes} ==
                  Shape{images.height, images.width, images.channels, int64_t(images.classes.size())});
            const std::unique_ptr<Network> network = make_network(model.file);
            CHECK(same_bits(network->parameters.all(), model.network->parameters.all()));
            CHECK_FALSE(network->parameters.gradients().defined());
            const Tensor x = Tensor::constant({2, images.height, images.width, images.channels}, 0.5);
            const std::vector<Tensor> results = network->outputs(x, Mode::evaluate);
            for (const bool traced : {false, true}) {
                const auto step = [&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
                    Tape tape;
                    const Tensor loss = mse_loss(network->outputs(in[0], Mode::evaluate)[0], results[0]);
                    tape.gradients(loss, network->parameters);
                    return {loss};
                };
                CHECK_ERROR("make_network() only predicts", Accelerated(step, traced)({x}, true));
            }
            CHECK(results.size() == (c.names[0] == "digits-angles" ? 2 : 1));
            CHECK(same_bits(results[0], model.network->forward(x, Mode::evaluate)));
        }
    }

    TEST_CASE("networks: a network takes windows, and the file of its model has the size of the images too") {
        data::ImageSet images = images_of(9, 8, 3, 2);
        CHECK(stored_resize(saved({"flat"}, {}, images).file) == data::ImageSize{9, 8});
        images.window = {4, 5};
        const Saved model = saved({"flat"}, {}, images);
        CHECK(stored_task(model.file).height == 4);
        CHECK(stored_task(model.file).width == 5);
        CHECK(stored_resize(model.file) == data::ImageSize{9, 8});
        for (const char* text : {"[3, 8]", "[9, 4]", "[9, 70000]", "[9]", "[9, 8, 3]"}) {
            TensorFile damaged = model.file;
            for (auto& [name, value] : damaged.metadata)
                if (name == "resize") value = text;
            CHECK_ERROR(text, stored_resize(damaged));
        }
    }

    TEST_CASE("networks: name wrong use and damaged files") {
        const Saved model = saved({"cifar"}, {"--width=2", "--depth=1"}, images_of(8, 8, 3, 2));
        CHECK(error_of([] {
                  NetworkChoice({"cifar", "no"});
              }) == "networks: expected a registered network, got no; register it with RegisterNetworks");
        CHECK(error_of([] {
                  saved({"flat", "cifar"}, {"--depth=1"}, images_of(8, 8, 3, 2));
              }) == "--depth: expected --net cifar, got --net flat, which has no such option; omit one of them");
        const DigitsNet digits({.classes = 2});
        CHECK_ERROR("digits_net: expected images [n h w 1] with h and w of at least 28, got [1 28 27 1]",
                    digits.forward(Tensor::zeros({1, 28, 27, 1}), Mode::evaluate));
        CHECK_ERROR("(layer fc)", digits.forward(Tensor::zeros({1, 28, 29, 1}), Mode::evaluate));
        TensorFile bare = model.file;
        bare.metadata.clear();
        CHECK_ERROR("saved: expected the file of a model", make_network(bare));
        CHECK(contains(replaced(model.file, "network", R"({"name": "no"})"), "this program knows, got no"));
        CHECK(contains(replaced(model.file, "network", R"({"name": "cifar", "breadth": 2})"), "--breadth"));
        CHECK(contains(replaced(model.file, "network", R"({"name": "cifar", "width": 0})"), "expected an integer"));
        CHECK(contains(replaced(model.file, "image", "[8,8]"), "expected [height, width, channels], got [8, 8]"));
        CHECK(contains(replaced(model.file, "image", "[0,8,3]"), "got [0, 8, 3]"));
        CHECK(contains(replaced(model.file, "classes", "[]"), "classes: expected at least one, got none"));
        // A damaged description must not make the program allocate terabytes.
        CHECK(contains(replaced(model.file, "network", R"({"name": "cifar", "width": 4096, "depth": 64})"),
                       "saved: expected tensor block1.0.conv.weight of [4096 3 3 3], got [2 3 3 3]"));
    }

    TEST_CASE("state dict: takes 0 for a number of batches that is missing") {
        TensorFile file = saved({"cifar"}, {"--width=2", "--depth=1"}, images_of(8, 8, 3, 3)).file;
        std::erase_if(file.tensors, [](const NamedTensor& t) { return t.name.ends_with("num_batches_tracked"); });
        CifarNet net({.width = 2, .depth = 1, .classes = 3, .seed = 1});
        net.parameters.batches_tracked = 5;
        load_state_dict(net.parameters, file);
        CHECK(net.parameters.batches_tracked == 0);
    }

    TEST_CASE("state dict: leaves out what --init-skip names") {
        const Saved three = saved({"cifar"}, {"--width=2", "--depth=1"}, images_of(8, 8, 3, 3));
        for (const NamedTensor& t : three.file.tensors)
            if (t.name.ends_with("running_mean") || t.name.ends_with("running_var"))
                t.value.fill(t.name.ends_with("mean") ? 0.25 : 4);
        CifarNet net({.width = 2, .depth = 1, .classes = 5, .seed = 1});
        const Tensor start = net.parameters.values().clone();
        const auto load = [&](const std::vector<std::string>& skip) {
            load_state_dict(net.parameters, three.file, skip);
        };
        Parameters unallocated;
        CHECK_ERROR("call allocate()", load_state_dict(unallocated, three.file));
        CHECK(error_of([&] { load({}); }) == "saved: expected tensor fc.weight of [5 8], got [3 8]; load a file of the "
                                             "same network, or omit the tensor with --init-skip fc");
        CHECK(error_of([&] {
                  load({"fc", "head"});
              }) ==
              "--init-skip: expected layers of the network or of saved, got head");
        CHECK_ERROR("expected tensor fc.weight", load({"f"}));
        CHECK(same_bits(net.parameters.values(), start)); // an error changes nothing
        CifarNet partial({.width = 2, .depth = 1, .classes = 5, .seed = 1});
        load_state_dict(partial.parameters, three.file, {"fc", "block1.0.bn.running_mean"}); // a single tensor
        const float* const first = partial.parameters.states()[0].running.data<float>();
        CHECK(first[0] == 0.0f);
        CHECK(first[2] == 4.0f);
        load({"fc", "fc.weight", "block2"}); // a tensor may begin with several of the names
        for (const Parameters::Entry& e : net.parameters.entries()) {
            CAPTURE(e.name);
            const bool skipped = e.name.starts_with("fc") || e.name.starts_with("block2");
            const Tensor& expected =
                skipped ? start.slice(e.offset, e.shape) : three.network->parameters.entry(e.name).value;
            CHECK(same_bits(e.value.clone(), expected.clone()));
        }
        for (const Parameters::State& state : net.parameters.states())
            CHECK(state.running.data<float>()[0] == (state.name.starts_with("block2") ? 0.0f : 0.25f));
    }
}

} // namespace rg
