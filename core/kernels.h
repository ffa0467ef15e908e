// Declares every op's kernels, from the list of ops: ref:: in reference.cpp, cpu:: in cpu/.
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
