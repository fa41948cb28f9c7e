"""Several models that share a device in a simulated world: the planner of each, and the arbiter between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stoker.device.arbiter import Arbiter
from stoker.device.planner import BatchPolicy, Offer
from stoker.simulation.planned import Planned
from stoker.simulation.world import Batch, RowTable

__all__ = ["Shared"]


class Shared:
    """Models of one device, of which one batch runs at a time.

    Args:
        tables: Their rows.
        policies: How each is batched.
        shares: Weights of their device time in conflicts; equal if not said.
    """

    def __init__(
        self, tables: Sequence[RowTable], policies: Sequence[BatchPolicy], shares: Sequence[float] = ()
    ) -> None:
        self._models = [Planned(table, policy) for table, policy in zip(tables, policies, strict=True)]
        names = [str(number) for number in range(len(tables))]
        self._arbiter = Arbiter(dict(zip(names, shares or [1.0] * len(names), strict=True)))

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Rows have come."""
        self._models[model].arrive(0, start, stop)

    def next_batch(self, now_ns: int) -> Batch:
        """What the arbiter names, as its planner lets it go."""
        offers: dict[str, Offer] = {}
        look_again: list[int] = []
        for number, model in enumerate(self._models):
            offer = model.offer(now_ns)
            if offer is None:
                # What is over is handed back all the same.
                model.next_batch(now_ns)
                continue
            offers[str(number)] = offer
            if offer.look_again_ns is not None:
                look_again.append(offer.look_again_ns)
        chosen = self._arbiter.choose(now_ns, offers)
        if chosen is None:
            return Batch(0, np.empty(0, np.int32), min(look_again, default=None))
        self._arbiter.charge(chosen, offers[chosen].cost_ns)
        return Batch(int(chosen), self._models[int(chosen)].next_batch(now_ns).rows)

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Its planner learns."""
        self._models[model].ran(0, rows, elapsed_ns)
