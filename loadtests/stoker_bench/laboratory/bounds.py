"""Upper bounds for any scheduler, computed with knowledge of all requests and batch times.

Both bounds assume a device that is never slower than its curve.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

import numpy as np

from stoker.simulation.workload import Curve, Requests

__all__ = ["exact", "fluid", "has_exact"]

_STEPS: Final = 200
_UNREACHED: Final = -(1 << 30)


def fluid(requests: Requests, curve: Curve) -> float:
    """Upper bound of the share of rows answered in time, with rows and batches divisible at will.

    Each row takes its share of the time of the most efficient batch, and rows are processed in order of their due
    times, which is optimal.

    Args:
        requests: The requests for all models, which share one curve.
        curve: The batch times.
    """
    row_ns = min(curve.batch_ns(rows) / rows for rows in range(1, curve.max_batch_rows + 1))
    due_ns = (requests.at_ns + requests.target_ns).tolist()
    waiting: list[tuple[int, float]] = []
    now_ns, done_ns = 0.0, 0.0
    at_ns = requests.at_ns.tolist()
    until = (*at_ns[1:], float("inf"))
    for begins_ns, until_ns, due, rows in zip(at_ns, until, due_ns, requests.rows.tolist(), strict=True):
        now_ns = max(now_ns, begins_ns)
        heappush(waiting, (due, rows * row_ns))
        while waiting and now_ns < until_ns:
            first_due, work_ns = heappop(waiting)
            spent_ns = min(work_ns, first_due - now_ns, until_ns - now_ns)
            if spent_ns <= 0:
                continue
            now_ns += spent_ns
            done_ns += spent_ns
            if work_ns > spent_ns and first_due > now_ns:
                heappush(waiting, (first_due, work_ns - spent_ns))
    return float(done_ns / row_ns / max(1, requests.rows.sum()))


def has_exact(requests: Requests) -> bool:
    """Whether `exact` applies: requests of one row each, for one model, with one target."""
    one_row = bool((requests.rows == 1).all()) and not requests.model.any()
    return one_row and len(set(requests.target_ns.tolist())) <= 1


def exact(requests: Requests, curve: Curve, step_ns: int | None = None) -> float:
    """The share of rows answered in time by the optimal sequence of batches.

    Dynamic programming over the time at which the device is free and the number of leading rows that are gone: a
        batch of
    *n* takes *n* consecutive rows that have arrived and are in time; rows before them are lost.

    Args:
        requests: Requests for which `has_exact` is true.
        curve: The batch times.
        step_ns: The step of the time grid; times are rounded in favour of the bound. None is a two hundredth of a
            full batch. If all times are multiples of the step, the bound is attained.
    """
    costs = np.array([curve.batch_ns(rows) for rows in range(1, curve.max_batch_rows + 1)])
    step_ns = min(curve.full_ns // _STEPS if step_ns is None else step_ns, int(costs[0]))
    lasts = (costs // step_ns).tolist()
    at_ns = requests.at_ns
    due_ns = at_ns + requests.target_ns
    if not len(at_ns):
        return 0.0
    # By step modulo the ring's length, and by the number of leading rows that are gone: the most rows answered.
    ring = np.full((lasts[-1] + 1, len(at_ns) + 1), _UNREACHED, np.int32)
    steps = np.arange(int(due_ns[-1]) // step_ns + 1)
    come = at_ns.searchsorted((steps + 1) * step_ns).tolist()
    # By step and longest batch: the number of leading rows gone for states that end at the step.
    gone = [0] * lasts[-1]
    ring[0, 0] = 0
    most = 0
    for step, last in enumerate(come):
        now, after = ring[step % len(ring)], ring[(step + 1) % len(ring)]
        first_rows = due_ns.searchsorted(step * step_ns + costs).tolist()
        begin = gone[step]
        gone.append(first_rows[0])
        # A state with fewer rows gone may drop more of them.
        best = np.maximum.accumulate(now[begin : last + 1])
        most = max(most, int(best[-1]))
        now[begin : last + 1] = _UNREACHED
        waits = slice(first_rows[0], last + 1)
        np.maximum(after[waits], best[first_rows[0] - begin :], out=after[waits])
        for rows, (first, lasting) in enumerate(zip(first_rows, lasts, strict=True), 1):
            stop = last - rows + 1
            if first >= stop:
                break
            ends = ring[(step + lasting) % len(ring)][first + rows : stop + rows]
            np.maximum(ends, best[first - begin : stop - begin] + rows, out=ends)
    return max(most, int(ring.max())) / len(at_ns)
