# Tests many trainings in one job: a sweep, with failed and stopped trials and killed jobs.
import csv
import json
import os
import signal
import tarfile
import unittest

import job
from job import program

TINY = ["--width", "4", "--batch-size", "50"]
ENDLESS = ["--epochs", "100000", "--checkpoint-every", "5"]


def sweep(ranks, *options):
    return program(ranks, "train_cifar", "sweep", *options)


def results(run):
    with open(run / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def states(run):
    return [row["state"] for row in results(run)]


def metrics(run):
    """Returns the metrics of the last epoch of each trial, and its state. A resume must not change them."""
    return [{k: row[k] for k in ("state", "epoch", "train_loss", "validation_accuracy")} for row in results(run)]


def tested(run):
    """Returns the number of test images of the best trial."""
    return sum(int(row["images"]) for row in csv.DictReader((run / "confusion.csv").read_text().splitlines()))


class Sweep(job.JobTest):
    def sweep(self, name, *options):
        """Runs a sweep and returns its folder."""
        self.succeed(sweep(1, "--run-name", name, *options))
        return self.runs / name

    def test_failed_trial_is_a_row(self):
        test_set = self.write_sample() / "test.bin"
        # Trial 2 fails with a loss that is not finite, and trial 3 with a mini-batch larger than the set.
        for ranks in job.rank_counts(1, 2):
            run = self.runs / f"fail-{ranks}"
            out = self.succeed(sweep(ranks, "--run-name", run.name, "--width", "4", "--epochs", "2",
                                       "--grid", "lr=0.05,1e30", "--grid", "batch-size=50,5000", "--depth", "1",
                                       "--partial-batch", "discard"))
            self.assertEqual(states(run), ["finished", "failed", "failed", "failed"])
            self.assertIn("training images for a mini-batch", results(run)[1]["note"])
            self.assertIn("expected finite values", results(run)[2]["note"])
            best = json.loads((run / "best.json").read_text())
            self.assertEqual(best["trial"], 1)
            self.assertEqual(best["validation_accuracy"], float(results(run)[0]["validation_accuracy"]))
            self.assertIn("best: trial 1", out)

            # The trial equals train_cifar with these options bit for bit.
            alone = self.train(1, f"alone-{ranks}", "--width", "4", "--epochs", "2", "--lr", "0.05", "--batch-size",
                               "50", "--depth", "1", "--validation", "0.1")
            self.assertEqual(job.step_lines(run / "trials" / "1"), job.step_lines(alone))
            self.assertEqual(len(job.step_lines(alone)), 2 * 18)  # 900 of the 1000 images

            # The confusion matrix has all test images and agrees with predict.
            rows = list(csv.reader((run / "confusion.csv").read_text().splitlines()))
            self.assertEqual([int(row[11]) for row in rows[1:]], [20] * 10)
            right = sum(int(rows[i][i]) for i in range(1, 11))
            self.assertAlmostEqual(best["test_accuracy"], right / 200)
            seen = self.succeed([str(job.BUILD / "predict"), str(run / "trials" / "1"), str(test_set),
                                 "--quiet"])
            self.assertIn(f"({right} of 200)", seen)

    @unittest.skipIf(job.SANITIZED, "sanitizers need all addresses")
    def test_trial_without_memory_is_a_row(self):
        run = self.runs / "memory"
        self.succeed(["sh", "-c", 'ulimit -v 3000000 && exec "$@"', "sh", *sweep(
            1, "--run-name", run.name, "--depth", "1", "--threads", "1", "--batch-size", "50", "--steps",
            "18", "--grid", "width=4,3000,5")])
        self.assertEqual(states(run), ["finished", "failed", "finished"])
        self.assertRegex(results(run)[1]["note"], "memory: expected (at most|[0-9]+ bytes)")

    def test_stop_rules(self):
        run = self.sweep("rules", *TINY, "--epochs", "3", "--depth", "1", "--grid", "lr=0.05,1e-9", "--stop-below",
                         "12", "--stop-below-after", "2")
        self.assertEqual(states(run), ["finished", "stopped"])
        self.assertEqual([results(run)[i]["epoch"] for i in (0, 1)], ["3", "2"])
        run = self.sweep("target", *TINY, "--epochs", "50", "--depth", "1", "--grid", "lr=0.05", "--target", "12")
        self.assertEqual(states(run), ["stopped"])
        self.assertIn("reached 12 %", results(run)[0]["note"])
        self.assertGreaterEqual(float(results(run)[0]["validation_accuracy"]), 0.12)
        # A trial that breaks a rule in its last epoch has nothing left to stop.
        run = self.sweep("last", *TINY, "--epochs", "1", "--depth", "1", "--grid", "lr=1e-9", "--stop-below", "99")
        self.assertEqual((states(run), results(run)[0]["note"]), (["finished"], ""))

    def test_one_good_trial_ends_the_sweep(self):
        # Trial 2 is the good one. Trial 1 runs beside it, on several ranks, or has ended; trial 3 never begins.
        for ranks in job.rank_counts(1, 2):
            run = self.runs / f"until-{ranks}"
            command = ["--run-name", run.name, *TINY, "--depth", "1", "--epochs", "1" if ranks == 1 else "1000",
                       "--grid", "lr=1e-9,0.05,0.04"]
            first = self.succeed(program(ranks, "train_cifar", "sweep", *command, "--until", "validation_accuracy=12"))
            end = "trial 2 has ended the sweep: reached validation_accuracy 12 %"
            self.assertEqual(first.count(end), 1)
            self.assertIn("best: trial 2", first)
            rows = results(run)
            self.assertEqual([row["state"] for row in rows],
                             ["finished", "finished", "queued"] if ranks == 1 else ["queued", "stopped", "queued"])
            self.assertFalse((run / "trials" / "3").exists())
            # A resumed sweep ends at once, also if the journal is lost.
            steps = len(job.step_lines(run / "trials" / "1"))
            for _ in range(2):
                out = self.succeed(program(ranks, "train_cifar", "sweep", "--run-name", run.name, "--resume"))
                self.assertEqual(out.count(end), 1)
                self.assertIn("best: trial 2", out)
                self.assertFalse((run / "trials" / "3").exists())
                self.assertEqual(len(job.step_lines(run / "trials" / "1")), steps)
                (run / "journal.jsonl").unlink(missing_ok=True)
            # With another value, it continues.
            more = ["--until", "train_loss=100"] if ranks > 1 else ["--until", ""]
            out = self.succeed(program(ranks, "train_cifar", "sweep", "--run-name", run.name, "--resume", *more))
            self.assertEqual("has ended the sweep: reached train_loss 100" in out, ranks > 1)
            if ranks == 1:
                self.assertEqual(states(run), ["finished"] * 3)
        for until, error in (("validation_accuracy", "expected METRIC=VALUE"), ("validation_loss=x", "expected METRIC"),
                             ("test_accuracy=3", "--until: expected one of validation_accuracy")):
            self.refuse(sweep(1, "--grid", "seed=1:2", *TINY, "--until", until), error)

    def test_resumed_with_other_data(self):
        sample = self.write_sample(200)
        command = program(1, "train_cifar", "sweep", "--run-name", "run", *TINY, "--epochs", "1", "--depth", "1",
                          "--data", str(sample))
        resume = program(1, "train_cifar", "sweep", "--run-name", "run", "--resume")
        run = self.runs / "run"
        self.succeed([*command, "--grid", "lr=0.05"])
        model = run / "trials" / "1" / "model.safetensors"
        (self.folder / "first.safetensors").write_bytes(model.read_bytes())
        self.succeed([*command[:-2], "--data", str(sample), "--run-name", "init", "--init", "first.safetensors",
                      "--grid", "lr=0.05,0.04"])
        before = (run / "journal.jsonl").read_text()
        for name, what in (("train.bin", "training set"), ("test.bin", "test set")):
            path = sample / name
            whole = path.read_bytes()
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            self.refuse(resume, f"--resume: expected the {what} of trial 1 as when", "checksum", "start a new run")
            path.write_bytes(whole)
        self.assertEqual((run / "journal.jsonl").read_text(), before)
        for options in (["--batch-size", "20"], ["--width", "5"]):
            self.refuse([*resume, *options], f"--resume: expected {options[0]} ", " as when ", f"got {options[1]}; omit the option")
        # The same data elsewhere are the same.
        sample.rename(self.folder / "elsewhere")
        self.succeed([*resume, "--data", "elsewhere"])
        (self.folder / "elsewhere").rename(sample)

        # The file of --init may be gone, but it must not be another one.
        resume[resume.index("run")] = "init"
        initial = self.folder / "first.safetensors"
        initial.write_bytes((self.runs / "init" / "trials" / "1" / "model.safetensors").read_bytes())
        self.refuse(resume, "--resume: expected the --init file of trial 1 as when", "start a new run")
        initial.unlink()
        self.succeed(resume)
        # An older version stored no fingerprints.
        config = self.runs / "init" / "config.json"
        stored = json.loads(config.read_text())
        self.assertEqual(len(stored.pop("fingerprints")), 4)
        config.write_text(json.dumps(stored))
        self.succeed(resume)

    def test_rules_that_compare_trials(self):
        options = [*TINY, "--depth", "1", "--epochs", "2"]
        for rule, rates, note in (("halving", "0.05,0.04,0.03,1e-9", "not in the better half of 4 trials after epoch 1"),
                                  ("median", "0.05,0.04,0.03,1e-9", "worse than the median of 3 others after epoch 1")):
            run = self.runs / rule
            command = sweep(1, "--run-name", run.name, *options, "--grid", f"lr={rates}", "--stop-below", rule)
            self.assertIn(f"({note})", " ".join(self.succeed(command).split()))
            self.assertEqual((states(run)[0], states(run)[-1]), ("finished", "stopped"))
            self.assertEqual((results(run)[-1]["epoch"], results(run)[-1]["note"]), ("1", note))
            self.assertEqual(job.report(run)["runs"][-1]["note"], note)
            # A resumed sweep knows the reasons, and compares new trials with the old ones.
            self.succeed([*command, "--resume"])
            self.assertEqual(results(run)[-1]["note"], note + "; done before")
        self.refuse(sweep(1, *options, "--grid", "lr=0.05", "--stop-below", "mean"),
                    "--stop-below: expected a number of at least 0, median or halving")

    def test_random_trials_repeat_and_resume(self):
        def settings(run):
            return [(row["lr"], row["width"]) for row in results(run)]

        command = ["--data", str(self.write_sample(200)), "--batch-size", "50", "--depth", "1", "--epochs", "1", "--grid",
                   "lr=log:0.01:0.1", "--grid", "width=choice:4,6", "--seed", "5"]
        ranks = job.rank_counts(1, 2)[-1]
        for name, n in (("once", ranks), ("again", 1)):
            self.succeed(sweep(n, "--run-name", name, *command, "--random", "3"))
        once = settings(self.runs / "once")
        self.assertEqual(once, settings(self.runs / "again"))
        self.assertEqual(len(set(once)), 3)
        for rate, width in once:
            self.assertTrue(0.01 <= float(rate) <= 0.1 and width in ("4", "6"), once)
        self.succeed(sweep(1, "--run-name", "once", "--resume", "--random", "4"))
        self.assertEqual(settings(self.runs / "once")[:3], once)
        self.assertEqual([row["note"] for row in results(self.runs / "once")], ["done before"] * 3 + [""])
        # The trials that were appended stay, and the whole command with a larger number appends one, too.
        self.succeed(sweep(1, "--run-name", "once", "--resume"))
        self.assertEqual([row["note"] for row in results(self.runs / "once")], ["done before"] * 4)
        self.succeed(sweep(1, "--run-name", "once", "--resume", *command, "--random", "5"))
        self.assertEqual([row["note"] for row in results(self.runs / "once")], ["done before"] * 4 + [""])
        self.refuse(sweep(1, *command), "expected values of lr, got a range")
        self.refuse(sweep(1, "--random", "3"), "expected --table or --grid")

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_stopped_trial_makes_room_and_killed_job_resumes(self):
        run = self.runs / "control"
        process = self.start(sweep(2, "--run-name", run.name, *TINY, *ENDLESS, "--grid",
                                     "depth=1,1,1,2"))

        def begun(trial):
            return lambda: (run / "trials" / str(trial) / "checkpoint").is_dir()

        self.assertTrue(self.wait_for(process, lambda: begun(1)() and begun(2)()))
        self.assertFalse((run / "trials" / "3").exists())  # two ranks run two trials
        (run / "control").write_text("stop 2\n")
        self.assertTrue(self.wait_for(process, begun(3)))  # on the free rank
        (run / "control").write_text("stop 1\n")  # in place of the first line
        self.assertTrue(self.wait_for(process, begun(4)))
        self.assertTrue(self.wait_for(process, lambda: states(run) == ["stopped", "stopped", "running", "running"]))
        job.kill_job(process)
        process.communicate()  # closes its pipes

        # A stopped trial stays stopped, and the others resume. Trials 3 and 4 are then stopped too.
        steps = {i: len(job.step_lines(run / "trials" / str(i))) for i in (1, 2)}
        (run / "control").write_text("stop 3\nstop 4\n")
        out = self.succeed(sweep(2, "--run-name", run.name, "--resume"))
        self.assertEqual(states(run), ["stopped"] * 4, out)
        self.assertEqual(out.partition("best first")[0].count("done before"), 2, out)
        self.assertEqual(steps, {i: len(job.step_lines(run / "trials" / str(i))) for i in (1, 2)})

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_stop_request(self):
        for to_rank in (None, 1):  # the whole job, or one rank of it
            run = self.runs / f"asked-{to_rank}"
            process = self.start(sweep(2, "--run-name", run.name, *TINY, *ENDLESS, "--grid", "seed=1:200"))
            self.assertTrue(self.wait_for(process, lambda: (run / "trials" / "2" / "checkpoint").is_dir()))
            os.kill(process.pid if to_rank is None else job.trainings(process)[to_rank], signal.SIGTERM)
            result = self.finish(process)
            self.assertIn(result.code, job.interrupted(2 if to_rank is None else 1), result.err)
            self.assertLessEqual(result.out.count("  queued"), 2)  # nothing is done for those that have not begun
            self.assertIn("continue with --resume", result.out)
            self.assertNotIn("finished", (run / "journal.jsonl").read_text() if (run / "journal.jsonl").exists() else "")
            self.assertEqual(set(states(run)), {"queued"})

    def test_stop_by_a_person(self):
        # Ctrl-C and a file "stop" end the sweep, which still tests the best trial so far.
        for name in ("file", "signal"):
            run = self.runs / name
            process = self.start(sweep(1, "--run-name", name, *TINY, "--depth", "1", "--grid",
                                         "epochs=1,100000,1"))
            log = run / "trials" / "2" / "metrics.jsonl"
            self.assertTrue(self.wait_for(process, lambda: log.exists() and '{"epoch": 1' in log.read_text()))
            if name == "file":
                (run / "stop").touch()
            else:
                process.send_signal(signal.SIGINT)
            out = self.expect_end(process)
            self.assertIn("stopped; testing the best trial so far on the test set", out)
            best = json.loads((run / "best.json").read_text())
            self.assertRegex(out, rf"\nbest so far: trial {best['trial']} \(.*\), on the test set: acc ")
            self.assertTrue(out.endswith(f"stopped; continue with --resume; runs/{name}\n"), out)
            self.assertNotIn("trial 3", out)  # it has not begun
            self.assertEqual(job.report(run)["sweep"]["state"], "stopped")
            self.assertEqual(tested(run), 200)
        (run / "control").write_text("stop 2\n")
        self.succeed(sweep(1, "--run-name", name, "--resume"))
        self.assertEqual(states(run), ["finished", "stopped", "finished"])
        self.assertEqual(job.report(run)["sweep"]["state"], "done")

    def test_output_in_a_pipe(self):
        out = self.succeed(sweep(1, "--run-name", "piped", *TINY, "--epochs", "2",
                                   "--depth", "1", "--grid", "lr=0.05,0.01", "--grid", "seed=7"))
        watch, *trials = out.partition("\n\nbest first")[0].splitlines()
        self.assertRegex(watch, r"^watch: \S+/tools/monitor --runs runs$")
        self.assertIn("piped", self.succeed([*watch.split()[1:], "--text"]))
        value = r"validation acc \d+\.\d\d %"
        self.assertEqual(len(trials), 2, out)
        for i, rate in enumerate(("0.05", "0.01")):
            self.assertRegex(trials[i], rf"^trial {i + 1}  lr {rate}  finished  {value}  best: {value} of trial [12]$")

    def test_network_without_width(self):
        self.succeed(sweep(1, "--run-name", "resnets", "--net", "resnet20", "--grid", "lr=0.01,0.02",
                             "--epochs", "1", "--batch-size", "50", "--data", str(self.write_sample(100))))
        self.assertEqual(states(self.runs / "resnets"), ["finished"] * 2)

    def test_resume_of_finished_trials(self):
        start = self.train(1, "start", *job.TINY, "--steps", "0") / "model.safetensors"
        run = self.sweep("ended", *TINY, "--epochs", "2", "--depth", "1", "--grid", "lr=0.05,0.01", "--init",
                         str(start))
        ended, best = metrics(run), (run / "best.json").read_bytes()
        self.assertEqual([row["epoch"] for row in ended], ["2", "2"])

        def resume(*options):
            """Resumes in another folder."""
            (self.folder / "elsewhere").mkdir(exist_ok=True)
            command = sweep(1, "--resume", "--runs", "../runs", "--run-name", run.name, *options)
            out = self.succeed(["sh", "-c", 'cd elsewhere && exec "$@"', "sh", *command])
            self.assertEqual(metrics(run), ended, out)
            self.assertEqual(json.loads((run / "best.json").read_text())["trial"], json.loads(best)["trial"])
            return out.partition("best first")[0]

        checkpoints = {path: path.stat().st_mtime_ns for path in run.glob("trials/*/checkpoint/*")}
        self.assertEqual(resume().count("done before"), 2)
        # Stop rules do not change finished trials.
        self.assertEqual(resume("--target", "1", "--stop-below", "99").count("done before"), 2)
        # Nor do options that change nothing in the results.
        self.assertEqual(resume("--threads", "1", "--progress", "line").count("done before"), 2)
        self.refuse(sweep(1, "--resume", "--run-name", run.name, "--init", "x"), "--init", "--resume")
        # Without the journal, the folders of the trials show that they had ended.
        (run / "journal.jsonl").unlink()
        self.assertEqual(resume().count("done before"), 0)
        self.assertEqual(checkpoints, {path: path.stat().st_mtime_ns for path in run.glob("trials/*/checkpoint/*")})

    def test_signal_after_the_last_step(self):
        run = self.runs / "last"
        process = self.start(sweep(1, "--run-name", run.name, "--width", "16", "--batch-size", "450",
                                     "--epochs", "1", "--grid", "depth=1"))
        log = run / "trials" / "1" / "metrics.jsonl"
        self.assertTrue(self.wait_for(process, lambda: log.exists() and len(job.step_lines(log.parent)) == 2))
        os.kill(process.pid, signal.SIGTERM)
        self.finish(process)
        self.succeed(sweep(1, "--run-name", run.name, "--resume"))
        self.assertEqual([(row["state"], row["epoch"]) for row in metrics(run)], [("finished", "1")])
        self.assertEqual(json.loads((run / "best.json").read_text())["validation_accuracy"],
                         float(results(run)[0]["validation_accuracy"]))

    def test_signal_while_the_best_is_tested(self):
        run, sample = self.runs / "best", self.write_sample()
        model, loading, go = run / "trials" / "1" / "model.safetensors", self.folder / "loading", self.folder / "go"
        wait = f"if [ -e {model} ] && [ ! -e {go} ]; then touch {loading}; sleep 1000; fi"
        process = self.start(sweep(1, "--run-name", run.name, *TINY, "--epochs", "1", "--grid",
                                     "depth=1", "--data", f"pipe:{wait}; tar -cC {sample} ."))
        self.assertTrue(self.wait_for(process, loading.exists))
        process.send_signal(signal.SIGTERM)
        out = self.expect_end(process, 75)
        self.assertIn("continue with --resume", out)
        go.touch()
        self.succeed(sweep(1, "--run-name", run.name, "--resume"))
        self.assertTrue((run / "best.json").exists())

    def test_stopped_before_it_ends_another_epoch(self):
        run = self.runs / "resumed"
        process = self.start(sweep(1, "--run-name", run.name, *TINY, *ENDLESS, "--grid", "depth=1,1"))
        log = run / "trials" / "1" / "metrics.jsonl"
        self.assertTrue(self.wait_for(process, lambda: log.exists() and '{"epoch": 2' in log.read_text()))
        os.kill(process.pid, signal.SIGTERM)
        self.assertEqual(self.finish(process).code, 75)
        rows = results(run)
        self.assertEqual([(row["state"], row["note"]) for row in rows], [("queued", "")] * 2)
        (run / "control").write_text("stop 1\nstop 2\n")
        self.succeed(sweep(1, "--run-name", run.name, "--resume"))
        self.assertEqual([(row["state"], row["note"]) for row in results(run)], [("stopped", "on request")] * 2)
        self.assertGreaterEqual(int(results(run)[0]["epoch"]), int(rows[0]["epoch"]))

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_data_slower_than_the_deadline(self):
        run = self.runs / "slow"
        data = f"pipe:sleep 4; tar -cC {self.write_sample(200)} ."
        self.succeed(sweep(2, "--run-name", run.name, *TINY, "--epochs", "1", "--grid", "depth=1,1",
                             "--data", data), RG_DEADLINE_S="3")
        self.assertEqual(states(run), ["finished"] * 2)
        self.assertEqual(tested(run), 200)

    def test_folder_renamed_while_a_trial_loads(self):
        # Nothing is written under the old name, and the sweep resumes under the new one.
        sample = self.write_sample(200)
        for ranks in job.rank_counts(1, 2):
            run, other = self.runs / f"old-{ranks}", self.runs / f"new-{ranks}"
            go, loading = self.folder / f"go-{ranks}", self.folder / f"loading-{ranks}"
            wait = f"if [ -d {run} ]; then touch {loading}; until [ -e {go} ]; do sleep 0.02; done; fi"
            process = self.start(sweep(ranks, "--run-name", run.name, *TINY, "--epochs", "1", "--grid",
                                         "seed=1:3", "--data", f"pipe:{wait}; tar -cC {sample} ."))
            self.assertTrue(self.wait_for(process, loading.exists))
            run.rename(other)
            go.touch()
            result = self.finish(process)
            self.assertNotEqual(result.code, 0)
            self.assertRegex(result.err, f"error: .*{run.name}.*renamed")
            self.assertFalse(run.exists())
            self.succeed(sweep(ranks, "--run-name", other.name, "--resume"))
            self.assertEqual(states(other), ["finished"] * 3)

    def test_test_data_of_the_best(self):
        # Only the second trial ends an epoch within these steps, so it is the best.
        images = job.sample_records("train")
        ships = [record for record in images if record[0] == 8]
        for name, train, test in (("all", images, images[:30]), ("ships", ships, ships[:7])):
            (self.folder / name).mkdir()
            (self.folder / name / "train.bin").write_bytes(job.cifar_file(train))
            (self.folder / name / "test.bin").write_bytes(job.cifar_file(test))
        with tarfile.open(self.folder / "ships.tar", "w") as tar:
            tar.add(self.folder / "ships", "ships")
        run = self.sweep("data", "--width", "4", "--depth", "1", "--batch-size", "10", "--steps", "18", "--grid",
                         "data=all,pipe:cat ships.tar")
        self.assertEqual([row["state"] for row in results(run)], ["finished"] * 2)
        self.assertEqual((json.loads((run / "best.json").read_text())["trial"], tested(run)), (2, 7))

    def test_model_belongs_to_the_accuracy(self):
        # An epoch has 18 steps. The saved model is the one of the last epoch, whose accuracy is known.
        run = self.sweep("model", *TINY, "--grid", "steps=17:20", "--depth", "1")
        short, whole, *longer = [(run / "trials" / str(i) / "model.safetensors").read_bytes() for i in (1, 2, 3, 4)]
        self.assertEqual(longer, [whole] * 2)
        self.assertNotEqual(short, whole)
        self.assertEqual([row["epoch"] for row in results(run)], ["", "1", "1", "1"])

    def test_tables_and_ranks(self):
        table = self.folder / "table.csv"
        data = ["--data", str(self.write_sample(200))]
        table.write_text('lr,augment\n0.05,"flip,translate"\n0.01,\n1e30,none\n')
        for ranks, mode in ((1, []), (2, []), (2, ["--no-at-once"]), (4, ["--ranks-per-trial", "2"])):
            if ranks not in job.rank_counts(1, 2, 4):
                continue
            run = self.runs / f"table-{ranks}-{len(mode)}-{'-'.join(mode)}"
            out = self.succeed(sweep(ranks, "--run-name", run.name, "--table", str(table), "--grid",
                                       "depth=1:2", *mode, *TINY, *data, "--epochs", "1"))
            self.assertEqual(states(run), ["finished"] * 4 + ["failed"] * 2, out)
            self.assertEqual([row["depth"] for row in results(run)], ["1", "2"] * 3)
            self.assertEqual(results(run)[0]["augment"], "flip,translate")
            self.assertEqual(json.loads((run / "trials" / "1" / "config.json").read_text())["ranks"],
                             2 if mode else 1)
            # A repetition runs only the failed trials.
            again = self.succeed(sweep(ranks, "--run-name", run.name, "--resume"))
            self.assertEqual(again.count("done before"), 4 * 2, again)  # while it runs, and at the end
        # You may append trials to a table. An edited table is another sweep.
        run = ["--run-name", "table", "--table", str(table)]
        table.write_text("lr\n0.05\n")
        self.succeed(sweep(1, *run, *TINY, "--steps", "1"))
        table.write_text("lr\n0.05\n0.01\n")
        self.succeed(sweep(1, *run, "--resume"))
        self.assertEqual(states(self.runs / "table"), ["finished"] * 2)
        for rows, got in (("0.05\n0.02\n", "lr 0.02"), ("0.05\n", "got none")):
            table.write_text("lr\n" + rows)
            self.refuse(sweep(1, *run, "--resume"), "trial 2", "lr 0.01", got)

    def test_digits(self):
        for name, angles in (("train_digits", []), ("train_digits_angles", ["validation_angle_rmse"])):
            digits = ["--data", "digits", "--epochs", "2", "--batch-size", "16"]
            if not angles:
                self.succeed([str(job.BUILD / "make_digits"), "digits", "--per-class", "20"])
            for ranks in job.rank_counts(1, 2):
                run = self.runs / f"{name}-{ranks}"
                self.succeed(program(ranks, name, "sweep", "--run-name", run.name, *digits, "--grid",
                                     "accelerate=true,false", "--grid", "lr=0.01,1e30"))
                self.assertEqual(states(run), ["finished", "failed"] * 2)
                for row in results(run)[::2]:
                    for metric in ("validation_accuracy", "train_loss", *angles):
                        self.assertGreaterEqual(float(row[metric]), 0)
                self.assertEqual(len(job.step_lines(run / "trials" / "1")), 2 * (160 // 16))
            # A rule takes effect at the end of the epoch, before another step.
            run = self.runs / f"{name}-target"
            self.succeed(program(1, name, "sweep", "--run-name", run.name, *digits, "--epochs", "50", "--grid",
                                 "lr=0.01", "--stop-below", "100", "--stop-below-after", "2"))
            self.assertEqual(states(run), ["stopped"])
            self.assertEqual(len(job.step_lines(run / "trials" / "1")), 2 * (160 // 16))

    def test_ranked_by_validation_accuracy_alone(self):
        self.succeed([str(job.BUILD / "make_digits"), "digits", "--per-class", "20"])
        for name, options in (("train_cifar", TINY), ("train_digits", ["--data", "digits", "--batch-size", "16"]),
                              ("train_digits_angles", ["--data", "digits", "--batch-size", "16"])):
            run = self.runs / name
            command = program(1, name, "sweep", *options, "--epochs", "1")
            out = self.succeed([*command, "--run-name", name, "--grid", "lr=0.001,0.05"])
            rows = results(run)
            self.assertFalse([column for column in rows[0] if column.startswith("test_")])
            best = max(rows, key=lambda row: float(row["validation_accuracy"]))  # the first of equal ones
            ranked = out.partition("best first, by validation_accuracy:\n")[2]
            self.assertTrue(ranked.startswith(f"trial {best['trial']} "), out)
            self.assertTrue(ranked.endswith(f"\nresults: runs/{name}/results.csv\nreport: runs/{name}/report.html\n"), out)
            page = job.report(run)["sweep"]
            self.assertEqual(page["best"], best["trial"])
            self.assertIn("ranked by validation_accuracy", page["summary"])
            # Without a validation set, trials could only be ranked by the test set.
            for zero in (["--validation", "0", "--grid", "lr=0.05"], ["--grid", "validation=0.1,0"]):
                self.refuse([*command, "--run-name", "zero", *zero], "--validation above 0", f"on all images, use {name}")
        self.refuse(sweep(1, "--run-name", "zero", "--validation", "0", "--grid", "depth=1"), "--validation above 0")
        self.assertFalse((self.runs / "zero").exists())

    def test_error_of_all_trials_is_printed_once(self):
        self.succeed([str(job.BUILD / "make_digits"), "digits", "--per-class", "4"])
        for name in ("cat", "dog"):
            for i in range(4):
                pixels = bytes([i + (name == "dog") * 4]) * 3072  # others in each image
                job.write_png(self.folder / "images" / name / f"{i}.png", 32, 32, pixels)
        for ranks in job.rank_counts(1, 2):
            for options, *words in ((["--data", "nowhere", "--grid", "depth=1"], "expected a folder, got nothing", "nowhere"),
                                    (["--grid", "data=images,nowhere"], "nowhere"),
                                    (["--init", "never.safetensors", "--grid", "depth=1"], "never.safetensors")):
                self.refuse(sweep(ranks, *TINY, *options), *words)
            for name in ("train_digits", "train_digits_angles"):
                self.refuse(program(ranks, name, "sweep", "--data", "images", "--grid", "seed=1:4"),
                            "[28 28 1]", "[32 32 1]")
            (self.folder / "digits" / "angles.csv").rename(self.folder / "angles.csv")
            self.refuse(program(ranks, "train_digits_angles", "sweep", "--data", "digits", "--grid",
                                "seed=1:4"), "angles.csv")
            (self.folder / "angles.csv").rename(self.folder / "digits" / "angles.csv")
        self.assertFalse(self.runs.exists())

    def test_images_in_other_formats(self):
        for i in range(40):
            path = self.folder / "set" / ("cat", "dog")[i % 2] / f"{i}.png"
            job.write_png(path, 32, 32, bytes([i]) * 3072)
        path.with_suffix(".gif").write_bytes(b"GIF89a")
        command = sweep(1, "--run-name", "set", *TINY, "--data", "set", "--batch-size", "4", "--epochs",
                          "1", "--grid", "seed=1,2")
        self.refuse(command, "got 1 other image", str(path.with_suffix(".gif").relative_to(self.folder)), "GIF",
                    "mogrify", "--skip-other-images")
        result = self.run_command([*command, "--skip-other-images"])
        self.assertEqual((result.code, result.err), (0, "warning: 1 file is left out: set/dog/39.gif (GIF)\n"))
        self.assertEqual(states(self.runs / "set"), ["finished"] * 2)
        self.assertEqual(tested(self.runs / "set"), 8)

    def test_mistakes(self):
        self.refuse(sweep(1, "--grid", "dept=1:4"), "unknown option --dept", "--depth")
        self.refuse(sweep(1, "--grid", "depth=4:1"), "ascending", "depth=4:1")
        self.refuse(sweep(1, "--grid", "depth=1:x"), "--depth", "an integer", '"1:x"')
        self.refuse(sweep(1, "--epoch", "3", "--grid", "depth=1"), "did you mean --epochs")
        self.refuse(sweep(1, "--ranks-per-trial", "2", "--grid", "depth=1"), "at most 1, the number of ranks")
        self.refuse(sweep(1, "--resume", "--run-name", "none"), "got no such folder")
        for option in ("run-name=a,b", "runs=a,b", "resume=true", "profile=true", "plan-dump=true,false", "help=true"):
            self.refuse(sweep(1, *TINY, "--grid", option), "train_cifar sweep: expected options for trials",
                        "--" + option.partition("=")[0], "(trial 1)")
        self.refuse(sweep(1, *TINY, "--profile", "--grid", "depth=1"), "got --profile (trial 1), which is for a single training")
        self.refuse(program(1, "train_digits_angles", "sweep", "--grid", "compare=false,true"),
                    "got --compare (trial 2)")
        self.refuse(sweep(1, *TINY, "--help=1", "--grid", "depth=1"), "expected --help alone")
        # An option that no trial can use here is one error before the first trial.
        for ranks in job.rank_counts(1, 2):
            self.refuse(sweep(ranks, *TINY, "--device", "cuda", "--grid", "depth=1"), "cuda", CUDA_VISIBLE_DEVICES="")
        example = self.refuse(sweep(1), "expected --table or --grid").rpartition("such as ")[2]
        self.succeed([*example.split(), *TINY, "--depth", "1", "--epochs", "1", "--runs", "example"])
        table = job.SAMPLE.parents[1] / "models" / "sweep" / "depths.csv"
        self.succeed(sweep(1, "--table", str(table), "--steps", "1", "--runs", "example"))
        (self.folder / "table.csv").write_text("lr\n0.1\n")
        self.refuse(sweep(1, "--table", "table.csv", "--grid", "lr=0.2"), "lr", "in both")
        (self.folder / "table.csv").write_text("lr\n" + "0.1\n" * 1001)
        self.refuse(sweep(1, "--table", "table.csv", "--grid", "seed=0:99"),
                    "expected at most 100000 trials, got 100100")
        self.assertFalse(self.runs.exists())


job.main()
