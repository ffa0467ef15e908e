# Tests the C and Python bindings: a static C program, libringgrad_predict.so and ringgrad.py predict like `predict`.
#
# Called with the build folder, the path of mpiexec (unused), and the compiler command of the build.
import json
import pathlib
import random
import re
import shutil
import struct
import sys

import job

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = sys.argv[3:]
LIBRARY = job.BUILD / "libringgrad_predict.so"
MAX_STATIC = 5_000_000  # bytes of a static program that predicts, stripped
# Predictions of several images at a time may round sums differently from those of one.
CLOSE = 1e-5

# Prints the results for a list of images, which are given in each way that Model.predict() takes.
SCRIPT = """
import json, pathlib, sys
import ringgrad
model = ringgrad.Model(sys.argv[1])
same = ringgrad.Model((pathlib.Path(sys.argv[1]) / "model.safetensors").read_bytes(), threads=1)
height, width, channels, *paths = json.loads(sys.argv[2])
pixels = memoryview(pathlib.Path(paths[0] + ".raw").read_bytes())
contents = [pathlib.Path(path).read_bytes() for path in paths]
print(json.dumps({
    "classes": model.classes, "targets": model.targets, "shape": [model.height, model.width, model.channels],
    "paths": model.predict(paths), "bytes": same.predict(contents), "one": model.predict(pathlib.Path(paths[0])),
    "pixels": same.predict(pixels.cast("B", (height, width, channels))),
    "batch": model.predict(memoryview(pixels.tobytes() * 3).cast("B", (3, height, width, channels)))}))
"""

# Prints the results for an image from copies of a model, also in other processes.
COPIES = """
import copy, json, multiprocessing, pickle, sys
import ringgrad
if __name__ == "__main__":
    run, image = sys.argv[1:]
    content = open(run + "/model.safetensors", "rb").read()
    results = []
    for model in ringgrad.Model(run, threads=2), ringgrad.Model(content):
        results += model.predict(image)
        for copied in copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model)):
            results += copied.predict(image)
        del copied
        for method in "fork", "spawn", "forkserver":
            with multiprocessing.get_context(method).Pool(2) as pool:
                results += sum(pool.map_async(model.predict, [image] * 3).get(timeout=300), [])
        results += model.predict(image)
    print(json.dumps(results))
"""

# Prints, for each size of a model's batches, the memory of the process in MiB.
GROWTH = """
import json, resource, sys
import ringgrad
model = ringgrad.Model(sys.argv[1], threads=2)
memory = []
for n in [int(n) for n in sys.argv[2:]]:
    model.predict(memoryview(bytes(n * 32 * 32 * 3)).cast("B", (n, 32, 32, 3)))
    memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
print(json.dumps(memory))
"""

# Prints the error of each of these expressions.
ERRORS = """
import array, os, pathlib, sys
import ringgrad
Model, run = ringgrad.Model, sys.argv[1]
content = pathlib.Path(run, "model.safetensors").read_bytes()
model = Model(run)
def closed():
    with Model(run) as other:
        assert other.predict(memoryview(bytes(12)).cast("B", (2, 2, 3)))
    return other
def of_child():
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            model.predict(memoryview(bytes(12)).cast("B", (2, 2, 3)))
        except ringgrad.Error as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    raise ringgrad.Error(os.read(reader, 1000).decode())
for expression in sys.argv[2:]:
    try:
        print("no error:", eval(expression))
    except (ringgrad.Error, OSError) as error:
        print(error)
"""


class BindingsTest(job.JobTest):
    def setUp(self):
        super().setUp()
        self.run_folder = self.train(1, "tiny", *job.TINY, "--steps", "2")

    def write_images(self):
        """Writes PNGs of the network's size, of another size, and in grey. Returns their paths."""
        paths = []
        for i, (width, height, channels) in enumerate(((32, 32, 3), (50, 40, 3), (32, 64, 1))):
            samples = random.Random(i).randbytes(width * height * channels)
            paths.append(str(self.folder / f"{i}.png"))
            pathlib.Path(paths[-1]).write_bytes(job.png(width, height, samples, 2 if channels == 3 else 0))
            pathlib.Path(paths[-1] + ".raw").write_bytes(samples)
        return paths

    def predictions(self, *arguments):
        """Returns the lines of `predict --json` for all classes."""
        lines = self.succeed([str(job.BUILD / "predict"), *map(str, arguments), "--json", "--top", "100"]).splitlines()
        return [json.loads(line) for line in lines]

    def python(self, script, *arguments, **environment):
        return self.succeed([sys.executable, "-c", script, *map(str, arguments)], PYTHONPATH=str(job.BUILD),
                            PYTHONDONTWRITEBYTECODE="1", **environment)

    def check_same(self, results, expected):
        """Compares results of ringgrad.py with those of `predict`."""
        self.assertEqual(len(results), len(expected))
        for result, line in zip(results, expected):
            best = line["best"][0]
            self.assertEqual(result["class"], best["class"])
            self.assertAlmostEqual(result["score"], best["score"], delta=CLOSE)
            scores = {entry["class"]: entry["score"] for entry in line["best"]}
            self.assertEqual(len(result["scores"]), len(scores))
            for name, score in zip(job.CLASSES, result["scores"]):
                self.assertAlmostEqual(score, scores[name], delta=CLOSE)

    def test_python(self):
        paths = self.write_images()
        expected = self.predictions(self.run_folder, *paths)
        out = json.loads(self.python(SCRIPT, self.run_folder, json.dumps([32, 32, 3, *paths])))
        self.assertEqual((out["classes"], out["targets"], out["shape"]), (job.CLASSES, [], [32, 32, 3]))
        self.check_same(out["paths"], expected)
        self.check_same(out["bytes"], expected)
        self.check_same(out["one"], expected[:1])
        self.check_same(out["pixels"], expected[:1])
        self.check_same(out["batch"], expected[:1] * 3)

    def test_features(self):
        paths = self.write_images()
        script = """import json, ringgrad, sys
model = ringgrad.Model(sys.argv[1])
print(json.dumps([model.predict(sys.argv[2:], features=layer) for layer in (None, "block3", "fc.input", "block1.0")]))"""
        plain, *others = json.loads(self.python(script, self.run_folder, *paths))
        self.assertFalse([result for result in plain if "features" in result])
        for results, size in zip(others, (16, 16, 4)):
            self.assertEqual([len(result.pop("features")) for result in results], [size] * 3)
            self.assertEqual(results, plain)
        self.succeed([job.BUILD / "predict", self.run_folder, paths[0], "--features", "block3", "--out", "f.npy"])
        expected = struct.unpack("<16f", (self.folder / "f.npy").read_bytes()[-64:])
        script = "import ringgrad, sys; print(ringgrad.Model(sys.argv[1]).predict(sys.argv[2], 'block3')[0]['features'])"
        for x, y in zip(expected, json.loads(self.python(script, self.run_folder, paths[0])), strict=True):
            self.assertAlmostEqual(x, y, delta=CLOSE)

    def test_numpy(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("expected NumPy, got none")
        paths = self.write_images()
        script = """import json, numpy, pathlib, ringgrad, sys
images = numpy.fromfile(sys.argv[2] + ".raw", numpy.uint8).reshape(32, 32, 3)
flipped = images[:, ::-1][:, ::-1]  # not contiguous
print(json.dumps(ringgrad.Model(sys.argv[1]).predict([images, flipped, numpy.stack([images] * 2)])))"""
        self.check_same(json.loads(self.python(script, self.run_folder, paths[0])),
                        self.predictions(self.run_folder, paths[0]) * 4)

    def test_arrays(self):
        script = """import ringgrad, sys
model, pixels = ringgrad.Model(sys.argv[1]), bytes(range(240))
colours = b"".join(bytes([grey] * 3) for grey in pixels)
grey = [model.predict(memoryview(values).cast("B", shape))[0]["scores"] for values, shape in (
    (pixels, (12, 20)), (pixels, (12, 20, 1)), (pixels, (1, 12, 20, 1)), (colours, (12, 20, 3)))]
print(all(scores == grey[0] for scores in grey))"""
        self.assertEqual(self.python(script, self.run_folder), "True\n")

    def test_pillow(self):
        try:
            import PIL  # noqa: F401
        except ImportError:
            self.skipTest("expected Pillow, got none")
        script = """import io, random, ringgrad, sys
from PIL import Image
model = ringgrad.Model(sys.argv[1])
def scores(images):
    return model.predict(images)[0]["scores"]
def of_pixels(image):
    return scores(memoryview(image.tobytes()).cast("B", (image.height, image.width, len(image.getbands()))))
image = Image.frombytes("RGB", (50, 40), random.Random(1).randbytes(6000))
for mode in "RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr", "HSV":
    converted = image.convert(mode)
    assert scores(converted) == of_pixels(converted.convert("L" if mode in ("1", "L", "LA") else "RGB")), mode
exif = Image.Exif()
turns = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
         7: "TRANSVERSE", 8: "ROTATE_90"}
for orientation, turn in turns.items():
    exif[0x112] = orientation
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    opened = Image.open(file)
    upright = opened.transpose(getattr(Image, turn)).convert("RGB")
    assert scores(Image.open(file)) == of_pixels(upright) != of_pixels(opened), orientation
    from_file = scores(file.getvalue())
    assert all(abs(a - b) < 0.02 for a, b in zip(from_file, of_pixels(upright))), orientation
image.info["exif"] = b"damaged"
assert scores(image) == of_pixels(image)
for mode in "I", "F", "I;16":
    try:
        model.predict(Image.new(mode, (4, 4)))
    except ringgrad.Error as error:
        assert f"got mode {mode}; give the path of its file" in str(error), error
    else:
        assert False, mode"""
        self.python(script, self.run_folder)

    def test_copies(self):
        path = self.write_images()[0]
        results = json.loads(self.python(COPIES, self.run_folder, path))
        self.check_same(results, self.predictions(self.run_folder, path) * 2 * (2 + 3 + 9))

    def test_paths_are_those_of_the_system(self):
        (self.folder / "far" / "away").mkdir(parents=True)
        (self.folder / "link").symlink_to("far/away")
        (self.folder / "far" / "model").symlink_to(self.run_folder)
        opened = "ringgrad.Model(sys.argv[1]).predict((ctypes.c_ubyte * 3 * 9 * 9)())"
        self.python(f"import ctypes, ringgrad, sys; {opened}", "link/../model")  # far/model, not ./model

    def test_memory_of_batches(self):
        sizes = [64, *range(1, 65), *range(64, 0, -1)]
        wide = self.train(1, "wide", "--width", "32", "--depth", "1", "--steps", "0")
        first, *_, last = json.loads(self.python(GROWTH, wide, *sizes))
        self.assertLess(last - first, 100)  # about 30; with memory of its own for each size, 200
        # The first size and single images keep their packed filters. The second size adds memory for others.
        large = self.train(1, "large", "--width", "256", "--depth", "1", "--steps", "0")
        _, second, *_, last = json.loads(self.python(GROWTH, large, *range(8, 0, -1)))
        self.assertLess(last - second, 60)

    def test_targets(self):
        self.succeed([str(job.BUILD / "train_digits_angles"), "--steps", "1", "--no-compare", "--run-name", "angles"])
        path = self.folder / "digit.png"
        path.write_bytes(job.png(28, 28, random.Random(1).randbytes(28 * 28), 0))
        expected = self.predictions(self.runs / "angles", path)[0]["targets"]
        script = "import json, ringgrad, sys; print(json.dumps(ringgrad.Model(sys.argv[1]).predict(sys.argv[2])))"
        targets = json.loads(self.python(script, self.runs / "angles", path))[0]["targets"]
        self.assertEqual(targets.keys(), expected.keys())
        for name, value in expected.items():
            self.assertAlmostEqual(targets[name], value, delta=abs(value) * CLOSE)

    def test_readme_script(self):
        script = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
        paths = self.write_images()
        lines = self.python(script, self.run_folder, *paths).splitlines()
        for line, path, expected in zip(lines, paths, self.predictions(self.run_folder, *paths), strict=True):
            self.assertEqual(line.split()[:2], [path, expected["best"][0]["class"]])

    def test_errors(self):
        paths = self.write_images()
        pathlib.Path(self.folder, "text.gif").write_bytes(b"GIF89a" + bytes(20))
        for expression, message in (
                ("Model('/no/such/run')", "/no/such/run"),
                ("Model(content[:-1])", "model in memory"),
                ("Model('')", "expected a run's folder, a model or a checkpoint"),
                ("Model(run, threads=-1)", "threads: expected a number from 0 to 4096, got -1"),
                ("Model(run, threads=int)", "threads: expected a number from 0 to 4096, got <class 'int'>"),
                ("Model(run, threads=None)", "threads: expected a number from 0 to 4096, got None"),
                ("Model(run, threads='2')", "threads: expected a number from 0 to 4096, got '2'"),
                ("Model(run, threads=1.0)", "threads: expected a number from 0 to 4096, got 1.0"),
                ("Model(run, threads=2**32 + 1)", "threads: expected a number from 0 to 4096, got 4294967297"),
                ("model.predict(content, 3)", "features: expected the name of a layer, got int"),
                ("model.predict(memoryview(bytes(12)).cast('B', (2, 2, 3)), 'layer')",
                 "features: expected a layer of block1 block2 block3 fc or one within these, got layer"),
                ("Model(None)", "model: expected bytes, or a path without zero bytes, got NoneType"),
                ("Model(run + '\\0x')", "model: expected bytes, or a path without zero bytes"),
                ("Model('\\ud800')", "model: expected bytes, or a path without zero bytes"),
                ("model.predict('a\\0.png')", "predict: expected bytes, or a path without zero bytes"),
                ("model.predict(None)", "a list of these, got NoneType"),
                ("closed().predict(b'')", "model: expected an open one, got one after close()"),
                ("__import__('copy').copy(closed())", "model: expected an open one, got one after close()"),
                ("of_child()", "got one from before fork(); open it in each process"),
                ("model.predict('missing.png')", "missing.png"),
                ("model.predict('text.gif')", "text.gif: expected a PNG or a JPEG, got GIF"),
                (f"model.predict(pathlib.Path({paths[0]!r}).read_bytes()[:100])", "image in memory"),
                ("model.predict(3.5)", "a Pillow image or a list of these, got float"),
                ("model.predict(memoryview(bytes(12)).cast('B', (1, 1, 3, 2, 2)))", "got format B and extents [1, 1, 3, 2, 2]"),
                ("model.predict(memoryview(bytes(48)).cast('f', (2, 2, 3)))", "got format f and extents [2, 2, 3]; "
                 "convert it, for NumPy with (255 * a).round().astype('uint8') if its values are 0 to 1"),
                ("model.predict(memoryview(bytes(8)).cast('d'))", "got format d"),
                ("model.predict(memoryview(bytes(10)).cast('B', (1, 2, 5)))", "got 1 x 2 of 5; channels come last")):
            out = self.python(ERRORS, self.run_folder, expression)
            self.assertIn(message, out, expression)
            self.assertEqual(out.count("\n"), 1, out)
            self.assertNotIn("no error", out)
        # A network that ringgrad.py cannot know
        self.succeed([str(job.BUILD / "own_network"), "--steps", "1", "--run-name", "own"])
        self.assertIn("expected a network that this program knows, got own",
                      self.python(ERRORS, self.run_folder, f"Model({str(self.runs / 'own')!r})"))

    def test_finds_the_library(self):
        alone = self.folder / "alone"
        alone.mkdir()
        shutil.copy(ROOT / "models" / "bindings" / "ringgrad.py", alone)
        command = [sys.executable, "-c", f"import ringgrad; ringgrad.Model({str(self.run_folder)!r})"]
        # LD_LIBRARY_PATH: Meson gives its tests one with the build folder.
        result = self.run_command(command, PYTHONPATH=str(alone), LD_LIBRARY_PATH="")
        self.assertIn("ringgrad.Error: ringgrad: expected libringgrad_predict.so beside", result.err)
        self.succeed(command, PYTHONPATH=str(alone), RG_LIBRARY=str(LIBRARY))
        shutil.copy(LIBRARY, alone)
        self.succeed(command, PYTHONPATH=str(alone))

    def compile(self, name, *options):
        """Compiles the C example. The build has a C++ compiler, which can compile C, too."""
        program = self.folder / name
        models = ROOT / "models"
        self.succeed([*COMPILER, "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{models / 'bindings'}",
                      "-x", "c", "-std=c99", str(models / "examples" / "classify.c"), "-x", "none",
                      "-o", str(program), f"-L{job.BUILD}", *options])
        return program

    def check_program(self, program, **environment):
        paths = self.write_images()
        lines = self.succeed([str(program), str(self.run_folder), *paths], **environment).splitlines()
        for line, path, expected in zip(lines, paths, self.predictions(self.run_folder, *paths), strict=True):
            name, label, score = line.split("\t")
            self.assertEqual((name, label), (path, expected["best"][0]["class"]))
            self.assertAlmostEqual(float(score), expected["best"][0]["score"], delta=CLOSE)
        self.refuse([str(program), str(self.folder)], "expected MODEL IMAGE...", **environment)
        self.refuse([str(program), "/no/run", *paths], "/no/run", **environment)
        self.refuse([str(program), str(self.run_folder), __file__], "expected a PNG or a JPEG", **environment)

    def test_static_program(self):
        source = self.folder / "empty.cpp"
        source.write_text("int main() {}\n")
        if self.run_command([*COMPILER, "-static", str(source), "-o", str(self.folder / "empty")]).code != 0:
            self.skipTest("expected static libraries of the system, got none")
        program = self.compile("static", "-static", "-s", "-lringgrad", "-Wl,--gc-sections")
        self.assertLess(program.stat().st_size, MAX_STATIC)
        self.check_program(program)

    def test_shared_library(self):
        self.check_program(self.compile("shared", "-lringgrad_predict"), LD_LIBRARY_PATH=str(job.BUILD))
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", self.succeed(["readelf", "-dW", str(LIBRARY)]))
        unexpected = [name for name in needed if not re.match(r"lib(c|m|stdc\+\+|gcc_s|pthread)\.so|ld-linux", name)]
        self.assertEqual(unexpected, [])  # neither MPI nor CUDA
        symbols = self.succeed(["readelf", "--dyn-syms", "-W", str(LIBRARY)])
        exported = re.findall(r"(?:GLOBAL|WEAK|UNIQUE) +DEFAULT +(?!UND|ABS)\d+ ([^@\s]+)", symbols)
        declared = re.findall(r"\b(rg_\w+)\(", (ROOT / "models" / "bindings" / "ringgrad.h").read_text())
        self.assertEqual(sorted(exported), sorted(set(declared)))


job.main()
