#!/bin/sh
# Measures the same network in ringgrad and in PyTorch in turn, and prints a table of the ratios.
#
#     sh tools/bench/vs_pytorch.sh [--python PYTHON] [--rounds N] [--threads N] [--seconds S] [--batch N]
#                                  [--precision fp32|fp32-strict|bf16] [--build FOLDER] [--net NAME] [--size N]
#
# A round measures every case once, so that other load affects all cases alike. Medians are compared with medians, and
# best values with best values. torch() below has the settings that make PyTorch fast.
set -eu
cd "$(dirname "$0")/../.."

python='' rounds=5 threads=$(nproc) seconds=5 batch=256 precision=fp32 build=build net=cifar size=32
while [ $# -gt 0 ]; do
    case $1 in
    --python | --rounds | --threads | --seconds | --batch | --precision | --build | --net | --size)
        if [ $# -lt 2 ]; then echo "vs_pytorch.sh: expected a value after $1" >&2; exit 1; fi
        eval "${1#--}=\$2"
        shift 2 ;;
    --help) sed -n '2,8s/^# \{0,1\}//p' tools/bench/vs_pytorch.sh; exit 0 ;;
    *) echo "vs_pytorch.sh: unknown option $1; --help lists them" >&2; exit 1 ;;
    esac
done

for candidate in ${python:-python3 /usr/bin/python3}; do
    if "$candidate" -c 'import torch' 2>/dev/null; then found=$candidate; break; fi
done
if [ -z "${found:-}" ]; then
    echo "vs_pytorch.sh: expected a Python with torch, got none (tried: ${python:-python3 /usr/bin/python3});" \
        "install it (Debian: apt-get install python3-torch) or pass --python" >&2
    exit 1
fi
if [ ! -x "$build/bench_train" ]; then
    echo "vs_pytorch.sh: expected $build/bench_train, got none; run: meson setup $build && ninja -C $build" >&2
    exit 1
fi

# Runs PyTorch with its fastest settings. Each operation allocates its result, so glibc keeps freed memory in huge pages
# instead of returning it. The OpenMP threads of forward and backward must not spin against each other. PyTorch's own
# kernels use AVX-512 only on request, which is left out if the CPU lacks it.
torch() {
    OMP_NUM_THREADS=$threads GOMP_SPINCOUNT=0 \
        MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=20000000000 MALLOC_TOP_PAD_=268435456 \
        GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $capability \
        "$found" tools/bench/torch_train.py --batch "$batch" --threads "$threads" --seconds "$seconds" \
        --precision "${precision%-strict}" --net "$net" --size "$size" --build "$build" "$@"
}
capability='env'
if grep -qw avx512bw /proc/cpuinfo; then capability="env ATEN_CPU_CAPABILITY=avx512"; fi
ours() {
    "$build/bench_train" --net "$net" --size "$size" --batch "$batch" --threads "$threads" --seconds "$seconds" \
        --precision "$precision" "$@"
}

results=$(mktemp)
trap 'rm -f "$results"' EXIT
measure() { # mode, name in the table, command...
    mode=$1 name=$2 program=$3
    shift 3
    line=$("$program" --mode "$mode" "$@") # not in a pipe, so that a failure ends the script
    echo "$mode:$name: $line" | tee -a "$results" >&2
}
sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1
echo "$(date +%F), $("$found" -c 'import torch; print("PyTorch", torch.__version__)'), $threads threads, $precision," \
    "$net at $size x $size, batch $batch, $rounds rounds of ${seconds} s, load before: $(cut -d' ' -f1 /proc/loadavg)"
echo "PyTorch runs with memory kept by glibc in huge pages, OMP_NUM_THREADS=$threads, GOMP_SPINCOUNT=0, $capability"
for round in $(seq "$rounds"); do
    echo "round $round" >&2
    for mode in train infer; do
        measure "$mode" ringgrad ours
        measure "$mode" 'ringgrad, op by op' ours --no-accelerate
        measure "$mode" 'PyTorch channels_last' torch --layout nhwc
        measure "$mode" 'PyTorch contiguous' torch --layout nchw
    done
    measure train 'PyTorch channels_last, traced' torch --layout nhwc --traced
    measure train 'PyTorch contiguous, traced' torch --layout nchw --traced
    measure infer 'PyTorch channels_last, frozen' torch --layout nhwc --frozen
    measure infer 'PyTorch contiguous, frozen' torch --layout nchw --frozen
done

awk -F: '
function value(text, key,  words, i, n) {
    n = split(text, words, " ")
    for (i = 1; i <= n; ++i) if (index(words[i], key "=") == 1) return substr(words[i], length(key) + 2) + 0
}
function median(case_,  i, j, t, sorted, n) {
    n = count[case_]
    for (i = 1; i <= n; ++i) {
        t = medians[case_, i]
        for (j = i - 1; j >= 1 && sorted[j] > t; --j) sorted[j + 1] = sorted[j]
        sorted[j + 1] = t
    }
    return n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
}
{
    id = $1 ":" $2
    if (!(id in count)) order[++cases] = id
    medians[id, ++count[id]] = value($3, "images_per_s")
    if (value($3, "images_per_s_max") > best[id]) best[id] = value($3, "images_per_s_max")
}
END {
    printf "\n%-6s %-30s %26s %22s\n", "", "", "images/s median     best", "ringgrad / it  median     best"
    for (i = 1; i <= cases; ++i) {
        split(order[i], part, ":")
        ours = part[1] ":ringgrad"
        m = median(order[i])
        if (order[i] == ours) {
            printf "%-6s %-30s %17.1f %8.1f\n", part[1], part[2], m, best[ours]
            continue
        }
        printf "%-6s %-30s %17.1f %8.1f %21.2f %8.2f\n", part[1], part[2], m, best[order[i]], median(ours) / m,
            best[ours] / best[order[i]]
        if (part[2] ~ /^ringgrad/) continue
        if (m > top[part[1]]) top[part[1]] = m
        if (best[order[i]] > top_best[part[1]]) top_best[part[1]] = best[order[i]]
    }
    for (i = 1; i <= split("train infer", modes, " "); ++i) {
        mode = modes[i]
        printf "%s: ringgrad is %.2f times the fastest PyTorch by medians, %.2f times by best\n", mode,
            median(mode ":ringgrad") / top[mode], best[mode ":ringgrad"] / top_best[mode]
    }
}' "$results"
