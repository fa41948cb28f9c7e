"""The state of a device's queue, published to frontends: a page in each arena, which only the device writes.

Frontends read it without locks or system calls: if the sequence number is odd, or changes during the reading, the
page was being written, and the previous reading stays valid. Between two updates a frontend adds the rows it has sent
itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from stoker.placed import CALLER_BITS, tier_of

__all__ = ["BOARD_WORDS", "LATER_BATCHES", "Board", "BoardPage", "BoardWriter"]

LATER_BATCHES: Final = 8
"""For how many full batches ahead the number of due rows is published; longer targets have room in any case."""
_NEVER_NS: Final = 1 << 62
_SIZES: Final = 17
"""Expected times are for 1, 2, 4 ... rows, up to the batch cap."""
_CLASSES: Final = 64
"""Queued rows are published for this many classes, those with the most rows; others count as one row."""
_SEQUENCE, _WRITTEN, _FREE, _CAP, _PARALLEL, _OTHER, _LANES, _CLASS_COUNT, _TIERS = range(9)
_LATER: Final = _TIERS + 3
_COSTS: Final = _LATER + LATER_BATCHES
_FIRST_CLASS: Final = _COSTS + _SIZES
BOARD_WORDS: Final = _FIRST_CLASS + 3 * _CLASSES
_WINDOW_NS: Final = 250_000_000
_FULL: Final = 1.02
_MOST_STEP: Final = 3.0
_MOST_CROWDING: Final = 100.0


class Board:
    """The state of the queue of one model in one device process.

    Attributes:
        written_ns: When the device published it; 0 if it has not yet.
        free_ns: When the device is expected to be idle.
        cap: Limit of rows per batch; 0 if unknown.
        parallel: Number of concurrent batches.
        other_ns: The longest batch that another model of the device offers.
        lanes: Number of frontends that send rows.
        waiting: Queued rows by tier, including those sent since the last update.
        classes: Queued rows and weight by `tier << 16 | caller`, if callers are distinguished; if empty, all queued
            rows are of the default caller.
        later: How many of them are due one full batch after `free_ns` or later, two full batches, and so on; empty if
            unknown.
        costs_ns: Expected times of batches of 1, 2, 4 ... rows; the last one of `cap` rows.
        load: Recently requested rows divided by those that the device could have processed.
        crowding: Factor on the retry time of refused requests, so that no more return than can be processed: it grows
            while too many do, and shrinks otherwise.
    """

    __slots__ = (
        "_asked",
        "_since_ns",
        "_weights",
        "cap",
        "classes",
        "costs_ns",
        "crowding",
        "free_ns",
        "lanes",
        "later",
        "load",
        "other_ns",
        "parallel",
        "waiting",
        "written_ns",
    )

    def __init__(self) -> None:
        self.written_ns = self.free_ns = self.cap = self.other_ns = 0
        self.parallel = self.lanes = 1
        self.waiting = [0, 0, 0]
        self.later: list[int] = []
        self.classes: dict[int, list[float]] = {}
        self._weights = [0.0, 0.0, 0.0]
        self.costs_ns: Sequence[int] = ()
        self.load, self.crowding = 0.0, 1.0
        self._asked = self._since_ns = 0

    def batch_ns(self, rows: int) -> int:
        """The expected time of this many rows, in batches as large as possible."""
        cap, costs = self.cap, self.costs_ns
        if rows <= 0:
            return 0
        if rows <= cap:
            return self._part_ns(rows)
        batches, rest = divmod(rows, cap)
        total = batches * costs[-1] + (self._part_ns(rest) if rest else 0)
        return total if self.parallel == 1 else max(costs[-1], total // self.parallel)

    def _part_ns(self, rows: int) -> int:
        place = (rows - 1).bit_length()
        if not place:
            return self.costs_ns[0]
        low, high = 1 << place - 1, min(1 << place, self.cap)
        low_ns, high_ns = self.costs_ns[place - 1], self.costs_ns[place]
        return low_ns + (high_ns - low_ns) * (rows - low) // (high - low)

    def ask(self, now_ns: int, rows: int) -> None:
        """Record that rows were requested, whether admitted or not."""
        self._asked += rows
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= _WINDOW_NS and self.cap:
            can = elapsed_ns * self.cap * self.parallel / max(1, self.costs_ns[-1])
            self.load = self._asked * self.lanes / can
            more = min(_MOST_STEP, max(1 / _MOST_STEP, self.load / _FULL))
            self.crowding = min(_MOST_CROWDING, max(1.0, self.crowding * more))
            self._asked, self._since_ns = 0, now_ns

    def full_batches_until(self, due_ns: int, begins_ns: int) -> int:
        """Number of full batches that end before `due_ns` if the first one starts at `begins_ns`."""
        return (due_ns - begins_ns) // max(1, self.costs_ns[-1])

    def take(self, rows: int, tier: int, caller: int, weight: float, due_ns: int = _NEVER_NS) -> None:
        """Add rows that are on their way to the device; a negative number removes them.

        Args:
            rows: Number of rows.
            tier: Their tier.
            caller: The caller's number.
            weight: The caller's weight.
            due_ns: Until when their answers are useful.
        """
        # The other frontends are assumed to send as many.
        rows *= self.lanes
        if caller and not self.classes:
            # Without classes, all queued rows belong to the default caller.
            self.set_classes(
                {of << CALLER_BITS: [waiting, 1.0] for of, waiting in enumerate(self.waiting) if waiting}
            )
        self.waiting[tier] = max(0, self.waiting[tier] + rows)
        if self.later:
            batches = self.full_batches_until(due_ns, max(self.written_ns, self.free_ns))
            for place in range(min(len(self.later), batches)):
                self.later[place] = max(0, self.later[place] + rows)
        if caller or self.classes:
            placed = tier << CALLER_BITS | caller
            known = self.classes.get(placed)
            if known is None:
                known = self.classes[placed] = [0, weight]
                self._weights[tier] += weight
            known[0] = max(0, known[0] + rows)

    def share_of(self, rows: int, tier: int, caller: int, weight: float) -> float:
        """Number of rows of a tier served before this many more rows of a caller are, these included, by weight."""
        known = self.classes.get(tier << CALLER_BITS | caller)
        if known is None:
            # Rows without a class have weight 1.
            return rows * ((self._weights[tier] or 1.0) + weight) / weight
        return (known[0] + rows) * (self._weights[tier] - known[1] + weight) / weight

    def set_classes(self, classes: dict[int, list[float]]) -> None:
        """Set queued rows and weights by `tier << 16 | caller`."""
        self.classes, self._weights = classes, [0.0, 0.0, 0.0]
        for placed, (_, weight) in classes.items():
            self._weights[tier_of(placed)] += weight


class BoardPage(Board):
    """The state of a queue, read from its page.

    Args:
        words: The page, `BOARD_WORDS` words.
    """

    __slots__ = ("_sequence", "_words")

    def __init__(self, words: memoryview) -> None:
        super().__init__()
        self._words = words
        self._sequence = 0

    def forget_sent(self) -> None:
        """Reset to what the device has published; the rows sent since are discounted."""
        self._sequence = 0

    def look(self) -> None:
        """Read the page if it has changed."""
        sequence = self._words[_SEQUENCE]
        if sequence != self._sequence and not sequence & 1:
            self._read(sequence)

    def _read(self, sequence: int) -> None:
        words = self._words[:_FIRST_CLASS].tolist()
        count = words[_CLASS_COUNT]
        classes = self._words[_FIRST_CLASS : _FIRST_CLASS + 3 * count].tolist() if count else []
        if self._words[_SEQUENCE] != sequence:
            return
        self._sequence = sequence
        self.written_ns, self.free_ns, self.cap = words[_WRITTEN], words[_FREE], words[_CAP]
        self.parallel, self.other_ns, self.lanes = words[_PARALLEL], words[_OTHER], words[_LANES]
        self.waiting, self.later = words[_TIERS:_LATER], words[_LATER:_COSTS]
        self.costs_ns = words[_COSTS : _COSTS + (self.cap - 1).bit_length() + 1]
        self.set_classes(
            {
                classes[place]: [classes[place + 1], classes[place + 2] / 1000]
                for place in range(0, len(classes), 3)
            }
        )


class BoardWriter:
    """Publishes the state of a queue to all frontends."""

    def __init__(self) -> None:
        self._words = array("l", bytes(8 * BOARD_WORDS))
        self._used = _FIRST_CLASS

    def set_times(self, cap: int, costs_ns: Sequence[int]) -> None:
        """Set the expected batch times.

        Args:
            cap: Limit of rows per batch.
            costs_ns: Expected times of batches of 0 to `cap` rows.
        """
        self._words[_CAP] = cap
        for place in range((cap - 1).bit_length() + 1):
            self._words[_COSTS + place] = costs_ns[min(1 << place, cap)]

    def set_queue(
        self, waiting: Sequence[int], classes: Mapping[int, tuple[int, float]], later: Sequence[int]
    ) -> None:
        """Set the queued rows.

        Args:
            waiting: Number of rows by tier.
            later: How many of them are due one full batch after the device is idle or later, two full batches, and so
                on.
            classes: Rows and weight by `tier << 16 | caller`, if callers are distinguished.
        """
        words = self._words
        for tier, rows in enumerate(waiting):
            words[_TIERS + tier] = rows
        words[_LATER:_COSTS] = array("l", later)
        most = sorted(classes.items(), key=lambda item: -item[1][0])[:_CLASSES]
        words[_CLASS_COUNT] = len(most)
        place = _FIRST_CLASS
        for placed, (rows, weight) in most:
            words[place], words[place + 1], words[place + 2] = placed, rows, round(1000 * weight)
            place += 3
        self._used = place

    def write(
        self,
        pages: Sequence[memoryview],
        now_ns: int,
        free_ns: int,
        *,
        parallel: int = 1,
        other_ns: int = 0,
    ) -> None:
        """Write the state, and when the device is idle, to the pages of all frontends; see `Board`."""
        words, used = self._words, self._used
        words[_WRITTEN], words[_FREE], words[_PARALLEL], words[_OTHER] = now_ns, free_ns, parallel, other_ns
        words[_LANES] = len(pages)
        content = memoryview(words)[1:used]
        for page in pages:
            page[_SEQUENCE] += 1
            page[1:used] = content
            page[_SEQUENCE] += 1
