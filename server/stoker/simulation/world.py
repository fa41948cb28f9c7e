"""The rows of simulated requests, and the outcome of a simulation."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from stoker.simulation.workload import Requests

NEVER_NS: Final = (1 << 62) - 1
PATIENCE_NS: Final = 2_000_000_000
"""The longest time that a run continues after the last request."""


class RowTable(Struct, frozen=True):
    """The rows of the requests, in order of arrival.

    Attributes:
        at_ns: Arrival times, `int64[rows]`.
        position: Index of each row within its request.
        size: Number of rows of its request.
        due_ns: Deadlines of useful answers.
        request: Index of its request.
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

    rows: np.ndarray
    look_again_ns: int | None = None


class BatchTimes(Protocol):
    """Undisturbed batch times."""

    def batch_ns(self, rows: int) -> int:
        """The time of a batch of `rows`."""


class Outcome(Struct, frozen=True):
    """The outcome of all requests.

    Attributes:
        done_ns: When the last row of each was answered, `int64[requests]`; `NEVER_NS` if a row was not.
        busy_ns: How long the device computed.
        end_ns: When the simulation ended.
    """

    requests: Requests
    done_ns: np.ndarray
    busy_ns: int
    batches: int
    end_ns: int
    refused_rows: int = 0

    def in_time(self, *, caller: int | None = None, tier: int | None = None) -> float:
        """Return the share of rows whose request was answered within its target, of all or of selected requests."""
        requests = self.requests
        selected = np.ones(len(requests.at_ns), bool)
        for column, wanted in ((requests.caller, caller), (requests.tier, tier)):
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


def row_table(requests: Requests) -> RowTable:
    """Make the table of the rows of requests."""
    rows = requests.rows
    request = np.repeat(np.arange(len(rows)), rows)
    starts = np.repeat(rows.cumsum() - rows, rows)
    at_ns = requests.at_ns[request]
    return RowTable(
        at_ns,
        np.arange(len(request)) - starts,
        np.repeat(rows, rows),
        at_ns + requests.target_ns[request],
        request,
        requests.tier[request],
        requests.caller[request],
    )


def answered_ns(requests: Requests, table: RowTable, done_ns: np.ndarray) -> np.ndarray:
    """Return when the last row of each request was answered, `int64[requests]`.

    Args:
        done_ns: When each row was done.
    """
    last_rows = np.zeros(len(requests.at_ns), np.int64)
    np.maximum.at(last_rows, table.request, done_ns)
    return last_rows
