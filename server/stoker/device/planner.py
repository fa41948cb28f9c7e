"""Which rows leave now, and when to look again. Sans-I/O: no threads, no clock, no sockets.

A `RowQueue` holds the rows that wait; `plan` looks at it and says what to do at `now_ns`. Contract:

- A row is in exactly one place: in the queue, in the returned batch, or in the returned expired rows.
- A batch never exceeds `max_batch_rows`. It counts rows, not requests.
- While all that waits fits in one batch, all of it leaves; unless batches are filled up to buckets, and a smaller
  full one computes more rows in a second. When more waits, rows leave in the order of their virtual start time
  (start-time fair queueing, Goyal et al. 1996): the queue's virtual time on arrival plus the row's position within
  its request. So a request of one row is served beside a request of a thousand, not behind it.
- When more waits than fits in one batch, rows whose batch would hardly end before their deadline are given up at
  once, for others that can still be answered in time. Else an overloaded device would always be at work on what is
  about to be too late.
- `max_delay_ms` = 0 (the default) means no added delay: whatever waits leaves as soon as the device is free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

__all__ = ["BatchPolicy", "Lot", "Plan", "RowQueue", "ServiceTimes", "plan"]

_MARGIN: Final = 1.5
"""How many times its mean a batch may take: what is learned is no more than that."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Settings of batching.

    Attributes:
        max_batch_rows: Most rows in one batch.
        max_delay_ms: How long a row may wait for company while the device is free; 0 adds no delay.
        buckets: The sizes up to which batches are filled, ascending; empty if they run as they come.
    """

    max_batch_rows: int = 256
    max_delay_ms: float = 0.0
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_batch_rows < 1:
            raise ValueError(f"max_batch_rows must be at least 1, got {self.max_batch_rows}")
        if not 0 <= self.max_delay_ms <= 60_000:
            raise ValueError(f"max_delay_ms must be between 0 and 60000, got {self.max_delay_ms}")


class Lot(NamedTuple):
    """Rows of one lane (one frontend's arena).

    Attributes:
        lane: Key of the lane.
        numbers: Row numbers, `int32[rows]`.
        position: Place of each row within its request, `int64[rows]`.
        enqueued_ns: When the frontend queued them, `int64[rows]`.
        deadline_ns: When their callers stop waiting, `int64[rows]`; 0 for cancelled rows.
        arrived: The queue's virtual time when they arrived.
    """

    lane: int
    numbers: np.ndarray
    position: np.ndarray
    enqueued_ns: np.ndarray
    deadline_ns: np.ndarray
    arrived: int

    @property
    def rows(self) -> int:
        """How many rows."""
        return len(self.numbers)

    def part(self, mask: np.ndarray) -> Lot:
        """The rows where the boolean `mask` is set."""
        return Lot(
            self.lane,
            self.numbers[mask],
            self.position[mask],
            self.enqueued_ns[mask],
            self.deadline_ns[mask],
            self.arrived,
        )

    def between(self, start: int, stop: int) -> Lot:
        """The rows from place `start` up to before place `stop`."""
        if start == 0 and stop == len(self.numbers):
            return self
        return Lot(
            self.lane,
            self.numbers[start:stop],
            self.position[start:stop],
            self.enqueued_ns[start:stop],
            self.deadline_ns[start:stop],
            self.arrived,
        )


class Plan(NamedTuple):
    """What to do now.

    Attributes:
        batch: Lots to run as one batch; empty if none is to leave now.
        expired: Lots to hand back unrun: cancelled, past their deadline, or sure to be past it when they are done.
        reason: One of `metrics.REASONS` if there is a batch, else an empty string.
        look_again_ns: When to call `plan` again if nothing arrives; None means only on arrival.
    """

    batch: list[Lot]
    expired: list[Lot]
    reason: str
    look_again_ns: int | None


class ServiceTimes:
    """Learned time of one batch by its size: an exponential moving average per power of two of rows.

    One thread at a time may learn, while another one asks.
    """

    _WEIGHT = 0.2

    def __init__(self) -> None:
        self._mean_ns: dict[int, float] = {}

    def learn(self, rows: int, elapsed_ns: int) -> None:
        """Take in that a batch of `rows`, those that fill it up included, took `elapsed_ns`."""
        bucket = rows.bit_length()
        mean = self._mean_ns.get(bucket)
        self._mean_ns[bucket] = elapsed_ns if mean is None else mean + self._WEIGHT * (elapsed_ns - mean)

    def known_ns(self, rows: int) -> float | None:
        """Learned time of a batch of about `rows`; None if there was none."""
        return self._mean_ns.get(rows.bit_length())

    def expected_ns(self, rows: int) -> int:
        """Expected time of a batch of `rows`; the nearest larger known size, else the largest known, else 0."""
        known = sorted(self._mean_ns)
        if not known:
            return 0
        bucket = rows.bit_length()
        return int(self._mean_ns[next((size for size in known if size >= bucket), known[-1])])


@dataclass(slots=True)
class RowQueue:
    """Rows that wait, in lots as they arrived."""

    lots: deque[Lot] = field(default_factory=deque)
    rows: int = 0
    virtual_time: int = 0

    def push(
        self,
        lane: int,
        numbers: np.ndarray,
        position: np.ndarray,
        enqueued_ns: np.ndarray,
        deadline_ns: np.ndarray,
    ) -> None:
        """Add rows; all arrays have the same length, `position` is each row's place within its request."""
        self.lots.append(Lot(lane, numbers, position, enqueued_ns, deadline_ns, self.virtual_time))
        self.rows += len(numbers)

    def drop_lane(self, lane: int) -> int:
        """Forget the rows of a lane whose frontend has gone; returns how many."""
        kept = deque(lot for lot in self.lots if lot.lane != lane)
        before, self.rows = self.rows, sum(len(lot.numbers) for lot in kept)
        self.lots = kept
        return before - self.rows

    def take_all(self) -> list[Lot]:
        """Remove and return everything."""
        lots, self.lots, self.rows = list(self.lots), deque(), 0
        return lots


def plan(queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes) -> Plan:
    """Decide what leaves the queue at `now_ns`, and remove it from the queue."""
    if not queue.rows:
        return Plan([], [], "", None)
    expired = _remove_expired(queue, now_ns)
    if queue.rows > policy.max_batch_rows:
        expired += _remove_hopeless(queue, now_ns, times.expected_ns(policy.max_batch_rows))
    if not queue.rows:
        return Plan([], expired, "", None)
    if queue.rows >= policy.max_batch_rows:
        return Plan(_take_fairest(queue, policy.max_batch_rows), expired, "full", None)
    if not policy.max_delay_ms:
        return _leave(queue, policy, times, expired, "idle")
    return _wait_for_company(queue, now_ns, policy, times, expired)


def _leave(
    queue: RowQueue, policy: BatchPolicy, times: ServiceTimes, expired: list[Lot], reason: str
) -> Plan:
    rows = _worthwhile(queue.rows, policy.buckets, times)
    if rows < queue.rows:
        return Plan(_take_fairest(queue, rows), expired, "full", None)
    return Plan(queue.take_all(), expired, reason, None)


def _worthwhile(rows: int, buckets: tuple[int, ...], times: ServiceTimes) -> int:
    """How many of `rows` to run as one batch: the next smaller bucket, if more of its rows are done in a second.

    Filled up, 140 rows may take the time of 256. In that time 128 and the other 12 are done, and another 100.
    """
    place = bisect_left(buckets, rows)
    if not 0 < place < len(buckets) or buckets[place] == rows:
        return rows
    smaller, filled = buckets[place - 1], buckets[place]
    smaller_ns, filled_ns = times.known_ns(smaller), times.known_ns(filled)
    if smaller_ns is None or filled_ns is None:
        return rows
    return smaller if smaller * filled_ns > rows * smaller_ns else rows


def _wait_for_company(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, expired: list[Lot]
) -> Plan:
    oldest_ns = min(int(lot.enqueued_ns.min()) for lot in queue.lots)
    size = policy.buckets[bisect_left(policy.buckets, queue.rows)] if policy.buckets else queue.rows
    pressing_ns = min(int(lot.deadline_ns.min()) for lot in queue.lots) - times.expected_ns(size)
    delayed_ns = oldest_ns + round(policy.max_delay_ms * 1e6)
    if now_ns >= delayed_ns:
        return _leave(queue, policy, times, expired, "delay")
    if now_ns >= pressing_ns:
        return Plan(queue.take_all(), expired, "deadline", None)
    return Plan([], expired, "", min(delayed_ns, pressing_ns))


def _remove_hopeless(queue: RowQueue, now_ns: int, batch_ns: int) -> list[Lot]:
    """Remove the rows that have no time left for a batch; all stay if it is all of them: the time may be mistaken."""
    until_ns = now_ns + round(_MARGIN * batch_ns)
    if all(lot.deadline_ns.max() <= until_ns for lot in queue.lots):
        return []
    return _remove_expired(queue, until_ns)


def _remove_expired(queue: RowQueue, now_ns: int) -> list[Lot]:
    for lot in queue.lots:
        if lot.deadline_ns.min() <= now_ns:
            break
    else:
        return []
    expired: list[Lot] = []
    kept: deque[Lot] = deque()
    for lot in queue.lots:
        late = lot.deadline_ns <= now_ns
        if late.any():
            expired.append(lot.part(late))
        if not late.all():
            kept.append(lot.part(~late))
    queue.lots, queue.rows = kept, sum(len(lot.numbers) for lot in kept)
    return expired


def _take_fairest(queue: RowQueue, rows: int) -> list[Lot]:
    if queue.rows == rows:
        return queue.take_all()
    lots = list(queue.lots)
    tags = np.concatenate([lot.position + lot.arrived for lot in lots])
    chosen = np.zeros(len(tags), bool)
    # Stable, so that rows with equal tags keep the order of arrival.
    order = np.argsort(tags, kind="stable")[:rows]
    chosen[order] = True
    # Only an overfull queue needs the virtual time: rows that arrive later compete with those left behind.
    # It moves by one a batch at least, else a stream of small requests would keep it, and a large one, in place.
    queue.virtual_time = max(queue.virtual_time + 1, int(tags[order[-1]]))
    batch: list[Lot] = []
    rest: deque[Lot] = deque()
    start = 0
    for lot in lots:
        mask = chosen[start : start + len(lot.numbers)]
        start += len(lot.numbers)
        if mask.all():
            batch.append(lot)
        elif mask.any():
            batch.append(lot.part(mask))
            rest.append(lot.part(~mask))
        else:
            rest.append(lot)
    queue.lots, queue.rows = rest, queue.rows - rows
    return batch
