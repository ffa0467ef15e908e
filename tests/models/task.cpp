// Tests the losses and metrics of the library's tasks against values computed by hand.
#include "models/run/evaluation.h"
#include "models/run/task.h"

#include "core/accelerate.h"
#include "core/stop.h"
#include "models/run/confusion.h"
#include "models/run/training.h"
#include "tests/host_device.h"
#include "tests/op_check.h"
#include "tests/thread_link.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>

using namespace rg;
using doctest::Approx;

namespace {

/// Returns the loss and the metrics of a batch.
std::pair<double, std::vector<double>> evaluated(const Task& task, std::vector<Tensor> outputs, data::Batch batch) {
    batch.size = outputs[0].extent(0);
    std::vector<double> sums(size_t(task.sums()));
    task.add(outputs, batch, sums);
    const double loss = double(task.loss(outputs, batch, Mode::evaluate).data<float>()[0]);
    return {loss, task.values(sums, double(batch.size))};
}

/// Returns the samples with the largest errors, of a test of a single batch.
Json::Array worst_of(const GallerySpec& gallery, const TestBatch& test) {
    par::SingleLink link;
    par::Group group(link);
    WorstSamples worst(gallery);
    worst.add(test);
    return worst.gather(group, test.set).at("samples").as_array();
}

std::string caption_of(const Json& sample) { return sample.at("caption").as_string(); }

/// Returns the text of a picture in the report.
Json png(int64_t width, int64_t height, int channels, std::vector<uint8_t> pixels) {
    return base64(data::encode_png(width, height, channels, pixels));
}

Tensor floats(const Shape& shape, std::vector<float> values) { return Tensor::of<float>(shape, values); }
Tensor labels(const Shape& shape, std::vector<int32_t> values) { return Tensor::of<int32_t>(shape, values); }

/// What computes in a test of a network: one rank, without accelerate().
struct OneCpu {
    par::SingleLink link;
    par::Group group{link};
    ComputeOptions settings{.device = "cpu", .accelerate = false};
    Options options{"toy", ""};
    Compute compute = (settings.declare(options), Compute(settings, options, group));
};

} // namespace

TEST_SUITE("models") {
    TEST_CASE("task: classification has the cross-entropy, smoothed in training alone, and the accuracy") {
        const Task task = classification(0.5);
        data::Batch batch;
        batch.labels = labels({3}, {0, 1, 0});
        const std::vector<Tensor> outputs{floats({3, 2}, {1, 0, 1, 0, 2, 2})}; // of equal scores, the first counts
        const auto [loss, metrics] = evaluated(task, outputs, batch);
        const double low = std::log1p(std::exp(-1.0)), high = 1 + low;
        CHECK(loss == Approx((low + high + std::log(2.0)) / 3));
        CHECK(metrics == std::vector<double>{2.0 / 3});
        const double smoothed = double(task.loss(outputs, batch, Mode::train).data<float>()[0]);
        CHECK(smoothed == Approx(((0.75 * low + 0.25 * high) + (0.75 * high + 0.25 * low) + std::log(2.0)) / 3));
        CHECK(task.metrics[0].format(0.5) == "acc 50.00 %");
        CHECK(task.metrics[0].is_better(0.5, 0.25));
        CHECK_FALSE(task.metrics[0].is_better(std::nan(""), 0.25));

        std::vector<double> kept(6);
        task.details[0].collect(outputs, batch, kept);
        data::ImageSet set{3, 1, 1, 1, std::vector<uint8_t>{1, 2, 3}, {0, 1, 0}, {"a", "b"}};
        CHECK(task.details[0].report(set, kept).at("counts").dump() == "[[2, 0], [1, 0]]");
        const std::vector<Detail::CsvTable> tables = task.details[0].tables(set, kept);
        CHECK(tables[0].name == "confusion");
        CHECK(contains(tables[0].text, "66.7"));
        CHECK(tables[1].name == "classes");
        CHECK(tables[1].csv == "class,images,precision,recall,f1\na,2,0.666667,1,0.8\nb,1,,0,0\n");

        batch.size = 3;
        set.names = {"0.png", "1.png", "2.png"};
        const Json::Array mistakes = worst_of(task.galleries[0], {set, {}, batch, outputs});
        REQUIRE(mistakes.size() == 1);
        CHECK(mistakes[0] == Json::object()
                                 .set("name", "1.png")
                                 .set("caption", "b, predicted a, 73.1\u00a0%")
                                 .set("pictures", Json::array().push(png(1, 1, 1, {2}))));
    }

    TEST_CASE("task: classification of mixed images has the weighted loss and accuracy of both labels") {
        const Task task = classification();
        data::Batch batch;
        batch.labels = labels({2}, {0, 1}), batch.second_labels = labels({2}, {1, 1});
        batch.label_weights = floats({2}, {0.75, 0.4f}), batch.second_weights = floats({2}, {0.25, 0.6f});
        const auto [loss, metrics] = evaluated(task, {floats({2, 2}, {1, 0, 0, 1})}, batch);
        const double low = std::log1p(std::exp(-1.0)), high = 1 + low;
        CHECK(loss == Approx((0.75 * low + 0.25 * high + low) / 2));
        CHECK(metrics[0] == Approx((0.75 + 1) / 2));
    }

    TEST_CASE("task: class weights give PyTorch's weighted mean over the whole mini-batch, on any number of ranks") {
        // torch.nn.CrossEntropyLoss(weight=[3, 1]): sum of w[y] loss / sum of w[y].
        const Task task = classification();
        data::ImageSet set{3, 1, 1, 1, std::vector<uint8_t>{1, 2, 3}, {0, 1, 0}, {"a", "b"}};
        const double low = std::log1p(std::exp(-1.0)), high = 1 + low;
        for (const int ranks : {1, 2, 3}) {
            double sum = 0;
            data::LoaderOptions options{.batch_size = 3, .shuffle = data::Shuffle::never, .class_weights = {3, 1}};
            options.parts = ranks;
            for (options.first_part = 0; options.first_part < ranks; ++options.first_part) {
                data::Loader loader(set, options);
                loader.start(1);
                const data::Batch batch = loader.next();
                std::vector<float> scores;
                for (int64_t i = 0; i < batch.size; ++i) scores.insert(scores.end(), {1, 0}); // for class 0
                const Tensor loss = task.loss(std::array{floats({batch.size, 2}, scores)}, batch, Mode::train);
                sum += double(batch.size) / 3 * double(loss.data<float>()[0]);
            }
            CHECK(sum == Approx((3 * low + high + 3 * low) / 7));
        }
    }

    TEST_CASE("task: those whose labels can be mixed or weighted say so") {
        CHECK((classification().mixes && classification().weighs));
        for (const Task& task : {regression({{"x", ""}}), multi_label({"a"}), reconstruction()})
            CHECK((task.mixes && !task.weighs));
        CHECK(!segmentation(3).mixes);
        const Task both = classification().with(segmentation(3));
        CHECK((!both.mixes && both.weighs));
    }

    TEST_CASE("task: regression has a root mean squared error per target") {
        const Task task = regression({{"width", "cm"}, {"height", ""}});
        data::Batch batch;
        batch.targets = floats({2, 2}, {0, 0, 1, 1});
        const auto [loss, metrics] = evaluated(task, {floats({2, 2}, {3, 1, 5, 1})}, batch);
        CHECK(loss == Approx((9 + 1 + 16 + 0) / 4.0));
        REQUIRE(metrics.size() == 2);
        CHECK(metrics[0] == Approx(std::sqrt(12.5)));
        CHECK(metrics[1] == Approx(std::sqrt(0.5)));
        CHECK(task.text(metrics) == "width rmse 3.536 cm height rmse 0.707");
        CHECK(task.metrics[0].is_better(1, 2));
        batch.size = 2;
        const data::ImageSet set{2, 1, 1, 1, std::vector<uint8_t>{1, 2}};
        const Tensor outputs = floats({2, 2}, {3, 1, 5, 1});
        const Json::Array worst = worst_of(task.galleries[0], {set, {}, batch, {&outputs, 1}});
        REQUIRE(worst.size() == 2);
        CHECK(caption_of(worst[0]) == "width 1, predicted 5\nheight 1, predicted 1");
        CHECK(worst[1].at("name").as_string() == "image 0");
        CHECK_ERROR("expected outputs", evaluated(task, {floats({2, 1}, {3, 1})}, batch));
        CHECK_ERROR("expected images with", evaluated(task, {floats({2, 2}, {3, 1, 5, 1})}, {}));
    }

    TEST_CASE("task: a loss gets standardised numbers, and all else numbers in units") {
        data::ImageSet set{3, 1, 1, 1, std::vector<uint8_t>{1, 2, 3}};
        set.targets = {100, 0.1f, 300, 0.1f, 200, 0.1f}, set.target_names = {"mass", "same"};
        Task task = classification().with(regression({{"mass", "kg"}, {"same"}}, 1));
        task.set_target_scales(set, nullptr);
        const std::vector<TargetInfo>& targets = task.outputs.targets;
        CHECK((targets[0].mean == 200 && targets[0].deviation == Approx(std::sqrt(20000 / 3.0))));
        CHECK((targets[1].mean == double(0.1f) && targets[1].deviation == 1)); // and not 0
        data::Batch batch;
        batch.labels = labels({1}, {0}), batch.targets = floats({1, 2}, {300, 0.1f});
        std::vector<Tensor> outputs{floats({1, 2}, {0, 0}), floats({1, 2}, {1, 2})};
        const double loss = double(task.take_loss(outputs, batch, Mode::evaluate).data<float>()[0]);
        const double error = 1 - 100 / targets[0].deviation;
        CHECK(loss == Approx(std::log(2.0) + (error * error + 4) / 2));
        CHECK(outputs[0].data<float>()[0] == 0); // scores remain as they are
        CHECK(outputs[1].data<float>()[0] == Approx(200 + targets[0].deviation));
        CHECK(outputs[1].data<float>()[1] == Approx(2.1));

        // The scales are in the memory of the device, also if the function is traced.
        const auto loss_of = [&](auto in, bool) {
            std::vector<Tensor> all{in[0], in[1]};
            data::Batch there;
            there.labels = in[2], there.targets = in[3];
            return std::vector{task.take_loss(all, there, Mode::evaluate), all[1]};
        };
        HostDevice device;
        const InContext on{{.device = &device}};
        Accelerated accelerated(loss_of);
        std::vector<Tensor> there{floats({1, 2}, {0, 0}).to_device(), floats({1, 2}, {1, 2}).to_device(),
                                  batch.labels.to_device(), batch.targets.to_device()};
        const std::span<const Tensor> result = accelerated(there);
        CHECK(double(result[0].to_host().data<float>()[0]) == Approx(loss));
        CHECK(result[1].to_host().data<float>()[0] == Approx(200 + targets[0].deviation));

        Task as_is = regression({{"mass"}, {"same"}}, 0, false);
        as_is.set_target_scales(set, nullptr);
        CHECK((as_is.outputs.targets[0].mean == 0 && as_is.outputs.targets[0].deviation == 1));
        CHECK_ERROR("expected images with targets", regression({{"mass"}}).set_target_scales({}, nullptr));
    }

    TEST_CASE("task: a metric without a label has its name") {
        const MetricInfo metric{.name = "mae", .unit = "kg"};
        CHECK(metric.format(2) == "mae 2.000 kg");
        Metric later;
        later.name = "mae";
        CHECK(later.json().at("label").as_string() == "mae");
    }

    TEST_CASE("task: a classifier's table has precision, recall, F1 and top-5 of each class, as NumPy computes them") {
        const Task task = classification();
        data::Batch batch;
        batch.labels = labels({10}, {0, 0, 1, 1, 2, 2, 3, 5, 6, 6});
        const std::vector<Tensor> outputs{
            floats({10, 7}, {4, 0, 1, 1, 1, 4, 5, 3, 0, 0, 1, 2, 3, 2, 1, 0, 4, 4, 0, 0, 2, 2, 5, 3,
                             2, 2, 3, 3, 1, 4, 4, 5, 4, 1, 1, 3, 3, 4, 5, 1, 5, 0, 0, 5, 5, 1, 0, 1,
                             0, 5, 3, 3, 1, 2, 1, 4, 2, 0, 1, 4, 3, 2, 1, 0, 3, 3, 3, 5, 5, 1})};
        std::vector<double> kept(20);
        task.details[0].collect(outputs, batch, kept);
        data::ImageSet set{10, 1, 1, 1, std::vector<uint8_t>(10), {0, 0, 1, 1, 2, 2, 3, 5, 6, 6}, {}};
        for (const char* const name : {"c0", "c1", "=c2", "c3", "c4", "c5", "c6"}) set.classes.push_back(name);
        CHECK(task.details[0].tables(set, kept)[1].csv == "class,images,precision,recall,f1,top5\nc0,2,0.5,0.5,0.5,1\n"
                                                          "c1,2,0.5,0.5,0.5,1\n'=c2,2,0,0,0,1\nc3,1,0,0,0,1\n"
                                                          "c4,0,0,,0,\nc5,1,,0,0,0\nc6,2,0,0,0,0\n");
    }

    TEST_CASE("task: the table of labels has their average precisions, as scikit-learn defines them") {
        const Task task = multi_label({"a", "b", "c"});
        const Tensor scores =
            floats({6, 3}, {.5f, 1, -1, 2, -1, -2, -1, 1, -3, 1, -.5f, -1, -2, 3, -4, .5f, 1, -2});
        std::vector<double> kept(18);
        task.details[0].collect({&scores, 1}, {}, kept);
        data::ImageSet set{6, 1, 1, 1, std::vector<uint8_t>(6)};
        set.targets = {1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0};
        CHECK(task.details[0].tables(set, kept)[0].csv == "class,images,precision,recall,f1,average_precision\n"
                                                          "a,3,0.5,0.666667,0.571429,0.533333\n"
                                                          "b,3,0.5,0.666667,0.571429,0.7\nc,0,,,,\n");
        // The example of scikit-learn's average_precision_score().
        CHECK(csv_of_labels({{"one"}}, std::vector{0.1, 0.4, 0.35, 0.8}, std::vector{0.f, 0.f, 1.f, 1.f}, 0.5) ==
              "class,images,precision,recall,f1,average_precision\none,2,1,0.5,0.666667,0.833333\n");
        // Equal scores count at once: 2/3 of the recall with the precision 2/3, and 1/3 with 3/4.
        CHECK(csv_of_labels({{"one"}}, std::vector{0.9, 0.9, 0.9, 0.1}, std::vector{1.f, 1.f, 0.f, 1.f}, 0.5) ==
              "class,images,precision,recall,f1,average_precision\none,3,0.666667,0.666667,0.666667,0.694444\n");
    }

    TEST_CASE("task: multi-label has the F1 score over all labels") {
        const Task task = multi_label({"a", "b", "c"});
        data::Batch batch;
        batch.targets = floats({2, 3}, {1, 0, 1, 0, 0, 1});
        const Tensor outputs = floats({2, 3}, {1, 1, -1, -1, -1, 1});
        const auto [loss, metrics] = evaluated(task, {outputs}, batch);
        CHECK(metrics == std::vector<double>{4.0 / 6}); // two right, one too many, one missed
        const double right = std::log1p(std::exp(-1.0));
        CHECK(loss == Approx((6 * right + 2) / 6));
        batch.size = 2;
        const data::ImageSet set{2, 1, 1, 1, std::vector<uint8_t>{1, 2}};
        const Json::Array worst = worst_of(task.galleries[0], {set, {}, batch, {&outputs, 1}});
        REQUIRE(worst.size() == 1); // all labels of the other image are right
        CHECK(caption_of(worst[0]) == "true: a | c\npredicted: a | b");
        const Tensor none = floats({2, 3}, {-1, -1, -1, -1, -1, -1});
        CHECK(evaluated(task, {none}, batch).second == std::vector<double>{0});
        batch.targets = floats({2, 3}, {0, 0, 0, 0, 0, 0}); // scikit-learn's f1_score gives 0, too
        CHECK(evaluated(task, {none}, batch).second == std::vector<double>{0});
        CHECK_ERROR("targets", evaluated(task, {floats({2, 3}, {1, 1, 1, 1, 1, 1})}, {}));
    }

    TEST_CASE("task: segmentation has the mean of intersection over union, and the accuracy of the pixels") {
        const Task task = segmentation(4);
        data::Batch batch;
        batch.columns = {labels({1, 2, 2}, {0, 0, 1, 1})};
        // The predictions are 0, 1, 1, 2: class 0 has 1 of 2, class 1 has 1 of 3, class 2 has 0 of 1, class 3 is
        // absent.
        const Tensor scores =
            floats({1, 2, 2, 4}, {9, 0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0, 9, 0});
        const auto [loss, metrics] = evaluated(task, {scores}, batch);
        REQUIRE(metrics.size() == 2);
        CHECK(metrics[0] == Approx((1.0 / 2 + 1.0 / 3) / 3));
        CHECK(metrics[1] == Approx(0.5));
        const double right = std::log1p(3 * std::exp(-9.0));
        CHECK(loss == Approx((4 * right + 2 * 9) / 4));
        batch.size = 1;
        const data::ImageSet set{1, 2, 2, 1, std::vector<uint8_t>{1, 2, 3, 4}};
        const Json::Array worst = worst_of(task.galleries[0], {set, {}, batch, {&scores, 1}});
        REQUIRE(worst.size() == 1);
        CHECK(caption_of(worst[0]) == "mean IoU 27.8\u00a0%");
        // Black, red, red and green of PASCAL VOC
        CHECK(worst[0].at("pictures").as_array() ==
              Json::Array{png(2, 2, 1, {1, 2, 3, 4}), png(2, 2, 3, {0, 0, 0, 0, 0, 0, 128, 0, 0, 128, 0, 0}),
                          png(2, 2, 3, {0, 0, 0, 128, 0, 0, 128, 0, 0, 0, 128, 0})});
        CHECK_ERROR("pixels and 4 classes", evaluated(task, {floats({1, 2, 2, 1}, {0, 0, 0, 0})}, batch));
    }

    TEST_CASE("task: reconstruction compares the output with the image") {
        const Task task = reconstruction();
        data::Batch batch;
        batch.x = floats({1, 1, 2, 1}, {1, 2});
        const Tensor output = floats({1, 1, 2, 1}, {1, 4});
        const auto [loss, metrics] = evaluated(task, {output}, batch);
        CHECK(loss == Approx(2));
        CHECK(metrics[0] == Approx(std::sqrt(2.0)));
        // A pixel of 1 has the byte 255 * (1 * 0.2 + 0.1), and one of 4 would be above 255 * 0.9.
        batch.size = 1;
        const data::ImageSet set{1, 1, 2, 1, std::vector<uint8_t>{77, 128}};
        const data::Normalise normalise{{0.1f}, {0.2f}};
        const Json::Array worst = worst_of(task.galleries[0], {set, normalise, batch, {&output, 1}});
        CHECK(caption_of(worst[0]) == "rmse 1.414");
        CHECK(worst[0].at("pictures").as_array() == Json::Array{png(2, 1, 1, {77, 128}), png(2, 1, 1, {77, 230})});
    }

    TEST_CASE("samples: shows those with the largest errors of all ranks") {
        constexpr int64_t kCount = 90;
        const data::ImageSet set{kCount, 1, 1, 1, std::vector<uint8_t>(kCount)};
        const auto error = [&](int64_t i) {
            if (i == 50) return std::nan("");
            if (i == 40) return double(INFINITY);
            return double(i / 8); // several are equal
        };
        const GallerySpec gallery{"errors", [&](const TestBatch& test, int64_t i, WorstSamples& worst) {
                                        const int64_t index = test.batch.first + i;
                                        if (index % 3 != 0)
                                            worst.offer(test, i, error(index), [&]() -> WorstSamples::ShownSample {
                                                return {cat(index), {test.image(i)}};
                                            });
                                    }};
        std::vector<int64_t> order;
        for (int64_t i = 0; i < kCount; ++i)
            if (i % 3 != 0 && i != 50) order.push_back(i);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
            return error(a) > error(b);
        });
        order.insert(order.begin() + 1, 50); // NaN and infinity count alike
        for (const int ranks : {1, 2, 7})
            par::run_groups(ranks, [&](par::Group& group) {
                WorstSamples worst(gallery);
                for (int64_t first = 0; first < kCount; first += 45) {
                    const data::Range part = data::part_range(45, ranks, group.rank());
                    data::Batch batch;
                    batch.first = first + part.begin, batch.size = part.size();
                    worst.add({set, {}, batch, {}});
                }
                const Json shown = worst.gather(group, set);
                const Json::Array& all = shown.at("samples").as_array();
                REQUIRE(all.size() == WorstSamples::kMost);
                for (size_t i = 0; i < all.size(); ++i) CHECK(caption_of(all[i]) == cat(order[i]));
            });
    }

    TEST_CASE("samples: pictures show the window of an image, its first channels, and are scaled down") {
        data::ImageSet set{1, 4, 4, 5, std::vector<uint8_t>(80)};
        std::vector<uint8_t> pixels(80);
        for (size_t i = 0; i < 80; ++i) pixels[i] = uint8_t(i);
        set.pixels = pixels, set.window = {2, 1};
        const TestBatch test{set, {}, data::Batch(), {}};
        const data::Image image = test.image(0);
        CHECK((image.width == 1 && image.height == 2 && image.channels == 3));
        CHECK(image.pixels == std::vector<uint8_t>{30, 31, 32, 50, 51, 52}); // pixels (1, 2) and (2, 2)

        const data::ImageSet large{1, 3, 300, 1, std::vector<uint8_t>(900, 7)};
        data::Batch batch;
        batch.size = 1;
        const auto offer = [](const TestBatch& t, int64_t i, WorstSamples& worst) {
            worst.offer(t, i, 1, [&]() -> WorstSamples::ShownSample { return {"", {t.image(i)}}; });
        };
        const GallerySpec gallery{"", offer};
        CHECK(worst_of(gallery, {large, {}, batch, {}})[0].at("pictures").as_array()[0] ==
              png(128, 1, 1, std::vector<uint8_t>(128, 7)));
    }

    TEST_CASE("samples: encodes bytes as base64 (RFC 4648)") {
        for (const auto& [text, coded] :
             {std::pair("f", "Zg=="), {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"", ""}})
            CHECK(base64(std::vector<uint8_t>(text, text + std::string_view(text).size())) == coded);
    }

    TEST_CASE("task: two tasks together have a weighted loss, and the metrics of both") {
        const Task both = classification().with(regression({{"angle", "degrees"}}, 1), 0.1);
        data::Batch batch;
        batch.labels = labels({1}, {0}), batch.targets = floats({1, 1}, {2});
        const auto [loss, metrics] = evaluated(both, {floats({1, 2}, {0, 0}), floats({1, 1}, {5})}, batch);
        CHECK(loss == Approx(std::log(2.0) + 0.1 * 9));
        CHECK(metrics == std::vector<double>{1, 3});
        CHECK(both.outputs.targets.size() == 1);
        CHECK(both.outputs.kinds == std::vector<std::string>{"classes", "numbers"});
        CHECK_ERROR("at least 2 outputs", evaluated(both, {floats({1, 2}, {0, 0})}, batch));
        CHECK_ERROR("expected metrics of different names, got accuracy twice",
                    classification().with(classification(0, 1)));
        Task second = classification(0, 1);
        second.metrics[0].name = "second_accuracy";
        CHECK(classification().with(second).metrics.size() == 2);
        CHECK_NOTHROW(both.check_test_views());
        CHECK_ERROR("--test-views: expected classes, numbers or labels", segmentation(3).check_test_views());
    }

    TEST_CASE("evaluation: of larger images, tests the central window, or views relative to it") {
        // Pixel (y, x) has the value 10 y + x, in an image whose central 4 x 5 pixels begin at (2, 2).
        std::vector<uint8_t> pixels;
        for (int y = 0; y < 8; ++y)
            for (int x = 0; x < 8; ++x) pixels.push_back(uint8_t(10 * y + x));
        data::ImageSet set{1, 8, 8, 1, pixels, {0}, {"a", "b"}};
        set.window = {4, 5};
        std::vector<float> seen; // the first and the last pixel of each view
        OneCpu here;
        const Task task = classification();
        Evaluation evaluation(here.group, here.compute, set, {}, {{0}, {1.0f / 255}}, 1, task,
                              [&](const data::Batch& batch, Mode) -> std::vector<Tensor> {
                                  CHECK(batch.x.shape() == Shape{1, 4, 5, 1});
                                  for (const int64_t i : {0, 19}) seen.push_back(std::round(batch.x.data<float>()[i]));
                                  return {floats({1, 2}, {1, 0})};
                              });
        const Score score = evaluation.score();
        CHECK(seen == std::vector<float>{22, 56});
        CHECK(score.metrics == std::vector<double>{1});
        seen.clear();
        CHECK(evaluation.score(data::mirrored_and_shifted(set.input_size().width)).loss == Approx(score.loss));
        CHECK(seen == std::vector<float>{22, 56, 26, 52, 11, 45, 15, 41, 33, 67, 37, 63});
    }

    TEST_CASE("evaluation: passes no more images to the network than a mini-batch of the training has") {
        const data::ImageSet set{8, 2, 2, 1, std::vector<uint8_t>(8 * 4), std::vector<int32_t>(8), {"a", "b"}};
        OneCpu here;
        const Task task = classification();
        std::vector<int64_t> sizes;
        const Forward forward = [&](const data::Batch& batch, Mode) -> std::vector<Tensor> {
            sizes.push_back(batch.x.shape()[0]);
            return {Tensor::zeros({batch.size, 2})};
        };
        for (const int64_t batch_size : {3, 1000})
            Evaluation(here.group, here.compute, set, {}, {{0}, {1.0f / 255}}, batch_size, task, forward).score();
        CHECK(sizes == std::vector<int64_t>{3, 3, 2, 8});

        // A test on a worker needs no more memory than a step: the mini-batch of the job is that of the training.
        Accelerated step([&](std::span<const Tensor>, bool) { return std::vector<Tensor>{Tensor::zeros({1})}; });
        const Tensor weights = Tensor::zeros({2, 4});
        const Forward traced = [&](const data::Batch& batch, Mode) -> std::vector<Tensor> {
            return {linear(batch.x.reshape({batch.size, 4}), weights)};
        };
        Evaluation shares(here.group, here.compute, set, {}, {{0}, {1.0f / 255}}, 3, task, traced, &step);
        shares.predict.enabled = true;
        CHECK_ERROR("expected no plans yet, got 2", (shares.plan(), shares.predict.share_memory(step))); // for 3 and 2

        // A stop request ends a test before its next mini-batch, and a later test is complete.
        Evaluation stopped(here.group, here.compute, set, {}, {{0}, {1.0f / 255}}, 3, task, forward);
        sizes.clear();
        const auto stop = [&] {
            if (sizes.size() == 2) throw Stopped();
        };
        CHECK_THROWS_AS(stopped.score({{}}, stop), Stopped);
        CHECK(sizes == std::vector<int64_t>{3, 3});
        CHECK(stopped.score().metrics == std::vector<double>{1});
        CHECK(sizes == std::vector<int64_t>{3, 3, 3, 3, 2});
    }

    TEST_CASE("image feed: knows the memory of all mini-batches that exist at once") {
        const data::ImageSet set{8, 2, 2, 1, std::vector<uint8_t>(8 * 4), std::vector<int32_t>(8), {"a", "b"}};
        OneCpu here;
        const ImageFeed feed(set, {.batch_size = 3, .depth = 4}, here.compute);
        CHECK(feed.bytes() == (4 + 1) * 3 * int64_t(4 * sizeof(float) + sizeof(int32_t))); // pixels and labels
        const int64_t before = live_bytes();
        (void)feed.bytes();
        CHECK(live_bytes() == before);
    }
}
