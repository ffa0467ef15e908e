"""Runs fuzzers from seeds that it makes, for some seconds as a test or for any time.

    sh tools/test.sh --all    # builds the fuzzers in build-clang
    python3 tests/fuzz/run.py --corpus ~/corpus build-clang/tests/fuzz/fuzz_*

Without --corpus, each fuzzer starts from the seeds below, and every run is the same. With --corpus, it also starts from
the inputs in that folder, and adds the inputs that it finds. A finding ends the run: the report goes to standard error,
and the input to crash-* in the current folder. Pass this file to the fuzzer to see the finding again. An allocation of
more than 16 MiB, or 512 MiB in all, is a finding, since inputs have at most 4.5 KiB.
"""

import argparse
import collections
import gzip
import io
import os
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import types
import unittest.mock
import zipfile
import zlib

# libFuzzer would watch its memory limit on a thread, and report what that thread allocates at its start as a leak if the
# first leak check comes before the thread runs. So AddressSanitizer has the limit.
OPTIONS = ["-seed=1", "-malloc_limit_mb=16", "-rss_limit_mb=0", "-timeout=60"]
# A few MiB of quarantine outlast any execution. Short stacks of allocations suffice, since a saved input repeats them.
ASAN_OPTIONS = "hard_rss_limit_mb=512:malloc_context_size=2:quarantine_size_mb=4"
# Longer inputs are slower, but reach no other code.
MOST_BYTES = {"cifar": 64, "json": 1024, "options": 256, "trials": 512}
WORDS = b"the cat sat on the mat; the rat sat on the cat; that mat sat flat. " * 3


def png(depth=8, colour=2, interlace=0, extra=b""):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = bytes(range(200))[: 4 * (1 + 4 * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] * depth // 8)]
    rows = bytes(b if i % (len(rows) // 4) else b % 5 for i, b in enumerate(rows))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, depth, colour, 0, 0, interlace)) + extra
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def deflated(wbits, level=9, strategy=zlib.Z_DEFAULT_STRATEGY):
    packer = zlib.compressobj(level, zlib.DEFLATED, wbits, 9, strategy)
    return packer.compress(WORDS) + packer.flush()


def idx(kind, *values):
    return struct.pack(">HBBII", 0, kind, 2, 2, len(values) // 2) + bytes(values)


def tensor_header(kind, shape, begin, end):
    return b'{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}' % (kind, shape, begin, end)


def torch_files():
    """Returns files of PyTorch's torch.save() in both formats, made by the instructions of Python's own pickle."""
    names = {"torch": ["FloatStorage", "HalfStorage", "LongStorage"],
             "torch._utils": ["_rebuild_tensor_v2", "_rebuild_parameter"]}
    modules = {module: types.ModuleType(module) for module in names}
    for module, attributes in names.items():
        for attribute in attributes:
            setattr(modules[module], attribute, type(attribute, (), {"__module__": module}))
    utils = modules["torch._utils"]

    class Made:
        def __init__(self, function, *arguments):
            self.made = function, arguments

        def __reduce__(self):
            return self.made

    class Storage:
        def __init__(self, key, kind, values):
            self.values = values
            width = {"FloatStorage": 4, "HalfStorage": 2, "LongStorage": 8}[kind]
            self.id = "storage", getattr(modules["torch"], kind), key, "cpu", len(values) // width

    def tensor(storage, shape, offset, strides):
        return Made(utils._rebuild_tensor_v2, storage, offset, shape, strides, False, collections.OrderedDict())

    def pickled(value):
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, 2)
        pickler.persistent_id = lambda item: item.id if isinstance(item, Storage) else None
        pickler.dump(value)
        return stream.getvalue()

    a, b = Storage("0", "FloatStorage", bytes(24)), Storage("1", "HalfStorage", b"\1\x3c")
    c = Storage("2", "LongStorage", bytes(8))
    parameter = Made(utils._rebuild_parameter, tensor(b, (1,), 0, (1,)), True, collections.OrderedDict())
    state = collections.OrderedDict(a=tensor(a, (2, 3), 0, (3, 1)), b=tensor(a, (3, 1), 2, (1, 1)), c=parameter)
    state._metadata = {"": {"version": 1}}
    values = [state, {"epoch": 3, "lr": 0.1, "net": {"module.n": tensor(c, (), 0, ())}, "groups": [{}, None]}]
    files = []
    with unittest.mock.patch.dict(sys.modules, modules):
        for value, storages in zip(values, ([a, b], [c])):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w") as members:
                members.writestr(zipfile.ZipInfo("n/data.pkl"), pickled(value))
                for storage in storages:
                    members.writestr(zipfile.ZipInfo("n/data/" + storage.id[2]), storage.values)
            files.append(file.getvalue())
            parts = 0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, value, [s.id[2] for s in storages]
            files.append(b"".join(map(pickled, parts))
                         + b"".join(struct.pack("<q", s.id[4]) + s.values for s in storages))
        bodies = [pickled(value)[2:-1] for value in values]
    # A zip file, and the older format with values of 4 bytes
    return [b"\1" + file for file in files] + [start + body for start in (b"\0\x18", b"\x0a\x18") for body in bodies]


def seeds(name):
    """Returns the first inputs of a fuzzer. The first byte of each is the kind of the input."""
    if name == "inflate":
        return ([bytes([2]) + deflated(-15, 9, s) for s in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY)]
                + [bytes([0]) + deflated(15), bytes([0]) + deflated(15, 0), bytes([2]) + deflated(-15, 0)]
                + [bytes([1]) + gzip.compress(WORDS), bytes([1]) + 2 * deflated(31),
                   bytes([1]) + bytes.fromhex("1f8b081887d6120002ff6e00630003000000000000000000")])
    if name == "png":
        palette = bytes.fromhex("00000006504c5445000000ffffffa5d99fdd")
        return ([bytes([0]) + png(), bytes([1]) + png(16, 6), bytes([1]) + png(8, 4, 0), bytes([1]) + png(8, 0)]
                + [bytes([1]) + png(8, 3, 0, palette)]
                + [bytes([2, form, 6, 5, flags]) + WORDS[:60] for form in range(15) for flags in (4, 3)])
    if name == "jpeg":
        files = sorted((pathlib.Path(__file__).parents[1] / "data/jpeg").glob("*.jpg"))
        scans = b"".join(bytes([components, 0, bits, 0, 40]) + WORDS[:40]
                         for components, bits in ((15, 1), (15, 0x10), (1, 1), (1, 0x10)))
        return ([b"\0" + file.read_bytes() for file in files]
                + [bytes([1, form, 16, 9]) + bytes([0x11, 0, 0, 0][: 3 if form & 2 else 4 if form & 4 else 1])
                   + (b"\2" if form & 64 else b"") + b"\3" + scans for form in range(0, 128, 5)])
    if name == "cifar":
        return [bytes([0, 0, 1, 0, 1, 7]), bytes([1, 0, 1, 0, 2, 1, 99, 0, 5]), b"\0\0\0\0\0cat\ndog\r\n\n"]
    if name == "idx":
        whole = idx(8, 1, 2, 3, 4, 5, 6)
        return [b"\1" + whole, b"\1" + gzip.compress(whole), bytes([0, 4, 1, 1, 2]) + WORDS[:12],
                bytes([0, 5, 3, 0, 1, 0, 1]) + WORDS[:32]]
    if name == "safetensors":
        two = (b'{"__metadata__":{"k":"v"},"a":' + tensor_header(b"F32", b"[2]", 0, 8) + b',"b":'
               + tensor_header(b"U8", b"[1,3]", 8, 11) + b"}  ")
        return [b"\0\0\x0b" + two, b"\0\0\0{}", b"\1" + struct.pack("<Q", len(two)) + two + bytes(11),
                b"\0\0\0" + b'{"e":' + tensor_header(b"I64", b"[0,4]", 0, 0) + b"}"]
    if name == "checkpoint":
        return [b"\0\1\0\2\1" + b', "step": "12", "epoch": "3"}, "a": ' + tensor_header(b"U8", b"[2]", 0, 2) + b"}",
                b"\0\1\0\0\0" + b', "step": "-1"}}',
                b"\0\0\0\0\0" + b', "step": "1", "x": "y", "tensor_checksums": ""}}']
    if name == "json":
        return [b'\0{"a": [1, -2.5e-3, true, null], "b\\n\\u00e9": "\xc3\xa9\\ud83d\\ude00"}', b"\2[[[[]]]]",
                b"\1[12345678901234567890, -0, 1e300, 0.1]"]
    if name == "options":
        return [b"\0--epochs\n5\n--lr=0.25\n--no-nesterov\n--data\nd\nfile",
                b"\1--other\n3\n--fill=reflect\n--device=cpu\nf",
                b"\0--epoch=3\nf", b"\0--seed=-9223372036854775808\n--decay=-1e-300\nf\ng"]
    if name == "torch_file":
        return torch_files()
    if name == "trials":
        return [b'\1lr,augment\r\n0.1,"flip,translate"\n\n,"a ""b"""\n', b"\1a\n1\n2", b"\0depth=1:2:9\nlr=a,b"]
    sys.exit(f"run.py: expected the name of a fuzzer, got {name}; add its seeds to seeds()")


def run(fuzzer, runs, seconds, corpus):
    """Runs a fuzzer and prints a line about it. Returns True if it ended without a finding."""
    name = fuzzer.name.removeprefix("fuzz_")
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i, seed in enumerate(seeds(name)):
            files.append(pathlib.Path(folder, str(i)))
            files[-1].write_bytes(seed)
        command = [str(fuzzer.resolve()), f"-runs={runs}", f"-max_total_time={seconds}",
                   f"-max_len={MOST_BYTES.get(name, 4608)}", *OPTIONS, "-seed_inputs=" + ",".join(map(str, files))]
        if corpus:
            kept = pathlib.Path(corpus, name)
            kept.mkdir(parents=True, exist_ok=True)
            command.append(str(kept))
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace",
                              env={"ASAN_OPTIONS": ASAN_OPTIONS, **os.environ})
    if done.returncode:
        sys.stderr.write(done.stderr[-8000:])
        print(f"{name}: a finding, status {done.returncode}")
        return False
    last = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)/(\S+)", done.stderr)[-1]
    seconds = re.search(r"Done (\d+) runs in (\d+) second", done.stderr)
    print(f"{name}: {seconds[1]} executions in {seconds[2]} s; cov {last[0]}, features {last[1]}, "
          f"corpus {last[2]} inputs of {last[3]}", flush=True)
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000_000, help="largest number of executions per fuzzer")
    parser.add_argument("--seconds", type=int, default=3600, help="longest time per fuzzer, in seconds")
    parser.add_argument("--corpus", help="folder of inputs, to which new ones are added")
    parser.add_argument("fuzzers", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    fuzzers = [f for f in arguments.fuzzers if f.is_file()]  # skip the folders of Meson
    missing = [str(f) for f in arguments.fuzzers if not f.exists()]
    if missing or not fuzzers:
        parser.error(f"expected fuzzers, got {', '.join(missing) or 'only folders'}; run tools/test.sh --all")
    sys.exit(not all([run(f, arguments.runs, arguments.seconds, arguments.corpus) for f in fuzzers]))
