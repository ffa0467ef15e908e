// The learning rate over a training: constant, piecewise, cosine or triangular.
//
// A schedule is a value and a pure function of how far the training is, counted in epochs: epoch e (from 0), step s of
// S is at e + s / S. So it does not depend on mini-batch size or rank count, has no state, and a resumed training
// gets the same rates.
//
//   constant    base
//   piecewise   base * factor^k, where k of the `drops` (in epochs) are done: with drops {45}, epochs 46... are dropped
//   cosine      base at 0, down to floor at the end, by half a cosine (Loshchilov and Hutter, "SGDR", 2017, no
//   restarts) triangular  floor at 0, up to base at `peak` (a fraction of the training), down to floor at the end, both
//   straight
#pragma once

#include "core/base.h"

#include <vector>

namespace rg {

enum class ScheduleKind { constant, piecewise, cosine, triangular };

struct Schedule {
    ScheduleKind kind = ScheduleKind::constant;
    double base = 0.1;              // the highest rate
    double epochs = 1;              // the length of the training
    std::vector<double> drops = {}; // piecewise
    double factor = 0.1;            // piecewise
    double floor = 0;               // cosine, triangular
    double peak = 0.3;              // triangular

    /// Error: a value out of its range (base >= floor >= 0, epochs > 0, factor > 0, 0 < peak < 1, drops rising, >= 0).
    void check() const;
    /// The rate at `progress` >= 0 epochs; from `epochs` on it stays at what it is there.
    double at(double progress) const;
};

/// Names of the kinds, for an option.
std::vector<std::pair<std::string, ScheduleKind>> schedule_names();

/// "30,45" as {30, 45}; an empty text as none. Error: anything but numbers and commas.
std::vector<double> parse_drops(const std::string& text);

} // namespace rg
