// See commands.h. All images are read before the first prediction, so a bad file is an error before any output.
#include "models/run/commands.h"

#include "core/atomic_file.h"
#include "core/formatted.h"
#include "core/json.h"
#include "core/text.h"
#include "data/cifar.h"
#include "data/decode.h"
#include "data/image_folder.h"
#include "data/open.h"
#include "data/source.h"
#include "models/run/compute.h"
#include "models/run/confusion.h"
#include "models/run/load_data.h"
#include "models/run/onnx.h"
#include "models/run/predictor.h"
#include "models/run/run_folder.h"
#include "models/run/training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <optional>

namespace rg {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kUnknown = -1; // label of an image whose class is not known

/// The name of an image, and its true class and target values as far as they are known.
struct ImageTruth {
    std::string name;
    int32_t label = kUnknown;
    std::vector<float> targets = {}; // true values; empty: unknown; some may be NAN
};

/// Images of the size Predictor::resize, and the known names, classes and target values of each.
struct LabelledImages {
    data::ImageSet set;
    std::vector<ImageTruth> items;   // [count]
    std::vector<float> numbers = {}; // [count k]: the numbers that the network takes beside each image
};

/// Reads the images that a command line names.
class ImageReader {
public:
    /// `trained_on` is the path of the images that the model was trained on, if some of them were held out; else "".
    ImageReader(const Predictor& model, const data::LoadOptions& reading, std::string trained_on)
        : model_(model), options_(reading), trained_on_(std::move(trained_on)) {
        options_.channels = int(model.task.channels);
        options_.height = model.resize.height, options_.width = model.resize.width;
        options_.labels = model.outputs.labels;
    }

    /// Returns the images of a run's test, if it is given, and then those of the paths, in their order. Throws Error if
    /// the network takes numbers, and an image has none.
    std::vector<LabelledImages> read(const std::vector<std::string>& paths, const std::optional<TestResult>& of_run) {
        std::vector<LabelledImages> parts;
        if (of_run) parts.push_back(labelled(of_run->images, of_run->folder));
        const auto is_set = [](const std::string& path) { return data::is_remote(path) || fs::is_directory(path); };
        const auto is_image = [&](const std::string& path) { return !is_set(path) && !path.ends_with(".bin"); };
        for (auto path = paths.begin(); path != paths.end();) {
            const auto end = std::find_if_not(path, paths.end(), is_image);
            if (end != path)
                parts.push_back(read_images({path, end}));
            else
                parts.push_back(is_set(*path) ? read_set(*path) : read_records(*path));
            path = std::max(end, path + 1);
        }
        for (LabelledImages& images : parts) add_numbers(images);
        return parts;
    }
    /// Returns texts for users about images that are damaged, left out, or also training images.
    const std::vector<std::string>& warnings() const { return warnings_; }

private:
    /// Returns the images of a set that was read from this path, with an ImageTruth for each.
    LabelledImages labelled(data::ImageSet set, const std::string& path) const {
        LabelledImages images{std::move(set), {}};
        const std::string folder = path.starts_with("pipe:") || path.empty() ? ""
                                   : path.ends_with('/')                     ? path
                                                                             : path + "/";
        const data::ImageSet& all = images.set;
        for (int64_t i = 0; i < all.count; ++i) {
            ImageTruth item{all.names.empty() ? cat(path.empty() ? "sample" : path, "#", i)
                                              : folder + all.names[size_t(i)]};
            const int32_t label = all.labels[size_t(i)];
            // Files of CIFAR and IDX do not always have names of classes. So for these, only the number of classes is
            // compared.
            if (!all.names.empty())
                item.label = label_of(all.classes[size_t(label)]);
            else if (all.classes.size() == model_.classes.size())
                item.label = label;
            if (!all.target_names.empty()) item.targets = targets_of(all, i);
            images.items.push_back(std::move(item));
        }
        return images;
    }
    /// Reads a set of images. Takes its test images, or all images if it has no test set.
    LabelledImages read_set(const std::string& path) {
        data::TrainTest sets = data::load(path, options_);
        warnings_.insert(warnings_.end(), sets.warnings.begin(), sets.warnings.end());
        std::error_code none;
        if (sets.test.count == 0 && !trained_on_.empty() &&
            (path == trained_on_ || fs::equivalent(path, trained_on_, none)))
            warnings_.push_back(cat("warning: ", path, " also has the images of the training, which make the results ",
                                    "too good; without it, the images that were held out are tested"));
        return labelled(sets.test.count > 0 ? std::move(sets.test) : std::move(sets.train), path);
    }
    /// Reads CIFAR records.
    LabelledImages read_records(const std::string& path) {
        data::Conversion conversion(options_);
        const std::string file = read_file(path);
        const data::Bytes bytes = data::as_bytes(file);
        data::TrainTest sets{data::parse_cifar({{bytes, path}}, data::cifar_kind(bytes, path)), {}, ""};
        conversion.convert(sets);
        return labelled(std::move(sets.train), path);
    }
    /// Reads PNGs and JPEGs. The class of each is the name of its folder.
    LabelledImages read_images(const std::vector<std::string>& paths) {
        data::Conversion conversion(options_);
        const auto path_of = [&](int64_t i) { return paths[size_t(i)]; };
        data::Converted all =
            conversion.read(std::ssize(paths), path_of, [&](int64_t i) { return data::read_image(paths[size_t(i)]); });
        all.set.labels.assign(paths.size(), kUnknown);
        LabelledImages images{data::subset(all.set, all.kept), {}};
        for (const int64_t i : all.kept)
            images.items.push_back({path_of(i), label_of(fs::absolute(path_of(i)).parent_path().filename().string())});
        for (std::string& warning : conversion.warnings()) warnings_.push_back(std::move(warning));
        return images;
    }
    /// Adds the numbers that the network takes. Throws Error if an image lacks one.
    void add_numbers(LabelledImages& images) const {
        for (int64_t i = 0; i < images.set.count; ++i)
            for (const std::string& name : model_.outputs.input_numbers) {
                images.numbers.push_back(number_of(images.set, i, name, model_.outputs.input_numbers.size() == 1));
                RG_CHECK(!std::isnan(images.numbers.back()), images.items[size_t(i)].name, ": expected its ", name,
                         ", which the network takes beside the image, got none; give a folder whose ",
                         model_.outputs.labels == data::Labels::one_class ? data::kAnglesFile : data::kLabelsFile,
                         " has it");
            }
    }

    /// Returns the number of image i that the table has by this name, or NAN. If the model takes or predicts a `single`
    /// number, and the table has a single one, their names may differ.
    static float number_of(const data::ImageSet& set, int64_t i, const std::string& name, bool single) {
        const std::vector<std::string>& names = set.target_names;
        const auto match = std::ranges::find(names, name);
        if (match != names.end()) return set.targets_of(i)[size_t(match - names.begin())];
        return single && names.size() == 1 ? set.targets_of(i)[0] : NAN;
    }
    /// Returns the true values of the model's targets for image i, NAN if unknown. If the table has the image but not a
    /// label, that label counts as 0.
    std::vector<float> targets_of(const data::ImageSet& set, int64_t i) const {
        const bool labels = model_.outputs.labels == data::Labels::several_classes;
        std::vector<float> targets;
        for (const TargetInfo& target : model_.targets) {
            const float value = number_of(set, i, target.name, !labels && model_.targets.size() == 1);
            targets.push_back(labels && std::isnan(value) && !std::isnan(set.targets_of(i)[0]) ? 0.0f : value);
        }
        return targets;
    }
    /// Returns the class of that name, or kUnknown.
    int32_t label_of(const std::string& name) const {
        const auto match = std::find(model_.classes.begin(), model_.classes.end(), name);
        return match == model_.classes.end() ? kUnknown : int32_t(match - model_.classes.begin());
    }

    const Predictor& model_;
    data::LoadOptions options_;
    const std::string trained_on_;
    std::vector<std::string> warnings_;
};

enum class Format : uint8_t { text, json, csv };

/// Prints the prediction for each image, and a summary over the images whose true class or target is known.
class Printer {
public:
    Printer(const Predictor& model, Format format, int64_t top, bool quiet, std::ostream& out = std::cout)
        : model_(model),
          format_(format),
          top_(std::min(size_t(top), model.classes.size())),
          quiet_(quiet),
          out_(out),
          confusion_(model.classes) {
        if (format_ != Format::csv || quiet_) return;
        out_ << "file";
        for (size_t k = 1; k <= top_; ++k) {
            const std::string number = top_ > 1 ? cat(k) : "";
            out_ << ",class" << number << ",score" << number;
        }
        for (const TargetInfo& target : model_.targets) out_ << "," << csv_field(target.name);
        out_ << (top_ > 0 ? ",known class" : "");
        for (const TargetInfo& target : model_.targets) out_ << "," << csv_field("known " + target.name);
        out_ << "\n";
    }

    /// Takes the prediction for an image, element `i` of `outputs`. Prints it, unless --quiet is given. Adds
    /// the class to the summary if the true one is known, and the targets if all true values are known.
    void add(const ImageTruth& image, const Predictor::Predictions& outputs, size_t i) {
        const size_t count = model_.classes.size();
        const std::span<const float> scores =
            count > 0 ? outputs.scores.span<float>().subspan(i * count, count) : std::span<const float>();
        std::vector<float> targets;
        for (const Tensor& target : outputs.targets) targets.push_back(target.span<float>()[i]);
        if (!quiet_) out_ << prediction_line(image, scores, targets);
        if (image.label != kUnknown && count > 0)
            confusion_.add(image.label, size_t(std::max_element(scores.begin(), scores.end()) - scores.begin()),
                           rank_of(scores, size_t(image.label)));
        const auto is_nan = [](float value) { return std::isnan(value); };
        if (image.targets.empty() || std::any_of(image.targets.begin(), image.targets.end(), is_nan)) return;
        predicted_.insert(predicted_.end(), targets.begin(), targets.end());
        known_.insert(known_.end(), image.targets.begin(), image.targets.end());
    }

    /// Prints the summary as text, with `ending` as its last line. Without --quiet, does so only if there are several
    /// images, and the true class or target of at least one is known. If --json or --csv prints predictions, the
    /// summary goes to the standard error. With --quiet and --csv, prints the table of the classes or labels before it.
    void finish(size_t images, const std::string& ending) {
        if (!quiet_ && (images == 1 || (confusion_.empty() && known_.empty()))) return;
        std::string text = !quiet_ && format_ == Format::text ? "\n" : "";
        if ((quiet_ && top_ > 0) || !confusion_.empty()) text += confusion_.text(images);
        const bool labels = model_.outputs.labels == data::Labels::several_classes;
        const size_t k = model_.targets.size(), n = known_.empty() ? 0 : known_.size() / k;
        for (size_t t = 0; n > 0 && t < k; ++t) {
            double squares = 0, right = 0;
            for (size_t i = t; i < n * k; i += k) {
                squares += std::pow(predicted_[i] - double(known_[i]), 2);
                right += (predicted_[i] > 0.5) == (known_[i] > 0.5f);
            }
            const auto& [name, unit, mean, deviation] = model_.targets[t];
            text += cat(name, ": ",
                        labels ? formatted("%.1f %% right", 100 * right / double(n))
                               : formatted("RMSE %.4g", std::sqrt(squares / double(n))),
                        unit.empty() ? "" : " ", unit, " (", n, " known)\n");
        }
        const bool table = quiet_ && format_ == Format::csv && (labels || top_ > 0);
        if (table && labels) out_ << csv_of_labels(model_.targets, predicted_, known_, 0.5);
        if (table && top_ > 0) out_ << confusion_.csv_of_classes();
        (format_ == Format::text || (quiet_ && !table) ? std::cout : std::cerr) << text << ending;
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

    std::string prediction_line(const ImageTruth& image, std::span<const float> scores,
                                std::span<const float> targets) const {
        if (format_ == Format::json) return json_line(image, scores, targets);
        const bool csv = format_ == Format::csv;
        const char* const separator = csv ? "," : "\t";
        const auto shown = [&](const std::string& text) { return csv ? csv_field(text) : table_cell(text); };
        std::string out = shown(image.name);
        for (const size_t k : best(scores))
            out += cat(separator, shown(model_.classes[k]), separator, formatted("%.6f", double(scores[k])));
        for (const float target : targets) out += cat(separator, formatted("%.6g", double(target)));
        if (csv) {
            if (top_ > 0)
                out += cat(",", image.label == kUnknown ? "" : csv_field(model_.classes[size_t(image.label)]));
            for (size_t t = 0; t < targets.size(); ++t)
                out += cat(",", image.targets.empty() || std::isnan(image.targets[t]) ? "" : cat(image.targets[t]));
        }
        return out + "\n";
    }
    std::string json_line(const ImageTruth& image, std::span<const float> scores,
                          std::span<const float> targets) const {
        Json list = Json::array(), numbers = Json::object();
        for (const size_t k : best(scores))
            list.push(Json::object().set("class", model_.classes[k]).set("score", double(scores[k])));
        for (size_t t = 0; t < targets.size(); ++t) numbers.set(model_.targets[t].name, double(targets[t]));
        Json out = Json::object().set("file", image.name);
        if (top_ > 0) out.set("best", list);
        if (!targets.empty()) out.set("targets", numbers);
        if (image.label != kUnknown && top_ > 0) out.set("known class", model_.classes[size_t(image.label)]);
        Json known = Json::object();
        for (size_t t = 0; t < image.targets.size(); ++t)
            if (!std::isnan(image.targets[t])) known.set(model_.targets[t].name, double(image.targets[t]));
        if (!known.as_object().empty()) out.set("known targets", known);
        return out.dump() + "\n";
    }

    const Predictor& model_;
    const Format format_;
    const size_t top_;
    const bool quiet_;
    std::ostream& out_;
    Confusion confusion_;
    std::vector<double> predicted_; // [n targets], of the images whose targets are known
    std::vector<float> known_;      // [n targets]
};

/// Returns an array [n k] as a file of NumPy: numpy.lib.format, version 1.0.
std::string npy_of(std::span<const float> values, int64_t k) {
    std::string header =
        cat("{'descr': '<f4', 'fortran_order': False, 'shape': (", std::ssize(values) / k, ", ", k, "), }");
    header.resize((10 + header.size()) / 64 * 64 + 53, ' ');
    const size_t size = header.size() + 1;
    return cat(std::string("\x93NUMPY\1\0", 8), char(size % 256), char(size / 256), header, "\n",
               std::string_view(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
}

struct Settings {
    ComputeOptions compute{.precision = "fp32"};
    int64_t batch_size = 0, top = 1;
    std::string features, out;
    bool quiet = false, json = false, csv = false, test_views = false;
    data::LoadOptions reading{.test_fraction = 0, .unlabelled = true};
    std::vector<std::string> arguments; // MODEL FILE...
};

void declare(Options& o, Settings& s) {
    o.positional(
        "MODEL [FILE]", &s.arguments,
        "MODEL: the folder of a run, or one of its models or checkpoints. FILE: a PNG or a JPEG of any size; a "
        "folder as for --data, s3: or pipe: (its test set, if it has one); or CIFAR records (.bin). Without "
        "FILE: the images that the run was tested on in the end",
        1);
    o.add("top", &s.top, "number of classes to print per image, best first").at_least(1).basic();
    o.add("json", &s.json, "print a JSON object per line").basic();
    o.add("csv", &s.csv, "print comma-separated values, with a heading, and with ' before names like formulas").basic();
    o.add("quiet", &s.quiet, "print only the summary, and with --csv precision, recall and F1 by class").basic();
    o.add("features", &s.features, "layer whose features, the means over all pixels, --out gets").metavar("LAYER");
    o.add("out", &s.out, "NumPy file of the features; a .csv beside it has what --csv prints").metavar("FILE.npy");
    data::declare_reading(o, s.reading);
    o.add("test-views", &s.test_views, "predict with the weighted mean scores of six views of each image");
    o.add("batch-size", &s.batch_size,
          "images per mini-batch; 0: 250, or on a CPU fewer if they have more than 64x64 pixels, to save memory. "
          "Without FILE, the default is that of the program that trained the model")
        .range(0, 65536);
    s.compute.declare_device_options(o);
}

/// Returns the test of a model on the images of its run. Throws Error if the model belongs to no run of these programs.
TestResult test_on_images_of_run(par::Group& group, const std::string& model, const Options& options,
                                 const std::vector<const Program*>& programs) {
    std::string folder;
    const Json config = config_of(model, folder);
    RG_CHECK(config.is_object() && config.find("program"),
             "predict: expected images, or a model in the folder of its run, got ", model,
             " alone; name files or a folder after it");
    const std::string& name = config.at("program").as_string();
    const auto program = std::ranges::find_if(programs, [&](const Program* one) { return one->name == name; });
    RG_CHECK(program != programs.end(), "predict: expected a run of ", programs[0]->name, ", got one of ", name,
             "; run ", name, " predict, or name files or a folder after ", model);
    Json given = Json::object();
    for (const auto& [option, value] : options.values())
        if (options.was_given(option)) given.set(option, value);
    return (*program)->test_run(group, model, given);
}

int predict(const Options& options, Settings& s, par::Group& group, const std::vector<const Program*>& programs) {
    RG_CHECK(group.size() == 1, "predict: expected one process, got ", group.size(), "; start it without mpiexec");
    RG_CHECK(!s.json || !s.csv, "predict: expected --json or --csv, got both; omit one of them");
    RG_CHECK(s.features.empty() ? s.out.empty() : s.out.ends_with(".npy"), "predict: expected --features LAYER with ",
             "--out FILE.npy, got --features '", s.features, "' and --out '", s.out, "'; give both or none");
    const std::string& path = s.arguments[0];
    const TensorFile file = load_model(path);
    std::optional<TestResult> of_run;
    if (s.arguments.size() == 1) of_run = test_on_images_of_run(group, path, options, programs);
    const auto print_test = [&] {
        std::ostream& out = s.json || s.csv ? std::cerr : std::cout;
        for (const auto& [name, text, csv] : of_run->tables) {
            if (!text.empty()) out << text << "\n";
            if (s.quiet && s.csv && name == "classes") std::cout << csv;
        }
        out << "test: " << of_run->images.count << " images; loss "
            << formatted("%.4f ", of_run->values.at("test_loss").as_double()) << of_run->text << "\n";
        return 0;
    };
    const std::vector<std::string> kinds = stored_outputs(file).kinds;
    const auto is_of_pixels = [](const std::string& kind) { return kind == "pixels" || kind == "reconstruction"; };
    if (of_run) {
        for (const std::string& warning : of_run->warnings) std::cerr << printable(warning) << "\n";
        if (s.features.empty() && (s.quiet || std::ranges::any_of(kinds, is_of_pixels))) return print_test();
    }
    Compute compute(s.compute, options, group);
    const Context context = compute.context();
    const ContextScope scope(context);
    Predictor model(file, compute.activations());
    if (s.test_views) model.views = data::mirrored_and_shifted(model.task.width);
    constexpr int64_t kMost = 250, kPixels = 64 * 64;
    const int64_t pixels = compute.device() ? 1 : model.task.height * model.task.width;
    if (s.batch_size == 0) s.batch_size = std::clamp<int64_t>(kMost * kPixels / pixels, 1, kMost);
    const Json data = stored_data(file);
    const bool held_out = data.is_object() && data.find("held_out");
    ImageReader reader(model, s.reading, held_out ? data.at("source").as_string() : "");
    const std::vector<LabelledImages> parts = reader.read({s.arguments.begin() + 1, s.arguments.end()}, of_run);
    size_t count = 0;
    for (const LabelledImages& part : parts) count += part.items.size();
    for (const std::string& warning : reader.warnings()) std::cerr << printable(warning) << "\n";
    const int64_t k = model.feature_count(s.features);
    std::vector<float> features; // [n k]
    std::stringbuf rows;
    std::ostream to_rows(&rows);
    const Format format = s.json ? Format::json : s.csv ? Format::csv : Format::text;
    Printer printer(model, format, s.top, s.quiet), row_printer(model, Format::csv, s.top, false, to_rows);
    double seconds = 0;
    for (const LabelledImages& part : parts)
        for (int64_t begin = 0; begin < part.set.count; begin += s.batch_size) {
            const int64_t n = std::min(s.batch_size, part.set.count - begin);
            Predictor::Predictions outputs;
            const auto numbers = std::ssize(model.outputs.input_numbers);
            const auto inputs = std::span(part.numbers).subspan(size_t(begin * numbers), size_t(n * numbers));
            seconds += wall_seconds(
                [&] { outputs = model.predict(data::copy_pixels(part.set, begin, n), inputs, s.features); });
            for (int64_t i = 0; i < n; ++i) printer.add(part.items[size_t(begin + i)], outputs, size_t(i));
            if (k == 0) continue;
            for (int64_t i = 0; i < n; ++i) row_printer.add(part.items[size_t(begin + i)], outputs, size_t(i));
            std::ranges::copy(outputs.features.span<float>(), std::back_inserter(features));
        }
    if (k > 0) {
        write_output(s.out, npy_of(features, k));
        write_output(s.out.substr(0, s.out.size() - 4) + ".csv", rows.str());
    }
    if (of_run) {
        if (!s.json && !s.csv) std::cout << "\n";
        return print_test();
    }
    printer.finish(count, cat(formatted("%.0f images/s; ", double(count) / seconds), compute.text(), "\n"));
    return 0;
}

} // namespace

int predict_command(par::Group& group, const std::string& name, const std::vector<std::string>& args,
                    const std::vector<const Program*>& programs) {
    Settings settings;
    Options options(name, "predicts the classes or values of images with a trained network");
    const std::string run = default_runs_folder() + "/NAME";
    options.add_examples({run, run + " ~/photos --top 3"});
    declare(options, settings);
    return options.parse(args) ? predict(options, settings, group, programs) : options.print_help_or_version();
}

int export_command(par::Group&, const std::string& name, const std::vector<std::string>& args) {
    std::vector<std::string> arguments;
    Options options(name, "writes a trained network as an ONNX file");
    const std::string run = default_runs_folder() + "/NAME";
    options.add_examples({run + " net.onnx", run + "/model-best.safetensors best.onnx"});
    options.positional("MODEL OUT", &arguments, "MODEL: as for predict. OUT: the file to write, such as net.onnx", 2,
                       2);
    if (!options.parse(args)) return options.print_help_or_version();
    const std::string& out = arguments[1];
    RG_CHECK(out.ends_with(".onnx"), name, ": expected a name that ends with .onnx for OUT, got ", out,
             "; choose such a name");
    save_onnx(out, load_model(arguments[0]));
    return 0;
}

} // namespace rg
