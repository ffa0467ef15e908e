// The training programs as objects; main.cpp runs one of them.
#pragma once

#include "models/run/training.h"

namespace rg {

extern const Program train_cifar, train_digits, train_digits_angles;

} // namespace rg
