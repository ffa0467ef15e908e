// Loads the data set of a --data option into the memory of every rank.
//
// Each rank reads local files by itself. Remote data are fetched once: all n ranks fetch at the same time, and the rank
// i mod n fetches shard i and broadcasts it. So n machines have n times the bandwidth of one, and all ranks get the
// same images in the same order. Shards are unpacked as they arrive, so a rank holds at most n shards besides the
// images.
#pragma once

#include "ringgrad/core/options.h"
#include "ringgrad/data/loader.h"
#include "ringgrad/par/group.h"

#include <functional>

namespace rg {

/// The options that choose the images and the mini-batches of a training. Every training program has them.
struct DataOptions {
    std::string path, test_path, size, cache;
    data::Shuffle shuffle = data::Shuffle::epoch;
    int64_t retries = 4, unpacked_mib = 1024, batch_size = 128, seed = 0;
    bool skip_other_images = false;
    double validation = 0;
    /// The texts are for --help. `folder` and `shards` say what a folder and what shards from s3: and pipe: may
    /// contain; `none` says which data are used without --data.
    void declare(Options& options, const std::string& folder, const std::string& shards, const std::string& none);
    /// Throws Error if --size is wrong.
    data::LoadOptions load_options() const;
    /// With --validation, moves that fraction of each class of the training images, chosen by --seed, into sets.test.
    /// The real test set is dropped: it is reserved for the network that is chosen in the end. Throws Error if no class
    /// has 2 images.
    void hold_out_validation(data::TrainTest& sets) const;
    /// Returns the name of the set that the network is tested on after each epoch.
    std::string test_set_name() const { return validation > 0 ? "validation" : "test"; }
};

/// Collective. Runs data::load() on all ranks, with the threads of the context. If one rank fails, throws Error on all;
/// if one rank gets a stop request, throws Stopped on all. `pulse`: see run_while_polling().
data::TrainTest load_data(par::Group& group, const std::string& path, const data::LoadOptions& options = {},
                          const std::function<void()>& pulse = {});

/// Collective. Does the same for --data and --test-data. With --test-data nothing is held out from --data, and the test
/// set of --data is not used. Throws Error if the classes or the sizes of the two differ. `built_in` returns the data
/// that are used without --data; if it is null, these are the embedded sample.
using BuiltInData = std::function<data::TrainTest(const data::LoadOptions&)>;
data::TrainTest load_data(par::Group& group, const DataOptions& options, data::LoadOptions load_options,
                          const std::function<void()>& pulse = {}, const BuiltInData& built_in = {});

/// Collective. Returns the grey digits of --data, or 10,000 drawn ones. Data without a test set get one: a tenth of
/// each class, chosen by --seed. With --validation, a fraction of the training images takes the place of the test set.
/// Throws Error if the images are not 28 x 28, and what load_data() throws.
data::TrainTest load_digits(par::Group& group, const DataOptions& options, const std::function<void()>& pulse = {});

/// Throws Error unless the images have this shape, [height width channels].
void expect_images(const data::TrainTest& sets, const Shape& image);

} // namespace rg
