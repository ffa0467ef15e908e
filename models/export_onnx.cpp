// export_onnx MODEL OUT: writes a trained network as an ONNX file, which other programs run; see run/onnx.h.
#include "ringgrad/core/options.h"
#include "ringgrad/models/run/model_file.h"
#include "ringgrad/models/run/onnx.h"
#include "ringgrad/models/run/run_folder.h"

#include <cstdio>

namespace {

using namespace rg;

int run(int argc, const char* const* argv) {
    std::vector<std::string> arguments;
    Options options("export_onnx", "writes a trained network as an ONNX file");
    const std::string run = default_runs_folder() + "/NAME";
    options.examples({run + " net.onnx", run + "/model-best.safetensors best.onnx"});
    options.positional("MODEL OUT", &arguments,
                       "MODEL: the folder of a run (its model.safetensors), or one of its models or checkpoints. OUT: "
                       "the file to write, such as net.onnx",
                       2, 2);
    if (!options.parse(argc, argv)) {
        std::fputs(options.answer().c_str(), stdout);
        return 0;
    }
    const std::string& out = arguments[1];
    RG_CHECK(out.ends_with(".onnx"), "export_onnx: expected a name that ends with .onnx for OUT, got ", out,
             "; choose such a name");
    save_onnx(out, load_model(arguments[0]));
    return 0;
}

} // namespace

int main(int argc, char** argv) { return rg::run_main(argc, argv, run); }
