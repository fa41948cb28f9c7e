"""The lengths of the texts that wait, and the times of batches of them by their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from stoker.device.batch_sizes import ServiceTimes
from stoker.device.row_blocks import Part, read_rows
from stoker.runtimes.token_batches import TokenCosts

_UNIT: Final = 64
"""Times are learned by this many tokens, with padding."""
_TAUGHT: Final = 16


class TextLengths:
    """Reads how many tokens rows have, and learns what batches take by their tokens; one thread at a time does."""

    def __init__(self, costs: TokenCosts, read: Callable[[int, np.ndarray], np.ndarray]) -> None:
        """Expect the times that were measured when the model was loaded.

        Args:
            costs: These times.
            read: Returns the numbers of tokens of a lane's rows, given its key and their numbers.
        """
        self._costs, self._read, self._times = costs, read, ServiceTimes()
        for power in range(_TAUGHT):
            part_ns = costs.part_ns(np.array(1 << power), np.array(_UNIT))
            self._times.learn(1 << power, round(float(part_ns)))

    def learn(self, lengths: np.ndarray, elapsed_ns: int) -> None:
        """Record how long a batch of rows with these numbers of tokens took."""
        self._times.learn(-(-int(self._costs.sizes(lengths).sum()) // _UNIT), elapsed_ns)

    def choose_alike(
        self, parts: Iterable[Part], order: np.ndarray | slice, most: int, first: int = 0
    ) -> tuple[np.ndarray, Sequence[int]]:
        """Choose rows that run well together.

        Args:
            parts: The waiting rows.
            order: Their places in the order in which they would leave.
            most: The most rows.
            first: The place in that order of a row that is chosen.

        Returns:
            Their places in that order, ascending, and the expected times of batches of 0 to all of them.
        """
        lengths = np.concatenate([read_rows(part, self._read) for part in parts])[order]
        places, tokens = self._costs.choose_alike(lengths, most, first)
        units = -(-np.arange(len(places) + 1) * tokens // _UNIT)
        return places, np.array(self._times.costs_ns(int(units[-1])))[units].tolist()
