// The images that every program contains: 100 training and 20 test images per class of CIFAR-10 (data/sample).
//
// They let the first run work without files and network. They are far too few for a meaningful accuracy.
#pragma once

#include "ringgrad/data/dataset.h"

namespace rg::data {

/// Returns the embedded sample: 1000 training and 200 test images.
TrainTest sample();

} // namespace rg::data
