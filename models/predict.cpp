// predict MODEL [FILE|DIR...]: predicts with the model of a training. By default, prints a line per image, separated by
// tabs: its name, then class and score for each of the --top best classes, then the targets, such as an angle. If there
// are several images, and the true class or target of some is known, a summary of the accuracy or the error follows.
//
// All images are read before the first prediction, so a bad file is an error before any output.
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/clock.h"
#include "ringgrad/core/formatted.h"
#include "ringgrad/core/json.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/cifar.h"
#include "ringgrad/data/decode.h"
#include "ringgrad/data/idx.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/open.h"
#include "ringgrad/data/sample.h"
#include "ringgrad/data/source.h"
#include "ringgrad/models/run/confusion.h"
#include "ringgrad/models/run/machine.h"
#include "ringgrad/models/run/predictor.h"
#include "ringgrad/models/run/run_folder.h"
#include "ringgrad/par/session.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <set>

namespace {

using namespace rg;
namespace fs = std::filesystem;

constexpr int32_t kUnknown = -1; // label of an image whose class is not known

/// Images of the size that the network takes, with their names, true classes and true targets.
struct Images {
    struct Item {
        std::string name;
        int32_t label = kUnknown;
        float target = NAN; // true value, if the model has one target; NAN: unknown
    };
    std::vector<Item> items;
    std::vector<uint8_t> pixels; // of all items: [items height width channels]
};

/// Reads the images that a command line names.
class Reader {
public:
    /// If `only` is not empty, it is a file with the names of images below a folder, one per line. Folders then give
    /// these images alone.
    Reader(const Predictor& model, bool skip_other_images, const std::string& only)
        : model_(model), options_(options_of(model, skip_other_images)), conversion_(options_) {
        if (only.empty()) return;
        const std::vector<std::string> names = split(read_file(only), '\n');
        only_ = {names.begin(), names.end()};
        only_.erase("");
        RG_CHECK(!only_.empty(), "--only: expected names of images, got none (", only, ")");
    }

    /// Without paths, takes the test images of the embedded sample.
    Images read(const std::vector<std::string>& paths) {
        if (paths.empty()) add(data::sample().test, "sample");
        for (const std::string& path : paths) {
            const std::shared_ptr<data::Copy> copy = data::copy_source(path, "");
            const std::string folder = data::source_folder(path, "");
            const std::string records = fs::is_directory(folder) ? data::records_folder(folder) : "";
            if (!fs::is_directory(folder))
                path.ends_with(".bin") ? add_cifar(path) : add_images({path}, {label_of(fs::path(path).parent_path())});
            else if (!records.empty())
                add((data::find_cifar(records) != data::CifarFolder::none ? data::read_cifar(records)
                                                                          : data::read_idx_sets(records))
                        .test,
                    path);
            else
                add_folder(folder);
        }
        images_.pixels = std::move(set_.pixels);
        return std::move(images_);
    }
    const data::Conversion& conversion() const { return conversion_; }
    /// For users: images that are damaged or left out.
    std::vector<std::string> warnings() const {
        std::vector<std::string> all = warnings_;
        for (const std::string& warning : conversion_.warnings()) all.push_back(warning);
        return all;
    }

private:
    static data::LoadOptions options_of(const Predictor& model, bool skip_other_images) {
        data::LoadOptions options;
        options.channels = int(model.task.channels), options.skip_other_images = skip_other_images;
        options.height = model.task.height, options.width = model.task.width;
        return options;
    }

    /// Adds a set of images. Uses their labels only if the set has as many classes as the model. Names cannot be
    /// compared, since files of CIFAR and IDX do not always have names of classes.
    void add(const data::ImageSet& set, const std::string& path) {
        const auto name = [&](int64_t i) { return cat(path, "#", i); };
        conversion_.append(set_, set.count, name, [&](int64_t i) {
            const auto pixels = set.image(i);
            return data::Image{set.width, set.height, int(set.channels), 8, {pixels.begin(), pixels.end()}};
        });
        const bool known = set.classes.size() == model_.classes.size();
        for (int64_t i = 0; i < set.count; ++i)
            images_.items.push_back({name(i), known ? set.labels[size_t(i)] : kUnknown});
    }
    void add_cifar(const std::string& path) {
        const std::string file = read_file(path);
        add(data::parse_cifar(data::as_bytes(file), data::cifar_kind(data::as_bytes(file), path), path), path);
    }

    /// Adds the test images of a folder, or all images if it has no test set. The label of an image is that of a
    /// training on this folder; in a folder of images alone, it is the folder's name. Takes true targets from
    /// angles.csv, if it exists there and the model has one target.
    void add_folder(const std::string& folder) {
        const data::ImageFolder list(folder, options_.skip_other_images);
        const data::Layout& layout = list.layout();
        std::vector<data::Layout::Image> images = layout.test.empty() ? layout.train : layout.test;
        if (!only_.empty()) {
            images = layout.train;
            images.insert(images.end(), layout.test.begin(), layout.test.end());
            std::erase_if(images, [&](const data::Layout::Image& image) { return !only_.contains(image.path); });
            RG_CHECK(images.size() == only_.size(), "--only: expected ", only_.size(), " images in ", folder, ", got ",
                     images.size(), " of them");
        }
        RG_CHECK(!images.empty(), "predict: expected images, got none (", folder, ")");
        warnings_.insert(warnings_.end(), layout.warnings.begin(), layout.warnings.end());
        std::vector<std::string> files;
        std::vector<int32_t> labels;
        std::vector<float> targets;
        for (const data::Layout::Image& image : images) {
            files.push_back(list.path(image));
            labels.push_back(image.length > 0 ? label_of(std::string(image.label())) : label_of(folder));
            if (model_.targets.size() == 1) targets.push_back(list.angle(image));
        }
        add_images(files, labels, targets);
    }

    void add_images(const std::vector<std::string>& files, const std::vector<int32_t>& labels,
                    const std::vector<float>& targets = {}) {
        const std::vector<int64_t> left_out = conversion_.append(
            set_, std::ssize(files), [&](int64_t i) { return files[size_t(i)]; },
            [&](int64_t i) { return data::read_image(files[size_t(i)]); });
        for (size_t i = 0; i < files.size(); ++i)
            if (!std::binary_search(left_out.begin(), left_out.end(), int64_t(i)))
                images_.items.push_back({files[i], labels[i], targets.empty() ? NAN : targets[i]});
    }
    /// Returns the class that has the name of this folder, or kUnknown.
    int32_t label_of(const fs::path& folder) const {
        // Removes slashes at the end: parent_path() of "NAME//" is "NAME".
        const std::string name = fs::path(folder / "").parent_path().filename().string();
        const auto match = std::find(model_.classes.begin(), model_.classes.end(), name);
        return match == model_.classes.end() ? kUnknown : int32_t(match - model_.classes.begin());
    }

    const Predictor& model_;
    const data::LoadOptions options_;
    data::Conversion conversion_;
    data::ImageSet set_;
    Images images_;
    std::vector<std::string> warnings_;
    std::set<std::string> only_;
};

enum class Format : uint8_t { text, json, csv };

/// Prints the prediction for each image, and a summary over the images whose true class or target is known.
class Printer {
public:
    Printer(const Predictor& model, Format format, int64_t top, bool quiet)
        : model_(model),
          format_(format),
          top_(std::min(size_t(top), model.classes.size())),
          quiet_(quiet),
          confusion_(model.classes) {
        if (format_ != Format::csv || quiet_) return;
        std::cout << "file";
        for (size_t k = 1; k <= top_; ++k) {
            const std::string number = top_ > 1 ? cat(k) : "";
            std::cout << ",class" << number << ",score" << number;
        }
        for (const Target& target : model_.targets) std::cout << "," << csv_field(target.name);
        std::cout << ",known class" << (model_.targets.size() == 1 ? ",known target" : "") << "\n";
    }

    /// Takes the prediction for an image, element `i` of `outputs`. Prints it, unless --quiet is given. Adds it to the
    /// summary if the true class or target is known.
    void add(const Images::Item& image, const Predictor::Outputs& outputs, size_t i) {
        const size_t count = model_.classes.size();
        const auto scores = outputs.scores.span<float>().subspan(i * count, count);
        std::vector<float> targets;
        for (const Tensor& target : outputs.targets) targets.push_back(target.span<float>()[i]);
        if (!quiet_) std::cout << line(image, scores, targets);
        if (image.label != kUnknown)
            confusion_.add(image.label, size_t(std::max_element(scores.begin(), scores.end()) - scores.begin()));
        if (!std::isnan(image.target)) squares_ += std::pow(double(targets[0] - image.target), 2), ++known_targets_;
    }

    /// Prints the summary as text, with `ending` as its last line. Without --quiet, does so only if there are several
    /// images, and the true class or target of at least one is known. If --json or --csv prints predictions, the
    /// summary goes to the standard error.
    void finish(size_t images, const std::string& ending) {
        if (!quiet_ && (images == 1 || (confusion_.empty() && known_targets_ == 0))) return;
        std::string text = !quiet_ && format_ == Format::text ? "\n" : "";
        if (quiet_ || !confusion_.empty()) text += confusion_.text(images);
        if (known_targets_ > 0)
            text +=
                cat(model_.targets[0].name, ": RMSE ", formatted("%.4g", std::sqrt(squares_ / double(known_targets_))),
                    " ", model_.targets[0].unit, " (", known_targets_, " known)\n");
        (format_ == Format::text || quiet_ ? std::cout : std::cerr) << text << ending;
    }

private:
    /// Returns the --top classes with the highest scores, best first. Classes with equal scores keep their order.
    std::vector<size_t> best(std::span<const float> scores) const {
        std::vector<size_t> order(scores.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
        order.resize(top_);
        return order;
    }

    std::string line(const Images::Item& image, std::span<const float> scores, std::span<const float> targets) const {
        if (format_ == Format::json) return json_line(image, scores, targets);
        const bool csv = format_ == Format::csv;
        const char* const separator = csv ? "," : "\t";
        const auto shown = [&](const std::string& text) { return csv ? csv_field(text) : table_cell(text); };
        std::string out = shown(image.name);
        for (const size_t k : best(scores))
            out += cat(separator, shown(model_.classes[k]), separator, formatted("%.6f", double(scores[k])));
        for (const float target : targets) out += cat(separator, formatted("%.6g", double(target)));
        if (csv) {
            out += cat(",", image.label == kUnknown ? "" : csv_field(model_.classes[size_t(image.label)]));
            if (targets.size() == 1) out += cat(",", std::isnan(image.target) ? "" : cat(image.target));
        }
        return out + "\n";
    }
    std::string json_line(const Images::Item& image, std::span<const float> scores,
                          std::span<const float> targets) const {
        Json list = Json::array(), numbers = Json::object();
        for (const size_t k : best(scores))
            list.push(Json::object().set("class", model_.classes[k]).set("score", double(scores[k])));
        for (size_t t = 0; t < targets.size(); ++t) numbers.set(model_.targets[t].name, double(targets[t]));
        Json out = Json::object().set("file", image.name).set("best", list);
        if (!targets.empty()) out.set("targets", numbers);
        if (image.label != kUnknown) out.set("known class", model_.classes[size_t(image.label)]);
        if (!std::isnan(image.target)) out.set("known target", double(image.target));
        return out.dump() + "\n";
    }

    const Predictor& model_;
    const Format format_;
    const size_t top_;
    const bool quiet_;
    Confusion confusion_;
    double squares_ = 0;
    int64_t known_targets_ = 0;
};

struct Settings {
    MachineOptions machine{.precision = "fp32"};
    int64_t batch_size = 250, top = 1;
    bool quiet = false, skip_other_images = false, json = false, csv = false;
    std::string only;
    std::vector<std::string> arguments; // MODEL FILE...
};

void declare(Options& o, Settings& s) {
    o.positional("MODEL [FILE]", &s.arguments,
                 "MODEL: the folder of a run (its model.safetensors), or one of its models or checkpoints. FILE: a PNG "
                 "or a JPEG "
                 "of any size; a folder as for --data, s3: or pipe:, of which the test images are taken if it has a "
                 "test set; or "
                 "CIFAR records (.bin). Without FILE: the test images of the embedded CIFAR-10 sample",
                 1);
    o.add("top", &s.top, "number of classes to print per image, best first").at_least(1).basic();
    o.add("json", &s.json, "print a JSON object per line").basic();
    o.add("csv", &s.csv, "print comma-separated values, with a heading, and with ' before names like formulas").basic();
    o.add("quiet", &s.quiet, "print only the summary, no line per image").basic();
    o.add(
        "skip-other-images", &s.skip_other_images,
        "leave out images that cannot be used: other formats than PNG and JPEG, and damaged files; without this option "
        "they are an error");
    o.add("only", &s.only, "file with the names of the images to take from folders, such as RUN/held-out.txt")
        .metavar("FILE");
    o.add("batch-size", &s.batch_size, "images per mini-batch").range(1, 65536);
    s.machine.declare_compute(o);
}

int predict(const Options& options, Settings& s, par::Group& group) {
    RG_CHECK(group.size() == 1, "predict: expected one process, got ", group.size(), "; start it without mpiexec");
    RG_CHECK(!s.json || !s.csv, "predict: expected --json or --csv, got both; omit one of them");
    Machine machine(s.machine, options, group);
    const Context context = machine.context();
    const ContextScope scope(context);
    Predictor model(s.arguments[0], machine.activations());
    Reader reader(model, s.skip_other_images, s.only);
    const Images images = reader.read({s.arguments.begin() + 1, s.arguments.end()});
    for (const std::string& warning : reader.warnings()) std::cerr << printable(warning) << "\n";
    const size_t count = images.items.size(), bytes = images.pixels.size() / count, batch = size_t(s.batch_size);
    Printer printer(model, s.json ? Format::json : s.csv ? Format::csv : Format::text, s.top, s.quiet);
    double seconds = 0;
    for (size_t begin = 0; begin < count; begin += batch) {
        const size_t n = std::min(batch, count - begin);
        Predictor::Outputs outputs;
        seconds +=
            seconds_of([&] { outputs = model.predict(std::span(images.pixels).subspan(begin * bytes, n * bytes)); });
        for (size_t i = 0; i < n; ++i) printer.add(images.items[begin + i], outputs, i);
    }
    printer.finish(count, cat(formatted("%.0f images/s; ", double(count) / seconds), machine.text(),
                              reader.conversion().text(), "\n"));
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return rg::par::run_ranks_main(argc, argv, [&](rg::par::Group& group) {
        Settings settings;
        Options options("predict", "predicts the classes or values of images with a trained network");
        const std::string run = default_runs_folder() + "/NAME";
        options.examples({run, run + " ~/photos --top 3"});
        declare(options, settings);
        if (options.parse({argv + 1, argv + argc})) return predict(options, settings, group);
        std::cout << options.answer();
        return 0;
    });
}
