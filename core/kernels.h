// Declares one kernel per op and backend, from the list of ops: ref:: is in reference.cpp, cpu:: in cpu/.
#pragma once

#include "core/op_table.h"

#define RG_DECLARE(name) void name(const Call&);
namespace rg::ref {
RG_OPS(RG_DECLARE)
}
namespace rg::cpu {
RG_OPS(RG_DECLARE)
}
#undef RG_DECLARE

namespace rg {
/// Returns true if `position`, the result of the op first_non_finite, is an index. Returns false if the tensor is
/// undefined, because the check did not run.
inline bool found_non_finite(const Tensor& position) { return position.defined() && *position.data<int32_t>() >= 0; }
} // namespace rg
