// See model_file.h.
#include "ringgrad/models/run/model_file.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/checkpoint.h"
#include "ringgrad/core/json.h"

#include <algorithm>
#include <filesystem>

namespace rg {

namespace {

/// The names of data::Labels in files.
constexpr std::string_view kLabelKinds[] = {"class", "numbers", "several", "none"};

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
    for (const Target& target : outputs.targets)
        list.push(Json::object().set("name", target.name).set("unit", target.unit));
    metadata.emplace_back("targets", list.dump());
    return metadata;
}

TensorFile decode_model(std::string_view bytes, const std::string& source) {
    TensorFile file = decode_tensors(bytes, source);
    if (is_checkpoint(file))
        std::erase_if(file.tensors, [](const NamedTensor& t) { return t.name.starts_with("optimizer."); });
    return file;
}

TensorFile load_model(std::string path) {
    RG_CHECK(std::filesystem::exists(path), "expected a run's folder, a model or a checkpoint, got nothing (", path,
             "); a training saves its model as RUN/model.safetensors");
    if (std::filesystem::is_directory(path)) {
        RG_CHECK(std::filesystem::exists(path + "/model.safetensors"),
                 "expected a run's folder with model.safetensors, got one without it (", path, "); give ",
                 std::filesystem::exists(path + "/config.json") ? "a file of its checkpoint folder instead"
                                                                : "a run first, then the images");
        path += "/model.safetensors";
    }
    return decode_model(read_file(path, kMaxTensorFile), path);
}

std::vector<std::string> stored_classes(const TensorFile& file) {
    return Json::parse(file.text("classes"), file.source + ": classes").as_texts();
}

ModelOutputs stored_outputs(const TensorFile& file) {
    ModelOutputs outputs;
    if (const std::string* const text = file.find_text("targets")) {
        const Json list = Json::parse(*text, file.source + ": targets");
        for (const Json& target : list.as_array())
            outputs.targets.push_back({target.at("name").as_string(), target.at("unit").as_string()});
    }
    if (const std::string* const text = file.find_text("outputs")) {
        outputs.kinds = Json::parse(*text, file.source + ": outputs").as_texts();
        RG_CHECK(!outputs.kinds.empty(), file.source, ": outputs: expected at least one, got none");
    } else { // an older file
        outputs.kinds.resize(1 + outputs.targets.size(), "numbers");
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
