// Computes the learning rate during training: constant, piecewise, cosine or triangular.
//
// The rate depends only on the progress in epochs: step s of the S steps in epoch e has progress e + s / S, where s and
// e count from 0. So the rate does not depend on the mini-batch size or the number of ranks. There is no state: a
// resumed run gets the same rates.
//
//   constant    base
//   piecewise   base * factor^k after k of the `drops` (in epochs); drops {45} lowers the rate from the 46th epoch on
//   cosine      from base at 0 down to floor at the end, along half a cosine (Loshchilov and Hutter, "SGDR", 2017,
//               without restarts)
//   triangular  linearly from start (by default, the floor) at 0 up to base at `peak` (a fraction of the training),
//               then linearly down to floor at the end
#pragma once

#include "core/base.h"

#include <vector>

namespace rg {

enum class ScheduleKind { constant, piecewise, cosine, triangular };

struct Schedule {
    ScheduleKind kind = ScheduleKind::constant;
    double base = 0.1;              // rate before drops or decay; triangular: the rate at the peak
    double epochs = 1;              // length of the training, in epochs
    std::vector<double> drops = {}; // used by piecewise
    double factor = 0.1;            // used by piecewise
    double floor = 0;               // used by cosine and triangular
    double peak = 0.3;              // used by triangular
    double start = -1;              // used by triangular; -1: the floor
    double warmup = 0;              // epochs at the start in which the rate is multiplied by progress / warmup

    /// Throws Error unless all of this is true, whatever the kind: base is finite, base >= floor >= 0, epochs > 0,
    /// factor > 0, 0 <= peak < 1, 0 <= warmup <= epochs, start is -1 or 0 <= start <= base, and the drops are at least
    /// 0 and strictly increase.
    void check() const;
    /// Returns the rate at `progress` >= 0 epochs. After the last epoch, cosine and triangular stay at `floor`. Throws
    /// Error like check().
    double rate_at(double progress) const;

private:
    double rate_without_warmup(double progress) const;
};

/// Returns the kinds with their names, for Options::add().
std::vector<std::pair<std::string, ScheduleKind>> schedule_kinds();

} // namespace rg
