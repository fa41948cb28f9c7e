"""What the simulator makes of the very arrivals that a server had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stoker.device.batch_sizes import timed_first
from stoker.device.planner import BatchPolicy, ServiceTimes
from stoker.simulation.admitted import Admission
from stoker.simulation.arrivals import Requests
from stoker.simulation.devices import Jitter
from stoker.simulation.planned import Planned
from stoker.simulation.world import NEVER_NS, row_tables, run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stoker.simulation.devices import Curve

__all__ = ["Expected", "simulated"]


@dataclass(frozen=True)
class Expected:
    """What is expected of a run.

    Attributes:
        ready: Which part is ready within the target.
        in_time: Which part is with its caller within the target.
        p50_ms: Median time to these answers; NaN if there are none.
        refused: Which part is refused when it comes.
    """

    ready: float
    in_time: float
    p50_ms: float
    refused: float


def simulated(
    due_s: NDArray[np.float64],
    rows: int,
    curve: Curve,
    target_ms: float,
    way_ms: float,
    jitter: Jitter,
) -> Expected:
    """Let the planner and the admission of the server have these requests under a virtual clock.

    Args:
        due_s: When they come.
        rows: How many rows each has.
        curve: What batches take.
        target_ms: How long an answer is worth something to its caller.
        way_ms: What a request and its answer take beside the batch: sockets, decoding, doorbells.
        jitter: How much longer batches take.
    """
    count = len(due_s)
    ones = np.ones(count, np.int64)
    at_ns = (due_s * 1e9).astype(np.int64)
    requests = Requests(at_ns, rows * ones, 0 * ones, round(target_ms * 1e6) * ones, ones, 0 * ones)
    (table,) = row_tables(requests, 1)
    policy = BatchPolicy(curve.max_batch_rows, target_ms=target_ms, late="refuse")
    admission = Admission(policy, np.random.default_rng(count).random)
    planned = Planned(table, policy, times=_first_times(curve), admission=admission)
    done_ns = run(requests, [curve], [table], planned, jitter).done_ns
    ready_ms = np.where(done_ns < NEVER_NS, (done_ns - at_ns) / 1e6, np.inf)
    took_ms = ready_ms + way_ms
    in_time = took_ms <= target_ms
    return Expected(
        float((ready_ms <= target_ms).mean()) if count else 0.0,
        float(in_time.mean()) if count else 0.0,
        float(np.median(took_ms[in_time])) if in_time.any() else float("nan"),
        admission.refused / max(1, count * rows),
    )


def _first_times(curve: Curve) -> ServiceTimes:
    """What a server has timed before it serves."""
    times = ServiceTimes()
    for size in timed_first((), curve.max_batch_rows):
        for _ in range(2):
            times.learn(size, curve.batch_ns(size))
    return times
