// Chooses the instruction set once per process: the one that the environment variable RG_ISA names, else the best that
// the CPU, the operating system and the build support.
#pragma once

#include "core/cpu/kernels.h"

namespace rg::cpu {

/// Returns the table of the instruction set of that name, or null if this CPU, operating system or build lacks it.
const IsaKernels* find_isa(const char* name);

/// Adds an instruction set that has `tiles` and, for all else, the kernels of the least supported set. Call it before
/// isa(), which chooses it only if RG_ISA names it. Tests add tiles whose instructions are emulated.
void add_isa(const char* name, const TileKernels& tiles);

/// Returns the table of the instruction set that the environment variable RG_ISA names (portable, avx2, avx512,
/// avx512bf16, amx, or one of add_isa()). If RG_ISA is empty or not set, returns the table of the best supported set.
/// Throws Error if RG_ISA names an unknown or unsupported instruction set, or if no set of the build is supported.
const IsaKernels& isa();

/// Returns a note for the user if the operating system refuses the AMX tiles of this CPU, else an empty string.
const char* isa_note();

} // namespace rg::cpu
