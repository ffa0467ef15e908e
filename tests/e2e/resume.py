# Tests that runs that were killed or stopped resume with the same bits as an undisturbed run.
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import time
import unittest

import job

# 20 steps per epoch and many small checkpoints, so that one in the middle of an epoch exists soon.
OPTIONS = [*job.TINY, "--epochs", "5", "--checkpoint-every", "3", "--seed", "7"]
LAST_STEP, STOP_FROM = 100, 24
ATTEMPTS = 5  # a slow test process may find that a run has ended before it was killed


def checkpoints(run):
    """Returns the steps of the complete checkpoints of a run, in ascending order."""
    return sorted(int(path.stem[5:]) for path in (run / "checkpoint").glob("step-*.safetensors"))


def newest_checkpoint(run):
    return run / "checkpoint" / f"step-{checkpoints(run)[-1]:08}.safetensors"


def values(run, name):
    return [json.loads(line)[name] for line in job.step_lines(run)]


def largest(run, other, name):
    """Returns the largest relative difference of a step."""
    return max(abs(a - b) / abs(b) for a, b in zip(values(run, name), values(other, name), strict=True))


def catches_sigterm(pid):
    """Returns True if a process handles SIGTERM. A training installs this handler last; MPI has one for SIGUSR1."""
    try:
        caught = pathlib.Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    except (OSError, IndexError):
        return False  # it has ended meanwhile
    return bool(int(caught, 16) >> signal.SIGTERM - 1 & 1)


class Resume(job.JobTest):
    options = OPTIONS

    def interrupt(self, ranks, name, end):
        """Starts a run and calls end(process) in the middle of its second epoch. Returns its folder and result."""
        for attempt in range(ATTEMPTS):
            run = self.runs / f"{name}-{attempt}"
            process = self.start(job.train(ranks, *self.options, "--run-name", run.name))
            if not self.wait_for(process, lambda: max(checkpoints(run), default=0) >= STOP_FROM):
                continue
            end(process)
            result = self.finish(process)
            if checkpoints(run)[-1] < LAST_STEP:
                return run, result
        self.fail(f"{ATTEMPTS} runs ended before they could be interrupted")

    def resume(self, ranks, run):
        return self.succeed(job.train(ranks, "--resume", "--run-name", run.name))

    def assert_same(self, run, whole):
        self.assert_same_training(run, whole)
        self.assertEqual(job.epoch_lines(run), job.epoch_lines(whole))

    def killed_and_resumed(self, ranks, whole):
        self.assertEqual(len(job.step_lines(whole)), LAST_STEP)
        run, result = self.interrupt(ranks, "killed", job.kill_job)
        self.assertNotEqual(result.code, 0)
        self.assertIn(f"at step {checkpoints(run)[-1]}\n", self.resume(ranks, run))
        self.assert_same(run, whole)

    def stopped_and_resumed(self, ranks, whole, number, to_rank=None):
        """Sends the signal to the single process, or to mpiexec, which passes it on to the ranks, or to one rank. Sends it
        twice, as `timeout` does; but a second SIGINT ends mpiexec."""
        def send(process):
            pid = process.pid if to_rank is None else job.trainings(process)[to_rank]
            os.kill(pid, number)
            if number != signal.SIGINT:
                time.sleep(0.01)  # the kernel merges signals that are not delivered yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

        run, result = self.interrupt(ranks, f"stopped-{number}-{to_rank}", send)
        codes = [0] if number == signal.SIGINT else job.interrupted(ranks if to_rank is None else 1)
        self.assertIn(result.code, codes, result.err)
        self.assertIn(f"stopped after step {checkpoints(run)[-1]};", result.out)
        # The last line is the command that continues the run.
        after = result.out.splitlines()[-1].removeprefix("next: ")
        self.assertTrue(after.startswith("" if ranks == 1 else f"mpiexec -n {ranks} "), after)
        self.succeed(shlex.split(after if ranks == 1 else after.replace("mpiexec", job.MPIEXEC, 1)))
        self.assert_same(run, whole)

    def test_one_rank(self):
        whole = self.train(1, "whole", *OPTIONS)
        self.killed_and_resumed(1, whole)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            self.stopped_and_resumed(1, whole, number)
        self.damaged_and_resumed(whole)

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_two_ranks(self):
        # All buffers and settings that an optimizer can have
        self.options = [*OPTIONS, "--optimizer", "adamw", "--lr", "0.001", "--no-decay-biases", "--clip", "1", "--average",
                        "0.9"]
        whole = self.train(2, "whole", *self.options)
        self.killed_and_resumed(2, whole)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self.stopped_and_resumed(2, whole, number)
        self.stopped_and_resumed(2, whole, signal.SIGUSR1, to_rank=1)

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_other_number_of_ranks(self):
        # With batch statistics over all ranks, the training is the same up to rounding. Stop it within an epoch.
        options = [*job.TINY, "--sync-bn", "--schedule", "cosine", "--seed", "7", "--epochs", "2"]
        straight = self.train(3, "straight", *options, "--lr", "0.001")
        run = self.train(2, "two-three", *options, "--lr", "0.001", "--steps", "27")
        self.succeed(job.train(3, "--resume", "--run-name", run.name, "--steps", "-1"))
        self.assertLess(largest(run, straight, "loss"), 3e-4)
        self.assertEqual(values(run, "lr"), values(straight, "lr"))
        self.assertEqual(len(values(run, "loss")), 40)

        # With a rate at which no weight changes, a step's loss and accuracy identify its images.
        options += ["--lr", "1e-30", "--l2", "0"]
        straight = self.train(3, "order-straight", *options)
        run = self.train(2, "order", *options, "--steps", "27")
        self.succeed(job.train(3, "--resume", "--run-name", run.name, "--steps", "-1"))
        self.assertLess(largest(run, straight, "loss"), 1e-5)
        self.assertEqual(values(run, "accuracy"), values(straight, "accuracy"))
        steps = values(straight, "loss")
        gaps = [abs(a - b) / a for i, a in enumerate(steps) for b in steps[:i]]
        self.assertGreater(sorted(gaps)[len(gaps) // 100], 1e-4)  # the check is sensitive
        other = self.train(3, "order-other", *options, "--seed", "8", "--init", str(run / "model.safetensors"))
        self.assertNotEqual(values(other, "accuracy"), values(straight, "accuracy"))

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_workers(self):
        """With the same number of workers, a training has the same bits on any number of ranks, also after a resume."""
        self.options = [*OPTIONS, "--workers", "3", "--threads", "1", "--augment", "flip,translate"]
        whole = self.train(1, "whole", *self.options)
        self.assertEqual(len(job.step_lines(whole)), LAST_STEP)
        for ranks in (2, 3):
            self.assert_same_training(self.train(ranks, f"ranks-{ranks}", *self.options), whole)
        run, _ = self.interrupt(3, "killed", job.kill_job)
        self.resume(2, run)
        self.assert_same_training(run, whole)
        for ranks, options, words in ((3, ["2"], "one worker for each of 3 ranks"), (2, ["3", "--sync-bn"], "sync-bn"),
                                      (2, ["3", "--allreduce", "ring"], "order of the workers"),
                                      (2, ["3", "--wire", "bf16"], "number of nodes")):
            self.refuse(job.train(ranks, *OPTIONS, "--workers", *options), words)

    def test_data_that_changed(self):
        def write(name, shade):
            job.write_png(self.folder / "set" / name, 8, 8, bytes([shade]) * 192)

        for i in range(20):
            write(f"cat/{i}.png", i), write(f"dog/{i}.png", 100 + i)
        options = [*job.TINY, "--batch-size", "4", "--augment", "none"]
        run = self.train(1, "run", *options, "--data", "set", "--epochs", "1")
        resume = job.train(1, "--resume", "--run-name", "run", "--epochs", "2")
        all_images = self.run_command([job.BUILD / "predict", run, "set"])
        self.assertIn("40 images;", all_images.out)
        self.assertIn("also has the images of the training", all_images.err)

        saved = run / "checkpoint" / "step-00000008.safetensors"
        (self.folder / "set" / "dog").rename(self.folder / "set" / "ant")
        for more in ([], ["--new-data"]):
            self.refuse([*resume, *more], str(saved.relative_to(self.folder)), "whose class 0 is cat, got ant")
        (self.folder / "set" / "ant").rename(self.folder / "set" / "dog")
        write("dog/20.png", 120)
        self.refuse(resume, "expected the training set of", "32 images 8x8x3", "got 33 images 8x8x3", "--new-data")
        self.succeed([*resume, "--new-data"])
        (self.folder / "set" / "dog" / "20.png").unlink()
        self.refuse([*resume, "--epochs", "3"], "expected the training set of")
        # A checkpoint within an epoch has seen a part of the old images.
        self.train(1, "part", *options, "--data", "set", "--steps", "3")
        write("cat/0.png", 200)
        self.refuse(job.train(1, "--resume", "--run-name", "part", "--steps", "5", "--new-data"),
                    "--new-data: expected a checkpoint from the end of an epoch, got one after 3 mini-batches")
        # A relative path is that of the folder in which the run began.
        write("cat/0.png", 0)
        (self.folder / "other" / "set" / "cat").mkdir(parents=True)
        self.succeed(["sh", "-c", 'cd other && exec "$@"', "sh", *job.train(1, "--resume", "--runs", "../runs",
                                                                          "--run-name", "part", "--steps", "5")])
        self.assertIn("epoch 2/2", self.succeed(job.train(1, "--resume", "--run-name", "part", "--epochs", "2")))

    def test_signal_while_loading(self):
        # The command has two processes, and neither ends by itself. A signal to one rank ends everything.
        command = "pipe:sleep 1000 | cat"
        cases = [(1, signal.SIGINT, 0), (1, signal.SIGTERM, 75), (1, signal.SIGUSR1, 75), (1, signal.SIGHUP, 75)]
        if job.MPIEXEC:
            cases += [(2, signal.SIGINT, 0), (2, signal.SIGUSR1, 75)]
        for options in ([], ["sweep", "--grid", "lr=0.1,0.2", "--validation", "0.2"]):
            for ranks, number, code in cases:
                process = self.start(job.program(ranks, "train_cifar", *options, "--data", command))
                self.assertTrue(self.wait_for(process, lambda: len(job.named(process, "sleep")) == 1))
                pids = job.job_pids(process.pid)
                os.kill(job.trainings(process)[-1], number)
                result = self.finish(process)
                self.assertIn(result.code, [code] if code == 0 else job.interrupted(ranks))
                self.assertEqual((result.out, result.err), ("stopped while loading data; nothing was saved\n", ""))
                self.assertTrue(job.within_limit(lambda: not any(map(job.lives, pids))), "processes are left")
                self.assertFalse(self.runs.exists())

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_signal_to_one_rank_that_decodes(self):
        # Each rank decodes every image. The other rank is behind or ahead, and must end too.
        png = job.png(32, 32, bytes(i * i % 251 % 16 for i in range(3072)))
        for name in ("cat", "dog"):
            (self.folder / "many" / name).mkdir(parents=True)
            (self.folder / "many" / name / "0.png").write_bytes(png)
            for i in range(1, 20000):
                os.link(self.folder / "many" / name / "0.png", self.folder / "many" / name / f"{i}.png")
        process = self.start(job.train(2, *job.TINY, "--epochs", "100000", "--data", "many"))
        self.assertTrue(self.wait_for(process, lambda: any(map(catches_sigterm, job.trainings(process)[-1:]))))
        time.sleep(0.5)  # within the decoding, which takes about a second; another time gives the same result
        os.kill(job.trainings(process)[-1], signal.SIGTERM)
        result = self.finish(process)
        self.assertIn(result.code, job.interrupted(2), result.err)
        self.assertEqual(result.err, "")

    def test_signal_before_the_first_step(self):
        for program in ("train_digits", "train_digits_angles"):
            process = self.start([str(job.BUILD / program), "--epochs", "1000", "--run-name", program])
            self.assertTrue(self.wait_for(process, lambda: catches_sigterm(process.pid)))
            process.send_signal(signal.SIGTERM)
            out = self.expect_end(process, 75)
            self.assertRegex(out, "stopped (while loading data|after step)")

    def test_stopped_in_a_test(self):
        # A test takes many times as long as a step. A stop request ends it, and the resumed run repeats it.
        records = job.sample_records("train")
        data = self.folder / "data"
        data.mkdir()
        for name, images in (("train", records[:100]), ("test", records)):
            (data / f"{name}.bin").write_bytes(job.cifar_file(images))
        options = ["--data", str(data), "--width", "32", "--depth", "2", "--epochs", "2", "--validate-every", "1",
                   "--threads", "1"]
        for ranks in job.rank_counts(1, 2):
            # Two ranks have different numbers of parts of a mini-batch.
            options += ["--test-views"] if ranks == 1 else ["--no-test-views", "--workers", "3"]
            whole = self.train(ranks, f"whole-{ranks}", *options)
            lines = (whole / "metrics.jsonl").read_text().splitlines()
            tests = [i for i, line in enumerate(lines) if '"test_loss"' in line]
            self.assertEqual(tests, [1, 3, 5, 7, 8][:len(lines) - 4])  # of steps 1 and 3, of both epochs, of six views
            run = self.runs / f"stopped-{ranks}"
            seen = lambda: (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
            for i, test in enumerate(tests):
                process = self.start(job.train(ranks, *(["--resume"] if i else options), "--run-name", run.name))
                self.assertTrue(self.wait_for(process, lambda: len(seen()) >= test))
                process.send_signal(signal.SIGTERM) if ranks == 1 else (run / "stop").touch()
                out = self.expect_end(process, 75 if ranks == 1 else 0)
                self.assertEqual(len(seen()), test)
                self.assertIn(f"stopped after step {checkpoints(run)[-1]};", out)
                self.assertEqual(job.report(run)["runs"][0]["state"], "stopped")
            self.assertIn("done after step 4;", self.resume(ranks, run))
            self.assert_same(run, whole)
            for name in ("model-best.safetensors", "checkpoint/step-00000004.safetensors"):
                self.assertEqual((run / name).read_bytes()[-1000:], (whole / name).read_bytes()[-1000:])
            self.assertEqual(seen()[8:], lines[8:])  # of six views

    def test_closed_pipe(self):
        # The reader of a pipe ends, as in `train_cifar | head`.
        run = self.runs / "pipe"
        process = self.start(job.train(1, *OPTIONS, "--epochs", "100000", "--run-name", run.name))
        self.assertTrue(self.wait_for(process, lambda: checkpoints(run)))  # a stop before the first step logs none
        process.stdout.close()
        process.stdout = None
        self.assertEqual(self.finish(process, 75).err, "")
        self.assertEqual(job.report(run)["runs"][0]["state"], "stopped")
        self.assertEqual(checkpoints(run)[-1], len(job.step_lines(run)))

    def test_ignored_closed_pipe(self):
        # Service managers start programs that ignore SIGPIPE.
        ignoring = ["sh", "-c", 'trap "" PIPE; exec "$@"', "sh"]
        run = self.runs / "ignored"
        process = self.start([*ignoring, *job.train(1, *OPTIONS, "--epochs", "100000", "--run-name", run.name)])
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        # Five epochs, each with a line of output
        self.assertTrue(self.wait_for(process, lambda: checkpoints(run) and checkpoints(run)[-1] > LAST_STEP))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process, 75).err, "")

    @unittest.skipUnless(shutil.which("nohup"), "no nohup")
    def test_nohup(self):
        # nohup starts a program that ignores SIGHUP.
        run = self.runs / "nohup"
        process = self.start(["nohup", *job.train(1, *OPTIONS, "--epochs", "100000", "--run-name", run.name)])
        self.assertTrue(self.wait_for(process, lambda: checkpoints(run)))
        process.send_signal(signal.SIGHUP)
        before = len(job.step_lines(run))
        self.assertTrue(self.wait_for(process, lambda: len(job.step_lines(run)) > before + 20))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process).code, 75)

    def test_kill_between_the_last_checkpoint_and_the_model(self):
        run = self.train(1, "last", *job.TINY, "--steps", "4", "--checkpoint-every", "4", "--average", "0.9")
        model = run / "model.safetensors"
        content = model.read_bytes()
        model.unlink()  # as if a kill had come before it was written
        self.resume(1, run)
        self.assertEqual(model.read_bytes(), content)

    def test_running_run_is_left_alone(self):
        run = self.runs / "live"
        process = self.start(job.train(1, *OPTIONS, "--epochs", "100000", "--run-name", run.name))
        self.assertTrue(self.wait_for(process, lambda: checkpoints(run)))
        temporary = run / "report.html.tmp-1"
        temporary.touch()
        for ranks in job.rank_counts(1, 2):
            self.refuse(job.train(ranks, "--resume", "--run-name", run.name), "another process trains")
        self.assertTrue(temporary.exists())
        (run / "stop").touch()
        self.assertEqual(self.finish(process)[::2], (0, ""))

    def test_renamed_folder(self):
        # The training ends at once, writes nothing under the old name, and resumes under the new one.
        for ranks in job.rank_counts(1, 2):
            run, other = self.runs / f"old-{ranks}", self.runs / f"new-{ranks}"
            process = self.start(job.train(ranks, *OPTIONS, "--epochs", "100000", "--run-name", run.name))
            self.assertTrue(self.wait_for(process, lambda: checkpoints(run)))
            run.rename(other)
            result = self.finish(process)
            self.assertNotEqual(result.code, 0)
            self.assertRegex(result.err, rf"^error: .*{run.name}.*(renamed|No such file).*\n")
            self.assertFalse(run.exists())
            self.succeed(job.train(ranks, "--resume", "--run-name", other.name, "--steps", "1"))

    def test_stop_request_ends_within_two_steps(self):
        for ranks in job.rank_counts(1, 2):
            run = self.runs / f"asked-{ranks}"
            process = self.start(job.train(ranks, *job.TINY, "--epochs", "100000", "--run-name", run.name))
            self.assertTrue(self.wait_for(process, lambda: checkpoints(run)))
            (run / "stop").touch()
            seen = len(job.step_lines(run))  # the next step may have checked before
            self.assertEqual(self.finish(process)[::2], (0, ""))
            self.assertLessEqual(len(job.step_lines(run)), seen + 2)

    def damaged_and_resumed(self, whole):
        run, _ = self.interrupt(1, "damaged", job.kill_job)
        hopeless = self.runs / "hopeless"
        shutil.copytree(run, hopeless)

        # A kill during a write leaves temporary files of this or a later step. The newest file is truncated.
        newest = newest_checkpoint(run)
        content = newest.read_bytes()
        leftover = newest.with_name("step-00000099.safetensors.tmp-123")
        leftover.write_bytes(content[:1000])
        newest.write_bytes(content[:-1])
        out = self.resume(1, run)
        warnings = [line for line in out.splitlines() if line.startswith("warning:")]
        self.assertEqual(len(warnings), 1, out)
        self.assertIn(newest.name, warnings[0])
        self.assert_same(run, whole)
        self.assertFalse(leftover.exists())

        # Without a valid checkpoint, resume is an error and changes nothing.
        for path in (hopeless / "checkpoint").iterdir():
            path.write_bytes(path.read_bytes()[:-1])
        def files():
            return {path: path.read_bytes() for path in hopeless.rglob("*") if path.is_file() and path.name != "owner.json"}

        before = files()
        self.refuse(job.train(1, "--resume", "--run-name", "hopeless"), "can be loaded", newest.name)
        self.assertEqual(files(), before)


job.main()
