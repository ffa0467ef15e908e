# Tests wrong options and wrong data: the error is one line, the exit status is not 0, and no run folder is left.
import json
import os
import unittest

import job

SHORT = [*job.TINY, "--steps", "2"]


def records(count, label=0):
    return b"".join(bytes([label]) + bytes([i % 251]) * 3072 for i in range(count))


class BadInput(job.JobTest):
    def data(self, name, train, test=records(10)):
        """Returns a folder of CIFAR files."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "train.bin").write_bytes(train)
        (folder / "test.bin").write_bytes(test)
        return str(folder)

    def refuse_training(self, options, *words, **environment):
        """Checks that a training fails with these words, on one rank and on two."""
        for ranks in job.rank_counts(1, 2):
            self.refuse(job.train(ranks, *SHORT, *options), *words, **environment)
            self.assertFalse(self.runs.exists(), options)

    def test_wrong_cifar_files(self):
        whole = records(60)
        oversized = self.data("oversized", whole, test=records(10) + b"x")
        self.refuse_training(["--data", oversized], "test.bin", "30731", "3073")
        mislabelled = self.data("mislabelled", records(5) + records(1, label=10) + records(54))
        self.refuse_training(["--data", mislabelled], "train.bin", "got 10", "0 to 9", "record 5", f"offset {5 * 3073}")
        # The same folder with complete files trains, so the errors above are due to those bytes.
        self.succeed(job.train(1, *SHORT, "--data", self.data("good", whole), "--batch-size", "30"))

    def test_wrong_folders(self):
        self.refuse_training(["--data", "nowhere"], "nowhere", "folder")
        (self.folder / "void").mkdir()
        self.refuse_training(["--data", "void"], "void", "got none")
        (self.folder / "classes" / "cat").mkdir(parents=True)
        self.refuse_training(["--data", "classes"], "class folders of images", "got none", "classes")
        job.write_png(self.folder / "flat" / "a.png", 8, 8, bytes(192))
        self.refuse_training(["--data", "flat"], "got only images without a folder, such as a.png", "labels.csv")
        (self.folder / "flat" / "labels.csv").write_text("a.png;cat\n")
        self.refuse_training(["--data", "flat"], "expected a file and a label, got a.png;cat", "by a comma, not by ;")
        self.refuse_training(["--batch-size", "1001", "--partial-batch", "discard"], "1001", "1000", "--batch-size")

    def test_wrong_options(self):
        self.refuse_training(["--widht", "3"], "--widht", "did you mean --width?")
        for foreign, ours in (("weight-decay", "l2"), ("learning-rate", "lr"), ("model", "net"), ("batch", "batch-size"),
                              ("num-epochs", "epochs"), ("dataset", "data"), ("img_size", "size"), ("gpu", "device"),
                              ("num-workers", "threads")):
            self.refuse_training([f"--{foreign}", "1"], f"--{foreign}", f"did you mean --{ours}?")
        for options, words in (  # separated by spaces, and by |
                ("--lr fast", "--lr|number|fast"), ("--width 0", "--width|from 1 to 4096|0"),
                ("--schedule square", "--schedule|cosine|square"), ("--epochs", "--epochs|the end of the command line"),
                ("here", "here"), ("--drops 9,3", "3 after 9"), ("--freeze conv9", "--freeze: |got conv9"),
                ("--lr-scale conv9=0.1", "--lr-scale: |got conv9"),
                ("--init nothing", "--init: expected a run's folder|nothing"),
                ("--augment flip,turn", "--augment|flip,alternating-flip,flip-vertical,translate|flip,turn"),
                ("--augment=", '--augment|got ""'), ("--translate-y 32", "0 to 31 pixels in y|32"),
                ("--rotate 200", "--rotate|from 0 to 180|200"), ("--scale 2", '--scale|MIN:MAX|"2"'),
                ("--scale 1.5:0.5", "range of scales|1.5 to 0.5"), ("--resized-crop 0.5:2", "range of areas|0.5 to 2"),
                ("--augment flip,crop", "--augment crop|--store-size"), ("--store-size 40", "--store-size|--size|none"),
                ("--store-size 40x31 --size 32", "--store-size|at least --size 32x32|40x31"),
                ("--store-size 0 --size 32", "--store-size|of 1 to 8192"),
                ("--store-size 40 --size 32 --augment crop --resized-crop 0.5:1", "crop or resized-crop|omit one"),
                ("--erase 1.5", "--erase|from 0 to 1|1.5"), ("--mixup -0.2", "--mixup|from 0 to 100|-0.2"),
                ("--cutmix none", "--cutmix|number|none"),
                ("--jitter 0.4,0.4,99", "changes of colours of 0 to 10, got 99"),
                ("--class-weights 1,2,0.5", "expected 10 class weights|got 3"),
                ("--class-weights even", '--class-weights: expected none, balanced, or a list|"even"'),
                ("--class-weights 0,1,1,1,1,1,1,1,1,1", "class weights above 0, got 0"),
                ("--sampler weighted", "--sampler|uniform or balanced|weighted"),
                ("--sampler balanced --shuffle never", "expected a random order with balanced classes|--shuffle never"),
                ("--run-name a/b", "a/b")):
            self.refuse_training(options.split(), *words.split("|"))
        for schedule, option in (("cosine", "--drops"), ("cosine", "--drop-every"), ("constant", "--drop-factor"),
                                 ("cosine", "--lr-peak"), ("piecewise", "--lr-start"), ("piecewise", "--lr-floor")):
            self.refuse_training(["--schedule", schedule, option, "0.5"], f"{option}: expected --schedule")
        for drops in [",", "30,", "30,,45", "30;45", "x", "nan", "30 ,45", "-1"]:
            self.refuse_training(["--drops", drops], "such as 0.9 or 30,45", drops)
        for text in ("0.4", "0.4,0.4", "0.4,0.4,x", "0.4,-1,0", "0.4,0.4,0.4,0.1", ""):
            self.refuse_training([f"--jitter={text}"], "--jitter: expected three numbers", f'got "{text}"')
        self.refuse_training([], "RG_ISA: expected an instruction set of this CPU", "nonsense", RG_ISA="nonsense")

    def test_not_enough_memory(self):
        self.refuse_training(["--width", "4096", "--depth", "64"], "memory: expected at most", "GiB",
                             "make the network or --batch-size smaller, or start fewer ranks")
        # The plan of a mini-batch that is larger than the set has the size of the set.
        self.succeed(job.train(1, *SHORT, "--batch-size", "1000000"))

    def test_wrong_initial_files(self):
        self.refuse_training(["--resume"], "nothing to resume")
        self.refuse_training(["--resume", "--run-name", "never"], "never")
        self.refuse_training(["--init", "never.safetensors"], "never.safetensors")
        run = self.train(1, "narrow", *SHORT)
        before = sorted(self.runs.rglob("*"))
        for options in (["--init", str(run / "model.safetensors"), "--width", "8"],
                        ["--resume", "--run-name", "narrow", "--width", "8"],
                        ["--resume", "--run-name", "narrow", "--batch-size", "25"],
                        ["--init", str(run / "model.safetensors"), "--depth", "2"]):
            self.refuse(job.train(1, *SHORT, *options), ".safetensors")
            self.assertEqual(sorted(self.runs.rglob("*")), before, options)
        self.refuse(job.train(1, *SHORT, "--run-name", "narrow"), "narrow", "exists already")
        both = ["--resume", "--run-name", "narrow", "--init", str(run / "model.safetensors")]
        self.refuse(job.train(1, *SHORT, *both), "--init", "--resume", "omit one")

    def test_stored_commands_of_others_are_rejected(self):
        for name in ("train.bin", "test.bin"):
            (self.folder / name).write_bytes(records(60))
        proof = self.folder / "it-ran"
        data = ["--data", "pipe:echo x >> it-ran; tar -c train.bin test.bin"]
        run = self.train(1, "one", *SHORT, *data, "--batch-size", "30")
        resume = job.train(1, "--resume", "--run-name", "one", "--steps", "3")
        self.succeed(resume)  # the user's own run may store commands
        run.chmod(0o770)
        proof.unlink()
        for ranks in job.rank_counts(1, 2):
            self.refuse(job.train(ranks, *resume[1:]), data[1], "others can write into", "give --data again")
        self.assertFalse(proof.exists())
        self.succeed([*resume, *data, "--steps", "4"])
        if os.geteuid() == 0:
            run.chmod(0o700)
            os.chown(run, 12345, -1)
            self.refuse(resume, data[1], "is another user's", "give --data again")

        sweep = [str(job.BUILD / "train_cifar"), "sweep", "--run-name", "sweep", *SHORT, *data, "--batch-size", "30", "--grid",
                 "lr=0.1,0.2"]
        self.run_command(sweep)
        self.assertTrue((self.runs / "sweep" / "config.json").exists())
        (self.runs / "sweep").chmod(0o702)
        proof.unlink()
        self.refuse([*sweep[:2], "--run-name", "sweep", "--resume"], data[1], "others can write into", "type the options")
        self.assertFalse(proof.exists())
        self.succeed([*sweep, "--resume"])

        # A stored command is recognised with any quotes and line ends.
        proof.unlink()
        for spelling in (f'data="pi"{data[1][2:]}', f"data=pi\r{data[1][2:]}",
                         f'test-data="pi"{data[1][2:]}'):
            other = self.runs / "other"
            other.mkdir(exist_ok=True)
            other.chmod(0o777)
            stored = {"program": "train_cifar-sweep", "arguments": [*SHORT, "--batch-size", "30", "--grid", spelling],
                      "trials": []}
            (other / "config.json").write_text(json.dumps(stored))
            for ranks in job.rank_counts(1, 2):
                self.refuse(job.program(ranks, "train_cifar", "sweep", "--run-name", "other", "--resume"), data[1],
                            "others can write into", "type the options")
                self.assertFalse(proof.exists(), spelling)

    def test_leftovers_of_kills_are_removed(self):
        run = self.train(1, "killed", *SHORT)
        for name in ("model.safetensors.tmp-12345", "config.json.tmp-1"):
            (run / name).write_bytes(b"half")
        (run / "notes.tmp-1").write_text("not ours")
        self.succeed(job.train(1, "--resume", "--run-name", "killed", "--steps", "3"))
        self.assertEqual([p.name for p in run.glob("*.tmp-*")], ["notes.tmp-1"])

    def test_deadline(self):
        for deadline in ("nonsense", "0", "inf"):
            self.refuse_training([], "RG_DEADLINE_S", deadline, RG_DEADLINE_S=deadline)

    def test_few_images(self):
        job.write_png(self.folder / "few" / "cat" / "one.png", 32, 32, bytes(3072))
        self.refuse_training(["--data", "few"], "few", "2 images", "got 1")
        job.write_png(self.folder / "few" / "cat" / "two.png", 32, 32, bytes(3072))
        self.succeed(job.train(1, *SHORT, "--data", "few", "--batch-size", "1"))
        self.refuse(job.train(1, *SHORT, "--data", "few", "--batch-size", "1", "--validation", "0.5"), "--validation",
                    "2 training images of some class", "few")

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_one_rank_lacks_its_data(self):
        fine, lost = job.train(1, *SHORT), job.train(1, *SHORT, "--data", "nowhere")
        for first, second, rank in ((fine, lost, 1), (lost, fine, 0)):
            self.refuse([job.MPIEXEC, "-n", "1", *first, ":", "-n", "1", *second], f"(rank {rank})", "nowhere")
            self.assertFalse(self.runs.exists())

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_one_rank_has_other_data(self):
        one, other = self.data("one", records(60)), self.data("other", records(59) + records(1, label=1))
        first, second = (job.train(1, *SHORT, "--batch-size", "30", "--data", d) for d in (one, other))
        self.refuse([job.MPIEXEC, "-n", "1", *first, ":", "-n", "1", *second], "expected the same on all ranks",
                    "(rank 1 ", "every rank needs the same --data")
        self.assertFalse(self.runs.exists())


job.main()
