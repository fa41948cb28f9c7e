"""Rows of tokens of like length together, so that little is computed for padding: in the queue, and in a batch.

A part of a batch is as long as its longest row. Where the device prepares for each shape that it meets, this length
is rounded up to a multiple, so that there are few. Each part costs a start besides its tokens; both are measured when
the model is loaded. While more rows wait than fit in a batch, the rows around the first one are chosen that compute
most tokens a second. A batch is divided into parts so that it takes the least time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

_LIMITS: Final = np.array((64, 128, 512, 1024))
_STEPS: Final = np.array((4, 8, 16, 32, 128))
"""Rounded up, lengths up to a limit are multiples of the step at its place."""
_BATCH_NS: Final = 1e5
"""The cost of a batch besides its parts."""


def padded_lengths(tokens: np.ndarray) -> np.ndarray:
    """Return lengths for rows of up to so many tokens."""
    steps = _STEPS[_LIMITS.searchsorted(tokens)]
    lengths: np.ndarray = -(-tokens // steps) * steps
    return lengths


class TokenCosts(Struct, frozen=True):
    """How long a model computes.

    Attributes:
        start_ns: For a part, besides its tokens.
        token_ns: For each token.
        most_tokens: No part has more tokens, unless it has one row: larger ones do not compute more a second.
        longest: The most tokens that a row may have with its padding.
        shortest: The fewest.
        rounds_up: Whether lengths are rounded up: where the device prepares for each shape.
    """

    start_ns: float
    token_ns: float
    most_tokens: int
    longest: int
    shortest: int = 0
    rounds_up: bool = True

    def sizes(self, lengths: np.ndarray) -> np.ndarray:
        """Return the tokens with padding of rows with these numbers of tokens."""
        return (padded_lengths(lengths) if self.rounds_up else lengths).clip(self.shortest, self.longest)

    def choose_alike(self, lengths: np.ndarray, most_rows: int, first: int = 0) -> tuple[np.ndarray, int]:
        """Choose up to so many rows, the row at `first` among them, that run best together.

        Of rows of one length, earlier ones are preferred.

        Returns:
            Their places, ascending, and the tokens of each with padding.
        """
        sizes, wanted = self.sizes(lengths), -np.arange(len(lengths))
        wanted[first] = 1
        order = np.lexsort((wanted, sizes))
        ranked = sizes[order]
        at = int(ranked.searchsorted(sizes[first], side="right")) - 1
        ends = np.flatnonzero(np.diff(ranked, append=-1)) + 1
        begins = np.append(0, ends)
        # All ranges of lengths around the first row; a long range lacks its shortest rows.
        stops = ends[ends > at, None]
        starts = np.minimum(at, np.maximum(begins[begins <= at], stops - most_rows))
        stops = np.minimum(stops, starts + most_rows)
        # Their time, against their share of full batches of rows of their lengths.
        full = np.full(len(ranked), most_rows)
        worth_ns = np.append(0, (self._batch_ns(full, ranked) / full).cumsum())
        worth = (worth_ns[stops] - worth_ns[starts]) / self._batch_ns(stops - starts, ranked[stops - 1])
        best = int(worth.argmax())
        start, stop = starts.flat[best], stops.flat[best]
        return np.sort(order[start:stop]), int(ranked[stop - 1])

    def divide(self, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """Yield parts of rows with these numbers of tokens: their places, and the tokens of each row with padding.

        Rows without a token are in no part, unless they are padded to the shortest length.
        """
        padded = self.sizes(lengths)
        order = padded.argsort(kind="stable")[np.count_nonzero(padded == 0) :]
        sizes, counts = np.unique(padded[order], return_counts=True)
        ends = np.append(0, counts.cumsum())
        # By the number of sizes that are divided: the least time, and where the last part begins.
        best_ns, starts = np.zeros(len(ends)), np.zeros(len(ends), int)
        for stop, tokens in enumerate(sizes, 1):
            times_ns = best_ns[:stop] + self.part_ns(ends[stop] - ends[:stop], tokens)
            starts[stop] = times_ns.argmin()
            best_ns[stop] = times_ns[starts[stop]]
        stop = len(sizes)
        while stop:
            start, tokens = starts[stop], int(sizes[stop - 1])
            rows = max(1, self.most_tokens // tokens)
            for first in range(ends[start], ends[stop], rows):
                yield order[first : min(first + rows, ends[stop])], tokens
            stop = start

    def _batch_ns(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return _BATCH_NS + self.part_ns(rows, tokens)

    def part_ns(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return how long parts of so many rows take, each with so many tokens."""
        parts = -(-rows // np.maximum(1, self.most_tokens // np.maximum(1, tokens)))
        part_ns: np.ndarray = parts * self.start_ns + rows * tokens * self.token_ns
        return part_ns
