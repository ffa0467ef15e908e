// export_onnx MODEL OUT: writes a trained network as an ONNX file, which other programs run; see run/commands.h.
#include "ringgrad/core/options.h"
#include "ringgrad/models/run/commands.h"

int main(int argc, char** argv) {
    return rg::run_main(argc, argv, [](int n, const char* const* args) {
        return rg::export_command("export_onnx", {args + 1, args + n});
    });
}
