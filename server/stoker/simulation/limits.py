"""Limits of callers in a simulated world: the buckets of the server, under a virtual clock."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stoker.keys.buckets import Bucket

if TYPE_CHECKING:
    from stoker.simulation.arrivals import Requests

__all__ = ["let_in"]


def let_in(requests: Requests, rows_per_s: float, burst_s: float) -> Requests:
    """The requests that remain where each caller may send so many rows in a second, as one frontend sees it.

    Args:
        requests: All that are sent; those beyond the limit are refused, and not sent again.
        rows_per_s: The limit.
        burst_s: How many seconds of it a caller may use at once.
    """
    buckets: dict[int, Bucket] = {}
    drawn: dict[int, int] = {}
    taken = np.zeros(len(requests.at_ns), bool)
    columns = (requests.at_ns.tolist(), requests.rows.tolist(), requests.caller.tolist())
    for place, (at_ns, rows, caller) in enumerate(zip(*columns, strict=True)):
        bucket = buckets.get(caller)
        if bucket is None:
            bucket = buckets[caller] = Bucket(rows_per_s, burst_s, 0, at_ns)
        bucket.look(at_ns, drawn.get(caller, 0))
        if not bucket.wait_ns(rows):
            bucket.draw(rows)
            drawn[caller] = drawn.get(caller, 0) + rows
            taken[place] = True
    return dataclasses.replace(
        requests,
        **{field.name: getattr(requests, field.name)[taken] for field in dataclasses.fields(requests)},
    )
