// export_onnx MODEL OUT.onnx: writes a trained network as an ONNX file, which other programs run (run/onnx.h).
//
// The file of the model says which network it holds. The ONNX file has the normalisation of the images inside, and the
// names of the classes in its metadata.
#include "ringgrad/core/json.h"
#include "ringgrad/core/options.h"
#include "ringgrad/models/run/model_file.h"
#include "ringgrad/models/run/onnx.h"

#include <cstdio>

namespace {

using namespace rg;

/// Returns "scores", and then the names of the other numbers that the network predicts.
std::vector<std::string> output_names(const TensorFile& file) {
    std::vector<std::string> names{"scores"};
    if (const std::string* targets = file.find_text("targets")) {
        const Json list = Json::parse(*targets, file.source + ": targets");
        for (const Json& target : list.as_array()) names.push_back(target.at("name").as_string());
    }
    return names;
}

/// Returns the metadata that describe the model, without those of a checkpoint's training.
Metadata description_of(const TensorFile& file) {
    Metadata metadata;
    for (const char* const key : {"network", "image", "classes", "normalise", "targets"})
        if (const std::string* text = file.find_text(key)) metadata.emplace_back(key, *text);
    return metadata;
}

int run(int argc, const char* const* argv) {
    std::vector<std::string> arguments;
    Options options("export_onnx", "writes a trained network as an ONNX file");
    options.positional("MODEL OUT", &arguments,
                       "MODEL: the folder of a run, its model.safetensors, or a checkpoint. OUT: the file to write, "
                       "such as net.onnx",
                       2, 2);
    if (!options.parse(argc, argv)) {
        std::fputs(options.answer().c_str(), stdout);
        return 0;
    }
    const TensorFile file = load_model(arguments[0]);
    const std::unique_ptr<Network> network = make_network(file);
    const ImageTask task = stored_task(file);
    const std::string description =
        cat("image: f32 [n ", task.channels, " ", task.height, " ", task.width, "], bytes / 255",
            task.channels == 3 ? ", in the order R G B" : "", "; the file normalises them. scores: f32 [n ",
            task.classes, "], before softmax; the metadata has the names of the classes.");
    save_onnx(arguments[1], *network, {task.height, task.width, task.channels},
              {.outputs = output_names(file),
               .normalise = stored_normalise(file, {}),
               .description = description,
               .metadata = description_of(file)});
    return 0;
}

} // namespace

int main(int argc, char** argv) { return rg::run_main(argc, argv, run); }
