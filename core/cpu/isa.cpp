// Lists the instruction sets that the CPU, the operating system and the build support, with their tables of kernels.
#include "core/cpu/isa.h"

#include "core/base.h"

#include <cstdlib>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rg::cpu {

#define RG_ISA_TABLES(isa)                                                                                             \
    namespace isa {                                                                                                    \
    extern const ConvKernels kConv;                                                                                    \
    extern const WinogradKernels kWinograd;                                                                            \
    extern const ElementKernels kElements;                                                                             \
    extern const DenseKernels kDense;                                                                                  \
    extern const DepthwiseKernels kDepthwise;                                                                          \
    extern const NormKernels kNorm;                                                                                    \
    }
RG_ISA_TABLES(portable)
RG_ISA_TABLES(avx2)
RG_ISA_TABLES(avx512)
namespace avx512bf16 { // only kernels that convert or multiply bf16; kernels_with_bf16() takes the others of avx512
extern const ElementKernels kElements;
extern const NormKernels kNorm;
extern const TileKernels kTiles;
} // namespace avx512bf16
namespace amx {
extern const TileKernels kTiles;
} // namespace amx
#undef RG_ISA_TABLES

#define RG_KERNELS_OF(isa)                                                                                             \
    .conv = &isa::kConv, .winograd = &isa::kWinograd, .elements = &isa::kElements, .dense = &isa::kDense,              \
    .depthwise = &isa::kDepthwise, .norm = &isa::kNorm

namespace {

#if defined(RG_WITH_AVX512BF16)
/// Returns a table with `tiles`, the element-wise and norm kernels of avx512bf16, and all other kernels of avx512.
IsaKernels kernels_with_bf16(const char* name, const TileKernels& tiles) {
    IsaKernels kernels{.name = name, .width = 16, RG_KERNELS_OF(avx512), .tiles = &tiles};
    kernels.elements = &avx512bf16::kElements, kernels.norm = &avx512bf16::kNorm;
    return kernels;
}
#endif

#if defined(__x86_64__)

/// Returns true if the CPU has all of these features. `bits` are bits of EDX of CPUID leaf 7, subleaf 0.
bool has_features(unsigned bits) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bits) == bits;
}
constexpr unsigned kAmx = 1u << 22 | 1u << 24; // AMX-BF16 and AMX-TILE

/// Asks the operating system for the tile registers, and returns true if it grants them. The registers are large, so
/// Linux (since 5.16) enables them only for a process that asks.
bool may_use_amx() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    static const bool kGranted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return kGranted;
}

#endif

/// Returns the tables of all supported instruction sets. The best is the last. The build defines RG_WITH_X for each set
/// X that it has.
std::vector<IsaKernels> detect_isas() {
    std::vector<IsaKernels> supported;
#if defined(RG_WITH_PORTABLE)
    supported.push_back({.name = "portable", .width = 4, RG_KERNELS_OF(portable)});
#endif
    // __builtin_cpu_supports() also checks that the operating system saves the registers (XCR0).
#if defined(RG_WITH_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        supported.push_back({.name = "avx2", .width = 8, RG_KERNELS_OF(avx2)});
#endif
#if defined(RG_WITH_AVX512)
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return supported;
    supported.push_back({.name = "avx512", .width = 16, RG_KERNELS_OF(avx512)});
#endif
#if defined(RG_WITH_AVX512BF16)
    if (!__builtin_cpu_supports("avx512bf16")) return supported;
    // On Intel CPUs with AVX512-FP16 (since Sapphire Rapids), dot products of bf16 have half the FLOP rate of
    // multiply-adds. So avx512 is better there if the operating system refuses AMX or a hypervisor hides it.
    constexpr unsigned kFp16 = 1u << 23;
    const bool slow_dots = __builtin_cpu_is("intel") && has_features(kFp16);
    supported.insert(slow_dots ? supported.end() - 1 : supported.end(),
                     kernels_with_bf16("avx512bf16", avx512bf16::kTiles));
#endif
#if defined(RG_WITH_AMX)
    if (has_features(kAmx) && may_use_amx()) supported.push_back(kernels_with_bf16("amx", amx::kTiles));
#endif
    return supported;
}

std::vector<IsaKernels>& supported_isas() {
    static std::vector<IsaKernels> supported = detect_isas();
    return supported;
}

const IsaKernels& choose_isa() {
    const char* const wanted = std::getenv("RG_ISA");
    RG_CHECK(!supported_isas().empty(), "CPU: expected the instruction sets of this build (" RG_ISAS
                                        "), got a CPU without them; build with -Disa=all");
    if (!wanted || !*wanted) return supported_isas().back();
    if (const IsaKernels* found = find_isa(wanted)) return *found;
    std::string names;
    for (const IsaKernels& isa : supported_isas()) names += cat(names.empty() ? "" : ", ", isa.name);
    fail("RG_ISA: expected an instruction set of this CPU (", names, "), got ", wanted,
         "; this build has " RG_ISAS ", and one with -Disa=all has all");
}

} // namespace

const IsaKernels* find_isa(const char* name) {
    for (const IsaKernels& isa : supported_isas())
        if (std::string_view(name) == isa.name) return &isa;
    return nullptr;
}

void add_isa(const char* name, const TileKernels& tiles) {
    IsaKernels added = supported_isas().front();
    added.name = name, added.tiles = &tiles;
    supported_isas().insert(supported_isas().begin(), added);
}

const char* isa_note() {
#if defined(__x86_64__)
    if (has_features(kAmx) && !may_use_amx()) return "the operating system refuses the AMX tiles of this CPU";
#endif
    return "";
}

const IsaKernels& isa() {
    static const IsaKernels kChosen = choose_isa();
    return kChosen;
}

} // namespace rg::cpu
