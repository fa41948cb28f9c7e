"""Compares answers that a script gives alone and batched.

Answers agree if structure, texts, truth values and whole numbers are equal, and fractions are close.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stoker.wire.script_requests import ScriptAnswer

RELATIVE: Final = 1e-3
ABSOLUTE: Final = 1e-5
_SHOWN_CHARACTERS: Final = 60


def answer_difference(alone: ScriptAnswer, batched: ScriptAnswer) -> str | None:
    """Return the difference of two answers; None if callers could not tell them apart."""
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
    """Return the place and the difference of two values; None if they agree.

    Fractions agree if they differ by at most 1e-5 plus a thousandth of the largest number in their list: a device may
    add numbers in another order if there are more rows, and the numbers that it adds are about that large.

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
    # Python's numbers: numpy shows its own with their types.
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
    """Return the difference of two texts; texts of JSON agree if their values do."""
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
