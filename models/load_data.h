// The data set of a --data option, in the memory of every rank.
//
// What lies in files each rank reads for itself. What comes over a network is fetched once: shard i by rank i mod n,
// all ranks at the same time, and then handed on; so n machines bring n times the bandwidth, and every rank ends with
// the same images in the same order. A shard is unpacked as soon as it is there: beside the images each rank holds at
// most n shards.
#pragma once

#include "data/dataset.h"
#include "par/group.h"

#include <functional>

namespace rg {

/// data::load() on all ranks of a group. Collective. A failure of one rank is an Error on all. `pulse`: called while it
/// takes, as in while_meeting().
data::TrainTest load_data(par::Group& group, const std::string& path, const data::LoadOptions& options = {},
                          const std::function<void()>& pulse = {});

} // namespace rg
