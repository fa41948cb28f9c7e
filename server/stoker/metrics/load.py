"""The load of models relative to their capacity, for autoscalers and load balancers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import ModelTotals

_LEAST_SPAN_S: Final = 0.5
_APART_S: Final = 0.1


class Load(Struct, frozen=True):
    """The load of one version of a model.

    Attributes:
        ratio: Offered load divided by capacity; above 1 if overloaded.
        capacity_rows_s: Throughput of its devices with full batches, in rows per second; 0 if no batch has run yet.
        overloaded: Total number of requests refused because of overload.
        limited: Whether the ratio is of concurrent requests to their limit, instead of rows.
        rows: Number of its rows in the server, waiting or computing.
    """

    ratio: float
    capacity_rows_s: float
    overloaded: int = 0
    limited: bool = False
    rows: int = 0


class _Reading(NamedTuple):
    at_s: float
    model: Callable[[int], ModelTotals]
    """Reads the counters of a slot."""


class LoadMeter:
    """Computes the load of models from the counters of all processes. Thread-safe.

    The load is computed from the difference to an earlier reading, so it costs nothing while nobody reads.
    """

    def __init__(
        self, memory: MetricMemory, clock_s: Callable[[], float] = time.monotonic, slot: int | None = None
    ) -> None:
        """Start with the counters as they are now; reading only one `slot` takes a tenth of the time."""
        self._memory = memory
        self._slot = slot
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._readings = deque([self._now()])

    def read(self, slots: Iterable[int]) -> dict[int, Load]:
        """Return the load of these slots since the latest reading that is at least half a second old.

        Offered rows are those that left in batches, plus the growth of rows in flight, plus the estimated rows of
        requests refused because of overload. Waiting rows additionally count as the throughput needed to complete
        them within a second.
        """
        with self._lock:
            latest = self._now()
            earlier = self._earlier(latest.at_s)
            if latest.at_s - self._readings[-1].at_s >= _APART_S:
                self._readings.append(latest)
        capacities = dict(enumerate(self._memory.capacities_rows_s(self._slot), self._slot or 0))
        span_s = latest.at_s - earlier.at_s
        return {
            slot: _load(latest.model(slot), earlier.model(slot), span_s, float(capacities[slot]))
            for slot in slots
        }

    def _now(self) -> _Reading:
        if self._slot is None:
            return _Reading(self._clock_s(), self._memory.totals().model)
        totals = self._memory.model_totals(self._slot)
        return _Reading(self._clock_s(), lambda _: totals)

    def _earlier(self, now_s: float) -> _Reading:
        while len(self._readings) > 1 and now_s - self._readings[1].at_s >= _LEAST_SPAN_S:
            self._readings.popleft()
        return self._readings[0]


def load_of_all(loads: Mapping[int, Load]) -> float:
    """Return the load of a server with these models: they share devices, but each has its own limit of requests."""
    rows = sum(load.ratio for load in loads.values() if not load.limited)
    return max([rows, *(load.ratio for load in loads.values() if load.limited)])


def _load(now: ModelTotals, before: ModelTotals, span_s: float, capacity_rows_s: float) -> Load:
    overloaded = now.rejections()["overloaded"]
    held, limit = now.held_requests
    if limit:
        return Load(held / limit, capacity_rows_s, overloaded, limited=True, rows=now.rows_in_flight)
    if not capacity_rows_s:
        # Without a known capacity, the load is 1 if there is any work.
        return Load(float(now.rows_in_flight > 0), 0.0, overloaded, rows=now.rows_in_flight)
    offered_rows_s = max(0.0, _offered_rows(now, before)) / span_s if span_s > 0 else 0.0
    ratio = (offered_rows_s + now.queue_rows) / capacity_rows_s
    return Load(ratio, capacity_rows_s, overloaded, rows=now.rows_in_flight)


def _offered_rows(now: ModelTotals, before: ModelTotals) -> float:
    come = now.dispatched_rows - before.dispatched_rows + now.rows_in_flight - before.rows_in_flight
    return come + max(0, _refused_requests(now) - _refused_requests(before)) * _rows_per_request(now)


def _refused_requests(totals: ModelTotals) -> int:
    rejections = totals.rejections()
    return rejections["overloaded"] + rejections["deadline"]


def _rows_per_request(totals: ModelTotals) -> float:
    answered = totals.requests()[200]
    return totals.rows / answered if answered else 1.0
