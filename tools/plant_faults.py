#!/usr/bin/env python3
"""Plants faults in the CUDA kernels, one at a time, and checks that the tests on the executor detect them.

usage: tools/plant_faults.py BUILD_FOLDER [NAME...]
       tools/plant_faults.py --check    checks that the source still has the text of each fault

A fault is an edit of a copy of one file. The kernel file that includes it is compiled from the copy, and linked before
the library to the unit tests of an existing build. Prints a line per fault with the first failure. The exit status is 1
if a fault was not detected. Takes about a minute per fault.
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name, edited file, compiled kernel file, old text, new text
FAULTS = [
    ("no barrier before the tiles are overwritten", "conv.cu", "conv", "__syncthreads(); // all warps have read the previous tiles", ""),
    ("no barrier before the tiles are read", "conv.cu", "conv",
     "        __syncthreads();\n        if (tap + kTaps < taps)", "        if (tap + kTaps < taps)"),
    ("no barrier before the results are read", "conv.cu", "conv",
     "    __syncthreads();\n    const int channel", "    const int channel"),
    ("no barrier before a gradient's sums", "conv.cu", "conv", "__syncthreads(); // all threads have read the results", ""),
    ("one column too many", "conv.cu", "conv", "column >= g.in_w", "column > g.in_w"),
    ("the taps that a stride leaves taken for the first", "conv.cu", "conv", "(padded - tap * dilation) % stride != 0) ++tap", "tap * dilation % stride != 0) ++tap"),
    ("wrong lanes for the rows of a matrix", "conv.cu", "conv", "+ t + lane / 16 * 8)", "+ t + lane % 2 * 8)"),
    ("wrong lanes for a transposed matrix", "conv_grad.cu", "conv_grad", "lane % 8 + lane / 16 * 8", "lane % 16"),
    ("a split of the sum left out", "conv_grad.cu", "conv_grad", "split < splits", "split + 1 < splits"),
    ("no ones for the bias", "conv_grad.cu", "conv_grad", "value = float(tap.r >= g.r)", "value = float(tap.r > g.r)"),
    ("the lower half of a product left out", "products.cuh", "conv_grad", "mma_tf32_16x8x8(sum, a_low, b_high);", ""),
    ("no barrier in the sums of columns", "columns.cuh", "norm",
     "    __syncthreads();\n    if (y > 1", "    if (y > 1"),
    ("no barrier in the tree of sums", "columns.cuh", "norm", "__syncthreads();\n        if (y >= step)", "if (y >= step)"),
    ("a normalisation that is not in the filters", "conv.cu", "conv", "w[i] * scale[i / size]", "w[i]"),
    ("the filters' taps beside their places", "conv.cu", "conv", "o * g.taps() + t);", "o * g.taps());"),
    ("means taken for the same", "conv.cuh", "conv", "double(mean[c]) + n * d * d", "double(mean[c])"),
    ("a step between taps forgotten", "conv.cu", "conv", "tap.r * g.tap_step.h * full.s", "tap.r * g.stride.h * full.s"),
    ("taps that are not dilated", "conv_grad.cu", "conv_grad", "first_column + tap.s * g.dilation.w", "first_column + tap.s"),
    ("a group's filters taken for the first", "conv_groups.cu", "conv_groups", "first_filter = channel / a.c * a.k", "first_filter = 0 * a.k"),
    ("one result too many", "conv_groups.cu", "conv_groups", "distance / stride < results", "distance / stride <= results"),
    ("padding counted as pixels", "pool.cu", "pool", "max(result * stride - pad, 0)", "result * stride - pad"),
    ("a position from the image's edge", "pool.cu", "pool", "(i - top) * g.columns.window", "i * g.columns.window"),
    ("one window too many", "pool.cu", "pool", "row / rows.stride, rows.results - 1", "row / rows.stride, rows.results"),
    ("taps counted beyond a row of the filter", "products.cuh", "conv", "if (++s == width) s = 0, ++r;", "++s;"),
    ("one value too many", "elements.cu", "elements", "if (i < count) f(i);", "if (i <= count) f(i);"),
    ("rows copied with the other tensor's step", "elements.cu", "elements", "from[row * from_step", "from[row * to_step"),
    ("a sum of overlapping chunks", "elements.cu", "elements", "begin + chunk < count ? begin + chunk : count", "count"),
    ("an update in spite of a NaN", "elements.cu", "elements",
     "        if (found_non_finite(factors.non_finite_at)) return;\n        const float g = factors.clip()",
     "        const float g = factors.clip()"),
    ("a norm of the gradients that leaves out a block", "elements.cu", "elements", "if (threadIdx.x == 0) sums[blockIdx.x] = sum;",
     "if (threadIdx.x == 0) sums[blockIdx.x] = blockIdx.x ? sum : 0;"),
    ("no weight decay factor per parameter", "elements.cu", "elements", "return decays ? by * decays[i] : by;", "return by;"),
    ("a loss that is not looked at", "elements.cu", "elements", "elementwise(count + (loss ? 1 : 0),",
     "elementwise(count,"),
    ("no fence before products read", "conv_hopper.cu", "conv_hopper", "        fence_proxy_async();\n        __syncwarp();", ""),
    ("no wait for products", "conv_hopper.cu", "conv_hopper", "            wgmma_wait(sum);\n", ""),
    ("a stage filled before it is free", "conv_hopper.cu", "conv_hopper", "(i / T::kStages + 1) % 2", "i / T::kStages % 2"),
    ("an operand's strides exchanged", "conv_hopper.cu", "conv_hopper", "T::kOctetBytes, T::kRowBytes);", "T::kRowBytes, T::kOctetBytes);"),
    ("no zeros to the right", "conv_hopper.cu", "conv_hopper", "i % 2 * (W + 1) * 16", "i % 2 * W * 16"),
    ("filters not turned round", "conv_hopper.cu", "conv_hopper", "gradient ? 8 - (3 * r + s)", "gradient ? 3 * r + s"),
    ("channels in the wrong lanes", "conv_hopper.cu", "conv_hopper", "                    transpose_quads(words);\n", ""),
    ("a residual left out", "conv_hopper.cu", "conv_hopper", "if (e.residual) eight", "if (false) eight"),
    ("statistics merged wrongly", "lane_sums.cuh", "conv_hopper", "d * d * float(count) * 0.5f", "d * d * float(count)"),
    ("pixels counted wrongly", "conv_hopper.cu", "conv_hopper", "(block_patches - group + 1) / 2", "block_patches / 2"),
    ("a gradient's sums of half of the lanes", "lane_sums.cuh", "conv_hopper",
     "sum.first += __shfl_xor_sync(kAllLanes, sum.first, lane_mask)", "sum.first += sum.first"),
    ("a sum over half of a warp", "reduce.cuh", "loss", "step = lanes / 2; step > 0; step /= 2) value +=",
     "step = lanes / 4; step > 0; step /= 2) value +="),
    ("a term of the gradient of layer norm left out", "norm.cu", "norm", "g_mean - hat * product_mean", "g_mean"),
    ("a row of layer norm normalised by another", "norm.cu", "norm", "stats[row].scale", "stats[0].scale"),
    ("all weights taken for those of the labels", "loss.cu", "loss", "return sums ? sums[0]", "return sums ? sums[1]"),
    ("weights left out of the sum of the targets", "loss.cu", "loss", "probability * target_sum", "probability"),
    ("a logit below zero taken for zero", "loss.cu", "loss", "(logits[i] < 0 ? e : 1)", "1"),
    ("a second level that adds the first parts again", "columns.cuh", "norm",
     "begin = int(blockIdx.y) * kReduceSlabs", "begin = 0 * int(blockIdx.y)"),
    ("no barrier between the threads of a value", "conv_grad.cu", "conv_grad",
     "__syncthreads();\n    if (first > 0", "if (first > 0"),
]


def run(command):
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def check():
    for name, file, _, old, _ in FAULTS:
        count = (ROOT / "gpu" / file).read_text().count(old)
        if count != 1:
            sys.exit(f"plant_faults.py: {name}: expected the text once in gpu/{file}, got it {count} times; "
                     f"update FAULTS: {old!r}")


def first_failure(build, folder, file, kernel, old, new):
    """Returns the first failure of the tests with the fault, or None if they pass."""
    text = (ROOT / "gpu" / file).read_text()
    copy = folder / "ringgrad" / "gpu"
    copy.mkdir(parents=True, exist_ok=True)
    (copy / file).write_text(text.replace(old, new))
    source = folder / "kernel.cpp"
    source.write_text(f'#include "ringgrad/gpu/{kernel}.cu"\n')
    made = run(["c++", "-std=c++20", "-O1", f"-I{folder}", f"-I{build}/include", "-c", str(source),
                "-o", str(folder / "kernel.o")])
    (copy / file).unlink()
    if made.returncode:
        sys.exit(f"plant_faults.py: {kernel}.cu with the fault does not compile:\n{made.stderr[:2000]}")
    objects = sorted(str(p) for p in (build / "tests" / "rg_tests.p").glob("*.o"))
    archives = sorted(str(p) for p in build.rglob("*.a"))
    libraries = run(["pkg-config", "--libs", "mpich"]).stdout.split() + ["-lpthread"]
    linked = run(["c++", *objects, str(folder / "kernel.o"), "-Wl,--start-group", *archives, "-Wl,--end-group",
                  *libraries, "-o", str(folder / "tests")])
    if linked.returncode:
        sys.exit(f"plant_faults.py: cannot link the tests (a build with -Dcuda=disabled?):\n{linked.stderr[:2000]}")
    result = run([str(folder / "tests"), "-tc=simt ops*", "--abort-after=1", "-nc"])
    if result.returncode == 0:
        return None
    lines = [line.strip() for line in result.stdout.splitlines()]
    return next((line for line in lines if line.startswith(("values:", "Error", "conv", "logged")) or "block" in line),
                f"exit status {result.returncode}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    check()
    if sys.argv[1] == "--check":
        return 0
    build = pathlib.Path(sys.argv[1]).resolve()
    undetected = 0
    for name, *fault in FAULTS:
        if sys.argv[2:] and not any(word in name for word in sys.argv[2:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            failure = first_failure(build, pathlib.Path(folder), *fault)
        print(f"{'detected' if failure else 'NOT DETECTED'}: {name} (gpu/{fault[0]}): {failure or ''}"[:230], flush=True)
        undetected += not failure
    return undetected > 0


sys.exit(main())
