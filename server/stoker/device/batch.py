"""A batch: rows of several lanes that run together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stoker.device.lanes import Lane
from stoker.device.row_blocks import RowBlock


class Batch(NamedTuple):
    """Rows that run together.

    Attributes:
        blocks: The rows.
        rows: How many.
        lanes: Their lanes, by the blocks' keys; lanes that are closed meanwhile stay in it.
        reason: Why it left: one of `metrics.REASONS`.
        turn: Its turn of the device; None if there are no turns.
        turn_wait_ns: How long it waited for that turn.
    """

    blocks: list[RowBlock]
    rows: int
    lanes: Mapping[int, Lane]
    reason: str
    turn: int | None = None
    turn_wait_ns: int = 0

    def notify_turn(self) -> None:
        """Write to the arenas how long it waited for its turn; to be called before its rows are handed back."""
        for block in self.blocks:
            arena = self.lanes[block.lane].arena
            arena.turn_ns[block.numbers] = self.turn_wait_ns
            arena.turned[0] = True

    def split(self, most_rows: int) -> list[Batch]:
        """The same rows as batches of at most `most_rows`."""
        parts: list[Batch] = []
        blocks: list[RowBlock] = []
        room = most_rows
        for block in self.blocks:
            start = 0
            while start < block.rows:
                stop = min(block.rows, start + room)
                blocks.append(block.between(start, stop))
                room -= stop - start
                start = stop
                if not room:
                    parts.append(self._replace(blocks=blocks, rows=most_rows))
                    blocks, room = [], most_rows
        if blocks:
            parts.append(self._replace(blocks=blocks, rows=most_rows - room))
        return parts

    def apart(self, together: np.ndarray) -> list[Batch]:
        """The same rows: those where `together`, `bool[rows]`, is True as one batch, each of the others alone."""
        kept: list[RowBlock] = []
        parts: list[Batch] = []
        start = 0
        for block in self.blocks:
            mask = together[start : start + block.rows]
            start += block.rows
            if mask.any():
                kept.append(block.part(mask))
            parts += [
                self._replace(blocks=[block.between(place, place + 1)], rows=1)
                for place in np.flatnonzero(~mask).tolist()
            ]
        if kept:
            parts.insert(0, self._replace(blocks=kept, rows=int(together.sum())))
        return parts
