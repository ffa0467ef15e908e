// The training programs as objects, so that `experiment` and `sweep_cifar` can run many trainings of them.
#pragma once

#include "ringgrad/models/run/program.h"

namespace rg {

extern const Program train_cifar, train_digits, train_digits_angles;

} // namespace rg
