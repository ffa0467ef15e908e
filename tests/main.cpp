// The main function of the unit tests: all test_*.cpp are linked with it into one executable.
//
// Suites: core, gpu, simt, par, data, models (-ts=core runs one). Everything random in them has a fixed seed, so a
// failure repeats; -tc="*part of a name*" runs a single case. The exit status is 77, which Meson reports as skipped,
// if RG_ISA names an instruction set that this processor lacks, and if nothing was asserted (no GPU). RG_PERTURB:
// perturb.h.
#define DOCTEST_CONFIG_IMPLEMENT
#include "core/cpu/isa.h"
#include "tests/perturb.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>

namespace {

constexpr int kSkipped = 77;
int cases = 0, assertions = 0;

/// Counts what a run has done.
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

} // namespace

int main(int argc, char** argv) {
    const char* const wanted = std::getenv("RG_ISA");
    for (const char* known : {"avx2", "avx512", "amx"})
        if (wanted && std::strcmp(wanted, known) == 0 && !rg::cpu::supports(known)) {
            std::printf("skipped: this processor has no %s\n", known);
            return kSkipped;
        }
    rg::install_perturbation();
    doctest::Context context(argc, argv);
    const int failed = context.run();
    if (failed || assertions > 0 || context.shouldExit()) return failed;
    if (cases == 0) {
        std::printf("expected test cases, but none passes the filters\n");
        return 1;
    }
    std::printf("skipped: nothing was asserted in %d test cases\n", cases);
    return kSkipped;
}
