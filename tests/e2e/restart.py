# Tests tools/run.sh: a training whose ranks are killed at random, between steps and during writes, ends with the bits
# of an undisturbed one. run.sh does not restart jobs that must not be restarted.
#
# KILLS sets the number of kills, and SEED their times.
import csv
import os
import pathlib
import pty
import random
import signal
import subprocess
import sys
import time
import unittest

import job

RUN_SH = pathlib.Path(__file__).resolve().parents[2] / "tools" / "run.sh"
KILLS, SEED = int(os.environ.get("KILLS", "3")), int(os.environ.get("SEED", "1"))
RANKS = 2 if job.MPIEXEC else 1
OPTIONS = ["--width", "8", "--depth", "1", "--epochs", "4", "--checkpoint-every", "2", "--seed", "7"]
STEPS = 80


def run_sh(restarts, *command):
    return ["sh", str(RUN_SH), "--max-restarts", str(restarts), "--", *command]


def steps_done(run):
    try:
        return (run / "metrics.jsonl").read_text().count('"step"')
    except FileNotFoundError:
        return 0


def is_writing(run):
    try:
        return any(".tmp-" in name for name in os.listdir(run / "checkpoint"))
    except FileNotFoundError:
        return False


class Restart(job.JobTest):
    def kill_once(self, kind, name, chance):
        """Kills a training under run.sh once. Returns its folder, and True if the kill interrupted a write. Returns
        None if the training ended before."""
        run = self.runs / name
        process = self.start(run_sh(2, *job.train(RANKS, *OPTIONS, "--run-name", name)))
        after = chance.randrange(STEPS - 10)
        if not self.wait_for(process, lambda: steps_done(run) >= after):
            return None
        children = job.job_pids(process.pid)[1:]
        ranks = job.trainings(process)
        if not ranks:  # the training has just ended
            self.finish(process)
            return None
        if kind == "write" and not self.wait_for(process, lambda: is_writing(run)):
            return None
        if kind != "write":
            time.sleep(chance.random() * 0.03)
        job.kill([chance.choice(ranks)] if kind == "rank" else children)
        cut = is_writing(run)
        result = self.finish(process, 0)
        return (run, cut) if "restart 1 of 2" in result.err else None

    def test_kills(self):
        chance = random.Random(SEED)
        whole = self.train(RANKS, "whole", *OPTIONS)
        self.assertEqual(len(job.step_lines(whole)), STEPS)
        done, cuts = {"rank": 0, "all": 0, "write": 0}, 0
        begin = time.monotonic()
        for i in range(KILLS):
            kind = list(done)[i % 3]
            for attempt in range(5):
                killed = self.kill_once(kind, f"{kind}-{i}-{attempt}", chance)
                if killed:
                    break
            self.assertTrue(killed, "5 trainings ended before they could be killed")
            run, cut = killed
            self.assert_same_training(run, whole)
            self.assertEqual(job.epoch_lines(run), job.epoch_lines(whole), run)
            done[kind] += 1
            cuts += cut
        print(f"{KILLS} of {KILLS} killed trainings on {RANKS} ranks ended with the same bits: {done}, of which {cuts} "
              f"left a checkpoint half written; {time.monotonic() - begin:.0f} s", flush=True)

    @unittest.skipUnless(job.is_mpich(), "no mpiexec of MPICH")
    def test_elastic(self):
        """Ranks are killed while machines come and go: the training ends with the bits of an undisturbed one."""
        chance = random.Random(SEED)
        options = [*OPTIONS, "--epochs", "100000", "--workers", "4", "--threads", "1"]
        there = {name: self.folder / name for name in "ab"}  # files that exist while the machine answers
        (self.folder / "answers").write_text('[ -e "$1" ]')
        (self.folder / "hosts").write_text("localhost:2 # always there\na\n\nb:1\n")
        run = self.runs / "elastic"
        # All "machines" are this one.
        command = [job.MPIEXEC, "-launcher", "fork", *job.train(1, *options, "--run-name", run.name)]
        process = self.start(["sh", str(RUN_SH), "--max-restarts", str(KILLS), "--elastic", "hosts", "--min-ranks", "2",
                              "--", *command], RG_SSH="sh answers", RG_ASK_S="0.1",
                             RG_DEADLINE_S="20")  # if a rank dies while the job ends, the others wait in MPI_Finalize
        sizes, kills = set(), 0
        while kills < KILLS:
            steps = steps_done(run) + 5
            self.assertTrue(self.wait_for(process, lambda: steps_done(run) >= steps))
            for path in there.values():
                path.touch() if chance.random() < 0.5 else path.unlink(missing_ok=True)
            time.sleep(chance.random() * 0.3)  # machines that have come may be used now, or after the kill
            ranks, steps = job.trainings(process), steps_done(run) + 2
            # If a rank dies within MPI_Init, mpiexec of MPICH 4.0.2 waits forever for those on other machines.
            self.assertTrue(self.wait_for(process, lambda: steps_done(run) >= steps))
            if not ranks or ranks != job.trainings(process):
                continue  # it restarts
            sizes.add(len(ranks))
            job.kill([chance.choice(ranks)])
            kills += self.wait_for(process, lambda: not set(ranks) & set(job.job_pids(process.pid)))
        steps = steps_done(run) + 5
        self.assertTrue(self.wait_for(process, lambda: steps_done(run) >= steps))
        (run / "stop").touch()
        result = self.finish(process, 0)
        steps = len(job.step_lines(run))
        whole = self.train(1, "whole", *options, "--steps", str(steps))
        self.assertEqual(job.step_lines(run), job.step_lines(whole))
        tensors = []
        for folder in (run, whole):  # the headers differ, because they have the options
            path = folder / "checkpoint" / f"step-{steps:08}.safetensors"
            tensors.append(path.read_bytes()[-job.tensor_header(path)[1]:])
        self.assertEqual(*tensors)
        self.assertLessEqual(sizes, {2, 3, 4})
        print(f"{KILLS} kills on {sizes} ranks, {result.err.count('more ranks can run')} times more ranks", flush=True)
        for words, wrong in (("no -n", ["-n", "2"]), ("at least 9 ranks", [])):
            result = self.run_command(["sh", str(RUN_SH), "--elastic", "hosts", "--min-ranks", "2" if wrong else "9",
                                       "--", job.MPIEXEC, *wrong, *job.train(1, *options)])
            self.assertEqual((result.code, words in result.err), (2, True), result.err)

    def test_killed_before_its_first_checkpoint(self):
        start = self.train(1, "start", *job.TINY, "--steps", "0", "--seed", "3")
        # 100 steps per epoch give time to kill it before the first epoch ends.
        options = [*job.TINY, "--batch-size", "10", "--epochs", "2", "--init", str(start / "model.safetensors")]
        whole = self.train(1, "whole", *options)
        for name, steps in (("early", 3), ("late", 103)):  # the second one begins with --init, and resumes without it
            process = self.start(run_sh(1, *job.train(1, *options, "--run-name", name)))
            saved = self.runs / name / "checkpoint"  # written while the second epoch begins
            self.assertTrue(self.wait_for(process, lambda: steps_done(self.runs / name) >= steps and (
                steps == 3 or list(saved.glob("step-*.safetensors")))))
            job.kill(job.job_pids(process.pid)[1:])
            result = self.finish(process, 0)
            self.assertIn("from its beginning" if steps == 3 else "from its last checkpoint", result.err)
            self.assertEqual((self.runs / name / "model.safetensors").read_bytes(),
                             (whole / "model.safetensors").read_bytes())

    def test_sweep(self):
        # A finished trial is not repeated, and a killed one continues.
        start = self.train(1, "start", *job.TINY, "--steps", "0") / "model.safetensors"
        command = [str(job.BUILD / "train_cifar"), "sweep", *job.TINY, "--batch-size", "50", "--grid", "epochs=1,10",
                   "--checkpoint-every", "1", "--init", str(start)]
        self.succeed([*command, "--run-name", "whole"])
        process = self.start(run_sh(1, *command, "--run-name", "killed"))
        whole, run = self.runs / "whole", self.runs / "killed"
        self.assertTrue(self.wait_for(process, lambda: (run / "journal.jsonl").exists() and
                                      list(run.glob("trials/2/checkpoint/step-*.safetensors"))))
        first = (run / "trials" / "1").stat().st_ino
        job.kill(job.job_pids(process.pid)[1:])
        result = self.finish(process, 0)
        self.assertIn("restart 1 of 1, with what had not ended", result.err)
        self.assertIn("done before", result.out)
        self.assertEqual((run / "trials" / "1").stat().st_ino, first)
        with open(run / "results.csv", newline="") as file:
            self.assertEqual([row["state"] for row in csv.DictReader(file)], ["finished", "finished"])
        for trial in ("1", "2"):
            self.assert_same_training(run / "trials" / trial, whole / "trials" / trial)

    def test_other_job_of_the_same_name(self):
        """Starts a job whose run another one makes meanwhile. It must fail, and leave this run as it is."""
        for name, end, code, said in (("fails", 'exec "$@"', 1, "fails exists already, of process "),
                                      ("crashes", "exit 3", 3, "after 1 restarts")):
            run = self.runs / name
            command = job.train(1, "--width", "32", "--depth", "2", "--batch-size", "2", "--run-name", name)
            wait = f"while [ ! -e {run}/config.json ]; do sleep 0.01; done; {end}"
            late = self.start(run_sh(1, "sh", "-c", wait, "sh", *command))
            self.assertTrue(self.wait_for(late, lambda: job.named(late, "sleep")))
            training = self.start(run_sh(1, *command))
            result = self.finish(late)
            self.assertEqual((result.code, said in result.err), (code, True), result.err)
            (run / "stop").touch()
            self.expect_end(training)

    def test_detects_progress_of_an_attempt(self):
        def attempts(run, script):
            owned = f"""cd runs; mkdir -p {run}; printf '{{"job": "%s"}}' "$RG_JOB" > {run}/owner.json"""
            return self.run_command(run_sh(1, "sh", "-c", f"{owned}; {script}", "sh", "--run-name", run))

        # A resumed sweep has begun when it writes its results, while config.json stays. It may be restarted.
        (self.runs / "sweep" / "trials").mkdir(parents=True)
        result = attempts("sweep", "echo > new; mv new sweep/results.jsonl; exit 1")
        self.assertIn("after 1 restarts", result.err)
        # Checkpoints are never deleted, in whichever folder they are.
        result = attempts("odd", "[ ! -e odd/a ] || exit 0; mkdir -p odd/a/b; > odd/a/b/step-1.safetensors; exit 3")
        self.assertEqual(result.code, 0, result.err)

    def test_gives_up(self):
        run = self.runs / "again"
        process = self.start(run_sh(1, *job.train(RANKS, *OPTIONS, "--epochs", "1000", "--run-name", run.name)))
        for steps in (10, 20):
            self.assertTrue(self.wait_for(process, lambda: steps_done(run) >= steps))
            ranks = job.trainings(process)
            job.kill(ranks)
            self.assertTrue(self.wait_for(process, lambda: not set(ranks) & set(job.job_pids(process.pid))) or
                            steps == 20)
        result = self.finish(process)
        self.assertNotIn(result.code, (0, 75))
        self.assertIn("after 1 restarts", result.err)

    def test_not_restarted(self):
        # Jobs with wrong options or files, or stopped by a person or a batch system, are not restarted.
        for wrong in (["--width", "0"], ["--data", "nowhere"], ["--resume", "--run-name", "never"]):
            result = self.run_command(run_sh(5, *job.train(RANKS, *OPTIONS, *wrong)))
            self.assertEqual((result.code, "restart 1" in result.err), (1, False), result.err)
        result = self.run_command(run_sh(5, "sh", "-c", "exit 76"))
        self.assertEqual((result.code, "restart 1" in result.err), (76, False), result.err)
        self.assertIn("the ranks differ", result.err)
        for number, code in ((signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGHUP, 75)):
            run = self.runs / f"signal-{number}"
            process = self.start(run_sh(5, *job.train(RANKS, *OPTIONS, "--epochs", "1000", "--run-name", run.name)))
            self.assertTrue(self.wait_for(process, lambda: steps_done(run) >= 5))
            os.kill(process.pid, number)
            out = self.expect_end(process, code)
            self.assertIn("stopped after step", out)
        run = self.runs / "asked"
        process = self.start(run_sh(5, *job.train(RANKS, *OPTIONS, "--epochs", "1000", "--run-name", run.name)))
        self.assertTrue(self.wait_for(process, lambda: steps_done(run) >= 5))
        (run / "stop").touch()
        self.finish(process, 0)

    def test_terminal_closed(self):
        # A single training, and ranks under run.sh, end with a checkpoint and leave no process. The ranks print nothing,
        # because mpiexec kills them when it cannot print their lines.
        options = ["--width", "32", "--depth", "2", "--batch-size", "5", "--epochs", "1000"]
        for name, command in (("alone", job.train(1)),
                              ("ranks", run_sh(5, *job.train(RANKS, "--progress", "none")))):
            run = self.runs / name
            terminal, end = pty.openpty()
            take_it = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY); os.execvp(sys.argv[1], sys.argv[1:])"
            process = subprocess.Popen([sys.executable, "-c", take_it, *command, *options, "--run-name", name],
                                       cwd=self.folder, stdin=end, stdout=end, stderr=end, start_new_session=True)
            self.addCleanup(lambda started=process: started.poll() is None and job.kill_job(started))
            os.close(end)
            self.assertTrue(self.wait_for(process, lambda: steps_done(run) >= 5))
            pids = job.job_pids(process.pid)
            os.close(terminal)
            self.assertEqual(process.wait(job.LIMIT), 75)
            self.assertTrue(job.within_limit(lambda: not any(map(job.lives, pids))), "processes are left")
            self.assertEqual(job.report(run)["runs"][0]["state"], "stopped")
            steps = steps_done(run)
            self.assertTrue((run / "checkpoint" / f"step-{steps:08}.safetensors").exists())

    def test_signal_around_the_start(self):
        # The script signals itself before the start, between the start and the line that reads the child's id, and
        # after that line.
        script = RUN_SH.read_text()
        known = "    child=$!\n"
        self.assertEqual((script.count(known), script.count("    before=")), (1, 1))
        signals = "kill -TERM $$\n"
        for name, text in (("before", script.replace("    before=", signals + "    before=")),
                           ("between", script.replace(known, signals + known)),
                           ("after", script.replace(known, known + signals))):
            path = self.folder / "run.sh"
            path.write_text(text)
            command = ("echo begun; " if name == "before" else "") + "exec sleep 1000"
            process = self.start(["sh", str(path), "--max-restarts", "3", "--", "sh", "-c", command])
            result = self.finish(process)
            self.assertEqual((result.code, result.out), (75, ""), name)
            self.assertNotIn("restart", result.err)

    def test_waits_longer_each_time(self):
        # A signal ends the wait. A program in place of `sleep` logs its argument.
        (self.folder / "bin").mkdir()
        sleep = self.folder / "bin" / "sleep"
        sleep.write_text('#!/bin/sh\necho "$1" >> slept\n[ "$1" -lt 64 ] || [ ! -e last ] || exec /bin/sleep 1000\n')
        sleep.chmod(0o755)
        path = {"PATH": f"{sleep.parent}:{os.environ['PATH']}"}
        self.assertEqual(self.run_command(run_sh(8, "sh", "-c", "exit 3"), **path).code, 3)
        slept = self.folder / "slept"
        self.assertEqual(slept.read_text().split(), ["1", "2", "4", "8", "16", "32", "64", "64"])
        slept.unlink()
        (self.folder / "last").touch()
        process = self.start(run_sh(8, "sh", "-c", "exit 3"), **path)
        self.assertTrue(self.wait_for(process, lambda: slept.exists() and "64\n" in slept.read_text()))
        process.send_signal(signal.SIGTERM)
        self.finish(process, 75)

    def test_usage(self):
        hosts = ("-oProxyCommand=touch${IFS}run:2", "  -oProxyCommand=x", "a b", "a:x")
        for i, line in enumerate(hosts):
            (self.folder / str(i)).write_text(f"localhost\n{line}\n")
        for wrong in (["--max-restarts", "many", "--", "true"], ["true"], ["--"], ["--", "true", "--resume"],
                      ["--max-restarts", "9" * 20, "--", "true"], ["--min-ranks", "9" * 20, "--", "true"],
                      *(["--elastic", str(i), "--", "true"] for i in range(len(hosts)))):
            result = self.run_command(["sh", str(RUN_SH), *wrong])
            self.assertEqual(result.code, 2, wrong)
            self.assertTrue(result.err.startswith("usage: "), result.err)
        self.assertEqual(self.run_command(["sh", str(RUN_SH), "--", "true"]), (0, "", ""))
        # A wrong line that comes later is left out.
        (self.folder / "hosts").write_text(" localhost:2 # here\n")
        (self.folder / "asks").write_text('echo "$1" >> asked')
        launcher = self.folder / "launcher"
        launcher.write_text('#!/bin/sh\ncat "$2"\nprintf -- "-oX:9\\nb:1\\n" >> hosts\nexit 3\n')
        launcher.chmod(0o755)
        result = self.run_command(["sh", str(RUN_SH), "--max-restarts", "1", "--elastic", "hosts", "--", str(launcher)],
                                  RG_SSH="sh asks")
        self.assertEqual((result.code, result.out.split()), (3, ["localhost:2", "localhost:2", "b:1"]), result.err)
        self.assertEqual((self.folder / "asked").read_text(), "b\n")


job.main()
