"""Finds rows whose answers have NaN or infinities although their inputs have none."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stoker.tensors import finite_rows


def count_unexplained(inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray], rows: int) -> int:
    """Return the number of rows whose answers are not finite although their inputs are.

    Args:
        inputs: The inputs, `[rows, ...]` each; read only if an answer is not finite.
    """
    finite_answers = finite_rows(outputs, rows)
    if finite_answers is None:
        return 0
    finite_inputs = finite_rows(inputs, rows)
    return int(
        np.count_nonzero(~finite_answers if finite_inputs is None else ~finite_answers & finite_inputs)
    )
