"""The precision of a model on a GPU: its answers are compared with float32, and too large differences are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from stoker.errors import LoadFailed
from stoker.isolation.difference import largest_difference
from stoker.isolation.made_up_rows import sample_feeds
from stoker.runtimes.packed import Run
from stoker.tensors import TensorInfo, number_kind

logger = logging.getLogger(__name__)

_MOST_DIFFERENCE: Final = {"fp16": 5e-2, "bf16": 1e-1}
"""By how much of the largest output the answers in a precision may differ from those in float32."""
_NEAR_TIE: Final = 0.2
"""A class may change if both scores differ by at most this part of the allowed difference."""


def is_converted(precision: str) -> bool:
    """Whether a model's weights are converted for a precision."""
    return precision in _MOST_DIFFERENCE


def check_converts_on(name: str, precision: str, device_kind: str) -> None:
    """Raise LoadFailed if a model on the CPU is to be converted."""
    if device_kind == "cpu" and is_converted(precision):
        raise LoadFailed(
            f"{name}: precision: {precision} is for GPUs, and the model runs on the CPU in float32; leave it out"
        )


def check_precision(
    name: str, precision: str, run: Run, reference: Callable[[], Run], inputs: Sequence[TensorInfo]
) -> float | None:
    """Compare a model on a GPU with float32 on the CPU on two made-up rows.

    Args:
        reference: Loads the original model on the CPU; not called if the model does not take made-up rows.

    Returns:
        The largest difference, relative to the largest output; None if the model does not take the rows.

    Raises:
        LoadFailed: Numbers of 16 bits differ too much, change a class, or overflow.
    """
    try:
        feeds = sample_feeds(inputs, 2)
        outputs = run(feeds)
        expected = reference()(feeds)
    except Exception as error:  # noqa: BLE001  # a model may raise any error for made-up inputs
        level = logging.WARNING if is_converted(precision) else logging.INFO
        logger.log(
            level,
            "%s: precision %s cannot be compared with float32 on the CPU: %s", name, precision, error,
        )  # fmt: skip
        return None
    return compare_precision(name, precision, outputs, expected)


def compare_precision(
    name: str, precision: str, outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> float:
    """Compare the answers in a precision with those in float32.

    Returns:
        The largest difference, relative to the largest output.

    Raises:
        LoadFailed: Numbers of 16 bits differ too much, change a class, or overflow.
    """
    difference = float_difference(outputs, expected)
    bound = _MOST_DIFFERENCE.get(precision)
    if bound is None:
        return difference
    for key, array in outputs.items():
        is_float = number_kind(array.dtype) == "f"
        if is_float and np.isfinite(expected[key]).all() and not np.isfinite(array).all():
            raise LoadFailed(
                f"{name}: with precision: {precision} the output {key!r} is not finite, its numbers are too "
                "large; use precision: tf32"
            )
    if difference > bound:
        raise LoadFailed(
            f"{name}: with precision: {precision} its outputs differ by {difference:.2g} of the largest one; "
            "use precision: tf32"
        )
    for key, array in outputs.items():
        if _changes_class(array, expected[key], _NEAR_TIE * bound):
            raise LoadFailed(
                f"{name}: with precision: {precision} the largest value of a row of the output {key!r} is another "
                "one; use precision: tf32"
            )
    return difference


def describe_difference(difference: float, reference: str) -> str:
    """Return how far outputs are from those of a reference, in words."""
    if not difference:
        return f"outputs equal those of {reference}"
    return f"outputs differ from {reference} by {difference:.2g} of the largest one"


def float_difference(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Return the largest relative difference of floats; integers may depend on the last bit of a float."""
    names = [name for name, array in expected.items() if number_kind(array.dtype) == "f"]
    return largest_difference([outputs[name] for name in names], [expected[name] for name in names])


def _changes_class(outputs: np.ndarray, expected: np.ndarray, near_tie: float) -> bool:
    """Whether another column of a row is the largest, and its expected score was lower by more than a near tie."""
    if expected.ndim != 2 or expected.shape[1] < 2 or number_kind(expected.dtype) != "f":
        return False
    scores = expected.astype(np.float64)
    if not np.isfinite(scores).all():
        return False
    chosen = np.take_along_axis(scores, outputs.argmax(1)[:, None], axis=1)[:, 0]
    return bool((scores.max(1) - chosen > near_tie * np.abs(scores).max(initial=0.0)).any())
