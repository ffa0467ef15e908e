# Defines the functions that all end-to-end tests share: they start the built programs in a new folder, wait with a
# limit, kill whole jobs, and read the files of a run.
#
# Each test script is called with the build folder and the path of mpiexec ("" if there is none, or if the build has
# no MPI). A job that does not end within LIMIT seconds is killed and fails the test.
import collections
import json
import os
import pathlib
import re
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
SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "data" / "sample"
MONITOR = [sys.executable, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "monitor")]
SIDE = 32
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# True if the programs were built with AddressSanitizer or ThreadSanitizer.
SANITIZED = any(sign in (BUILD / "train_cifar").read_bytes() for sign in (b"__asan_init", b"__tsan_init"))
# Many times what the longest job takes, so that a slow or busy machine fails no test.
LIMIT = 800 if SANITIZED else 200
# A network that trains in a fraction of a second.
TINY = ["--width", "4", "--depth", "1"]

Result = collections.namedtuple("Result", "code out err")


def program(ranks, name, *options):
    """Returns the command line of a program. A single rank runs without mpiexec."""
    command = [str(BUILD / name), *map(str, options)]
    return command if ranks == 1 else [MPIEXEC, "-n", str(ranks), *command]


def train(ranks, *options):
    """Returns the command line of train_cifar. By default, an epoch of the sample has 20 steps."""
    size = [] if any(option.startswith(("--batch-size", "--resume")) for option in options) else ["--batch-size=50"]
    return program(ranks, "train_cifar", *size, *options)


def can_mount():
    """Returns True if tests may mount a small disk."""
    return shutil.which("unshare") and subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"],
        capture_output=True).returncode == 0


def is_mpich():
    """Returns True if mpiexec is that of MPICH (Hydra)."""
    return bool(MPIEXEC) and "HYDRA" in subprocess.run([MPIEXEC, "--version"], stdout=subprocess.PIPE, text=True).stdout


def rank_counts(*counts):
    """Returns the counts that can run here."""
    return [n for n in counts if n == 1 or MPIEXEC]


def job_pids(pid):
    """Returns a process and all of its descendants, as /proc lists them."""
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
    """Returns the valid exit codes after SIGTERM or SIGUSR1. MPICH's mpiexec 4.0.2 sometimes returns 0 instead after it
    has passed on the signal, also for other programs."""
    return [75] if ranks == 1 else [75, 0]


def named(process, name):
    """Returns the descendants of a process that have this name."""
    found = []
    for pid in job_pids(process.pid):
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text() == name[:15] + "\n":
                found.append(pid)
        except OSError:
            pass  # it has ended meanwhile
    return found


def trainings(process):
    """Returns the ranks of train_cifar among the descendants of a process."""
    return named(process, "train_cifar")


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def within_limit(condition):
    """Polls until the condition holds. Returns False if it does not hold within LIMIT seconds."""
    end = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended meanwhile


def kill_job(process):
    """Sends SIGKILL to a job: mpiexec, its helpers and all ranks at once."""
    kill(job_pids(process.pid))
    process.wait()


def step_lines(run):
    """Returns the lines of steps in metrics.jsonl as text. They contain no times, so they can be compared."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in lines if line.startswith('{"step"')]


def losses(run):
    return [json.loads(line)["loss"] for line in step_lines(run)]


def tensors(path):
    """Returns the bytes of each tensor of a safetensors file, by name."""
    content = path.read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:begin])
    offsets = {name: about["data_offsets"] for name, about in header.items() if name != "__metadata__"}
    return {name: content[begin + first:begin + last] for name, (first, last) in offsets.items()}


def epoch_lines(run):
    """Returns the lines of epochs in metrics.jsonl as objects without their times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timing = ("images_per_s", "seconds")
    return [{k: v for k, v in line.items() if k not in timing} for line in lines
            if "step" not in line and "epoch" in line]


def report(run):
    """Returns the data in report.html."""
    page = (run / "report.html").read_text()
    return json.loads(page.partition('<script id="data" type="application/json">')[2].partition("</script>")[0])


def tensor_header(path):
    """Returns the JSON header of a safetensors file, and the number of data bytes after it."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + size]), len(content) - 8 - size


def without_checksums(path):
    """Returns the bytes of a safetensors file as another program would write them, without our checksums."""
    content = path.read_bytes()
    header, size = tensor_header(path)
    for key in ("checksum", "tensor_checksums"):
        del header["__metadata__"][key]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[-size:]


def with_values(path, name, values):
    """Returns the bytes of a safetensors file without our checksums, in which a tensor begins with these floats."""
    content, (header, size) = bytearray(without_checksums(path)), tensor_header(path)
    at = len(content) - size + header[name]["data_offsets"][0]
    content[at:at + 4 * len(values)] = struct.pack(f"<{len(values)}f", *values)
    return content


def varint(content, at):
    value = shift = 0
    while True:
        value |= (content[at] & 0x7f) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 0x80:
            return value, at


def protobuf(message):
    """Yields (number, wire type, value) for each field of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(message, at)
        elif kind == 2:
            size, at = varint(message, at)
            value, at = message[at:at + size], at + size
        else:
            size, form = {1: (8, "<d"), 5: (4, "<f")}[kind]
            (value,), at = struct.unpack(form, message[at:at + size]), at + size
        assert at <= len(message)
        yield key >> 3, kind, value


def sample_records(name):
    """Returns (label, pixels as R G B planes) for each image of the embedded sample; name: train or test."""
    request = f"file {SAMPLE / name}.png\n".encode()
    rgb = subprocess.run([BUILD / "compare_images"], input=request, capture_output=True, check=True).stdout
    rgb = rgb[rgb.index(b"\n") + 1:]  # the first line has the size
    image = 3 * SIDE * SIDE
    planes = [b"".join(rgb[i + c:i + image:3] for c in range(3)) for i in range(0, len(rgb), image)]
    return list(zip(map(int, (SAMPLE / f"{name}.txt").read_text().strip()), planes))


def cifar_file(records):
    """Returns the bytes of a CIFAR-10 file with these records."""
    return b"".join(bytes([label]) + planes for label, planes in records)


def interleaved(planes):
    """Returns R G B R G B ... from three planes."""
    size = len(planes) // 3
    return bytes(planes[c * size + i] for i in range(size) for c in range(3))


def png(width, height, samples, colour=2, depth=8):
    """Returns a PNG file of RGB samples in rows (colour 0: grey). 16-bit samples are big-endian bytes."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    row = len(samples) // height
    rows = b"".join(b"\0" + samples[y * row:(y + 1) * row] for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_png(path, *image, **form):
    """Writes the image of png() and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(*image, **form))


class JobTest(unittest.TestCase):
    """Runs each test in its own folder."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ringgrad-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.runs = self.folder / "runs"

    def write_sample(self, images=None):
        """A folder with the sample, or its first images, as CIFAR-10 records: train.bin and test.bin."""
        folder = self.folder / "sample"
        folder.mkdir()
        for name in ("train", "test"):
            (folder / f"{name}.bin").write_bytes(cifar_file(sample_records(name)[:images]))
        return folder

    def assert_same_training(self, run, other):
        """Compares the steps and the models of two runs bit by bit."""
        names = f"{run.name} and {other.name}"
        self.assertEqual(step_lines(run), step_lines(other), names)
        self.assertEqual((run / "model.safetensors").read_bytes(), (other / "model.safetensors").read_bytes(), names)

    def assert_resumes(self, ranks, name, options, whole):
        """Kills a training after two checkpoints, resumes it, and compares its model with that of the run `whole`."""
        run = self.runs / "parts"
        process = self.start(program(ranks, name, *options, "--run-name", run.name, "--checkpoint-every", "1"))
        killed = self.wait_for(process, lambda: len(list(run.glob("checkpoint/*.safetensors"))) > 1)
        kill_job(process)
        self.assertTrue(killed)
        self.succeed(program(ranks, name, "--run-name", run.name, "--resume"))
        self.assertEqual((run / "model.safetensors").read_bytes(), (whole / "model.safetensors").read_bytes())

    def start(self, command, **environment):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RG_")}
        kept["XDG_CACHE_HOME"] = str(self.folder / "cache-home")
        process = subprocess.Popen(command, cwd=self.folder, env=kept | environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(lambda: process.poll() is None and kill_job(process))
        return process

    def finish(self, process, code=None):
        """Waits for a job, which must end with this code if it is given."""
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            kill_job(process)
            self.fail(f"not finished after {LIMIT} s: {process.args}")
        # The progress of copying and packing data is no error.
        err = "".join(line for line in err.splitlines(keepends=True) if not line.startswith(("copying", "packing", "waiting")))
        if code is not None:
            self.assertEqual(process.returncode, code, err)
        return Result(process.returncode, out, err)

    def expect_end(self, process, code=0):
        """Waits for a job that must end with this code and without an error. Returns its standard output."""
        result = self.finish(process)
        self.assertEqual((result.code, result.err), (code, ""))
        return result.out

    def start_monitor(self, port=0):
        """Starts tools/monitor and returns its process and address."""
        monitor = self.start([*MONITOR, "--port", str(port)])
        return monitor, monitor.stdout.readline().strip()

    def run_command(self, command, **environment):
        return self.finish(self.start(command, **environment))

    def succeed(self, command, **environment):
        """Runs a command and returns its standard output. Any output on standard error fails the test."""
        result = self.run_command(command, **environment)
        # Many tests predict or test for the images of a training.
        allowed = ("also has the images of the training", "are training images too")
        err = [line for line in result.err.splitlines() if not any(text in line for text in allowed)]
        self.assertEqual((result.code, err), (0, []), command)
        return result.out

    def train(self, ranks, name, *options):
        """Trains as run `name` and returns the run's folder."""
        self.succeed(train(ranks, "--run-name", name, *options))
        return self.runs / name

    def refuse(self, command, *words, **environment):
        """Runs a command that must fail with one line that has all the words, and without standard output. Returns it."""
        result = self.run_command(command, **environment)
        # mpiexec may add its own lines. On a very busy machine, a second rank may report the same error.
        lines = [line for line in result.err.splitlines() if line and not line.startswith(("[mpiexec", "[proxy", "="))]
        self.assertNotEqual(result.code, 0, command)
        self.assertEqual(len({re.sub(r" \(rank \d+\)$", "", line) for line in lines}), 1, (command, result.err))
        for word in words:
            self.assertIn(word, lines[0], command)
        self.assertEqual(result.out, "", command)
        return lines[0]

    def wait_for(self, process, condition):
        """Polls until the condition holds. Returns False if the job ends before."""
        end = time.monotonic() + LIMIT
        while not condition():
            if process.poll() is not None:
                return False
            self.assertLess(time.monotonic(), end, f"nothing to see after {LIMIT} s: {process.args}")
            time.sleep(0.002)
        return True


def main():
    """Runs the tests of a script and prints why tests were skipped. Skips the script if all tests were skipped."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the tested programs would ignore it, too
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    for test, reason in result.skipped:
        print(f"skipped: {reason} ({test})")
    if result.skipped and len(result.skipped) == result.testsRun:
        sys.exit(77)
    sys.exit(not result.wasSuccessful())
