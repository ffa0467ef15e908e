// See saver.h.
#include "models/run/saver.h"

#include "core/atomic_file.h"
#include "core/checksum.h"
#include "core/text.h"
#include "models/nets/state_dict.h"
#include "models/run/collective.h"
#include "models/run/nan_guard.h"
#include "par/verify.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

namespace rg {

Saver::Saver(RunLog& log) : log_(log) {
    const RunOptions& settings = log.settings;
    const std::string& program = log.options.program();
    RG_CHECK(settings.init_skip.empty() || !settings.init.empty() || settings.resume, program,
             ": expected --init with --init-skip, got none; omit --init-skip");
    if (!settings.resume) return;
    RG_CHECK(!log.options.was_given("init"), program,
             ": expected --init (starts a new run) or --resume (continues a run), got both; omit one");
    // Rank 0 has locked the run, if the file system has locks. So no other training changes the checkpoints while the
    // ranks read them.
    const std::string own = log.folder() ? log.folder()->checkpoint_path() : "";
    checkpoint_ = load_latest_checkpoint(log.group.allgather(own, "run to resume")[0]);
    restore_options(checkpoint_->state, log.options);
    verify_same_options(log.group, log.options); // each rank has read a checkpoint of its own
    for (const std::string& warning : checkpoint_->warnings) log.warn(warning);
}

const TensorFile* Saver::initial_file() {
    if (checkpoint_) return &checkpoint_->state;
    const std::string& init = log_.settings.init;
    if (!init_ && !init.empty()) init_ = for_option("--init", [&] { return load_model(init); });
    return init_ ? &*init_ : nullptr;
}

void Saver::restore(Parameters& parameters, const OptimizerState& optimizer) {
    parameters_ = &parameters, optimizer_ = optimizer;
    if (checkpoint_) {
        log_.position = restore_training(log_.options.program(), checkpoint_->state, parameters, optimizer);
        log_.note(printable(cat("resumed from ", checkpoint_->path, " at step ", log_.position.step)));
    } else if (const TensorFile* const file = initial_file()) {
        for_option("--init",
                   [&] { load_state_dict(parameters, *file, list_of("--init-skip", log_.settings.init_skip)); });
    }
    init_.reset();
    verify_state("every rank needs the same files for --init and --resume");
    const std::vector<std::string> devices =
        log_.group.allgather(parameters.values().device() ? "gpu" : "cpu", "devices");
    if (std::ranges::count(devices, "cpu") > 0)
        if (const auto gpu = std::ranges::find(devices, "gpu"); gpu != devices.end())
            first_gpu_rank_ = int(gpu - devices.begin());
}

void Saver::save_checkpoint() {
    check();
    wait_for_room();
    RunFolder* const folder = log_.folder();
    if (!folder) return;
    const RunPosition& position = log_.position;
    TensorFile state = training_state(log_.options.program(), *parameters_, optimizer_, position, log_.options);
    state.metadata.insert(state.metadata.end(), metadata.begin(), metadata.end());
    checkpoint_written_ =
        log_.writer.add([folder, step = position.step, keep = int(log_.settings.keep), state = std::move(state)] {
            folder->sync();
            rg::save_checkpoint(folder->checkpoint_path(), step, state, keep);
        });
}

void Saver::save_if_best(double value, bool higher_is_better) {
    if (!std::isfinite(value)) return; // JSON has no such number, so no checkpoint could hold it
    RunPosition& p = log_.position;
    if (p.best_epoch > 0 && !(higher_is_better ? value > p.best : value < p.best)) return;
    p.best = value, p.best_epoch = p.epoch;
    check();
    write_model(&RunFolder::best_model_path);
}

TensorFile Saver::best_model() {
    log_.writer.finish();
    const RunFolder* const folder = log_.folder();
    const std::string own = folder ? read_file(folder->best_model_path()) : "";
    return decode_tensors(log_.group.allgather(own, "best model").front(), "best model");
}

/// Throws par::RanksDiffer unless all ranks have the same position, parameters, statistics of batch norm and state of
/// the optimizer. `hint` says how to correct this.
void Saver::verify_state(const std::string& hint) const {
    if (log_.group.size() == 1) return;
    const RunPosition& p = log_.position;
    std::vector<std::string> parts{
        cat("step ", p.step, " (batch ", p.batch, " of epoch ", p.epoch, ", best ", p.best, ")")};
    const auto add = [&](const std::string& name, const Tensor& value) {
        const Tensor host = value.to_host();
        const std::string_view bytes(reinterpret_cast<const char*>(host.bytes_data()), size_t(host.bytes()));
        parts.push_back(cat(name, " with checksum ", checksum(bytes)));
    };
    add("parameters", parameters_->values());
    add("running statistics", parameters_->state());
    for (const auto& [name, value] : optimizer_) add(name, value);
    par::verify_same(log_.group, "state of the training", parts, hint);
}

/// Gives the ranks without a GPU, which are idle and update nothing, the state of a rank with one.
void Saver::copy_to_cpu_ranks() const {
    std::vector<Tensor> state{parameters_->values(), parameters_->state()};
    for (const auto& [name, value] : optimizer_) state.push_back(value);
    for (const Tensor& value : state) {
        const Tensor host = value.to_host();
        log_.group.broadcast({host.bytes_data(), size_t(host.bytes())}, first_gpu_rank_, "state of the training");
        host.note_write();
    }
}

/// Throws if a value is not finite, or if the ranks differ. A file with such values must not be saved: a run that
/// resumes from it would not notice.
void Saver::check() const {
    RG_CHECK(parameters_, "Saver: expected restore() before a file is saved, got none; call it once");
    if (first_gpu_rank_ >= 0) copy_to_cpu_ranks();
    verify_state("they have computed different values, so test the memory of both; saved files are unchanged");
    check_finite(*parameters_, optimizer_);
}

void Saver::write_model(std::string (RunFolder::*path)() const) {
    wait_for_room();
    if (!log_.folder()) return;
    // Writes copies of the values, since after an error the writer may outlive this.
    log_.writer.add([path = (log_.folder()->*path)(), tensors = state_dict(*parameters_), metadata = metadata] {
        save_tensors(path, tensors, metadata);
    });
}

/// Blocks until the last checkpoint and most other files are written, so that a slow disk does not fill the memory with
/// copies.
void Saver::wait_for_room() {
    run_while_polling(log_.group, "files", [this] {
        log_.writer.wait_for_room();
        if (checkpoint_written_.valid()) checkpoint_written_.wait();
    });
}

TensorFile training_state(const std::string& program, const Parameters& parameters, const OptimizerState& optimizer,
                          const RunPosition& position, const Options& options) {
    TensorFile file{state_dict(parameters), {}, {}};
    for (const auto& [name, value] : optimizer) {
        file.tensors.push_back({name, Tensor::empty_on_host(value.shape(), value.dtype())});
        file.tensors.back().value.copy_from(value);
    }
    Json values = Json::object();
    for (const auto& [name, value] : options.values())
        if (name != "new-data") values.set(name, value); // each resume must ask for it
    Json epoch_sums = Json::array();
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

RunPosition restore_training(const std::string& program, TensorFile file, Parameters& parameters,
                             const OptimizerState& optimizer) {
    RG_CHECK(file.text("program") == program, file.source, ": expected a checkpoint of ", program, ", got one of ",
             file.text("program"));
    OptimizerState saved;
    for (const auto& [name, value] : optimizer)
        saved.push_back({name, file.tensor(name, value.dtype(), value.shape())});
    std::erase_if(file.tensors, [](const NamedTensor& t) { return t.name.starts_with("optimizer."); });
    const Json sums = Json::parse(file.text("epoch_sums"), file.source);
    RG_CHECK(sums.is_array() && !sums.as_array().empty(), file.source, ": epoch_sums: expected numbers, got none");
    const Json best = Json::parse(file.text("best"), file.source);
    RG_CHECK(best.is_array() && best.as_array().size() == 2, file.source, ": best: expected 2 numbers, got others");
    RunPosition position{file.number("epoch"), file.number("batch"), file.number("steps_done"),
                         sums.as_array().back().as_double()};
    for (const Json& sum : std::span(sums.as_array()).first(sums.as_array().size() - 1)) // null: not finite
        position.sums.push_back(sum.is_null() ? std::nan("") : sum.as_double());
    position.best = best.as_array()[0].as_double(), position.best_epoch = best.as_array()[1].as_int();
    RG_CHECK(position.epoch >= 1 && position.batch >= 0 && position.step >= 0, file.source,
             ": expected epoch >= 1, batch >= 0 and steps_done >= 0, got ", position.epoch, ", ", position.batch,
             " and ", position.step);
    load_state_dict(parameters, file);
    for (size_t i = 0; i < saved.size(); ++i) optimizer[i].value.copy_from(saved[i].value);
    return position;
}

void restore_options(const TensorFile& file, Options& options) {
    const Json saved = Json::parse(file.text("options"), file.source);
    const auto run = std::filesystem::path(file.source).parent_path().parent_path(); // file.source: RUN/checkpoint/FILE
    const std::map<std::string, std::string> replaced_by{
        {"drops", "drop-every"}, {"drop-every", "drops"}, {"steps", "epochs"}};
    for (const auto& [name, value] : options.values()) {
        const Json* saved_value = saved.find(name);
        const auto other = replaced_by.find(name);
        if (!saved_value || (other != replaced_by.end() && options.was_given(other->second))) continue;
        const std::string& old = saved_value->as_string();
        if (!options.was_given(name) || (name == "augment" && value == "auto")) { // the training has replaced `auto`
            check_stored_command(run.string(), old, cat("give --", name, " again"));
            options.set(name, name == "on-nan" && old == "rollback" ? "skip" : old); // older runs may have rollback
        } else {
            RG_CHECK(value == old || !options.is_fixed(name), "--resume: expected --", name, " ",
                     old.empty() ? "none" : old, ", as in ", file.source, ", got ", value,
                     "; omit the option, or start a new run with --init");
        }
    }
}

} // namespace rg
