"""Writes event files for TensorBoard from the metrics.jsonl of runs, without TensorFlow.

    python3 tools/tensorboard.py runs            # a run, a sweep, or a folder of them
    python3 tools/tensorboard.py --follow runs   # also writes the steps that follow, until Ctrl-C
    tensorboard --logdir runs

Each run gets one file, events.out.tfevents.9999999999.ringgrad, which replaces that of an earlier call. TensorBoard
reads the files of a run in the order of their names, so this one comes last. It has each number of a line as step/NAME
or epoch/NAME. Those of an epoch are stored at its last step.
"""
import argparse
import json
import math
import os
import pathlib
import struct
import sys
import time

# A file is a sequence of TFRecords: length of the event (8 bytes), crc of the length, event, crc of the event; all
# little-endian. A crc is a CRC-32C, masked. An Event (protobuf) has the fields wall_time = 1 (double), step = 2,
# file_version = 3, summary = 5, session_log = 7; a Summary has value = 1, repeated: {tag = 1, simple_value = 2
# (float)}.
LARGEST = 3.4e38  # of a float; larger numbers are shown as this
CRC = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
    CRC.append(byte)


def masked_crc(content):
    crc = 0xffffffff
    for byte in content:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 0xff]
    crc ^= 0xffffffff
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff)


def varint(value):
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes(digits) + bytes([value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(step, content):
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + varint(step) + content
    length = struct.pack("<Q", len(event))
    return length + masked_crc(length) + event + masked_crc(event)


class Run:
    """Writes the event file of a run."""

    def __init__(self, metrics):
        self.metrics, self.events = metrics, metrics.with_name("events.out.tfevents.9999999999.ringgrad")
        self.events.write_bytes(record(0, field(3, b"brain.Event:2")))
        self.file, self.read, self.step = None, 0, 0

    def update(self):
        """Adds the complete lines that are new. When a resumed training has replaced metrics.jsonl, adds all its lines
        again, after a START event, which makes TensorBoard drop the values before."""
        with self.metrics.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self.file:
                self.file, self.read = inode, 0
                self.append(record(1, field(7, b"\x08\x01")))
            file.seek(self.read)
            lines = file.read()
        lines = lines[:lines.rfind(b"\n") + 1]
        self.read += len(lines)
        self.append(b"".join(map(self.event, lines.splitlines())))

    def append(self, content):
        with self.events.open("ab") as events:
            events.write(content)

    def event(self, text):
        try:
            line = json.loads(text)
        except ValueError:
            return b""  # a damaged line
        if not isinstance(line, dict) or not line.keys() & {"step", "epoch"}:
            return b""  # the line at the end of the run
        kind = "step" if "step" in line else "epoch"
        self.step = line.get("step", self.step)
        values = b""
        for name, value in line.items():
            if name not in ("step", "epoch") and (value is None or type(value) in (int, float)):
                number = struct.pack("<f", math.nan if value is None else max(-LARGEST, min(value, LARGEST)))
                values += field(1, field(1, f"{kind}/{name}".encode()) + b"\x15" + number)
        return record(self.step, field(5, values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="runs", type=pathlib.Path)
    parser.add_argument("--follow", action="store_true", help="go on with the steps that follow, until Ctrl-C")
    options = parser.parse_args()
    runs = {}
    while True:
        for metrics in sorted(options.folder.rglob("metrics.jsonl")):
            try:
                if metrics not in runs:
                    runs[metrics] = Run(metrics)
                runs[metrics].update()
            except FileNotFoundError:
                pass  # the run was deleted
            except OSError as error:
                print(f"tensorboard.py: {metrics}: {error.strerror}", file=sys.stderr)
        if not options.follow:
            if not runs:
                sys.exit(f"tensorboard.py: expected runs with a metrics.jsonl in {options.folder}, got none")
            return
        time.sleep(2)


try:
    main()
except KeyboardInterrupt:
    pass
