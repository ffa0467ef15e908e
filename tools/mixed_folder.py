#!/usr/bin/env python3
"""Compares our readers with Pillow on a folder of JPEGs and PNGs of all kinds, some of them damaged, and trains on it.

usage: mixed_folder.py BUILD [COUNT]

Writes COUNT files (default: 3000) of random images into a new folder. It needs Pillow (Debian: python3-pil); without
it, the script says so and exits with status 77. Prints the largest and the mean difference of a byte by kind of file.
The exit status is 1 if a good file differs from Pillow by more than 2, or by 0.1 in the mean of its kind; if a damaged
file is accepted; or if train_cifar does not count the files that it leaves out.

Files of kinds that Pillow cannot write are made by changing other files. The change alters their pixels, but both
readers must agree on the result.
"""
import io
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import zlib

try:
    from PIL import Image, ImageChops, ImageDraw, ImageFile, ImageOps, ImageStat
except ImportError as error:
    print(f"skipped: mixed_folder.py needs {error.name} (Debian: python3-pil)")
    sys.exit(77)

LARGEST, MEAN = 2, 0.1  # differences of a byte that are allowed
DAMAGED = 40            # one file in this many is damaged
CLASSES = ["ant", "bee", "cat", "dog", "elk"]
ImageFile.MAXBLOCK = 1 << 22  # Pillow writes a progressive file in one block
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def picture(step=1):
    """Returns a random RGB image of gradients, shapes and noise; its sides are multiples of `step`."""
    size = tuple(-(-random.randint(1, random.choice([20, 90, 240])) // step) * step for _ in range(2))
    gradient = lambda: random.choice([Image.radial_gradient, Image.linear_gradient])("L").resize(size)
    image = Image.merge("RGB", [gradient() for _ in range(3)])
    draw = ImageDraw.Draw(image)
    for _ in range(random.randint(0, 6)):
        corners = [sorted(random.randint(0, side) for _ in range(2)) for side in size]
        random.choice([draw.ellipse, draw.rectangle])([*zip(*corners)], tuple(random.randbytes(3)))
    noise = Image.merge("RGB", [Image.effect_noise(size, random.choice([2, 20, 90])) for _ in range(3)])
    return Image.blend(image, noise, random.choice([0, 0.1, 0.5, 1]))


# ---- JPEG ----

def jpeg(image, plain=False, **options):
    """Returns a file of random quality. Unless `plain`, it may be progressive or have optimised Huffman codes, and may
    have an orientation."""
    if not plain:
        options |= random.choice([{}, {"progressive": True}, {"optimize": True}])
        if random.random() < 0.5:
            exif = Image.Exif()
            exif[0x0112] = random.randint(1, 8)
            options["exif"] = exif
    out = io.BytesIO()
    image.save(out, "JPEG", quality=random.randint(20, 98), **options)
    return out.getvalue()


def find(file, *markers):
    """Returns the offset of the first segment with one of the markers."""
    at = 2
    while file[at + 1] not in markers:
        at += 2 + struct.unpack_from(">H", file, at + 2)[0]
    return at


def jpeg_sampled(factors, other, columns, rows):
    """Returns a file of the sampling `other`, but with other sampling factors for the same blocks. So it has another
    size: `columns` times the width and `rows` times the height."""
    image = picture(16)
    file = bytearray(jpeg(image, subsampling=other))
    frame = find(file, 0xC0, 0xC2)
    struct.pack_into(">HH", file, frame + 5, int(image.height * rows), int(image.width * columns))
    file[frame + 11] = factors
    return bytes(file)


def jpeg_of_planes(mode, planes_mode, transform):
    """Returns a file with Adobe's marker, which gives `transform`: how readers get colours from the planes. The planes
    of a picture are stored as they are, without that transform."""
    file = jpeg(picture().convert(mode) if mode == "CMYK" else Image.merge(planes_mode, picture().split()), plain=True,
                subsampling=0, **random.choice([{}, {"progressive": True}]))
    first = find(file, 0xE0, 0xEE)  # JFIF or Adobe
    after = first + 2 + struct.unpack_from(">H", file, first + 2)[0]
    return file[:first] + b"\xFF\xEE\0\x0EAdobe\0\x64\0\0\0\0" + bytes([transform]) + file[after:]


def jpeg_restarted(subsampling):
    """Returns a file with restart markers: between them are the data of files that have one row of MCUs (blocks that
    are coded together) each, and the same tables."""
    image, side = picture(), 16 if subsampling == 2 else 8
    quality_state = random.getstate()
    data = b""
    for i, y in enumerate(range(0, image.height, side)):
        random.setstate(quality_state)
        strip = jpeg(image.crop((0, y, image.width, min(y + side, image.height))), plain=True, subsampling=subsampling)
        scan = find(strip, 0xDA)
        begin = scan + 2 + struct.unpack_from(">H", strip, scan + 2)[0]
        if i == 0:
            head, scan_header = bytearray(strip[:scan]), strip[scan:begin]
        data += (bytes([0xFF, 0xD0 + (i - 1) % 8]) if i else b"") + strip[begin:-2]
    struct.pack_into(">H", head, find(strip, 0xC0) + 5, image.height)
    mcus = -(-image.width // (16 if subsampling else 8))
    return bytes(head) + b"\xFF\xDD\0\x04" + struct.pack(">H", mcus) + scan_header + data + b"\xFF\xD9"


# ---- PNG ----

def png(image, **options):
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=random.randint(0, 9), **options)
    return out.getvalue()


def png_of_rows(width, height, depth, colour, rows_of, interlaced, palette=b""):
    """Returns a file with random filters. rows_of(x0, y0, dx, dy) yields the rows of a pass, as bytes: of every dx-th
    pixel from x0 on in every dy-th row from y0 on."""
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    step, raw = max(1, samples * depth // 8), bytearray()
    for which in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        above = None
        for row in rows_of(*which):
            above = above or bytes(len(row))
            kind = random.randint(0, 4)
            raw.append(kind)
            for i, value in enumerate(row):
                a, b, c = (row[i - step], above[i], above[i - step]) if i >= step else (0, above[i], 0)
                nearest = min((a, b, c), key=lambda guess: abs(a + b - c - guess))
                raw.append((value - [0, a, b, (a + b) // 2, nearest][kind]) & 255)
            above = row
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) +
            (chunk(b"PLTE", palette) if palette else b"") + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def png_of_samples(depth, colour, interlaced):
    """Returns a small file of random samples. With 16 bits, samples of all types but grey have two equal bytes, because
    Pillow cuts off the second one."""
    width, height = random.randint(1, 40), random.randint(1, 40)
    per_pixel = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] * depth

    def rows_of(x0, y0, dx, dy):
        pixels = len(range(x0, width, dx))
        for _ in range(y0, height, dy) if pixels else ():
            row = random.randbytes((pixels * per_pixel + 7) // 8)
            yield row if depth < 16 or colour == 0 else bytes(byte for byte in row[::2] for _ in range(2))

    palette = random.randbytes(3 << depth) if colour == 3 else b""
    return png_of_rows(width, height, depth, colour, rows_of, interlaced, palette)


def with_alpha(image):
    image.putalpha(Image.effect_noise(image.size, 80))
    return image


# Depths and colour types of PNGs
INTERLACED = [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (8, 2), (16, 2), (1, 3), (2, 3), (4, 3), (8, 3), (8, 4), (8, 6),
              (16, 6)]
KINDS = {
    "JPEG 4:4:4": lambda: jpeg(picture(), subsampling=0),
    "JPEG 4:2:2": lambda: jpeg(picture(), subsampling=1),
    "JPEG 4:2:0": lambda: jpeg(picture(), subsampling=2),
    "JPEG 4:4:0": lambda: jpeg_sampled(0x12, 1, 0.5, 2),
    "JPEG 4:1:1": lambda: jpeg_sampled(0x41, 2, 2, 0.5),
    "JPEG grey": lambda: jpeg(picture().convert("L")),
    "JPEG CMYK": lambda: jpeg(picture().convert("CMYK")),
    "JPEG YCCK": lambda: jpeg_of_planes("CMYK", "CMYK", 2),
    "JPEG RGB": lambda: jpeg_of_planes("RGB", "YCbCr", 0),
    "JPEG restart 4:4:4": lambda: jpeg_restarted(0),
    "JPEG restart 4:2:0": lambda: jpeg_restarted(2),
    "PNG RGB": lambda: png(picture()),
    "PNG RGBA": lambda: png(with_alpha(picture())),
    "PNG grey": lambda: png(picture().convert("L")),
    "PNG grey, alpha": lambda: png(with_alpha(picture().convert("L"))),
    "PNG 1 bit": lambda: png(picture().convert("1")),
    "PNG palette": lambda: png(picture().quantize(random.choice([2, 4, 13, 100, 256]))),
    "PNG tRNS": lambda: png(picture().quantize(60), transparency=7),
    "PNG grey 16": lambda: png_of_samples(16, 0, 0),
    "PNG RGB 16": lambda: png_of_samples(16, 2, 0),
    "PNG interlaced": lambda: png_of_samples(*random.choice(INTERLACED), 1),
}


def damaged(file):
    """Returns the file with an error that every reader must find: it is cut off, or has a wrong byte."""
    if random.random() < 0.5:
        return file[:random.randint(4, len(file) - 16)]
    # The wrong byte is the first number of a Huffman table (JPEG), or lies in compressed data with a checksum (PNG).
    at = find(file, 0xC4) + 5 if file[0] == 0xFF else file.index(b"IDAT") + 6
    return file[:at] + bytes([file[at] ^ 0xFF]) + file[at + 1:]


def expected(path):
    """Returns the image in Pillow, as RGB."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode == "I":  # 16 bits, which convert() would not scale
        image = image.point(lambda value: value * (1 / 257) + 0.5).convert("L")
    return image.convert("RGB")


class Reader:
    """Our readers, as a process that answers one path after another."""

    def __init__(self, build):
        self.process = subprocess.Popen([build / "compare_images"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, path):
        """Returns the image as RGB, or the error."""
        self.process.stdin.write(f"file {path}\n".encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode()
        if not answer.startswith("size "):
            return answer
        height, width = map(int, answer.split()[1:])
        return Image.frombytes("RGB", (width, height), self.process.stdout.read(3 * height * width))


def compare(folder, build, count):
    """Writes the files and compares them. Returns the numbers of wrong and of refused files."""
    reader, kinds, wrong, refused = Reader(build), {}, 0, 0
    for i in range(count):
        kind, make = list(KINDS.items())[i % len(KINDS)]
        is_damaged = i % DAMAGED == DAMAGED - 1
        file = damaged(make()) if is_damaged else make()
        path = folder / random.choice(CLASSES) / f"{i:04}{'.jpg' if kind.startswith('JPEG') else '.png'}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(file)
        ours = reader.read(path)
        if isinstance(ours, str):
            refused += 1
        if is_damaged:
            good, what = isinstance(ours, str), "damaged, but accepted"
        elif isinstance(ours, str):
            good, what = False, ours
        else:
            pillow = expected(path)
            good, what = ours.size == pillow.size, f"{ours.size}, in Pillow {pillow.size}"
            if good:
                difference = ImageChops.difference(ours, pillow)
                largest = max(high for _, high in difference.getextrema())
                good, what = largest <= LARGEST, f"differs by {largest}"
                kinds.setdefault(kind, []).append((largest, sum(ImageStat.Stat(difference).mean) / 3))
        if not good:
            wrong += 1
            print(f"wrong: {path.name}, {kind}: {what}")
    for kind, differences in kinds.items():
        mean = sum(mean for _, mean in differences) / len(differences)
        print(f"{kind}: {len(differences)} files, largest difference {max(differences)[0]}, mean {mean:.4f}")
        wrong += mean > MEAN
    print(f"{count} files, {count // DAMAGED} of them damaged: {refused} refused, {wrong} wrong")
    return wrong, refused


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    build, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    random.seed(1)
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place) / "set"
        folder.mkdir()
        wrong, refused = compare(folder, build.resolve(), count)
        training = subprocess.run([build.resolve() / "train_cifar", "--data", folder, "--size", "32", "--epochs", "1",
                                   "--skip-other-images", "--cache", folder.parent / "cache", "--width", "4",
                                   "--depth", "1", "--batch-size", "32"],
                                  cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    left_out = sum(map(int, re.findall(r"warning: (\d+) files? (?:is|are) left out", training.stdout)))
    print(f"train_cifar: exit status {training.returncode}, {left_out} files left out")
    if training.returncode != 0:
        print(training.stdout)
    sys.exit(wrong > 0 or training.returncode != 0 or left_out != refused)


if __name__ == "__main__":
    main()
