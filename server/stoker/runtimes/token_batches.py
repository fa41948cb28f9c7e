"""Divides a batch of rows of tokens into parts of like length, so that little is computed for padding.

A part is as long as its longest row, up to a multiple that keeps the number of shapes small. Each part costs a start
besides its tokens; both are measured when the model is loaded, and the division with the least time is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

_STEPS: Final = ((64, 4), (128, 8), (512, 16), (1024, 32))
"""Lengths up to the first of a pair are multiples of its second: a device prepares for each shape that it meets."""
_LONGEST_STEP: Final = 128


def length_bucket(tokens: int) -> int:
    """Return a length for rows of up to so many tokens."""
    step = next((step for limit, step in _STEPS if tokens <= limit), _LONGEST_STEP)
    return -(-max(tokens, 1) // step) * step


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """How long a model computes.

    Attributes:
        start_ns: For a part, besides its tokens.
        token_ns: For each token.
        most_tokens: No part has more tokens, unless it has one row: larger ones do not compute more a second.
        longest: The most tokens that a row may have with its padding.
    """

    start_ns: float
    token_ns: float
    most_tokens: int
    longest: int

    def divide(self, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """Yield parts of rows with these numbers of tokens: their places, and the tokens of each row with padding.

        Rows without a token are in no part.
        """
        order = lengths.argsort(kind="stable")
        order = order[int(np.count_nonzero(lengths == 0)) :]
        padded = [min(self.longest, length_bucket(size)) for size in lengths[order].tolist()]
        buckets, counts = np.unique(padded, return_counts=True)
        ends, sizes = [0, *np.cumsum(counts).tolist()], buckets.tolist()
        # By the number of buckets that are divided: the least time, and where the last part begins.
        best: list[tuple[float, int]] = [(0.0, 0)]
        for stop, tokens in enumerate(sizes, 1):
            best.append(
                min(
                    (best[start][0] + self._time_ns(ends[stop] - ends[start], tokens), start)
                    for start in range(stop)
                )
            )
        stop = len(sizes)
        while stop:
            start, tokens = best[stop][1], sizes[stop - 1]
            rows = max(1, self.most_tokens // tokens)
            for first in range(ends[start], ends[stop], rows):
                yield order[first : min(first + rows, ends[stop])], tokens
            stop = start

    def _time_ns(self, rows: int, tokens: int) -> float:
        parts = -(-rows // max(1, self.most_tokens // tokens))
        return parts * self.start_ns + rows * tokens * self.token_ns
