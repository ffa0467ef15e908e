"""Predicts with a model that ringgrad has trained. Needs only Python and libringgrad_predict.so.

    import ringgrad
    model = ringgrad.Model("runs/flowers")                 # or the bytes of its model.safetensors
    for result in model.predict(["rose.jpg", "lily.png"]):
        print(result["class"], result["score"])

The library is searched for beside this file, and then where the system finds libraries. The environment variable
RG_LIBRARY names another one. Every error is a ringgrad.Error, or of reading a file an OSError.
"""
import ctypes
import os
import pathlib

_NAME = "libringgrad_predict.so"
_TEXTS = ("rg_class_name", "rg_target_name", "rg_target_unit")
_COUNTS = ("rg_height", "rg_width", "rg_channels", "rg_class_count", "rg_target_count")


class Error(Exception):
    """A wrong model, image or argument."""


def _load():
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


_library = _load()


def _checked(result):
    """Returns the result of a function, or raises Error if it has failed."""
    if result is None or result == -1:
        raise Error(_library.rg_last_error().decode(errors="replace"))
    return result


class Model:
    """A trained model. Threads may share one; those that have a model of their own predict in parallel.

    height, width, channels: of the images that the network takes
    classes: the names of the classes
    targets: (name, unit) of each number that the network predicts in addition to the class
    """

    def __init__(self, source, threads=0):
        """Loads a model from a run's folder or a file, or from the bytes of a file. Predicts on `threads` threads, or
        on one per available core if that is 0."""
        self._model = None
        if isinstance(source, (bytes, bytearray, memoryview)):
            content = bytes(source)
            self._model = _checked(_library.rg_open_memory(content, len(content), threads))
        else:
            self._model = _checked(_library.rg_open(os.fsencode(source), threads))
        self.height, self.width, self.channels, classes, targets = (
            _checked(getattr(_library, name)(self._model)) for name in _COUNTS)
        self.classes = self._texts("rg_class_name", classes)
        self.targets = list(zip(self._texts("rg_target_name", targets), self._texts("rg_target_unit", targets)))

    def __del__(self):
        if getattr(self, "_model", None):
            _library.rg_close(self._model)

    def predict(self, images):
        """Predicts for one image or several, of any size, and returns a list with a dict for each image:
        {"class": name, "score": its probability, "scores": [a probability per class], "targets": {name: value}}. Without
        classes, a model gives no "class" and "score".

        images: the path of a PNG or a JPEG, its bytes, an array of bytes [height width channels] or [n height width
        channels] (of NumPy, or of anything else that memoryview() takes), or a list of these.
        """
        if isinstance(images, (list, tuple)):
            return [result for image in images for result in self.predict(image)]
        if isinstance(images, (str, os.PathLike)):
            try:
                return self.predict(pathlib.Path(images).read_bytes())
            except Error as error:
                raise Error(f"{images}: {error}") from None
        try:
            view = memoryview(images)
        except TypeError:
            raise Error("predict: expected a path, bytes, an array of bytes or a list of these, got "
                        f"{type(images).__name__}; numpy.asarray(image) makes arrays of images") from None
        content = view.tobytes()
        if view.ndim == 1:
            return self._predict("rg_predict_file", 1, content, len(content))
        if view.ndim not in (3, 4) or view.format != "B":
            raise Error("predict: expected an array [height width channels] or [n height width channels] of unsigned "
                        f"bytes, got {list(view.shape)} of format {view.format}; convert it, for NumPy with "
                        "a.astype('uint8')")
        n, height, width, channels = view.shape if view.ndim == 4 else (1, *view.shape)
        return self._predict("rg_predict", n, content, n, height, width, channels)

    def _texts(self, name, count):
        return [_checked(getattr(_library, name)(self._model, i)).decode(errors="surrogateescape")
                for i in range(count)]

    def _predict(self, name, n, *arguments):
        row = len(self.classes) + len(self.targets)
        outputs = (ctypes.c_float * (n * row))()
        _checked(getattr(_library, name)(self._model, *arguments, outputs, n * row))
        return [self._result(outputs[i * row:(i + 1) * row]) for i in range(n)]

    def _result(self, outputs):
        scores = outputs[:len(self.classes)]
        result = {"scores": scores,
                  "targets": {name: value for (name, _), value in zip(self.targets, outputs[len(scores):])}}
        if scores:
            best = scores.index(max(scores))
            result.update({"class": self.classes[best], "score": scores[best]})
        return result
