// The main function of the unit tests: all test_*.cpp are linked with it into one executable.
//
// Suites: core, cpu, simt, par, data, models (-ts=core runs one). Everything random in them has a fixed seed, so a
// failure repeats as it is; -tc="*part of a name*" runs a single case. Where RG_ISA asks for an instruction set that
// this processor lacks, there is nothing to test: exit status 77, which the build reports as skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include "core/cpu/isa.h"
#include "tests/perturb.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>

int main(int argc, char** argv) {
    const char* const wanted = std::getenv("RG_ISA");
    for (const char* known : {"avx2", "avx512", "amx"})
        if (wanted && std::strcmp(wanted, known) == 0 && !rg::cpu::supports(known)) {
            std::printf("skipped: this processor has no %s\n", known);
            return 77;
        }
    rg::install_perturbation();
    return doctest::Context(argc, argv).run();
}
