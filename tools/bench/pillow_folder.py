#!/usr/bin/env python3
"""Decodes all PNGs and JPEGs below a folder with Pillow, and prints the images per second.

usage: pillow_folder.py FOLDER PROCESSES [HEIGHT WIDTH]
       pillow_folder.py --jpeg FOLDER

With --jpeg, it replaces the PNGs below the folder by JPEGs, every other one progressive. Otherwise, each image becomes
8-bit RGB and, if a size is given, is resized. The processes start before the measurement, and the pixels stay in them,
as if transferring them took no time. Needs Pillow (Debian: python3-pil). bench_data calls this.
"""
import multiprocessing
import pathlib
import sys
import time

from PIL import Image

CHUNK = 256  # files that a process takes at a time


def decode(path, size):
    image = Image.open(path).convert("RGB")
    if size and image.size != size:
        image = image.resize(size, Image.BILINEAR)
    return len(image.tobytes())


def decode_all(job):
    paths, size = job
    return sum(decode(path, size) for path in paths)


def convert(folder):
    for i, path in enumerate(sorted(pathlib.Path(folder).rglob("*.png"))):
        Image.open(path).save(path.with_suffix(".jpg"), quality=85, progressive=i % 2 == 1)
        path.unlink()


def main():
    if sys.argv[1] == "--jpeg":
        return convert(sys.argv[2])
    folder, processes = sys.argv[1], int(sys.argv[2])
    size = (int(sys.argv[4]), int(sys.argv[3])) if len(sys.argv) > 4 else None
    with multiprocessing.Pool(processes) as pool:
        pool.map(decode_all, [([], size)] * processes)
        begin = time.monotonic()
        paths = sorted(str(path) for path in pathlib.Path(folder).rglob("*") if path.suffix in (".png", ".jpg"))
        jobs = [(paths[i:i + CHUNK], size) for i in range(0, len(paths), CHUNK)]
        pixels = sum(pool.imap_unordered(decode_all, jobs))
        seconds = time.monotonic() - begin
    assert pixels > 0
    print(len(paths) / seconds)


if __name__ == "__main__":
    main()
