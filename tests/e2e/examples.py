"""Runs the examples: the network on arrays, the training of one's own network, and the sweep of that training."""
import csv
import json
import random
import re
import struct
import unittest

import job
from job import program

SIDE = 32


class Examples(job.JobTest):
    def write_images(self):
        """Writes class folders of 32 x 32 PNGs, half of them grey: vertical stripes, horizontal stripes, and noise."""
        chance = random.Random(1)
        for label, name in enumerate(("columns", "rows", "noise")):
            for i in range(40):
                period, start = chance.randint(4, 10), chance.randint(0, 10)
                grey = [[(chance.random() if label == 2 else (start + (y if label else x)) // period % 2) * 200 + 20
                         for x in range(SIDE)] for y in range(SIDE)]
                colour = i % 2 * 2
                samples = bytes(int(v) for row in grey for v in row for _ in range(3 if colour else 1))
                job.write_png(self.folder / "images" / name / f"{i}.png", SIDE, SIDE, samples, colour)
        return self.folder / "images"

    def test_mlp_learns(self):
        chances = [float(p) for p in re.findall(r"([\d.]+) on spiral 1", self.succeed(program(1, "mlp")))]
        self.assertEqual(len(chances), 2)
        self.assertLess(chances[0], 0.1)
        self.assertGreater(chances[1], 0.9)

    def network(self, run):
        """Returns all values of the network and the momentum in the newest checkpoint of parallel_loop."""
        path = max((run / "checkpoint").iterdir())
        header, size = job.tensor_header(path)
        values = []
        for name, tensor in header.items():
            if name != "__metadata__" and tensor["dtype"] == "F32":
                begin, end = tensor["data_offsets"]
                values += struct.unpack(f"<{(end - begin) // 4}f", path.read_bytes()[-size:][begin:end])
        return values

    def test_parallel_loop_has_the_same_weights_on_all_numbers_of_ranks(self):
        def run(ranks, *options):
            before = set(self.runs.glob("*"))
            self.succeed(program(ranks, "parallel_loop", "--threads", "1", "--device", "cpu", *options))
            return next(iter(set(self.runs.glob("*")) - before), None)

        whole = run(1, "--epochs", "6")
        losses = job.losses(whole)
        self.assertEqual(len(losses), 6 * 7)  # mini-batches of 50 and one of 2
        self.assertLess(sum(losses[-7:]), sum(losses[:7]) / 4)
        # Three ranks have 17, 17 and 16 images, or 1, 1 and none. Sums in another order round differently, by 6e-8 of
        # values around 1, and 42 steps add such differences.
        if job.MPIEXEC:
            for one, three in zip(self.network(whole), self.network(run(3, "--epochs", "6")), strict=True):
                self.assertAlmostEqual(one, three, delta=1e-5)
        # A resumed training has the same bits.
        parts = run(1, "--epochs", "3")
        run(1, "--resume", "--epochs", "6")
        self.assertEqual(self.network(parts), self.network(whole))

        run(1, "--resume", "--epochs", "6")  # nothing is left to do
        self.assertEqual(self.network(parts), self.network(whole))

    def test_parallel_loop_stops_and_resumes_with_the_same_bits(self):
        for ranks in job.rank_counts(1, 3):
            run = self.runs / f"stopped-{ranks}"
            loop = ["parallel_loop", "--threads", "1", "--device", "cpu"]
            process = self.start(program(ranks, *loop, "--epochs", "100000", "--run-name", run.name))
            self.assertTrue(self.wait_for(process, lambda: (run / "checkpoint").exists()))
            (run / "stop").touch()  # as the monitor's Stop button does
            self.assertIn("\nnext: ", self.expect_end(process))
            report = job.report(run)["runs"][0]
            self.assertEqual((report["state"], report["steps_per_epoch"]), ("stopped", 7))
            self.assertEqual([m["name"] for m in report["config"]["metrics"]], ["loss", "rmse"])
            epochs = str(len(job.step_lines(run)) // 7 + 2)
            self.succeed(program(ranks, *loop, "--resume", "--run-name", run.name, "--epochs", epochs))
            self.succeed(program(ranks, *loop, "--run-name", f"whole-{ranks}", "--epochs", epochs))
            whole = self.runs / f"whole-{ranks}"
            self.assertEqual(self.network(run), self.network(whole))
            self.assertEqual(job.losses(run), job.losses(whole))
            self.assertEqual([line["train_rmse"] for line in job.epoch_lines(run)],
                             [line["train_rmse"] for line in job.epoch_lines(whole)])
            self.assertEqual(job.report(run)["runs"][0]["state"], "done")

    def test_futures_cancel_what_learns_too_slowly(self):
        lines = self.succeed(program(job.rank_counts(1, 2)[-1], "futures")).splitlines()
        ends = [line for line in lines if "epoch" not in line]
        self.assertEqual(len(ends), 6)
        self.assertTrue(all("cancelled" in line for line in ends if '"lr": 0.0001' in line), ends)
        self.assertTrue(any("finished" in line for line in ends), ends)

    def test_trainings_return_networks(self):
        for ranks in job.rank_counts(1, 2):
            lines = self.succeed(program(ranks, "trainings"), TMPDIR=str(self.folder)).splitlines()
            for rate in ("0.01", "1e-04"):
                epochs = [json.loads(line.partition(": ")[2]) for line in lines if line.startswith(f"lr {rate}: ")]
                self.assertEqual([line["epoch"] for line in epochs], [1])
            good, bad = (float(line.partition("a 3: ")[2]) for line in lines if line.startswith("probability"))
            self.assertGreater(good, 0.9)
            self.assertLess(bad, good)
            self.assertEqual(list(self.folder.glob("training-*")), [])

    def test_accelerated_learns_by_two_plans(self):
        out = self.succeed(program(1, "accelerated"))
        losses = [[float(loss) for loss in re.findall(f"{kind}: loss ([0-9.]+)", out)] for kind in ("op by op", "accelerated")]
        self.assertEqual([len(part) for part in losses], [3, 3])
        for first, _, last in losses:
            self.assertLess(last, first)
        # Plans for whole mini-batches, and for the last one of an epoch; 37 of 39 steps found theirs.
        self.assertIn("2 plans, hit rate 0.949", out)

    def test_own_network_learns_and_resumes_with_the_same_bits(self):
        images = self.write_images()
        ranks = job.rank_counts(1, 3)[-1]
        options = ["--data", images, "--epochs", "8", "--threads", "1", "--device", "cpu"]
        self.succeed(program(ranks, "own_network", *options, "--run-name", "whole"))
        self.assertGreater(job.epoch_lines(self.runs / "whole")[-1]["test_accuracy"], 0.7)  # 0.33 is chance
        self.assert_resumes(ranks, "own_network", options, self.runs / "whole")

    def test_cam_shows_what_speaks_for_a_class(self):
        run, image = self.runs / "run", self.write_images() / "rows" / "0.png"
        for name, size, options in (("window", 20, ["--size", "20", "--store-size", "28"]), (run.name, 32, [])):
            self.succeed(job.train(1, *job.TINY, "--data", "images", "--epochs", "1", "--run-name", name, *options))
            seen = self.succeed(program(1, "predict", self.runs / name, image)).split("\t")[1]
            self.assertEqual(self.succeed(program(1, "cam", self.runs / name, image, "block3", "map.png")), seen + "\n")
            self.assertIn(f"{size} x {size}", self.succeed(program(1, "inspect", "map.png")))
        self.assertNotEqual((self.folder / "map.png").read_bytes(), image.read_bytes())
        for layer, words in (("fc", "expected a layer that gives [1 h w 16], got [1 3]"),
                             ("layer", "expected a layer of block1 block2 block3 fc or one within these, got layer")):
            self.refuse(program(1, "cam", run, image, layer, "other.png"), words)
        self.refuse(program(1, "cam", run), "expected RUN IMAGE LAYER OUT.png, got 1 arguments")

    @unittest.skipIf(job.SANITIZED, "a sanitizer makes the training take minutes")
    def test_quick94_learns_and_tests_with_six_views(self):
        run = self.runs / "quick"
        options = ["--data", self.write_images(), "--size", "25", "--batch-size", "16", "--threads", "1", "--device", "cpu",
                   "--epochs", "3", "--test-views", "--run-name", run.name]
        out = self.succeed(program(job.rank_counts(1, 2)[-1], "quick94", *options))
        self.assertGreater(job.epoch_lines(run)[-1]["test_accuracy"], 0.7)  # 0.33 is chance
        self.assertLess(job.epoch_lines(run)[-1]["test_loss"], 1.1)  # the loss of a constant prediction
        six_views = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        self.assertEqual(six_views["end"], "six_views")
        self.assertIn(f"test acc {100 * six_views['test_accuracy']:.2f} % with six views", out)

    def test_quick94_takes_the_default_rate_of_another_optimizer(self):
        run = self.runs / "adamw"
        self.succeed(program(1, "quick94", "--threads", "1", "--device", "cpu", "--optimizer", "adamw", "--steps", "1",
                             "--run-name", run.name))
        self.assertAlmostEqual(json.loads(job.step_lines(run)[0])["lr"], 0.2 * 0.001)

    def test_patience_ends_a_training_that_does_not_improve(self):
        images = self.write_images()
        run = self.runs / "patient"
        options = ["--data", images, "--validation", "0.2", "--threads", "1", "--device", "cpu", "--run-name", run.name,
                   "--validate-every", "1", "--batch-size", "32"]
        # Without a learning rate only the statistics of batch norm change, so the accuracy soon stops to rise.
        out = self.succeed(program(1, "own_network", *options, "--epochs", "1000", "--lr", "1e-30", "--patience", "3"))
        accuracies = [line["validation_accuracy"] for line in job.epoch_lines(run)]
        best = accuracies.index(max(accuracies))
        self.assertEqual(len(accuracies), best + 1 + 3)
        self.assertIn(f"have not improved the accuracy of epoch {best + 1}", out)
        self.assertRegex(out, rf"done after step \d+; 0:\d+\nbest validation acc [\d.]+ % in epoch {best + 1}, last [\d.]+ %\n"
                              rf"report: runs/{run.name}/report.html\nnext: \S+own_network predict \S+{run.name}\n$")
        self.assertTrue((run / "model-best.safetensors").exists())
        tested = [line["step"] for line in map(json.loads, job.step_lines(run)) if "validation_accuracy" in line]
        self.assertEqual(tested[:2], [1, 3])  # of 2 steps per epoch; the test of the epoch follows the others
        self.succeed(program(1, "own_network", "--run-name", run.name, "--resume"))
        self.assertEqual(len(job.epoch_lines(run)), len(accuracies))

    def test_optimizers_average_and_warm_up(self):
        images = self.write_images()
        options = ["--data", images, "--threads", "1", "--device", "cpu", "--epochs", "12", "--clip", "1", "--warmup", "2",
                   "--average", "0.8", "--no-decay-biases", "--l2", "0.01", "--shuffle", "once"]
        for kind in ("sgd", "adam", "adamw"):
            self.succeed(program(1, "own_network", *options, "--optimizer", kind, "--run-name", kind))
            self.assertGreater(job.epoch_lines(self.runs / kind)[-1]["test_accuracy"], 0.6, kind)
        self.refuse(program(1, "own_network", *options, "--optimizer", "adam", "--momentum", "0.5"), "--momentum",
                    "expected --optimizer sgd or muon")

    def test_average_begins_with_the_initial_values(self):
        images = self.write_images()
        options = ["--data", images, "--threads", "1", "--device", "cpu", "--steps", "2", "--lr", "1e-30"]
        self.succeed(program(1, "own_network", *options, "--seed", "7", "--run-name", "first"))
        first = self.runs / "first" / "model.safetensors"
        self.succeed(program(1, "own_network", *options, "--init", first, "--average", "0.999", "--run-name", "second"))
        self.assertEqual(self.values(first, "fc.weight"),
                         self.values(self.runs / "second" / "model.safetensors", "fc.weight"))

    @unittest.skipIf(job.SANITIZED, "a sanitizer makes the training take minutes")
    def test_six_views_are_tested_with_the_average(self):
        options = ["--data", self.write_images(), "--threads", "1", "--device", "cpu", "--batch-size", "32"]
        self.succeed(program(1, "own_network", *options, "--epochs", "20", "--run-name", "good"))
        good = self.runs / "good" / "model.safetensors"
        # The file of the model has the average. So its test gives the same number, and the last weights give another.
        options += ["--init", good, "--epochs", "1", "--lr", "1", "--test-views"]
        losses = []
        for average in ("0.9", "0"):
            run = self.runs / f"average-{average}"
            out = self.succeed(program(1, "own_network", *options, "--average", average, "--run-name", run.name))
            number = re.search(r"test (acc [\d.]+ %) with six views", out)[1]
            told = self.run_command(program(1, "own_network", "predict", run, "--quiet")).out
            self.assertRegex(told, f"with six views {number}\n$")
            lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            losses += [line["test_loss"] for line in lines if line.get("end") == "six_views"]
        self.assertNotEqual(*losses)

    def values(self, path, name):
        header, size = job.tensor_header(path)
        begin, end = header[name]["data_offsets"]
        return path.read_bytes()[-size:][begin:end]

    def test_sweep_ranks_by_any_metric(self):
        images = self.write_images()
        run = self.runs / "sweep"
        out = self.succeed(program(job.rank_counts(1, 2)[-1], "own_network", "sweep", "--run-name", run.name, "--data", images,
                                   "--validation", "0.2", "--epochs", "8", "--threads", "1", "--device", "cpu",
                                   "--grid", "lr=0.05,1e30,0.01,1e-9", "--stop-below", "0.68", "--stop-below-after", "7",
                                   "--rank-by", "validation_loss"))
        rows = list(csv.DictReader((run / "results.csv").read_text().splitlines()))
        self.assertEqual([row["state"] for row in rows], ["finished", "failed", "finished", "stopped"])
        ranked = re.findall(r"^trial (\d)", out.partition("best first, by validation_loss:\n")[2], re.MULTILINE)
        losses = {row["trial"]: float(row["validation_loss"]) for row in rows if row["state"] != "failed"}
        self.assertEqual(ranked, [*sorted(losses, key=losses.get), "2"])
        printed = re.findall(r"validation loss (\S+)", " ".join(out.partition("best first")[2].split()))
        for loss, expected in zip(map(float, printed), sorted(losses.values()), strict=True):
            self.assertAlmostEqual(loss, expected, delta=0.0006)  # three decimals
        self.assertEqual(job.report(run)["sweep"]["best"], ranked[0])
        best = json.loads((run / "best.json").read_text())
        self.assertEqual(str(best["trial"]), ranked[0])
        self.assertIn(f"test set: acc {100 * best['test_accuracy']:.2f} %", " ".join(out.split()))
        self.refuse(program(1, "own_network", "sweep", "--data", images, "--grid", "lr=1", "--rank-by", "val_loss"), "--rank-by", "validation_loss")


if __name__ == "__main__":
    job.main()
