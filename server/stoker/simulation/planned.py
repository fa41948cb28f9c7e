"""The scheduler of the server in a simulation: its planner, called as the device process calls it."""

from __future__ import annotations

from typing import Final

import numpy as np

from stoker.device.planner import BatchPolicy, Offer, RowQueue, ServiceTimes, offer, plan
from stoker.device.service_times import filled
from stoker.simulation.admitted import Admission
from stoker.simulation.world import Batch, RowTable

__all__ = ["Planned", "Untargeted"]

_TIMEOUT_NS: Final = 60_000_000_000
"""The timeout of requests."""


class Planned:
    """One model with targets, scheduled by the planner.

    Args:
        table: The model's rows.
        policy: Its batching policy.
        times: Initial knowledge of its batch times.
        admission: Its admission control; None admits everything.
    """

    def __init__(
        self,
        table: RowTable,
        policy: BatchPolicy,
        times: ServiceTimes | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission
        self.times = times or ServiceTimes(policy.buckets)
        self._table = table
        self._policy = policy
        self._deadline_ns = table.at_ns + _TIMEOUT_NS
        self._numbers = np.arange(len(table.at_ns), dtype=np.int32)
        # Without different callers or tiers, rows carry no rank, as in a server without named keys and tiers.
        self._ranked = bool(table.caller.any() or (table.tier != 1).any())
        self._large = bool(len(table.size)) and int(table.size.max()) > 1
        self._queue = RowQueue()

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Queue arrived rows that are admitted."""
        del model
        rows: slice | np.ndarray = slice(start, stop)
        table = self._table
        if self._admission is not None:
            taken = self._admission.taken(table, start, stop)
            if not taken.all():
                rows = start + np.flatnonzero(taken)
        self._queue.push(
            0,
            self._numbers[rows],
            table.position[rows],
            table.at_ns[rows],
            self._deadline_ns[rows],
            target_ns=table.due_ns[rows],
            size=table.size[rows] if self._large else None,
            tier=table.tier[rows] if self._ranked else None,
            caller=table.caller[rows] if self._ranked else None,
        )

    @property
    def refused_rows(self) -> int:
        """Number of refused rows."""
        return 0 if self._admission is None else self._admission.refused

    def tell(self, now_ns: int, free_ns: int, other_ns: int) -> None:
        """Publish the state of the device's other models to the admission control.

        Args:
            now_ns: The time.
            free_ns: When the device will have finished its current batch.
            other_ns: The time of the longest batch that another model offers.
        """
        if self._admission is not None:
            self._admission.tell(self._queue, now_ns, self.times, 0, free_ns=free_ns, other_ns=other_ns)

    def offer(self, now_ns: int) -> Offer | None:
        """The batch that the planner would dispatch."""
        return offer(self._queue, now_ns, self._policy, self.times)

    def next_batch(self, now_ns: int) -> Batch:
        """The batch that the planner dispatches."""
        planned = plan(self._queue, now_ns, self._policy, self.times)
        lots = planned.batch
        if self._admission is not None:
            self._admission.tell(self._queue, now_ns, self.times, sum(lot.rows for lot in lots))
        if not lots:
            return Batch(0, self._numbers[:0], planned.look_again_ns)
        return Batch(0, lots[0].numbers if len(lots) == 1 else np.concatenate([lot.numbers for lot in lots]))

    def ran(self, model: int, rows: int, elapsed_ns: int, beside: int = 0) -> None:
        """Let the planner learn a batch's time."""
        del model
        if self._admission is not None:
            self._admission.ended()
        self.times.learn(filled(rows, self._policy.buckets), elapsed_ns, beside)


class Untargeted(Planned):
    """One model scheduled without targets: they only serve as timeouts."""

    def __init__(self, table: RowTable, policy: BatchPolicy) -> None:
        super().__init__(table, policy)
        self._deadline_ns = table.due_ns

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Queue arrived rows."""
        del model
        rows, table = slice(start, stop), self._table
        self._queue.push(
            0, self._numbers[rows], table.position[rows], table.at_ns[rows], self._deadline_ns[rows]
        )
