// See model_file.h.
#include "models/run/model_file.h"

#include "core/atomic_file.h"
#include "core/checkpoint.h"
#include "core/json.h"
#include "core/ops.h"
#include "core/torch_file.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace rg {

namespace {

/// The names of data::Labels in files.
constexpr std::string_view kLabelKinds[] = {"class", "numbers", "several", "none"};

/// Returns the values as a tensor that has memory also in a trace, as Tensor::constant() does.
Tensor constants(const std::vector<float>& values) {
    const Setting<int> no_dry_run(Scope::current().dry_runs, 0);
    const Setting<Recorder*> no_trace(Scope::current().trace, nullptr); // which refuses copies to a device
    return Tensor::of<float>({std::ssize(values)}, values).to_device();
}

/// Returns the targets. Throws Error if two have one name, since programs find them by it.
const std::vector<TargetInfo>& check_distinct(const std::vector<TargetInfo>& targets, const std::string& source) {
    std::set<std::string> names;
    for (const TargetInfo& target : targets)
        RG_CHECK(names.insert(target.name).second, source, ": expected different names of targets, got ", target.name,
                 " twice; rename one of them, for example in labels.csv");
    return targets;
}

} // namespace

ImageTask task_of(const data::ImageSet& images, uint64_t seed) {
    const auto [height, width] = images.input_size();
    return {height, width, images.channels, int64_t(images.classes.size()), seed, std::ssize(images.target_names)};
}

Metadata describe_model(const Json& network, const data::ImageSet& images, const data::Normalise& normalise,
                        const ModelOutputs& outputs) {
    Json mean = Json::array(), deviation = Json::array();
    for (size_t c = 0; c < size_t(images.channels); ++c)
        mean.push(double(normalise.mean[c])), deviation.push(double(normalise.deviation[c]));
    const auto [height, width] = images.input_size();
    Metadata metadata{{"network", network.dump()},
                      {"image", Json(Json::Array{height, width, images.channels}).dump()},
                      {"classes", Json::of_texts(images.classes).dump()},
                      {"normalise", Json::object().set("mean", mean).set("deviation", deviation).dump()}};
    if (height != images.height || width != images.width)
        metadata.emplace_back("resize", Json(Json::Array{images.height, images.width}).dump());
    if (!images.target_names.empty()) metadata.emplace_back("image_targets", cat(images.target_names.size()));
    metadata.emplace_back("outputs", Json::of_texts(outputs.kinds).dump());
    metadata.emplace_back("labels", std::string(kLabelKinds[size_t(outputs.labels)]));
    if (!outputs.input_numbers.empty())
        metadata.emplace_back("input_numbers", Json::of_texts(outputs.input_numbers).dump());
    if (outputs.targets.empty()) return metadata;
    Json list = Json::array();
    for (const TargetInfo& target : check_distinct(outputs.targets, "model")) {
        Json entry = Json::object().set("name", target.name).set("unit", target.unit);
        if (target.mean != 0 || target.deviation != 1)
            entry.set("mean", target.mean).set("deviation", target.deviation);
        list.push(entry);
    }
    metadata.emplace_back("targets", list.dump());
    return metadata;
}

Tensor standardised(const Tensor& values, std::span<const TargetInfo> targets, bool back) {
    const auto is_same = [](const TargetInfo& target) { return target.mean == 0 && target.deviation == 1; };
    if (std::ranges::all_of(targets, is_same)) return values;
    const int64_t n = values.extent(0), k = values.extent(1);
    RG_CHECK(std::ssize(targets) >= k, "task: expected at most ", targets.size(), " numbers per image, got ", k);
    std::vector<float> factors, shifts;
    for (const auto& [name, unit, mean, deviation] : targets.first(size_t(k))) {
        factors.push_back(float(back ? deviation : 1 / deviation));
        shifts.push_back(float(back ? mean : -mean / deviation));
    }
    const Tensor stats = Tensor::constant({2, k}, 0); // with epsilon 1, so the batch norm only multiplies and adds
    return batch_norm(values.reshape({n, 1, 1, k}), stats, constants(factors), constants(shifts),
                      {.epsilon = 1, .frozen = true})
        .reshape(values.shape());
}

std::vector<Tensor> ModelOutputs::in_units(std::vector<Tensor> results, bool probabilities) const {
    for (size_t o = 0; o < std::min(results.size(), kinds.size()); ++o)
        if (kinds[o] == "numbers")
            results[o] = standardised(results[o], targets, true);
        else if (kinds[o] == "labels" && probabilities)
            results[o] = sigmoid(results[o]);
    return results;
}

TensorFile decode_model(std::string_view bytes, const std::string& source) {
    if (is_torch_file(bytes)) return decode_torch_file(bytes, source);
    TensorFile file = decode_tensors(bytes, source);
    if (is_checkpoint(file))
        std::erase_if(file.tensors, [](const NamedTensor& t) { return t.name.starts_with("optimizer."); });
    return file;
}

std::string model_path(std::string path) {
    RG_CHECK(std::filesystem::exists(path), "expected a run's folder, a model or a checkpoint, got nothing (", path,
             "); a training saves its model as RUN/model.safetensors");
    if (std::filesystem::is_directory(path)) {
        RG_CHECK(std::filesystem::exists(path + "/model.safetensors"),
                 "expected a run's folder with model.safetensors, got one without it (", path, "); give ",
                 std::filesystem::exists(path + "/trials")        ? "one of its trials, such as that of best.json"
                 : std::filesystem::exists(path + "/config.json") ? "a file of its checkpoint folder instead"
                                                                  : "a run first, then the images");
        std::string run;
        const Json config = config_of(path, run);
        const Json* const options = config.is_object() ? config.find("options") : nullptr;
        const Json* const validation = options ? options->find("validation") : nullptr;
        const bool is_trial = std::filesystem::exists(path + "/../../journal.jsonl"); // a sweep tests the last epoch
        const bool chose = !is_trial && validation && validation->as_double() > 0 &&
                           std::filesystem::exists(path + "/model-best.safetensors");
        path += chose ? "/model-best.safetensors" : "/model.safetensors";
    }
    return path;
}

TensorFile load_model(const std::string& path) {
    const std::string file = model_path(path);
    return decode_model(read_file(file, kMaxTensorFile), file);
}

Json config_of(const std::string& model, std::string& folder) {
    namespace fs = std::filesystem;
    fs::path at = fs::absolute(model).lexically_normal();
    for (int up = 0; up < 3; ++up, at = at.parent_path()) { // RUN/checkpoint/FILE
        const std::string path = (at / "config.json").string();
        std::error_code none;
        if (!fs::exists(path, none)) continue;
        folder = at.string();
        return Json::parse(read_file(path), path);
    }
    return {};
}

std::vector<std::string> stored_classes(const TensorFile& file) {
    return Json::parse(file.text("classes"), file.source + ": classes").as_texts();
}

ModelOutputs stored_outputs(const TensorFile& file) {
    ModelOutputs outputs;
    if (const std::string* const text = file.find_text("targets")) {
        const Json list = Json::parse(*text, file.source + ": targets");
        for (const Json& json : list.as_array()) {
            outputs.targets.push_back({json.at("name").as_string(), json.at("unit").as_string()});
            if (!json.find("mean")) continue; // not standardised
            outputs.targets.back().mean = json.at("mean").as_double();
            outputs.targets.back().deviation = json.at("deviation").as_double();
        }
        check_distinct(outputs.targets, file.source);
    }
    if (const std::string* const text = file.find_text("outputs")) {
        outputs.kinds = Json::parse(*text, file.source + ": outputs").as_texts();
        RG_CHECK(!outputs.kinds.empty(), file.source, ": outputs: expected at least one, got none");
    }
    if (const std::string* const text = file.find_text("labels")) {
        const auto kind = std::ranges::find(kLabelKinds, *text);
        RG_CHECK(kind != std::end(kLabelKinds), file.source, ": labels: expected class, numbers, several or none, got ",
                 *text);
        outputs.labels = data::Labels(kind - std::begin(kLabelKinds));
    }
    if (const std::string* const text = file.find_text("input_numbers"))
        outputs.input_numbers = Json::parse(*text, file.source + ": input_numbers").as_texts();
    return outputs;
}

data::ImageSize stored_resize(const TensorFile& file) {
    const ImageTask task = stored_task(file);
    const std::string* text = file.find_text("resize");
    if (!text) return {task.height, task.width};
    const Json resize = Json::parse(*text, file.source + ": resize");
    RG_CHECK(resize.as_array().size() == 2, file.source, ": resize: expected [height, width], got ", *text);
    const data::ImageSize size{resize.as_array()[0].as_int(), resize.as_array()[1].as_int()};
    RG_CHECK(size.height >= task.height && size.width >= task.width && std::max(size.height, size.width) <= 65536,
             file.source, ": resize: expected extents from those of the network's inputs, ", task.height, "x",
             task.width, ", to 65536, got ", *text);
    return size;
}

data::Normalise stored_normalise(const TensorFile& file, const data::Normalise& fallback) {
    const std::string* text = file.find_text("normalise");
    if (!text) return fallback;
    const Json stored = Json::parse(*text, file.source + ": normalise");
    data::Normalise normalise;
    for (const auto& [name, values] : {std::pair("mean", &normalise.mean), {"deviation", &normalise.deviation}}) {
        const Json::Array& numbers = stored.at(name).as_array();
        RG_CHECK(numbers.size() <= values->size(), file.source, ": normalise: expected at most ", values->size(),
                 " channels, got ", numbers.size());
        for (size_t c = 0; c < numbers.size(); ++c) (*values)[c] = float(numbers[c].as_double());
    }
    return normalise;
}

} // namespace rg
