#!/usr/bin/env python3
"""Predicts with the same network in ringgrad and in ONNX Runtime in turn, and prints a table of the ratios.

    npm install --ignore-scripts onnxruntime-node          # in any folder; then, with Node.js:
    NODE_PATH=that/folder/node_modules python3 tools/bench/vs_onnxruntime.py

The scripts that npm would run only download libraries for GPUs.

train_cifar makes the network, in one step on the built-in sample, and export_onnx writes it for ONNX Runtime. A round
measures every case once. The table has medians over the rounds: milliseconds per call, and the ratio of the two in the
same round.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent


def output(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"vs_onnxruntime.py: expected success of {command[0]}, got status {done.returncode}:\n{done.stderr}")
    return done.stdout


def export(options, folder):
    """Makes the network, and returns the path of its ONNX file."""
    net = ["--net", options.net, "--size", options.size]
    if options.size > 64 and options.net.startswith("resnet18"):
        net += ["--stem", "imagenet"]
    output(options.build / "train_cifar", *net, "--steps", 1, "--batch-size", 8, "--progress", "none", "--runs", folder,
           "--run-name", "net")
    output(options.build / "export_onnx", folder / "net", folder / "net.onnx")
    return folder / "net.onnx"


def ringgrad(options, batch, threads):
    line = output(options.build / "bench_train", "--mode", "infer", "--net", options.net, "--size", options.size,
                  "--batch", batch, "--threads", threads, "--seconds", options.seconds)
    return float(re.search(r"ms_per_iter=([\d.]+)", line)[1])


def onnxruntime(options, net, batch, threads):
    return float(output("node", HERE / "onnxruntime.js", net, batch, options.size, threads, options.seconds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build")
    parser.add_argument("--net", default="cifar")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    cases = [(int(b), int(t)) for t in options.threads.split(",") for b in options.batches.split(",")]
    times = {case: ([], []) for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        net = export(options, pathlib.Path(folder))
        for _ in range(options.rounds):
            for case in cases:
                times[case][0].append(ringgrad(options, *case))
                times[case][1].append(onnxruntime(options, net, *case))
    with open("/proc/cpuinfo") as f:
        model = re.search(r"model name\s*: (.*)", f.read())[1]
    print(f"{time.strftime('%F')}, {model}, {options.net} at {options.size} x {options.size}, fp32"
          f"{', RG_ISA=' + os.environ['RG_ISA'] if os.environ.get('RG_ISA') else ''}, {options.rounds} rounds of "
          f"{options.seconds:g} s\n")
    print("| threads | batch | ringgrad ms | ONNX Runtime ms | ratio (least to greatest) |\n|---|---|---|---|---|")
    for batch, threads in cases:
        ours, theirs = times[batch, threads]
        ratios = [b / a for a, b in zip(ours, theirs)]
        print(f"| {threads} | {batch} | {statistics.median(ours):.2f} | {statistics.median(theirs):.2f} | "
              f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")


main()
