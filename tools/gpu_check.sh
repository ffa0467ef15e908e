#!/bin/sh
# Runs all checks and measurements that need an NVIDIA GPU, within a time budget.
#
#     sh tools/gpu_check.sh [--minutes M] [--programs DIR] [--data DIR] [--old DIR] [--seconds S] [--python PYTHON]
#                           [--tools DIR] [--limit S] [STEPS...]
#
# Builds for this GPU and then runs steps, first those that no GPU has run yet. A step that hangs is killed at its time
# limit with all of its processes, and the next one begins. STEPS are some of these names (default: all, in this order):
#
#   sums           sums in the memory of other processes' GPUs; that of two processes needs no MPI
#   quick94        12 epochs of quick94, with the accuracy it must reach
#   sanitize       compute-sanitizer with a training step of resnet18
#   old            speeds of the programs of --old and of these in turn
#   tests          unit tests
#   losses         losses of the Hopper kernels beside the portable ones, and of several ranks beside one
#   speed          images per second
#   profile        time per op
#   sanitize-rest  compute-sanitizer with cifar_net, and with the tests of ops
#   train          a training
#   pytorch        PyTorch's speeds
#
#   --minutes M      total time (default 10). Prints a plan that fits it. A step begins only if the rest of the time is
#                    as long as it takes on an H200
#   --programs DIR   a folder of programs that were built elsewhere, with tests/rg_tests; then nothing is built here
#   --data DIR       CIFAR-10's binary files, to train for 50 epochs (default: quick94 trains on drawn digits, train for
#                    2 epochs on the built-in sample). Files such as data_batch_1.bin.aa and .ab are joined here
#   --old DIR        a folder of programs of an older commit
#   --seconds S      time to measure each speed (default 3)
#   --python PYTHON  a Python that has PyTorch (default: python3, else /usr/bin/python3)
#   --tools DIR      tools that are not installed: meson/meson.py (from Meson's source), bin/ninja, doctest/doctest.h
#   --limit S        longest time for a step (default 570); many steps have shorter limits
#
# Prints the result of each step and a table of all steps. It writes the same to tools/bench/results/DATE-gpu-check.md
# and to $OUT, if that is set, after each step, so a kill loses no results. gpu-check.log in $OUT or build-gpu has the
# full output of the build, the unit tests and compute-sanitizer.
#
# The exit status is 1 if a step failed or timed out, or none passed, else 0. The table has the reasons of steps that
# were not run.

# shellcheck disable=SC2086,SC2317 # our paths have no spaces; --step calls the functions of steps
set -eu
build='build-gpu'

# ---- functions of the steps. Each runs in its own process: sh tools/gpu_check.sh --step FUNCTION ARGUMENTS... ----
skip() { # ends the step as not run, with a reason
    echo "skipped: $*"
    exit 77
}
need() { # skips the step unless these programs exist
    for program; do
        command -v "$program" >/dev/null || skip "no $program"
    done
}
use() { # chooses the kernels of the step: portable or hopper
    if [ "$1" = hopper ] && [ "$capability" != 90a ]; then skip "the Hopper kernels need sm_90, got sm_$capability"; fi
    export RG_GPU_KERNELS="$1"
}
fail() {
    echo "FAILED: $*"
    failed=1
}
try() { # runs a program; if it fails, the step fails but continues
    "$@" 2>&1 || fail "exit status $?: $*"
}

compile() {
    targets='bench_train train_cifar quick94 make_digits tests/rg_tests'
    for target in $targets; do rm -f "$build/$target"; done # a failed build must not leave older programs
    set -- setup --buildtype=release
    if [ -f $build/build.ninja ]; then set -- configure; fi
    set -- "$@" $build -Dcuda=enabled -Dtests=auto -Dgpu_arch="sm_$capability"
    if command -v meson >/dev/null; then set -- meson "$@"; else set -- python3 "$tools/meson/meson.py" "$@"; fi
    try "$@" >>"$log"
    if [ -f $build/build.ninja ] && ! grep -q tests/rg_tests $build/build.ninja; then
        fail "expected doctest, got none; the unit tests are not built"
        targets=${targets% *}
    fi
    try ninja -C $build -k 0 $targets >>"$log" # -k 0: goes on after errors
    if [ "$failed" = 1 ]; then grep -E 'error|ERROR|FAILED' "$log" | head -n 20; else tail -n 1 "$log"; fi
}

unit_tests() { # kernels, and the message of tests that may be skipped, if any
    use "$1"
    need $programs/tests/rg_tests
    rm -f $build/tests.txt
    # Print each line at once, with times. So if a test hangs, the report has all tests before it.
    { stdbuf -oL $programs/tests/rg_tests -ts=gpu -d=true 2>&1 || echo "exit status $?"; } |
        tee -a "$log" $build/tests.txt |
        grep --line-buffered -E 'ERROR|values:|describe|[0-9] s: |^\[doctest\] (test cases|assertions)' | sed -u '60,$d'
    if grep -q '^exit status' $build/tests.txt; then fail "$(tail -n 1 $build/tests.txt)"; fi
    if skips=$(grep 'skipped:' $build/tests.txt | grep -v "${2:-^$}"); then fail "$skips"; fi
    grep -q 'assertions: *[1-9]' $build/tests.txt || fail "expected tests, but none ran"
}
unit_tests_with_sync() {
    export RG_SYNC=1
    unit_tests portable 'skipped: launches are plain'
}

measure() {
    printf 'kernels=%s ' "$RG_GPU_KERNELS"
    try $programs/bench_train --device cuda --seconds "$seconds" "$@"
}
speed() { # kernels, mode, precision
    use "$1"
    need $programs/bench_train
    for batch in 256 1024; do measure --mode "$2" --precision "$3" --batch $batch; done
}
speed_of_other_networks() {
    need $programs/bench_train
    measure --net digits-angles --precision bf16 --batch 32
    measure --net digits --precision bf16 --batch 128
    for mode in train infer; do measure --net resnet18 --size 224 --mode $mode --precision bf16 --batch 256; done
}
profile() { # kernels
    use "$1"
    need $programs/bench_train
    try $programs/bench_train --device cuda --precision bf16 --batch 1024 --seconds 1 --profile
}

sanitize() { # kernels, tool of compute-sanitizer, program and its arguments
    use "$1"
    need compute-sanitizer "$3"
    tool=$2
    shift 2
    try compute-sanitizer --tool "$tool" --error-exitcode 9 "$@" >>"$log"
    tail -n 2 "$log"
}

twenty_losses() { # run, ranks, options of train_cifar; trains for 20 steps and writes the losses to build-gpu/RUN.txt
    run=$1 ranks=$2
    shift 2
    rm -rf "$build/runs/$run"
    set -- $programs/train_cifar --device cuda --augment none --shuffle never --steps 20 "$@" \
        --runs $build/runs --run-name "$run"
    if [ "$ranks" -gt 1 ]; then set -- mpiexec -n "$ranks" "$@"; fi
    try "$@"
    grep -o '"loss": *[-+0-9.e]*' "$build/runs/$run/metrics.jsonl" | sed 's/.*: *//' >"$build/$run.txt" || true
}
compare() { # two runs, and the largest allowed relative difference of their losses
    paste "$build/$1.txt" "$build/$2.txt" | head -n 20 | awk -v runs="$1 and $2" -v right="$3" '
        NF == 2 && $1 > 0 { ++n; off = ($2 - $1) / $1; if (off < 0) off = -off; if (off > most) most = off }
        END {
            printf "%s: %d losses, the last are %s and %s; the largest difference is %.1e, at most %s is right\n",
                runs, n, $1, $2, most, right
            exit n != 20 || most > right
        }' || fail "expected equal losses, got others"
}
hopper_losses() {
    use hopper
    need $programs/train_cifar
    for kernels in portable hopper; do
        use $kernels
        twenty_losses $kernels 1 --precision bf16 --batch-size 256 --lr 0.001
    done
    # The kernels add in different orders, so some sums are rounded to another bf16. The limit is four times the largest
    # difference (5e-4) between the AMX and the AVX-512 kernels of the CPU, whose roundings differ more.
    compare portable hopper 2e-3
}
need_mpi() {
    need mpiexec $programs/train_cifar
    if $programs/train_cifar --version | grep 'MPI: no'; then skip 'these programs have no MPI'; fi
}
losses_of_ranks() {
    need_mpi
    # With --sync-bn, several ranks train like one rank, for any number of GPUs. Idle ranks change nothing. Sums in
    # another order change roundings, and steps make such differences grow: up to 9e-6 with this learning rate, but 1e-3
    # with one that is ten times as high.
    twenty_losses 1-rank 1 --precision fp32 --sync-bn --lr 0.0001
    for how in share idle; do
        twenty_losses 4-ranks-$how 4 --precision fp32 --sync-bn --lr 0.0001 --spare-ranks $how
        compare 1-rank 4-ranks-$how 5e-5
    done
}

sums_of_processes() {
    need $programs/tests/rg_tests
    try $programs/tests/rg_tests -ts=gpu '-tc=gpu: processes sum*' >$build/sums.txt
    cat $build/sums.txt
    # Each of the two processes prints how many of its values are right. Nothing printed means nothing summed.
    grep 'sums between processes: ' $build/sums.txt | awk '
        { right += $(NF - 5) > 0 && $(NF - 5) == $(NF - 3) }
        END { exit right != 2 }' || fail 'expected right sums in two processes, got others'
}
direct_losses() { # ranks
    need_mpi
    twenty_losses sums-alone 1 --precision fp32 --sync-bn --lr 0.0001
    for how in host:0 direct:1; do
        export RG_PEER_MEMORY=${how#*:}
        twenty_losses "sums-${how%:*}" "$1" --precision fp32 --sync-bn --lr 0.0001 --spare-ranks share >$build/sums.txt
        cat $build/sums.txt
    done
    # The program prints this only after the GPUs have summed known values rightly. --sync-bn: see losses_of_ranks().
    grep -q 'gradients are summed by the GPUs' $build/sums.txt || fail 'expected sums by the GPUs, got others'
    compare sums-alone sums-direct 5e-5
    compare sums-host sums-direct 0 # the same bits
}

quick94() {
    need $programs/quick94
    rm -rf $build/runs/quick94 $build/digits
    least=0.936 from=$data # the mean of five seeds is 0.9422, their standard deviation 0.0012
    if [ -z "$data" ]; then
        need $programs/make_digits
        least=0.9 from=$build/digits
        mkdir $build/digits
        try $programs/make_digits $build/digits/train
        try $programs/make_digits $build/digits/test --per-class 100 --seed 1
    fi
    set -- --device cuda --precision bf16 --test-views --runs $build/runs --run-name quick94
    try $programs/quick94 "$@" --data "$from"
    accuracy=$(grep -o '"test_accuracy": *[0-9.e-]*' $build/runs/quick94/metrics.jsonl | tail -n 1 | sed 's/.*: *//')
    echo "test accuracy ${accuracy:=none}, at least $least is right"
    awk -v got="$accuracy" -v least=$least 'BEGIN { exit !(got >= least && got <= 1) }' ||
        fail 'expected a better accuracy'
}

turns() { # options of bench_train
    [ -n "$old" ] || skip 'no --old'
    need "$old/bench_train" $programs/bench_train
    for _ in 1 2 3; do
        for which in old new; do
            if [ $which = old ]; then from=$old; else from=$programs; fi
            try "$from/bench_train" --device cuda --precision bf16 --seconds 1 "$@" | sed "s/^/program=$which /"
        done
    done | tee $build/turns.txt
    sed -n 's/^program=\([a-z]*\) .*images_per_s=\([0-9.e+]*\).*/\1 \2/p' $build/turns.txt | sort -k 1,1 -k 2,2g | awk '
        { speed[NR] = $2 } # new, then old: each sorted, so the second is the median
        END {
            if (NR == 6) printf "medians: old %.0f, new %.0f images per second, %.3f times as fast\n",
                speed[5], speed[2], speed[2] / speed[5]
            exit NR != 6
        }' || fail 'expected three speeds of each program, got fewer'
}

train() { # ranks
    need $programs/train_cifar
    set -- "$1" $programs/train_cifar --device cuda --precision bf16 --epochs "$epochs" --runs $build/runs
    if [ "$1" -gt 1 ]; then
        need mpiexec
        set -- mpiexec -n "$@"
    else
        shift
    fi
    try "$@" ${data:+--data "$data"}
}

find_torch() {
    for candidate in ${python:-python3 /usr/bin/python3}; do
        if "$candidate" -c 'import torch; assert torch.cuda.is_available()' >>"$log" 2>&1; then
            echo "$candidate" | tee $build/torch
            return
        fi
    done
    skip "no Python has PyTorch for this GPU"
}
torch() { # options of torch_train.py
    [ -f $build/torch ] || skip "no PyTorch"
    set -- --build $programs --device cuda --precision bf16 --seconds "$seconds" "$@"
    "$(cat $build/torch)" tools/bench/torch_train.py "$@" 2>>"$log" || fail "exit status $?: $(tail -n 1 "$log")"
}

if [ "${1:-}" = --step ]; then
    shift
    failed=0
    "$@"
    exit $failed
fi

# ---- options and requirements ----
refuse() {
    echo "gpu_check.sh: $*" >&2
    exit 1
}
absolute() {
    case $1 in '' | /* | *:*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}
begin=$(date +%s)
data='' seconds=3 python='' tools='' programs='' old='' minutes=10 limit=570 chosen=''
names=' sums quick94 sanitize old tests losses speed profile sanitize-rest train pytorch '
while [ $# -gt 0 ]; do
    case $1 in
    --data | --seconds | --python | --tools | --programs | --old | --minutes | --limit)
        if [ $# -lt 2 ]; then refuse "expected a value after $1"; fi
        eval "${1#--}=\$2"
        shift 2 ;;
    --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) refuse "unknown option $1; --help lists them" ;;
    *)
        case $names in *" $1 "*) chosen="$chosen $1" ;; *) refuse "expected some of the steps${names% }, got $1" ;; esac
        shift ;;
    esac
done
case $minutes in '' | *[!0-9.]* | *.*.* | .) refuse "expected a number of minutes for --minutes, got '$minutes'" ;; esac
case $limit in '' | 0* | *[!0-9]*) refuse "expected whole seconds for --limit, got '$limit'" ;; esac
budget=$(awk "BEGIN { printf \"%d\", $minutes * 57 }") # a twentieth is left for slow ends of programs
longest=$limit
data=$(absolute "$data") tools=$(absolute "$tools") OUT=$(absolute "${OUT:-}")
chosen=${chosen:+$chosen build }
programs=$(absolute "$programs") old=$(absolute "$old")
case $python in */*) python=$(absolute "$python") ;; esac
cd "$(dirname "$0")/.."

smi() { timeout -s KILL 20 nvidia-smi "$@" 2>/dev/null; }
if ! smi >/dev/null; then refuse "expected a GPU and its driver, got none (nvidia-smi)"; fi
# Compile only for this machine's GPU, which takes a third of the time for all GPUs.
capability=$(smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
if [ "$capability" -lt 80 ]; then
    refuse "expected a GPU of sm_80 or newer, got sm_$capability; there are no kernels for it"
fi
if [ "$capability" = 90 ]; then capability=90a; fi
gpu=$(smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1) gpus=$(smi -L | wc -l)
export PATH="$PATH:${CUDA_PATH:-/usr/local/cuda}/bin${tools:+:$tools/bin}"
if [ -n "$tools" ]; then export CPLUS_INCLUDE_PATH="$tools${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"; fi
needed='nvcc meson ninja'
if [ -n "$programs" ]; then needed=''; fi
for tool in $needed; do
    if ! command -v $tool >/dev/null && ! { [ $tool = meson ] && [ -f "$tools/meson/meson.py" ]; }; then
        refuse "expected $tool in PATH, got none${tools:+, nor in $tools}; see --help for --tools and --programs"
    fi
done

results=tools/bench/results epochs=2
if [ -n "$data" ]; then epochs=50; fi
mkdir -p $build $results ${OUT:+"$OUT"}
report=${OUT:-$results}/$(date +%Y-%m-%d)-gpu-check.md
log=${OUT:-$build}/gpu-check.log
rm -f "$report" "$log" $build/torch
set -- "$data"/*.bin.*
if [ -f "$1" ]; then # joins parts
    rm -rf $build/data
    mkdir $build/data
    for part in "$data"/*.bin "$@"; do
        name=${part##*/}
        if [ -f "$part" ]; then cat "$part" >>"$build/data/${name%.bin*}.bin"; fi
    done
    data=$PWD/$build/data
fi
brought=$programs programs=${programs:-$build}
export build programs data old seconds python tools capability log epochs RG_GPU_KERNELS=portable

# ---- steps ----
shown=0
show() { # prints the new part of the report, even if standard output is closed, and copies the report
    tail -c +$((shown + 1)) "$report" || true
    shown=$(wc -c <"$report")
    if [ -n "$OUT" ]; then cp "$report" $results/; fi
}
say() {
    printf '%s\n' "$*" >>"$report"
    show
}
kill_step() { # kills the step's process group, and processes that left it (mpiexec's ranks, ninja's compilers)
    kill -KILL -- "-$group" 2>/dev/null || true
    grep -lzsxF "GPU_CHECK_STEP=$mark" /proc/[0-9]*/environ | while IFS=/ read -r _ _ process _; do
        kill -KILL "$process" 2>/dev/null || true
    done
}
stopped='' group='' steps=0 table='' bad=0 some_passed='' planning=1 planned=0
trap 'stopped=1 bad=1; if [ -n "$group" ]; then kill_step; fi' HUP INT TERM

step() { # name of steps, name, time limit and time on an H200 in seconds, function, arguments
    case $chosen in '' | *" $1 "*) ;; *) return ;; esac
    name=$2 limit=$3 takes=$4
    shift 4
    if [ -n "$planning" ]; then
        if [ $((planned + takes)) -le $((budget - 10)) ]; then
            say "$(printf '%4d s  %s' $planned "$name")"
            planned=$((planned + takes))
        fi
        return
    fi
    left=$((begin + budget - 10 - $(date +%s))) # 10 s to end the step and print the table
    if [ $left -lt 0 ]; then left=0; fi
    if [ "$limit" -gt "$longest" ]; then limit=$longest; fi
    if [ "$limit" -gt "$left" ]; then limit=$left; fi
    result='not run' note='' took=0
    if [ -n "$stopped" ]; then
        note='stopped by a signal'
    elif [ $left -lt "$takes" ]; then
        note="needs $takes s, $left s left"
    else
        say "== $name"
        steps=$((steps + 1)) mark=$$-$steps
        start=$(date +%s) status=0
        # SIGKILL at once: a program that waits for a hung kernel may ignore other signals.
        GPU_CHECK_STEP=$mark timeout -s KILL "$limit" sh tools/gpu_check.sh --step "$@" >>"$report" 2>&1 &
        group=$!
        wait $group || status=$?
        kill_step
        group='' took=$(($(date +%s) - start))
        show
        if [ $status = 0 ]; then
            result=passed some_passed=1
        elif [ $status = 77 ]; then
            note=$(tail -n 1 "$report" | sed 's/^skipped: //')
        elif [ -n "$stopped" ]; then
            result=failed note='stopped by a signal'
        elif [ $took -ge "$limit" ]; then
            result='timed out'
        else
            result=failed note="exit status $status"
        fi
        say "-- $result, $took s"
    fi
    case $result in failed | 'timed out') bad=1 ;; esac
    table=$table$(printf '%-45s %-9s %5s%s' "$name" "$result" "$took" "${note:+  $note}")'
'
}

say "# GPU, $(date +%Y-%m-%d)

$gpu
commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), sm_$capability, $seconds s per figure
${brought:+programs of $brought: $(timeout -s KILL 20 "$brought/train_cifar" --version 2>&1 | head -n 1)
}
\`\`\`"
all_steps() {
    if [ -z "$brought" ]; then step build build "$budget" 120 compile; fi
    step sums 'sums between processes' 60 10 sums_of_processes
    step sums '20 losses, direct sums of 4 ranks' 120 45 direct_losses 4
    step quick94 'quick94' 120 30 quick94
    for tool in memcheck racecheck synccheck; do
        step sanitize "$tool, resnet18, hopper kernels" 90 40 \
            sanitize hopper $tool $programs/bench_train --net resnet18 --size 64 --device cuda --precision bf16 \
            --batch 4 --seconds 0
    done
    step old 'old and new in turn, cifar_net' 60 20 turns --mode train --batch 1024
    step old 'old and new in turn, resnet18' 60 25 turns --mode train --net resnet18 --size 224 --batch 256
    for kernels in portable hopper; do
        step tests "unit tests, $kernels kernels" 90 20 unit_tests $kernels
    done
    step tests 'unit tests, launches one at a time' 60 20 unit_tests_with_sync
    step losses '20 losses, Hopper kernels beside portable' 60 15 hopper_losses
    step losses '20 losses, 4 ranks beside 1' 60 30 losses_of_ranks
    for mode in train infer; do
        for kernels in portable hopper; do
            step speed "speed, $mode, $kernels kernels" 60 15 speed $kernels $mode bf16
        done
        step speed "speed, $mode, fp32" 60 15 speed portable $mode fp32
    done
    step speed 'speed, other networks' 60 20 speed_of_other_networks
    for kernels in portable hopper; do step profile "profile, $kernels kernels" 30 10 profile $kernels; done
    for tool in memcheck racecheck synccheck; do
        for kernels in portable hopper; do
            step sanitize-rest "$tool, training step, $kernels kernels" 90 40 \
                sanitize $kernels $tool $programs/bench_train --device cuda --precision bf16 --batch 16 --seconds 0
        done
    done
    for kernels in portable hopper; do
        step sanitize-rest "memcheck, tests of ops, $kernels kernels" 60 40 \
            sanitize $kernels memcheck $programs/tests/rg_tests -ts=gpu '-tc=gpu ops*'
    done
    step train "training, $epochs epochs" 200 $((10 + epochs)) train 1
    if [ "$gpus" -gt 1 ]; then step train "training, $epochs epochs, $gpus GPUs" 200 $((10 + epochs)) train "$gpus"; fi
    step pytorch 'PyTorch is there' 60 10 find_torch
    for mode in train infer; do
        for batch in 256 1024; do
            step pytorch "PyTorch, $mode, batch $batch" 60 15 torch --mode $mode --batch $batch
        done
        step pytorch "PyTorch, $mode, fp32" 60 15 torch --mode $mode --batch 1024 --precision fp32
        step pytorch "PyTorch, $mode, resnet18" 60 15 torch --mode $mode --batch 256 --net resnet18 --size 224
    done
    for mode in train infer; do
        for batch in 1024 256; do
            step pytorch "PyTorch compiled, $mode, batch $batch" 150 45 torch --mode $mode --batch $batch --compile
        done
    done
}
say "== plan for $minutes minutes; begin of each step"
all_steps
planning=''
all_steps
if [ -z "$some_passed" ]; then bad=1; fi

say "== all speeds; an epoch is 50,000 images
$(awk '
function value(key,  i) {
    for (i = 1; i <= NF; ++i) if (index($i, key "=") == 1) return substr($i, length(key) + 2)
}
/^kernels=.* images_per_s=| torch=.* images_per_s=/ {
    what = sprintf("%-6s %-5s %-5s %5d", value("net"), value("mode"), value("precision"), value("batch"))
    who = value("torch") == "" ? "ringgrad, " value("kernels") : value("compile") == 1 ? "PyTorch compiled" : "PyTorch"
    order[++rows] = what
    by[rows] = who
    rate[what, who] = rates[rows] = value("images_per_s")
}
function times(a, b) { return b ? sprintf("%.2f", a / b) : "" }
END {
    printf "%-25s %-19s %11s %9s %11s %12s\n", "", "", "images/s", "ms/epoch", "x PyTorch", "x compiled"
    for (i = 1; i <= rows; ++i)
        printf "%s  %-19s %11.0f %9.1f %11s %12s\n", order[i], by[i], rates[i], 5e7 / rates[i],
            times(rates[i], rate[order[i], "PyTorch"]), times(rates[i], rate[order[i], "PyTorch compiled"])
}' "$report" | LC_ALL=C sort)
== all steps
$(printf '%-45s %-9s %5s' step result s)
$table\`\`\`"
echo "written to $report"
exit $bad
