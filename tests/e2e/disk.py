# Tests full disks, limits of file sizes, and folders without write permission: the error states the cause, the last
# good checkpoint stays valid, and a resume gives the same bits when there is room again.
import os
import resource
import shutil
import subprocess
import unittest

import job

# The network is so wide that a checkpoint is the largest file.
OPTIONS = ["--width", "24", "--depth", "1", "--seed", "5", "--checkpoint-every", "5"]
MORE = ["--resume", "--steps", "40"]
NOBODY = 65534


class Disk(job.JobTest):
    def setUp(self):
        super().setUp()
        self.run_folder = self.train(1, "run", *OPTIONS, "--steps", "20")

    def fails(self, command, *words, **how):
        result = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                timeout=job.LIMIT, **how)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        self.assertEqual((result.returncode, len(errors)), (1, 1), result)
        for word in words:
            self.assertIn(word, errors[0])

    def goes_on(self, steps=40):
        """Resumes the run, and checks that it has the same bits as an undisturbed run."""
        whole = self.train(1, "whole", *OPTIONS, "--steps", str(steps))
        out = self.succeed(job.train(1, "--run-name", "run", "--resume", "--steps", str(steps)))
        self.assertNotIn("warning", out)
        self.assert_same_training(self.run_folder, whole)
        self.assertEqual(list(self.run_folder.rglob("*.tmp-*")), [])

    def test_closed_output(self):
        # The user closed both streams, so this is no error. No other file may receive the output instead.
        without = ["sh", "-c", 'exec "$@" >&- <&-', "sh"]
        self.succeed([*without, *job.train(1, "--run-name", "unseen", *OPTIONS, "--steps", "2")])
        lines = (self.runs / "unseen" / "metrics.jsonl").read_text().splitlines()
        self.assertEqual([line for line in lines if not line.startswith("{")], [])
        self.assertEqual(len(job.step_lines(self.runs / "unseen")), 2)
        self.succeed([*without, str(job.BUILD / "inspect"), str(self.run_folder / "model.safetensors")])

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_unwritable_output(self):
        programs = [[str(job.BUILD / name), "--help"] for name in
                    ("predict", "inspect", "train_cifar", "train_digits", "make_digits")]
        with open("/dev/full", "w") as full:
            for command in (*programs, [str(job.BUILD / "predict"), str(self.run_folder)],
                            [str(job.BUILD / "inspect"), *50 * [str(self.run_folder / "model.safetensors")]],
                            job.train(1, "--run-name", "unseen", *OPTIONS, "--steps", "2")):
                result = subprocess.run(command, cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True,
                                        timeout=job.LIMIT)
                self.assertEqual(result.returncode, 1, command)
                self.assertEqual(len(result.stderr.splitlines()), 1, result)
                self.assertIn("error: standard output: expected to write all of it, got", result.stderr)
        self.assertTrue((self.runs / "unseen" / "model.safetensors").exists())  # everything else is complete

    def test_file_size_limit(self):
        # Only checkpoints exceed the limit. By default, SIGXFSZ would end the process without a message.
        limit = min(path.stat().st_size for path in (self.run_folder / "checkpoint").iterdir()) - 100
        self.assertLess(max(path.stat().st_size for path in self.run_folder.iterdir() if path.is_file()), limit - 20000)
        # Set the limit while it trains, because MPI has large files too.
        process = self.start(job.train(1, "--run-name", "run", "--resume", "--steps", "100000"))
        metrics = self.run_folder / "metrics.jsonl"
        self.assertTrue(self.wait_for(process, lambda: metrics.read_text().count('"step"') > 30))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        result = self.finish(process)
        self.assertEqual((result.code, len(result.err.splitlines())), (1, 1), result)
        for word in ("File too large", "checkpoint/step-", "untouched"):
            self.assertIn(word, result.err)
        last = max(int(path.stem[5:]) for path in (self.run_folder / "checkpoint").glob("step-*.safetensors"))
        self.assertGreaterEqual(last, 30)
        self.goes_on(last + 10)

    def test_file_size_limit_of_programs(self):
        # The limit holds from the start. None of these programs uses MPI, which has large files too.
        limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))}
        sample = job.SAMPLE / "train.png"
        for name, out, arguments in (("export_onnx", "net.onnx", [self.run_folder, "net.onnx"]),
                                     ("make_digits", "digits/angles.csv", ["digits", "--per-class", "20"])):
            self.fails([str(job.BUILD / name), *map(str, arguments)], out, "File too large", **limited)
            self.assertFalse((self.folder / out).exists())
        shutil.copy(sample, self.folder)
        for copies in (30, 50):  # After 30, all output was already written (or refused) when the program ends.
            with (self.folder / "out").open("w") as out:
                result = subprocess.run([str(job.BUILD / "inspect"), *copies * ["train.png"]], cwd=self.folder,
                                        stdout=out, stderr=subprocess.PIPE, text=True, timeout=job.LIMIT, **limited)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1), result)
            self.assertIn("error: standard output: expected to write all of it, got File too large", result.stderr)
        self.assertEqual(list(self.folder.rglob("*.tmp-*")), [])

    @unittest.skipUnless(job.can_mount(), "may not mount a tmpfs")
    def test_full_disk(self):
        # Move the run to a small disk that has no room for a third checkpoint, and back.
        size = sum(path.stat().st_size for path in self.run_folder.rglob("*") if path.is_file())
        script = f"""
            mkdir small && mount -t tmpfs -o size={size // 1024 + 78}k none small && cp -r runs/run small/ || exit 99
            "$@" --runs small; code=$?
            cp -r small/run runs/back && exit $code"""
        self.fails(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh",
                    *job.train(1, "--run-name", "run", *MORE)], "No space left on device")
        shutil.rmtree(self.run_folder)
        (self.runs / "back").rename(self.run_folder)
        self.goes_on()

    @unittest.skipUnless(job.can_mount(), "may not mount a tmpfs")
    def test_full_disk_for_packed_images(self):
        data = str(self.write_sample())  # 3 MB
        script = """
            mkdir small && mount -t tmpfs -o size=1m none small || exit 99
            "$@" --cache small/cache; code=$?
            ls small/cache > left && exit $code"""
        command = job.train(1, *OPTIONS, "--data", data, "--steps", "2")
        self.fails(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", *command],
                   "No space left on device", "--cache none")
        self.assertEqual([name for name in (self.folder / "left").read_text().split() if ".lock" not in name], [])
        self.succeed([*command, "--cache", "none"])

    def test_cut_file_of_packed_images(self):
        command = job.train(1, *OPTIONS, "--data", str(self.write_sample()), "--cache", "cache", "--epochs", "100000",
                            "--run-name", "cut")
        process = self.start(command)
        self.assertTrue(job.within_limit(lambda: list(self.runs.glob("cut/metrics.jsonl"))))
        [images] = self.folder.glob("cache/*.images")
        os.truncate(images, 4096)
        self.assertIn("cannot read a mapped file, such as a packed set", process.communicate(timeout=job.LIMIT)[1])
        self.assertEqual(process.returncode, 1)

    def test_unwritable_folder(self):
        # Root may write everywhere, so another user trains.
        root = os.geteuid() == 0
        how = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if root else {}
        if root:
            self.folder.chmod(0o755)
            try:
                subprocess.run([str(job.BUILD / "train_cifar"), "--help"], stdout=subprocess.DEVNULL, check=True, **how)
            except (OSError, subprocess.CalledProcessError):
                self.skipTest("nobody but root can run the programs")
        folders = [self.run_folder, self.run_folder / "checkpoint"]
        for folder in folders:
            folder.chmod(0o555)
        self.addCleanup(lambda: [folder.chmod(0o755) for folder in folders])
        before = {path: path.read_bytes() for path in self.run_folder.rglob("*") if path.is_file()}
        self.fails(job.train(1, "--run-name", "run", *MORE), "Permission denied", str(self.run_folder.name), **how)
        self.assertEqual({path: path.read_bytes() for path in self.run_folder.rglob("*") if path.is_file()}, before)
        for folder in folders:
            folder.chmod(0o755)
        self.goes_on()


job.main()
