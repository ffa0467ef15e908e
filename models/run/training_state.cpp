// See training_state.h.
#include "ringgrad/models/run/training_state.h"

#include "ringgrad/models/nets/state_dict.h"
#include "ringgrad/models/run/run_folder.h"

#include <filesystem>
#include <map>
#include <set>

namespace rg {

TensorFile training_state(const std::string& program, const Parameters& parameters, const OptimizerState& optimizer,
                          const Position& position, const Options& options) {
    TensorFile file{state_dict(parameters), {}, {}};
    for (const auto& [name, value] : optimizer) {
        file.tensors.push_back({name, Tensor::on_host(value.shape(), value.dtype())});
        file.tensors.back().value.copy_from(value);
    }
    Json values = Json::object();
    for (const auto& [name, value] : options.values())
        if (name != "new-data") values.set(name, value); // each resume must ask for it
    Json epoch_sums = Json::array().push(position.loss_sum);
    for (const double sum : position.sums) epoch_sums.push(sum);
    epoch_sums.push(position.samples);
    file.metadata = {{"program", program},
                     {"options", values.dump()},
                     {"epoch", cat(position.epoch)},
                     {"batch", cat(position.batch)},
                     {"steps_done", cat(position.step)},
                     {"epoch_sums", epoch_sums.dump()},
                     {"best", Json(Json::Array{position.best, position.best_epoch}).dump()}};
    return file;
}

Position restore_training(const std::string& program, TensorFile file, Parameters& parameters,
                          const OptimizerState& optimizer, const Task& task) {
    RG_CHECK(file.text("program") == program, file.source, ": expected a checkpoint of ", program, ", got one of ",
             file.text("program"));
    OptimizerState saved;
    for (const auto& [name, value] : optimizer)
        saved.push_back({name, file.tensor(name, value.dtype(), value.shape())});
    std::erase_if(file.tensors, [](const NamedTensor& t) { return t.name.starts_with("optimizer."); });
    const Json sums = Json::parse(file.text("epoch_sums"), file.source);
    const size_t count = size_t(task.sums()) + 2; // loss, metrics, samples
    RG_CHECK(sums.is_array() && sums.as_array().size() == count, file.source, ": epoch_sums: expected ", count,
             " numbers, got others");
    const Json best = Json::parse(file.text("best"), file.source);
    RG_CHECK(best.is_array() && best.as_array().size() == 2, file.source, ": best: expected 2 numbers, got others");
    Position position{file.number("epoch"), file.number("batch"), file.number("steps_done"),
                      sums.as_array().front().as_double(), sums.as_array().back().as_double()};
    for (size_t i = 1; i + 1 < count; ++i) position.sums.push_back(sums.as_array()[i].as_double());
    position.best = best.as_array()[0].as_double(), position.best_epoch = best.as_array()[1].as_int();
    RG_CHECK(position.epoch >= 1 && position.batch >= 0 && position.step >= 0, file.source,
             ": expected epoch >= 1, batch >= 0 and steps_done >= 0, got ", position.epoch, ", ", position.batch,
             " and ", position.step);
    load_state_dict(parameters, file);
    for (size_t i = 0; i < saved.size(); ++i) optimizer[i].value.copy_from(saved[i].value);
    return position;
}

void restore_options(const TensorFile& file, Options& options) {
    std::set<std::string> of_network;
    if (const std::string* text = file.find_text("network")) { // its name, and its options
        const Json network = Json::parse(*text, file.source + ": network");
        for (const auto& [name, value] : network.as_object())
            if (name != "name") of_network.insert(name);
    }
    const Json saved = Json::parse(file.text("options"), file.source);
    const auto run = std::filesystem::path(file.source).parent_path().parent_path(); // file.source: RUN/checkpoint/FILE
    const std::map<std::string, std::string> replaced_by{{"drops", "drop-every"}, {"drop-every", "drops"}};
    for (const auto& [name, value] : options.values()) {
        const Json* saved_value = saved.find(name);
        const auto other = replaced_by.find(name);
        if (!saved_value || (other != replaced_by.end() && options.was_given(other->second))) continue;
        const std::string& old = saved_value->as_string();
        if (!options.was_given(name)) {
            check_stored_command(run.string(), old, cat("give --", name, " again"));
            options.set(name, name == "on-nan" && old == "rollback" ? "skip" : old); // older runs may have rollback
        } else {
            RG_CHECK(value == old || !(options.is_fixed(name) || of_network.contains(name)), "--resume: expected --",
                     name, " ", old.empty() ? "none" : old, ", as in ", file.source, ", got ", value,
                     "; omit the option, or start a new run with --init");
        }
    }
}

} // namespace rg
