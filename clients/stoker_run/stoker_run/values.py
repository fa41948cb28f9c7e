"""Values of metrics: whatever a script logs as JSON, and back."""

import contextlib
import math
import numbers
import sys
from typing import Any, Union

__all__ = ["column", "from_json", "scalar", "to_json"]

_TEXTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Scalar = Union[int, float, bool, str]


def scalar(value: Any) -> Scalar:
    """A value as one of Python's own types; what is none of them becomes its `repr`, with a line on stderr.

    numpy's and others' scalars (anything with `item()` that has one element) become what they hold.
    """
    kind = type(value)
    if kind is float or kind is int or kind is bool or kind is str:
        return value  # type: ignore[no-any-return]
    item = getattr(value, "item", None)
    # tf.Tensor of older versions has no item(), but numpy().
    if item is None and hasattr(value, "numpy"):
        value = value.numpy()
        item = getattr(value, "item", None)
    if item is not None and getattr(value, "size", 1) == 1:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            value = item()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    sys.stderr.write(f"stoker_run: a value of {type(value).__name__} is logged as its repr\n")
    return repr(value)


def to_json(value: Any) -> Any:
    """A scalar as it stands in a line: NaN and infinities as texts."""
    value = scalar(value)
    if type(value) is float and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def column(value: Any) -> Any:
    """A scalar, or a list of them, as it stands in a line."""
    if not isinstance(value, (str, bytes)) and hasattr(value, "tolist") and getattr(value, "ndim", False):
        value = value.tolist()
    if isinstance(value, (list, tuple, set, range)):
        return [to_json(one) for one in value]
    return to_json(value)


def from_json(value: Any) -> Any:
    """What was logged: the texts of NaN and infinities are numbers again, also within lists and columns."""
    if isinstance(value, str):
        return _TEXTS.get(value, value)
    if isinstance(value, list):
        return [from_json(one) for one in value]
    if isinstance(value, dict):
        return {name: from_json(one) for name, one in value.items()}
    return value
