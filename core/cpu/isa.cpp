// Chooses the instruction set once: the best that the CPU, the operating system and the build support, or the one that
// RG_ISA names.
#include "ringgrad/core/cpu/isa.h"

#include "ringgrad/core/base.h"

#include <cstdlib>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rg::cpu {

#define RG_ISA_TABLES(isa)                                                                                             \
    namespace isa {                                                                                                    \
    extern const ConvKernels kConv;                                                                                    \
    extern const WinogradKernels kWinograd;                                                                            \
    extern const ElementKernels kElements;                                                                             \
    extern const DenseKernels kDense;                                                                                  \
    extern const LaneKernels kLanes;                                                                                   \
    extern const NormKernels kNorm;                                                                                    \
    }
RG_ISA_TABLES(portable)
#if defined(__x86_64__)
RG_ISA_TABLES(avx2)
RG_ISA_TABLES(avx512)
RG_ISA_TABLES(amx)
namespace amx {
extern const TileKernels kTiles;
}
#endif
#undef RG_ISA_TABLES

namespace {

#if defined(__x86_64__)

bool has_tiles() {
    unsigned a, b, c, d, a1, b1, c1, d1;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1)) return false;
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAvx512Bf16 = 1u << 5;
    return (d & kAmxBf16) && (d & kAmxTile) && (a1 & kAvx512Bf16);
}

/// Asks the operating system for the tile registers, and returns true if it grants them. The registers are large, so
/// Linux (since 5.16) enables them only for a process that asks.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    static const bool kGranted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return kGranted;
#else
    return false;
#endif
}

#endif

std::vector<IsaKernels> supported_isas() {
#define RG_KERNELS_OF(isa)                                                                                             \
    &isa::kConv, &isa::kWinograd, &isa::kElements, &isa::kDense, &isa::kLanes, &isa::kNorm
    std::vector<IsaKernels> supported{{"portable", 4, RG_KERNELS_OF(portable)}};
#if defined(__x86_64__)
    // The built-in checks CPUID, and XCR0 for the operating system's support of the registers.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        supported.push_back({"avx2", 8, RG_KERNELS_OF(avx2)});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        supported.push_back({"avx512", 16, RG_KERNELS_OF(avx512)});
    if (supported.size() == 3 && has_tiles() && may_use_tiles())
        supported.push_back({"amx", 16, RG_KERNELS_OF(amx), &amx::kTiles});
#endif
#undef RG_KERNELS_OF
    return supported;
}

IsaKernels choose() {
    const std::vector<IsaKernels> supported = supported_isas();
    const char* wanted = std::getenv("RG_ISA");
    if (!wanted || !*wanted) return supported.back();
    std::string names;
    for (const IsaKernels& isa : supported) {
        if (std::string_view(wanted) == isa.name) return isa;
        names += cat(names.empty() ? "" : ", ", isa.name);
    }
    fail("RG_ISA: expected an instruction set of this CPU (", names, "), got ", wanted);
}

} // namespace

bool supports(const char* name) {
    for (const IsaKernels& isa : supported_isas())
        if (std::string_view(name) == isa.name) return true;
    return false;
}

const char* isa_note() {
#if defined(__x86_64__)
    if (has_tiles() && !may_use_tiles()) return "the operating system refuses the AMX tiles of this CPU";
#endif
    return "";
}

const IsaKernels& isa() {
    static const IsaKernels kChosen = choose();
    return kChosen;
}

} // namespace rg::cpu
