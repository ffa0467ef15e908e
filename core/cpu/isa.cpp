// Chooses the instruction set once: the best that processor, operating system and build have, or what RG_ISA asks for.
#include "core/cpu/isa.h"

#include "core/base.h"

#include <cstdlib>
#include <string_view>
#include <vector>

namespace rg::cpu {

#define RG_ISA_TABLES(isa)                                                                                             \
    namespace isa {                                                                                                    \
    extern const ConvKernels kConv;                                                                                    \
    extern const WinogradKernels kWinograd;                                                                            \
    extern const ElementKernels kElements;                                                                             \
    }
RG_ISA_TABLES(portable)
#if defined(__x86_64__)
RG_ISA_TABLES(avx2)
RG_ISA_TABLES(avx512)
#endif
#undef RG_ISA_TABLES

namespace {

std::vector<IsaKernels> supported_isas() {
    std::vector<IsaKernels> found{{"portable", 4, &portable::kConv, &portable::kWinograd, &portable::kElements}};
#if defined(__x86_64__)
    // The built-in asks CPUID and, through XCR0, whether the operating system saves the registers.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found.push_back({"avx2", 8, &avx2::kConv, &avx2::kWinograd, &avx2::kElements});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        found.push_back({"avx512", 16, &avx512::kConv, &avx512::kWinograd, &avx512::kElements});
#endif
    return found;
}

IsaKernels choose() {
    const std::vector<IsaKernels> found = supported_isas();
    const char* wanted = std::getenv("RG_ISA");
    if (!wanted || !*wanted) return found.back();
    std::string names;
    for (const IsaKernels& isa : found) {
        if (std::string_view(wanted) == isa.name) return isa;
        names += cat(names.empty() ? "" : ", ", isa.name);
    }
    fail("RG_ISA: expected one that this processor runs (", names, "), got ", wanted);
}

} // namespace

bool supports(const char* name) {
    for (const IsaKernels& isa : supported_isas())
        if (std::string_view(name) == isa.name) return true;
    return false;
}

const IsaKernels& isa() {
    static const IsaKernels kChosen = choose();
    return kChosen;
}

} // namespace rg::cpu
