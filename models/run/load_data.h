// Loads the data set of a --data option on every rank. One rank per node copies remote data (s3: and pipe:) into a
// folder of the node. It makes a packed set (data/packed.h) of that folder, or of a local one, which all ranks of the
// node map.
#pragma once

#include "core/options.h"
#include "core/safetensors.h"
#include "data/loader.h"
#include "par/group.h"

#include <functional>
#include <set>

namespace rg {

/// The further values (columns) of the images of each set.
using Columns = std::map<const data::ImageSet*, std::vector<data::Column>>;

/// The options that choose the images and the mini-batches of a training. Every training program has them.
struct DataOptions {
    std::string path, test_path, size, store_size;
    data::LoadOptions reading{.cache = ""};   // load_options() returns a copy with size, seed and test_rule set
    data::HoldOut test_rule, validation_rule; // of an earlier run, see follow(); no limits: new rules by --seed
    std::set<std::string> known_names = {};   // checksums of the names of some images of that run; empty: unknown
    data::Shuffle shuffle = data::Shuffle::epoch;
    int64_t batch_size = 128, seed = 0;
    double validation = 0;
    /// The texts are for --help. `folder` says what a folder may contain, and `none` names the data that are used
    /// without --data.
    void declare(Options& options, const std::string& folder, const std::string& none);
    /// Returns the options for data::load(). Throws Error if --size or --store-size is malformed, or if --store-size is
    /// smaller than --size or given without it.
    data::LoadOptions load_options() const;
    /// With --validation, moves that fraction of each class of the training images, chosen by validation_rule, into
    /// sets.test. The real test set becomes sets.reserved, on which the best network is tested in the end. Throws Error
    /// if no class has 2 images. Without --validation, does nothing.
    void hold_out_validation(data::TrainTest& sets) const;
    /// Describes the loaded sets for the files of a model: where they come from, checksums of up to 16 names of the
    /// training images (for has_other_names()), the number of files left out, the rules that hold out images, and the
    /// fingerprints of those sets that `columns` has. Says of a command (pipe:) only that it is one, since people
    /// pass models on.
    Json describe(const data::TrainTest& sets, const Columns& columns) const;
    /// Takes the rules that hold out images from the file of a model, if it has the result of describe(). So this run
    /// tests no image that the model was trained on.
    void follow(const TensorFile& file);
    /// Returns true if no image has one of the `known_names`, as when another folder is given. Then the rules may hold
    /// out other images than in that run.
    bool has_other_names(const data::TrainTest& sets) const;
    /// Returns the name of the set that the network is tested on after each epoch.
    std::string test_set_name() const { return validation > 0 ? "validation" : "test"; }
};

/// Returns the description of the data in the file of a model, or null if it has none. See DataOptions::describe().
Json stored_data(const TensorFile& file);

/// Collective. Loads the data at a path on all ranks, with the threads of the context. If reading or copying fails on
/// one rank, throws Error on all. If one rank gets a stop request, throws Stopped on all. `poll_stop`: see
/// run_while_polling() in collective.h.
data::TrainTest load_data(par::Group& group, const std::string& path, const data::LoadOptions& options = {},
                          const std::function<void()>& poll_stop = {});

/// Returns the data for a program that is called without --data.
using BuiltInData = std::function<data::TrainTest(const data::LoadOptions&)>;
/// Collective. Loads the sets of --data and --test-data on all ranks. With --test-data, no test set is held out from
/// --data, and a test set that --data has is not used. With --store-size, the window of both sets has the size of
/// --size. Throws Error as with_test_set() does. Without --data, calls `built_in` for the data, or if it is null, takes
/// the embedded sample.
data::TrainTest load_data(par::Group& group, const DataOptions& options, data::LoadOptions load_options,
                          const std::function<void()>& poll_stop = {}, const BuiltInData& built_in = {});

/// Collective. Returns the digits of --data as grey images, or without --data 10,000 drawn ones. If there is no test
/// set, a tenth of each class becomes the test set, chosen by --seed. Throws Error if the inputs are not 28 x 28, and
/// if load_data() does.
data::TrainTest load_digits(par::Group& group, const DataOptions& options, const std::function<void()>& poll_stop = {});

} // namespace rg
