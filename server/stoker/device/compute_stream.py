"""When the compute stream of a model is expected to be free, and when its next batch has to be planned. Sans-I/O.

Batches in flight are computed one after the other, in the order in which they began. The next one is planned when
the stream has about as long to compute as planning and copying take: any earlier, and rows that come meanwhile would
miss it; any later, and the stream would wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

_FIRST_PLANNING_NS: Final = 200_000
_HICCUP_NS: Final = 50_000
_SMOOTHING: Final = 8
"""A time that is seen moves an expected one by this part of their difference, where it need not be early."""


class _Expected(NamedTuple):
    """A batch in flight.

    Attributes:
        ready_ns: When its rows are on the device.
        takes_ns: How long the device computes it.
        first: Whether nothing else was in flight when it began.
    """

    ready_ns: int
    takes_ns: int
    first: bool


class ComputeStream:
    """The batches in flight of one model, with what is expected of them. One thread at a time may call it.

    Attributes:
        planning_ns: How long it takes from the moment at which a batch is due to be planned until it has begun.
        returning_ns: How long it takes from the end of a computation until its rows are handed back.
    """

    def __init__(self) -> None:
        self.planning_ns = _FIRST_PLANNING_NS
        self.returning_ns = 0
        self._flights: deque[_Expected] = deque()
        self._ended_ns = 0
        # From the end of a computation until `end` is called; negative before the first.
        self._lag_ns = -1

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def free_ns(self) -> int:
        """When the last batch in flight is expected to end; 0 if there is none."""
        if not self._flights:
            return 0
        free_ns = self._ended_ns
        for flight in self._flights:
            free_ns = max(free_ns, flight.ready_ns) + flight.takes_ns
        return free_ns

    def plan_ns(self, copy_ns: int) -> int:
        """When to plan the next batch, whose copy to the device takes `copy_ns`."""
        return self.free_ns - copy_ns - self.planning_ns

    def look_ns(self, now_ns: int, rows: int, most_rows: int, copy_ns: Callable[[int], int]) -> int:
        """When to look at the waiting rows again in order to plan the next batch; `now_ns` or earlier to plan it now.

        A full batch is planned at once, because no row could join it. A shorter one is planned as late as possible.
        The latest moment depends on how many rows have to be copied, and more may come meanwhile: so the first look
        is when a full batch would have to be planned.

        Args:
            rows: How many rows wait.
            most_rows: How many rows a full batch has.
            copy_ns: Returns how long the copy of so many rows to the device takes.
        """
        if rows >= most_rows:
            return now_ns
        full_ns = self.plan_ns(copy_ns(most_rows))
        return full_ns if now_ns < full_ns else self.plan_ns(copy_ns(max(1, rows)))

    def learn_planning(self, elapsed_ns: int) -> None:
        """Record how long after it was due to be planned a batch has begun."""
        self.planning_ns = _follow(self.planning_ns, elapsed_ns)

    def begin(self, now_ns: int, copy_ns: int, expected_ns: int) -> None:
        """Record that a batch has begun.

        Args:
            copy_ns: How long its copy takes from now on.
            expected_ns: How long it is expected to compute.
        """
        self._flights.append(_Expected(now_ns + copy_ns, expected_ns, not self._flights))

    def end(self, now_ns: int, computed_ns: int) -> int:
        """Record that the oldest batch has returned after computing for `computed_ns`.

        Returns:
            When its computation is likely to have ended.
        """
        flight = self._flights.popleft()
        ended_ns = max(self._ended_ns, flight.ready_ns) + computed_ns
        if flight.first:
            # The time of its beginning is known best.
            lag_ns = max(0, now_ns - ended_ns)
            self._lag_ns = lag_ns if self._lag_ns < 0 else _follow(self._lag_ns, lag_ns)
        # The time at which a thread saw it varies; the sum of computed times drifts. Each corrects the other.
        ended_ns += (now_ns - self._lag_ns - ended_ns) // _SMOOTHING
        self._ended_ns = min(ended_ns, now_ns)
        return self._ended_ns

    def fail(self, now_ns: int) -> None:
        """Record that the oldest batch has failed."""
        self._flights.popleft()
        self._ended_ns = now_ns

    def hand_back(self, ended_ns: int, now_ns: int) -> None:
        """Record when the rows of a batch whose computation ended at `ended_ns` were handed back."""
        self.returning_ns = _follow(self.returning_ns, now_ns - ended_ns)


def _follow(known_ns: int, seen_ns: int) -> int:
    """Follow a time that varies, faster upwards: to be late costs more than to be early."""
    seen_ns = min(seen_ns, 2 * known_ns + _HICCUP_NS)
    return known_ns + (seen_ns - known_ns) // (2 if seen_ns > known_ns else _SMOOTHING)
