// Tests the C functions of models/bindings. tests/e2e/bindings.py tests them from C and Python programs.
#include "models/bindings/ringgrad.h"

#include "core/atomic_file.h"
#include "core/cpu/cpu_scope.h"
#include "core/ops.h"
#include "core/rng.h"
#include "data/png.h"
#include "data/resize.h"
#include "models/nets/state_dict.h"
#include "models/run/predictor.h"
#include "tests/allocations.h"
#include "tests/temp_dir.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <latch>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace rg {
namespace {

/// Returns the bytes of the file of an untrained network, for images of this side, or for their central window.
std::string model_bytes(const std::string& net, int64_t side, int64_t channels, int classes,
                        const std::vector<std::string>& numbers = {}, data::ImageSize window = {},
                        std::vector<TargetInfo> targets = {{"angle", "degrees"}}) {
    NetworkChoice choice({net});
    Options options("test", "");
    choice.declare(options);
    options.parse(net == "cifar" ? std::vector<std::string>{"--width=4", "--depth=1"} : std::vector<std::string>{});
    data::ImageSet images{.height = side, .width = side, .channels = channels, .window = window};
    for (int i = 0; i < classes; ++i) images.classes.push_back(cat("class ", i));
    ModelOutputs outputs;
    if (net == "digits-angles") outputs = {{"classes", "numbers"}, std::move(targets)};
    outputs.input_numbers = numbers;
    return encode_tensors(state_dict(choice.make(task_of(images, 7))->parameters),
                          describe_model(choice.describe(), images, {}, outputs));
}

std::vector<uint8_t> random_pixels(size_t count) {
    std::vector<uint8_t> pixels(count);
    Rng rng(3, Purpose::test);
    for (uint8_t& pixel : pixels) pixel = uint8_t(rng.next());
    return pixels;
}

/// Returns the outputs that rg_predict() should have, from the plain network: [n][classes + targets].
std::vector<float> expected_outputs(const std::string& model, const std::vector<uint8_t>& pixels) {
    const TensorFile file = decode_tensors(model, "model");
    const ImageTask task = stored_task(file);
    const int64_t n = std::ssize(pixels) / (task.height * task.width * task.channels);
    const Tensor x = Tensor::empty_on_host({n, task.height, task.width, task.channels});
    for (size_t i = 0; i < pixels.size(); ++i) x.data<float>()[i] = float(pixels[i]) / 255;
    std::vector<Tensor> outputs = make_network(file)->outputs(x, Mode::evaluate);
    outputs[0] = softmax(outputs[0]);
    std::vector<float> rows;
    for (int64_t i = 0; i < n; ++i)
        for (const Tensor& output : outputs) {
            const int64_t width = output.numel() / n;
            rows.insert(rows.end(), output.data<float>() + i * width, output.data<float>() + (i + 1) * width);
        }
    return rows;
}

/// Throws unless the outputs agree up to the rounding of fused ops. Targets may be large.
void check_close(const std::vector<float>& outputs, const std::vector<float>& expected) {
    REQUIRE(outputs.size() == expected.size());
    for (size_t i = 0; i < outputs.size(); ++i) CHECK(outputs[i] == doctest::Approx(expected[i]).epsilon(1e-4));
}

/// Closes a model at the end of the scope.
struct Model {
    explicit Model(const std::string& bytes, int threads = 1)
        : handle(rg_open_memory(bytes.data(), bytes.size(), threads)) {}
    ~Model() { rg_close(handle); }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;
    rg_model* const handle;
};

/// Returns the error of a call that has failed.
std::string error_after(int result) { return result == -1 ? rg_last_error() : "no error"; }
std::string error_after(const void* result) { return result ? "no error" : rg_last_error(); }

} // namespace

TEST_SUITE("models") {
    TEST_CASE("bindings: describe a model and predict, from a file, from memory and from image files") {
        for (const std::string& bytes : {model_bytes("cifar", 8, 3, 5), model_bytes("digits-angles", 28, 1, 3)}) {
            const TempDir dir;
            write_file_atomic(dir / "model.safetensors", bytes);
            rg_model* const of_folder = rg_open(dir.path().c_str(), 2);
            REQUIRE(of_folder);
            const Model of_memory(bytes);
            REQUIRE(of_memory.handle);
            const bool angles = rg_target_count(of_folder) == 1;
            const int side = angles ? 28 : 8, channels = angles ? 1 : 3, classes = angles ? 3 : 5, row = angles ? 4 : 5;
            for (rg_model* const model : {of_folder, of_memory.handle}) {
                CHECK(rg_height(model) == side);
                CHECK(rg_width(model) == side);
                CHECK(rg_channels(model) == channels);
                CHECK(rg_class_count(model) == classes);
                CHECK(std::string(rg_class_name(model, 2)) == "class 2");
                CHECK(rg_target_count(model) == (angles ? 1 : 0));
                if (angles) CHECK(std::string(rg_target_name(model, 0)) == "angle");
                if (angles) CHECK(std::string(rg_target_unit(model, 0)) == "degrees");
                const std::vector<uint8_t> pixels = random_pixels(size_t(3 * side * side * channels));
                const std::vector<float> expected = expected_outputs(bytes, pixels);
                std::vector<float> outputs(size_t(3 * row));
                CHECK(rg_predict(model, pixels.data(), 3, side, side, channels, outputs.data(), outputs.size()) == 0);
                check_close(outputs, expected);
                const std::vector<uint8_t> png =
                    data::encode_png(side, side, channels, {pixels.data(), pixels.size() / 3});
                outputs.resize(size_t(row));
                CHECK(rg_predict_file(model, png.data(), png.size(), outputs.data(), outputs.size()) == 0);
                check_close(outputs, {expected.begin(), expected.begin() + row});
            }
            rg_close(of_folder);
        }
    }

    TEST_CASE("bindings: predict for any number of images, and convert those of another size") {
        const std::string bytes = model_bytes("cifar", 8, 3, 2);
        const Model model(bytes, 2);
        const std::vector<uint8_t> many = random_pixels(300 * 8 * 8 * 3);
        std::vector<float> outputs(300 * 2);
        CHECK(rg_predict(model.handle, many.data(), 300, 8, 8, 3, outputs.data(), outputs.size()) == 0);
        check_close(outputs, expected_outputs(bytes, many));
        const data::Image photo{20, 10, 4, 8, random_pixels(10 * 20 * 4)};
        outputs.resize(2);
        CHECK(rg_predict(model.handle, photo.pixels.data(), 1, 10, 20, 4, outputs.data(), 2) == 0);
        check_close(outputs, expected_outputs(bytes, data::fit(data::to_u8(photo, 3), 8, 8).pixels));
    }

    TEST_CASE("bindings: a network that takes the window of larger images gets images of any size") {
        const std::string bytes = model_bytes("cifar", 8, 3, 2, {}, {6, 6});
        const Model model(bytes);
        CHECK(rg_height(model.handle) == 6);
        for (const int side : {6, 8, 10}) {
            const data::Image photo{side, side, 3, 8, random_pixels(size_t(side * side * 3))};
            const data::Image stored = data::fit(photo, 8, 8);
            std::vector<uint8_t> window;
            for (int y = 1; y < 7; ++y)
                window.insert(window.end(), &stored.pixels[size_t(y * 8 + 1) * 3], &stored.pixels[size_t(y * 8 + 7) * 3]);
            std::vector<float> outputs(2);
            CHECK(rg_predict(model.handle, photo.pixels.data(), 1, side, side, 3, outputs.data(), 2) == 0);
            check_close(outputs, expected_outputs(bytes, window));
        }
    }

    TEST_CASE("bindings: refuse wrong arguments and files") {
        CHECK(error_after(rg_open(nullptr, 0)) == "path: expected a pointer to it, got NULL");
        CHECK(error_after(rg_open_memory(nullptr, 1, 0)) == "file: expected a pointer to it, got NULL");
        CHECK(contains(error_after(rg_open("/nothing/here", 0)), "/nothing/here"));
        rg_close(nullptr);
        const std::string bytes = model_bytes("cifar", 8, 3, 2);
        const auto refused = [](const std::string& file) { return error_after(Model(file).handle); };
        CHECK(contains(refused(""), "got a file of 0; the file is cut short"));
        CHECK(contains(refused(bytes.substr(0, bytes.size() - 1)), "model in memory"));
        CHECK(contains(refused(bytes.substr(0, 100)), "the file is cut short"));
        CHECK(contains(refused(std::string(1000, 'x')), "expected a safetensors file"));
        CHECK(contains(refused(encode_tensors({}, {})), "expected metadata image, got none"));
        TensorFile unknown = decode_tensors(bytes, "");
        for (auto& [key, text] : unknown.metadata)
            if (key == "network") text = R"({"name": "no"})";
        CHECK(contains(refused(encode_tensors(unknown.tensors, unknown.metadata)), "this program knows, got no"));
        CHECK(error_after(Model(bytes, -1).handle) == "threads: expected 0 to 4096, got -1");

        for (const auto number : {rg_height, rg_width, rg_channels, rg_class_count, rg_target_count})
            CHECK(error_after(number(nullptr)) == "model: expected a pointer to it, got NULL");
        for (const auto text : {rg_class_name, rg_target_name, rg_target_unit})
            CHECK(error_after(text(nullptr, 0)) == "model: expected a pointer to it, got NULL");
        const std::string with_numbers = model_bytes("cifar", 8, 3, 2, {"angle"});
        CHECK(error_after(rg_open_memory(with_numbers.data(), with_numbers.size(), 1)) ==
              "model in memory: expected a network of images alone, got one that also takes numbers; predict with "
              "PROGRAM predict, or export it as an ONNX file");
        const std::vector<TargetInfo> alike{{"angle", "degrees"}, {"angle", "rad"}};
        CHECK_ERROR("got angle twice; rename one of them", model_bytes("digits-angles", 28, 1, 3, {}, {}, alike));
        const Model open(bytes);
        rg_model* const model = open.handle;
        CHECK(error_after(rg_class_name(model, 2)) == "class: expected an index below 2, got 2");
        CHECK(error_after(rg_class_name(model, -1)) == "class: expected an index below 2, got -1");
        CHECK(error_after(rg_target_name(model, 0)) == "target: expected an index below 0, got 0");

        const std::vector<uint8_t> pixels(8 * 8 * 3);
        float outputs[4];
        const auto predict = [](rg_model* m, const uint8_t* p, size_t n, int h, int w, int c, float* out, size_t size) {
            return error_after(rg_predict(m, p, n, h, w, c, out, size));
        };
        CHECK(contains(predict(nullptr, pixels.data(), 1, 8, 8, 3, outputs, 2), "model: "));
        CHECK(contains(predict(model, nullptr, 1, 8, 8, 3, outputs, 2), "pixels: "));
        CHECK(contains(predict(model, pixels.data(), 1, 8, 8, 3, nullptr, 2), "outputs: "));
        CHECK(contains(predict(model, pixels.data(), 0, 8, 8, 3, outputs, 0), "expected at least one image"));
        CHECK(contains(predict(model, pixels.data(), 1, 0, 8, 3, outputs, 2), "got 0 x 8 of 3"));
        CHECK(contains(predict(model, pixels.data(), 1, 8, -8, 3, outputs, 2), "got 8 x -8 of 3"));
        CHECK(contains(predict(model, pixels.data(), 1, 8, 8, 5, outputs, 2), "got 8 x 8 of 5"));
        CHECK(predict(model, pixels.data(), 1, 8, 8, 3, outputs, 4) ==
              "predict: expected room for 2 outputs for each of 1 images, got 4");
        CHECK(contains(predict(model, pixels.data(), 1, 8, 8, 3, outputs, 1), "got 1"));
        CHECK(contains(predict(model, pixels.data(), SIZE_MAX, 8, 8, 3, outputs, 2), "got 2"));

        const std::vector<uint8_t> png = data::encode_png(8, 8, 3, pixels);
        const auto predict_file = [&](rg_model* m, const void* file, size_t size) {
            return error_after(rg_predict_file(m, file, size, outputs, 2));
        };
        CHECK(contains(predict_file(nullptr, png.data(), png.size()), "model: "));
        CHECK(contains(predict_file(model, nullptr, 1), "file: "));
        CHECK(contains(predict_file(model, png.data(), 0), "expected a PNG or a JPEG"));
        CHECK(contains(predict_file(model, png.data(), 40), "image in memory"));
        CHECK(contains(predict_file(model, "GIF89a..........", 16), "got GIF (image in memory); convert it to PNG"));
        CHECK(predict_file(model, png.data(), png.size()) == "no error"); // a failed call leaves the model usable
        CHECK(std::string(rg_last_error()).find("got GIF") != std::string::npos);
    }

    TEST_CASE("predictor: features are the means over all pixels of what a layer gives") {
        const CpuScope scope(2);
        const std::string bytes = model_bytes("resnet20", 8, 3, 5);
        const TensorFile file = decode_tensors(bytes, "model");
        const std::unique_ptr<Network> network = make_network(file);
        Parameters& p = network->parameters;
        const auto layer = [&](const std::string& conv, const std::string& norm, const Tensor& x,
                               Activation activation) {
            const auto state = std::ranges::find(p.states(), norm, &Parameters::State::name);
            return batch_norm(conv2d(x, p.entry(conv + ".weight").value, {}, {.pad = same(3)}), state->running,
                              p.entry(norm + ".weight").value, p.entry(norm + ".bias").value,
                              {.activation = activation, .frozen = true});
        };
        const auto means = [](const Tensor& y) { // [n h w c]
            const size_t n = size_t(y.extent(0)), c = size_t(y.extent(3)), pixels = size_t(y.numel()) / n / c;
            std::vector<double> sums(n * c);
            for (size_t i = 0; i < size_t(y.numel()); ++i)
                sums[i / (pixels * c) * c + i % c] += double(y.data<float>()[i]);
            std::vector<float> means;
            for (const double sum : sums) means.push_back(float(sum / double(pixels)));
            return means;
        };
        const auto values = [](const Tensor& t) {
            const std::span<float> all = t.span<float>();
            return std::vector<float>(all.begin(), all.end());
        };
        Predictor model(file);
        const Model in_c(bytes);
        for (const int64_t n : {1, 3, 9, 40}) {
            const std::vector<uint8_t> pixels = random_pixels(size_t(n * 8 * 8 * 3));
            const Tensor x = Tensor::empty_on_host({n, 8, 8, 3});
            for (size_t i = 0; i < pixels.size(); ++i) x.data<float>()[i] = float(pixels[i]) / 255;
            const Tensor stem = layer("conv1", "bn1", x, Activation::relu),
                         inner = layer("layer1.0.conv1", "layer1.0.bn1", stem, Activation::relu),
                         block = relu(add(layer("layer1.0.conv2", "layer1.0.bn2", inner, {}), stem));
            const auto features = [&](const char* name) {
                const Tensor t = model.predict(pixels, {}, name).features;
                CHECK(t.shape() == Shape{n, model.feature_count(name)});
                return values(t);
            };
            check_close(features("conv1"), means(stem));
            check_close(features("layer1.0.conv1"), means(inner));
            check_close(features("layer1.0"), means(block));
            CHECK(features("layer1") == features("layer1.2"));
            // The means of the last stage are the inputs of the dense layer.
            const Predictor::Predictions outputs = model.predict(pixels, {}, "layer3");
            check_close(values(outputs.features), features("fc.input"));
            const Tensor scores = linear(outputs.features, p.entry("fc.weight").value, p.entry("fc.bias").value);
            check_close(values(scores), features("fc"));
            check_close(values(softmax(scores)), values(outputs.scores));
            check_close(values(model.predict(pixels).scores), values(outputs.scores));
            CHECK_FALSE(model.predict(pixels).features.defined());

            std::vector<float> rows(size_t(n * (5 + 64)));
            CHECK(rg_predict_features(in_c.handle, "layer3", pixels.data(), size_t(n), 8, 8, 3, rows.data(),
                                      rows.size()) == 0);
            std::vector<float> expected;
            for (int64_t i = 0; i < n; ++i)
                for (const auto& [t, k] : {std::pair(outputs.scores, 5), {outputs.features, 64}})
                    expected.insert(expected.end(), t.data<float>() + i * k, t.data<float>() + (i + 1) * k);
            check_close(rows, expected);
        }
        CHECK(model.feature_count("") == 0);
        for (const auto& [name, count] : {std::pair("conv1", 16), {"layer2.0", 32}, {"layer3", 64}, {"fc", 5}}) {
            CHECK(model.feature_count(name) == count);
            CHECK(rg_feature_count(in_c.handle, name) == count);
        }
    }

    TEST_CASE("predictor: an unknown layer is an error that lists those of the network") {
        for (const auto& [net, layers] : {std::pair("cifar", "block1 block2 block3 fc "),
                                          {"resnet20", "conv1 layer1 layer2 layer3 fc "},
                                          {"wrn16-4", "conv1 layer1 layer2 layer3 bn1 fc "},
                                          {"digits", "layer1 layer2 layer3 fc "}}) {
            const bool digits = std::string(net) == "digits";
            const std::string bytes = model_bytes(net, digits ? 28 : 8, digits ? 1 : 3, 2);
            const std::string error = cat("features: expected a layer of ", layers, "or one within these, got bloc");
            Predictor model(decode_model(bytes, "model"));
            CHECK_ERROR(error, model.feature_count("bloc"));
            CHECK_ERROR(error, model.predict(random_pixels(digits ? 28 * 28 : 8 * 8 * 3), {}, "bloc"));
            const Model in_c(bytes);
            CHECK(error_after(rg_feature_count(in_c.handle, "bloc")) == error);
            CHECK(error_after(rg_feature_count(in_c.handle, nullptr)) == "layer: expected a pointer to it, got NULL");
        }
        Predictor angles(decode_model(model_bytes("digits-angles", 28, 1, 3), "model"));
        CHECK(angles.feature_count("classify.input") == 32);
        // A layer that ran before this existed, or on another network, is none of it.
        const LayerOutputs none;
        CHECK_ERROR("expected a layer of or one within these, got x", none.of("x"));
        CHECK(stage("x", Tensor::zeros({2, 3})).extent(1) == 3);
        CHECK(none.of("x").extent(0) == 2);
    }

    TEST_CASE("predictor: a prediction of as many images as the last one allocates nothing") {
        ThreadPool pool(2);
        for (const std::string net : {"cifar", "resnet18", "mobilenet_v2", "mobilenet_v3_small", "digits-angles"})
            for (ThreadPool* const threads : {static_cast<ThreadPool*>(nullptr), &pool})
                for (const size_t n : {1, 3}) {
                    CAPTURE(net);
                    CAPTURE(n);
                    CAPTURE(threads != nullptr);
                    const bool digits = net == "digits-angles";
                    const int side = digits ? 28 : 8, channels = digits ? 1 : 3;
                    const std::string bytes = model_bytes(net, side, channels, 5, {}, {}, {{"angle", "degrees", 3, 2}});
                    const Context context{.threads = threads};
                    const ContextScope scope(context);
                    Predictor model(decode_model(bytes, "model"));
                    const std::vector<uint8_t> pixels = random_pixels(n * size_t(side * side * channels));
                    std::vector<float> rows(n * (digits ? 6 : 5)), in_c(rows.size());
                    const Model handle(bytes, threads ? 2 : 1);
                    const auto predict = [&] {
                        model.predict_rows(pixels, rows);
                        rg_predict(handle.handle, pixels.data(), n, side, side, channels, in_c.data(), in_c.size());
                    };
                    predict();
                    const long before = allocations();
                    const int64_t live = live_bytes();
                    reset_peak_bytes();
                    // A thread of the pool takes its scratch memory in the first kernel of which it gets a part, which
                    // may be in any call.
                    const int calls = threads ? 100 : 3;
                    for (int i = 0; i < calls; ++i) predict();
                    CHECK(allocations() - before < (threads ? calls : 1));
                    CHECK(peak_bytes() == live);
                    CHECK(in_c == rows);
                    std::vector<float> expected = expected_outputs(bytes, pixels);
                    for (size_t i = 5; digits && i < expected.size(); i += 6) expected[i] = 2 * expected[i] + 3;
                    check_close(rows, expected);
                    rows.pop_back();
                    CHECK_ERROR(cat("expected room for ", rows.size() / n + 1, " outputs for each of ", n), predict());
                }
    }

    TEST_CASE("bindings: threads share a C++ Predictor") {
        constexpr int kThreads = 8;
        const std::string bytes = model_bytes("cifar", 8, 3, 2);
        Predictor shared(decode_model(bytes, "model"));
        std::array<std::vector<uint8_t>, kThreads> pixels;
        std::array<std::vector<float>, kThreads> outputs, expected;
        const char* const layers[] = {"", "block2"};
        for (size_t t = 0; t < kThreads; ++t) {
            pixels[t] = random_pixels((1 + t) * 8 * 8 * 3); // plans of several sizes
            expected[t] = expected_outputs(bytes, pixels[t]);
        }
        std::latch start(kThreads);
        const auto predict = [&](size_t t) {
            const CpuScope scope(1 + int(t % 2));
            start.arrive_and_wait();
            for (int i = 0; i < 100; ++i) {
                const size_t n = i % 2 ? 1 : 1 + t;
                const Tensor scores =
                    i % 3 ? shared.predict(std::span(pixels[t]).first(n * 8 * 8 * 3), {}, layers[i % 5 == 0]).scores
                          : shared.predict(int64_t(n), [&](int64_t image) {
                                const auto first = pixels[t].begin() + image * 8 * 8 * 3;
                                return data::Image{8, 8, 3, 8, {first, first + 8 * 8 * 3}};
                            }).scores;
                std::ranges::copy(scores.span<float>(), outputs[t].begin());
            }
        };
        {
            std::vector<std::jthread> threads;
            for (size_t t = 0; t < kThreads; ++t) outputs[t].resize(2 * (1 + t)), threads.emplace_back(predict, t);
        }
        for (size_t t = 0; t < kThreads; ++t) check_close(outputs[t], expected[t]);
    }

    TEST_CASE("bindings: a child refuses its parent's model, and leaves it as it is") {
        const std::string bytes = model_bytes("cifar", 8, 3, 2);
        const Model model(bytes, 2);
        const std::vector<uint8_t> pixels(8 * 8 * 3);
        float outputs[2];
        const pid_t child = fork();
        if (child == 0) {
            alarm(60); // instead of waiting for ever for threads that a child does not have
            const bool refused = rg_predict(model.handle, pixels.data(), 1, 8, 8, 3, outputs, 2) == -1 &&
                                 contains(rg_last_error(), "from before fork(); open it in each process");
            rg_close(model.handle);
            _exit(refused ? 0 : 1);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        CHECK(rg_predict(model.handle, pixels.data(), 1, 8, 8, 3, outputs, 2) == 0);
    }

    TEST_CASE("bindings: threads have their own errors, and use models of their own or share one") {
        constexpr int kThreads = 8, kCalls = 20;
        const std::string bytes = model_bytes("cifar", 8, 3, 2);
        const std::vector<uint8_t> pixels = random_pixels(8 * 8 * 3);
        const std::vector<float> expected = expected_outputs(bytes, pixels);
        const Model shared(bytes, 2);
        struct Result {
            std::vector<float> own = std::vector<float>(2), of_shared = std::vector<float>(2);
            std::string error;
        };
        std::vector<Result> results(kThreads);
        {
            std::vector<std::jthread> threads;
            for (int t = 0; t < kThreads; ++t)
                threads.emplace_back([&, t] {
                    Result& result = results[size_t(t)];
                    const Model own(bytes, 1 + t % 2);
                    for (int i = 0; i < kCalls; ++i) {
                        rg_predict(own.handle, pixels.data(), 1, 8, 8, 3, result.own.data(), 2);
                        rg_predict(shared.handle, pixels.data(), 1, 8, 8, 3, result.of_shared.data(), 2);
                        result.error = error_after(rg_class_name(own.handle, 100 + t));
                    }
                });
        }
        for (int t = 0; t < kThreads; ++t) {
            check_close(results[size_t(t)].own, expected);
            check_close(results[size_t(t)].of_shared, expected);
            CHECK(results[size_t(t)].error == cat("class: expected an index below 2, got ", 100 + t));
        }
        CHECK(!contains(rg_last_error(), "got 10")); // the other threads' errors
    }
}

} // namespace rg
