# Tests the trainings that ringgrad.py starts: events, options, errors, stop requests, and what outlives Python.
#
# Called with the build folder and the path of mpiexec. The tests import the copy of ringgrad.py in the build folder.
import ast
import contextlib
import fcntl
import io
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import textwrap
import threading
from unittest import mock

import job

sys.path.insert(0, str(job.BUILD))
import ringgrad  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = {"width": 4, "depth": 1, "batch_size": 50}  # 20 steps per epoch
ENDLESS = {**TINY, "epochs": 100000}

# Acts as a cell of a notebook: shows the last event in one line. Ctrl-C interrupts it.
CELL = """
import ringgrad, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background
run = ringgrad.train(width=4, depth=1, batch_size=50, **eval(sys.argv[1]))
try:
    for event in run:
        if "step" in event:
            print(f"\\rstep {event['step']}  loss {event['loss']:.3f}", end="", flush=True)
except KeyboardInterrupt:
    print("interrupted;", run.state)
print(run.state, run.name)
"""


class PythonTest(job.JobTest):
    def setUp(self):
        super().setUp()
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RG_")}
        kept["XDG_CACHE_HOME"] = str(self.folder / "cache-home")
        environment = mock.patch.dict(os.environ, kept, clear=True)
        environment.start()
        self.addCleanup(environment.stop)
        signal.signal(signal.SIGALRM, self.end_of_time)
        signal.alarm(job.LIMIT)
        self.addCleanup(signal.alarm, 0)

    def end_of_time(self, *_):
        self.fail(f"not finished after {job.LIMIT} s")

    def begin(self, *data, **options):
        """Starts a training that ends with the test at the latest."""
        run = ringgrad.train(*data, **options)
        self.addCleanup(self.end, run)
        return run

    def end(self, run):
        if run._process.poll() is None:
            job.kill_job(run._process)
        for file in run._output:
            file.close()

    def begun(self, run):
        """Waits for the first event of a run."""
        self.assertIn("step", next(iter(run)))
        return run

    def lines(self, run):
        return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]

    def check_error(self, text, function, *arguments, **options):
        with self.assertRaises(ringgrad.Error) as caught:
            function(*arguments, **options)
        self.assertIn(text, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        error = caught.exception
        self.assertTrue(error.__suppress_context__ or not error.__context__, error.__context__)

    def test_events_and_model(self):
        run = self.begin(epochs=2, **TINY)
        self.assertEqual(run.state, "running")
        events = list(run)
        self.assertEqual([event["step"] for event in events if "step" in event], list(range(1, 41)))
        self.assertEqual(events, self.lines(run))
        self.assertEqual((run.metrics, list(run), run.wait(progress=False)), (events, events, run))
        self.assertEqual((run.state, run.folder.parent, run.name), ("done", self.runs, run.folder.name))
        self.assertEqual((run.config["program"], run.config["options"]["width"]), ("train_cifar", 4))
        self.assertEqual(repr(run), f"<ringgrad.Run {run.name}: done>")
        image = job.png(32, 32, random.Random(1).randbytes(32 * 32 * 3))
        for best, name in (False, "model.safetensors"), (True, "model-best.safetensors"):
            with run.model(best) as model:
                self.assertEqual(model.predict(image), ringgrad.Model(run.folder / name).predict(image))
        run.stop()  # a no-op
        self.assertFalse((run.folder / "stop").exists())

    def test_options(self):
        with mock.patch.dict(os.environ, HOME=str(self.folder)):
            run = self.begin(steps=1, report=False, augment=["flip", "translate"], lr=1e-5, seed=None, runs="~/other",
                             lr_scale=("fc=2", "block1=3"), run_name="named", **TINY).wait(False)
        self.assertEqual(run.folder, self.folder / "other" / "named")
        options = run.config["options"]
        self.assertEqual([options[name] for name in ("augment", "lr", "lr-scale", "report", "seed")],
                         ["flip,translate", 1e-5, "fc=2,block1=3", False, 0])
        self.assertFalse((run.folder / "report.html").exists())

    def test_data(self):
        for i in range(8):
            job.write_png(self.folder / "photos" / "ab"[i % 2] / f"{i}.png", 8, 8, random.Random(i).randbytes(192))
        with mock.patch.dict(os.environ, HOME=str(self.folder)):
            run = self.begin("~/photos", steps=1, width=4, depth=1).wait(False)
        self.assertEqual(run.config["options"]["data"], str(self.folder / "photos"))
        self.assertEqual(run.model().classes, ["a", "b"])
        pipe = f"pipe:tar -cC {self.folder} photos"
        self.assertEqual(self.begin(pipe, steps=1, width=4, depth=1).wait(False).config["options"]["data"], pipe)
        self.check_error("/no/such", self.begin(pathlib.Path("/no/such"), steps=1).wait, False)

    def test_readme(self):
        lines = re.search(r"\n\n(    run = ringgrad.train\(.*?)\n\n", (ROOT / "README.md").read_text(), re.DOTALL)[1]
        for option in (("ranks=4", f"ranks={job.rank_counts(1, 2)[-1]}"), ("epochs=20", "steps=1")):
            self.assertIn(option[0], lines)
            lines = lines.replace(*option)
        for i in range(10):
            job.write_png(self.folder / "photos" / "ab"[i % 2] / f"{i}.png", 9, 9, random.Random(i).randbytes(243))
        out = self.succeed([sys.executable, "-c", "import ringgrad\n" + textwrap.dedent(lines)],
                           PYTHONPATH=str(job.BUILD), HOME=str(self.folder))
        self.assertRegex(out, r"^{'step': 1, .*}\n{'epoch': 1, .*}\n$")

    def test_errors(self):
        for options, text in (({"epocs": 3}, "unknown option --epocs; did you mean --epochs?"),
                              ({"epochs": "many"}, 'option --epochs: expected an integer'),
                              ({"resume": 1}, "option --resume: expected --resume or --no-resume alone"),
                              ({"net": "nope"}, "option --net: expected one of"),
                              ({"resume": True}, "nothing to resume")):
            run = self.begin(**options)
            self.check_error(text, list, run)
            self.check_error(text, run.wait, False)
            self.check_error(text, run.model)
            self.assertEqual((run.state, run.folder, run.metrics, list(self.runs.glob("*"))), ("failed", None, [], []))
        self.check_error("got 'train_dogs'; give its path", ringgrad.train, program="train_dogs")
        self.check_error("got './no'; give its path", ringgrad.train, program="./no")
        self.check_error("program: expected bytes, or a path", ringgrad.train, program=3)
        self.check_error("ranks: expected a number of at least 1, got 0", ringgrad.train, ranks=0)
        self.check_error("ranks: expected a number of at least 1, got '2'", ringgrad.train, ranks="2")
        self.check_error("embedded null byte", ringgrad.train, run_name="a\0b")
        self.check_error("expected the folder of a run, got '/no/such'", ringgrad.Run, "/no/such")
        self.check_error("expected a folder of runs, got '/no/such'", ringgrad.runs, "/no/such")
        self.assertEqual(ringgrad.runs(), [])
        with mock.patch.dict(os.environ, PATH=""):
            self.check_error("expected mpiexec in PATH for 2 ranks, got none", ringgrad.train, ranks=2)

    def test_stop_and_resume(self):
        run = self.begin(run_name="parts", **ENDLESS)
        for event in run:
            if event.get("step") == 30:
                run.stop()
                run.stop()  # the same request
        self.assertEqual((run.wait(False).state, run.folder), ("stopped", self.runs / "parts"))
        stopped = len(run.metrics)
        self.assertTrue(list(run.folder.glob("checkpoint/*.safetensors")))
        # A kill came later than the checkpoint, so the resumed run has other steps in place of these.
        with open(run.folder / "metrics.jsonl", "a") as file:
            file.write('{"step": 100000, "epoch": 9000, "loss": 9}\n' * 3)
        last = max(event["epoch"] for event in run.metrics[:stopped]) + 1
        resumed = self.begin(resume=True, run_name="parts", epochs=last)
        events = list(resumed)
        self.assertEqual([event["step"] for event in events if "step" in event], list(range(1, 20 * last + 1)))
        self.assertEqual((resumed.state, resumed.folder, resumed.metrics), ("done", run.folder, events))

    def test_cut_lines(self):
        run = self.runs / "own"
        run.mkdir(parents=True)
        with open(run / "metrics.jsonl", "w", buffering=1) as file:
            file.write('{"step": 1}\nnone\n{"step": 2, "lo')
            file.flush()
            folder = os.open(run, os.O_RDONLY)
            fcntl.flock(folder, fcntl.LOCK_EX)
            run = ringgrad.Run(run)
            events = iter(run)
            self.assertEqual((next(events), run.state), ({"step": 1}, "running"))
            file.write('ss": 1}\n')
            self.assertEqual(next(events), {"step": 2, "loss": 1})
            file.write('{"step": 3')
        os.close(folder)
        self.assertEqual((list(events), run.state), ([], "ended"))

    def test_one_signal_per_stop_request(self):
        program, out = self.folder / "slow", []
        program.write_text("#!/bin/sh\ntrap 'echo asked' TERM\necho ready\nwhile [ ! -e end ]; do sleep 0.1; done\n")
        program.chmod(0o700)
        run = self.begin(program="./slow")

        def wait_for(text):
            self.assertTrue(job.within_limit(lambda: out.append(run._output[0].read()) or text in "".join(out)))

        wait_for("ready")
        run.stop()
        wait_for("asked")
        run.stop()
        (self.folder / "end").touch()
        self.assertEqual(run._process.wait(), 0)
        self.assertEqual(("".join(out) + run._output[0].read(), run.state), ("ready\nasked\n", "stopped"))

    def test_stop_while_loading(self):
        for ranks in job.rank_counts(1, 2):
            fifo = self.folder / f"fifo{ranks}"
            os.mkfifo(fifo)
            run = self.begin(f"pipe:cat {fifo}", ranks=ranks, **ENDLESS)
            self.assertTrue(job.within_limit(lambda: job.named(run._process, "cat")))
            self.check_error("got one that is running and has no folder yet", run.model)
            run.stop()
            run.stop()
            self.assertEqual((run.wait(False).state, run.folder, list(run)), ("stopped", None, []))
        run = self.begin(**ENDLESS)
        run.stop()  # maybe before the program can handle a signal
        self.assertEqual(run.wait(False).state, "stopped")

    def test_kill(self):
        for ranks in job.rank_counts(1, 2):
            run = self.begun(self.begin(ranks=ranks, run_name=f"killed{ranks}", **ENDLESS))
            self.assertTrue(job.within_limit((run.folder / "report.html").exists))
            threading.Timer(0.2, lambda: job.kill(job.trainings(run._process)[-1:])).start()
            self.check_error(f"killed{ranks}: expected a training that ends by itself, got exit status", list, run)
            again = ringgrad.Run(run.folder)
            self.assertTrue(job.within_limit(lambda: again.state != "running"))  # the other rank ends soon
            self.assertEqual((run.state, again.state, again.metrics), ("failed", "failed", self.lines(run)))
            self.check_error("got one that was killed; resume=True goes on from its last checkpoint", again.wait, False)

    def test_fails_within_the_training(self):
        run = self.begin(lr=1e30, epochs=2, **TINY)
        self.check_error("expected finite", list, run)
        again = ringgrad.Run(run.folder)
        self.assertEqual((run.state, again.state), ("failed", "failed"))
        self.check_error("expected finite", again.wait, False)  # from the report

    def test_several_at_once(self):
        runs = [self.begin(seed=seed, epochs=1, **TINY) for seed in (1, 2, 3)]
        for seed, run in enumerate(runs, 1):
            events = list(run)
            self.assertEqual((len(events), run.config["seed"], run.state), (21, seed, "done"))
        self.assertEqual(len({run.folder for run in runs}), 3)

    def test_ranks(self):
        if not job.MPIEXEC:
            self.skipTest("expected mpiexec, got none")
        run = self.begin(ranks=2, epochs=1, **TINY)
        self.assertEqual((len(list(run)), run.config["ranks"], run.state), (21, 2, "done"))
        self.check_error("unknown option --epocs", self.begin(ranks=2, epocs=1).wait, False)
        run = self.begun(self.begin(ranks=2, **ENDLESS))
        run.stop()
        self.assertEqual(run.wait(False).state, "stopped")

    def test_runs(self):
        self.assertEqual(ringgrad.runs(), [])
        for name in "old", "new":
            self.begin(run_name=name, steps=1, report=name == "new", **TINY).wait(False)
        (self.runs / "none").mkdir()
        (self.runs / "file").touch()
        live = self.begun(self.begin(run_name="live", **ENDLESS))
        found = ringgrad.runs()
        self.assertEqual([(run.name, run.state) for run in found],
                         [("live", "running"), ("new", "done"), ("old", "ended")])
        self.assertEqual((found[2].metrics, found[2].config["options"]["steps"]), (self.lines(found[2]), 1))
        self.assertEqual(found[1].model().classes, job.CLASSES)
        events = iter(found[0])  # of a run that another object has started
        self.assertEqual([next(events)["step"] for _ in range(2)], [1, 2])
        found[0].stop()
        self.assertEqual((found[0].wait(False).state, live.wait(False).state), ("stopped", "stopped"))
        self.assertEqual(list(events), self.lines(live)[2:])
        with mock.patch.dict(os.environ, HOME=str(self.folder)):
            self.assertEqual(len(ringgrad.runs("~/runs")), 3)
        build = self.folder / "build" / "deep"  # a build folder has its runs beside it
        (build.parent / "meson-private").mkdir(parents=True)
        build.mkdir()
        os.chdir(build)
        self.assertEqual(len(ringgrad.runs()), 3)
        run = self.begin(run_name="from-build", steps=1, **TINY).wait(False)
        self.assertEqual(run.folder, self.runs / "from-build")

    def test_own_loop(self):
        for ranks in job.rank_counts(1, 2):
            run = self.begin(program=str(job.BUILD / "parallel_loop"), epochs=2, ranks=ranks)
            events = list(run)
            self.assertEqual([event["step"] for event in events if "step" in event], list(range(1, 15)))
            self.assertEqual([event["epoch"] for event in events if "train_rmse" in event], [1, 2])
            self.assertEqual((run.config["program"], run.state, ringgrad.Run(run.folder).state),
                             ("parallel_loop", "done", "done"))
            self.check_error("model.safetensors", run.model)
        resumed = self.begin(program="parallel_loop", epochs=3, resume=True)
        self.assertEqual([event["step"] for event in resumed if "step" in event], list(range(1, 22)))
        self.assertEqual(resumed.folder, run.folder)
        run = self.begun(self.begin(program="parallel_loop", epochs=100000))
        run.stop()
        self.assertEqual(run.wait(False).state, "stopped")

    def test_output(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.begin(epochs=2, **TINY).wait()
        for text in ("epoch 1/2  train loss", "epoch 2/2", "done after step 40", "next: "):
            self.assertEqual(out.getvalue().count(text), 1, out.getvalue())
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.begin(epochs=2, progress="bar", **TINY).wait()
            self.begin(epochs=1, **TINY).wait(progress=False)
            with self.assertRaises(ringgrad.Error):
                self.begin(no="such").wait()
        self.assertIn("\repoch 1/2", out.getvalue())
        self.assertEqual(out.getvalue().count("done after"), 1)
        self.assertNotIn("error", out.getvalue())

    def test_unread_output_does_not_block(self):
        program = self.folder / "chatty"
        program.write_text("#!/bin/sh\nyes | head -c 3000000; yes | head -c 3000000 >&2\n"
                           "echo 'warning: x' >&2; echo 'error: first' >&2; echo 'error: second' >&2; exit 3\n")
        program.chmod(0o700)
        run = self.begin(program=program)
        self.assertEqual(run._process.wait(timeout=job.LIMIT), 3)
        with self.assertRaises(ringgrad.Error) as caught:
            run.wait(progress=False)
        self.assertEqual(str(caught.exception), "first")
        program.write_text("#!/bin/sh\necho 'one\ntwo' >&2; kill -9 $$\n")
        self.check_error("chatty: expected a training that ends by itself, got exit status -9; two; ",
                         self.begin(program=program).wait, False)

    def python(self, options):
        """Starts a Python like the kernel of a notebook: Ctrl-C interrupts its whole process group."""
        return self.start([sys.executable, "-c", CELL, repr(options)], PYTHONPATH=str(job.BUILD))

    def test_cell_of_a_notebook(self):
        out = self.expect_end(self.python({"epochs": 2}))  # as text, in which \r is \n
        self.assertRegex(out, r"^(\nstep \d+  loss \d\.\d\d\d){40}done train_cifar-\d{8}-\d{6}\n$")

    def test_training_outlives_python(self):
        for ranks in job.rank_counts(1, 2):
            python = self.python({"epochs": 100000, "run_name": f"killed{ranks}", "ranks": ranks})
            run = self.live_run(python, f"killed{ranks}")
            os.killpg(python.pid, signal.SIGKILL)
            python.communicate()
            self.check_goes_on(run)

    def test_interrupt_ends_only_the_loop(self):
        for ranks in job.rank_counts(1, 2):
            python = self.python({"epochs": 100000, "run_name": f"interrupted{ranks}", "ranks": ranks})
            run = self.live_run(python, f"interrupted{ranks}")
            os.killpg(python.pid, signal.SIGINT)
            out = self.expect_end(python)
            self.assertTrue(out.endswith(f"interrupted; running\nrunning interrupted{ranks}\n"), out[-200:])
            self.check_goes_on(run)

    def live_run(self, python, name):
        """Waits until the run of another Python has five steps. Returns it, as of another session."""
        self.assertTrue(self.wait_for(python, lambda: any(run.name == name and len(run.metrics) > 5
                                                          for run in ringgrad.runs())))
        run = ringgrad.Run(self.runs / name)
        pid = json.loads((run.folder / "owner.json").read_text())["process"]
        self.addCleanup(lambda: job.lives(pid) and job.kill([pid]))
        return run

    def check_goes_on(self, run):
        steps = len(run.metrics)
        self.assertTrue(job.within_limit(lambda: len(run.metrics) > steps))
        self.assertEqual(run.state, "running")
        run.stop()
        self.assertEqual(run.wait(False).state, "stopped")
        self.assertTrue(list(run.folder.glob("checkpoint/*.safetensors")))

    def test_finds_programs(self):
        lib, bin_folder = self.folder / "lib", self.folder / "bin"
        lib.mkdir()
        bin_folder.mkdir()
        shutil.copy(job.BUILD / "ringgrad.py", lib)  # without the library, which only predictions need
        script = "import ringgrad; print(ringgrad.train(steps=1, width=4, depth=1).wait(False).state)"
        command = [sys.executable, "-c", script]
        self.assertIn("ringgrad.Error: program: expected one in", self.run_command(command, PYTHONPATH="lib").err)
        paths = os.pathsep.join([str(job.BUILD), os.environ["PATH"]])
        self.assertEqual(self.succeed(command, PYTHONPATH="lib", PATH=paths), "done\n")
        (bin_folder / "train_cifar").symlink_to(job.BUILD / "train_cifar")  # as in an installation
        self.assertEqual(self.succeed(command, PYTHONPATH="lib"), "done\n")

    def test_syntax_of_python_3_8(self):
        ast.parse((job.BUILD / "ringgrad.py").read_text(), feature_version=(3, 8))


job.main()
