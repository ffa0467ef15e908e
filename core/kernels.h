// Declares every op's kernels, from the list of ops: ref:: in reference.cpp, cpu:: in cpu/. And what both sides ask.
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
/// Whether first_non_finite() has found something; it need not have been asked.
inline bool found(const Tensor& place) { return place.defined() && *place.data<int32_t>() >= 0; }
} // namespace rg
