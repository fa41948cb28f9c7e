"""Quotas of callers in a simulation: the token buckets of the server under a virtual clock."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stoker.keys.buckets import Bucket

if TYPE_CHECKING:
    from stoker.simulation.workload import Requests

__all__ = ["let_in"]


def let_in(requests: Requests, rows_per_s: float, burst_s: float) -> Requests:
    """Filter requests by a quota of rows per second for each caller, as enforced by one frontend.

    Args:
        requests: All requests; those beyond the quota are refused and not retried.
        rows_per_s: The quota.
        burst_s: Number of seconds of the quota that a caller may use at once.
    """
    buckets: dict[int, Bucket] = {}
    drawn: dict[int, int] = {}
    taken = np.zeros(len(requests.at_ns), bool)
    columns = (requests.at_ns.tolist(), requests.rows.tolist(), requests.caller.tolist())
    for place, (at_ns, rows, caller) in enumerate(zip(*columns, strict=True)):
        bucket = buckets.get(caller)
        if bucket is None:
            bucket = buckets[caller] = Bucket(rows_per_s, burst_s, 0, at_ns)
        bucket.update(at_ns, drawn.get(caller, 0))
        if not bucket.wait_ns(rows):
            bucket.draw(rows)
            drawn[caller] = drawn.get(caller, 0) + rows
            taken[place] = True
    return dataclasses.replace(
        requests,
        **{field.name: getattr(requests, field.name)[taken] for field in dataclasses.fields(requests)},
    )
