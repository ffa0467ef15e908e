// Computes the learning rate during training: constant, piecewise, cosine or triangular.
//
// The rate depends only on the progress in epochs: step s of S in epoch e (from 0) has progress e + s / S. So the rate
// does not depend on the mini-batch size or the number of ranks. There is no state: a resumed run gets the same rates.
//
//   constant    base
//   piecewise   base * factor^k after k of the `drops` (in epochs); drops {45} lowers the rate from the 46th epoch on
//   cosine      from base at 0 down to floor at the end, along half a cosine (Loshchilov and Hutter, "SGDR", 2017,
//               without restarts)
//   triangular  linearly from floor at 0 up to base at `peak` (a fraction of the training), then linearly down to
//               floor at the end
#pragma once

#include "core/base.h"

#include <vector>

namespace rg {

enum class ScheduleKind { constant, piecewise, cosine, triangular };

struct Schedule {
    ScheduleKind kind = ScheduleKind::constant;
    double base = 0.1;              // highest rate
    double epochs = 1;              // length of the training
    std::vector<double> drops = {}; // piecewise
    double factor = 0.1;            // piecewise
    double floor = 0;               // cosine, triangular
    double peak = 0.3;              // triangular

    /// Throws Error unless base >= floor >= 0, epochs > 0, factor > 0, 0 < peak < 1, and drops rise from at least 0.
    void check() const;
    /// Returns the rate at `progress` >= 0 epochs. After the last epoch it stays constant.
    double rate_at(double progress) const;
};

/// Returns the kinds with their names, for Options::add().
std::vector<std::pair<std::string, ScheduleKind>> schedule_kinds();

/// Returns {30, 45} for "30,45", and an empty list for an empty text. Throws Error for any other text.
std::vector<double> parse_drops(const std::string& text);

} // namespace rg
