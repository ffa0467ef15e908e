// Saves the models and checkpoints of a run, and restores them. A checkpoint holds all that a resumed run with the same
// number of ranks and the same instruction set needs to end with the same bits.
//
//     RunLog log(settings, options, group);
//     Saver saver(log);                                  // with --resume: loads the newest checkpoint and its options
//     ... make the network and the optimizer
//     saver.restore(parameters, optimizer.state());      // also log.position
//     ... log.begin(), and the training
//     saver.save();                                      // model.safetensors and a checkpoint
//
// All member functions but resumed() and initial_file() are collective: before a file is written, all ranks compare the
// values to be saved. Rank 0 writes on another thread, while the training goes on; if that fails, the next step throws.
#pragma once

#include "core/checkpoint.h"
#include "models/run/optimizer.h"
#include "models/run/run_log.h"

namespace rg {

class Saver {
public:
    /// With --resume, loads the run's newest valid checkpoint, and restores the options that the command line does not
    /// give. `log` must outlive this. Throws Error if the options do not fit the checkpoint, or each other.
    explicit Saver(RunLog& log);

    bool resumed() const { return checkpoint_.has_value(); }
    /// Returns the checkpoint that the run resumes from, else the file of --init, else null. restore() frees the file
    /// that --init names, so the pointer is then invalid.
    const TensorFile* initial_file();
    /// With --resume, sets the network, the optimizer's buffers and RunLog::position to those of the checkpoint.
    /// Otherwise, with --init, sets the network alone, except the layers of --init-skip. Each rank reads files of its
    /// own, so throws par::RanksDiffer if the ranks then differ. `parameters` must outlive this.
    void restore(Parameters& parameters, const OptimizerState& optimizer);

    /// Saves model.safetensors, and a checkpoint from which --resume goes on.
    void save() { save_model(), save_checkpoint(); }
    /// Each of these two saves one file. Before writing, it throws par::RanksDiffer if the ranks differ, and Error if a
    /// value is not finite.
    void save_model() { check(), write_model(&RunFolder::model_path); }
    void save_checkpoint();
    /// Saves the network as model-best.safetensors if `value`, the same on all ranks, is better than in every call
    /// before, also before a resume. Stores it in RunLog::position. Ignores a value that is not finite. Throws like
    /// save_model().
    void save_if_best(double value, bool higher_is_better);
    /// Blocks until the best model is written, and returns it on all ranks. Needs an earlier save_if_best().
    TensorFile best_model();

    /// Metadata that all models and checkpoints get, such as that of describe_model().
    Metadata metadata;

private:
    void verify_state(const std::string& hint) const;
    void copy_to_cpu_ranks() const;
    void check() const;
    void write_model(std::string (RunFolder::*path)() const);
    void wait_for_room();

    RunLog& log_;
    std::optional<LoadedCheckpoint> checkpoint_;
    std::optional<TensorFile> init_; // the file of --init
    Parameters* parameters_ = nullptr;
    OptimizerState optimizer_;
    int first_gpu_rank_ = -1; // lowest rank with a GPU, if other ranks have none; else -1
    std::shared_future<void> checkpoint_written_;
};

/// Returns the contents of a checkpoint: copies of the tensors of state_dict() and of the optimizer's flat buffers, and
/// as metadata the program, the options and the position.
TensorFile training_state(const std::string& program, const Parameters& parameters, const OptimizerState& optimizer,
                          const RunPosition& position, const Options& options);

/// Restores parameters and optimizer from a checkpoint, and returns its position. Throws Error if the file is from
/// another program or network, or is malformed.
RunPosition restore_training(const std::string& program, TensorFile file, Parameters& parameters,
                             const OptimizerState& optimizer);

/// Sets the options that the command line does not give to their values in the checkpoint. Throws Error if the command
/// line changes an option of the network, or one after which the checkpoint would not fit the images, their order,
/// the optimizer or the best model so far. Also throws Error if check_stored_command() refuses a stored value.
void restore_options(const TensorFile& file, Options& options);

} // namespace rg
