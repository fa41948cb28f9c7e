"""Simulates several models that share a device: the planner of each, and the arbiter between them."""

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
    """The models of one device, which runs one batch at a time.

    Args:
        tables: The rows of each model.
        policies: The batching policy of each model.
        shares: Weights for device time under contention; equal by default.
        admits: Whether requests that are not expected to be in time are refused.
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
        """Queue arrived rows."""
        self._models[model].arrive(0, start, stop)

    def next_batch(self, now_ns: int) -> Batch:
        """The batch that the planner of the model chosen by the arbiter dispatches."""
        offers: dict[str, Offer] = {}
        look_again: list[int] = []
        for number, model in enumerate(self._models):
            offer = model.offer(now_ns)
            if offer is None:
                # Rows that have timed out are dropped all the same.
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
        """Number of refused rows."""
        return sum(model.refused_rows for model in self._models)

    def _tell(self, now_ns: int, free_ns: int, offers: Mapping[str, Offer]) -> None:
        """Publish to the admission controls when the device is free, and what the other models offer."""
        for number, model in enumerate(self._models):
            others = (offer.cost_ns for name, offer in offers.items() if name != str(number))
            model.tell(now_ns, free_ns, max(others, default=0))

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Let the model's planner learn a batch's time."""
        self._models[model].ran(0, rows, elapsed_ns)
