#!/bin/sh
# Everything that only a machine with an NVIDIA GPU can tell: builds for it, tests every op on it against the reference,
# looks for faults with compute-sanitizer if that is there, trains, and measures beside PyTorch if a Python has it.
#
#     sh tools/gpu_check.sh [--data DIR] [--seconds S] [--python PYTHON] [--tools DIR]
#
# --data: CIFAR-10's binary files, for the real training (50 epochs; 2 of the sample otherwise). --tools: where what is
# not installed was brought to: meson/meson.py (of Meson's source), bin/ninja, doctest/doctest.h. Prints what it does,
# and writes it to tools/bench/results/DATE-gpu-check.md, and to the folder $OUT if that is set. The exit status is 0 if
# no line begins with FAILED: programs that failed, tests that were skipped, losses that differ.
set -eu
whole() { # a path as it is from here, before going elsewhere
    case $1 in '' | /* | *:*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}
data='' seconds=3 python='' tools=''
while [ $# -gt 0 ]; do
    case $1 in
    --data | --seconds | --python | --tools)
        if [ $# -lt 2 ]; then echo "gpu_check.sh: expected a value after $1" >&2; exit 1; fi
        eval "${1#--}=\$2"
        shift 2 ;;
    --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1; --help lists them" >&2; exit 1 ;;
    esac
done
data=$(whole "$data") tools=$(whole "$tools") OUT=$(whole "${OUT:-}")
case $python in */*) python=$(whole "$python") ;; esac
cd "$(dirname "$0")/.."

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi >/dev/null 2>&1; then
    echo "gpu_check.sh: expected a GPU and its driver, got none (nvidia-smi)" >&2
    exit 1
fi
# Only this machine's GPU: a third of the time to compile.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
if [ "$capability" -lt 80 ]; then
    echo "gpu_check.sh: expected a GPU of sm_80 or newer, got one of sm_$capability: there are no kernels for it" >&2
    exit 1
fi
if [ "$capability" = 90 ]; then capability=90a; fi
export PATH="$PATH:/usr/local/cuda/bin"
if [ -n "$tools" ]; then
    export PATH="$PATH:$tools/bin"
    export CPLUS_INCLUDE_PATH="$tools${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"
    if ! command -v meson >/dev/null && [ -f "$tools/meson/meson.py" ]; then
        meson() { python3 "$tools/meson/meson.py" "$@"; }
    fi
fi
for tool in nvcc meson ninja; do
    if ! command -v $tool >/dev/null; then
        echo "gpu_check.sh: expected $tool in PATH, got none${tools:+, nor in $tools}; see --help for --tools" >&2
        exit 1
    fi
done

build=build-gpu
if [ -f $build/build.ninja ]; then
    meson configure $build -Dcuda=enabled -Dtests=enabled -Dgpu_arch="sm_$capability"
else
    meson setup $build --buildtype=release -Dcuda=enabled -Dtests=enabled -Dgpu_arch="sm_$capability"
fi
ninja -C $build

report=tools/bench/results/$(date +%Y-%m-%d)-gpu-check.md
figures=$build/figures.txt
mkdir -p tools/bench/results
rm -f "$report" ${OUT:+"$OUT/$(basename "$report")"} $figures
say() { tee -a "$report" ${OUT:+"$OUT/$(basename "$report")"}; } # at once: it is there even if this is stopped
try() { # a program that fails is a line of the report, not the end of it
    "$@" 2>&1 || echo "FAILED, exit status $?: $*"
}
{
    echo "# GPU, $(date +%Y-%m-%d)"
    echo
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1
    echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), sm_$capability, $seconds s per figure"
    echo
    echo '```'
} | say

kinds=portable
if [ "$capability" = 90a ]; then kinds='portable hopper'; fi
export RG_GPU_KERNELS=portable

gpu_tests() { # what tests may say that they skip
    log=$build/gpu-tests.txt
    try $build/tests/rg_tests -ts=gpu >$log
    grep -m 20 -E "ERROR|values:|describe" $log || true
    grep 'skipped:' $log | grep -v "$1" | sed 's/^/FAILED: /' || true
    grep -q 'test cases: *[1-9]' $log || echo "FAILED: no test ran"
    tail -n 4 $log
}
for kernels in $kinds; do
    echo "== tests, $kernels kernels" | say
    (export RG_GPU_KERNELS="$kernels"; gpu_tests '^$') | say
done
echo "== tests, launches one at a time" | say
(export RG_SYNC=1; gpu_tests 'skipped: launches are plain') | say

if command -v compute-sanitizer >/dev/null; then
    echo "== compute-sanitizer: a training step and a prediction" | say
    for mode in train infer; do
        try compute-sanitizer --error-exitcode 9 $build/bench_train --device cuda --precision bf16 --batch 4 \
            --seconds 0 --mode $mode >$build/sanitizer.txt
        tail -n 2 $build/sanitizer.txt | say
    done
else
    echo "== not run: compute-sanitizer, which is not there" | say
fi

echo "== training and prediction" | say
ours() {
    try $build/bench_train --device cuda --seconds "$seconds" "$@" | sed "s/^net=/kernels=$RG_GPU_KERNELS &/" |
        tee -a $figures | say
}
for batch in 256 1024; do
    for mode in train infer; do
        for RG_GPU_KERNELS in $kinds; do ours --precision bf16 --batch $batch --mode $mode; done
        RG_GPU_KERNELS=portable
        ours --precision fp32 --batch $batch --mode $mode
    done
done
ours --net B --precision bf16 --batch 32
ours --net C --precision bf16 --batch 128
for candidate in ${python:-python3 /usr/bin/python3}; do
    if ! "$candidate" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then continue; fi
    for batch in 256 1024; do
        for mode in train infer; do
            for how in '' --compile; do # without a figure, if it fails: the tests are ours
                "$candidate" tools/bench/torch_train.py --device cuda --precision bf16 --batch $batch --mode $mode \
                    --seconds "$seconds" $how 2>&1 | grep -E '^net=|Error' | tee -a $figures | say
            done
        done
    done
    break
done
for RG_GPU_KERNELS in $kinds; do
    echo "== $RG_GPU_KERNELS kernels one by one, and the most that this GPU copies, and multiplies by mma" | say
    try $build/bench_train --device cuda --precision bf16 --batch 1024 --seconds 1 --profile | sed '/^net=/d' | say
done
RG_GPU_KERNELS=portable

echo "== train_cifar" | say
train() { # ranks, then options
    ranks=$1
    shift
    set -- $build/train_cifar --device cuda --runs $build/runs "$@"
    if command -v mpiexec >/dev/null; then set -- mpiexec -n "$ranks" "$@"; fi
    try "$@"
}
epochs=2
if [ -n "$data" ]; then epochs=50; fi
real() { train "$1" --precision bf16 ${data:+--data "$data"} --epochs $epochs; }
real 1 | say
gpus=$(nvidia-smi -L | wc -l)
if command -v mpiexec >/dev/null; then
    if [ "$gpus" -gt 1 ]; then
        echo "== train_cifar on $gpus GPUs, a rank each" | say
        real "$gpus" | say
    fi
    # Ranks that share batch statistics, on however many GPUs, are to train as one; those that idle change nothing.
    echo "== 20 steps, batch statistics shared: losses beside those of one rank, which differ by 3e-4 at most" | say
    losses() {
        grep -o '"loss": *[-+0-9.e]*' "$build/runs/$1/metrics.jsonl" 2>/dev/null | sed 's/.*: *//' | head -n 20
    }
    for how in '1 share' '4 share' '4 idle'; do
        ranks=${how% *} name=check-${how% *}-${how#* }
        rm -rf "$build/runs/$name"
        train "$ranks" --spare-ranks "${how#* }" --precision fp32 --sync-bn --lr 0.001 --augment none --shuffle never \
            --steps 20 --run-name "$name" | grep -v '^epoch' | say
        losses "$name" >"$build/$name.txt"
        paste "$build/check-1-share.txt" "$build/$name.txt" | awk -v name="$how" '
            NF == 2 && $1 > 0 { ++n; off = ($2 - $1) / $1; if (off < 0) off = -off; if (off > most) most = off }
            END { printf "%s%s: %d losses, the last %s, off by %.1e\n", n == 20 && most <= 3e-4 ? "" : "FAILED, ",
                         name, n, $2, most }' | say
    done
else
    echo "== not run: several ranks, since there is no mpiexec" | say
fi

echo "== all in one table; an epoch is 50,000 images" | say
awk '
function value(key,  i) {
    for (i = 1; i <= NF; ++i) if (index($i, key "=") == 1) return substr($i, length(key) + 2)
}
/images_per_s=/ {
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
}' $figures | LC_ALL=C sort | say
echo '```' | say
echo "written to $report"
if grep '^FAILED' "$report"; then exit 1; fi
