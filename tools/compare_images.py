#!/usr/bin/env python3
"""Compares resized images with those of Pillow and torchvision, on random images of random sizes.

usage: compare_images.py build/compare_images

Needs a Python with PIL, numpy and torchvision. Without them, the script says so and exits with status 0. It prints the
largest difference of a byte. The exit status is 1 if that exceeds the limit.
"""
import random, subprocess, sys

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
    # torchvision gives the shorter edge a size; here it is the one that has to cover the result exactly.
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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    random.seed(1)
    numpy.random.seed(1)
    good = [compare(sys.argv[1], "resize", resize, 400), compare(sys.argv[1], "fit", fit, 400)]
    sys.exit(not all(good))
