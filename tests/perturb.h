// Changes the results of ops by about one rounding, as another CPU or another order of summation would. A test that
// passes only without this compares ill-conditioned values, or has a tolerance that is too tight.
//
// Environment variables, read once:
//   RG_PERTURB=SEED         turns perturbation on
//   RG_PERTURB_TIMES=K      perturbs K times as much, to show the margin of the tolerances; the default is 1
//
// With K = 1, every f32 result is multiplied by 1 + u with |u| <= 2^-22, and one in 64 bf16 results changes its last
// bit. A larger K multiplies the bound of u, and the root mean square of the bf16 changes. Like rounding, the change
// depends only on the seed and the value. So equal values stay equal, and the same computation gives the same bits.
#pragma once

#include "core/op.h"

namespace rg {

/// Perturbs the results of every op that run() and plans execute from now on, if RG_PERTURB is set.
void install_perturbation();

/// Perturbs the f32 and bf16 results of one call, which are in host memory. A no-op if RG_PERTURB is not set, for ops
/// that only copy or select values, and for updates that were skipped.
void perturb(Op op, const Call& call);

} // namespace rg
