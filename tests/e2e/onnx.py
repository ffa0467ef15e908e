# Tests ONNX files: their fields with a reader of protobuf, and the results with ONNX Runtime if that is installed.
#
# ONNX Runtime is the npm package onnxruntime-node. NODE_PATH must name the folder node_modules that has it:
#
#     npm install --prefix /tmp/onnx onnxruntime-node
#     NODE_PATH=/tmp/onnx/node_modules meson test -C build e2e-onnx
import array
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess

import job

RUNTIME = pathlib.Path(__file__).with_name("onnx_runtime.js")


def fields(message):
    """Returns {field number: [values]} of a protobuf message. Values of strings and messages are bytes."""
    found = {}
    for number, _, value in job.protobuf(message):
        found.setdefault(number, []).append(value)
    return found


def text(message, field):
    return fields(message)[field][0].decode()


def texts(message, field):
    return [value.decode() for value in fields(message).get(field, [])]


def values_of(message):
    """Returns name -> (dimensions) of a graph's inputs or outputs. A free dimension is its name."""
    found = {}
    for value in message:
        tensor = fields(fields(fields(value)[2][0])[1][0])
        if tensor[1] != [1]:
            raise ValueError(f"expected floats, got the type {tensor[1]}")
        dims = [fields(dim) for dim in fields(tensor[2][0])[1]]
        found[text(value, 1)] = [dim[1][0] if 1 in dim else dim[2][0].decode() for dim in dims]
    return found


class Onnx(job.JobTest):
    def read(self, path):
        """Checks the fields that all files have, and returns the fields of the model and of the graph."""
        model = fields(pathlib.Path(path).read_bytes())
        self.assertEqual(model[1], [8])
        self.assertEqual(model[2], [b"ringgrad"])
        self.assertEqual([fields(opset) for opset in model[8]], [{1: [b""], 2: [17]}])
        graph = fields(model[7][0])
        # Each name is written once, before nodes read it.
        known = {text(value, 1) for value in graph[11]} | {""}
        for tensor in map(fields, graph[5]):
            name, count = tensor[8][0].decode(), math.prod(tensor.get(1, []))
            self.assertNotIn(name, known)
            self.assertEqual(len(tensor[9][0]), count * {1: 4, 7: 8}[tensor[2][0]], name)
            known.add(name)
        used = set()
        for node in graph[1]:
            self.assertLessEqual(set(texts(node, 1)), known)
            used |= set(texts(node, 1))
            for output in texts(node, 2):
                self.assertNotIn(output, known)
                known.add(output)
        outputs = {text(value, 1) for value in graph[12]}
        self.assertEqual((used | outputs) - {""}, known - {""})  # nothing is unused
        return model, graph

    def export(self, model, *program):
        out = self.folder / "model.onnx"
        self.succeed([*(program or [str(job.BUILD / "export_onnx")]), str(model), str(out)])
        return out

    def run_all(self, networks):
        """Runs NAME.onnx in ONNX Runtime for each of the networks; see onnx_runtime.js. Skips the test without it."""
        node = shutil.which("node")
        if not node:
            self.skipTest("node is not installed")
        if subprocess.run([node, "-e", "require('onnxruntime-node')"], capture_output=True).returncode:
            self.skipTest("node has no onnxruntime-node; NODE_PATH must name the folder that has it")
        (self.folder / "networks.json").write_text(json.dumps(networks))
        result = self.run_command([node, str(RUNTIME), str(self.folder)])
        self.assertEqual(result.code, 0, result.err)  # it may print warnings
        return json.loads(result.out)

    def check_scores(self, predict, classes):
        """Checks that a command for predictions prints the probabilities that ONNX Runtime has computed."""
        scores, n = self.floats("model.got.0"), len(classes)
        lines = self.succeed([*predict, "--json", "--top", str(n)]).splitlines()
        self.assertEqual(n * len(lines), len(scores))
        for i, line in enumerate(lines):
            exponentials = [math.exp(score) for score in scores[n * i:n * i + n]]
            for best in json.loads(line)["best"]:
                expected = exponentials[classes.index(best["class"])] / sum(exponentials)
                self.assertAlmostEqual(best["score"], expected, delta=1e-5, msg=line)

    def floats(self, name):
        values = array.array("f")
        values.frombytes((self.folder / name).read_bytes())
        return values

    def test_export_of_train_cifar(self):
        run = self.train(1, "run", *job.TINY, "--steps", "3", "--size", "32", "--store-size", "40x36")
        model, graph = self.read(self.export(run))
        self.assertEqual(values_of(graph[11]), {"image": ["n", 3, 32, 32]})
        self.assertEqual(values_of(graph[12]), {"scores": ["n", 10]})
        metadata = {text(entry, 1): text(entry, 2) for entry in model[14]}
        self.assertEqual(json.loads(metadata["classes"]), job.CLASSES)
        self.assertEqual(set(metadata), {"network", "image", "classes", "normalise", "resize", "outputs"})
        self.assertEqual(metadata["resize"], "[40, 36]")
        self.assertIn("the centre of images of 40 x 36", model[6][0].decode())
        layer = ["Conv", "BatchNormalization", "Relu"]
        self.assertEqual([text(node, 4) for node in graph[1]],
                         ["Sub", "Div", *layer, "MaxPool", *layer, "MaxPool", *layer, "GlobalAveragePool", "Reshape",
                          "Gemm", "Identity"])
        # The weights are those of the model, bit by bit.
        path = run / "model.safetensors"
        header, size = job.tensor_header(path)
        data = path.read_bytes()[-size:]
        expected = {name: (t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()
                    if name != "__metadata__" and not name.endswith("num_batches_tracked")}
        written = {t[8][0].decode(): (t.get(1, []), t[9][0]) for t in map(fields, graph[5])}
        for name, values in (("mean", (.4914, .4822, .4465)), ("deviation", (.2470, .2435, .2616))):
            self.assertEqual(written[f"normalise.{name}"], ([1, 3, 1, 1], struct.pack("<3f", *values)))
        self.assertLessEqual(expected.items(), written.items())

    def test_export_of_two_heads(self):
        digits = self.folder / "digits"
        self.succeed([str(job.BUILD / "make_digits"), str(digits), "--per-class", "10"])
        for program, outputs in (("train_digits", {"scores": ["n", 10]}),
                                 ("train_digits_angles", {"scores": ["n", 10], "angle": ["n", 1]})):
            options = ["--no-compare"] if program == "train_digits_angles" else []
            self.succeed([str(job.BUILD / program), "--data", str(digits), "--run-name", program, "--batch-size", "10",
                          "--epochs", "1", *options])
            _, graph = self.read(self.export(self.runs / program))
            self.assertEqual(values_of(graph[11]), {"image": ["n", 1, 28, 28]})
            self.assertEqual(values_of(graph[12]), outputs)
            kinds = [text(node, 4) for node in graph[1]]
            self.assertEqual(kinds.count("Gemm"), len(outputs))
            self.assertEqual(kinds.count("Transpose"), 1)  # the dense layers read the channels last

    def export_two_inputs(self):
        program = str(job.BUILD / "two_inputs")
        self.succeed([str(job.BUILD / "make_digits"), "digits", "--per-class", "10"])
        self.succeed([program, "--data", "digits", "--steps", "20", "--run-name", "run", "--device", "cpu", "--threads", "1"])
        return self.export(self.runs / "run", program, "export")

    def test_numbers_are_a_second_input(self):
        model, graph = self.read(self.export_two_inputs())
        self.assertEqual(values_of(graph[11]), {"image": ["n", 3, 28, 28], "numbers": ["n", 1]})
        self.assertEqual(values_of(graph[12]), {"scores": ["n", 10]})
        metadata = {text(entry, 1): text(entry, 2) for entry in model[14]}
        self.assertEqual(json.loads(metadata["input_numbers"]), ["angle"])
        self.assertIn("numbers: f32 [n 1]", model[6][0].decode())

    def test_refuses_other_files(self):
        program = str(job.BUILD / "export_onnx")
        self.refuse([program, "model.safetensors"], "MODEL OUT")
        run = self.train(1, "run", *job.TINY, "--steps", "0")
        self.refuse([program, str(run), "a.onnx", "b.onnx"], "MODEL OUT")
        self.refuse([program, str(run / "config.json"), "a.onnx"], "config.json")
        self.refuse([program, str(run), "missing/a.onnx"], "missing/a.onnx")
        # The model stays, by whatever name OUT reaches it.
        model = run / "model.safetensors"
        before = model.read_bytes()
        (self.folder / "link.onnx").symlink_to(model)
        (self.folder / "hard.onnx").hardlink_to(model)
        for source in (run, model):
            self.refuse([program, str(source), str(model)], "ends with .onnx")
            for name in ("link.onnx", "hard.onnx"):
                self.refuse([program, str(source), name], name, "model.safetensors")
        self.assertEqual(model.read_bytes(), before)

    def test_runtime_classifies_as_we_do(self):
        run = self.train(1, "run", *job.TINY, "--steps", "10")
        self.export(run)
        images, records = self.folder / "images", job.sample_records("test")
        with (self.folder / "model.in.0").open("wb") as file:
            for i, (_, planes) in enumerate(records):
                array.array("f", (byte / 255 for byte in planes)).tofile(file)
                job.write_png(images / f"{i:03}.png", job.SIDE, job.SIDE, job.interleaved(planes))
        self.run_all([{"name": "model", "inputs": [[len(records), 3, 32, 32]]}])
        self.check_scores([str(job.BUILD / "predict"), str(run), str(images)], job.CLASSES)

    def test_runtime_takes_numbers_as_we_do(self):
        self.export_two_inputs()
        chance = random.Random(1)
        angles = [chance.uniform(-45, 45) for _ in range(20)]
        (self.folder / "noise").mkdir()
        with (self.folder / "model.in.0").open("wb") as images, (self.folder / "noise" / "angles.csv").open("w") as table:
            table.write("file,angle\n")
            for i, angle in enumerate(angles):
                pixels = chance.randbytes(28 * 28 * 3)
                (self.folder / "noise" / f"{i:02}.png").write_bytes(job.png(28, 28, pixels))
                array.array("f", (pixels[k] / 255 for c in range(3) for k in range(c, len(pixels), 3))).tofile(images)
                table.write(f"{i:02}.png,{angle!r}\n")
        (self.folder / "model.in.1").write_bytes(array.array("f", angles).tobytes())
        self.run_all([{"name": "model", "inputs": [[20, 3, 28, 28], [20, 1]]}])
        self.check_scores([str(job.BUILD / "two_inputs"), "predict", "runs/run", "noise"], list("0123456789"))

    def test_runtime_computes_the_same(self):
        self.succeed([str(job.BUILD / "tests" / "onnx_networks"), str(self.folder), "60", "1"])
        networks = json.loads((self.folder / "networks.json").read_text())
        report = self.run_all(networks)
        kinds = set()
        for network in networks:
            name, seen = network["name"], report[network["name"]]
            _, graph = self.read(self.folder / f"{name}.onnx")
            kinds |= {text(node, 4) for node in graph[1]}
            self.assertEqual(seen["extents"], network["outputs"], name)
            for i, output in enumerate(seen["outputs"]):
                ours, theirs = self.floats(f"{name}.{i}"), self.floats(f"{name}.got.{i}")
                # Both add in float32, in another order.
                largest = max(map(abs, ours))
                if output != "features":  # ReLU may set all of them to zero
                    self.assertGreater(largest, 0, (name, output))
                difference = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
                self.assertLessEqual(difference, 1e-5 * max(1, largest), (name, output))
        # Every kind of node has occurred.
        self.assertLessEqual(
            {"Abs", "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "Div", "Erf", "Exp", "Gemm",
             "GlobalAveragePool", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "Log", "Max",
             "MaxPool", "Min", "Mul", "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Resize", "Sigmoid",
             "Slice", "Softmax", "Softplus", "Sqrt", "Sub", "Tanh", "Transpose"}, kinds)


if __name__ == "__main__":
    job.main()
