"""Trains with the programs of ringgrad, and predicts with trained models. Needs only Python and files of ringgrad.

    import ringgrad
    run = ringgrad.train("~/photos", ranks=4, size=64, net="resnet18", epochs=20)
    for event in run:                      # the lines of metrics.jsonl as dicts, as they come
        print(event)
    model = run.model()                    # or ringgrad.Model("runs/flowers"), or Model(BYTES) of a model.safetensors
    for result in model.predict(["rose.jpg", "lily.png"]):
        print(result["class"], result["score"])

A training is a process of its own. It goes on if Ctrl-C interrupts a wait or a loop, and if Python ends or is killed.
run.stop() ends it with a checkpoint. In another session, ringgrad.runs()[0].stop() and tools/monitor do so. A script
whose training must not outlive it calls run.stop() in a `finally` clause.

Programs are searched for beside this file, in ../bin, and on PATH. The library for predictions is searched for beside
this file, and then where the system finds libraries; the environment variable RG_LIBRARY names another one. Every error
is a ringgrad.Error, except that reading a file may raise OSError.
"""
import contextlib
import ctypes
import fcntl
import functools
import json
import numbers
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import uuid

_NAME = "libringgrad_predict.so"
_TEXTS = ("rg_class_name", "rg_target_name", "rg_target_unit")
_COUNTS = ("rg_height", "rg_width", "rg_channels", "rg_class_count", "rg_target_count")


class Error(Exception):
    """Tells of a wrong model, image or argument, or of a training that failed."""


@functools.lru_cache(maxsize=None)
def _library():
    beside = pathlib.Path(__file__).resolve().parent / _NAME
    path = os.environ.get("RG_LIBRARY") or (str(beside) if beside.exists() else f"{_NAME}.0")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Error(f"ringgrad: expected {_NAME} beside {__file__}, got: {error}; copy it there, or set RG_LIBRARY to "
                    "its path") from None
    pointer, size, count = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    text, floats = ctypes.c_char_p, ctypes.POINTER(ctypes.c_float)
    signatures = {"rg_open": (pointer, text, count), "rg_open_memory": (pointer, text, size, count),
                  "rg_close": (None, pointer), "rg_last_error": (text,),
                  "rg_feature_count": (count, pointer, text),
                  "rg_predict_features": (count, pointer, text, text, size, count, count, count, floats, size),
                  "rg_predict_file_features": (count, pointer, text, text, size, floats, size),
                  **{name: (count, pointer) for name in _COUNTS},
                  **{name: (text, pointer, count) for name in _TEXTS}}
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _checked(result):
    """Returns the result of a function of the library, or raises Error if the result says that it failed."""
    if result is None or result == -1:
        raise Error(_library().rg_last_error().decode(errors="replace"))
    return result


def _encoded(path, what):
    try:
        encoded = os.fsencode(path)
    except (TypeError, ValueError):
        encoded = b"\0"
    if b"\0" in encoded:
        got = repr(path) if isinstance(path, str) else type(path).__name__
        raise Error(f"{what}: expected bytes, or a path without zero bytes, got {got}")
    return encoded


def _expanded(path, what):
    return os.path.expanduser(os.fsdecode(_encoded(path, what)))


def _pixels(image):
    """Returns the bytes [height width channels] of a Pillow image, upright and in grey or RGB, as from its file."""
    from PIL import ImageOps
    if image.mode[:1] in ("I", "F"):
        raise Error(f"predict: expected a Pillow image of 8 bits, got mode {image.mode}; give the path of its file")
    with contextlib.suppress(Exception):  # damaged EXIF counts as none
        image = ImageOps.exif_transpose(image)
    try:
        image = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
    except Exception as error:  # Pillow raises many types
        raise Error(f"predict: expected a whole image, got one of mode {image.mode}: {error}") from None
    return memoryview(image.tobytes()).cast("B", (image.height, image.width, len(image.mode)))


class _Handle:
    """A model in C. The last reference closes it, so Model.close() need not wait for predictions."""

    def __init__(self, pointer):
        self._as_parameter_, self._close = pointer, _library().rg_close

    def __del__(self):
        self._close(self)


class Model:
    """A trained model. Threads may share one; those that have a model of their own predict in parallel. A copy, and a
    model that was pickled for another process, opens the same file or bytes again. After fork(), open a model again.

    height, width, channels: of the images that the network takes
    classes: the names of the classes
    targets: (name, unit) of each number or label that the network predicts in addition to the class
    """

    def __init__(self, source, threads=0):
        """Loads a model from a run's folder or a file, or from the bytes of a file. Predicts on `threads` threads, or
        on one per available core if that is 0."""
        if not isinstance(threads, numbers.Integral) or threads not in range(4097):
            raise Error(f"threads: expected a number from 0 to 4096, got {threads!r}")
        threads = int(threads)
        if isinstance(source, (bytes, bytearray, memoryview)):
            content = bytes(source)
            model = _library().rg_open_memory(content, len(content), threads)
        else:
            content = _expanded(source, "model")
            content = content and os.path.join(os.getcwd(), content)  # not abspath(), which removes LINK/..
            model = _library().rg_open(os.fsencode(content), threads)
        self._model, self._arguments = _Handle(_checked(model)), (content, threads)
        self.height, self.width, self.channels, classes, targets = (
            _checked(getattr(_library(), name)(self._model)) for name in _COUNTS)
        self.classes = self._texts("rg_class_name", classes)
        self.targets = list(zip(self._texts("rg_target_name", targets), self._texts("rg_target_unit", targets)))

    def close(self):
        """Frees the model when predictions of other threads end. `with Model(...) as model:` does so at its end."""
        self._model = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        self._handle()
        return type(self), self._arguments

    def _handle(self):
        if self._model is None:
            raise Error("model: expected an open one, got one after close(); open it again")
        return self._model

    def predict(self, images, features=None):
        """Predicts for one image or several, of any size, and returns a list with a dict for each image:
        {"class": name, "score": its probability, "scores": [a probability per class], "targets": {name: value}}. A
        model without classes gives no "class" and "score". With features="layer4", or another layer of the network, a
        dict also has "features": the means of the layer's channels over all pixels.

        images: the path of a PNG or a JPEG, its bytes, a Pillow image, an array of bytes [height width], [height width
        channels] or [n height width channels] (of NumPy, or of anything else that memoryview() takes), or a list of
        these. JPEG files and Pillow images are turned upright as EXIF says.
        """
        if isinstance(images, (list, tuple)):
            return [result for image in images for result in self.predict(image, features)]
        if isinstance(images, (str, os.PathLike)):
            content = pathlib.Path(_expanded(images, "predict")).read_bytes()
            try:
                return self.predict(content, features)
            except Error as error:
                raise Error(f"{images}: {error}") from None
        pillow = sys.modules.get("PIL.Image")
        try:
            view = memoryview(_pixels(images) if pillow and isinstance(images, pillow.Image) else images)
        except (TypeError, ValueError, BufferError):
            raise Error("predict: expected a path, bytes, an array of bytes, a Pillow image or a list of these, got "
                        f"{type(images).__name__}") from None
        if view.ndim == 1 and view.itemsize == 1:
            return self._predict("rg_predict_file_features", features, 1, view.tobytes(), view.nbytes)
        if view.ndim not in (2, 3, 4) or view.format.lstrip("@=<>!") != "B":
            raise Error(f"predict: expected an array of bytes of 2 to 4 extents, got format {view.format} and extents "
                        f"{list(view.shape)}; convert it, for NumPy with (255 * a).round().astype('uint8') if its "
                        "values are 0 to 1, or with a.astype('uint8') if they are 0 to 255")
        shape = view.shape if view.ndim == 4 else (1, *view.shape, 1)[:4]
        return self._predict("rg_predict_features", features, shape[0], view.tobytes(), *shape)

    def _texts(self, name, count):
        return [_checked(getattr(_library(), name)(self._model, i)).decode(errors="surrogateescape")
                for i in range(count)]

    def _predict(self, name, features, n, *arguments):
        if not isinstance(features, (str, type(None))):
            raise Error(f"features: expected the name of a layer, got {type(features).__name__}")
        layer = (features or "").encode(errors="replace")
        row = len(self.classes) + len(self.targets)
        row += _checked(_library().rg_feature_count(self._handle(), layer))
        outputs = (ctypes.c_float * (n * row))()
        _checked(getattr(_library(), name)(self._handle(), layer, *arguments, outputs, n * row))
        return [self._result(outputs[i * row:(i + 1) * row]) for i in range(n)]

    def _result(self, outputs):
        scores, numbers = outputs[:len(self.classes)], outputs[len(self.classes):]
        result = {"scores": scores, "targets": {name: value for (name, _), value in zip(self.targets, numbers)}}
        if len(numbers) > len(self.targets):
            result["features"] = numbers[len(self.targets):]
        if scores:
            best = scores.index(max(scores))
            result.update({"class": self.classes[best], "score": scores[best]})
        return result


def default_runs():
    """Returns the default of --runs, by the same rule as default_runs_folder() (models/run/run_folder.h)."""
    here = pathlib.Path.cwd()
    for levels, folder in enumerate((here, *here.parents)):
        if (folder / "meson-private").is_dir():
            return levels * "../" + "../runs"
    return "runs"


def last_change(folder):
    """Returns when the files of a run were written last, in nanoseconds, or 0 if the folder is not a run."""
    with contextlib.suppress(OSError):  # the folder may be another user's
        files = [pathlib.Path(folder, name) for name in ("config.json", "metrics.jsonl", "report.html")]
        return max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)
    return 0


def is_locked(folder, parent=None):
    """Returns True if a process trains the run in a folder, a path or a name in the open folder `parent`. Returns False
    if the folder is a link, or if the file system has no locks."""
    with contextlib.suppress(OSError):
        run = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            fcntl.flock(run, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(run)
    return False


def report_members(page, parse=json.loads):
    """Returns the members of the run or sweep that the text of a report.html shows."""
    data = parse(page.partition('<script id="data" type="application/json">')[2].partition("</script>")[0])
    return data["sweep"] if "sweep" in data else data["runs"][0]


def _argument(name, value):
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    values = value if isinstance(value, (list, tuple)) else [value]
    return f"--{name}=" + ",".join(os.path.expanduser(str(value)) for value in values)


def train(data=None, program="train_cifar", ranks=1, **options):
    """Starts a training and returns its Run at once. If an option is wrong, waiting for the run raises Error.

    data: a folder of images, or a text for --data such as "s3://bucket/photos/"; None: the program's default
    program: the name of a training program, or the path of your own
    ranks: number of processes; mpiexec starts them if it is above 1
    options: those that PROGRAM --help-all lists, with _ for -. resume=True is --resume, report=False is --no-report.
        The elements of a list are joined by commas. None counts as not given.
    """
    if not isinstance(ranks, numbers.Integral) or ranks < 1:
        raise Error(f"ranks: expected a number of at least 1, got {ranks!r}")
    here = pathlib.Path(__file__).resolve().parent
    folders = [str(here), str(here.parent / "bin"), os.environ.get("PATH", os.defpath)]
    path = shutil.which(_expanded(program, "program"), path=os.pathsep.join(folders))
    if not path:
        raise Error(f"program: expected one in {folders[0]}, {folders[1]} or PATH, got {str(program)!r}; give its path")
    options["data"] = data
    command = [path, *(_argument(name, value) for name, value in options.items() if value is not None)]
    if ranks > 1:
        command = [shutil.which("mpiexec"), "-n", str(ranks), *command]
        if not command[0]:
            raise Error(f"ranks: expected mpiexec in PATH for {ranks} ranks, got none; install MPI, or give ranks=1")
    return Run(options.get("runs") or default_runs(), command)


def runs(folder=None):
    """Returns the runs in a folder, the newest first. The default is the folder into which train() puts them."""
    root = pathlib.Path(_expanded(folder or default_runs(), "runs"))
    if folder and not root.is_dir():
        raise Error(f"runs: expected a folder of runs, got {str(folder)!r}")
    return [Run(path) for path in sorted(root.glob("*"), key=last_change, reverse=True) if last_change(path)]


class Run:
    """A training that runs or has ended. train() starts one. Run("runs/NAME") opens one, also of an earlier session.

    `for event in run` gives each line of metrics.jsonl as a dict, from the first line on, as they come. The loop ends
    with the training, and raises Error if that failed.
    """

    def __init__(self, folder, _command=None):
        folder = pathlib.Path(_expanded(folder, "run")).resolve()
        self._folder, self._process, self._stopped, self._output = folder, None, False, []
        if not _command:
            if not last_change(folder):
                raise Error(f"run: expected the folder of a run, got {str(folder)!r}; ringgrad.runs() lists runs")
            return
        # The run's owner.json will have this job. So its folder is found even if the program chooses the name.
        self._folder, self._root, self._job = None, folder, f"ringgrad.py-{uuid.uuid4().hex}"
        # The output goes into files, since a pipe would block the training if nobody reads it.
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            try:
                self._process = subprocess.Popen(_command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                                 env={**os.environ, "RG_JOB": self._job}, start_new_session=True)
            except (OSError, ValueError) as error:
                raise Error(f"train: expected arguments that start {_command[0]}, got: {error}") from None
            self._output = [open(file.name, encoding="utf-8", errors="replace", newline="") for file in (out, err)]

    def __repr__(self):
        return f"<ringgrad.Run {self.name}: {self.state}>"

    def __iter__(self):
        begin, running = 0, True
        while running:
            running = self.state == "running"  # before the read, so that the last read misses no line
            events, begin = self._read_metrics(begin)
            yield from events
            time.sleep(0.1 if running else 0)
        self.wait(progress=False)

    @property
    def folder(self):
        """The run's folder, or None before the training begins: while it loads images, or if it failed then."""
        for owner in [] if self._folder else self._root.glob("*/owner.json"):
            with contextlib.suppress(OSError):
                # A resumed run has old files. After owner.json, it writes metrics.jsonl and config.json again.
                begun = last_change(owner.parent) >= owner.stat().st_mtime_ns
                if begun and self._job.encode() in owner.read_bytes():
                    self._folder = owner.parent
        return self._folder

    @property
    def name(self):
        """The name of the run's folder, or None before the training begins."""
        return self.folder and self.folder.name

    @property
    def config(self):
        """The contents of config.json, such as "program", "ranks" and "options"."""
        return json.loads((self._begun() / "config.json").read_bytes())

    @property
    def metrics(self):
        """A list of all events so far, for pandas.DataFrame(run.metrics). Those of epochs have no "step"."""
        return self._read_metrics(0)[0]

    @property
    def state(self):
        """"running", "done", "stopped" (by a request) or "failed" (also: killed). A run of an earlier session without
        report.html, which says how it ended, is "ended"."""
        code = self._process.poll() if self._process else 0
        if code is None or not self._process and is_locked(self._folder):
            return "running"
        if code not in (0, 75) and (self.folder or not self._stopped):  # 75: stopped by a signal (models/run/signals.h)
            return "failed"
        state = self._in_report("state")
        otherwise = "ended" if not self._process else "stopped" if code or self._stopped else "done"
        return "failed" if state == "running" else state or otherwise

    def wait(self, progress=True):
        """Blocks until the training has ended, and returns the run. Raises Error if it failed. With `progress`, prints
        the program's output, in which its option progress="bar" redraws one line. The output of an earlier session is
        lost."""
        running = True
        while running:
            running = self.state == "running"
            for line in [line for file in self._output for line in file.readlines()]:
                if progress and not line.startswith("error: "):  # the Error below has this line
                    print(line, end="", flush=True)
            time.sleep(0.1 if running else 0)
        if self.state == "failed":
            raise Error(self._error())
        return self

    def stop(self):
        """Asks the training to save a checkpoint and end, and returns at once. While it loads images, it ends without a
        checkpoint. To go on later: train(resume=True, run_name=run.name)."""
        if self.state != "running":
            return
        if self.folder:
            (self.folder / "stop").touch()
        elif not self._stopped:  # a second signal would kill it
            self._process.terminate()
        self._stopped = True

    def model(self, best=False):
        """Returns the network of the last epoch as a Model, or with `best` that of the best epoch."""
        return Model(self._begun() / ("model-best.safetensors" if best else "model.safetensors"))

    def _begun(self):
        if not self.folder:
            raise Error(self._error() if self.state == "failed" else
                        f"run: expected a training that has begun, got one that is {self.state} and has no folder yet")
        return self.folder

    def _in_report(self, member):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return report_members((self.folder / "report.html").read_text(encoding="utf-8")).get(member)
        return None

    def _read_metrics(self, begin):
        """Returns the events of metrics.jsonl from an offset on, and the offset of the next one."""
        try:
            with open(self.folder / "metrics.jsonl", "rb") as file:
                file.seek(begin)
                content = file.read()
        except (FileNotFoundError, TypeError):  # TypeError: there is no folder yet
            return [], begin
        content, events = content[:content.rfind(b"\n") + 1], []  # a kill may cut the last line off
        for line in content.splitlines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
        return events, begin + len(content)

    def _error(self):
        """Returns why the training failed: the program's first error line, or how it ended."""
        lines, how = [], "one that was killed"
        if self._process:
            self._output[1].seek(0)
            lines = self._output[1].read().splitlines()
            how = "; ".join([f"exit status {self._process.poll()}", *lines[-1:]])
        for line in lines:
            if line.startswith("error: "):
                return line[len("error: "):]
        return self._in_report("note") or (f"{self.folder or self._process.args[0]}: expected a training that ends by "
                                           f"itself, got {how}; resume=True goes on from its last checkpoint")
