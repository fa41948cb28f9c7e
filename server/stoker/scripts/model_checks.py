"""Finds out whether the models that a script calls let rows influence each other: by graph, and by trying rows."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.isolation.onnx.analysis import analyse_onnx
from stoker.isolation.row_test import Evidence, try_rows
from stoker.isolation.tensorflow.analysis import analyse_function
from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.handle_calls import HandleCall, convert_like
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.script_sample import Sample
from stoker.scripts.self_check import Disproved
from stoker.tensors import NUMERIC_DTYPES, TensorInfo

_DYNAMIC: Final = ("torch.ao.nn.quantized.dynamic.", "torch.nn.quantized.dynamic.")


def read_handle(call: HandleCall) -> GraphAnalysis:
    """Analyse the graph of the model of a call; unknown if it has no readable graph."""
    handle = call.handle
    match call.name:
        case "InferenceSession.run":
            # ONNX Runtime keeps the path or the bytes of the model.
            model = getattr(handle, "_model_bytes", None) or getattr(handle, "_model_path", None)
            if isinstance(model, bytes):
                return analyse_onnx(model)
            return analyse_onnx(Path(model)) if model else GraphAnalysis("unknown")
        case "ConcreteFunction.__call__":
            return analyse_function(handle)
        case _:
            return GraphAnalysis("unknown")


def try_handle(call: HandleCall, max_rows: int, *, proven: bool) -> Evidence:
    """Put companions beside the rows of a call."""
    sample = {str(place): _plain(array) for place, array in enumerate(call.arrays)}
    if any(array.dtype.name not in NUMERIC_DTYPES and array.dtype != object for array in sample.values()):
        return Evidence("unknown", f"{call.name} takes arrays of another kind than numbers and texts")
    inputs = [TensorInfo(name, _dtype(array), (-1, *array.shape[1:])) for name, array in sample.items()]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        arrays = [_restored(array, feeds[str(place)]) for place, array in enumerate(call.arrays)]
        return dict(_arrays_of(call.on(arrays).make(), "result", len(feeds["0"])))

    return try_rows(run, inputs, [max_rows], sample, proven=proven)


def dynamically_quantised() -> str | None:
    """Return the class of a live module of PyTorch that takes scales from whole batches, or None."""
    if "torch" not in sys.modules:
        return None
    # Modules that are no longer used may lie in cycles.
    gc.collect()
    names = (f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.get_objects())
    return next((name for name in names if name.startswith(_DYNAMIC)), None)


def check_quantisation() -> None:
    """Raise Disproved if a module of PyTorch takes scales from whole batches."""
    quantised = dynamically_quantised()
    if quantised is not None:
        raise Disproved(
            f"the script has loaded {quantised}, which takes the scale of its input from all rows"
        )


def _dtype(array: np.ndarray) -> str:
    return "string" if array.dtype == object else array.dtype.name


def _plain(array: Any) -> np.ndarray:
    """Return the array from which companions are made: its texts are `bytes`."""
    plain = np.asarray(array)
    if plain.dtype.kind in "SUT":
        plain = plain.astype(object)
    if plain.dtype == object:
        texts = np.empty(plain.size, object)
        texts[:] = [text.encode() if isinstance(text, str) else text for text in plain.reshape(-1).tolist()]
        plain = texts.reshape(plain.shape)
    return plain


def _restored(original: Any, plain: np.ndarray) -> Any:
    """Return the rows of `plain` in the types that the script gives to the model."""
    if plain.dtype != object or not isinstance(original, np.ndarray):
        return convert_like(original, plain)
    first = next(iter(original.reshape(-1).tolist()), b"")
    texts = np.empty(plain.size, object)
    texts[:] = [text.decode() if isinstance(first, str) else text for text in plain.reshape(-1).tolist()]
    return texts.reshape(plain.shape)


def _arrays_of(value: Any, name: str, rows: int) -> Iterable[tuple[str, np.ndarray]]:
    """Yield the arrays in a model's result; a list with an entry for each row, such as a classifier's, is one."""
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


def check_models(calls: ScriptCalls, sample: Sample, max_rows: int) -> None:
    """Raise Disproved if a model that the script calls for a sample lets rows influence each other."""
    check_quantisation()
    gathered = GatheredCalls(calls, max_rows=max_rows, max_threads=1)
    try:
        _, seen = gathered.record_calls(sample.request(with_head=calls.wants_head))
    finally:
        gathered.close()
    for call in {call.kind: call for call in seen}.values():
        check_model(call, max_rows)


def check_model(call: HandleCall, max_rows: int) -> Evidence:
    """Raise Disproved if the rows of a call influence each other, by the model's graph or beside companions."""
    reading = read_handle(call)
    if reading.finding == "mixed":
        raise Disproved(f"{call.name}: {reading.reason}")
    evidence = try_handle(call, max_rows, proven=reading.finding == "apart")
    if evidence.finding == "mixed":
        raise Disproved(f"{call.name}: {evidence.reason}")
    return evidence
