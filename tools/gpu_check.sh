#!/bin/sh
# Everything that only a machine with an NVIDIA GPU can tell: builds for it, tests every op on it against the reference,
# looks for faults with compute-sanitizer if that is there, trains, and measures beside PyTorch if a Python has it.
#
#     sh tools/gpu_check.sh [--data DIR] [--seconds S] [--python PYTHON]
#
# --data: CIFAR-10's binary files, for a real training at the end (2 epochs; the sample otherwise). Prints what it does
# and writes it to tools/bench/results/DATE-gpu.md. The exit status is that of the tests.
set -eu
cd "$(dirname "$0")/.."

data='' seconds=3 python=''
while [ $# -gt 0 ]; do
    case $1 in
    --data | --seconds | --python)
        if [ $# -lt 2 ]; then echo "gpu_check.sh: expected a value after $1" >&2; exit 1; fi
        eval "${1#--}=\$2"
        shift 2 ;;
    --help) sed -n '2,8s/^# \{0,1\}//p' tools/gpu_check.sh; exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1; --help lists them" >&2; exit 1 ;;
    esac
done
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi >/dev/null 2>&1; then
    echo "gpu_check.sh: expected a GPU and its driver, got none (nvidia-smi)" >&2
    exit 1
fi
export PATH="$PATH:/usr/local/cuda/bin"
for tool in nvcc meson ninja; do
    if ! command -v $tool >/dev/null; then echo "gpu_check.sh: expected $tool in PATH, got none" >&2; exit 1; fi
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

{
    echo "# GPU, $(date +%Y-%m-%d)"
    echo
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1
    echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), sm_$capability, $seconds s per figure"
    echo
    echo '```'
} >"$report"
say() { tee -a "$report"; }

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
    # Ranks that share batch statistics, on one GPU, are to train as one.
    for ranks in 1 4; do
        rm -rf "$build/runs/check-$ranks"
        mpiexec -n $ranks $build/train_cifar --device cuda --precision fp32 --sync-bn --lr 0.001 --augment none \
            --shuffle never --steps 20 --runs $build/runs --run-name check-$ranks 2>&1 | tail -n 2 | say
        grep -o '"loss": *[0-9.e-]*' $build/runs/check-$ranks/metrics.jsonl | sed -n 20p | say
    done
fi
echo '```' >>"$report"
echo "written to $report"
exit $status
