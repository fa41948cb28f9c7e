"""The sizes of a model's batches in rows, and the time that a batch of each size takes.

A GPU is prepared once for each size (memory, kernels chosen by measuring, captured graphs, compiled code), and each
further size costs that again. So its batches have few sizes: shorter ones are padded to the next of these buckets.

Times are learned as they are likely to be, not as they are on average: planning for targets needs a quantile. If
batches have few sizes, each has a window of its last times. If they run unpadded, a line `a + b * rows` is fitted,
and the quantile is of the ratios of the last times to that line. Until there is enough data, the mean for the power
of two of the rows is used. Scheduling without targets uses means alone: of buckets, or of powers of two.
"""

from __future__ import annotations

import dataclasses
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed

logger = logging.getLogger(__name__)

_WINDOW: Final = 64
"""The quantile is of this many last times."""
_ENOUGH: Final = 8
"""From this many times on the line is used: as many batches as a warm-up without buckets runs."""
_FORGETTING: Final = 0.98 ** np.arange(_WINDOW)[::-1]
_KEPT_WEIGHT: Final = 0.03
"""Weight of a power of two's mean in the fit, against 1 for each recent time: keeps sizes that no longer occur."""
_HICCUP: Final = 3.0
"""A time above this multiple of the line counts for the quantile, but does not move the line."""
_MOST_BESIDE: Final = 2
_DOUBT: Final = 0.9
_EVEN: Final = 0.95
"""A batch that makes groups even has to have at least this share of the throughput of the larger one."""


@dataclass(slots=True)
class BatchSizes:
    """The allowed sizes of batches.

    Attributes:
        buckets: Ascending; a batch is padded to the next of them. Empty: batches run unpadded.
        chosen: Whether they were chosen by measuring, so that others may be added while the model serves.
    """

    buckets: tuple[int, ...] = ()
    chosen: bool = False

    def add(self, size: int) -> None:
        """Allow a further size, smaller than the largest."""
        # Replaced, as other threads may be reading it.
        self.buckets = tuple(sorted({*self.buckets, size}))

    def filled(self, rows: int) -> int:
        """The size in rows at which a batch of `rows` runs."""
        if not self.buckets:
            return rows
        return self.buckets[bisect_left(self.buckets, rows)]

    def smaller(self, size: int) -> int | None:
        """The size to try after one that did not fit: half of it, or the next smaller bucket.

        None if there is none.
        """
        if not self.buckets:
            return size // 2 or None
        below = [bucket for bucket in self.buckets if bucket < size]
        halves = [bucket for bucket in below if bucket <= size // 2]
        return max(halves) if halves else min(below, default=None)


def timed_first(buckets: tuple[int, ...], max_batch_rows: int) -> tuple[int, ...]:
    """The sizes of batches that are measured before a model serves: its buckets, or one, two, half and all rows."""
    sizes = buckets or (1, 2, max_batch_rows // 2, max_batch_rows)
    return tuple(sorted({size for size in sizes if 0 < size <= max_batch_rows}))


def with_batch_sizes(deployment: Deployment, device: Device) -> Deployment:
    """Return the deployment with the buckets and `max_batch_rows` that apply on this device.

    `batch_buckets` remains None where the load is to choose them.

    Raises:
        LoadFailed: A bucket is larger than `max_batch_rows`.
    """
    buckets, most = deployment.batch_buckets, deployment.max_batch_rows
    if buckets is None:
        chosen_at_load = device.kind == "cuda" and deployment.framework != "script"
        return deployment if chosen_at_load else dataclasses.replace(deployment, batch_buckets=())
    if not buckets:
        return deployment
    if buckets[-1] > most:
        raise LoadFailed(
            f"{deployment.name}: batch_buckets has {buckets[-1]}, but max_batch_rows is {most}; "
            "raise max_batch_rows, or leave that bucket out"
        )
    if buckets[-1] < most:
        logger.warning(
            "%s: max_batch_rows is %d, not %d: batch_buckets has no larger one",
            deployment.name,
            buckets[-1],
            most,
        )
    return dataclasses.replace(deployment, max_batch_rows=buckets[-1])


class ServiceTimes:
    """Learned times of one batch by its size.

    One thread at a time may learn, while another one reads.

    Args:
        buckets: The sizes that batches have, ascending; empty if they run as they come.
        quantile: Which quantile of the last times is expected.

    Attributes:
        running: How many other batches would run beside a new one: `costs_ns` is for this number.
        ahead_rows: Rows of the batches that are computed before a new one; None where a batch begins only once the
            device is free.
    """

    def __init__(self, buckets: Sequence[int] = (), quantile: float = 0.9) -> None:
        self.running = 0
        self.ahead_rows: int | None = None
        self._means = _Means(tuple(buckets))
        self._quantile = quantile
        self._buckets = tuple(buckets)
        # By how many other batches were running when one began: 0, 1, or more.
        self._learned: list[_Line | _Rings | None] = [None] * (_MOST_BESIDE + 1)
        self._costs: dict[tuple[int, tuple[int, ...], int], tuple[int, list[int]]] = {}
        self._trust = 1.0

    def learn(self, rows: int, elapsed_ns: int, beside: int = 0) -> None:
        """Learn that a batch of `rows`, with its padding, took `elapsed_ns`.

        Args:
            rows: Its size.
            beside: How many other batches were running on the device when it began.
        """
        self._means.learn(rows, elapsed_ns)
        place = min(beside, _MOST_BESIDE)
        learned = self._learned[place]
        if learned is None:
            learned = self._learned[place] = _Rings(self._buckets) if self._buckets else _Line()
        learned.learn(rows, elapsed_ns)
        if self._trust < 1:
            self._trust = 1.0
            self._costs.clear()

    def learn_mean(self, rows: int, elapsed_ns: int) -> None:
        """As `learn`, for users that need the means only: a quarter of the cost."""
        self._means.learn(rows, elapsed_ns)

    def known_ns(self, rows: int) -> float | None:
        """Mean time of batches of about `rows`, or of their bucket, whatever ran beside; None if there were none."""
        return self._means.known_ns(rows)

    def mean_ns(self, rows: int) -> int:
        """Mean time of batches of about `rows`; of the next larger known size, else of the largest known, else 0."""
        return self._means.mean_ns(rows)

    def expected_ns(self, rows: int, beside: int = 0) -> int:
        """The time within which a batch of `rows` is likely to end; 0 if nothing is known."""
        learned = self._beside(beside)
        found = None if learned is None else learned.expected_ns(rows, self._quantile)
        return int((self._means.mean_ns(rows) if found is None else found) * self._trust)

    def costs_ns(self, most: int, buckets: tuple[int, ...] = ()) -> list[int]:
        """Expected times of batches of 0 to `most` rows now, never decreasing; sizes between buckets are padded."""
        beside = self.running
        key = most, buckets, beside
        learned = self._beside(beside)
        # Changes when the times change; 0 while the learned times are distrusted.
        edition = 0 if learned is None else learned.edition(self._quantile)
        kept = self._costs.get(key)
        if kept is not None and edition and kept[0] == edition:
            return kept[1]
        if edition and isinstance(learned, _Line) and not buckets:
            costs = learned.costs_ns(most, self._trust)
        else:
            costs = [0]
            for size in (
                [*(bucket for bucket in buckets if bucket < most), most] if buckets else range(1, most + 1)
            ):
                costs += [max(costs[-1], self.expected_ns(size, beside))] * (size - len(costs) + 1)
        # Another thread may be learning: this plan continues with the times that it began with.
        self._costs[key] = edition, costs
        return costs

    def add_bucket(self, size: int, elapsed_ns: int) -> None:
        """Allow a further size; a batch of it takes `elapsed_ns`. No other thread may learn meanwhile."""
        self.keep_buckets(tuple(sorted({*self._buckets, size})))
        self.learn(size, elapsed_ns)

    def keep_buckets(self, buckets: tuple[int, ...]) -> None:
        """Allow no other sizes. No other thread may learn meanwhile."""
        self._buckets = self._means.buckets = buckets
        for learned in self._learned:
            if isinstance(learned, _Rings):
                learned.buckets = buckets
        self._costs.clear()

    def doubt(self) -> None:
        """Lower the expectations a little: if no row can be in time, nothing runs that would correct them."""
        self._trust *= _DOUBT
        self._costs.clear()

    def _beside(self, beside: int) -> _Line | _Rings | None:
        """Times learned with this many batches beside, or with the nearest number: smaller ones first."""
        first = self._learned[0]
        if not beside and first is not None:
            return first
        place = min(beside, _MOST_BESIDE)
        order = (*range(place, -1, -1), *range(place + 1, _MOST_BESIDE + 1))
        return next((self._learned[near] for near in order if self._learned[near] is not None), None)


class _Means:
    """An exponential moving average for each bucket; without buckets for each power of two of rows."""

    _WEIGHT = 0.2

    def __init__(self, buckets: tuple[int, ...]) -> None:
        self.ns: dict[int, float] = {}
        self.buckets = buckets

    def _size(self, rows: int) -> int:
        buckets = self.buckets
        if not buckets:
            return rows.bit_length()
        place = bisect_left(buckets, rows)
        return buckets[place] if place < len(buckets) else rows

    def learn(self, rows: int, elapsed_ns: int) -> None:
        size = self._size(rows)
        mean = self.ns.get(size)
        self.ns[size] = elapsed_ns if mean is None else mean + self._WEIGHT * (elapsed_ns - mean)

    def known_ns(self, rows: int) -> float | None:
        return self.ns.get(self._size(rows))

    def mean_ns(self, rows: int) -> int:
        known = sorted(self.ns)
        if not known:
            return 0
        size = self._size(rows)
        return int(self.ns[next((other for other in known if other >= size), known[-1])])


class _Rings:
    """The last times of each bucket."""

    def __init__(self, buckets: tuple[int, ...]) -> None:
        self.buckets = buckets
        self._ns: dict[int, deque[int]] = {}
        self._expected: dict[int, int] = {}
        self._count = 0

    def edition(self, quantile: float) -> int:
        del quantile
        return self._count

    def learn(self, rows: int, elapsed_ns: int) -> None:
        self._count += 1
        self._ns.setdefault(rows, deque(maxlen=_WINDOW)).append(elapsed_ns)
        self._expected.pop(rows, None)

    def expected_ns(self, rows: int, quantile: float) -> float | None:
        place = bisect_left(self.buckets, rows)
        size = self.buckets[place] if place < len(self.buckets) else rows
        known = sorted(self._ns)
        at = bisect_left(known, size)
        if at == len(known):
            # More rows than were ever run.
            return self._upto(known, quantile) * size / known[-1]
        return self._upto(known[: at + 1], quantile)

    def _upto(self, sizes: list[int], quantile: float) -> float:
        """The expected time of the largest of these sizes, at least that of each smaller one."""
        return max(self._one(size, quantile) for size in sizes)

    def _one(self, size: int, quantile: float) -> int:
        expected = self._expected.get(size)
        if expected is None:
            times = sorted(self._ns[size])
            expected = self._expected[size] = times[int(quantile * (len(times) - 1))]
        return expected


class _Line:
    """`a + b * rows` by least squares of relative errors, with a quantile of the ratios of times to it."""

    def __init__(self) -> None:
        self._rows = np.zeros(_WINDOW)
        self._ns = np.ones(_WINDOW)
        self._count = 0
        self._fitted = 0
        self._line = (0.0, 0.0, 0.0)
        self._above = 1.0
        # The mean rows and times of each power of two.
        self._kept: dict[int, tuple[float, float]] = {}

    def learn(self, rows: int, elapsed_ns: int) -> None:
        place = self._count % _WINDOW
        self._rows[place], self._ns[place] = rows, max(1, elapsed_ns)
        self._count += 1
        size = rows.bit_length()
        mean_rows, mean_ns = self._kept.get(size, (rows, elapsed_ns))
        if elapsed_ns < _HICCUP * mean_ns or self._count < _ENOUGH:
            self._kept[size] = (mean_rows + 0.2 * (rows - mean_rows), mean_ns + 0.2 * (elapsed_ns - mean_ns))

    def edition(self, quantile: float) -> int:
        if self._count < _ENOUGH:
            return 0
        # A new time moves a full window little, so the line is fitted again only after a few.
        if self._count - self._fitted > min(self._count, _WINDOW) // 16 or not self._fitted:
            self._fit(quantile)
        return self._fitted

    def expected_ns(self, rows: int, quantile: float) -> float | None:
        if not self.edition(quantile):
            return None
        a, b, least = self._line
        return (a + b * max(rows, least)) * self._above

    def costs_ns(self, most: int, trust: float) -> list[int]:
        a, b, least = self._line
        rows = np.arange(most + 1).clip(least)
        costs: list[int] = ((a + b * rows) * (self._above * trust)).astype(np.int64).tolist()
        costs[0] = 0
        return costs

    def _fit(self, quantile: float) -> None:
        count, place = min(self._count, _WINDOW), self._count % _WINDOW
        rows, ns = self._rows[:count], self._ns[:count]
        forgetting = np.roll(_FORGETTING, place) if self._count > _WINDOW else _FORGETTING[_WINDOW - count :]
        weights = forgetting / (ns * ns)
        if self._fitted:
            a, b, least = self._line
            weights[ns > _HICCUP * (a + b * rows.clip(least))] = 0
        kept = np.array([(kept_rows, max(1.0, kept_ns)) for kept_rows, kept_ns in self._kept.values()]).T
        self._line = _least_squares(
            np.concatenate((rows, kept[0])),
            np.concatenate((ns, kept[1])),
            np.concatenate((weights, _KEPT_WEIGHT / (kept[1] * kept[1]))),
        )
        a, b, least = self._line
        above = ns / (a + b * rows.clip(least))
        above.sort()
        self._above = float(above[int(quantile * (count - 1))])
        self._fitted = self._count


def _least_squares(rows: np.ndarray, ns: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """The line through these points that neither falls nor starts below zero, and from how many rows it is valid."""
    total, at, of = float(weights.sum()), float(weights @ rows), float(weights @ ns)
    square, both = float(weights @ (rows * rows)), float(weights @ (rows * ns))
    spread = total * square - at * at
    if spread <= 1e-6 * total * square:
        # A single size: smaller ones are assumed to take as long, larger ones in proportion.
        size, mean_ns = at / total, of / total
        return 0.0, mean_ns / size, size
    b = (total * both - at * of) / spread
    a = (of - b * at) / total
    if b < 0:
        return of / total, 0.0, 0.0
    if a < 0:
        return 0.0, both / square, 0.0
    return a, b, 0.0


def filled(rows: int, buckets: tuple[int, ...]) -> int:
    """The size at which a batch of `rows` runs: padded to its bucket, if there are buckets."""
    return buckets[bisect_left(buckets, rows)] if buckets else rows


def worthwhile(rows: int, buckets: tuple[int, ...], times: ServiceTimes, waiting: int = 0) -> int:
    """How many of `rows` to run as one batch: a smaller bucket, if that gives a higher throughput.

    Padded, 140 rows may take the time of 256. In that time 128 and the other 12 can run, and another 100.

    If batches follow each other without a pause, callers who wait for their answers form two groups that take turns.
    The device has always work if the groups are about even: with 16 rows ahead and 48 waiting, 32 run next.

    Args:
        rows: How many rows fit in the batch.
        waiting: How many rows wait, if more.
    """
    place = bisect_left(buckets, rows)
    if not 0 < place < len(buckets):
        return rows
    chosen = rows
    if buckets[place] != rows and _does_more(buckets[place - 1], rows, buckets, times):
        chosen = buckets[place - 1]
    if times.ahead_rows is not None:
        even = bisect_left(buckets, (max(rows, waiting) + times.ahead_rows + 1) // 2)
        if (
            even < place
            and buckets[even] < chosen
            and _does_more(buckets[even], chosen, buckets, times, _EVEN)
        ):
            chosen = buckets[even]
    return chosen


def _does_more(
    size: int, rows: int, buckets: tuple[int, ...], times: ServiceTimes, share: float = 1.0
) -> bool:
    """Whether a full bucket does more rows a second than this share of what more rows do; False if not known."""
    size_ns, rows_ns = times.known_ns(size), times.known_ns(filled(rows, buckets))
    if size_ns is None or rows_ns is None:
        return False
    return size * rows_ns > share * rows * size_ns
