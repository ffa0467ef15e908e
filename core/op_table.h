// The list of all ops, for code that does something for each of them. RG_ROW defines their rows, in core/ops/*.cpp.
#pragma once

#include "core/ops.h"

namespace rg {

#define RG_OPS(X)                                                                                                      \
    RG_CONV_OPS(X) RG_NORM_OPS(X) RG_POOL_OPS(X) RG_ELEMENT_OPS(X) RG_LOSS_OPS(X) RG_OPTIMIZER_OPS(X) RG_AUGMENT_OPS(X)

inline constexpr Op kOps[] = {
#define RG_OP(name) op::name,
    RG_OPS(RG_OP)
#undef RG_OP
};

} // namespace rg
