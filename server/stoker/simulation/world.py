"""A simulation of one device with its models under a virtual clock, driven by a scheduler.

All rows that have arrived since the last call form one lot, as when a device process reads its doorbells. The code
does not sleep, block, or read a clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from stoker.simulation.workload import Jitter, Requests

NEVER_NS: Final = (1 << 62) - 1
PATIENCE_NS: Final = 2_000_000_000
"""The longest time that a run continues after the last request."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of the requests for one model, in order of arrival.

    Attributes:
        at_ns: Arrival times, `int64[rows]`.
        position: Index of each row within its request.
        size: Number of rows of its request.
        due_ns: Deadlines of useful answers.
        request: Index of its request among those of all models.
        tier: 0 for high, 1 for normal, 2 for low.
    """

    at_ns: np.ndarray
    position: np.ndarray
    size: np.ndarray
    due_ns: np.ndarray
    request: np.ndarray
    tier: np.ndarray
    caller: np.ndarray


class Batch(NamedTuple):
    """The decision of a scheduler.

    Attributes:
        rows: The rows to run, as indices into its table, `int64[rows]`; empty to run nothing now.
        look_again_ns: When to call again if nothing arrives before; None to wait for an arrival.
    """

    model: int
    rows: np.ndarray
    look_again_ns: int | None = None


class BatchTimes(Protocol):
    """Undisturbed batch times."""

    def batch_ns(self, rows: int) -> int:
        """The time of a batch of `rows`."""


class Scheduler(Protocol):
    """Decides which batches run."""

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Take arrived rows of a model: those of its table with indices `start` to `stop`, exclusive."""

    def next_batch(self, now_ns: int) -> Batch:
        """Return the next batch; the device is idle."""

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Report that a batch has ended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of all requests.

    Attributes:
        done_ns: When the last row of each was answered, `int64[requests]`; `NEVER_NS` if a row was not.
        busy_ns: How long the device computed, by model.
        end_ns: When the simulation ended.
    """

    requests: Requests
    done_ns: np.ndarray
    busy_ns: list[int]
    batches: int
    end_ns: int
    refused_rows: int = 0

    def in_time(
        self, model: int | None = None, *, caller: int | None = None, tier: int | None = None
    ) -> float:
        """Return the share of rows whose request was answered within its target, of all or of selected requests."""
        requests = self.requests
        selected = np.ones(len(requests.at_ns), bool)
        for column, wanted in ((requests.model, model), (requests.caller, caller), (requests.tier, tier)):
            if wanted is not None:
                selected &= column == wanted
        rows = requests.rows[selected]
        in_time = (self.done_ns <= requests.at_ns + requests.target_ns)[selected]
        return float(rows[in_time].sum() / max(1, rows.sum()))

    @property
    def answered_rows(self) -> int:
        """Number of rows of completely answered requests."""
        return int(self.requests.rows[self.done_ns < NEVER_NS].sum())

    def latency_ms(self, quantile: float) -> float:
        """Return a quantile of the latency of answered requests; NaN if there are none."""
        took = (self.done_ns - self.requests.at_ns)[self.done_ns < NEVER_NS]
        return float(np.quantile(took, quantile)) / 1e6 if len(took) else float("nan")


def row_tables(requests: Requests, models: int) -> list[RowTable]:
    """Make the table of rows of each model."""
    tables = []
    for model in range(models):
        own = np.flatnonzero(requests.model == model)
        rows = requests.rows[own]
        request = np.repeat(own, rows)
        starts = np.repeat(rows.cumsum() - rows, rows)
        at_ns = requests.at_ns[request]
        tables.append(
            RowTable(
                at_ns,
                np.arange(len(request)) - starts,
                np.repeat(rows, rows),
                at_ns + requests.target_ns[request],
                request,
                requests.tier[request],
                requests.caller[request],
            )
        )
    return tables


def run(
    requests: Requests,
    curves: Sequence[BatchTimes],
    tables: Sequence[RowTable],
    scheduler: Scheduler,
    jitter: Jitter,
) -> Outcome:
    """Simulate the requests, with one batch at a time, until all are done.

    Args:
        curves: The batch times of each model.
        tables: The rows of each model, from `row_tables`.
        jitter: Lengthens batch times.
    """
    arrivals = [table.at_ns.tolist() for table in tables]
    done = [np.full(len(times), NEVER_NS) for times in arrivals]
    begun = [0] * len(arrivals)
    busy_ns = [0] * len(arrivals)
    now_ns = batches = 0
    last_ns = max((times[-1] for times in arrivals if times), default=0) + PATIENCE_NS
    while now_ns <= last_ns:
        for model, times in enumerate(arrivals):
            start = begun[model]
            if start < len(times) and times[start] <= now_ns:
                begun[model] = stop = bisect_right(times, now_ns, start)
                scheduler.arrive(model, start, stop)
        model, rows, look_again_ns = scheduler.next_batch(now_ns)
        if len(rows):
            elapsed_ns = round(curves[model].batch_ns(len(rows)) * jitter.factor())
            now_ns += elapsed_ns
            done[model][rows] = now_ns
            busy_ns[model] += elapsed_ns
            batches += 1
            scheduler.ran(model, len(rows), elapsed_ns)
            continue
        coming = [times[place] for times, place in zip(arrivals, begun, strict=True) if place < len(times)]
        if look_again_ns is not None:
            coming.append(look_again_ns)
        if not coming:
            break
        now_ns = max(now_ns, min(coming))
    return Outcome(requests, answered_ns(requests, tables, done), busy_ns, batches, now_ns)


def answered_ns(requests: Requests, tables: Sequence[RowTable], done: Sequence[np.ndarray]) -> np.ndarray:
    """Return when the last row of each request was answered, `int64[requests]`.

    Args:
        tables: The rows of each model.
        done: When each row was done, by model.
    """
    last_rows = np.zeros(len(requests.at_ns), np.int64)
    for table, ends in zip(tables, done, strict=True):
        np.maximum.at(last_rows, table.request, ends)
    return last_rows
