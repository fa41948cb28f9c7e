"""Facts about a row's batch, packed into one number of the row's header when it is answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, Self

import numpy as np

from stoker.metrics.layout import REASONS, TARGET_REASONS

__all__ = ["BatchFacts", "packed_facts"]

_REASONS: Final = (*REASONS, *TARGET_REASONS)
_ROWS_BITS: Final = 20
"""No batch has more than 65,536 rows."""
_MOST: Final = (1 << _ROWS_BITS) - 1
# 0 means that nothing is known of the batch.
_CODES: Final = {reason: code << 3 * _ROWS_BITS for code, reason in enumerate(_REASONS, 1)}
_LONE: Final = {reason: code | 1 << 2 * _ROWS_BITS | 1 << _ROWS_BITS | 1 for reason, code in _CODES.items()}


class _Rows(Protocol):
    """Rows of a batch that came from one frontend."""

    @property
    def position(self) -> np.ndarray:
        """The positions of the rows within their requests, `int64[rows]`; a request begins at 0."""


def packed_facts(rows: int, size: int, reason: str, lots: Iterable[_Rows]) -> int:
    """Pack the facts of a batch into one positive int64; those of a batch of one row are precomputed.

    Args:
        rows: Number of rows in the batch.
        size: Number of rows after padding.
        reason: Why the batch was dispatched, one of `REASONS` or `TARGET_REASONS`.
        lots: The rows, by the frontend they came from.
    """
    if size == 1:
        return _LONE[reason]
    requests = rows
    for lot in lots:
        requests -= int(np.count_nonzero(lot.position))
    # A batch that only continues a request begins none.
    return _CODES[reason] | (requests or 1) << 2 * _ROWS_BITS | size << _ROWS_BITS | rows


class BatchFacts(NamedTuple):
    """A batch, as described by one of its rows.

    Attributes:
        rows: Number of rows.
        padding_rows: Number of rows added to fill the batch up to its bucket.
        requests: Number of requests that began in it; at least 1.
        left: Why it was dispatched, one of `REASONS` or `TARGET_REASONS`.
    """

    rows: int
    padding_rows: int
    requests: int
    left: str

    @classmethod
    def unpacked(cls, word: int) -> Self | None:
        """Inverse of `packed_facts`; None if nothing is known of the batch."""
        code = word >> 3 * _ROWS_BITS
        if not 0 < code <= len(_REASONS):
            return None
        requests, size, rows = (word >> place * _ROWS_BITS & _MOST for place in (2, 1, 0))
        return cls(rows, size - rows, requests, _REASONS[code - 1])
