#!/usr/bin/env python3
"""Calculates what a training step of cifar_net costs on an H200, without a GPU.

usage: tools/gpu_cost.py BUILD_FOLDER [--kernels hopper|portable] [--batch 1024] [--arch sm_90a]
                         [--nvdisasm PROGRAM] [--only WORD] [--hot]

Needs nvcc, and nvdisasm of CUDA 12.4 or newer, which not every toolkit contains: Debian's package nvidia-cuda-toolkit
(non-free) has one. --only takes the launches whose kernel contains WORD. --hot adds the instructions that take most
issue slots.

Method. tests/ptx/ptx_record runs a training step and records each launch with its real parameters. gpu_sass.py follows
some warps of the middle block of each launch through the machine code. It counts executed instructions, and from the
addresses it counts sectors of memory and bank conflicts. All other blocks are taken to be equal. The busiest SM gets
blocks / 132 of them, rounded up. The time of a launch is the longest of these bounds, plus 1.3 us:

    issue    one instruction per clock and scheduler
    pipe     the busiest unit: integers and comparisons at 1/2 per clock, conversions at 1/8, tensor cores, and so on
    latency  the time of a warp alone, times the rounds in which an SM takes its blocks
    shared   128 bytes per clock and SM, with bank conflicts; likewise
    L1       one line of 128 bytes per clock and SM
    L2       5.5 TB/s for the sectors that a block touches, each counted once
    HBM      4.3 TB/s for the same, but no more than the tensors of the op

Assumed: 1.7 GHz; loads that take 550 cycles, or 40 if the warp has read the same memory before; mma.sync at 62 % of
the peak rate. Not modelled: waits at barriers, warps that compete for one unit in bursts, blocks that differ, caches
that keep a tensor from one kernel to the next. Bounds overlap imperfectly, so a kernel may take 1.0 to 1.6 times its
bound. On an H200, a step took 1.6 to 1.7 times its calculated time.
"""
import argparse
import collections
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ptx"))
from gpu_sass import Elf, Kernel, Warp, hgmma_cycles
from translate import plain_name

SMS, CLOCK, HBM, L2, LAUNCH = 132, 1.7e9, 4.3e12, 5.5e12, 1.3e-6
IMAGES = 50000
# Cycles of a scheduler's unit per instruction. Other instructions take one issue slot and no unit of their own.
UNITS = {
    "integer": (2, "IADD3 IABS VIADD VIMNMX IMNMX VIADDMNMX LEA LOP3 SHF PRMT ISETP SEL FSEL FSETP FMNMX PLOP3 P2R R2P "
                   "FCHK F2FP VOTE FLO POPC I2FP"),
    "multiply": (2, "IMAD"),
    "float": (1, "FADD FMUL FFMA HFMA2"),
    "double": (2, "DADD DMUL DFMA DSETP"),
    "convert": (8, "MUFU I2F F2I F2F FRND"),
    "uniform": (2, "ULDC UMOV UIADD3 UIMAD ULEA ULOP3 USHF USEL UISETP UPRMT R2UR S2UR UFLO"),
}
UNIT_OF = {name: (unit, cycles) for unit, (cycles, names) in UNITS.items() for name in names.split()}


def unit_of(i):
    if i.name == "HMMA":
        return "tensor", 6.5
    if i.name == "HGMMA":  # each warp of a warpgroup issues it, and the warpgroup's product takes the whole SM
        return "tensor", hgmma_cycles(i)
    if i.name == "IMAD" and ("MOV" in i.mods or "IADD" in i.mods):
        return "multiply", 1
    return UNIT_OF.get(i.name, ("", 0))


def compile_kernels(build, arch, nvcc):
    """Returns the path of a cubin for each .cu file. Compiles those older than a file in gpu/ or a header in core/."""
    folder = build / "gpu_cost"
    folder.mkdir(exist_ok=True)
    newest = max(p.stat().st_mtime for p in [*(ROOT / "gpu").iterdir(), *(ROOT / "core").rglob("*.h")])
    cubins = []
    for source in sorted((ROOT / "gpu").glob("*.cu")):
        cubin = folder / f"{source.stem}-{arch}.cubin"
        cubins.append(cubin)
        if not cubin.exists() or cubin.stat().st_mtime < newest:
            options = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{build}/include",
                       f'-DRG_CUDA_ARCH="{arch}"']
            subprocess.run([nvcc, *options, "-arch=" + arch, "-cubin", "-o", cubin, source], check=True)
    return cubins


class Launch:
    """What a launch costs. `warps` are those that were followed, of the middle block."""

    def __init__(self, kernel, grid, block, dynamic_bytes, parameters, op_bytes):
        self.kernel, self.blocks, self.op_bytes = kernel, math.prod(grid), op_bytes
        self.block_warps = math.prod(block) // 32
        self.shared_bytes = kernel.shared_bytes + dynamic_bytes
        step = 4 if self.block_warps > 4 else 2 if self.block_warps > 1 else 1
        self.warps = [Warp(kernel, parameters, grid, block, tuple(n // 2 for n in grid), n).run()
                      for n in range(0, self.block_warps, step)]
        self.calculate()

    def calculate(self):
        sum_of = lambda get: sum(map(get, self.warps)) / len(self.warps) * self.block_warps  # of a block
        per_sm = math.ceil(self.blocks / SMS)
        registers = -(-self.kernel.registers * 32 // 256) * 256 * self.block_warps
        self.resident = max(1, min(32, 64 // self.block_warps, 65536 // registers,
                                   228 * 1024 // max(1, self.shared_bytes)))
        self.slots = sum_of(lambda w: sum(w.counts.values()))
        units = collections.Counter()
        for w in self.warps:
            for pc, count in w.counts.items():
                unit, cycles = unit_of(self.kernel.code[pc])
                units[unit] += cycles * count / len(self.warps) * self.block_warps
        del units[""]
        self.unit, unit_cycles = units.most_common(1)[0] if units else ("", 0)
        read, written = (sum_of(lambda w: len(w.sectors[kind])) * 32 * self.blocks for kind in ("LDG", "STG"))
        self.l2_bytes = read + written
        self.hbm_bytes = min(self.op_bytes, self.l2_bytes)
        self.wavefronts, self.ideal = sum_of(lambda w: w.wavefronts), sum_of(lambda w: w.ideal_wavefronts)
        latency = max(w.time for w in self.warps)
        cycles = {"issue": self.slots / 4 * per_sm, self.unit or "unit": unit_cycles / 4 * per_sm,
                  "latency": latency * math.ceil(per_sm / self.resident), "shared": self.wavefronts * per_sm,
                  "L1": sum_of(lambda w: w.lines) * per_sm}
        self.bounds = {name: c / CLOCK for name, c in cycles.items()}
        self.bounds |= {"L2": self.l2_bytes / L2, "HBM": self.hbm_bytes / HBM}
        self.bound = max(self.bounds, key=self.bounds.get)
        self.seconds = self.bounds[self.bound] + LAUNCH


def short_name(kernel):
    """Returns the name of the kernel function without _kernel. In a mangled name, each name follows its length."""
    names = [kernel.name[m.end(1):][:int(m[1])] for m in re.finditer(r"(?=(\d+))", kernel.name)]
    return min((n for n in names if re.fullmatch(r"[a-z]\w*_kernel", n)), key=len).removesuffix("_kernel")


def shape_of(op):
    """Describes a convolution by its channels and image, and another op by its first input without the batch."""
    shapes = [s.strip("[]").split() for s in op["shapes"] if s]
    if op["op"] == "conv2d":
        return f"{shapes[1][-1]} to {shapes[1][0]} at {shapes[0][1]} x {shapes[0][2]}"
    if op["op"] == "conv2d_grad":
        w = shapes[2 if op["shapes"][1] else 1]
        return f"{w[-1]} to {w[0]} at {shapes[0][1]} x {shapes[0][2]}"
    return " x ".join(shapes[0][1:])


def floor_of(ops):
    """Returns the seconds that the tensors of all ops take at the rate of HBM."""
    return sum(op["bytes"] / HBM for op in ops)


def hot(launch):
    counts = collections.Counter()
    for w in launch.warps:
        for pc, count in w.counts.items():
            i = launch.kernel.code[pc]
            counts[i.name + "".join("." + x for x in i.mods if x in ("64", "128", "WIDE", "HI", "U16"))] += count
    total = sum(counts.values())
    return ", ".join(f"{name} {100 * count / total:.0f}" for name, count in counts.most_common(14))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--kernels", choices=["hopper", "portable"], default="hopper")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--only", default="")
    parser.add_argument("--hot", action="store_true")
    a = parser.parse_args()
    build = a.build.resolve()
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    nvdisasm = shutil.which(a.nvdisasm)
    if not nvcc or not nvdisasm:
        sys.exit(f"gpu_cost.py: expected the program {'nvdisasm' if nvcc else 'nvcc'}, got none; Debian has it in the "
                 "package nvidia-cuda-toolkit (non-free): install it, or unpack it and pass --nvdisasm")
    recorder = build / "tests" / "ptx" / "ptx_record"
    if not recorder.exists():
        sys.exit(f"gpu_cost.py: expected {recorder}, got nothing; run: ninja -C {a.build} tests/ptx/ptx_record")
    cubins = [Elf(path) for path in compile_kernels(build, a.arch, nvcc)]
    elf_of = {plain_name(s[6:]): (elf, s[6:]) for elf in cubins for s in elf.sections if s.startswith(".text.")}
    recorded = subprocess.run([recorder, "step", a.kernels, str(a.batch)], capture_output=True, text=True, check=True)
    ops = [json.loads(line) for line in recorded.stdout.splitlines()]
    symbols = [s.split() for s in subprocess.run(["nm", recorder], capture_output=True, text=True).stdout.splitlines()]
    start = next(int(s[0], 16) for s in symbols if s[-1] == "__executable_start")
    host_names = {int(s[0], 16) - start: s[-1] for s in symbols if len(s) == 3 and s[1] in "tTwW"}

    kernels, costs, rows = {}, {}, {}
    for op in ops:
        for offset, grid, block, dynamic_bytes, parameters in op["launches"]:
            name = host_names[offset]
            if a.only not in name:
                continue
            if name not in kernels:
                kernels[name] = Kernel(*elf_of[name], a.arch, nvdisasm)
            # Launches that differ only in addresses cost the same.
            same = re.sub(r"[0-9a-f]{10}7f0000", "", json.dumps([grid, block, parameters]))
            key = name, same, op["bytes"]
            if key not in costs:
                costs[key] = Launch(kernels[name], grid, block, dynamic_bytes, [bytes.fromhex(p) for p in parameters],
                                    op["bytes"])
            row = short_name(kernels[name]), shape_of(op)
            rows.setdefault(row, []).append(costs[key])

    print(f"Calculated, not run on hardware: {a.kernels} kernels, {a.arch}, batch {a.batch}, 132 SMs at 1.7 GHz\n")
    print("| kernel | layer | launches | us each | bound by | issue us | HBM us | MB | registers | blocks/SM | "
          "bank conflicts | total ms |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    launches = total = rest = rest_count = 0
    for (name, shape), group in sorted(rows.items(), key=lambda r: -sum(x.seconds for x in r[1])):
        seconds = sum(x.seconds for x in group)
        launches, total = launches + len(group), total + seconds
        x = max(group, key=lambda x: x.seconds)
        if seconds < 15e-6 and not a.only:
            rest, rest_count = rest + seconds, rest_count + len(group)
            continue
        conflicts = f"{100 * (x.wavefronts / x.ideal - 1):.0f} %" if x.ideal else ""
        if x.kernel.spills:
            conflicts += f" ({x.kernel.spills} spills)"
        print(f"| {name} | {shape} | {len(group)} | {seconds / len(group) * 1e6:.1f} | {x.bound} | "
              f"{x.bounds['issue'] * 1e6:.1f} | {x.bounds['HBM'] * 1e6:.1f} | {x.hbm_bytes / 1e6:.0f} | "
              f"{x.kernel.registers} | {x.resident} | {conflicts} | {seconds * 1e3:.3f} |")
        if a.hot:
            print(f"| | {x.slots:.0f} slots per block: {hot(x)}; {sum(w.unknown for w in x.warps)} unknown; "
                  + ", ".join(f"{k} {v * 1e6:.1f}" for k, v in x.bounds.items()))
    if rest_count:
        print(f"| all others | | {rest_count} | {rest / rest_count * 1e6:.1f} | | | | | | | | {rest * 1e3:.3f} |")
    per_epoch = IMAGES / a.batch * 1e3
    print(f"\n{launches} launches, {total * 1e3:.2f} ms per step, {total * per_epoch:.0f} ms per epoch of {IMAGES} "
          f"images. The tensors of all ops at 4.3 TB/s: {floor_of(ops) * per_epoch:.0f} ms.")


if __name__ == "__main__":
    main()
