#!/bin/sh
# Everything that only a machine with an NVIDIA GPU can tell: builds for it, tests every op on it against the reference,
# looks for faults with compute-sanitizer if that is there, trains, and measures beside PyTorch if a Python has it.
#
#     sh tools/gpu_check.sh [--data DIR] [--seconds S] [--python PYTHON] [--tools DIR]
#
# --data: CIFAR-10's binary files, for a real training at the end (2 epochs; the sample otherwise). --tools: where what
# is not installed was brought to: meson/meson.py (of Meson's source), bin/ninja, doctest/doctest.h. Prints what it does
# and writes it to tools/bench/results/DATE-gpu.md, and to the folder $OUT if that is set. The exit status is that of
# the tests.
set -eu
cd "$(dirname "$0")/.."

data='' seconds=3 python='' tools=''
while [ $# -gt 0 ]; do
    case $1 in
    --data | --seconds | --python | --tools)
        if [ $# -lt 2 ]; then echo "gpu_check.sh: expected a value after $1" >&2; exit 1; fi
        eval "${1#--}=\$2"
        shift 2 ;;
    --help) sed -n '2,10s/^# \{0,1\}//p' tools/gpu_check.sh; exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1; --help lists them" >&2; exit 1 ;;
    esac
done
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi >/dev/null 2>&1; then
    echo "gpu_check.sh: expected a GPU and its driver, got none (nvidia-smi)" >&2
    exit 1
fi
export PATH="$PATH:/usr/local/cuda/bin"
if [ -n "$tools" ]; then
    tools=$(cd "$tools" && pwd)
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

# Only this machine's GPU: a third of the time to compile.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
if [ "$capability" = 90 ]; then capability=90a; fi
mkdir -p tools/bench/results
report=tools/bench/results/$(date +%Y-%m-%d)-gpu.md
build=build-gpu
if [ -f $build/build.ninja ]; then
    meson configure $build -Dcuda=enabled -Dtests=enabled -Dgpu_arch="sm_$capability"
else
    meson setup $build --buildtype=release -Dcuda=enabled -Dtests=enabled -Dgpu_arch="sm_$capability"
fi
ninja -C $build

say() { tee -a "$report" ${OUT:+"$OUT/$(basename "$report")"}; } # at once: it is there even if this is stopped
rm -f "$report" ${OUT:+"$OUT/$(basename "$report")"}
{
    echo "# GPU, $(date +%Y-%m-%d)"
    echo
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1
    echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), sm_$capability, $seconds s per figure"
    echo
    echo '```'
} | say

status=0
echo "== tests" | say
kinds=portable
if [ "$capability" = 90a ]; then kinds='portable hopper'; fi
for kernels in $kinds; do
    export RG_GPU_KERNELS=$kernels
    if $build/tests/rg_tests -ts=gpu >$build/gpu-tests.txt 2>&1; then :; else status=1; fi
    { grep -m 20 -E "ERROR|values:|describe" $build/gpu-tests.txt || true; tail -n 3 $build/gpu-tests.txt; } | say
done
export RG_GPU_KERNELS=portable

if command -v compute-sanitizer >/dev/null; then
    echo "== compute-sanitizer: a training step and a prediction" | say
    for mode in train infer; do
        if compute-sanitizer --error-exitcode 9 $build/bench_train --device cuda --precision bf16 --batch 4 --seconds 0 \
            --mode $mode >$build/sanitizer.txt 2>&1; then :; else status=1; fi
        tail -n 2 $build/sanitizer.txt | say
    done
fi

echo "== training and prediction, images/s" | say
ours() { # a program that fails is a line of the report, not the end of it
    $build/bench_train --device cuda --seconds "$seconds" "$@" 2>&1 | tail -n 1 | say
}
for precision in bf16 fp32; do
    for batch in 256 1024; do
        for mode in train infer; do ours --precision $precision --batch $batch --mode $mode; done
    done
done
ours --net B --precision bf16 --batch 32
ours --net C --precision bf16 --batch 128
for kernels in $kinds; do
    echo "== $kernels kernels one by one, launched one at a time" | say
    RG_GPU_KERNELS=$kernels $build/bench_train --device cuda --precision bf16 --batch 1024 --seconds 1 --profile 2>&1 |
        tail -n +3 | say
done
if [ "$capability" = 90a ]; then
    echo "== training with the kernels for Hopper GPUs, images/s" | say
    for batch in 256 1024; do RG_GPU_KERNELS=hopper ours --precision bf16 --batch $batch --mode train; done
fi

for candidate in ${python:-python3 /usr/bin/python3}; do
    if ! "$candidate" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then continue; fi
    echo "== PyTorch" | say
    for batch in 256 1024; do
        for how in '' --compile; do
            "$candidate" tools/bench/torch_train.py --device cuda --precision bf16 --batch $batch --seconds "$seconds" \
                $how 2>&1 | tail -n 1 | say
        done
    done
    break
done

echo "== train_cifar" | say
$build/train_cifar --device cuda --precision bf16 --epochs 2 --runs $build/runs ${data:+--data "$data"} 2>&1 | say
if command -v mpiexec >/dev/null; then
    # Ranks that share batch statistics, on however many GPUs, are to train as one; those that idle change nothing.
    for how in '1 share' '4 share' '4 idle'; do
        ranks=${how% *} name=check-${how% *}-${how#* }
        rm -rf "$build/runs/$name"
        mpiexec -n "$ranks" $build/train_cifar --device cuda --spare-ranks "${how#* }" --precision fp32 --sync-bn \
            --lr 0.001 --augment none --shuffle never --steps 20 --runs $build/runs --run-name "$name" 2>&1 |
            grep -v '^epoch' | say
        grep -o '"loss": *[0-9.e-]*' "$build/runs/$name/metrics.jsonl" | sed -n 20p | say
    done
    gpus=$(nvidia-smi -L | wc -l)
    if [ "$gpus" -gt 1 ]; then
        echo "== train_cifar on $gpus GPUs, a rank each" | say
        mpiexec -n "$gpus" $build/train_cifar --device cuda --precision bf16 --epochs 2 --runs $build/runs \
            ${data:+--data "$data"} 2>&1 | say
    fi
fi
echo '```' | say
echo "written to $report"
exit $status
