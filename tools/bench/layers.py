#!/usr/bin/env python3
"""Compares pooling, GELU and convolution of all kinds with PyTorch: forward pass and all gradients.

usage: layers.py [--build FOLDER] [--threads N] [--rounds N] [--python PYTHON] [--batch N] [--depthwise]

A round measures every layer with bench_layers, and then with PyTorch in both memory layouts, so that other load affects
all alike. Prints the median milliseconds, and for each layout the median over the rounds of the ratio. Above 1,
ringgrad is faster. Without PyTorch, prints only our own times. Both run with memory that exists before the
measurement: see torch_environment() for PyTorch's settings.

--depthwise measures depthwise convolutions of many sizes instead. If NODE_PATH has onnxruntime-node, it also measures
their forward pass in ONNX Runtime.
"""
import argparse
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

# name, shape [n c h w], function of (torch.nn.functional, x, filters), shape of the filters or None
LAYERS = [
    ("max_pool_3x3_stride_2", (16, 64, 112, 112), lambda F, x, w: F.max_pool2d(x, 3, 2, 1), None),
    ("avg_pool_3x3_stride_2", (16, 64, 112, 112), lambda F, x, w: F.avg_pool2d(x, 3, 2, 1), None),
    ("max_pool_2x2", (16, 64, 112, 112), lambda F, x, w: F.max_pool2d(x, 2), None),
    ("global_avg_pool", (64, 2048, 7, 7), lambda F, x, w: F.adaptive_avg_pool2d(x, 1), None),
    ("gelu", (16, 64, 112, 112), lambda F, x, w: F.gelu(x), None),
    ("conv_3x3_32", (16, 32, 32, 32), lambda F, x, w: F.conv2d(x, w, padding=1), (32, 32, 3, 3)),
    ("conv_3x3_64", (16, 64, 56, 56), lambda F, x, w: F.conv2d(x, w, padding=1), (64, 64, 3, 3)),
    ("conv_3x3_512", (16, 512, 14, 14), lambda F, x, w: F.conv2d(x, w, padding=1), (512, 512, 3, 3)),
    ("conv_1x1_64", (16, 64, 56, 56), lambda F, x, w: F.conv2d(x, w), (64, 64, 1, 1)),
    ("depthwise_3x3", (16, 64, 56, 56), lambda F, x, w: F.conv2d(x, w, padding=1, groups=64), (64, 1, 3, 3)),
    ("depthwise_3x3_stride_2", (16, 64, 56, 56),
     lambda F, x, w: F.conv2d(x, w, stride=2, padding=1, groups=64), (64, 1, 3, 3)),
    ("depthwise_3x3_512", (16, 512, 14, 14), lambda F, x, w: F.conv2d(x, w, padding=1, groups=512), (512, 1, 3, 3)),
    ("grouped_3x3_32", (16, 64, 56, 56), lambda F, x, w: F.conv2d(x, w, padding=1, groups=32), (64, 2, 3, 3)),
    ("grouped_3x3_16", (16, 64, 56, 56), lambda F, x, w: F.conv2d(x, w, padding=1, groups=16), (64, 4, 3, 3)),
    ("grouped_3x3_8", (16, 64, 56, 56), lambda F, x, w: F.conv2d(x, w, padding=1, groups=8), (64, 8, 3, 3)),
    ("grouped_3x3_4", (16, 64, 56, 56), lambda F, x, w: F.conv2d(x, w, padding=1, groups=4), (64, 16, 3, 3)),
    ("dilated_3x3", (16, 64, 56, 56), lambda F, x, w: F.conv2d(x, w, padding=2, dilation=2), (64, 64, 3, 3)),
]
REPEATS = 3  # measurements per layer and round, of which the median counts


def depthwise(name):
    """Returns kernel, channels, width and stride of a depthwise convolution that bench_layers names, else None."""
    found = re.fullmatch(r"depthwise_(\d+)x\d+_(\d+)_(\d+)_(\d+)", name)
    return found and [int(group) for group in found.groups()]


def layers(names, batch):
    """Yields the layers of these names in the form of LAYERS."""
    for name in names:
        if not depthwise(name):
            yield from (layer for layer in LAYERS if layer[0] == name)
            continue
        kernel, c, size, stride = depthwise(name)
        yield (name, (batch, c, size, size),
               lambda F, x, w, s=stride, p=kernel // 2, c=c: F.conv2d(x, w, stride=s, padding=p, groups=c),
               (c, 1, kernel, kernel))


def onnx_field(number, value):
    """Encodes a field of a protobuf message: a string, an encoded message, or a whole number."""
    def varint(n):
        return bytes([n]) if n < 128 else bytes([n % 128 + 128]) + varint(n // 128)
    if isinstance(value, int):
        return varint(8 * number) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(8 * number + 2) + varint(len(value)) + value


def onnx_depthwise(kernel, c, stride):
    """Returns an ONNX model (onnx.proto3) that is one depthwise convolution."""
    def message(*fields):
        return b"".join(onnx_field(*f) for f in fields)

    def attribute(name, *ints):
        return message((1, name), *((8, i) for i in ints), (20, 7))

    def value(name):
        sizes = message(*((1, message((2, "n"))) for _ in range(4)))
        return message((1, name), (2, message((1, message((1, 1), (2, sizes))))))
    filters = message((1, c), (1, 1), (1, kernel), (1, kernel), (2, 1), (8, "w"),
                      (9, struct.pack("<f", 0.5) * (c * kernel * kernel)))
    groups = message((1, "group"), (3, c), (20, 2))
    conv = message((1, "x"), (1, "w"), (2, "y"), (4, "Conv"), (5, attribute("strides", stride, stride)),
                   (5, attribute("pads", *4 * [kernel // 2])), (5, groups))
    graph = message((1, conv), (2, "depthwise"), (5, filters), (11, value("x")), (12, value("y")))
    return message((1, 8), (7, graph), (8, message((2, 13))))


def measure_onnxruntime(name, batch, threads):
    """Returns the milliseconds of a depthwise convolution in ONNX Runtime."""
    kernel, c, size, stride = depthwise(name)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(onnx_depthwise(kernel, c, stride))
        file.flush()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "onnxruntime.js")
        return float(lines(["node", script, file.name] + [str(n) for n in (batch, size, threads, 0.2, c)])[0][0])


def median_ms(f):
    f()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        f()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def measure_torch(names, batch, threads):
    """Prints a line per layer and layout: name, layout, milliseconds forward and backward."""
    import torch
    import torch.nn.functional as F
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    for name, shape, layer, filters in layers(names, batch):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).to(memory_format=layout).requires_grad_()
            w = torch.randn(filters).to(memory_format=layout).requires_grad_() if filters else None
            y = layer(F, x, w)
            dy = torch.randn(y.shape).to(memory_format=layout)
            inputs = [x] if w is None else [x, w]
            with torch.no_grad():
                forward = median_ms(lambda: layer(F, x, w))
            backward = median_ms(lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True))
            print(name, str(layout)[6:], forward, backward, flush=True)


def torch_environment(threads):
    """Returns the environment in which PyTorch is fastest; the same as in vs_pytorch.sh."""
    settings = dict(os.environ, OMP_NUM_THREADS=str(threads), GOMP_SPINCOUNT="0", MALLOC_ARENA_MAX="1",
                    MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="20000000000", MALLOC_TOP_PAD_="268435456",
                    GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
    with open("/proc/cpuinfo") as f:
        if "avx512bw" in f.read():
            settings["ATEN_CPU_CAPABILITY"] = "avx512"
    return settings


def lines(command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options)
    return [line.split() for line in result.stdout.splitlines()]


def find_torch(pythons):
    for python in pythons:
        if shutil.which(python) is None:
            continue
        found = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
        if found.returncode == 0:
            return python, found.stdout.strip()
    print(f"layers.py: expected a Python with torch, got none (tried: {' '.join(pythons)}); install it (Debian: "
          "apt-get install python3-torch) or pass --python", file=sys.stderr)
    return None, None


def compare(args):
    python, version = find_torch([args.python] if args.python else ["python3", "/usr/bin/python3"])
    ours, theirs, onnx = {}, {}, {}  # name -> a pair (forward, backward) per round; for PyTorch, (name, layout)
    for round in range(args.rounds):
        print(f"round {round + 1}", file=sys.stderr)
        command = [os.path.join(args.build, "bench_layers"), "--threads", str(args.threads), "--rounds", str(REPEATS)]
        command += ["--batch", str(args.batch), "--depthwise"] if args.depthwise else []
        for name, *values in lines(command):
            ours.setdefault(name, []).append([float(v.split("=")[1]) for v in values])
        for name in ours if args.depthwise and os.environ.get("NODE_PATH") else ():
            onnx.setdefault(name, []).append(measure_onnxruntime(name, args.batch, args.threads))
        if not python:
            continue
        for name, layout, *values in lines([python, __file__, "--measure-torch", ",".join(ours), "--batch",
                                            str(args.batch), "--threads", str(args.threads)],
                                           env=torch_environment(args.threads)):
            theirs.setdefault((name, layout), []).append([float(v) for v in values])
    print(f"{args.threads} threads, batch {args.batch}, {args.rounds} rounds, PyTorch {version or 'missing'}")
    layouts = ("contiguous_format", "channels_last") if python else ()
    print(f"{'layer':24}{'pass':>10}{'ringgrad':>12}" + "".join(f"{layout:>20}{'ratio':>8}" for layout in layouts)
          + (f"{'ONNX Runtime':>20}{'ratio':>8}" if onnx else ""))
    for name, rounds in ours.items():
        for i, kind in enumerate(("forward", "backward")):
            row = f"{name:24}{kind:>10}{statistics.median(r[i] for r in rounds):9.3f} ms"
            for layout in layouts:
                times = theirs[name, layout]
                ratio = statistics.median(t[i] / o[i] for o, t in zip(rounds, times))
                row += f"{statistics.median(t[i] for t in times):17.3f} ms{ratio:8.2f}"
            if onnx and kind == "forward":
                ratio = statistics.median(t / o[i] for o, t in zip(rounds, onnx[name]))
                row += f"{statistics.median(onnx[name]):17.3f} ms{ratio:8.2f}"
            print(row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with bench_layers")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="number of threads for both")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds")
    parser.add_argument("--python", help="a Python with torch")
    parser.add_argument("--batch", type=int, default=16, help="images of a depthwise convolution")
    parser.add_argument("--depthwise", action="store_true", help="measure depthwise convolutions of many sizes")
    parser.add_argument("--measure-torch", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure_torch:
        measure_torch(args.measure_torch.split(","), args.batch, args.threads)
    else:
        compare(args)


if __name__ == "__main__":
    main()
