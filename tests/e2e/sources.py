# Tests that a run knows its data: `PROGRAM predict RUN` tests the images that the run was tested on, for every kind of
# source; and what was held out stays held out when images are added.
import hashlib
import json
import re
import shlex
import shutil
import tarfile
import unittest

import job

TRAIN = [*job.TINY, "--threads", "1", "--batch-size", "4", "--epochs", "2", "--lr", "0.05", "--augment", "none", "--no-report"]


def noise(name, side):
    """Returns the pixels of an image that only its name determines."""
    size = 3 * side * side
    return b"".join(hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(size // 32 + 1))[:size]


class Sources(job.JobTest):
    def write(self, folder, names, side=8):
        for name in names:
            job.write_png(self.folder / folder / name, side, side, noise(name, side))

    def photos(self, folder, count=20, below=""):
        self.write(folder, [f"{below}{label}/{i:03}.png" for label in ("cat", "dog") for i in range(count)])

    def number_of(self, out):
        """Returns the last metrics that a training has printed."""
        lines = out.splitlines()
        views = [line.partition(" with six views")[0].split(" ", 1)[1] for line in lines if line.endswith("with six views")]
        best = [re.sub(r".*loss \S+ ", "", line) for line in lines if line.startswith("test set, with the best model")]
        last = [line.rpartition("last ")[2] for line in lines if line.startswith("best ")]
        return (views + best + last)[0]

    def check_next(self, name, program, *options, warned=False):
        """Trains, runs the line next: from another folder, and compares the numbers."""
        command = [str(job.BUILD / program), *map(str, options), "--run-name", name]
        result = self.run_command(command)
        self.assertEqual(result.code, 0, result.err)
        (line,) = [line for line in result.out.splitlines() if line.startswith("next: ")]
        words = shlex.split(line.removeprefix("next: "))
        self.assertEqual(words, [str(job.BUILD / program), "predict", str(self.runs / name)])
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        told = self.run_command(["sh", "-c", 'cd elsewhere && exec "$@"', "sh", *words, "--quiet"])
        self.assertEqual(told.code, 0, told.err)
        self.assertEqual("warning: " in told.err, warned, told.err)
        loss, number = re.search(r"^test: \d+ images; loss (\S+) (.*)$", told.out, re.MULTILINE).groups()
        self.assertIn(self.number_of(result.out), number, name)
        # Other images could give the same accuracy, but hardly the same loss, which is printed with four decimals.
        lines = map(json.loads, (self.runs / name / "metrics.jsonl").read_text().splitlines())
        losses = [line["test_loss"] for line in lines if "test_loss" in line and line.get("end") != "six_views"]
        self.assertLess(abs(float(loss) - losses[-1]), 2e-4 * max(1, losses[-1]), name)
        return told.out

    def test_kinds_of_sources(self):
        self.photos("plain")
        self.photos("nest", below="a/")
        self.photos("nest", 5, below="b/")
        self.photos("own/train"), self.photos("own/test", 6)
        with tarfile.open(self.folder / "plain.tar", "w") as tar:
            tar.add(self.folder / "plain", "plain")
        sample = self.write_sample(60)
        self.check_next("folder", "train_cifar", *TRAIN, "--data", "plain", "--cache", "packed")
        self.check_next("parent", "train_cifar", *TRAIN, "--data", "nest", "--label-from", "parent")
        self.check_next("tar", "train_cifar", *TRAIN, "--data", f"pipe:cat {self.folder}/plain.tar")
        self.check_next("sets", "train_cifar", *TRAIN, "--data", "own")
        self.check_next("two", "train_cifar", *TRAIN, "--data", "own/train", "--test-data", "own/test")
        self.check_next("records", "train_cifar", *TRAIN, "--data", sample)
        self.check_next("sample", "train_cifar", *TRAIN, "--batch-size", "50", "--epochs", "1")
        self.check_next("views", "train_cifar", *TRAIN, "--data", "plain", "--test-views")
        self.check_next("window", "train_cifar", *TRAIN, "--data", "plain", "--size", "8", "--store-size", "10")
        self.check_next("chosen", "train_cifar", *TRAIN, "--data", "plain", "--validation", "0.2")
        self.check_next("seed", "train_cifar", *TRAIN, "--data", "plain", "--seed", "5")
        (packed,) = (self.folder / "packed").glob("*.images")
        shutil.copy(packed, self.folder / "set.images")
        self.check_next("packed", "train_cifar", *TRAIN, "--data", "set.images")
        (self.folder / "plain" / "cat" / "bad.png").write_bytes(b"none")
        self.check_next("skipped", "train_cifar", *TRAIN, "--data", "plain", "--skip-other-images", warned=True)
        (self.folder / "plain" / "cat" / "bad.png").unlink()
        digits = ["--threads", "1", "--epochs", "1", "--batch-size", "250", "--no-report"]
        self.check_next("digits", "train_digits", *digits)
        self.check_next("angles", "train_digits_angles", *digits, "--no-compare")

        # Without --quiet, a line for each image precedes the numbers.
        lines = self.succeed([job.BUILD / "predict", self.runs / "folder"]).splitlines()
        self.assertEqual(sum("/plain/" in line for line in lines), 8)
        described = self.succeed([job.BUILD / "inspect", self.runs / "folder"])
        self.assertIn(f'data = {{"source": "{self.folder}/plain", ', described)
        # A set of images may have a config.json of its own.
        (self.folder / "own" / "config.json").write_text("{}")
        self.assertIn("images in own", self.succeed([job.BUILD / "inspect", "own"]))
        # A model of a run without its folder does not say where its images are.
        shutil.copy(self.runs / "folder" / "model.safetensors", self.folder / "alone.safetensors")
        self.refuse([job.BUILD / "predict", "alone.safetensors"], "expected images, or a model in the folder of its run")
        self.refuse([job.BUILD / "train_digits", "predict", self.runs / "folder"], "expected a run of train_digits, got one of train_cifar")
        # A cache that is gone can be replaced.
        shutil.rmtree(self.folder / "packed")
        (self.folder / "packed").write_text("")
        predict = [job.BUILD / "predict", self.runs / "folder", "--quiet"]
        self.refuse(predict, f"cannot make the folder {self.folder}/packed", "choose another --cache")
        self.succeed([*predict, "--cache", "another"])
        (self.folder / "packed").unlink()
        # Images that have gone are told.
        for path in sorted((self.folder / "plain" / "cat").iterdir())[:10]:
            path.unlink()
        result = self.run_command([job.BUILD / "predict", self.runs / "folder", "--quiet"])
        self.assertIn("was tested on a set of 8 images", result.err)
        shutil.rmtree(self.folder / "plain")
        self.refuse([job.BUILD / "predict", self.runs / "folder"], "expected a folder, got nothing", "plain")

    @unittest.skipUnless((job.BUILD / "unet").exists(), "no examples")
    def test_masks_and_tables(self):
        self.write("images", [f"{i}.png" for i in range(12)])
        for i in range(12):
            job.write_png(self.folder / "masks" / f"{i}.png", 8, 8, bytes(j % 3 for j in range(64)), colour=0)
        options = ["--threads", "1", "--batch-size", "4", "--epochs", "2", "--no-report"]
        self.check_next("masks", "unet", *options, "--data", "images", "--masks", "masks")
        # Other masks are other data.
        (self.folder / "masks" / "3.png").write_bytes((self.folder / "masks" / "3.png").read_bytes()[:-1])
        job.write_png(self.folder / "masks" / "3.png", 8, 8, bytes((j + 1) % 3 for j in range(64)), colour=0)
        self.refuse([job.BUILD / "unet", "--resume", "--run-name", "masks", "--epochs", "3"], "--resume: expected the", "set of")
        self.write("table", [f"{i}.png" for i in range(20)])
        rows = "".join(f"{i}.png,{i * 10}\n" for i in range(20))
        (self.folder / "table" / "labels.csv").write_text("file,height\n" + rows)
        self.check_next("numbers", "from_csv", *options, "--data", "table")

    def sides(self, run, folder, classes=("cat", "dog")):
        """Returns the names of training and test images of a run, by the rule in its model."""
        header, _ = job.tensor_header(run / "model.safetensors")
        rule = json.loads(header["__metadata__"]["data"])["held_out"]
        test = re.findall(r"^\S*?/" + folder + r"/(\S+)\t", self.run_command([job.BUILD / "predict", run]).out, re.MULTILINE)
        everything = [f"{path.parent.name}/{path.name}" for path in (self.folder / folder).glob("*/*.png")]
        self.assertEqual(sorted(rule["limits"]), sorted(classes))
        return set(everything) - set(test), set(test)

    def test_growth(self):
        self.photos("set", 50)
        options = [*TRAIN, "--data", "set"]
        first = self.train(1, "first", *options)
        trained, tested = self.sides(first, "set")
        self.assertEqual(len(tested), 20)
        self.assertEqual(set((first / "held-out.txt").read_text().splitlines()), tested)
        # 30 % more images, 10 % fewer, and a third class.
        self.write("set", [f"{label}/{i:03}.png" for label in ("cat", "dog") for i in range(100, 115)])
        for i in range(5):
            (self.folder / "set" / "cat" / f"{i:03}.png").unlink()
        for ranks in job.rank_counts(1, 2, 3, 4):
            name = f"init-{ranks}"
            self.succeed(job.train(ranks, "--run-name", name, *options, "--init", first))
            now_trained, now_tested = self.sides(self.runs / name, "set")
            self.assertEqual(trained & now_tested, set())
            self.assertEqual(tested & now_trained, set())
            self.assertGreater(len(now_tested - tested), 0)
        shutil.copytree(first, self.runs / "grown")
        out = self.succeed(job.train(1, "--resume", "--new-data", "--run-name", "grown", "--epochs", "3"))
        self.assertIn("epoch 3/3", out)
        # The best model so far is tested again, so that all epochs compare values of the same images.
        again = re.search(r"the images for tests have changed; on the test set, the best model so far has loss \S+ acc (\S+)", out)[1]
        tested_again = self.run_command(job.program(1, "predict", first / "model-best.safetensors")).out
        right, count = map(int, re.search(r"\((\d+) of (\d+)\)", tested_again).groups())
        self.assertGreater(count, 20)
        self.assertEqual(again, f"{100 * right / count:.2f}")
        self.assertEqual([line["epoch"] for line in job.epoch_lines(self.runs / "grown")], [1, 2, 3])
        # The run trains as many epochs as asked for, although they are now shorter than before.
        shutil.copytree(first, self.runs / "shrunk")
        shutil.copytree(self.folder / "set", self.folder / "kept")
        for path in (self.folder / "set").glob("*/*.png"):
            if path.name >= "015":
                path.unlink()
        out = self.succeed(job.train(1, "--resume", "--new-data", "--run-name", "shrunk", "--epochs", "4"))
        self.assertIn("epoch 4/4", out)
        self.assertEqual([line["epoch"] for line in job.epoch_lines(self.runs / "shrunk")], [1, 2, 3, 4])
        shutil.rmtree(self.folder / "set")
        (self.folder / "kept").rename(self.folder / "set")
        self.assertEqual(self.sides(self.runs / "grown", "set"), (now_trained, now_tested))
        # Without the older run, images at the border change sides, but no others.
        fresh = self.train(1, "fresh", *options)
        fresh_trained, fresh_tested = self.sides(fresh, "set")
        self.assertLessEqual(len(trained & fresh_tested) + len(tested & fresh_trained), 10)
        # With other classes for the same images, the older run's rule does not say which it was trained on.
        images = [f"{path.parent.name}/{path.name}" for path in (self.folder / "set").glob("*/*.png")]
        (self.folder / "set" / "labels.csv").write_text("".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(images)))
        result = self.run_command(job.train(1, *options, "--run-name", "relabelled", "--init", first, "--init-skip", "fc"))
        self.assertIn("has held out images by other classes", result.out + result.err)
        (self.folder / "set" / "labels.csv").unlink()
        # With other test images, none of the set is held out any more.
        self.photos("others")
        shutil.copytree(first, self.runs / "tested")
        self.assertTrue((self.runs / "tested" / "held-out.txt").exists())
        self.succeed(job.train(1, "--resume", "--new-data", "--run-name", "tested", "--test-data", "others", "--epochs",
                               "3"))
        self.assertFalse((self.runs / "tested" / "held-out.txt").exists())
        # A file that does not say what it was trained on cannot be followed.
        (self.folder / "other.safetensors").write_bytes(job.without_checksums(first / "model.safetensors").replace(b'"data"', b'"date"'))
        result = self.run_command(job.train(1, *options, "--run-name", "other", "--init", "other.safetensors"))
        self.assertIn("does not say which images it was trained on", result.out)

    def test_other_heads(self):
        """--init must not give the scores of one class to another."""
        self.photos("set")
        first = self.train(1, "first", *TRAIN, "--data", "set")
        (self.folder / "set" / "cat").rename(self.folder / "set" / "fox")
        options = [*TRAIN, "--data", "set", "--init", first]
        self.refuse(job.train(1, *options, "--run-name", "second"), "whose class 0 is cat, got dog", "--init-skip")
        self.succeed(job.train(1, *options, "--run-name", "second", "--init-skip", "fc"))


if __name__ == "__main__":
    job.main()
