// The embedded sample: 100 training and 20 test images per class of CIFAR-10, as a part of each program that links it.
//
// With the sample, the first run needs no files and no network. It is far too small for a meaningful accuracy.
#pragma once

#include "data/dataset.h"

namespace rg::data {

/// Returns the embedded sample: 1000 training and 200 test images.
TrainTest sample();

} // namespace rg::data
