"""How the leader of a model's queue plans where batches take turns on the device."""

from __future__ import annotations

from typing import Final

from stoker.device.planner import BatchPolicy, Plan, RowQueue, ServiceTimes, offer, plan
from stoker.device.turns import Turn

__all__ = ["TurnTaking"]

_REFRESH_NS: Final = 1_000_000
"""How long before a turn is expected to be free a waiting model updates its offer."""


class TurnTaking:
    """A model's participation in the turns of its device.

    Attributes:
        wake_fd: Becomes readable when a turn was given; it is read when the turn is taken.
        begun: Whether it has ever had a turn.
        waited_ns: How long the last turn was waited for.
    """

    def __init__(self, turn: Turn) -> None:
        self.wake_fd = turn.wake_fd
        self.begun, self.waited_ns = False, 0
        self._turn = turn
        self._offer_again_ns = 0

    @property
    def needed(self) -> bool:
        """Whether batches take turns now, or this model has made an offer."""
        return self._turn.needed or self._turn.offer is not None

    @property
    def free_ns(self) -> int:
        """When a turn is expected to be free; 0 for now, or where there are no turns."""
        return self._turn.free_ns if self._turn.needed else 0

    @property
    def other_ns(self) -> int:
        """The longest batch that another model offers."""
        return self._turn.other_ns if self._turn.needed else 0

    @property
    def given(self) -> bool:
        """Whether there is a turn that has not been taken yet."""
        return bool(self._turn.given)

    def plan(
        self, queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes
    ) -> tuple[Plan, int | None]:
        """Plan if there is a turn, otherwise offer what would run; returns the turn too."""
        turn = self._turn
        number = turn.take()
        if number is not None:
            self._begin(now_ns)
            return plan(queue, now_ns, policy, times)._replace(reason="turn"), number
        if turn.offer is not None and now_ns < self._offer_again_ns:
            return Plan([], [], "", self._offer_again_ns), None
        free_ns = turn.free_ns
        offered = offer(queue, now_ns, policy, times, free_ns)
        if offered is None or not offered.rows or not turn.needed:
            turn.withdraw()
            # Rows that cannot be in time then are handed back now.
            return plan(queue, now_ns, policy, times, free_ns if turn.needed else None), None
        number = turn.ask(offered, now_ns)
        if number is not None:
            self._begin(now_ns)
            return plan(queue, now_ns, policy, times, free_ns), number
        # Rows that arrive until shortly before are part of the next offer.
        self._offer_again_ns = free_ns - _REFRESH_NS
        return Plan([], [], "", self._offer_again_ns if self._offer_again_ns > now_ns else None), None

    def _begin(self, now_ns: int) -> None:
        self.begun, self.waited_ns = True, self._turn.waited_ns(now_ns)

    def end(
        self,
        number: int,
        elapsed_ns: int,
        queue: RowQueue | None = None,
        now_ns: int = 0,
        policy: BatchPolicy | None = None,
        times: ServiceTimes | None = None,
    ) -> None:
        """Give a turn back.

        Args:
            number: The turn.
            elapsed_ns: How long the device was used.
            queue: The waiting rows, from which the next offer is made.
            now_ns: The time.
            policy: The settings of batching.
            times: Measured times of batches.
        """
        offered = None
        if queue is not None and queue.rows and policy is not None and times is not None:
            offered = offer(queue, now_ns, policy, times)
        self._turn.give_back(number, elapsed_ns, offered if offered is not None and offered.rows else None)

    def leave(self) -> None:
        """Stop participating."""
        self._turn.leave()
