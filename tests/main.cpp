// The main function of the unit tests. rg_tests has those of all rooms; simt_tests runs the CUDA kernels on the executor.
//
// The suites are core, gpu, par, data, models and simt; -ts=core runs one of them. All random numbers have fixed seeds,
// so a failure repeats. -tc="*part of a name*" runs a single case. The exit status is 77, which Meson reports as
// skipped, if RG_ISA names an instruction set that this CPU or build lacks, or if nothing was checked (no GPU). See
// perturb.h for RG_PERTURB. With RG_LOCALE=1 the tests run in another locale (other_locale.h).
#define DOCTEST_CONFIG_IMPLEMENT
#include "core/cpu/isa.h"
#include "tests/other_locale.h"
#include "tests/perturb.h"
#include "tests/temp_dir.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <optional>

namespace rg::cpu::avx512bf16_emulated {
extern const TileKernels kTiles;
}
namespace rg::cpu::amx_emulated {
extern const TileKernels kTiles;
}

namespace {

constexpr int kSkipped = 77;
int cases = 0, assertions = 0;

/// Counts the cases and the checks of a run.
struct Counter final : doctest::IReporter {
    explicit Counter(const doctest::ContextOptions&) {}
    void test_run_end(const doctest::TestRunStats& run) override {
        cases = int(run.numTestCasesPassingFilters), assertions = run.numAsserts;
    }
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_case_start(const doctest::TestCaseData&) override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("counter", 1, Counter);

/// Adds the instruction sets whose tiles are emulated (core/emulated_isa.h) to those that RG_ISA can name.
void add_emulated_isas() {
#if defined(RG_WITH_EMULATED)
    if (!rg::cpu::find_isa("avx2")) return; // the emulation is compiled for AVX2
    rg::cpu::add_isa("avx512bf16-emulated", rg::cpu::avx512bf16_emulated::kTiles);
    rg::cpu::add_isa("amx-emulated", rg::cpu::amx_emulated::kTiles);
#endif
}

} // namespace

int main(int argc, char** argv) {
    add_emulated_isas();
    const char* const wanted = std::getenv("RG_ISA");
    for (const char* known : {"portable", "avx2", "avx512", "avx512bf16", "amx", "avx512bf16-emulated", "amx-emulated"})
        if (wanted && std::strcmp(wanted, known) == 0 && !rg::cpu::find_isa(known)) {
            std::printf("skipped: this CPU or this build has no %s\n", known);
            return kSkipped;
        }
    rg::install_perturbation();
    const rg::TempDir cache; // tests write nowhere else
    ::setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
    std::optional<rg::OtherLocale> locale;
    if (std::getenv("RG_LOCALE")) locale.emplace();
    doctest::Context context(argc, argv);
    const int failed = context.run();
    if (failed || assertions > 0 || context.shouldExit()) return failed;
    if (cases == 0) {
        std::printf("expected test cases, got none that match the filters; -ltc lists their names\n");
        return 1;
    }
    std::printf("skipped: %d test cases checked nothing\n", cases);
    return kSkipped;
}
