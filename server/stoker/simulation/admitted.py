"""Admission in a simulated world: each request asks, as one of the server asks its frontend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stoker.board import Board
from stoker.device.notice import classes_on_board, later_on_board, tiers_on_board
from stoker.device.planner import BatchPolicy, RowQueue, ServiceTimes
from stoker.errors.refusals import Refusal
from stoker.gateway.admitting import admit
from stoker.keys.callers import CallerTerms
from stoker.simulation.world import RowTable

__all__ = ["Admission"]


class Admission:
    """Who may queue for one model.

    Args:
        policy: How it is batched.
        chance: Numbers from 0 to 1 at random, for when those who are refused come back.
        instances: How many of its batches run at once.

    Attributes:
        board: What its device says.
        refused: How many rows were refused.
    """

    def __init__(
        self, policy: BatchPolicy, chance: Callable[[], float] = lambda: 0.0, *, instances: int = 1
    ) -> None:
        self.board = Board()
        self.board.parallel = instances
        self.refused = 0
        self._policy = policy
        self._chance = chance
        self._callers: dict[int, CallerTerms] = {}
        self._costs_ns: list[int] = []
        # When the batches that run are expected to end.
        self._ends_ns: list[int] = []

    def tell(
        self,
        queue: RowQueue,
        now_ns: int,
        times: ServiceTimes,
        running_rows: int,
        *,
        free_ns: int = 0,
        other_ns: int = 0,
    ) -> None:
        """Let the device say what waits behind the batch that leaves now, if one does.

        Args:
            queue: What waits.
            now_ns: The time.
            times: What batches take.
            running_rows: Rows of the batch of this model that leaves now; 0 if none does.
            free_ns: When the device has done another model's batch.
            other_ns: The longest batch that another model offers.
        """
        board, policy = self.board, self._policy
        costs_ns = times.costs_ns(policy.max_batch_rows, policy.buckets)
        if costs_ns is not self._costs_ns:
            self._costs_ns = costs_ns
            cap = board.cap = len(costs_ns) - 1
            board.costs_ns = [costs_ns[min(1 << place, cap)] for place in range((cap - 1).bit_length() + 1)]
        waiting = queue.waiting
        board.waiting = tiers_on_board(waiting)
        board.set_classes({placed: [*found] for placed, found in classes_on_board(waiting, policy).items()})
        board.written_ns, board.other_ns = now_ns, other_ns
        if running_rows:
            self._ends_ns.append(now_ns + costs_ns[running_rows])
        own_ns = min(self._ends_ns) if len(self._ends_ns) >= board.parallel else now_ns
        board.free_ns = max(free_ns, own_ns)
        board.later = list(later_on_board(queue, board.free_ns, costs_ns[-1]))

    def ended(self) -> None:
        """Take note that one of its batches has ended."""
        if self._ends_ns:
            self._ends_ns.remove(min(self._ends_ns))

    def ask(self, now_ns: int, rows: int, caller: int, tier: int, target_ns: int) -> Refusal | None:
        """One request asks; None if it is taken."""
        board = self.board
        terms = self._callers.get(caller)
        if terms is None:
            weight = self._policy.weights.get(caller, 1.0)
            terms = self._callers[caller] = CallerTerms(str(caller), caller, weight=weight)
        board.ask(now_ns, rows)
        refusal = admit(now_ns, rows, terms, tier, target_ns, board, self._chance)
        if refusal is None:
            board.take(rows, tier, caller, terms.weight, target_ns)
        else:
            self.refused += rows
        return refusal

    def taken(self, table: RowTable, start: int, stop: int) -> np.ndarray:
        """Which rows of a table are of requests that are taken, `bool[rows]`."""
        part = slice(start, stop)
        begins = np.flatnonzero(table.position[part] == 0)
        taken = np.fromiter(
            (
                self.ask(*asked) is None
                for asked in zip(
                    table.at_ns[part][begins].tolist(),
                    table.size[part][begins].tolist(),
                    table.caller[part][begins].tolist(),
                    table.tier[part][begins].tolist(),
                    table.due_ns[part][begins].tolist(),
                    strict=True,
                )
            ),
            bool,
            len(begins),
        )
        return np.repeat(taken, table.size[part][begins])
