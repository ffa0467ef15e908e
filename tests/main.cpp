// The main function of the unit tests: all test_*.cpp are linked with it into one executable.
//
// Suites: core, cpu, par, data, models (-ts=core runs one). Everything random in them has a fixed seed, so a failure
// repeats as it is; -tc="*part of a name*" runs a single case.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
