# Tests the files of a training with inspect, predict and an independent reader, and images and tensors of other
# programs.
import ast
import csv
import functools
import gzip
import io
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import types
import unittest.mock
import zipfile

import job

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
program = functools.partial(job.program, 1)


def expected_tensors(width, depth, classes):
    """Returns name -> (dtype, shape) of the state_dict of the same network in PyTorch."""
    tensors, channels = {"fc.weight": ("F32", [classes, 4 * width]), "fc.bias": ("F32", [classes])}, 3
    for block in (1, 2, 3):
        out = width << (block - 1)
        for i in range(depth):
            layer = f"block{block}.{i}."
            tensors[layer + "conv.weight"] = ("F32", [out, channels, 3, 3])
            for name in ("conv.bias", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"):
                tensors[layer + name] = ("F32", [out])
            tensors[layer + "bn.num_batches_tracked"] = ("I64", [])
            channels = out
    return tensors


class Model(job.JobTest):
    def test_names_and_shapes(self):
        model = self.train(1, "run", "--width", "6", "--depth", "2", "--steps", "3") / "model.safetensors"
        header, size = job.tensor_header(model)
        self.assertEqual(json.loads(header.pop("__metadata__")["classes"]), job.CLASSES)
        self.assertEqual({name: (t["dtype"], t["shape"]) for name, t in header.items()}, expected_tensors(6, 2, 10))
        ranges = sorted(t["data_offsets"] for t in header.values())
        self.assertEqual([end for _, end in ranges], [begin for begin, _ in ranges[1:]] + [size])
        # Every batch-norm layer has tracked three steps.
        data = model.read_bytes()[-size:]
        for name, t in header.items():
            if name.endswith("tracked"):
                self.assertEqual(struct.unpack("<q", data[slice(*t["data_offsets"])]), (3,))

    def test_init_restores_every_value(self):
        first = self.train(1, "first", *job.TINY, "--steps", "2") / "model.safetensors"
        again = self.train(1, "again", *job.TINY, "--steps", "0", "--seed", "9", "--init", str(first))
        self.assertEqual((again / "model.safetensors").read_bytes(), first.read_bytes())


class PyTorch(job.JobTest):
    def run_torch(self, script, *arguments):
        """Runs a Python script with torch and numpy, and returns its output. Skips the test if no Python has them."""
        pythons = [path for path in (sys.executable, "/usr/bin/python3") if os.path.exists(path) and not subprocess.run(
            [path, "-c", "import numpy, torch"], capture_output=True).returncode]
        if not pythons:
            self.skipTest("Python has no torch and numpy")
        result = subprocess.run([pythons[0], "-c", "import sys, numpy, torch\n" + script, *arguments], cwd=TOOLS.parent,
                                capture_output=True, text=True, timeout=job.LIMIT)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def test_state_dicts(self):
        """Compares files of torch.save() with safetensors files of the same values."""
        run = self.train(1, "run", *job.TINY, "--steps", "2")
        header, size = job.tensor_header(run / "model.safetensors")
        header.pop("__metadata__")
        data = (run / "model.safetensors").read_bytes()[-size:]
        text = json.dumps(header).encode()
        (self.folder / "float.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        halves = b"".join(data[slice(*t["data_offsets"])] if t["dtype"] == "I64" else struct.pack(
            f"<{count}f", *struct.unpack(f"<{count}e", struct.pack(f"<{count}e", *struct.unpack(
                f"<{count}f", data[slice(*t["data_offsets"])]))))
            for t in sorted(header.values(), key=lambda t: t["data_offsets"])
            for count in [(t["data_offsets"][1] - t["data_offsets"][0]) // 4])
        (self.folder / "half.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + halves)
        self.run_torch("""
import collections, json
folder, header = sys.argv[1], json.loads(sys.argv[2])
data = open(folder + "/float.safetensors", "rb").read()[-int(sys.argv[3]):]
state = collections.OrderedDict()
for name, t in header.items():
    begin, end = t["data_offsets"]
    values = numpy.frombuffer(data[begin:end], {"F32": "<f4", "I64": "<i8"}[t["dtype"]]).reshape(t["shape"])
    state[name] = torch.from_numpy(values.copy())
floats = torch.cat([torch.zeros(3)] + [t.flatten() for t in state.values() if t.is_floating_point()])
views, at = collections.OrderedDict(), 3
for name, t in state.items():
    views[name] = t
    if t.is_floating_point():
        views[name] = floats[at:at + t.numel()].view(t.shape)
        at += t.numel()
        if t.dim() == 4 and name.endswith("0.conv.weight"):
            views[name] = t.to(memory_format=torch.channels_last)
        elif t.dim() == 2:
            views[name] = t.t().contiguous().t()
class Layers(torch.nn.Module):
    pass
layers = Layers()
layers.weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
layers.weight.sum().backward()
optimizer.step()
parameters = {name: torch.nn.Parameter(t) if t.is_floating_point() else t for name, t in state.items()}
for kind, value in (("plain", state), ("views", views), ("parameters", parameters),
                    ("half", {name: t.half() if t.is_floating_point() else t for name, t in state.items()}),
                    ("training", {"epoch": 3, "state_dict": views, "optimizer": optimizer.state_dict(), "best": 0.5,
                                  "random": torch.get_rng_state()}),
                    ("parallel", collections.OrderedDict(("module." + name, t) for name, t in state.items()))):
    torch.save(value, f"{folder}/{kind}.pth")
    torch.save(value, f"{folder}/{kind}-old.pth", _use_new_zipfile_serialization=False)
torch.save(layers, folder + "/module.pth")
torch.save({"net": state, "average": views}, folder + "/two.pth")
torch.save(state["fc.weight"], folder + "/tensor.pth")
""", self.folder, json.dumps(header), str(size))
        lines, models = {}, {}
        for kind in ("float", "half"):
            name = f"{kind}.safetensors"
            lines[kind] = self.succeed(program("inspect", name)).splitlines()[1:]
            models[kind] = self.train(1, kind, *job.TINY, "--steps", "0", "--init", name) / "model.safetensors"
        refused = {"module": "got a call of __main__.Layers", "two": "expected one of net and average",
                   "tensor": "expected a state dict, got another value"}
        for path in sorted(self.folder.glob("*.pth")):
            kind = path.stem.removesuffix("-old")
            with self.subTest(path=path.name):
                if kind in refused:
                    self.refuse(program("inspect", path), path.name, refused[kind], "; write one by torch.save(")
                    continue
                expected = "half" if kind == "half" else "float"
                shown = self.succeed(program("inspect", path)).splitlines()
                self.assertIn("state dict of PyTorch, ", shown[0])
                self.assertEqual(shown[1:], lines[expected])
                if path.stem in ("plain-old", "training", "half"):
                    again = self.train(1, f"from-{path.stem}", *job.TINY, "--steps", "0", "--init", path.name)
                    self.assertEqual((again / "model.safetensors").read_bytes(), models[expected].read_bytes())

    def test_readme(self):
        """Runs the lines of models/run/README.md, and compares probabilities with those of predict."""
        run = self.train(1, "run", *job.TINY, "--epochs", "1")
        readme = (TOOLS.parent / "models" / "run" / "README.md").read_text()
        lines = [line.strip() for line in readme.partition("In PyTorch, ")[2].splitlines() if line.startswith("    ")]
        script = "\n".join(lines).replace("runs/NAME", str(run)) + """
records = numpy.fromfile(sys.argv[1], numpy.uint8).reshape(-1, 3073)[:, 1:].reshape(-1, 3, 32, 32)
mean, deviation = (numpy.float32(values).reshape(3, 1, 1) for values in (MEAN, DEVIATION))
images = torch.from_numpy((records.astype(numpy.float32) / 255 - mean) / deviation)
for row in net(images).softmax(1).tolist():
    print(*row)
"""
        script = script.replace("MEAN", "(.4914, .4822, .4465)").replace("DEVIATION", "(.2470, .2435, .2616)")
        test_set = self.folder / "test.bin"
        test_set.write_bytes(job.cifar_file(job.sample_records("test")))
        out = self.run_torch(script, test_set)
        ours = self.succeed(program("predict", run, test_set)).splitlines()
        for i, line in enumerate(out.splitlines()):
            _, name, probability = ours[i].split("\t")
            # predict prints six digits, and adds in another order.
            self.assertAlmostEqual(float(line.split()[job.CLASSES.index(name)]), float(probability), delta=1e-5)
        self.assertEqual(i, 199)


    def test_names_of_all_networks(self):
        """Compares the tensors of our files with those of tools/pytorch_nets.py, by a stand-in for torch.nn."""
        class Module:
            def tensors(self):
                for name, value in self.__dict__.items():
                    if isinstance(value, Module):
                        yield from ((f"{name}.{inner}", shape) for inner, shape in value.tensors())

        class Leaf(Module):
            def tensors(self):
                return self.shapes.items()

        class Conv2d(Leaf):
            def __init__(self, c, k, size, stride=1, padding=0, bias=True):
                self.shapes = {"weight": [k, c, size, size]} | ({"bias": [k]} if bias else {})

        class BatchNorm2d(Leaf):
            def __init__(self, c):
                self.shapes = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), [c])
                self.shapes["num_batches_tracked"] = []

        class Linear(Leaf):
            def __init__(self, c, k):
                self.shapes = {"weight": [k, c], "bias": [k]}

        class Sequential(Module):
            def __init__(self, *modules):
                self.__dict__.update((str(i), module) for i, module in enumerate(modules))

        stand_ins = {name: types.ModuleType(name) for name in ("numpy", "torch", "torch.nn", "torch.nn.functional")}
        nn = stand_ins["torch"].nn = stand_ins["torch.nn"]
        nn.functional = stand_ins["torch.nn.functional"]
        for kind in (Module, Conv2d, BatchNorm2d, Linear, Sequential):
            setattr(nn, kind.__name__, kind)
        source = types.ModuleType("pytorch_nets")
        with unittest.mock.patch.dict(sys.modules, stand_ins):
            exec((TOOLS / "pytorch_nets.py").read_text(), source.__dict__)
        for name, options in (("cifar", ["--depth", "2"]), ("resnet20", []), ("wrn16-4", []), ("resnet18", []),
                              ("resnet50", ["--stem", "imagenet"])):
            run = self.train(1, name, "--net", name, *options, "--steps", "0")
            header, _ = job.tensor_header(run / "model.safetensors")
            del header["__metadata__"]
            state = {key: types.SimpleNamespace(shape=tuple(t["shape"])) for key, t in header.items()}
            expected = {key: t["shape"] for key, t in header.items()}
            self.assertEqual({key: list(shape) for key, shape in source.network(state, {}).tensors()}, expected, name)


class Predict(job.JobTest):
    def setUp(self):
        super().setUp()
        self.run_folder = self.train(1, "run", *job.TINY, "--epochs", "2")
        self.test_set = self.folder / "test.bin"
        self.records = job.sample_records("test")
        self.test_set.write_bytes(job.cifar_file(self.records))

    def lines(self, *arguments):
        """Returns the fields that predict prints per image, and the lines of its summary but that of the speed."""
        images, _, summary = self.succeed(program("predict", *arguments)).partition("\n\n")
        return [line.split("\t") for line in images.splitlines()], summary.splitlines()[:-1]

    def test_records(self):
        lines, summary = self.lines(self.run_folder, self.test_set)
        self.assertEqual([line[0] for line in lines], [f"{self.test_set}#{i}" for i in range(len(self.records))])
        counts = [[0] * 10 for _ in range(10)]
        for (truth, _), (_, seen, score) in zip(self.records, lines):
            counts[truth][job.CLASSES.index(seen)] += 1
            self.assertTrue(0.1 <= float(score) <= 1)  # the highest of ten scores
        right = sum(counts[i][i] for i in range(10))
        self.assertEqual(job.epoch_lines(self.run_folder)[-1]["test_accuracy"], right / len(self.records))
        self.assertEqual(summary[0], f"200 images; accuracy {right / 2:.1f}% ({right} of 200)")
        for i, (name, row) in enumerate(zip(job.CLASSES, counts)):
            self.assertEqual(summary[4 + i].split(), [str(i), name, *map(str, row), "20", f"{5 * row[i]:.1f}%"])

        # The results do not depend on the batch size, the threads or the file of the network.
        checkpoint = next((self.run_folder / "checkpoint").glob("*40.safetensors"))
        for options in ([checkpoint], [self.run_folder / "model.safetensors", "--batch-size", "7", "--threads", "3"]):
            self.assertEqual(self.lines(*options, self.test_set), (lines, summary))
        self.assertEqual(self.succeed(program("predict", "--quiet", self.run_folder, self.test_set)).splitlines()[:-1],
                         summary)
        best, _ = self.lines("--top", "10", self.run_folder, self.test_set)
        for line, top in zip(lines, best):
            self.assertEqual(top[:3], line)
            self.assertCountEqual(top[1::2], job.CLASSES)
            scores = [float(score) for score in top[2::2]]
            self.assertEqual(scores, sorted(scores, reverse=True))
            self.assertAlmostEqual(sum(scores), 1, delta=1e-5)

    def test_features(self):
        def features(*arguments):
            self.succeed(program("predict", *arguments, "--out", "features.npy"))
            data = (self.folder / "features.npy").read_bytes()
            self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
            size = 10 + int.from_bytes(data[8:10], "little")
            self.assertEqual((size % 64, data[size - 1:size]), (0, b"\n"))
            header = ast.literal_eval(data[10:size].decode())
            self.assertEqual((header["descr"], header["fortran_order"]), ("<f4", False))
            n, k = header["shape"]
            return list(struct.iter_unpack(f"<{k}f", data[size:])), (self.folder / "features.csv").read_text()

        command = [self.run_folder, self.test_set, "--top", "10"]
        rows, names = features(*command, "--features", "fc.input")
        self.assertEqual((len(rows), len(rows[0])), (200, 16))
        self.assertEqual(names, self.run_command(program("predict", *command, "--csv")).out)
        # The dense layer makes the printed scores of them.
        header, size = job.tensor_header(self.run_folder / "model.safetensors")
        data = (self.run_folder / "model.safetensors").read_bytes()[-size:]
        weight, bias = (list(struct.iter_unpack("<f", data[slice(*header[name]["data_offsets"])]))
                        for name in ("fc.weight", "fc.bias"))
        for row, line in zip(rows, csv.DictReader(names.splitlines())):
            powers = [math.exp(bias[c][0] + sum(w[0] * x for w, x in zip(weight[16 * c:], row))) for c in range(10)]
            for i in range(1, 11):
                probability = powers[job.CLASSES.index(line[f"class{i}"])] / sum(powers)
                self.assertAlmostEqual(probability, float(line[f"score{i}"]), delta=1e-5)
        # Neither the size of the batches nor the format of the output matters.
        again, _ = features(*command, "--features", "block3", "--batch-size", "7", "--quiet", "--json")
        for row, other in zip(rows, again, strict=True):
            for x, y in zip(row, other, strict=True):
                self.assertAlmostEqual(x, y, delta=1e-5 * (1 + abs(x)))
        self.assertEqual(len(features(self.run_folder, "--features", "block1.0", "--quiet")[0][0]), 4)
        for arguments, words in ((["--features", "layer4"], ["expected --features LAYER with --out FILE.npy"]),
                                 (["--out", "x.npy"], ["--features '' and --out 'x.npy'"]),
                                 (["--features", "fc", "--out", "x.csv"], ["--out FILE.npy", "'x.csv'"]),
                                 (["--features", "layer4", "--out", "x.npy"],
                                  ["expected a layer of block1 block2 block3 fc or one within", "got layer4"])):
            self.refuse(program("predict", self.run_folder, self.test_set, *arguments), *words)
        self.assertFalse((self.folder / "x.npy").exists())

    def test_table_of_classes(self):
        lines, _ = self.lines("--top", "5", self.run_folder, self.test_set)
        table = (self.run_folder / "classes.csv").read_text()
        for row, name in zip(csv.DictReader(table.splitlines()), job.CLASSES, strict=True):
            truth = [job.CLASSES[label] == name for label, _ in self.records]
            seen = [line[1] == name for line in lines]
            both = sum(a and b for a, b in zip(truth, seen))
            top = sum(a and name in line[1::2] for a, line in zip(truth, lines))
            expected = {"precision": (both, sum(seen)), "recall": (both, sum(truth)),
                        "f1": (2 * both, sum(truth) + sum(seen)), "top5": (top, sum(truth))}
            self.assertEqual((row.pop("class"), row.pop("images")), (name, "20"))
            self.assertEqual(row, {key: f"{a / b:.6g}" if b else "" for key, (a, b) in expected.items()})
        self.assertEqual((self.run_folder / "confusion.csv").read_text().count("\n"), 11)
        for files in [], [self.test_set]:
            result = self.run_command(program("predict", self.run_folder, *files, "--quiet", "--csv"))
            self.assertEqual(result.out, table)
            self.assertIn("accuracy", result.err)

    def test_pngs(self):
        by_record, _ = self.lines(self.run_folder, self.test_set)
        images = self.folder / "images"
        for i, (truth, planes) in enumerate(self.records[:12]):
            path = images / job.CLASSES[truth] / "inner" / f"{i}.png"
            job.write_png(path, job.SIDE, job.SIDE, job.interleaved(planes))
        lines, summary = self.lines(self.run_folder, images)
        self.assertEqual(len(lines), 12)
        for name, *seen in lines:
            self.assertEqual(seen, by_record[int(pathlib.Path(name).stem)][1:])
        right = sum(job.CLASSES[self.records[i][0]] == by_record[i][1] for i in range(12))
        self.assertIn(f"({right} of 12)", summary[0])
        # A single image has one line, even if its class is known.
        alone = next(images.rglob("0.png"))
        self.assertEqual(self.lines(self.run_folder, alone), ([[str(alone), *by_record[0][1:]]], []))
        # The embedded sample has the same images as the file.
        lines, summary = self.lines(self.run_folder)
        self.assertEqual(lines, [[f"sample#{i}", *seen] for i, (_, *seen) in enumerate(by_record)])
        # Without class folders there are no labels and no summary.
        loose = self.folder / "loose.png"
        loose.write_bytes(job.png(job.SIDE, job.SIDE, job.interleaved(self.records[0][1])))
        self.assertEqual(self.lines(self.run_folder, loose), ([[str(loose), *by_record[0][1:]]], []))

    def test_images_larger_than_the_input(self):
        # The file of the model has both sizes, so predict takes the same central windows as the test of the training.
        options = [*job.TINY, "--size", "28x24", "--store-size", "36x30", "--augment", "flip,crop", "--epochs", "2"]
        for ranks in job.rank_counts(1, 2):
            run = self.train(ranks, f"whole-{ranks}", *options)
            metadata = job.tensor_header(run / "model.safetensors")[0]["__metadata__"]
            self.assertEqual((metadata["image"], metadata["resize"]), ("[28, 24, 3]", "[36, 30]"))
            right = round(200 * job.epoch_lines(run)[-1]["test_accuracy"])
            self.assertIn(f"({right} of 200)", self.lines(run, self.test_set)[1][0])
            # A resumed run keeps the sizes.
            part = self.train(ranks, f"part-{ranks}", *options, "--steps", "25")
            resume = ["--resume", "--run-name", part.name]
            self.refuse(job.train(ranks, *resume, "--store-size", "40"), "--store-size 36x30", "got 40")
            self.succeed(job.train(ranks, *resume, "--steps", "-1"))
            self.assertEqual(job.step_lines(part), job.step_lines(run))

    def test_names_are_printable(self):
        # A folder name may try to clear the screen, to fake lines of output, or to run in a spreadsheet.
        evil = "\x1b[2J\x1b[31m\nerror: send money\t\x7f\u009b1m\u202e"
        shown = "\\x1b[2J\\x1b[31m\\nerror: send money\\t\\x7f\\xc2\\x9b1m\\xe2\\x80\\xae"
        data = self.folder / ("data" + evil)
        for c, name in enumerate((evil, "=1+1", "a,b \"c\"")):
            for i in range(5):
                path = data / name / f"{i}{evil}.png"
                job.write_png(path, job.SIDE, job.SIDE, bytes([100 * c + i] * 3) * job.SIDE ** 2)
        run = ["--run-name", "run" + evil]
        out = self.succeed(job.train(1, *job.TINY, "--data", data.name, "--batch-size", "6", "--epochs", "2", *run))
        out += self.succeed(job.train(1, "--resume", "--epochs", "3", *run))
        self.assertIn(f"runs/run{shown}\n", out)
        self.assertIn(f"data{shown}", out.replace("\n    ", " "))
        model = self.runs / run[1]
        out += self.succeed(program("predict", model, data))
        self.assertRegex(out, r"\n +\d " + re.escape(shown) + r" +\d")
        self.assertIn(f"/0{shown}.png\t", out)
        out += self.succeed(program("inspect", model / "model.safetensors", next(data.rglob("*.png"))))
        out += self.succeed(program("train_cifar", "sweep", *job.TINY, "--data", data.name, "--batch-size", "6", "--epochs", "1",
                                    "--grid", "lr=0.1", *run[:1], "sweep" + evil))
        out += self.run_command(job.train(1, "--data", "no" + evil)).err
        self.assertIn(f"no{shown}", out)
        sweep = self.runs / ("sweep" + evil)
        tables = [(sweep / "confusion.csv").read_text(), (sweep / "results.csv").read_text(),
                  self.run_command(program("predict", model, data, "--csv", "--top", "3")).out]
        for text in tables:
            rows = list(csv.reader(io.StringIO(text)))
            self.assertEqual(len({len(row) for row in rows}), 1, rows)
            self.assertEqual(len(rows), text.count("\n"))
            for field in itertools.chain(*rows):
                self.assertNotRegex(field, r"^[=+\-@](?![0-9.e+\-]*$)")
            out += text
        self.assertEqual([row[0] for row in csv.reader(io.StringIO(tables[0]))],
                         ["true class", shown, "'=1+1", "a,b \"c\""])
        for character in out:
            self.assertTrue(character in "\n\t" or character.isprintable(), repr(character))

    def test_other_classes(self):
        # A network for three other classes stores their names.
        for c, name in enumerate(("blue", "green", "red")):
            for i in range(5):
                pixel = bytes(255 - i if channel == 2 - c else i for channel in range(3))
                path = self.folder / "colours" / name / f"{i}.png"
                job.write_png(path, job.SIDE, job.SIDE, pixel * job.SIDE ** 2)
        run = self.train(1, "colours", *job.TINY, "--data", "colours", "--batch-size", "6", "--epochs", "30")
        lines, summary = self.lines(run, self.folder / "colours")
        self.assertIn("accuracy 100.0% (15 of 15)", summary[0])
        self.assertEqual([line[1] for line in lines], ["blue"] * 5 + ["green"] * 5 + ["red"] * 5)
        # The labels of CIFAR do not fit this network.
        self.assertIn("200 images, none with a known label\n",
                      self.succeed(program("predict", "--quiet", run, self.test_set)))

    def test_rejected_inputs(self):
        small = self.folder / "small.png"
        small.write_bytes(job.png(16, 8, bytes(3 * 16 * 8))[:50])
        (self.folder / "void").mkdir()
        for arguments, words in (([self.run_folder, self.test_set, small], ["small.png", "cut off"]),
                                 ([self.run_folder, "void"], ["void", "none"]),
                                 ([self.run_folder, "nothing.png"], ["nothing.png"]),
                                 ([self.run_folder, self.run_folder / "config.json"], ["config.json", "PNG"]),
                                 ([], ["MODEL"]),
                                 (["--json", "--csv", self.run_folder], ["--json or --csv"]),
                                 (["void", small], ["void", "model.safetensors", "give a run first"]),
                                 ([small, small], ["small.png", "safetensors"]),
                                 (["--tpo", "3", self.run_folder, small], ["--tpo", "--top"])):
            self.refuse(program("predict", *arguments), *words)

    def test_damaged_model(self):
        good = (self.run_folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", good[:8])[0]
        bad = self.folder / "bad.safetensors"
        for at, part in ((good.index(b"cat"), "the header"), (8 + size + 5, "tensor block1"), (len(good) - 2, "tensor ")):
            damaged = bytearray(good)
            damaged[at] ^= 1
            bad.write_bytes(damaged)
            for command in (program("predict", bad, self.test_set), program("inspect", bad),
                            program("export_onnx", bad, "net.onnx"), job.train(1, *job.TINY, "--init", str(bad))):
                self.refuse(command, "bad.safetensors", "expected checksum ", f" of {part}", "damaged")
        # A header that other programs would accept, but that would need gigabytes of memory.
        header = b'{"a": {}' + b" " * 20_000_000 + b"}"
        bad.write_bytes(struct.pack("<Q", len(header)) + header)
        self.refuse(program("inspect", bad), "expected a header of at most 10000000 bytes, got length 20000009")

    def test_files_of_pytorch(self):
        with zipfile.ZipFile(self.folder / "packed.pth", "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("net/data.pkl", bytes(100))
        with zipfile.ZipFile(self.folder / "hostile.pth", "w") as file:
            file.writestr("net/data.pkl", b"\x80\2cos\nsystem\nX\x0b\0\0\0touch owned\x85R.")
        for name, words in (("packed.pth", "expected a member without compression, got net/data.pkl"),
                            ("hostile.pth", "expected a state dict, got a call of os.system; write one by torch.save(")):
            for command in program("predict", name), program("inspect", name), job.train(1, *job.TINY, "--init", name):
                self.refuse(command, name, words)
        self.assertFalse((self.folder / "owned").exists())

    def test_values_that_overflow(self):
        model, bad = self.run_folder / "model.safetensors", self.folder / "bad.safetensors"
        for name, values, words in (
                ("fc.weight", 5 * [0] + [float("nan")],
                 ["expected finite values, got nan in fc.weight (value 5 of 160)"]),
                ("block1.0.bn.running_mean", 4 * [float("-inf")], ["got -inf in block1.0.bn.running_mean"]),
                ("block1.0.bn.running_var", 4 * [-1], ["got -1 in block1.0.bn.running_var"]),
                ("fc.bias", 10 * [3e38], [])):
            bad.write_bytes(job.with_values(model, name, values))
            if words:
                self.refuse(program("predict", bad, self.test_set), "bad.safetensors", *words)
                for ranks in job.rank_counts(1, 2):
                    self.refuse(job.train(ranks, *job.TINY, "--init", str(bad), "--run-name", "bad"), "bad.safetensors",
                                *words)
                    self.assertFalse((self.runs / "bad").exists())
            else:
                self.succeed(program("predict", bad, self.test_set))  # large, but the scores are finite
        # The values are finite, but results computed with them are not.
        bad.write_bytes(job.with_values(model, "fc.weight", 160 * [3e38]))
        result = self.run_command(program("predict", bad, self.test_set))
        self.assertEqual(result.code, 1)
        self.assertIn("expected finite outputs", result.err)
        self.assertNotIn("accuracy", result.out)


class Folder(job.JobTest):
    """Training on a folder of class folders."""

    def setUp(self):
        super().setUp()
        for i in range(20):
            self.write("images", ("cat", "dog")[i % 2], i)
        self.write("images", "void", 20)  # a class without test images

    def write(self, folder, name, shade):
        path = self.folder / folder / name / f"{shade}.png"
        job.write_png(path, job.SIDE, job.SIDE, bytes([shade]) * 3 * job.SIDE ** 2)

    def void_model(self):
        """Makes a network that predicts "void" for every image, so that its mistakes are the test images."""
        path = self.train(1, "start", *job.TINY, "--data", "images", "--batch-size", "4", "--steps",
                          "0") / "model.safetensors"
        void = job.with_values(path, "fc.bias", [0, 0, 1e6]).replace(b'"data"', b'"none"')  # so that each run chooses its images
        (self.folder / "void.safetensors").write_bytes(void)
        return ["--init", "void.safetensors", "--lr", "1e-9"]

    def images_of(self, result):
        return sorted(mistake["pictures"][0] for mistake in result["samples"][0]["samples"])

    def test_seed_selects_test_images(self):
        options = ["--data", "images", *job.TINY, "--batch-size", "4", "--epochs", "1", *self.void_model()]
        for name, part in (("test", []), ("validation", ["--validation", "0.25"])):
            parts = {}
            for seed in range(2):
                for ranks in job.rank_counts(1, 2):
                    run = self.train(ranks, f"{name}-{seed}-{ranks}", *options, *part, "--seed", str(seed))
                    images = self.images_of(job.report(run)["runs"][0])
                    self.assertEqual(len(images), 4)
                    self.assertEqual(parts.setdefault(seed, images), images)
            self.assertGreater(len(set(map(tuple, parts.values()))), 1, name)
            if name == "test":
                of_seed = parts
        # The best trial of a sweep is tested on the images that its seed has held out.
        for seed in range(2):
            run = self.runs / f"sweep-{seed}"
            result = self.run_command(program("train_cifar", "sweep", "--run-name", run.name, *options, "--grid", f"seed={seed}"))
            self.assertEqual(result.code, 0, result)
            self.assertIn("single image, which no test can have: 1, such as void", result.err)
            self.assertEqual(self.images_of(job.report(run)["sweep"]), of_seed[seed])

    def test_test_data_and_size(self):
        options = [*job.TINY, "--batch-size", "4", "--steps", "6", "--seed", "3"]
        for part, share in (("train", slice(5)), ("test", slice(5, 7))):
            for name in ("cat", "dog"):
                for path in sorted((self.folder / "images" / name).iterdir())[share]:
                    copy = self.folder / "parts" / part / name / path.name
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, copy)
        for ranks in job.rank_counts(1, 2):
            both = self.train(ranks, f"both-{ranks}", *options, "--data", "parts")
            apart = self.train(ranks, f"apart-{ranks}", *options, "--data", "parts/train", "--test-data", "parts/test")
            for lines in (job.step_lines, job.epoch_lines):
                self.assertEqual(lines(apart), lines(both))
            same = self.train(ranks, f"size-{ranks}", *options, "--data", "parts", "--size", "32x32")
            self.assertEqual(job.step_lines(same), job.step_lines(both))
            shutil.copytree(self.folder / "parts", self.folder / f"mixed-{ranks}")
            grey = self.folder / f"mixed-{ranks}" / "train" / "cat" / "zz.png"
            grey.write_bytes(job.png(50, 40, bytes(range(200)) * 10, colour=0))
            mixed = ["--data", f"mixed-{ranks}", *options]
            self.refuse(job.train(ranks, *mixed), f"mixed-{ranks}/train/cat/zz.png", "50 x 40", "--size")
            for size in ([], ["--size", "32"]):  # inspect counts images of any size
                counts = self.succeed(program("inspect", f"mixed-{ranks}", *size))
                self.assertIn("\n  cat            6          2\n  dog            5          2\n", counts)
                self.assertEqual("images of different sizes; training programs need --size" in counts, not size)
            out = self.succeed(job.train(ranks, *mixed, "--size", "32"))
            self.assertIn("32x32x3, 2 classes, 1 grey image converted to colour, 1 image resized",
                          " ".join(out.split()))  # lines of 80 columns
        self.refuse(job.train(1, *options, "--data", "parts", "--size", "32x"), "--size: expected HEIGHTxWIDTH")
        self.assertIn("\n  dog            5          -\n", self.succeed(program("inspect", "parts/train")))
        cache = self.folder / "cache-home" / "ringgrad"
        listing = self.succeed(program("inspect", cache))
        self.assertIn("parts/train: 10 images 32x32x3", listing)
        self.assertEqual(listing, "".join(self.succeed(program("inspect", path)) for path in sorted(cache.glob("*.images"))))
        lock = "0123456789abcdef.lock"  # as a killed process leaves it
        other = pathlib.Path(shutil.copytree(cache, self.folder / "other"))
        for folder in (cache, other):
            (folder / lock).touch()
            self.succeed(program("inspect", folder))
        self.assertFalse((cache / lock).exists())
        self.assertTrue((other / lock).exists(), "inspect cleans only the default cache")
        own = cache / "own.images"
        own.write_text("not a packed set")
        self.refuse(program("inspect", own, "--delete"), "expected packed sets, got none")
        (cache / lock).touch()
        self.assertIn("deleted", self.succeed(program("inspect", cache, "--delete")))
        self.assertEqual(list(cache.iterdir()), [own])
        self.refuse(program("inspect", cache, "--delete"), "expected packed sets, got none")
        for name in ("train_digits", "train_digits_angles"):
            self.refuse(program(name, "--data", "parts"), "[28 28 1]", "--size 28x28")
        self.succeed(program("train_digits", "--data", "parts", "--batch-size", "4", "--steps", "1", "--size", "28"))

        # A sweep tests its best network on the images of --test-data.
        run = self.runs / "sweep"
        sweep = ["train_cifar", "sweep", *options, "--validation", "0.3", "--grid", "depth=1", "--data", "parts/train"]
        self.succeed(program(*sweep, "--run-name", run.name, "--test-data", "parts/test"))
        rows = csv.DictReader((run / "confusion.csv").read_text().splitlines())
        self.assertEqual(sum(int(row["images"]) for row in rows), 4)
        (self.folder / "parts" / "test" / "emu").mkdir()
        shutil.copy(path, self.folder / "parts" / "test" / "emu" / "1.png")
        for command in (sweep, ["train_cifar", *options, "--data", "parts/train"]):
            self.refuse(program(*command, "--test-data", "parts/test"), "--test-data", "another class, emu")
        shutil.rmtree(self.folder / "parts" / "test" / "emu")
        shutil.rmtree(self.folder / "parts" / "test" / "dog")  # a test set may lack a class
        self.succeed(program("train_cifar", *options, "--data", "parts/train", "--test-data", "parts/test"))

    def test_images_in_other_formats(self):
        run = self.train(1, "run", "--data", "images", *job.TINY, "--batch-size", "4", "--steps", "1")
        (self.folder / "images" / "README.md").write_text("no image")
        (self.folder / "images" / "cat" / "Thumbs.db").write_bytes(bytes(100))
        self.train(1, "again", "--data", "images", *job.TINY, "--batch-size", "4", "--steps", "1")
        for i in range(3):
            (self.folder / "images" / "dog" / f"{i}.gif").write_bytes(b"GIF89a")
        words = ["got 3 other images", "images/dog/0.gif (GIF)", "mogrify -format png *.gif", "--skip-other-images"]
        for ranks in job.rank_counts(1, 2):
            self.refuse(job.train(ranks, "--data", "images", *job.TINY), *words)
        skipped = self.train(1, "skipped", "--data", "images", *job.TINY, "--batch-size", "4", "--steps", "1",
                             "--skip-other-images")
        lines = (skipped / "skipped.txt").read_text().splitlines()
        self.assertEqual([line.rpartition("images/")[2] for line in lines], [f"dog/{i}.gif (GIF)" for i in range(3)])
        for name in ("train_digits", "train_digits_angles"):
            self.refuse(program(name, "--data", "images"), *words)
            self.refuse(program(name, "--data", "images", "--skip-other-images"), "[28 28 1]")
        self.refuse(program("predict", run, "images"), *words)
        for name in (["predict", run], ["inspect"]):
            result = self.run_command(program(*name, "images", "--skip-other-images"))
            self.assertEqual(result.code, 0)
            self.assertRegex(result.out + result.err, r"warning: 3 files are left out; the first: \S*images/dog/0.gif \(GIF\)")
            self.assertIn("of 21)" if name[0] == "predict" else "21", result.out)
        self.refuse(program("predict", run, "images/dog/0.gif"), "got GIF (images/dog/0.gif)", "mogrify")
        files = ["images/cat/2.png", "images/dog/0.gif", "images/cat/0.png"]
        self.refuse(program("predict", run, *files), "got GIF (images/dog/0.gif)", "or give --skip-other-images")
        result = self.run_command(program("predict", run, *files, "--skip-other-images"))
        self.assertEqual(re.findall(r"(?m)^(\S*png)\t", result.out), [files[0], files[2]])

    def test_damaged_images(self):
        # One line of one rank counts the files that other programs read too, and one error names all unreadable files.
        damaged = [self.folder / "images" / "cat" / f"{i}.png" for i in (0, 2, 4)]
        whole = [path.read_bytes() for path in damaged]
        for path, content in zip(damaged, whole):
            path.write_bytes(content[:-12])
        words = "warning: 3 files are damaged but readable; the first: png: expected a chunk, got the end of the file"
        for ranks in job.rank_counts(1, 2):
            out = self.succeed(job.train(ranks, "--data", "images", *job.TINY, "--batch-size", "4", "--steps", "1"))
            self.assertEqual(out.count("damaged"), 1)
            self.assertIn(words, out)
        self.assertIn(words, self.succeed(program("inspect", "images")))
        self.assertIn("\n  damaged but readable: png: ", self.succeed(program("inspect", damaged[0])))
        for path, content in zip(damaged, whole):
            path.write_bytes(content[:50])
        words = ["images: expected ", "got 3 bad ones", *(f"images/cat/{i}.png" for i in (0, 2, 4)), "cut off"]
        for command in (job.train(1, "--data", "images", *job.TINY), program("inspect", "images")):
            self.refuse(command, *words)


class Networks(job.JobTest):
    """Residual networks on images of any size, whose models say what they are."""

    def setUp(self):
        super().setUp()
        for folder, classes in (("two", 2), ("three", 3)):
            for c in range(classes):
                for i in range(5):
                    path = self.folder / folder / f"class{c}" / f"{i}.png"
                    job.write_png(path, 12, 9, bytes([100 * c + 9 * i]) * (3 * 12 * 9))

    def test_trains_resumes_and_starts_another(self):
        options = ["--net", "resnet20", "--zero-last-gamma", "--batch-size", "4", "--data"]
        whole = self.train(1, "whole", *options, "two", "--epochs", "2")
        self.train(1, "parts", *options, "two", "--epochs", "1")
        self.succeed(job.train(1, "--resume", "--run-name", "parts", "--epochs", "2"))
        self.assertEqual((whole / "model.safetensors").read_bytes(),
                         (self.runs / "parts" / "model.safetensors").read_bytes())
        metadata = job.tensor_header(whole / "model.safetensors")[0]["__metadata__"]
        self.assertEqual(json.loads(metadata["network"]), {"name": "resnet20", "stem": "auto", "zero-last-gamma": True})
        self.assertEqual(json.loads(metadata["image"]), [9, 12, 3])
        self.refuse(job.train(1, "--resume", "--run-name", "parts", "--net", "cifar"), "--net resnet20", "--init")
        # Another number of classes needs another last layer.
        start = ["--init", str(whole / "model.safetensors")]
        self.refuse(job.train(1, *options, "three", *start), "fc.weight", "[3 64], got [2 64]", "--init-skip fc")
        self.train(1, "three", *options, "three", *start, "--init-skip", "fc", "--steps", "0")
        self.refuse(job.train(1, *options, "three", *start, "--init-skip", "fc,head"), "got head")
        self.refuse(job.train(1, *options, "three", *start, "--init-skip", "fc,,x"), "empty name")
        self.refuse(job.train(1, *options, "three", "--init-skip", "fc"), "expected --init with --init-skip")
        self.refuse(job.train(1, *options, "three", "--width", "8"), "--width", "--net cifar", "resnet20")

    def test_freezes_all_but_the_last_layers_of_a_mobilenet(self):
        options = ["--net", "mobilenet_v3_small", "--width-mult", "0.35", "--batch-size", "4", "--data"]
        whole = self.train(1, "whole", *options, "two", "--epochs", "1")
        metadata = job.tensor_header(whole / "model.safetensors")[0]["__metadata__"]
        self.assertEqual(json.loads(metadata["network"]),
                         {"name": "mobilenet_v3_small", "width-mult": 0.35, "dropout": 0.2})
        start = ["--init", str(whole / "model.safetensors")]
        self.refuse(job.train(1, *options, "three", *start), "classifier.3.weight", "--init-skip classifier.3")
        self.refuse(job.train(1, *options, "three", *start, "--init-skip", "classifier,features.0.1.running_mean", "--freeze",
                              "features"), "--freeze: expected layers with the values of --init, got features, but",
                    "leaves out features.0.1.running_mean")
        last = self.train(1, "three", *options, "three", *start, "--init-skip", "classifier", "--freeze", "features",
                          "--epochs", "1")
        before, after = (self.tensors(run / "model.safetensors") for run in (whole, last))
        self.assertEqual([name for name in after if after[name] != before[name] and not name.endswith("tracked")],
                         [name for name in after if name.startswith("classifier.")])

    def tensors(self, path):
        """Returns the bytes of each tensor by name."""
        header, size = job.tensor_header(path)
        data = path.read_bytes()[-size:]
        return {name: data[slice(*tensor["data_offsets"])] for name, tensor in header.items() if name != "__metadata__"}


class Sample(job.JobTest):
    def test_only_programs_that_load_data_contain_it(self):
        if job.SANITIZED:
            self.skipTest("a sanitizer keeps what no program uses")
        images = (job.SAMPLE / "test.png").read_bytes()
        contain = [name for name in ("train_cifar", "make_digits") if images in (job.BUILD / name).read_bytes()]
        self.assertEqual(contain, ["train_cifar"])


class BuildFolder(job.JobTest):
    """Programs that are started in a build folder or below it write their runs beside it."""

    def setUp(self):
        super().setUp()
        (self.folder / "build" / "meson-private").mkdir(parents=True)
        self.folder /= "build"

    def test_runs_lie_beside_it(self):
        below = self.folder / "below"
        below.mkdir()
        for name, shown in (("first", "../runs/first"), ("second", "../../runs/second")):
            out = self.succeed(job.train(1, *job.TINY, "--steps", "2", "--checkpoint-every", "1", "--run-name", name))
            self.assertIn(f"\n{shown}\n", out)
            self.succeed(program("predict", shown))
            self.succeed(job.train(1, "--resume", "--steps", "3"))
            self.assertEqual(len(job.losses(self.runs / name)), 3)
            self.assertRegex(self.succeed([str(TOOLS / "monitor"), "--text"]), rf"(?m)^ *{name} ")
            crash = ["sh", "-c", f"touch {shown}/config.json; exit 3", "sh", "--run-name", name]
            result = self.run_command(["sh", str(TOOLS / "run.sh"), "--max-restarts", "0", "--", *crash])
            self.assertIn(f"; {shown}\n", result.err)
            self.folder = below
        self.succeed(program("train_cifar", "sweep", *job.TINY, "--grid", "lr=0.1", "--epochs", "1", "--run-name", "sweep"))
        self.assertEqual({run.name for run in self.runs.iterdir()}, {"first", "second", "sweep"})
        self.assertEqual(list(below.parent.rglob("runs")), [])


class Inspect(job.JobTest):
    def inspect(self, path):
        return self.succeed(program("inspect", path)).splitlines()

    def assert_line(self, lines, name, *words):
        found = [line for line in lines if line.split()[0] == name]
        self.assertEqual(len(found), 1, lines)
        for word in words:
            self.assertIn(word, found[0])

    def test_training(self):
        run = self.train(1, "run", *job.TINY, "--steps", "3")
        lines = self.inspect(run / "model.safetensors")
        self.assertIn("safetensors", lines[0])
        for name, (dtype, shape) in expected_tensors(4, 1, 10).items():
            self.assert_line(lines, name, f" {dtype.lower()} ", f" [{' '.join(map(str, shape))}]", "non-finite 0")
        checkpoint = self.inspect(next((run / "checkpoint").iterdir()))
        self.assertIn("checkpoint of step 3", checkpoint[0])
        self.assert_line(checkpoint, "optimizer.velocity", " f32 ")

    def test_not_finite(self):
        header = b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
        path = self.folder / "t.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<4f", 1, float("nan"), 5, float("inf")))
        self.assert_line(self.inspect(path), "t", "f32 [4]", "min 1  max 5  mean 3", "non-finite 2")

    def test_output_keeps_links_and_special_files(self):
        export = ["export_onnx", self.train(1, "run", *job.TINY, "--steps", "0")]
        target, link, fifo = (self.folder / name for name in ("target.onnx", "link.onnx", "fifo.onnx"))
        self.succeed(program(*export, target))
        network = target.read_bytes()
        target.write_bytes(b"before")
        link.symlink_to("target.onnx")
        self.succeed(program(*export, link))
        self.assertTrue(link.is_symlink())
        self.assertEqual(target.read_bytes(), network)
        os.mkfifo(fifo)
        self.refuse(program(*export, fifo), "write", "fifo.onnx: expected a file, got a folder, pipe or device")
        self.assertTrue(fifo.is_fifo())

    def test_png(self):
        path = self.folder / "deep.png"
        path.write_bytes(job.png(3, 2, bytes(range(36)), depth=16))
        lines = self.inspect(path)
        self.assertIn("PNG, 3 x 2, RGB, 16 bit", lines[0])
        self.assert_line(lines, "pixels", "u16 [2 3 3]", "min 1 ", f"max {34 * 256 + 35} ")

    def test_cifar_and_idx(self):
        path = self.folder / "three.bin"
        path.write_bytes(b"".join(bytes([label]) + bytes([10 * label]) * 3072 for label in (1, 1, 4)))
        lines = self.inspect(path)
        self.assertIn("CIFAR-10, 3 records", lines[0])
        self.assert_line(lines, "images", "u8 [3 32 32 3]", "min 10  max 40  mean 20")
        self.assertEqual(lines[-1].split(), "per label 0 2 0 0 1 0 0 0 0 0".split())
        idx = struct.pack(">4I", 0x803, 2, 3, 4) + bytes(range(24))
        for name, content in (("plain-ubyte", idx), ("packed.gz", gzip.compress(idx))):
            (self.folder / name).write_bytes(content)
            lines = self.inspect(self.folder / name)
            self.assertIn("IDX", lines[0])
            self.assert_line(lines, "values", "u8 [2 3 4]", "min 0  max 23  mean 11.5")

    def test_rejected_inputs(self):
        short = self.folder / "short.png"
        short.write_bytes(job.png(2, 2, bytes(12))[:-20])
        self.refuse(program("inspect", short), "short.png")
        self.refuse(program("inspect", "nothing"), "nothing")
        self.refuse(program("predict", "nothing"), "expected a run's folder, a model or a checkpoint, got nothing (nothing)")
        self.refuse(program("inspect"), "FILE")

    def test_huge_files(self):
        # These files are sparse, so that they are long but need no disk.
        for size, said in ((1 << 40, "expected at most"), (1 << 34, "expected memory for its")):
            limited = lambda *arguments: ["sh", "-c", 'ulimit -v 8000000 && exec "$@"', "sh",
                                          *program("inspect", *arguments)]
            if self.run_command(limited("--help")).code != 0:
                self.skipTest("the programs of this build need more memory than may be left to them")
            for name in ("huge.png", "huge.safetensors"):
                with open(self.folder / name, "wb") as file:
                    file.truncate(size)
                self.refuse(limited(name), name, said, str(size))


job.main()
