"""Checks that a script gives the same answers batched as alone.

Answers agree if structure, texts, truth values and whole numbers are equal, and fractions are close.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.isolation.batching import GraphAnalysis
from stoker.isolation.onnx.analysis import analyse_onnx
from stoker.isolation.row_test import Evidence, try_rows
from stoker.isolation.tensorflow.analysis import analyse_function
from stoker.scripts.handles import GatheredCalls, HandleCall, convert_like
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging import Unsplittable
from stoker.system.logs import SELF_CHECK, requests_in_log
from stoker.tensors import NUMERIC_DTYPES, TensorInfo
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest

RELATIVE: Final = 1e-3
ABSOLUTE: Final = 1e-5
_SHOWN_CHARACTERS: Final = 60


def answer_difference(alone: ScriptAnswer, batched: ScriptAnswer) -> str | None:
    """Say in what two answers differ, or None if callers could not tell them apart."""
    if (alone.status, alone.lines, alone.failed) != (batched.status, batched.lines, batched.failed):
        return f"status {alone.status} alone, {batched.status} batched"
    if alone.body == batched.body:
        return None
    try:
        values = json.loads(alone.body), json.loads(batched.body)
    except ValueError:
        return f"{_shown(alone.body)} alone, {_shown(batched.body)} batched"
    return difference(*values)


def difference(alone: Any, batched: Any, where: str = "") -> str | None:
    """Say where two values differ and how, or None if they agree.

    Fractions agree if they differ by at most 1e-5 plus a thousandth of the largest number in their list: a device
    may compute rows in another order when there are more of them, and what it adds up is as large as that.

    Args:
        alone: JSON values, numpy arrays, or eager tensors.
    """
    if hasattr(alone, "numpy") and hasattr(batched, "numpy"):
        alone, batched = alone.numpy(), batched.numpy()
    if type(alone) is type(batched):
        match alone:
            case np.ndarray():
                return _array_difference(alone, batched, where)
            case dict() if list(alone) == list(batched):
                return _first(difference(alone[key], batched[key], f"{where}[{key!r}]") for key in alone)
            case list() | tuple() if len(alone) == len(batched):
                return _list_difference(alone, batched, where)
            case str() if alone != batched:
                return _text_difference(alone, batched, where)
            case float():
                return _array_difference(np.array([alone]), np.array([batched]), where)
            case dict() | list() | tuple():
                pass
            case _ if alone == batched:
                return None
    return f"{where or 'the answer'} is {_shown(alone)} alone, {_shown(batched)} batched"


def _list_difference(alone: Sequence[Any], batched: Sequence[Any], where: str) -> str | None:
    if alone and all(type(item) is float for item in (*alone, *batched)):
        return _array_difference(np.array(alone), np.array(batched), where)
    return _first(
        difference(mine, theirs, f"{where}[{place}]")
        for place, (mine, theirs) in enumerate(zip(alone, batched, strict=True))
    )


def _array_difference(alone: np.ndarray, batched: np.ndarray, where: str) -> str | None:
    if alone.shape != batched.shape or alone.dtype != batched.dtype:
        return (
            f"{where or 'the answer'} is {alone.dtype.name}{list(alone.shape)} alone, "
            f"{batched.dtype.name}{list(batched.shape)} batched"
        )
    if alone.dtype.kind == "f":
        wrong = ~_close(alone.astype(np.float64), batched.astype(np.float64))
    else:
        wrong = alone != batched
    if not wrong.any():
        return None
    place = tuple(int(index) for index in np.argwhere(wrong)[0]) if alone.ndim else ()
    shown = "".join(f"[{index}]" for index in place) if alone.size > 1 else ""
    # As objects of Python: numpy shows its own with their types.
    mine, theirs = alone.astype(object)[place], batched.astype(object)[place]
    return (
        f"{where}{shown or ('' if where else 'the answer')} is {_shown(mine)} alone, {_shown(theirs)} batched"
    )


def _close(alone: np.ndarray, batched: np.ndarray) -> np.ndarray:
    finite = np.isfinite(alone) & np.isfinite(batched)
    size = np.where(finite, np.abs(alone), 0)
    scale = size.max(axis=-1, keepdims=True, initial=0) if alone.ndim else size
    with np.errstate(invalid="ignore"):
        near = np.abs(alone - batched) <= ABSOLUTE + RELATIVE * scale
    same = (alone == batched) | (np.isnan(alone) & np.isnan(batched))
    return np.asarray(np.where(finite, near, same))


def _text_difference(alone: str, batched: str, where: str) -> str | None:
    """Texts that hold JSON agree if what they hold does."""
    if alone[:1] in ("[", "{") and batched[:1] == alone[:1]:
        try:
            return difference(json.loads(alone), json.loads(batched), where)
        except ValueError:
            pass
    return f"{where or 'the answer'} is {_shown(alone)} alone, {_shown(batched)} batched"


def _first(differences: Any) -> str | None:
    return next((found for found in differences if found is not None), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


# Further rows made from a few: other numbers of the same kind in the same places.


_ATTEMPTS: Final = 8
_MOST_FRUITLESS_LEAVES: Final = 500_000
"""Attempts that give nothing new take seconds for large rows, and a row of zeros has no variations."""


def variations(rows: Sequence[Any], count: int) -> list[Any]:
    """Return up to `count` different rows: first those given, then ones made of them.

    Numbers change places with others of their row, are halved, or come from the same place of another row; whole
    numbers stay whole, and nothing grows. Words of a text change places. The result is the same each time. What is
    tried is bounded, so there may be fewer.
    """
    random = np.random.default_rng(0)
    made: dict[str, Any] = {repr(row): row for row in rows[:count]}
    fruitless_leaves = 0
    for attempt in range(_ATTEMPTS * count):
        if len(made) >= count or fruitless_leaves > _MOST_FRUITLESS_LEAVES:
            break
        known = list(made.values())
        parent, other = random.integers(len(known), size=2).tolist()
        varied = vary(known[parent], known[other], attempt, random)
        if made.setdefault(repr(varied), varied) is varied:
            fruitless_leaves = 0
        else:
            fruitless_leaves += sum(1 for _ in _leaves(varied))
    return list(made.values())


def vary(row: Any, other: Any, attempt: int, random: np.random.Generator) -> Any:
    """Return a variation of a row: halved leaves, leaves in other places, or some leaves of another row in turn."""
    leaves, others = list(_leaves(row)), list(_leaves(other))
    match attempt % 3:
        case 0:
            leaves = [_halved(leaf) for leaf in leaves]
        case 1:
            _change_places(leaves, random)
        case 2 if len(others) == len(leaves):
            chosen = random.random(len(leaves)) < 0.5
            leaves = [
                theirs if pick and type(theirs) is type(mine) else mine
                for mine, theirs, pick in zip(leaves, others, chosen.tolist(), strict=True)
            ]
    return _refilled(row, iter(leaves))


def _change_places(leaves: list[Any], random: np.random.Generator) -> None:
    for kind in (int, float):
        places = [place for place, leaf in enumerate(leaves) if type(leaf) is kind]
        values = [leaves[place] for place in random.permutation(places).tolist()]
        for place, value in zip(places, values, strict=True):
            leaves[place] = value
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, str):
            leaves[place] = " ".join(random.permutation(leaf.split(" ")).tolist())


def _halved(leaf: Any) -> Any:
    if type(leaf) is int:
        return leaf // 2
    return leaf / 2 if type(leaf) is float else leaf


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _refilled(value: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(value, dict):
        return {key: _refilled(item, leaves) for key, item in value.items()}
    if isinstance(value, list):
        return [_refilled(item, leaves) for item in value]
    return next(leaves)


# Whether the models that a script calls let rows see each other: read, and tried with companions.


_DYNAMIC: Final = ("torch.ao.nn.quantized.dynamic.", "torch.nn.quantized.dynamic.")


def read_handle(call: HandleCall) -> GraphAnalysis:
    """Read the graph of the model that a call is for; unknown where there is none that can be read."""
    handle = call.handle
    match call.name:
        case "InferenceSession.run":
            # ONNX Runtime keeps what it was given: a path, or the model itself.
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
    """The class of a module of PyTorch that has been made and takes scales from whole batches, or None."""
    if "torch" not in sys.modules:
        return None
    # Of one that was thrown away, cycles may be left.
    gc.collect()
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


def _restored(original: Any, plain: np.ndarray) -> Any:
    """The rows of `plain` as the script would give them to the model."""
    if plain.dtype != object or not isinstance(original, np.ndarray):
        return convert_like(original, plain)
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
    """A request that the script is known to answer."""

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
    """Look at what a script calls for a sample: no model of it may let rows see each other."""
    quantised = dynamically_quantised()
    if quantised is not None:
        raise Disproved(
            f"the script has loaded {quantised}, which takes the scale of its input from all rows"
        )
    gathered = GatheredCalls(calls, max_rows=max_rows, max_threads=1)
    try:
        _, seen = gathered.record_calls(sample.request(with_head=calls.wants_head))
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
    """Score a sample twice, and return the first answer."""
    request = sample.request(with_head=calls.wants_head)
    try:
        first, second = score_once(calls, request), score_once(calls, request)
    except Exception as error:
        raise Disproved(f"run() fails for {sample.source}: {reason_of(error)}") from error
    if first.status != 200:
        raise Disproved(f"run() answers {sample.source} with status {first.status}")
    differs = answer_difference(first, second)
    if differs is not None:
        raise Disproved(f"two equal requests got different answers: {differs}")
    return first


def score_once(calls: ScriptCalls, request: ScriptRequest) -> ScriptAnswer:
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
