#!/usr/bin/env python3
"""Packs CIFAR-10 records into a PNG and its labels, as data/sample/ holds them.

    python3 tools/pack_sample.py train.bin data/sample/train    # writes train.png and train.txt

The PNG is 32 pixels wide and has one image below the other. The text file has one digit per image. Every row has the
Paeth filter: trying all filters for each row saves only 1 % more.
"""
import pathlib
import struct
import sys
import zlib

SIDE, RECORD = 32, 1 + 3 * 32 * 32


def rows_of(record):
    """The rows of a record's image, as R G B R G B ..."""
    for y in range(SIDE):
        row = bytearray(3 * SIDE)
        for channel in range(3):
            begin = 1 + (channel * SIDE + y) * SIDE
            row[channel::3] = record[begin:begin + SIDE]
        yield bytes(row)


def paeth(a, b, c):
    """The left, upper or upper left value: the one that is nearest to a + b - c."""
    return min((a, b, c), key=lambda value: abs(a + b - c - value))


def filtered(row, above):
    left, upper_left = bytes(3) + row[:-3], bytes(3) + above[:-3]
    return bytes((x - paeth(a, b, c)) % 256 for x, a, b, c in zip(row, left, above, upper_left))


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(records):
    data, above = b"", bytes(3 * SIDE)
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_FILTERED)
    for record in records:
        for row in rows_of(record):
            data += packer.compress(b"\4" + filtered(row, above))
            above = row
    header = struct.pack(">IIBBBBB", SIDE, SIDE * len(records), 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data + packer.flush()) + chunk(b"IEND", b""))


def main():
    if len(sys.argv) != 3:
        raise SystemExit("usage: pack_sample.py RECORDS.bin OUTPUT")
    content = pathlib.Path(sys.argv[1]).read_bytes()
    if not content or len(content) % RECORD:
        raise SystemExit(f"pack_sample.py: expected a multiple of {RECORD} bytes, got {len(content)} ({sys.argv[1]})")
    records = [content[i:i + RECORD] for i in range(0, len(content), RECORD)]
    pathlib.Path(sys.argv[2] + ".png").write_bytes(png(records))
    pathlib.Path(sys.argv[2] + ".txt").write_text("".join(str(record[0]) for record in records) + "\n")


if __name__ == "__main__":
    main()
