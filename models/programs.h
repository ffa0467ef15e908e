// The training programs, for the programs that run trials of them.
#pragma once

#include "ringgrad/models/run/program.h"

namespace rg {

extern const Program train_cifar, train_digits, train_digits_angles;

} // namespace rg
