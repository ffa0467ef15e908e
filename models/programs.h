// The training programs as objects; main.cpp runs one of them.
#pragma once

namespace rg {

struct Program;
extern const Program train_cifar, train_digits, train_digits_angles;

int run_training_main(int argc, char** argv, const Program& program); // see training_main.h

} // namespace rg
