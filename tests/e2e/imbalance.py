"""Trains on classes of very different sizes: class weights and balanced sampling recognise the rare ones better, and
with mixed images on any number of workers give the same bits on any number of ranks."""
import random

import job

SIDE = 16
# Mean brightness of each class, and its number of training images. Neighbouring classes overlap, so a network that only
# counts mistakes takes the frequent class in doubt.
CLASSES = {"a": (70, 120), "b": (100, 12), "c": (160, 12), "d": (190, 120)}
OPTIONS = ["--data", "photos", *job.TINY, "--augment", "none", "--batch-size", "22", "--lr", "0.05",
           "--schedule", "cosine", "--threads", "1", "--device", "cpu"]


class Imbalance(job.JobTest):
    def setUp(self):
        super().setUp()
        chance = random.Random(1)
        for part, counts in (("train", {name: count for name, (_, count) in CLASSES.items()}),
                             ("test", dict.fromkeys(CLASSES, 60))):
            for name, count in counts.items():
                for i in range(count):
                    centre = chance.gauss(CLASSES[name][0], 18)
                    grey = [max(0, min(255, round(chance.gauss(centre, 20)))) for _ in range(SIDE * SIDE)]
                    job.write_png(self.folder / "photos" / part / name / f"{i}.png", SIDE, SIDE, bytes(grey), 0)

    def recalls(self, name, *options):
        """Returns the recall of each class on the test set."""
        counts = job.report(self.train(1, name, *OPTIONS, "--epochs", "12", *options))["runs"][0]["confusion"]["counts"]
        return [row[i] / sum(row) for i, row in enumerate(counts)]

    def test_rare_classes(self):
        plain = self.recalls("plain")
        for options in (["--class-weights", "balanced"], ["--class-weights", "1,10,10,1"], ["--sampler", "balanced"]):
            recalls = self.recalls(options[1].replace(",", "-") + options[0], *options)
            self.assertGreater(recalls[1] + recalls[2], plain[1] + plain[2] + 0.2, (options, plain, recalls))
            self.assertGreater(min(recalls), min(plain) + 0.1, (options, plain, recalls))

    def test_same_bits_on_any_number_of_ranks(self):
        options = [*OPTIONS, "--epochs", "2", "--workers", "3", "--sampler", "balanced", "--class-weights", "balanced",
                   "--mixup", "0.2", "--cutmix", "1", "--erase", "0.3", "--jitter", "0.3,0.3,0.3"]
        runs = [self.train(ranks, f"on-{ranks}", *options) for ranks in job.rank_counts(1, 2, 3)]
        for run in runs[1:]:
            self.assert_same_training(run, runs[0])


if __name__ == "__main__":
    job.main()
