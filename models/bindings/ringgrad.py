"""Predicts with a model that ringgrad has trained. Needs only Python and libringgrad_predict.so.

    import ringgrad
    model = ringgrad.Model("runs/flowers")                 # or the bytes of its model.safetensors
    for result in model.predict(["rose.jpg", "lily.png"]):
        print(result["class"], result["score"])

The library is searched for beside this file, and then where the system finds libraries. The environment variable
RG_LIBRARY names another one. Every error is a ringgrad.Error, or of reading a file an OSError.
"""
import contextlib
import ctypes
import functools
import numbers
import os
import pathlib
import sys

_NAME = "libringgrad_predict.so"
_TEXTS = ("rg_class_name", "rg_target_name", "rg_target_unit")
_COUNTS = ("rg_height", "rg_width", "rg_channels", "rg_class_count", "rg_target_count")


class Error(Exception):
    """A wrong model, image or argument."""


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
                  "rg_predict": (count, pointer, text, size, count, count, count, floats, size),
                  "rg_predict_file": (count, pointer, text, size, floats, size),
                  **{name: (count, pointer) for name in _COUNTS},
                  **{name: (text, pointer, count) for name in _TEXTS}}
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _checked(result):
    """Returns the result of a function, or raises Error if it has failed."""
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


def _pixels(image):
    """Returns a Pillow image as an array, upright and in grey or RGB, as from its file."""
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
    targets: (name, unit) of each number that the network predicts in addition to the class
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
            content = os.fsdecode(_encoded(source, "model"))
            content = content and os.path.join(os.getcwd(), content)  # abspath() would remove LINK/..
            model = _library().rg_open(os.fsencode(content), threads)
        self._model, self._arguments = _Handle(_checked(model)), (content, threads)
        self.height, self.width, self.channels, classes, targets = (
            _checked(getattr(_library(), name)(self._model)) for name in _COUNTS)
        self.classes = self._texts("rg_class_name", classes)
        self.targets = list(zip(self._texts("rg_target_name", targets), self._texts("rg_target_unit", targets)))

    def close(self):
        """Frees the model, after predictions of other threads. `with Model(...) as model:` does so at its end."""
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

    def predict(self, images):
        """Predicts for one image or several, of any size, and returns a list with a dict for each image:
        {"class": name, "score": its probability, "scores": [a probability per class], "targets": {name: value}}. Without
        classes, a model gives no "class" and "score".

        images: the path of a PNG or a JPEG, its bytes, a Pillow image, an array of bytes [height width], [height width
        channels] or [n height width channels] (of NumPy, or of anything else that memoryview() takes), or a list of
        these. JPEG files and Pillow images are turned upright as EXIF says.
        """
        if isinstance(images, (list, tuple)):
            return [result for image in images for result in self.predict(image)]
        if isinstance(images, (str, os.PathLike)):
            content = pathlib.Path(os.fsdecode(_encoded(images, "predict"))).read_bytes()
            try:
                return self.predict(content)
            except Error as error:
                raise Error(f"{images}: {error}") from None
        pillow = sys.modules.get("PIL.Image")
        try:
            view = memoryview(_pixels(images) if pillow and isinstance(images, pillow.Image) else images)
        except (TypeError, ValueError, BufferError):
            raise Error("predict: expected a path, bytes, an array of bytes, a Pillow image or a list of these, got "
                        f"{type(images).__name__}") from None
        if view.ndim == 1 and view.itemsize == 1:
            return self._predict("rg_predict_file", 1, view.tobytes(), view.nbytes)
        if view.ndim not in (2, 3, 4) or view.format.lstrip("@=<>!") != "B":
            raise Error(f"predict: expected an array of bytes of 2 to 4 extents, got format {view.format} and extents "
                        f"{list(view.shape)}; convert it, for NumPy with (255 * a).round().astype('uint8') if its "
                        "values are 0 to 1, or with a.astype('uint8') if they are 0 to 255")
        shape = view.shape if view.ndim == 4 else (1, *view.shape, 1)[:4]
        return self._predict("rg_predict", shape[0], view.tobytes(), *shape)

    def _texts(self, name, count):
        return [_checked(getattr(_library(), name)(self._model, i)).decode(errors="surrogateescape")
                for i in range(count)]

    def _predict(self, name, n, *arguments):
        row = len(self.classes) + len(self.targets)
        outputs = (ctypes.c_float * (n * row))()
        _checked(getattr(_library(), name)(self._handle(), *arguments, outputs, n * row))
        return [self._result(outputs[i * row:(i + 1) * row]) for i in range(n)]

    def _result(self, outputs):
        scores = outputs[:len(self.classes)]
        result = {"scores": scores,
                  "targets": {name: value for (name, _), value in zip(self.targets, outputs[len(scores):])}}
        if scores:
            best = scores.index(max(scores))
            result.update({"class": self.classes[best], "score": scores[best]})
        return result
