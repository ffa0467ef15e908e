"""Trains networks that are no plain classifiers: the examples unet, autoencoder, from_csv and two_inputs. For each, the
run's files have its metrics, a killed run resumes with the same bits, a sweep ranks by its main metric, and the trained
network is exported or used for predictions."""
import csv
import json
import random

import job
from job import program

SIDE = 16


class Tasks(job.JobTest):
    def write_images(self, count=60):
        """Writes grey PNGs with a bright and a dark square, masks of both, and tables of their places and kinds."""
        chance = random.Random(1)
        numbers, tags = [["file", "x", "y"]], [["file", "tags"]]
        for i in range(count):
            pixels, mask = [[chance.randint(100, 140) for _ in range(SIDE)] for _ in range(SIDE)], [[0] * SIDE for _ in range(SIDE)]
            kinds = [kind for kind in (1, 2) if chance.random() < 0.8]
            x, y = chance.randint(0, SIDE - 6), chance.randint(0, SIDE - 6)
            for kind in kinds:
                x, y = chance.randint(0, SIDE - 6), chance.randint(0, SIDE - 6)
                for row in range(y, y + 6):
                    for column in range(x, x + 6):
                        pixels[row][column], mask[row][column] = (230 if kind == 1 else 10), kind
            for folder, rows in (("photos", pixels), ("masks", mask)):
                job.write_png(self.folder / folder / f"{i}.png", SIDE, SIDE, bytes(v for row in rows for v in row), 0)
            numbers.append([f"{i}.png", x / SIDE, y / SIDE])
            tags.append([f"{i}.png", "|".join(("bright", "dark")[kind - 1] for kind in kinds)])
        return numbers, tags

    def write_table(self, rows):
        with open(self.folder / "photos" / "labels.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)

    def check(self, name, data, metrics, better):
        """Trains, resumes and sweeps `name`. `metrics` are the names of its metrics, the main one first. `better` says
        whether higher values of that one are better. Returns the folder of a run."""
        options = [*data, "--epochs", "4", "--batch-size", "8", "--threads", "1", "--device", "cpu", "--seed", "1"]
        for ranks in job.rank_counts(1, 3):
            run = self.runs / f"{name}-{ranks}"
            out = self.succeed(program(ranks, name, *options, "--run-name", run.name))
            lines = job.epoch_lines(run)
            for metric in metrics:
                self.assertEqual(len([line for line in lines if f"train_{metric}" in line and f"test_{metric}" in line]), 4)
            self.assertLess(lines[-1]["train_loss"], lines[0]["train_loss"])
            config = json.loads((run / "config.json").read_text())
            self.assertEqual([metric["name"] for metric in config["metrics"]], metrics)
            self.assertEqual(job.report(run)["runs"][0]["config"]["metrics"], config["metrics"])
            self.assertIn(config["metrics"][0]["label"], out)
        self.assert_resumes(ranks, name, options, run)
        sweep = self.runs / "sweep"
        self.succeed(program(job.rank_counts(1, 2)[-1], name, "sweep", *options, "--epochs", "2", "--validation", "0.2",
                             "--run-name", "sweep", "--grid", "lr=1e-9,0.01"))
        rows = list(csv.DictReader((sweep / "results.csv").read_text().splitlines()))
        values = [float(row[f"validation_{metrics[0]}"]) for row in rows]
        best = json.loads((sweep / "best.json").read_text())
        self.assertEqual(best["trial"], 1 + values.index(max(values) if better else min(values)))
        self.assertIn(f"test_{metrics[0]}", best)
        return run

    def shown(self, run):
        """Returns the classes in the legend of the samples in a report, and the number of pictures of each sample."""
        samples = job.report(run)["runs"][0]["samples"][0]
        return [key[0] for key in samples["legend"]], [len(sample["pictures"]) for sample in samples["samples"]]

    def test_best_on_test_set(self):
        options = [*job.TINY, "--epochs", "3", "--validation", "0.2", "--seed", "1"]
        run = self.runs / "whole"
        out = self.succeed(job.train(job.rank_counts(1, 2)[-1], *options, "--run-name", "whole"))
        line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        epochs = job.epoch_lines(run)
        best = max(epochs, key=lambda epoch: epoch["validation_accuracy"])
        self.assertEqual(line["best_epoch"], best["epoch"])
        self.assertIn(f"test set, with the best model: loss {line['test_loss']:.4f}", out)
        predicted = self.succeed([str(job.BUILD / "predict"), "runs/whole/model-best.safetensors", "--quiet"])
        self.assertRegex(predicted, rf"accuracy:? .*{100 * line['test_accuracy']:.1f}")
        self.assertEqual(set(job.report(run)["runs"][0]["best_on_test"]), {"confusion", "samples"})
        # A resumed training tests again at its end, and replaces the line.
        self.succeed(job.train(1, *options, "--run-name", "parts", "--steps", "20"))
        self.succeed(job.train(1, "--run-name", "parts", "--resume", "--steps", "48"))
        lines = (self.runs / "parts" / "metrics.jsonl").read_text()
        self.assertEqual(lines.count("best_epoch"), 1)

    def test_transfer(self):
        first = self.train(1, "first", *job.TINY, "--steps", "5", "--seed", "1")
        options = [*job.TINY, "--epochs", "1", "--init", "runs/first", "--freeze", "block1,block2.0", "--lr-scale", "fc=0"]
        out = self.succeed(job.train(job.rank_counts(1, 3)[-1], *options, "--run-name", "second"))
        self.assertRegex(out, "normalised as the images of .*/first/model.safetensors; --normalise auto: by these images")
        self.assertIn("\n--augment flip,translate\n", out)
        second = self.runs / "second"
        self.assertNotIn("normalised as", self.succeed(job.train(1, *options, "--normalise", "auto", "--run-name", "own")))
        # The file of another program has no metadata.
        header, size = job.tensor_header(first / "model.safetensors")
        header = json.dumps({name: value for name, value in header.items() if name != "__metadata__"}).encode()
        data = (first / "model.safetensors").read_bytes()[-size:]
        (self.folder / "bare.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
        bare = [*job.TINY, "--steps", "1", "--init", "bare.safetensors"]
        self.assertIn("bare.safetensors does not say how its images were normalised; for torchvision's weights",
                      self.succeed(job.train(1, *bare, "--run-name", "bare")))
        self.assertNotIn("does not say", self.succeed(job.train(1, *bare, "--normalise", "imagenet", "--run-name", "told")))
        old, new = (job.tensors(run / "model.safetensors") for run in (first, second))
        same = {name for name in old if old[name] == new[name]}
        fixed = {name for name in old if name.startswith(("block1.", "block2.", "fc."))}
        tracked = {name for name in old if name.endswith("num_batches_tracked")}  # counts all steps
        self.assertEqual(same, fixed - tracked)
        self.refuse(job.train(1, "--freeze", "block4"), "expected a layer of block1 block2 block3 fc", "got block4")
        self.refuse(job.train(1, "--lr-scale", "fc"), "--lr-scale: expected a layer and a factor", "got fc")

    def test_unet(self):
        self.write_images()
        run = self.check("unet", ["--data", "photos", "--masks", "masks"], ["mean_iou", "pixel_accuracy"], True)
        self.assertGreater(job.epoch_lines(run)[-1]["test_mean_iou"], 0.3)
        self.assertEqual(self.shown(run), (["class 0", "class 1", "class 2"], 12 * [3]))  # image, true and predicted classes
        self.succeed(program(1, "unet", "export", run, "net.onnx"))
        self.assertGreater((self.folder / "net.onnx").stat().st_size, 10_000)
        self.refuse(program(1, "unet", "predict", run, "photos"), "pixels", "export")
        self.refuse(program(1, "predict", run, "photos"), "that this program knows, got unet", "unet predict")
        self.refuse(program(1, "unet", "--data", "photos", "--masks", "masks", "--mixup", "0.2"),
                    "--mixup, --cutmix: expected a task whose labels can be mixed")
        self.refuse(program(1, "unet", "--data", "photos", "--masks", "masks", "--test-views"), "--test-views", "got pixels")
        (self.folder / "masks" / "3.png").write_bytes(job.png(SIDE, SIDE, bytes([7]) * SIDE * SIDE, 0))
        self.refuse(program(1, "unet", "--data", "photos", "--masks", "masks", "--epochs", "1", "--batch-size", "8"), "below 3", "3.png")
        self.refuse(program(1, "unet", "--data", "photos", "--epochs", "1"), "--masks", "got no masks")
        self.refuse(program(1, "unet", "--masks", "masks", "--epochs", "1"), "--masks", "images without a folder")
        self.refuse(program(1, "unet", "--data", "photos", "--masks", "masks", "--augment", "flip"), "--augment: expected none, got")
        self.refuse(program(1, "unet", "--translate", "4"), "unknown option --translate")
        self.refuse(program(1, "unet", "--data", "photos", "--masks", "masks", "--class-weights", "balanced"), "--class-weights")

    def test_autoencoder(self):
        self.write_images()
        run = self.check("autoencoder", ["--data", "photos"], ["rmse"], False)
        self.assertEqual(self.shown(run), ([], 12 * [2]))
        self.succeed(program(1, "autoencoder", "export", run, "net.onnx"))

    def test_numbers(self):
        numbers, _ = self.write_images()
        self.write_table(numbers)
        run = self.check("from_csv", ["--data", "photos"], ["x_rmse", "y_rmse"], False)
        plots = job.report(run)["runs"][0]["predicted"]  # of the 12 test images
        self.assertEqual([(plot["name"], len(plot["points"])) for plot in plots], [("x", 12), ("y", 12)])
        self.assertEqual(self.shown(run), ([], 12 * [1]))
        self.succeed(program(1, "from_csv", "export", run, "net.onnx"))
        result = self.run_command(program(1, "from_csv", "predict", run, "photos", "--json"))
        image = json.loads(result.out.splitlines()[0])
        self.assertEqual(image["file"], "photos/0.png")
        self.assertAlmostEqual(image["known targets"]["x"], numbers[1][1])
        self.assertAlmostEqual(image["known targets"]["y"], numbers[1][2])
        self.assertEqual(list(image["targets"]), ["x", "y"])
        self.assertIn("x: RMSE", self.succeed(program(1, "from_csv", "predict", run, "photos", "--quiet")))
        # Known values are found by their names, in any order.
        told = self.succeed(program(1, "from_csv", "predict", run, "photos", "--quiet")).splitlines()[:2]
        self.write_table([[name, y, x] for name, x, y in numbers])
        self.assertEqual(self.succeed(program(1, "from_csv", "predict", run, "photos", "--quiet")).splitlines()[:2], told)
        self.write_table(numbers[:-1])
        self.refuse(program(1, "from_csv", "--data", "photos", "--epochs", "1"), "expected a line for 59.png in labels.csv")
        self.refuse(program(1, "from_csv", "--epochs", "1"), "expected a folder with labels.csv")

    def test_tags(self):
        _, tags = self.write_images()
        self.write_table(tags)
        run = self.check("from_csv", ["--data", "photos", "--tags"], ["f1"], True)
        self.assertRegex(self.succeed(program(1, "from_csv", "predict", run, "photos", "--quiet")), r"dark: [\d.]+ % right")
        # The table of the labels is that of the last test, here by the scores that predict prints.
        lines = self.run_command(program(1, "from_csv", "predict", run, "--csv", "--batch-size", "5")).out.splitlines()
        images = list(csv.DictReader(lines))
        table = (run / "classes.csv").read_text()
        for row in csv.DictReader(table.splitlines()):
            name = row.pop("class")
            scored = sorted(((float(i[name]), float(i[f"known {name}"])) for i in images), reverse=True)
            seen, both = sum(s > 0.5 for s, _ in scored), sum(t for s, t in scored if s > 0.5)
            truths = [t for _, t in scored]
            gains = [sum(truths[:n + 1]) / (n + 1) for n, t in enumerate(truths) if t]  # without equal scores
            for key, value in (("images", sum(truths)), ("precision", seen and both / seen),
                               ("recall", both / sum(truths)), ("f1", 2 * both / (seen + sum(truths))),
                               ("average_precision", sum(gains) / len(gains))):
                self.assertAlmostEqual(float(row.pop(key) or 0), value, delta=1e-5, msg=key)
            self.assertFalse(row)
        self.assertEqual(self.run_command(program(1, "from_csv", "predict", run, "--csv", "--quiet")).out, table)
        whole = self.run_command(program(1, "from_csv", "predict", run, "photos", "--csv", "--quiet")).out
        self.assertEqual([line.split(",")[0] for line in whole.splitlines()],
                         [line.split(",")[0] for line in table.splitlines()])
        self.succeed(program(1, "from_csv", "export", run, "net.onnx"))
        self.assertIn(b"Sigmoid", (self.folder / "net.onnx").read_bytes())  # predict prints probabilities

    def test_two_inputs(self):
        self.succeed([str(job.BUILD / "make_digits"), "digits", "--per-class", "10"])
        run = self.check("two_inputs", ["--data", "digits"], ["accuracy"], True)
        self.refuse(program(1, "two_inputs", "--epochs", "1"), "angles.csv")
        # The accuracy for the test images is that of the training, so the network gets the same numbers.
        accuracy = job.epoch_lines(run)[-1]["test_accuracy"]
        rows = list(csv.DictReader(self.run_command(program(1, "two_inputs", "predict", run, "--csv")).out.splitlines()))
        self.assertAlmostEqual(sum(row["class"] == row["known class"] for row in rows) / len(rows), accuracy)
        self.refuse(program(1, "two_inputs", "predict", run, "digits/0/00.png"),
                    "digits/0/00.png: expected its angle, which the network takes beside the image", "angles.csv")
        (self.folder / "digits" / "angles.csv").unlink()
        self.refuse(program(1, "two_inputs", "predict", run, "digits"), "expected its angle", "angles.csv")

    def test_metric_of_patience(self):
        self.write_images()
        options = ["--data", "photos", "--masks", "masks", "--batch-size", "8", "--threads", "1"]
        self.refuse(program(1, "unet", *options, "--patience-on", "accuracy"),
                    "--patience-on: expected one of loss, mean_iou, pixel_accuracy, got accuracy")
        out = self.succeed(program(1, "unet", *options, "--patience-on", "loss", "--patience", "2", "--epochs", "50",
                                   "--lr", "1e-30", "--run-name", "patient", "--device", "cpu"))
        self.assertIn("have not improved the loss of epoch", out)
        self.assertRegex(out, r"best test loss [\d.]+ in epoch")


if __name__ == "__main__":
    job.main()
