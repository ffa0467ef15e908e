// Defines the op table: the list of all ops, for code that does something for each of them.
#pragma once

#include "ringgrad/core/ops.h"

namespace rg {

#define RG_OPS(X)                                                                                                      \
    RG_CONV_OPS(X) RG_NORM_OPS(X) RG_POOL_OPS(X) RG_ELEMENT_OPS(X) RG_LOSS_OPS(X) RG_OPTIMIZER_OPS(X) RG_AUGMENT_OPS(X)

inline constexpr Op kOps[] = {
#define RG_OP(name) op::name,
    RG_OPS(RG_OP)
#undef RG_OP
};

/// Returns the index of an op in kOps.
inline size_t index_of(Op op) {
    for (size_t i = 0; i < std::size(kOps); ++i)
        if (kOps[i] == op) return i;
    fail("op_table: expected an op of the list RG_OPS, got ", op->name);
}

} // namespace rg
