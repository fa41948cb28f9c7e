"""What a device process needs of a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stoker.tensors import Signature

__all__ = ["Outputs", "RowFailure", "Runtime"]


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Stands in a variable output for a row that failed while the others of its batch did not.

    Attributes:
        error: Why; `stoker.errors.InvalidInput` where what the caller sent is to blame, and the caller is to be told.
    """

    error: BaseException


Outputs = Sequence["np.ndarray | Sequence[bytes | RowFailure]"]
"""Per output an array `[rows, *row_shape]`, or for a variable output one item per row."""


class Runtime(Protocol):
    """A loaded servable. One thread at a time calls `run`."""

    signature: Signature

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Run one batch.

        Args:
            inputs: Per input an array `[rows, *row_shape]`, valid only during the call; for a variable
                input one `bytes` per row.

        Raises:
            Exception: The whole batch failed; the caller may try it again in parts.
        """
        ...
