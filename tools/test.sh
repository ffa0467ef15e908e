#!/bin/sh
# All tests, in three builds: release (everything), address and undefined-behaviour sanitizers (all but the slow
# ones), and, where clang++ is there, clang with ThreadSanitizer (it must compile without warnings, and pass the unit
# tests that have threads), where the fuzzers are built, too, and run for a few seconds. Warnings are errors in all
# three; elsewhere they are not, since other compilers than these warn of other things.
#
# The last line is "N passed, M failed, K skipped", counting Meson tests over all builds, and as one skipped a build
# that cannot be; those before it say what was skipped and why, parts of tests included. The exit status is 0 if
# nothing failed. Build folders are kept, so that a second run compiles only what has changed.
set -eu
cd "$(dirname "$0")/.."
. tools/deps.sh

passed=0
failed=0
skipped=0
reasons=''

results() { # how many tests of the last run ended with one of these results
    grep -cE "\"result\": \"($1)\"" "$log" || true
}

build() { # build folder, then Meson options; what does not build counts as one failure, and the rest goes on
    if configure "$@" -Dwerror=true && ninja -C "$1"; then return 0; fi
    failed=$((failed + 1))
    return 1
}

run_tests() { # build folder, then arguments of `meson test`
    folder=$1
    shift
    log=$folder/meson-logs/testlog.json
    mkdir -p "$folder/meson-logs"
    : >"$log" # so that what is counted is of this run, even if it has no test
    status=0
    meson test -C "$folder" --no-rebuild --print-errorlogs "$@" || status=$?
    bad=$(results "FAIL|ERROR|TIMEOUT|INTERRUPT|UNEXPECTEDPASS")
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    passed=$((passed + $(results "OK|EXPECTEDFAIL")))
    failed=$((failed + bad))
    skipped=$((skipped + $(results "SKIP")))
    reasons="$reasons
$(python3 -c 'import json, re, sys
for test in map(json.loads, open(sys.argv[1])):
    for reason in re.findall("(?m)^(?:.*MESSAGE: )?(skipped: .*)", test.get("stdout", "")): print(test["name"], reason)' "$log")"
}

echo "== release"
if build build --buildtype=release; then
    run_tests build
fi

echo "== sanitizers"
# MPICH itself leaks at exit, so the leak check is off for programs that call MPI_Init, and for those alone.
# With their checks g++ takes the longest of all builds: so it writes no more than what reports name (-g1), and optimizes
# only what tests wait for; that is half the time of -O1.
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
if build build-asan -Dcuda=disabled -Doptimization=g -Ddebug=false -Dcpp_args=-g1 -Db_sanitize=address,undefined -Db_lundef=false; then
    ASAN_OPTIONS=detect_leaks=1 run_tests build-asan --timeout-multiplier 4 --no-suite slow --no-suite mpi
    ASAN_OPTIONS=detect_leaks=0 run_tests build-asan --timeout-multiplier 4 --no-suite slow --suite mpi
fi

if command -v clang++ >/dev/null 2>&1; then
    echo "== clang, threads"
    if CXX=clang++ build build-clang -Dcuda=disabled -Doptimization=1 -Ddebug=false -Db_sanitize=thread -Db_lundef=false; then
        TSAN_OPTIONS=halt_on_error=1 run_tests build-clang --timeout-multiplier 4 core ops-portable data models par simt-small
        run_tests build-clang --suite fuzz
    fi
else
    echo "== no clang++ (Debian: clang): nothing looks at threads, and nothing is fuzzed"
    skipped=$((skipped + 1))
fi

echo "$reasons" | sort -u | sed '/^$/d'
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
