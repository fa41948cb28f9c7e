"""Admission in a simulation: each request asks for admission as it would in a frontend of the server."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stoker.board import Board
from stoker.device.notice import classes_on_board, later_on_board, tiers_on_board
from stoker.device.planner import BatchPolicy, RowQueue, ServiceTimes
from stoker.errors import Refusal
from stoker.gateway.admitting import admit
from stoker.keys.callers import CallerTerms
from stoker.simulation.world import RowTable

__all__ = ["Admission"]


class Admission:
    """The admission control of one model.

    Args:
        policy: The model's batching policy.
        chance: Random numbers from 0 to 1, for the retry times of refused requests.
        instances: Number of its batches that run concurrently.

    Attributes:
        board: The state of the device, as published to frontends.
        refused: Number of refused rows.
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
        # The expected end of each running batch.
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
        """Publish what is queued behind the batch that is dispatched now, if one is.

        Args:
            queue: The queued rows.
            now_ns: The time.
            times: Expected batch times.
            running_rows: Rows of the batch of this model that is dispatched now; 0 if none is.
            free_ns: When the device will have finished another model's batch.
            other_ns: The time of the longest batch that another model offers.
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
        """Record that one of its batches has ended."""
        if self._ends_ns:
            self._ends_ns.remove(min(self._ends_ns))

    def ask(self, now_ns: int, rows: int, caller: int, tier: int, target_ns: int) -> Refusal | None:
        """Ask for admission of a request; None if it is admitted."""
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
        """Which rows of a table belong to admitted requests, `bool[rows]`."""
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
