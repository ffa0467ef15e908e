// See training_state.h. Tensors: those of state_dict() and the optimizer's flat buffers.
#include "models/run/training_state.h"

#include "models/nets/state_dict.h"
#include "models/run/run_folder.h"

#include <algorithm>
#include <filesystem>

namespace rg {

TensorFile training_state(const std::string& program, const Parameters& parameters, const OptimizerState& optimizer,
                          const Position& at, const Options& options) {
    TensorFile file{state_dict(parameters), {}, {}};
    for (const auto& [name, value] : optimizer) file.tensors.push_back({name, value.to_host()});
    Json values = Json::object();
    for (const auto& [name, value] : options.values()) values.set(name, value);
    file.metadata = {
        {"program", program},         {"options", values.dump()},
        {"epoch", cat(at.epoch)},     {"batch", cat(at.batch)},
        {"steps_done", cat(at.step)}, {"epoch_sums", Json(Json::Array{at.loss_sum, at.correct, at.images}).dump()}};
    return file;
}

Position restore_training(const std::string& program, TensorFile file, Parameters& parameters,
                          const OptimizerState& optimizer) {
    RG_CHECK(file.text("program") == program, file.source, ": a checkpoint of ", file.text("program"), ", not of ",
             program);
    OptimizerState saved;
    for (const auto& [name, value] : optimizer)
        saved.push_back({name, file.tensor(name, value.dtype(), value.shape())});
    std::erase_if(file.tensors, [](const NamedTensor& t) { return t.name.starts_with("optimizer."); });
    const Json sums = Json::parse(file.text("epoch_sums"), file.source);
    RG_CHECK(sums.is_array() && sums.as_array().size() == 3, file.source, ": epoch_sums: expected 3 numbers");
    const Position at{file.number("epoch"),           file.number("batch"),           file.number("steps_done"),
                      sums.as_array()[0].as_double(), sums.as_array()[1].as_double(), sums.as_array()[2].as_double()};
    RG_CHECK(at.epoch >= 1 && at.batch >= 0 && at.step >= 0, file.source, ": position ", at.epoch, "/", at.batch, "/",
             at.step, " is not possible");
    load_state_dict(parameters, file);
    for (size_t i = 0; i < saved.size(); ++i) optimizer[i].value.copy_from(saved[i].value);
    return at;
}

void restore_options(const TensorFile& file, Options& options, std::initializer_list<std::string_view> fixed) {
    const Json saved = Json::parse(file.text("options"), file.source);
    const auto run = std::filesystem::path(file.source).parent_path().parent_path(); // of RUN/checkpoint/FILE
    for (const auto& [name, now] : options.values()) {
        const Json* before = saved.find(name);
        if (!before) continue;
        if (!options.was_given(name)) {
            check_stored_command(run.string(), before->as_string(), cat("give --", name, " again"));
            options.set(name, before->as_string());
        } else {
            RG_CHECK(now == before->as_string() || std::find(fixed.begin(), fixed.end(), name) == fixed.end(),
                     "--resume: --", name, " was ", before->as_string().empty() ? "none" : before->as_string(),
                     " in the run of ", file.source, ", got ", now, "; leave it out, or begin a new run with --init");
        }
    }
}

} // namespace rg
