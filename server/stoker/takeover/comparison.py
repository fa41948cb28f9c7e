"""Differences between the answers of two versions to the same requests.

Answers are rows, packed tensors, or entry scripts' JSON; comparisons of parts of the requests can be added up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
import orjson
from msgspec import Struct, field

from stoker.errors import ServingError
from stoker.isolation.difference import largest_difference
from stoker.system.wording import format_count
from stoker.tensors import Signature
from stoker.wire.script_requests import ScriptAnswer

Answer = Mapping[str, np.ndarray]
"""The fields of an answer to one request by name: the outputs of a model, or the members of a script's JSON."""

Result = Literal["same", "close", "different", "not_finite", "failed"]
RESULTS: Final[tuple[Result, ...]] = ("same", "close", "different", "not_finite", "failed")
"""Results of one request: equal answers; within the tolerance; different; numbers that are not finite only in the new
version's answer; no answer of the new version."""

_SUM_OF_SHARES: Final = 1e-3


class FieldDifference(Struct, frozen=True):
    """The differences in one field.

    Attributes:
        largest: The largest difference between two numbers; infinite if the field cannot be compared.
        relative: The same relative to the largest number of the field in that answer.
        classified: How many answers had a class in it: a label, or scores with a largest one.
        flipped: In how many of them the classes differ.
    """

    largest: float = 0.0
    relative: float = 0.0
    classified: int = 0
    flipped: int = 0

    def __add__(self, other: FieldDifference) -> FieldDifference:
        return FieldDifference(
            max(self.largest, other.largest),
            max(self.relative, other.relative),
            self.classified + other.classified,
            self.flipped + other.flipped,
        )

    def __str__(self) -> str:
        flips = (
            f", {self.flipped} of {format_count(self.classified, 'class', 'classes')} flip"
            if self.classified
            else ""
        )
        return f"at most {self.largest:.3g} ({self.relative:.3g} of the largest number){flips}"


class Comparison(Struct, frozen=True):
    """The results of running requests through an old and a new version.

    Attributes:
        old_ns, new_ns: How long each answer took on the device, in nanoseconds.
    """

    results: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, FieldDifference] = field(default_factory=dict)
    old_ns: tuple[int, ...] = ()
    new_ns: tuple[int, ...] = ()

    @property
    def requests(self) -> int:
        """Number of compared requests."""
        return sum(self.results.values())

    @property
    def agrees(self) -> bool:
        """Whether requests were compared, and no difference is beyond the tolerance."""
        return self.requests > 0 and self.requests == self.results.get("same", 0) + self.results.get(
            "close", 0
        )

    @property
    def flips(self) -> bool:
        """Whether a class of any field differs."""
        return any(one.flipped for one in self.fields.values())

    @property
    def latency_ratio(self) -> float | None:
        """The median time of the new version divided by that of the old one; None if unknown."""
        if not self.old_ns or not self.new_ns:
            return None
        return statistics.median(self.new_ns) / max(1, statistics.median(self.old_ns))

    def __add__(self, other: Comparison) -> Comparison:
        results: dict[str, int] = {
            result: self.results.get(result, 0) + other.results.get(result, 0)
            for result in RESULTS
            if result in self.results or result in other.results
        }
        none = FieldDifference()
        fields = {
            name: self.fields.get(name, none) + other.fields.get(name, none)
            for name in dict.fromkeys((*self.fields, *other.fields))
        }
        return Comparison(results, fields, self.old_ns + other.old_ns, self.new_ns + other.new_ns)

    def __str__(self) -> str:
        counts = ", ".join(
            f"{self.results[result]} {result}" for result in RESULTS if self.results.get(result)
        )
        parts = [f"{format_count(self.requests, 'request')} compared: {counts or 'none'}"]
        parts += [
            f"{name or 'the answer'} differs by {one}" for name, one in self.fields.items() if one.relative
        ]
        if self.latency_ratio is not None:
            parts.append(f"{self.latency_ratio:.2f} times the time on the device")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types; null stands for an infinite difference."""
        return {
            "requests": self.requests,
            "results": dict(self.results),
            "fields": {
                name: {
                    "largest": _finite(one.largest),
                    "relative": _finite(one.relative),
                    "classified": one.classified,
                    "flipped": one.flipped,
                }
                for name, one in self.fields.items()
            },
            "latency_ratio": self.latency_ratio,
        }


def compare(
    old: Answer, new: Answer | None, tolerance: float, old_ns: int | None = None, new_ns: int | None = None
) -> Comparison:
    """Compare the answers to one request.

    Args:
        tolerance: The largest tolerated difference, relative to the largest number of a field.
    """
    times = Comparison(
        old_ns=() if old_ns is None else (old_ns,), new_ns=() if new_ns is None or new is None else (new_ns,)
    )
    if new is None:
        return times + Comparison({"failed": 1})
    # numpy raises on overflow in frontends.
    with np.errstate(all="ignore"):
        fields = {name: _difference(old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))}
    relative = max((one.relative for one in fields.values()), default=0.0)
    result: Result = "same"
    if any(_lost_finite(array, new.get(name)) for name, array in old.items()):
        result = "not_finite"
    elif relative > tolerance:
        result = "different"
    elif relative:
        result = "close"
    return times + Comparison({result: 1}, fields)


def alike(old: Signature, new: Signature) -> bool:
    """Return whether two versions have the same inputs and outputs, so that their answers can be compared.

    A model that keeps state depends on all requests before, and a copied request would be one of those.
    """
    return _shown(old) == _shown(new) and not (old.keeps_state or new.keeps_state)


def _shown(signature: Signature) -> tuple[Any, ...]:
    """Return the parts of a signature that callers see: not the room of variable rows."""
    specs = tuple(
        replace(spec, shape=(0,), labels=()) if spec.variable else replace(spec, labels=())
        for spec in (*signature.inputs, *signature.outputs)
    )
    kind = None if signature.script is None else signature.script.kind
    tensors = None if signature.tensors is None else str(signature)
    return specs, len(signature.inputs), signature.takes, kind, tensors


def _difference(old: np.ndarray | None, new: np.ndarray | None) -> FieldDifference:
    if old is None or new is None:
        return FieldDifference(math.inf, math.inf)
    old, new = _of_one_kind(old, new)
    relative = largest_difference([new], [old])
    largest = _largest(old, new) if relative else 0.0
    before, after = _classes(old), _classes(new)
    if before is None:
        return FieldDifference(largest, relative)
    return FieldDifference(largest, relative, 1, int(before != after))


def _of_one_kind(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert numbers of two types to one: JSON does not distinguish 1 and 1.0."""
    if old.dtype != new.dtype and old.dtype.kind in "iuf" and new.dtype.kind in "iuf":
        return old.astype(np.float64), new.astype(np.float64)
    return old, new


def _largest(old: np.ndarray, new: np.ndarray) -> float:
    """Return the largest difference between two numbers; infinite if the values are not numbers."""
    if old.shape != new.shape or old.dtype.kind not in "iuf" or new.dtype.kind not in "iuf" or not old.size:
        return math.inf
    before, after = old.astype(np.float64), new.astype(np.float64)
    equal = (before == after) | (np.isnan(before) & np.isnan(after))
    largest = float(np.abs(after - before)[~equal].max(initial=0.0))
    return largest if math.isfinite(largest) else math.inf


def _classes(array: np.ndarray) -> list[Any] | None:
    """Return the classes in an answer: the largest of each row of scores, or a label; None if there are none."""
    if array.dtype.kind != "f":
        return array.reshape(-1).tolist() if array.size == 1 else None
    columns = array.shape[-1] if array.ndim else 0
    rows = array.ndim == 2 and len(array) > 0
    shares = array.ndim == 1 and bool((array >= 0).all()) and abs(float(array.sum()) - 1) < _SUM_OF_SHARES
    if columns < 2 or not (rows or shares) or not np.isfinite(array).all():
        return None
    best: list[Any] = np.atleast_1d(array.argmax(axis=-1)).tolist()
    return best


def _lost_finite(old: np.ndarray, new: np.ndarray | None) -> bool:
    """Return whether the new answer has NaN or infinities, and the old one has none."""
    if new is None or new.dtype.kind != "f" or old.dtype.kind not in "iuf":
        return False
    return bool(np.isfinite(old).all()) and not bool(np.isfinite(new).all())


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


_MAX_DEPTH: Final = 8
_STATUS: Final = "status"


def json_fields(body: bytes) -> dict[str, np.ndarray]:
    """Return the members of a JSON object by name, with dots for inner objects; any other value has an empty name.

    Lists of numbers with one shape become arrays. Everything else is compared as text.
    """
    try:
        value = orjson.loads(body)
    except ValueError:
        return {"": _one(body)}
    fields: dict[str, np.ndarray] = {}
    _gather(value, "", fields, 0)
    return fields


def script_fields(row: bytes) -> dict[str, np.ndarray]:
    """Return the fields of an entry script's answer, and its status unless that is 200.

    Raises:
        ServingError: The script failed.
    """
    answer = ScriptAnswer.unpack(row)
    if answer.failed:
        raise ServingError(f"The script has failed with status {answer.status}.")
    fields = json_fields(answer.body)
    if answer.status != 200:
        fields[_STATUS] = np.array([answer.status])
    return fields


def _gather(value: Any, name: str, fields: dict[str, np.ndarray], depth: int) -> None:
    if isinstance(value, dict) and value and depth < _MAX_DEPTH:
        for key, inner in value.items():
            _gather(inner, f"{name}.{key}" if name else key, fields, depth + 1)
        return
    fields[name] = _array(value)


def _array(value: Any) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError:  # lists of different lengths
        array = np.empty(0, object)
    return array if array.dtype.kind in "biuf" else _one(orjson.dumps(value))


def _one(text: bytes) -> np.ndarray:
    array = np.empty(1, object)
    array[0] = text
    return array
