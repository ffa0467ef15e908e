// from_csv: learns numbers or labels of images from a table.
//
//     build/from_csv --data photos --size 32          photos/labels.csv: file,age,height and lines 1.jpg,31,1.76
//     build/from_csv --data photos --size 32 --tags   photos/labels.csv: file,tags and lines 1.jpg,sea sky
#include "ringgrad/models/run/training.h"
#include "ringgrad/models/training_main.h"

using namespace rg;

namespace {

struct Numbers final : Network {
    ConvNorm a, b, c;
    Dense fc;

    explicit Numbers(const ImageTask& task)
        : a(parameters, "a", {16, 3, task.channels, {.stride = 2, .pad = 1}}),
          b(parameters, "b", {32, 3, 16, {.stride = 2, .pad = 1}}),
          c(parameters, "c", {64, 3, 32, {.stride = 2, .pad = 1}}),
          fc(parameters, "fc", task.targets, 64) {
        parameters.allocate(task.seed, Init::he);
    }
    Tensor forward(const Tensor& images, Mode mode) const override {
        return fc(global_avg_pool(c(b(a(images, mode), mode), mode)));
    }
};
const RegisterNetwork<Numbers> numbers_network("numbers");

struct CsvTraining final : ImageTraining {
    bool tags = false;
    CsvTraining() : ImageTraining({"numbers"}) {
        data_options.batch_size = 32, has_smoothing = false;
        optimizer.kind = OptimizerKind::adam, default_rate = {0.002, 32};
    }
    void declare(Options& o) override {
        ImageTraining::declare(o);
        o.add("tags", &tags, "labels.csv has any number of labels for each image, and not numbers").basic();
    }
    data::Labels labels() const override { return tags ? data::Labels::several_classes : data::Labels::numbers; }
    Task task(const data::ImageSet& images) const override {
        if (tags) return multi_label(images.target_names);
        std::vector<TargetInfo> targets;
        for (const std::string& name : images.target_names) targets.push_back({name, ""});
        return regression(targets);
    }
};
constinit const Program from_csv{
    "from_csv", "learns numbers or labels", make_training<CsvTraining>, {"--data photos --size 32", "--resume"}};

} // namespace

int main(int argc, char** argv) { return run_training_main(argc, argv, from_csv); }
