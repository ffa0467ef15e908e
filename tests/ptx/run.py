"""Interprets the PTX of all kernels and compares the results with the reference.

usage: run.py [--first] RECORDER quick|all PTX_FILE...

RECORDER is the program of record.cpp. Runs as many cases at a time as the machine has CPUs. Prints a line per case, and
then the kernels that no case uses; after `all` these are reductions of so many rows that the interpreter would take
hours. The exit status is 1 if a case failed. With --first, runs only cases that use a kernel of the first file, and ends
with the first that fails.
"""
import collections
import json
import math
import multiprocessing
import pathlib
import struct
import subprocess
import sys
import time

import machine
from machine import READ, WRITE
from translate import Fault, read_module


def differs(got, want, rms, largest):
    """Returns "" if the values agree within the tolerance, else a text. Has the rules of differs() in op_check.h."""
    errors, squares, worst = [], 0, 0
    for n, (x, y) in enumerate(zip(got, want)):
        if math.isnan(x) != math.isnan(y) or (x != y and not math.isnan(x) and (math.isinf(x) or math.isinf(y))):
            return f"element {n} of {len(want)} is {x}, expected {y}"
        if math.isfinite(y):
            errors.append((abs(x - y), y, n))
            squares += y * y
    if not any(e[0] for e in errors):
        return ""
    scale = math.sqrt(squares / len(errors))
    total = sum(e[0] ** 2 for e in errors) - max(errors)[0] ** 2
    root = math.sqrt(max(total, 0) / len(errors))
    worst, n = max((e / max(scale, abs(y), 1e-300), n) for e, y, n in errors)
    if root <= rms * scale and worst <= largest:
        return ""
    return (f"error rms {root / max(scale, 1e-300):.3g} (at most {rms}), largest {worst:.3g} (at most {largest}) at "
            f"element {n} of {len(want)}: {got[n]}, expected {want[n]}")


def values_of(memory, address, kind, count):
    form = {"f32": "f", "bf16": "H", "f64": "d", "i32": "i", "u8": "B"}[kind]
    values = struct.unpack_from(f"<{count}{form}", memory.data, address - memory.base)
    return [machine.BF16[v] for v in values] if kind == "bf16" else values


class Module:
    """The kernels of all files, which are translated when a case uses them."""

    def __init__(self, recorder, texts):
        self.makers, self.kernels, self.run = {}, {}, collections.Counter()
        self.first = set(read_module(texts[0]))  # names of the first file's kernels
        for text in reversed(texts):
            self.makers.update(read_module(text))
        names = subprocess.run(["nm", recorder], capture_output=True, text=True, check=True).stdout
        symbols = [line.split() for line in names.splitlines()]
        base = next(int(s[0], 16) for s in symbols if s[-1] == "__executable_start")
        self.names = {int(s[0], 16) - base: s[-1] for s in symbols if len(s) == 3 and s[1] in "tTwW"}

    def kernel(self, offset):
        name = self.names[offset]
        if name not in self.kernels:
            self.kernels[name] = self.makers[name]()
        self.run[name] += 1
        return self.kernels[name]


def run_case(module, case):
    """Returns "" or a text about the first fault or wrong result."""
    base = min(m[0] for m in case["memory"]) if case["memory"] else 0
    end = max(m[0] + m[1] for m in case["memory"]) if case["memory"] else 0
    memory = machine.Memory("global", base, end - base + 256)
    for address, size, contents, writable in case["memory"]:
        offset = address - base
        memory.state[offset:offset + size] = bytes([(READ if contents else 0) | (WRITE if writable else 0)]) * size
        if contents:
            memory.data[offset:offset + size] = bytes.fromhex(contents)
    try:
        for offset, grid, block, shared_bytes, parameters in case["launches"]:
            kernel = module.kernel(offset)
            machine.Launch(kernel, grid, block, shared_bytes, [bytes.fromhex(p) for p in parameters], memory).run()
    except Fault as error:
        return str(error)
    for n, (address, kind, rms, largest, expected) in enumerate(case["results"]):
        want = struct.unpack(f"<{len(expected) // 16}d", bytes.fromhex(expected))
        if error := differs(values_of(memory, address, kind, len(want)), want, rms, largest):
            return f"result {n}: {error}"
    return ""


def run_line(line):
    """Runs a case in a worker process. Returns its name, time and error, and the number of launches of each kernel."""
    case = json.loads(line)
    module.run.clear()
    begin = time.monotonic()
    error = run_case(module, case)
    return case["name"], time.monotonic() - begin, error, module.run


def main():
    global module  # inherited by the worker processes
    arguments = sys.argv[1:]
    first = arguments[:1] == ["--first"]
    recorder, amount, *files = arguments[first:]
    module = Module(recorder, [pathlib.Path(f).read_text() for f in files])
    lines = subprocess.run([recorder, amount], capture_output=True, text=True, check=True).stdout.splitlines()
    if first:
        lines = [line for line in lines
                 if any(module.names[launch[0]] in module.first for launch in json.loads(line)["launches"])]
    failed, launches, begin = 0, collections.Counter(), time.monotonic()
    with multiprocessing.get_context("fork").Pool() as pool:
        for name, seconds, error, case_launches in pool.imap_unordered(run_line, lines):
            print(f"{seconds:6.1f} s  {name}  {error}", flush=True)
            if error and first:
                return 1
            failed += error != ""
            launches += case_launches
    for name in sorted(module.makers.keys() - launches.keys()):
        print("not run:", name)
    print(f"{len(lines)} cases, {failed} failed; {len(launches)} of {len(module.makers)} kernels, "
          f"{sum(launches.values())} launches, {time.monotonic() - begin:.0f} s")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
