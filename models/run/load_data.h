// The data set of a --data option, in the memory of every rank.
//
// What lies in files each rank reads for itself. What comes over a network is fetched once: shard i by rank i mod n,
// all ranks at the same time, and then handed on; so n machines bring n times the bandwidth, and every rank ends with
// the same images in the same order. A shard is unpacked as soon as it is there: beside the images each rank holds at
// most n shards.
#pragma once

#include "core/options.h"
#include "data/dataset.h"
#include "par/group.h"

#include <functional>

namespace rg {

/// The options of every training program that say where its images come from.
struct DataOptions {
    std::string path, cache;
    int64_t retries = 4, unpacked_mib = 1024;
    bool skip_other_images = false;
    double validation = 0;
    /// `folder`: what one may hold; `shards`: what s3: and pipe: may bring; `none`: what there is without a path.
    void declare(Options& options, const std::string& folder, const std::string& shards, const std::string& none);
    data::LoadOptions load_options(int64_t seed) const {
        return {.seed = uint64_t(seed),
                .skip_other_images = skip_other_images,
                .fetch = {.cache = cache, .retries = retries, .unpacked_mib = unpacked_mib}};
    }
    /// With --validation, replaces the test set by that fraction of each class of the training images, chosen by seed.
    /// The test set itself is for the network that is chosen in the end. Error: no class has 2 images.
    void hold_out_validation(data::TrainTest& sets, int64_t seed) const;
    /// The name of the set that the network is tested on.
    std::string tested() const { return validation > 0 ? "validation" : "test"; }
};

/// data::load() on all ranks of a group. Collective. A failure of one rank is an Error on all; a request to stop one
/// rank is Stopped on all. `pulse`: called while it takes, as in while_meeting().
data::TrainTest load_data(par::Group& group, const std::string& path, const data::LoadOptions& options = {},
                          const std::function<void()>& pulse = {});

} // namespace rg
