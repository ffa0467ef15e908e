# Tests make_digits, train_digits and train_digits_angles on tiny sets: accuracy, files, resume and errors.
import csv
import gzip
import json
import os
import pathlib
import re
import shlex
import signal
import struct

import job
from job import program

TINY = ["--epochs", "2", "--batch-size", "16"]
ONCE = {"train_digits": [], "train_digits_angles": ["--no-compare"]}


def idx(path, kind, shape, values):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + values)


class Digits(job.JobTest):
    def setUp(self):
        super().setUp()
        self.set = self.folder / "set"
        self.succeed(program(1, "make_digits", self.set, "--per-class", 20, "--seed", 1))

    def run_program(self, name, ranks, run, *options):
        self.succeed(program(ranks, name, "--data", self.set, "--run-name", run, *TINY, *ONCE[name], *options))
        return self.runs / run

    def test_preset(self):
        self.succeed(program(1, "train_digits", "--preset", "matlab", "--epochs", "1", "--steps", "1", "--run-name", "preset"))
        options = json.loads((self.runs / "preset" / "config.json").read_text())["options"]
        for name, value in {"lr": 0.01, "batch-size": 128, "schedule": "constant", "initializer": "glorot", "epochs": 1}.items():
            self.assertEqual(options[name], value)
        self.refuse(program(1, "train_digits", "--preset", "keras"), "expected one of none or matlab")
        for name, more, drop_every in (("whole", [], 45), ("every", ["--drop-every", "10"], 10),
                                       ("once", ["--drops", "0.5"], 0)):
            command = program(1, "train_cifar", *job.TINY, "--preset", "matlab", *more, "--steps", "1", "--run-name", name)
            self.succeed(command, CUDA_VISIBLE_DEVICES="")
            options = json.loads((self.runs / name / "config.json").read_text())["options"]
            self.assertEqual([options[name] for name in ("epochs", "batch-size", "drop-every")], [50, 256, drop_every])
            self.assertEqual(json.loads(job.step_lines(self.runs / name)[0])["lr"], 0.1)

    def test_make_digits(self):
        lines = (self.set / "angles.csv").read_text().splitlines()
        self.assertEqual(lines[0], "file,angle")
        self.assertEqual(sorted(line.split(",")[0] for line in lines[1:]),
                         sorted(str(path.relative_to(self.set)) for path in self.set.rglob("*.png")))
        self.assertEqual(len(lines), 201)
        self.assertTrue(all(-45 <= float(line.split(",")[1]) <= 45 for line in lines[1:]))
        again = self.folder / "again"
        self.succeed(program(1, "make_digits", again, "--per-class", 20, "--seed", 1))
        for path in self.set.rglob("*.*"):
            self.assertEqual((again / path.relative_to(self.set)).read_bytes(), path.read_bytes(), path)
        self.refuse(program(1, "make_digits", again), "new or empty", "again")

    def test_train_digits(self):
        for ranks in job.rank_counts(1, 2):
            run = self.run_program("train_digits", ranks, f"digits-{ranks}", "--epochs", 8)
            epochs = job.epoch_lines(run)
            self.assertEqual(len(job.step_lines(run)), 8 * (180 // 16))
            self.assertGreater(epochs[7]["train_accuracy"], 0.6, epochs)
            self.assertGreater(epochs[7]["test_accuracy"], 0.5, epochs)
            self.assertEqual(json.loads((run / "config.json").read_text())["options"]["lr"], 0.01 * 16 / 128)
            of = job.report(run)["runs"][0]
            counts = of["confusion"]["counts"]
            self.assertEqual([sum(row) for row in counts], 10 * [2])
            self.assertAlmostEqual(sum(counts[i][i] for i in range(10)) / 20, epochs[7]["test_accuracy"])
            self.assertEqual(of["network"]["tensors"][0], ["layer1.conv.weight", [20, 5, 5, 1]])
            header, _ = job.tensor_header(run / "model.safetensors")
            self.assertEqual(header["layer1.conv.weight"]["shape"], [20, 1, 5, 5])
            self.assertEqual(header["fc.weight"]["shape"], [10, 20 * 24 * 24])
        # A repeated run has the same bits. Options change the result.
        options = ["--augment", "none", "--shuffle", "never", "--steps", "5"]
        first = self.run_program("train_digits", 1, "first", *options)
        again = self.run_program("train_digits", 1, "again", *options)
        self.assertEqual(job.step_lines(first), job.step_lines(again))
        self.assertEqual(len(job.step_lines(first)), 5)
        for name, change in (("seed", ["--seed", "1"]), ("init", ["--init", first / "model.safetensors"]),
                             ("view", ["--augment", "translate"]), ("order", ["--shuffle", "epoch"]),
                             ("angle", ["--rotate", "20"]), ("scale", ["--scale", "0.8:1.2"]),
                             ("box", ["--resized-crop", "0.5:1"])):
            self.assertNotEqual(job.losses(self.run_program("train_digits", 1, name, *options, *change))[0],
                                job.losses(first)[0], name)

    def test_mnist(self):
        self.set = self.folder / "mnist"
        self.set.mkdir()
        for part, count in (("train", 32), ("t10k", 8)):
            idx(self.set / f"{part}-images-idx3-ubyte.gz", 8, (count, 28, 28), os.urandom(count * 784))
            idx(self.set / f"{part}-labels-idx1-ubyte.gz", 8, (count,), bytes(i % 10 for i in range(count)))
        self.assertEqual(len(job.step_lines(self.run_program("train_digits", 1, "mnist"))), 4)
        self.refuse(program(1, "train_digits_angles", "--data", self.set), "angles.csv")

    def test_tar(self):
        # A tar equals the folder bit for bit. One process unpacks it for any number of ranks.
        ranks = job.rank_counts(1, 2)[-1]
        folders = {name: self.run_program(name, ranks, f"{name}-folder") for name in ONCE}
        self.set = f"pipe:echo x >> log; tar -cC {self.set} ."
        for name, folder in folders.items():
            piped = self.run_program(name, ranks, f"{name}-piped", "--cache", "cache")
            self.assertEqual(job.step_lines(piped), job.step_lines(folder), name)
        self.assertEqual((self.folder / "log").read_text(), "x\n")  # the second program found the copy

    def test_predict(self):
        for name, targets in (("train_digits", []), ("train_digits_angles", ["angle"])):
            run = self.run_program(name, 1, f"{name}-predicted")
            predict = [str(job.BUILD / "predict"), str(run), str(self.set)]
            lines, _, summary = self.succeed(predict).partition("\n\n")
            self.assertEqual(len(lines.splitlines()), 200)
            self.assertIn("(200 known)" if targets else "accuracy", summary)
            squares = []
            for line in self.run_command([*predict, "--json"]).out.splitlines():
                image = json.loads(line)
                self.assertEqual(image["known class"], pathlib.Path(image["file"]).parent.name)
                self.assertEqual(sorted(image.get("targets", {})), targets)
                squares += [(value - image["known targets"]["angle"]) ** 2 for value in image.get("targets", {}).values()]
            if targets:
                rmse = (sum(squares) / len(squares)) ** 0.5
                self.assertAlmostEqual(float(re.search(r"angle: RMSE (\S+) degrees", summary)[1]) / rmse, 1, delta=1e-3)
            rows = list(csv.reader(self.run_command([*predict, "--csv", "--top", "2"]).out.splitlines()))
            self.assertEqual(rows[0][:5], ["file", "class1", "score1", "class2", "score2"])
            self.assertEqual({len(row) for row in rows}, {len(rows[0])})

    def test_not_enough_memory(self):
        # A step needs about 200 KiB per image.
        available = int(re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text())[1])
        count = available // 128
        if count > 400_000:
            self.skipTest("a set that needs more than the memory of this machine is too large for a test")
        images = self.folder / "idx"
        images.mkdir()
        for name, n in (("train", count), ("t10k", 1)):
            for kind, extents in (("images-idx3", (n, 28, 28)), ("labels-idx1", (n,))):
                with gzip.open(images / f"{name}-{kind}-ubyte.gz", "wb", compresslevel=1) as file:
                    file.write(struct.pack(f">I{len(extents)}I", 0x800 + len(extents), *extents))
                    for _ in range(n):
                        file.write(bytes(28 * 28 if len(extents) == 3 else 1))
        self.refuse(program(1, "train_digits", "--data", "idx", "--batch-size", count * 4 // 5),
                    "expected at most", "GiB for planned steps", "--batch-size smaller, or start fewer ranks")
        self.assertFalse(self.runs.exists())

    def test_resume(self):
        for name in ("train_digits", "train_digits_angles"):
            for ranks in job.rank_counts(1, 2):
                endless = ["--epochs", "100000", "--checkpoint-every", "2"]
                run = self.runs / f"stopped-{name}-{ranks}"
                process = self.start(
                    program(ranks, name, "--data", self.set, *TINY, *endless, *ONCE[name], "--run-name", run.name))
                self.wait_for(process, lambda: (run / "checkpoint").exists())
                os.kill(process.pid, signal.SIGTERM)
                self.assertIn(self.finish(process).code, job.interrupted(ranks))
                end = ["--steps", len(job.step_lines(run)) + 15]
                self.succeed(program(ranks, name, "--resume", "--run-name", run.name, *end))
                whole = self.run_program(name, ranks, f"whole-{name}-{ranks}", *endless, *end)
                self.assert_same_training(run, whole)

    def test_compare(self):
        for ranks in job.rank_counts(1, 2):
            name = f"compare-{ranks}"
            out = self.succeed(
                program(ranks, "train_digits_angles", "--data", self.set, "--run-name", name, *TINY))
            # All of 22 steps but the first repeat its shapes, and the test of the second epoch repeats those of the first.
            for what, hits in (("training", "95.45"), ("prediction", "50.00")):
                self.assertRegex(out, rf"\n{what}: [\d.]+ times as fast as op by op, hit rate {hits} %\n")
            run = self.runs / name
            epochs = job.epoch_lines(run)
            self.assertLess(epochs[1]["test_angle_rmse"], 30)  # a constant prediction has 26, a wrong unit far more
            last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
            self.assertTrue(last["accelerate"])
            of = job.report(run)["runs"][0]
            counts = of["confusion"]["counts"]
            self.assertEqual([sum(row) for row in counts], 10 * [2])
            self.assertAlmostEqual(sum(counts[i][i] for i in range(10)) / 20, epochs[1]["test_accuracy"])
            self.assertEqual([[bar for _, bar in group["bars"]] for group in of["bars"]["groups"]],
                             [[last[f"plain_{part}_seconds"], last[f"{part}_seconds"]] for part in ("train", "test")])
            # The repeated epochs change nothing.
            self.run_program("train_digits_angles", ranks, f"once-{ranks}", *TINY, "--no-compare")
            self.assert_same_training(run, self.runs / f"once-{ranks}")
        # A training that ends within its first epoch has no test results.
        out = self.succeed(program(1, "train_digits_angles", "--data", self.set, "--run-name", "short", "--steps", "1"))
        self.assertRegex(out, r"\nepoch 1/1  loss [\d.]+  acc [\d.]+ %  step 1/1.*\ndone after step 1; ")
        for line in out.splitlines():
            if not line.startswith("next: "):  # has paths, which may be of any length
                self.assertLessEqual(len(line), 80, line)
        self.succeed(shlex.split(re.search(r"(?m)^next: (.*)$", out)[1]))  # predicts
        self.assertNotIn("as fast as", out)
        # Without --compare, each epoch is trained once.
        for name, options in (("once", ["--no-compare"]), ("plain", ["--no-accelerate"])):
            out = self.succeed(program(1, "train_digits_angles", "--data", self.set, "--run-name", name, *TINY, *options))
            self.assertRegex(out, r"\ntraining [\d.]+ s, hit rate [\d.]+ %; prediction [\d.]+ s, hit rate [\d.]+ %\ndone")
            self.assertNotIn("bars", job.report(self.runs / name)["runs"][0])
        self.refuse(program(1, "train_digits_angles", "--compare", "--no-accelerate"), "--compare", "--no-accelerate")


job.main()
