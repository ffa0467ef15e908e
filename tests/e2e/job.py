# What the end-to-end tests share: starting the built programs in a fresh folder, waiting with a limit, killing whole
# jobs, and reading what a run has written.
#
# Each test script is called with the build folder and the path of mpiexec ("" if there is none, or if the build has
# no MPI). A job that does not end within LIMIT seconds is killed, and is a failure.
import collections
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

BUILD = pathlib.Path(sys.argv[1]).resolve()
MPIEXEC = sys.argv[2]
LIMIT = 60
SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "data" / "sample"
SIDE = 32
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# A network that trains in a fraction of a second.
TINY = ["--width", "4", "--depth", "1"]

Result = collections.namedtuple("Result", "code out err")


def train(ranks, *options):
    """The command line of train_cifar; a single rank goes without mpiexec."""
    program = [str(BUILD / "train_cifar"), *options]
    return program if ranks == 1 else [MPIEXEC, "-n", str(ranks), *program]


def rank_counts(*counts):
    """Those of the counts that can run here."""
    return [n for n in counts if n == 1 or MPIEXEC]


def job_pids(pid):
    """A process and all that it has started, as far as /proc tells."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # it has ended meanwhile
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def interrupted(ranks):
    """The exit codes after SIGTERM or SIGUSR1. MPICH's mpiexec makes a 0 of it now and then when it has passed the signal
    on (seen with 4.0.2, also of programs that are not ours)."""
    return [75] if ranks == 1 else [75, 0]


def named(process, name):
    """Those of this name among what a process has started."""
    found = []
    for pid in job_pids(process.pid):
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text() == name[:15] + "\n":
                found.append(pid)
        except OSError:
            pass  # it has ended meanwhile
    return found


def trainings(process):
    """The ranks of train_cifar among what a process has started."""
    return named(process, "train_cifar")


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def within_limit(condition):
    """Polls until the condition holds; False if it does not come to."""
    end = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def kill_job(process):
    """SIGKILL to a job: mpiexec, its helpers and all ranks at once."""
    for pid in job_pids(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def step_lines(run):
    """The lines of metrics.jsonl as text, step lines only: they have no timing, so they can be compared as they are."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in lines if line.startswith('{"step"')]


def losses(run):
    return [json.loads(line)["loss"] for line in step_lines(run)]


def epoch_lines(run):
    """The epoch lines of metrics.jsonl as objects, without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timing = ("images_per_s", "seconds")
    return [{k: v for k, v in line.items() if k not in timing} for line in lines if "step" not in line]


def report(run):
    """The data in report.html."""
    page = (run / "report.html").read_text()
    return json.loads(page.partition('<script id="data" type="application/json">')[2].partition("</script>")[0])


def tensor_header(path):
    """The JSON header of a safetensors file, and the number of bytes of data behind it."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + size]), len(content) - 8 - size


def sample_records(name):
    """(label, pixels as R G B planes) of each image of the embedded sample; name: train or test."""
    with tempfile.TemporaryDirectory() as folder:
        raw = pathlib.Path(folder) / "raw"
        subprocess.run([BUILD / "inspect", "--raw", raw, SAMPLE / f"{name}.png"], stdout=subprocess.DEVNULL, check=True)
        rgba = raw.read_bytes()
    image = 4 * SIDE * SIDE
    planes = [b"".join(rgba[i + c:i + image:4] for c in range(3)) for i in range(0, len(rgba), image)]
    return list(zip(map(int, (SAMPLE / f"{name}.txt").read_text().strip()), planes))


def cifar_file(records):
    """The bytes of a CIFAR-10 file with these records."""
    return b"".join(bytes([label]) + planes for label, planes in records)


def interleaved(planes):
    """R G B R G B ... from three planes."""
    size = len(planes) // 3
    return bytes(planes[c * size + i] for i in range(size) for c in range(3))


def png(width, height, samples, colour=2, depth=8):
    """A PNG file of RGB samples (colour 0: grey), in rows; 16-bit samples as big-endian bytes."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    row = len(samples) // height
    rows = b"".join(b"\0" + samples[y * row:(y + 1) * row] for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class JobTest(unittest.TestCase):
    """Each test has a folder of its own, in which the programs run."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ringgrad-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.runs = self.folder / "runs"

    def write_sample(self):
        """A folder with the sample as CIFAR-10 records: train.bin and test.bin."""
        folder = self.folder / "sample"
        folder.mkdir()
        for name in ("train", "test"):
            (folder / f"{name}.bin").write_bytes(cifar_file(sample_records(name)))
        return folder

    def start(self, command, **environment):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RG_")}
        process = subprocess.Popen(command, cwd=self.folder, env=kept | environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(lambda: process.poll() is None and kill_job(process))
        return process

    def finish(self, process):
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            kill_job(process)
            self.fail(f"not finished after {LIMIT} s: {process.args}")
        return Result(process.returncode, out, err)

    def run_command(self, command, **environment):
        return self.finish(self.start(command, **environment))

    def succeed(self, command, **environment):
        """Runs it; gives its standard output. A word on standard error is a failure, too."""
        result = self.run_command(command, **environment)
        self.assertEqual((result.code, result.err), (0, ""), command)
        return result.out

    def train(self, ranks, name, *options):
        """Trains as run `name`; gives the run's folder."""
        self.succeed(train(ranks, "--run-name", name, *options))
        return self.runs / name

    def refuse(self, command, *words, **environment):
        """Runs what must fail: with one line of ours that has all the words, and nothing on standard output."""
        result = self.run_command(command, **environment)
        # mpiexec may add lines of its own.
        lines = [line for line in result.err.splitlines() if line and not line.startswith(("[mpiexec", "[proxy", "="))]
        self.assertNotEqual(result.code, 0, command)
        self.assertEqual(len(lines), 1, (command, result.err))
        for word in words:
            self.assertIn(word, lines[0], command)
        self.assertEqual(result.out, "", command)

    def wait_for(self, process, condition):
        """Polls until the condition holds; False if the job ends before."""
        end = time.monotonic() + LIMIT
        while not condition():
            if process.poll() is not None:
                return False
            self.assertLess(time.monotonic(), end, f"nothing to see after {LIMIT} s: {process.args}")
            time.sleep(0.002)
        return True


def main():
    """Runs the tests of a script, and says why some were skipped: if all were, so is the script."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the tested programs would ignore it, too
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    for test, reason in result.skipped:
        print(f"skipped: {reason} ({test})")
    if result.skipped and len(result.skipped) == result.testsRun:
        sys.exit(77)
    sys.exit(not result.wasSuccessful())
