"""Whether the models that a script calls let rows see each other: read, and tried with companions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.isolation.onnx.reading import read_onnx
from stoker.isolation.reading import Reading
from stoker.isolation.row_test import Evidence, try_rows
from stoker.isolation.tensorflow.reading import read_concrete_function
from stoker.scripts.handles import HandleCall, like
from stoker.tensors import NUMERIC_DTYPES, TensorInfo

__all__ = ["dynamically_quantised", "read_handle", "try_handle"]

_DYNAMIC: Final = ("torch.ao.nn.quantized.dynamic.", "torch.nn.quantized.dynamic.")


def read_handle(call: HandleCall) -> Reading:
    """Read the graph of the model that a call is for; unknown where there is none that can be read."""
    handle = call.handle
    match call.name:
        case "InferenceSession.run":
            # ONNX Runtime keeps what it was given: a path, or the model itself.
            model = getattr(handle, "_model_bytes", None) or getattr(handle, "_model_path", None)
            if isinstance(model, bytes):
                return read_onnx(model)
            return read_onnx(Path(model)) if model else Reading("unknown")
        case "ConcreteFunction.__call__":
            return read_concrete_function(handle)
        case _:
            return Reading("unknown")


def try_handle(call: HandleCall, max_rows: int, *, proven: bool) -> Evidence:
    """Put companions beside the rows of a call.

    Args:
        call: A call whose arguments are known, as the script has made it.
        max_rows: Most rows that a call may have.
        proven: Whether its graph says that rows are apart.
    """
    sample = {str(place): _plain(array) for place, array in enumerate(call.arrays)}
    if any(array.dtype.name not in NUMERIC_DTYPES and array.dtype != object for array in sample.values()):
        return Evidence("unknown", f"{call.name} takes arrays of another kind than numbers and texts")
    inputs = [TensorInfo(name, _dtype(array), (-1, *array.shape[1:])) for name, array in sample.items()]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        arrays = [_as_it_was(array, feeds[str(place)]) for place, array in enumerate(call.arrays)]
        return dict(_arrays_of(call.on(arrays).make(), "result", len(feeds["0"])))

    return try_rows(run, inputs, [max_rows], sample, proven=proven)


def dynamically_quantised() -> str | None:
    """The class of a module of PyTorch that has been made and takes scales from whole batches, or None."""
    if "torch" not in sys.modules:
        return None
    names = (f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.get_objects())
    return next((name for name in names if name.startswith(_DYNAMIC)), None)


def _dtype(array: np.ndarray) -> str:
    return "string" if array.dtype == object else array.dtype.name


def _plain(array: Any) -> np.ndarray:
    """As companions are made of it: texts as `bytes`."""
    plain = np.asarray(array)
    if plain.dtype.kind in "SUT":
        plain = plain.astype(object)
    if plain.dtype == object:
        texts = np.empty(plain.size, object)
        texts[:] = [text.encode() if isinstance(text, str) else text for text in plain.reshape(-1).tolist()]
        plain = texts.reshape(plain.shape)
    return plain


def _as_it_was(original: Any, plain: np.ndarray) -> Any:
    """The rows of `plain` as the script would give them to the model."""
    if plain.dtype != object or not isinstance(original, np.ndarray):
        return like(original, plain)
    first = next(iter(original.reshape(-1).tolist()), b"")
    texts = np.empty(plain.size, object)
    texts[:] = [text.decode() if isinstance(first, str) else text for text in plain.reshape(-1).tolist()]
    return texts.reshape(plain.shape)


def _arrays_of(value: Any, name: str, rows: int) -> Iterable[tuple[str, np.ndarray]]:
    """The arrays in a model's result; a list with an entry for each row, such as a classifier's, is one."""
    if isinstance(value, np.ndarray) or hasattr(value, "numpy"):
        yield name, np.asarray(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays_of(item, f"{name}[{key!r}]", rows)
    elif _is_list_of_rows(value, rows):
        entries = np.empty(rows, object)
        entries[:] = value
        yield name, entries
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for place, item in enumerate(value):
            yield from _arrays_of(item, f"{name}[{place}]", rows)
    else:
        raise TypeError(f"{name} is {type(value).__name__}, which has no entry for each row")


def _is_list_of_rows(value: Any, rows: int) -> bool:
    if type(value) is not list or len(value) != rows:
        return False
    return not any(isinstance(item, np.ndarray | list | tuple) or hasattr(item, "numpy") for item in value)
