#!/usr/bin/env python3
"""Compares resized, rotated and scaled images with those of Pillow and torchvision, on random images of random sizes.

usage: compare_images.py build/compare_images

Needs a Python with PIL, numpy and torchvision. Without them, the script says so and exits with status 0. It prints the
largest difference of a byte. The exit status is 1 if it exceeds 1. Rotated and scaled images may differ by 1, since
Pillow cuts off the fraction of an interpolated value, and we round it. A byte whose position lies within 1/1000 pixel
of the edge of the picture is left out, because it may be black in one of the results only.
"""
import math, random, subprocess, sys

try:
    import numpy, PIL.Image
    import torchvision.transforms as transforms
except ImportError as error:
    print(f"compare_images.py: nothing compared, because this Python has no {error.name}")
    sys.exit(0)


def random_image(height, width, channels):
    """Returns smooth shapes, noise, or black and white noise, as an array [height width channels]."""
    noise = numpy.random.randint(0, 256, (height, width, channels), numpy.uint8)
    kind = random.choice(["smooth", "noise", "extremes"])
    if kind == "smooth":
        y, x, c = numpy.mgrid[:height, :width, :channels]
        return (127.5 + 127.5 * numpy.sin(x / 5 + c) * numpy.cos(y / 7 - c)).astype(numpy.uint8)
    return noise if kind == "noise" else (noise // 128) * numpy.uint8(255)


def pillow(array):
    return PIL.Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def resize(array, height, width):
    return pillow(array).resize((width, height), PIL.Image.BILINEAR)


def fit(array, height, width):
    # Resize so that the image just covers the result, and keep its centre. For a square result, Resize(height) does so,
    # since it gives the shorter edge this length.
    rows, columns = array.shape[:2]
    wide = columns * height >= rows * width
    size = (height, int(columns * height / rows)) if wide else (int(rows * width / columns), width)
    steps = [transforms.Resize(size, transforms.InterpolationMode.BILINEAR), transforms.CenterCrop((height, width))]
    if height == width:
        steps[0] = transforms.Resize(height, transforms.InterpolationMode.BILINEAR)
    return transforms.Compose(steps)(pillow(array))


def ours(program, requests):
    """Runs the program on (line, array) pairs, and returns all results in one array of bytes."""
    stdin = b"".join(line.encode() + b"\n" + array.tobytes() for line, array in requests)
    return numpy.frombuffer(subprocess.run([program], input=stdin, stdout=subprocess.PIPE, check=True).stdout,
                            numpy.uint8)


def compare(program, function, expected_of, count):
    requests, expected = [], []
    for _ in range(count):
        rows, columns, height, width = (random.randint(1, random.choice([4, 40, 300])) for _ in range(4))
        width = random.choice([width, height])
        array = random_image(rows, columns, random.choice([1, 3]))
        requests.append((f"{function} {rows} {columns} {array.shape[2]} {height} {width}", array))
        expected.append(numpy.asarray(expected_of(array, height, width)).ravel())
    expected = numpy.concatenate(expected).astype(int)
    difference = abs(ours(program, requests) - expected)
    print(f"{function}: {count} images, largest difference {difference.max()} of 255, "
          f"{numpy.count_nonzero(difference)} of {difference.size} bytes differ")
    return difference.max() <= 1


def compare_views(program, count):
    """Compares views that shift, rotate by any angle, and scale by 0.5 to 2, with Pillow's affine transforms."""
    requests, expected, near_edge = [], [], []
    for _ in range(count):
        rows, columns, height, width = (random.randint(1, random.choice([4, 40, 224])) for _ in range(4))
        array = random_image(rows, columns, random.choice([1, 3]))
        angle, scale = random.uniform(-math.pi, math.pi), random.uniform(0.5, 2)
        cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
        shift_y, shift_x = random.uniform(-3, 3), random.uniform(-3, 3)
        # The middle of the result shows this position of the image, counted from its upper left corner.
        y, x = rows / 2 + shift_y, columns / 2 + shift_x
        affine = (cos, -sin, x - cos * width / 2 + sin * height / 2, sin, cos, y - sin * width / 2 - cos * height / 2)
        expected.append(numpy.asarray(pillow(array).transform((width, height), PIL.Image.AFFINE, affine,
                                                              PIL.Image.BILINEAR)).ravel())
        fixed = lambda pixels: round(pixels * 65536)
        first = lambda centre, per_row, per_column: fixed(centre - 0.5) - (per_row * (height - 1) +
                                                                           per_column * (width - 1)) // 2
        down, right = (fixed(cos), fixed(sin)), (fixed(-sin), fixed(cos))
        view = (first(y, *down), *down, first(x, *right), *right)
        requests.append((f"view {rows} {columns} {array.shape[2]} {height} {width} {' '.join(map(str, view))}", array))
        r, c = numpy.mgrid[:height, :width] + 0.5
        at_x, at_y = affine[0] * c + affine[1] * r + affine[2], affine[3] * c + affine[4] * r + affine[5]
        near = numpy.zeros((height, width), bool)
        for position, extent in ((at_x, columns), (at_y, rows)):
            near |= (abs(position) < 1e-3) | (abs(position - extent) < 1e-3)
        near_edge.append(numpy.repeat(near.ravel(), array.shape[2]))
    inside = ~numpy.concatenate(near_edge)
    difference = (ours(program, requests) - numpy.concatenate(expected).astype(int))[inside]
    print(f"view: {count} images, differences of {difference.min()} to {difference.max()} of 255, "
          f"mean {difference.mean():.3f}")
    return abs(difference).max() <= 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    random.seed(1)
    numpy.random.seed(1)
    good = [compare(sys.argv[1], "resize", resize, 400), compare(sys.argv[1], "fit", fit, 400),
            compare_views(sys.argv[1], 400)]
    sys.exit(not all(good))
