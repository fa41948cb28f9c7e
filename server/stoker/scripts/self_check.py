"""Proof, on a sample input, that a script answers requests together as it answers each of them alone.

Whatever is compared has been run alone first. A script is steady if it gives equal answers to equal requests; rows
are made different from each other, so that a script which looks at other rows (a mean over the batch, a rank) gives
itself away; companies have several sizes and orders, so that a list that happens to be as long as the batch does too.

Alone and together are compared closely, not exactly: other shapes have other kernels. In companies of one shape the
answer to a row must be the same to the last character, whatever is beside it (`stoker.isolation.row_test` has the
reason), and the models that a script calls are read and tried in the same way.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.isolation.onnx.reading import read_onnx
from stoker.isolation.reading import Reading
from stoker.isolation.row_test import Evidence, try_rows
from stoker.isolation.tensorflow.reading import read_concrete_function
from stoker.scripts.agreement import answer_difference
from stoker.scripts.calls import ScriptCalls
from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.handles import HandleCall, like
from stoker.scripts.merging import Unsplittable
from stoker.system.logs import SELF_CHECK, requests_in_log
from stoker.tensors import NUMERIC_DTYPES, TensorInfo
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest

__all__ = [
    "Disproved",
    "Sample",
    "answer_of",
    "check_model",
    "check_models",
    "compare_answers",
    "dynamically_quantised",
    "read_handle",
    "reason_of",
    "steady_answer",
    "try_handle",
]


# Whether the models that a script calls let rows see each other: read, and tried with companions.


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


_SHOWN: Final = 200


class Disproved(Exception):
    """Requests to this script cannot be run together; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that the script is known to answer.

    Attributes:
        body: What it holds.
        content_type: Of which type that is.
        source: Where it comes from, for the operator.
    """

    body: bytes
    content_type: str
    source: str

    def request(self, body: bytes | None = None, rows: int = 0, *, with_head: bool = False) -> ScriptRequest:
        """Return a request like the sample, with its body or another one."""
        content = self.body if body is None else body
        headers = [("content-type", self.content_type), ("content-length", str(len(content)))]
        head = RequestHead("POST", "/score", "", headers, "127.0.0.1") if with_head else None
        return ScriptRequest(SELF_CHECK, content, rows, head)


def check_models(calls: ScriptCalls, sample: Sample, max_rows: int) -> None:
    """Look at what a script calls for a sample: no model of it may let rows see each other.

    Raises:
        Disproved: One does.
    """
    quantised = dynamically_quantised()
    if quantised is not None:
        raise Disproved(
            f"the script has loaded {quantised}, which takes the scale of its input from all rows"
        )
    gathered = GatheredCalls(calls, max_rows=max_rows, max_threads=1)
    try:
        _, seen = gathered.watch(sample.request(with_head=calls.wants_head))
    finally:
        gathered.close()
    for call in {call.kind: call for call in seen}.values():
        check_model(call, max_rows)


def check_model(call: HandleCall, max_rows: int) -> Evidence:
    """Raise Disproved if the rows of a call see each other, by its graph or beside companions."""
    reading = read_handle(call)
    if reading.finding == "mixed":
        raise Disproved(f"{call.name}: {reading.reason}")
    evidence = try_handle(call, max_rows, proven=reading.finding == "apart")
    if evidence.finding == "mixed":
        raise Disproved(f"{call.name}: {evidence.reason}")
    return evidence


def steady_answer(calls: ScriptCalls, sample: Sample) -> ScriptAnswer:
    """Score a sample twice, and return the first answer.

    Raises:
        Disproved: The script fails, or equal requests get different answers.
    """
    request = sample.request(with_head=calls.wants_head)
    try:
        first, second = answer_of(calls, request), answer_of(calls, request)
    except Exception as error:
        raise Disproved(f"run() fails for {sample.source}: {reason_of(error)}") from error
    if first.status != 200:
        raise Disproved(f"run() answers {sample.source} with status {first.status}")
    differs = answer_difference(first, second)
    if differs is not None:
        raise Disproved(f"two equal requests got different answers: {differs}")
    return first


def answer_of(calls: ScriptCalls, request: ScriptRequest) -> ScriptAnswer:
    """Score one request, without a word in the log if it fails."""
    with requests_in_log(SELF_CHECK):
        return calls.encode(calls.invoke(calls.arguments(request)), 0)


def compare_answers(alone: Iterable[ScriptAnswer], batched: Iterable[ScriptAnswer], what: str) -> None:
    """Raise Disproved, with `what` was answered together, where callers could tell it from what they get alone."""
    for mine, theirs in zip(alone, batched, strict=True):
        differs = answer_difference(mine, theirs)
        if differs is not None:
            raise Disproved(f"{what} gets another answer: {differs}")


def reason_of(error: BaseException) -> str:
    """Return what an exception says in one short line."""
    text = str(error) if isinstance(error, Unsplittable) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
