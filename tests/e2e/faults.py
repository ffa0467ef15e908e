# Tests a rank that is killed, stops, throws or has other data at a random step. The job must end with an exit status
# other than 0 and state why. Every other rank names a rank that has stopped. No process and no shared memory is left,
# and a resume from the last checkpoint gives the same bits. A slow rank is only reported.
#
# REPEATS=50 repeats each test that often, and prints the time from the fault to the end of the job.
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import time

import job

REPEATS = int(os.environ.get("REPEATS", "1"))
RANKS, LAST_STEP = 3, 130
DEADLINE = 2  # seconds
OPTIONS = [*job.TINY, "--epochs", "1000", "--checkpoint-every", "3", "--seed", "5"]
# How ranks sum: in shared memory, by messages, and as on two machines, where a thread sums during backward.
WAYS = [([], {}), (["--allreduce", "ring"], {}), (["--allreduce", "halving"], {}),
        ([], {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1"})]


def shared_memory():
    return {path.name for path in pathlib.Path("/dev/shm").iterdir()}


def ranks_of(process):
    """Returns the process of each rank."""
    found = {}
    for pid in job.job_pids(process.pid):
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        found |= {int(entry[9:]): pid for entry in environment if entry.startswith(b"PMI_RANK=")}
    return found


class Faults(job.JobTest):
    undisturbed = {}  # step lines by the name of the training, for all tests

    def setUp(self):
        super().setUp()
        self.seconds = []

    def tearDown(self):
        if REPEATS > 1 and self.seconds:
            print(f"{self.id()}: {len(self.seconds)} times, from fault to end {min(self.seconds):.2f} to "
                  f"{max(self.seconds):.2f} s, median {statistics.median(self.seconds):.2f} s", flush=True)

    def repetitions(self):
        """Yields the number of each repetition with its random numbers."""
        return [(i, random.Random(f"{self.id()} {i}")) for i in range(REPEATS)]

    def begin(self, name, step, way, deadline=DEADLINE):
        """Starts a training and waits for that step. Returns its folder, its job, and the process of each rank."""
        options, environment = way
        command = job.train(RANKS, *OPTIONS, *options, "--run-name", name)
        self.before = shared_memory()
        process = self.start(command, RG_DEADLINE_S=str(deadline), **environment)
        run = self.runs / name
        metrics = run / "metrics.jsonl"
        steps = lambda: metrics.read_text().count('{"step"') if metrics.exists() else 0
        self.assertTrue(self.wait_for(process, lambda: steps() >= step))
        self.pids = ranks_of(process)
        self.assertEqual(sorted(self.pids), list(range(RANKS)))
        self.fault = time.monotonic()
        return run, process

    def end(self, process):
        """Checks that the job fails and leaves nothing. Returns its standard error."""
        result = self.finish(process)
        self.seconds.append(time.monotonic() - self.fault)
        self.assertNotEqual(result.code, 0, result.err)
        self.assertTrue(job.within_limit(lambda: not any(map(job.lives, self.pids.values()))), "processes are left")
        # Other jobs on this machine may have shared memory for a moment.
        self.assertTrue(job.within_limit(lambda: shared_memory() <= self.before), shared_memory() - self.before)
        return result

    def assert_named(self, missing, err):
        """Checks that each other rank has named this one and no other."""
        said = {}
        for line in err.splitlines():
            if found := re.match(r"error: .*\(rank (\d), .* step (\d+)\); no word from (.*): stopped, or slow", line):
                said[int(found[1])] = re.findall(r"rank (\d) on \S+", found[3])
        self.assertEqual(said, {rank: [str(missing)] for rank in range(RANKS) if rank != missing}, err)

    def resume(self, run, way):
        options, environment = way
        command = job.train(RANKS, "--resume", "--run-name", run.name, "--steps", str(LAST_STEP))
        out = self.succeed(command, **environment)
        self.assertIn("resumed from", out)
        self.assertNotIn("warning", out)
        self.assertEqual(job.step_lines(run), self.whole(way))

    def whole(self, way):
        """Returns the step lines of an undisturbed training."""
        options, environment = way
        name = "-".join(["whole", *options[1:], *environment])
        if name not in self.undisturbed:
            command = job.train(RANKS, *OPTIONS, *options, "--steps", str(LAST_STEP), "--run-name", name)
            self.succeed(command, **environment)
            self.undisturbed[name] = job.step_lines(self.runs / name)
        return self.undisturbed[name]

    def test_killed(self):
        for repetition, chance in self.repetitions():
            way, missing = chance.choice(WAYS), chance.randrange(RANKS)
            run, process = self.begin(f"killed-{repetition}", chance.randrange(4, 30), way)
            os.kill(self.pids[missing], signal.SIGKILL)
            # mpiexec kills the other ranks before they can print.
            self.assertIn("Killed (signal 9)", self.end(process).out)
            self.resume(run, way)

    def test_launcher_killed(self):
        """Kills the helper of mpiexec that is the ranks' parent. The ranks save and end, and so does mpiexec."""
        for repetition, chance in self.repetitions():
            way = chance.choice(WAYS)
            run, process = self.begin(f"launcher-{repetition}", chance.randrange(4, 30), way)
            parents = {pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
                       for pid in self.pids.values()}
            self.assertEqual(len(parents), 1)
            os.kill(int(parents.pop()), signal.SIGKILL)
            self.end(process)
            self.assertEqual(job.report(run)["runs"][0]["state"], "stopped")
            self.resume(run, way)

    def test_crash(self):
        """Crashes a rank. UCX must not print its long message."""
        run, process = self.begin("crash", 4, WAYS[0])
        os.kill(self.pids[1], signal.SIGSEGV)
        result = self.end(process)
        self.assertNotIn("backtrace", result.err)
        self.assertIn("Segmentation fault", result.out)

    def test_stopped(self):
        for repetition, chance in self.repetitions():
            way, missing = chance.choice(WAYS), chance.randrange(RANKS)
            run, process = self.begin(f"stopped-{repetition}", chance.randrange(4, 30), way)
            os.kill(self.pids[missing], signal.SIGSTOP)
            self.assert_named(missing, self.end(process).err)
            if missing != 0:
                page = job.report(run)["runs"][0]
                self.assertEqual(page["state"], "failed")
                self.assertIn(f"no word from rank {missing} ", page["note"])
            self.resume(run, way)

    def test_slow(self):
        """Checks the message about a slow rank at half the deadline."""
        for repetition, chance in self.repetitions():
            way, slow = chance.choice(WAYS), chance.randrange(RANKS)
            run, process = self.begin(f"slow-{repetition}", chance.randrange(4, 30), way, deadline=3 * DEADLINE)
            os.kill(self.pids[slow], signal.SIGSTOP)
            line = process.stderr.readline()
            os.kill(self.pids[slow], signal.SIGCONT)
            self.assertRegex(line, rf"^waiting for rank {slow} on \S+( \(last in .*\))?: .* of step \d+, .* s so far$")
            (run / "stop").touch()
            self.expect_end(process)

    def test_suspended(self):
        """Suspends all ranks for longer than the deadline, as a scheduler does."""
        run, process = self.begin("suspended", 4, WAYS[0])
        for signal_number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in self.pids.values():
                os.kill(pid, signal_number)
            if signal_number == signal.SIGSTOP:
                time.sleep(DEADLINE + 2)
        (run / "stop").touch()
        self.expect_end(process)

    def test_slow_in_a_wait(self):
        """Stops a rank, and then one that waits for it. When this one goes on, it must not name the rank that answers."""
        for repetition, chance in self.repetitions():
            way, (slow, waiting, third) = chance.choice(WAYS), chance.sample(range(RANKS), RANKS)
            run, process = self.begin(f"wait-{repetition}", chance.randrange(4, 30), way, deadline=3 * DEADLINE)
            os.kill(self.pids[slow], signal.SIGSTOP)
            time.sleep(0.75)  # half the time until the first call
            os.kill(self.pids[waiting], signal.SIGSTOP)
            line = process.stderr.readline()
            os.kill(self.pids[waiting], signal.SIGCONT)
            time.sleep(0.2)  # it still waits
            os.kill(self.pids[slow], signal.SIGCONT)
            self.assertIn(f"rank {slow} on", line)
            self.assertIn(f"rank {waiting} on", line)
            (run / "stop").touch()
            result = self.finish(process)
            self.assertEqual(result.code, 0)
            self.assertNotIn(f"rank {third} on", line + result.err)

    def test_throws(self):
        """Makes writes of rank 0 fail."""
        for repetition, chance in self.repetitions():
            way = chance.choice(WAYS)
            run, process = self.begin(f"disk-{repetition}", chance.randrange(4, 30), way)
            checkpoints = run / "checkpoint"
            checkpoints.rename(run / "away")
            checkpoints.touch()
            err = self.end(process).err
            self.assertRegex(err, r"error: .*checkpoint.*\(rank 0\)")
            self.assertNotIn("no word", err)
            checkpoints.unlink()
            (run / "away").rename(checkpoints)
            self.resume(run, way)

    def test_less_data(self):
        sample = job.sample_records("train")
        for repetition, chance in self.repetitions():
            less = chance.randrange(RANKS)
            sizes = [60 if rank == less else 100 for rank in range(RANKS)]
            command = [job.MPIEXEC]
            for rank, size in enumerate(sizes):
                folder = self.folder / f"data-{repetition}-{rank}"
                folder.mkdir()
                for name in ("train.bin", "test.bin"):
                    (folder / name).write_bytes(job.cifar_file(sample[:size]))
                program = job.train(1, *job.TINY, "--batch-size", "20", "--data", str(folder))
                command += [*([":"] if rank else []), "-n", "1", *program]
            result = self.run_command(command)
            self.assertNotEqual(result.code, 0)
            self.assertRegex(result.err, rf"data: expected the same .*rank 0 .*rank {less or 1} .*--data")

    def test_start(self):
        """Makes a rank stop before MPI_Init or right after it. The error names it, if the others have left MPI_Init."""
        for missing in (0, 1):
            for before, said in (("0", rf"all {RANKS} ranks .*, got no word from rank {missing} in "),
                                 ("1", r"MPI_Init_thread: expected all ranks, got nothing in 2 s.* \(process \d+ on ")):
                command = job.program(RANKS, "tests/mpi_par", "--stuck", missing, before)
                result = self.run_command(command, RG_DEADLINE_S="2")
                self.assertNotEqual(result.code, 0, before)
                self.assertRegex(result.err, said)

    def test_sums(self):
        """Makes a rank throw, call another operation, or stop answering between two sums."""
        for repetition, chance in self.repetitions():
            rank, step = chance.randrange(RANKS), chance.randrange(1, 100)
            for fault, said in [("--throw", rf"told to throw.*\(rank {rank}\)"),
                                ("--mismatch", "must make the same calls"),
                                ("--late", rf"step {step}\); no word from rank {rank} on "),
                                ("--alone", "open_shared: expected all ranks, got nothing in 2 s")]:
                result = self.run_command(job.program(RANKS, "tests/mpi_par", fault, rank, step))
                self.assertNotEqual(result.code, 0, fault)
                self.assertRegex(result.err, said)


if not job.MPIEXEC:
    print("skipped: no mpiexec, or a build without MPI")
    sys.exit(77)
job.main()
