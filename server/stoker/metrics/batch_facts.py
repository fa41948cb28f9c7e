"""What an answered row says of the batch that it was in, in one number of its header."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from stoker.metrics.layout import REASONS, TARGET_REASONS

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BatchFacts", "packed_facts"]

_REASONS: Final = (*REASONS, *TARGET_REASONS)
_ROWS_BITS: Final = 20
"""No batch has more than 65,536 rows."""
_MOST: Final = (1 << _ROWS_BITS) - 1
# 0 is a row of which nothing is known.
_CODES: Final = {reason: code << 3 * _ROWS_BITS for code, reason in enumerate(_REASONS, 1)}
_LONE: Final = {reason: code | 1 << 2 * _ROWS_BITS | 1 << _ROWS_BITS | 1 for reason, code in _CODES.items()}


class _Rows(Protocol):
    """Rows of a batch that came from one frontend."""

    @property
    def position(self) -> np.ndarray:
        """Their places within their requests, the first of which is 0, `int64[rows]`."""


def packed_facts(rows: int, size: int, reason: str, lots: Iterable[_Rows]) -> int:
    """Return the facts of a batch as one positive int64; of a row that runs alone it is known before.

    Args:
        rows: How many rows it has.
        size: How many it was filled up to.
        reason: Why it left, one of `REASONS` or `TARGET_REASONS`.
        lots: Its rows.
    """
    if size == 1:
        return _LONE[reason]
    requests = rows
    for lot in lots:
        requests -= int(np.count_nonzero(lot.position))
    # Of a request that began before there are none.
    return _CODES[reason] | (requests or 1) << 2 * _ROWS_BITS | size << _ROWS_BITS | rows


class BatchFacts(NamedTuple):
    """A batch, as one of its rows tells it.

    Attributes:
        rows: How many rows it had.
        padding_rows: With how many it was filled up to its bucket.
        requests: How many requests began in it; at least 1.
        left: Why it left, one of `REASONS` or `TARGET_REASONS`.
    """

    rows: int
    padding_rows: int
    requests: int
    left: str

    @classmethod
    def unpacked(cls, word: int) -> Self | None:
        """Inverse of `packed_facts`; None if the number says nothing."""
        code = word >> 3 * _ROWS_BITS
        if not 0 < code <= len(_REASONS):
            return None
        requests, size, rows = (word >> place * _ROWS_BITS & _MOST for place in (2, 1, 0))
        return cls(rows, size - rows, requests, _REASONS[code - 1])
