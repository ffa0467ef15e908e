# Runs tools/gpu_check.sh without a GPU: stand-ins take the place of the GPU's tools and of the build, and the programs
# pass, fail, hang or are missing. If all pass, the unit tests are some of the executor's, and train_cifar is real, with
# devices whose memory other processes can map. So these sum gradients as GPUs do, and rightly, unless told otherwise.
import pathlib
import re
import shutil
import signal
import time
import unittest

import job

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The commands that the script needs. Nothing else is in PATH, so a test decides what is missing.
COMMANDS = ["awk", "cat", "cp", "date", "dirname", "grep", "head", "mkdir", "paste", "rm", "sed",
            "setsid", "sh", "sleep", "sort", "stdbuf", "tail", "tee", "timeout", "tr", "wc"]
NVIDIA_SMI = """case $* in
-L) echo 'GPU 0' ;;
*compute_cap*) echo 9.0 ;;
*) echo 'A GPU, 1.0, 1 MiB' ;;
esac"""
MESON = "mkdir -p build-gpu && echo tests/rg_tests >build-gpu/build.ninja"
NINJA = "cp -R programs/. build-gpu"
# Prints one speed, as bench_train and torch_train.py do.
FIGURE = """compile=0
while [ $# -gt 1 ]; do
    case $1 in --mode) mode=$2 ;; --precision) precision=$2 ;; --batch) batch=$2 ;; --compile) compile=1 ;; esac
    shift
done
[ "$1" != --compile ] || compile=1
echo "net=cifar mode=${mode:-train} precision=$precision batch=$batch compile=$compile$torch images_per_s=1000.0"
"""
PYTHON = f"""case $1 in
-c) exit 0 ;;
*meson.py) {MESON} ;;
*) torch=' torch=2.0'
{FIGURE} ;;
esac"""
RG_TESTS = f"""cases='simt: *tensor cores*'
case $* in *processes*) cases='device: processes sum*' ;; esac
exec '{job.BUILD}/tests/simt_tests' "-tc=$cases" -d=true"""
# Op by op, since plans for a GPU have ops that only its kernels compute.
TRAIN_CIFAR = f"""exec '{job.BUILD}/tests/train_without_gpu' "$@" --width 4 --depth 1 --threads 1 --no-accelerate"""
QUICK94 = """mkdir -p build-gpu/runs/quick94
echo '{"epoch": 1, "test_accuracy": 0.1}' >build-gpu/runs/quick94/metrics.jsonl
echo '{"end": "six_views", "test_accuracy": 0.945}' >>build-gpu/runs/quick94/metrics.jsonl
"""
# Writes losses, the same without any sum. Those with the Hopper kernels are wrong.
LOSSES = """run=none loss=2.3
while [ $# -gt 1 ]; do
    if [ "$1" = --run-name ]; then run=$2; fi
    shift
done
if [ $run = hopper ]; then loss=2.31; fi
mkdir -p build-gpu/runs/$run
i=0
while [ $((i += 1)) -le 20 ]; do echo "{\\"loss\\": $loss}"; done >build-gpu/runs/$run/metrics.jsonl
"""
# Hangs and ignores SIGTERM, and so do its two children; the second is in a session of its own.
HANG = """trap '' TERM
sleep 1000 &
echo $! >>pids
setsid sh -c 'echo $$ >>pids; exec sleep 1000' &
echo $$ >>pids
while [ $(wc -l <pids) -lt 3 ]; do sleep 0.01; done
echo begun
while :; do sleep 1; done"""


class GpuCheck(job.JobTest):
    def setUp(self):
        super().setUp()
        (self.folder / "tools").mkdir()
        shutil.copy(ROOT / "tools" / "gpu_check.sh", self.folder / "tools")
        (self.folder / "bin").mkdir()
        for name in COMMANDS:
            (self.folder / "bin" / name).symlink_to(shutil.which(name))
        for name, text in (("nvidia-smi", NVIDIA_SMI), ("nvcc", ""), ("meson", MESON), ("ninja", NINJA),
                           ("python3", PYTHON), ("compute-sanitizer", 'shift 4\n"$@"'),
                           ("mpiexec", f"exec '{job.MPIEXEC}' \"$@\"" if job.MPIEXEC else 'shift 2\nexec "$@"')):
            self.script(f"bin/{name}", text)
        for name, text in (("tests/rg_tests", RG_TESTS), ("bench_train", FIGURE), ("train_cifar", TRAIN_CIFAR),
                           ("quick94", QUICK94), ("make_digits", "mkdir $1")):
            self.script(f"programs/{name}", text)

    def script(self, path, text):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + text + "\n")
        path.chmod(0o755)

    def remove(self, *names):
        for name in names:
            (self.folder / "bin" / name).unlink()

    def command(self, *options):
        return ["sh", "tools/gpu_check.sh", "--python", "bin/python3", *options]

    def environment(self):
        return {"PATH": str(self.folder / "bin"), "CUDA_PATH": "/nowhere", "OUT": str(self.folder / "out")}

    def check(self, *options):
        return self.start(self.command(*options), **self.environment())

    def refused(self, *words, options=()):
        self.refuse(self.command(*options), "gpu_check.sh: ", *words, **self.environment())

    def report(self):
        """Returns the report in $OUT. Its copy in the source tree must be the same up to the last step that ended."""
        texts = []
        for folder in ("tools/bench/results", "out"):
            paths = list((self.folder / folder).glob("*-gpu-check.md"))
            texts.append(paths[0].read_text() if paths else "")
        self.assertTrue(texts[1].startswith(texts[0]))
        return texts[1]

    def table(self):
        """Returns (name, result, note) of each step."""
        end = self.report().partition("== all steps\n")[2]
        return re.findall(r"(?m)^(.{45}) (passed|failed|timed out|not run) +\d+(?:  (.+))?$", end)

    def results(self):
        return {name.strip(): (result, note) for name, result, note in self.table()}

    def assert_no_build(self):
        results = self.results()
        self.assertEqual(results["build"], ("failed", "exit status 1"))
        self.assertEqual(results["unit tests, portable kernels"], ("not run", "no build-gpu/tests/rg_tests"))

    def assert_ended(self):
        """Blocks until all processes of HANG have ended."""
        pids = (self.folder / "pids").read_text().split()
        self.assertGreaterEqual(len(pids), 3)
        self.assertTrue(job.within_limit(lambda: not any(map(job.lives, pids))), pids)

    def assert_states(self, result, **wanted):
        """Asserts the result of the step whose name contains the words of the argument's name."""
        for words, want in wanted.items():
            states = [state for name, state, _ in self.table() if words.replace("_", " ") in name]
            self.assertEqual(states, [want], result.out)

    @unittest.skipUnless(job.MPIEXEC, "no mpiexec")
    def test_ranks_pass(self):
        result = self.finish(self.check("--programs", "programs", "sums", "losses"))
        self.assertEqual((result.code, result.err), (0, ""), result.out)
        self.assertEqual({(state, note) for _, state, note in self.table()}, {("passed", "")}, result.out)
        for words in ("gradients are summed by the GPUs: RG_PEER_MEMORY is 1", "sums-alone and sums-direct: 20 losses",
                      "sums-host and sums-direct: 20 losses", "1-rank and 4-ranks-idle: 20 losses"):
            self.assertIn(words, result.out)

    def test_all_pass(self):
        # --tools gives the folder of Meson and ninja.
        self.remove("meson", "ninja", "mpiexec")
        self.script("brought/meson/meson.py", "")
        self.script("brought/bin/ninja", '[ "$CPLUS_INCLUDE_PATH" = "$PWD/brought" ] || exit 1\n' + NINJA)
        result = self.finish(self.check("--tools", "brought", "--old", "programs"))
        self.assertEqual((result.code, result.err), (0, ""), result.out)
        table = self.table()
        self.assertEqual({(state, note) for _, state, note in table}, {("passed", ""), ("not run", "no mpiexec")}, result.out)
        names = [name.strip() for name, _, _ in table]
        order = ["build", "sums between processes", "20 losses, direct sums of 4 ranks", "quick94",
                 "racecheck, resnet18, hopper kernels", "old and new in turn, resnet18",
                 "unit tests, hopper kernels", "20 losses, Hopper kernels beside portable", "20 losses, 4 ranks beside 1",
                 "speed, train, hopper kernels", "profile, portable kernels", "racecheck, training step, hopper kernels",
                 "training, 2 epochs", "PyTorch, train, batch 256"]
        self.assertEqual([name for name in names if name in order], order)
        text = self.report()
        self.assertRegex(text, r"\[doctest\] assertions: *[1-9]")
        self.assertIn("portable and hopper: 20 losses", text)
        self.assertEqual(text.count("sums between processes: 1000003 of 1000003 values are right"), 2)
        self.assertIn("medians: old 1000, new 1000 images per second, 1.000 times as fast", text)
        self.assertIn("test accuracy 0.945, at least 0.9 is right", text)
        self.assertRegex(text, r"cifar  train bf16   1024  ringgrad, hopper +1000 +50000.0 +1.00 +1.00")
        self.assertTrue(result.out.startswith(text + f"written to {self.folder}/out/"), result.out)

    def test_sums_that_are_wrong_or_missing_fail(self):
        steps = {"sums_between_processes": "failed"}
        if job.MPIEXEC:
            steps["direct_sums"] = "failed"
        options = ["--programs", "programs", "sums"]
        result = self.finish(self.start(self.command(*options), **self.environment(), RG_FAULTY_SUMS="1"))
        self.assertEqual(result.code, 1, result.out)
        self.assert_states(result, **steps)
        if job.MPIEXEC:
            self.assertIn("not by the GPUs: they compute wrong sums there", result.out)
        # Programs that pass, and sum nothing
        self.script("programs/tests/rg_tests", "echo '[doctest] assertions: 5 | 5 passed'")
        self.script("programs/train_cifar", LOSSES)
        self.script("bin/mpiexec", 'shift 2\nexec "$@"')
        result = self.finish(self.check(*options))
        self.assertEqual(result.code, 1, result.out)
        self.assert_states(result, sums_between_processes="failed", direct_sums="failed")
        self.assertIn("sums-host and sums-direct: 20 losses, the last are 2.3 and 2.3", result.out)

    def test_chosen_steps_of_programs_that_are_brought_along(self):
        self.remove("nvcc", "meson", "ninja", "mpiexec")
        self.script("programs/quick94", 'while [ "$1" != --data ]; do shift; done\ncat "$2"/data_batch_1.bin\n' + QUICK94)
        (self.folder / "data").mkdir()
        for name, text in (("data_batch_1.bin.aa", "the first part"), ("data_batch_1.bin.ab", " and the second"),
                           ("test_batch.bin", "all")):
            (self.folder / "data" / name).write_text(text)
        result = self.finish(self.check("--programs", "programs", "--data", "data", "quick94", "sums"))
        self.assertEqual(result.code, 0, result.out)
        self.assertEqual(self.results(), {"sums between processes": ("passed", ""), "quick94": ("passed", ""),
                                          "20 losses, direct sums of 4 ranks": ("not run", "no mpiexec")})
        self.assertIn("the first part and the second", result.out)
        self.script("programs/quick94", QUICK94.replace("0.945", "0.93"))
        result = self.finish(self.check("--programs", "programs", "--data", "data", "quick94"))
        self.assertEqual((result.code, self.results()), (1, {"quick94": ("failed", "exit status 1")}), result.out)

    def test_plan_fits_the_time(self):
        for name in ("tests/rg_tests", "bench_train", "train_cifar", "quick94"):
            self.script(f"programs/{name}", "exit 1")
        for minutes, wanted, missing in (("2", "   0 s  sums between processes", "PyTorch"),
                                         ("10", "   0 s  sums between processes", "PyTorch compiled")):
            text = self.finish(self.check("--minutes", minutes, "--programs", "programs")).out
            plan = text.partition(f"== plan for {minutes} minutes")[2].partition("\n==")[0]
            self.assertIn(wanted, plan)
            self.assertNotIn(missing, plan)
            begins = [int(begin) for begin in re.findall(r"(?m)^ *(\d+) s  ", plan)]
            self.assertEqual(begins, sorted(begins))
            self.assertLess(begins[-1], 57 * int(minutes) - 10)

    def test_fail_hang_missing(self):
        self.script("programs/tests/rg_tests", """if [ "$RG_SYNC" = 1 ]; then
    echo '[doctest] assertions: 5 | 5 passed'
    exit
elif [ $RG_GPU_KERNELS = hopper ]; then
    echo 'skipped: this build has no CUDA'
    exit 77
fi
echo 'real_gpu.cpp:1: ERROR: CHECK( right ) is NOT correct!'
echo '[doctest] assertions: 5 | 4 passed | 1 failed'
exit 1""")
        self.script("programs/bench_train", f"case $*$RG_GPU_KERNELS in *profilehopper) {HANG} ;; esac\n{FIGURE}")
        self.script("programs/train_cifar", LOSSES)
        self.script("bin/python3", "exit 1")
        self.remove("compute-sanitizer", "mpiexec")
        result = self.finish(self.check("--limit", "4"))
        self.assertEqual(result.code, 1, result.out)
        self.assert_ended()
        for name, want in (("build", ("passed", "")), ("unit tests, portable kernels", ("failed", "exit status 1")),
                           ("sums between processes", ("failed", "exit status 1")),
                           ("20 losses, direct sums of 4 ranks", ("not run", "no mpiexec")),
                           ("old and new in turn, resnet18", ("not run", "no --old")),
                           ("speed, train, portable kernels", ("passed", "")),
                           ("unit tests, hopper kernels", ("failed", "exit status 1")),
                           ("unit tests, launches one at a time", ("passed", "")),
                           ("20 losses, Hopper kernels beside portable", ("failed", "exit status 1")),
                           ("profile, portable kernels", ("passed", "")), ("profile, hopper kernels", ("timed out", "")),
                           ("memcheck, training step, portable kernels", ("not run", "no compute-sanitizer")),
                           ("20 losses, 4 ranks beside 1", ("not run", "no mpiexec")),
                           ("training, 2 epochs", ("passed", "")),
                           ("PyTorch, train, batch 256", ("not run", "no PyTorch"))):
            self.assertEqual(self.results().get(name), want, result.out)
        text = self.report()
        self.assertIn("ERROR: CHECK( right )", text)
        self.assertIn("FAILED: skipped: this build has no CUDA", text)
        self.assertIn("the largest difference is 4.3e-03", text)

    def test_no_build_and_no_hopper(self):
        self.script("bin/nvidia-smi", NVIDIA_SMI.replace("9.0", "8.9"))
        self.script("bin/ninja", "echo 'conv.cu:1: error: no such thing'; exit 1")
        result = self.finish(self.check())
        self.assertEqual(result.code, 1, result.out)
        self.assertIn("conv.cu:1: error: no such thing", self.report())
        self.assert_no_build()
        self.assertEqual(self.results()["profile, hopper kernels"],
                         ("not run", "the Hopper kernels need sm_90, got sm_89"))

    def test_no_doctest_and_no_reader(self):
        self.script("bin/meson", MESON.replace("tests/rg_tests", ""))
        (self.folder / "programs" / "tests" / "rg_tests").unlink()
        # Nobody reads the output of the script, but the report has it.
        self.run_command(["sh", "-c", '"$@" | true', "sh", *self.command()], **self.environment())
        self.assertIn("expected doctest", self.report())
        self.assert_no_build()
        self.assertEqual(self.results()["speed, train, portable kernels"], ("passed", ""))

    def test_minutes(self):
        self.script("programs/tests/rg_tests", HANG)
        begin = time.monotonic()
        result = self.finish(self.check("--minutes", "0.5", "--programs", "programs"))
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(result.code, 1, result.out)
        self.assert_ended()
        states = [state for _, state, _ in self.table()]
        self.assertEqual(states, ["timed out"] + ["not run"] * (len(states) - 1), result.out)
        self.assertEqual(self.table()[-1][2], "needs 45 s, 0 s left")

    def test_killed(self):
        self.script("programs/bench_train", f"case $* in *profile) {HANG} ;; esac\n{FIGURE}")
        for how in (signal.SIGTERM, signal.SIGKILL):
            process = self.check("tests", "speed", "profile")
            self.assertTrue(self.wait_for(process, lambda: "begun" in self.report()))
            if how == signal.SIGKILL:
                job.kill_job(process)
            process.send_signal(how)
            result = self.finish(process)
            text = self.report()
            for part in ("== unit tests, portable kernels", "kernels=portable net=cifar mode=train",
                         "-- passed", "== profile, portable kernels\nbegun"):
                self.assertIn(part, text)
            if how == signal.SIGTERM:
                self.assertEqual(result.code, 1, result.out)
                self.assertEqual(self.results()["profile, portable kernels"], ("failed", "stopped by a signal"))
                self.assertEqual(self.table()[-1][1:], ("not run", "stopped by a signal"))
            self.assert_ended()
            (self.folder / "pids").unlink()
            shutil.rmtree(self.folder / "out")
            shutil.rmtree(self.folder / "tools" / "bench")

    def test_help(self):
        text = self.succeed(self.command("--help"))
        self.assertTrue(text.startswith("Runs all checks") and text.endswith("were not run.\n"), text)

    def test_refused(self):
        self.refused("--minutes", "got 'x'", options=["--minutes", "x"])
        self.refused("--munites", "--help", options=["--munites", "60"])
        self.refused("some of the steps", "quick94", "got quick95", options=["quick95"])
        self.remove("ninja")
        self.refused("expected ninja", "--tools", "--programs")
        self.script("bin/nvidia-smi", NVIDIA_SMI.replace("9.0", "7.5"))
        self.refused("sm_80 or newer", "got sm_75")
        self.script("bin/nvidia-smi", "exit 9")
        self.refused("expected a GPU", "nvidia-smi")
        self.assertFalse((self.folder / "out").exists())


job.main()
