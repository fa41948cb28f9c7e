"""Several models that share a device in a simulated world: the planner of each, and the arbiter between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.device.arbiter import Arbiter
from stoker.device.planner import BatchPolicy, Offer
from stoker.simulation.admitted import Admission
from stoker.simulation.planned import Planned
from stoker.simulation.world import Batch, RowTable

__all__ = ["Shared"]


class Shared:
    """Models of one device, of which one batch runs at a time.

    Args:
        tables: Their rows.
        policies: How each is batched.
        shares: Weights of their device time in conflicts; equal if not said.
        admits: Whether only those requests are taken that are expected to be in time.
    """

    def __init__(
        self,
        tables: Sequence[RowTable],
        policies: Sequence[BatchPolicy],
        shares: Sequence[float] = (),
        *,
        admits: bool = False,
    ) -> None:
        self._models = [
            Planned(table, policy, admission=Admission(policy) if admits else None)
            for table, policy in zip(tables, policies, strict=True)
        ]
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
            self._tell(now_ns, now_ns, offers)
            return Batch(0, np.empty(0, np.int32), min(look_again, default=None))
        cost_ns = offers.pop(chosen).cost_ns
        self._arbiter.charge(chosen, cost_ns)
        rows = self._models[int(chosen)].next_batch(now_ns).rows
        self._tell(now_ns, now_ns + cost_ns, offers)
        return Batch(int(chosen), rows)

    @property
    def refused_rows(self) -> int:
        """How many rows were not taken."""
        return sum(model.refused_rows for model in self._models)

    def _tell(self, now_ns: int, free_ns: int, offers: Mapping[str, Offer]) -> None:
        """Let those who come know when the device is free, and what the other models offer."""
        for number, model in enumerate(self._models):
            others = (offer.cost_ns for name, offer in offers.items() if name != str(number))
            model.tell(now_ns, free_ns, max(others, default=0))

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Its planner learns."""
        self._models[model].ran(0, rows, elapsed_ns)
