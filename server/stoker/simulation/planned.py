"""The scheduler of the server in a simulated world: its planner, asked as its workers ask it."""

from __future__ import annotations

import numpy as np

from stoker.device.planner import BatchPolicy, Offer, RowQueue, ServiceTimes, offer, plan
from stoker.device.service_times import filled
from stoker.simulation.world import Batch, RowTable

__all__ = ["Planned", "Untargeted"]


class Planned:
    """One model, planned with its targets.

    Args:
        table: Its rows.
        policy: How it is batched.
        timeout_ms: When callers stop waiting.
        times: What is known of its batches before.
    """

    def __init__(
        self,
        table: RowTable,
        policy: BatchPolicy,
        timeout_ms: float = 60_000,
        times: ServiceTimes | None = None,
    ) -> None:
        self.times = times or ServiceTimes(policy.buckets)
        self._table = table
        self._policy = policy
        self._deadline_ns = table.at_ns + round(timeout_ms * 1e6)
        self._numbers = np.arange(len(table.at_ns), dtype=np.int32)
        # Where nobody is told apart, nothing is said of that, as in a server without named keys and tiers.
        self._ranked = bool(table.caller.any() or (table.tier != 1).any())
        self._large = bool(len(table.size)) and int(table.size.max()) > 1
        self._queue = RowQueue()

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Rows have come."""
        del model
        rows, table = slice(start, stop), self._table
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

    def offer(self, now_ns: int) -> Offer | None:
        """What the planner would let go."""
        return offer(self._queue, now_ns, self._policy, self.times)

    def next_batch(self, now_ns: int) -> Batch:
        """What the planner lets go."""
        planned = plan(self._queue, now_ns, self._policy, self.times)
        lots = planned.batch
        if not lots:
            return Batch(0, self._numbers[:0], planned.look_again_ns)
        return Batch(0, lots[0].numbers if len(lots) == 1 else np.concatenate([lot.numbers for lot in lots]))

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """It learns."""
        del model
        self.times.learn(filled(rows, self._policy.buckets), elapsed_ns)


class Untargeted(Planned):
    """One model as it is planned without targets: callers stop waiting at them."""

    def __init__(self, table: RowTable, policy: BatchPolicy) -> None:
        super().__init__(table, policy)
        self._deadline_ns = table.due_ns

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Rows have come."""
        del model
        rows, table = slice(start, stop), self._table
        self._queue.push(
            0, self._numbers[rows], table.position[rows], table.at_ns[rows], self._deadline_ns[rows]
        )
