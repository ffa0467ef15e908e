#!/bin/sh
# Builds and runs the tests.
#
#     sh tools/test.sh          the tests of the programs and the library, on this machine's instruction sets
#     sh tools/test.sh --ci     also tests that kill jobs, fill disks, serve objects and install, and tests that run the
#                               CUDA kernels on a CPU; compiles everything, for all instruction sets, the CUDA kernels
#                               too if nvcc is found; and runs the unit tests under address and undefined-behaviour
#                               sanitizers
#     sh tools/test.sh --all    also tests of headers and tools; tests with perturbed results of ops, on every
#                               instruction set; most tests under sanitizers; with clang++, tests under ThreadSanitizer
#                               and a few seconds of every fuzzer; with a cross compiler and an emulator (aarch64.ini),
#                               tests for 64-bit Arm
#
# The last line is "N passed, M failed, K skipped", with the Meson tests of all builds. The lines before it list how long
# each part took, the skipped tests with their reasons, and the failed tests. The exit status is 0 if no test failed.
# Build folders are kept, so a second run compiles only changed files. With --ci and --all, warnings are errors.
set -eu
case ${1:-} in
'') ci='' all='' left_out='--no-suite simt --no-suite ci --no-suite slow --no-suite perturbed' ;;
--ci) ci=yes all='' left_out='--no-suite slow --no-suite perturbed' ;;
--all) ci=yes all=yes left_out='' ;;
*)
    echo "test.sh: expected no argument, --ci or --all, got $1; see the top of the file" >&2
    exit 1
    ;;
esac
cd "$(dirname "$0")/.."
. tools/deps.sh

passed=0
failed=0
skipped=0
reasons=''
failures=''
times=''
started=$(date +%s)

note_time() { # what has just ended; its time is that since the last call
    now=$(date +%s)
    times="$times
$((now - started)) s: $1"
    started=$now
}

count_results() { # prints the number of tests of the last run with one of these results
    grep -cE "\"result\": \"($1)\"" "$log" || true
}

add_failures() { # number, what failed
    failed=$((failed + $1))
    failures="$failures
failed: $2"
}

prepare() { # build folder, Meson options; a failure counts as one failed test
    if configure "$@" ${ci:+-Dwerror=true}; then return 0; fi
    add_failures 1 "$1: cannot be configured"
    return 1
}

run_tests() { # build folder, arguments of `meson test`, which builds the programs of these tests
    folder=$1
    shift
    log=$folder/meson-logs/testlog.json
    mkdir -p "$folder/meson-logs"
    : >"$log" # so that only this run counts, even if it has no tests
    status=0
    # Many tests wait for processes, so one more than the cores run at a time.
    meson test -C "$folder" --print-errorlogs --num-processes $(($(nproc) + 1)) "$@" || status=$?
    bad=$(count_results "FAIL|ERROR|TIMEOUT|INTERRUPT|UNEXPECTEDPASS")
    if [ "$bad" -gt 0 ]; then
        add_failures "$bad" "$folder:$(python3 -c 'import json, sys
for test in map(json.loads, open(sys.argv[1])):
    if test["result"] not in ("OK", "EXPECTEDFAIL", "SKIP"): print("", test["name"], test["result"].lower(), end=",")' \
            "$log" | sed 's/,$//')"
    elif [ "$status" -ne 0 ]; then
        add_failures 1 "$folder: cannot be built"
    fi
    passed=$((passed + $(count_results "OK|EXPECTEDFAIL")))
    skipped=$((skipped + $(count_results "SKIP")))
    reasons="$reasons
$(python3 -c 'import json, re, sys
for test in map(json.loads, open(sys.argv[1])):
    for reason in re.findall("(?m)^(?:.*MESSAGE: )?(skipped: .*)", test.get("stdout", "")): print(test["name"], reason)' "$log")"
}

echo "== release"
case $ci$all in
'') [ -f build/build.ninja ] || options="-Disa=native $(without_cuda_if_no_gpu)" ;;
yes) options='-Disa=all -Dcuda=auto -Dgpu_arch=sm_80,sm_90a' ;;
yesyes) options='-Disa=all -Dcuda=auto -Dgpu_arch=sm_80,sm_90a,compute_90' ;;
esac
if prepare build ${options:-}; then
    run_tests build --no-rebuild --suite sources
    note_time 'tests of the sources, which need no program'
    if [ "$ci" ]; then # otherwise `meson test` compiles only what its tests need
        ninja -C build || add_failures 1 "build: cannot be built"
        note_time 'compiling build'
    fi
    [ -z "$all" ] || export RG_SIMT_ALL=1 # all cases of the CUDA kernels
    run_tests build --no-suite sources --no-suite more-seeds $left_out
    unset RG_SIMT_ALL
    note_time 'tests of build'
fi

if [ "$ci" ]; then
    echo "== sanitizers"
    # MPICH leaks memory at exit, so programs that call MPI_Init run without the leak check.
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    if prepare build-asan -Dcuda=disabled -Doptimization=g -Dcpp_args=-g1 -Db_sanitize=address,undefined \
        -Db_lundef=false; then
        sanitized='--timeout-multiplier 4 --no-suite slow --no-suite perturbed --no-suite more-seeds --no-suite sources'
        if [ "$all" ]; then
            ASAN_OPTIONS=detect_leaks=1 run_tests build-asan $sanitized --no-suite mpi
            ASAN_OPTIONS=detect_leaks=0 run_tests build-asan $sanitized --suite mpi
        else
            ASAN_OPTIONS=detect_leaks=1 run_tests build-asan $sanitized core ops-portable data models par simt-small
        fi
    fi
    note_time 'address and undefined-behaviour sanitizers'
fi

if [ "$all" ]; then
    if command -v clang++ >/dev/null 2>&1; then
        echo "== clang, threads"
        if CXX=clang++ prepare build-clang -Dcuda=disabled -Dunity=off -Db_pch=false -Db_sanitize=thread \
            -Db_lundef=false; then
            TSAN_OPTIONS=halt_on_error=1 run_tests build-clang --timeout-multiplier 4 \
                core ops-portable data models par simt-small
            note_time 'ThreadSanitizer'
            run_tests build-clang --suite fuzz
            note_time 'fuzzers'
        fi
    else
        echo "== skipped: no clang++ (Debian: clang), so no check for data races and no fuzzers"
        skipped=$((skipped + 1))
    fi

    if command -v aarch64-linux-gnu-g++ >/dev/null 2>&1 && command -v qemu-aarch64 >/dev/null 2>&1; then
        echo "== aarch64"
        [ -f build-aarch64/build.ninja ] || meson setup build-aarch64 --cross-file tools/aarch64.ini -Dwerror=true
        run_tests build-aarch64 --timeout-multiplier 4 core ops-portable data par
        note_time '64-bit Arm'
    else
        echo "== skipped: no cross compiler or emulator for Arm (Debian: g++-aarch64-linux-gnu, qemu-user)"
        skipped=$((skipped + 1))
    fi
fi

[ "$passed" -gt 0 ] || add_failures 1 "no test ran"
echo "$times" | sed '/^$/d'
echo "$reasons" | sort -u | sed '/^$/d'
echo "$failures" | sed '/^$/d'
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
