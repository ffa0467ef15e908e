# Tests losses and gradients that are not finite in whole trainings: the errors, the steps that go on, and that no file
# ever holds such a value.
import json
import math
import struct

import job
from job import program


def floats(path):
    """Returns the data of a safetensors file as f32. The few values of other types are first."""
    _, size = job.tensor_header(path)
    data = path.read_bytes()[-size:]
    return struct.unpack(f"<{size // 4}f", data)


class NotFinite(job.JobTest):
    def assert_finite_files(self, run):
        files = list(run.rglob("*.safetensors"))
        for path in files:
            self.assertTrue(all(map(math.isfinite, floats(path))), path)
        return files

    def fail_training(self, command, *words):
        """Runs a training that must begin and then end with one error."""
        result = self.run_command(command)
        errors = [line for line in result.err.splitlines() if line.startswith("error:")]
        self.assertNotEqual(result.code, 0, command)
        self.assertEqual(len(errors), 1, result.err)
        for word in words:
            self.assertIn(word, errors[0])
        return result.out

    def test_stop(self):
        for ranks in job.rank_counts(1, 2):
            run = self.runs / f"stop-{ranks}"
            # The forward pass of the second step overflows in its first layer.
            self.fail_training(job.train(ranks, *job.TINY, "--lr", "1e30", "--checkpoint-every", "1", "--run-name",
                                         run.name),
                               "step 2: expected finite values, got inf in block1.0.bn.running_var, from the "
                               "activations before it", "make --lr smaller", "--on-nan")
            self.assertEqual(len(self.assert_finite_files(run)), len(job.losses(run)[-2:]))
            self.assertTrue(all(map(math.isfinite, job.losses(run))))
            page = job.report(run)["runs"][0]
            self.assertEqual((page["state"], len(page["metrics"])), ("failed", len(job.losses(run))))
            self.assertIn("expected finite values", page["note"])

    def angles(self, ranks, name, *options):
        """Trains on digits of which one has an angle so large that its squared error is not finite."""
        data = self.folder / "set"
        if not data.exists():
            self.succeed(program(1, "make_digits", data, "--per-class", 20, "--seed", 1))
            table = (data / "angles.csv").read_text().splitlines()
            table[77] = table[77].split(",")[0] + ",1e25"
            (data / "angles.csv").write_text("\n".join(table) + "\n")
        return program(ranks, "train_digits_angles", "--no-compare", "--data", data, "--epochs", 3, "--batch-size", 20,
                       "--run-name", name, *options)

    def test_skip(self):
        skipped = {}
        for ranks in job.rank_counts(1, 2):
            run = self.runs / f"skip-{ranks}"
            out = self.succeed(self.angles(ranks, run.name, "--on-nan", "skip"))
            lines = [json.loads(line) for line in job.step_lines(run)]
            self.assertEqual([line["step"] for line in lines], list(range(1, 28)))
            skipped[ranks] = [line["step"] for line in lines if "skipped" in line]
            self.assertEqual(len(skipped[ranks]), 3)  # once an epoch
            self.assertEqual(out.count("skipped the step"), 3)
            for line in lines:
                self.assertEqual(line["loss"] is None, "skipped" in line)
            self.assertEqual(len(self.assert_finite_files(run)), 4)  # two models, two checkpoints
            losses = [line["loss"] for line in lines if "skipped" not in line]
            self.assertLess(losses[-1], 0.9 * losses[0])
            self.assertTrue(all(math.isfinite(epoch["train_loss"]) for epoch in job.epoch_lines(run)[:3]))
        self.assertEqual(len(set(map(str, skipped.values()))), 1)  # for any number of ranks


job.main()
