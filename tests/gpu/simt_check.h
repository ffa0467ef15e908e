// Checks that a fault is detected: by the executor, which throws Error, or by a sanitizer, which ends the process.
#pragma once

#include "tests/temp_dir.h"

#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rg {

/// Checks that f throws Error with all these parts in its text.
template <class F>
void check_fault(F&& f, std::initializer_list<std::string> parts) {
    CHECK(error_of(f) == Containing(parts));
}

/// Runs f in a child process, since a sanitizer ends it. Checks that the process fails, and that its standard error
/// output has all these parts.
template <class F>
void check_sanitizer(F&& f, std::initializer_list<std::string> parts) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::fflush(nullptr); // otherwise the child would write buffered text again
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], 2);
        error_of(f);
        std::exit(0); // not _exit(), which would skip ThreadSanitizer's exit status
    }
    ::close(ends[1]);
    std::string report;
    char part[4096];
    for (ssize_t got; (got = ::read(ends[0], part, sizeof part)) > 0;) report.append(part, size_t(got));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status != 0);
    CHECK(report == Containing(parts));
}

} // namespace rg
