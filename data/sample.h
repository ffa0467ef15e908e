// The images that every program carries: 100 training and 20 test images per class of CIFAR-10 (data/sample).
//
// They make the first run need no file and no network; they are far too few for an accuracy worth quoting.
#pragma once

#include "data/dataset.h"

namespace rg::data {

/// The embedded sample: 1000 training and 200 test images.
TrainTest sample();

} // namespace rg::data
