"""Plans the batches of one model: what leaves the queue now, and in which turn of its device."""

from __future__ import annotations

from collections.abc import Callable, Sized

from stoker.device.batch_cap import BatchCap
from stoker.device.batch_decisions import BatchDecision
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.device_turns import ModelTurn, TurnTaking
from stoker.device.queue_report import QueueReporter
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import schedule


class Planner:
    """Asks the scheduler, or the turns of the device where models share it. The leading thread calls it.

    Attributes:
        queue: The waiting rows.
        times: The learned times of batches.
        turn: The model's participation in the turns of its device; None if it takes none.
        reporter: Reports the queue to the frontends; None for a model without a latency target.
        plans_lone_rows: Whether a row has to be planned although nothing else waits or runs, and no turns are taken.
    """

    def __init__(
        self,
        cap: BatchCap,
        clock_ns: Callable[[], int],
        turn: ModelTurn | None,
        instances: Sized,
    ) -> None:
        """Begin with an empty queue.

        Args:
            cap: The largest size of a batch now, with the policy and the allowed sizes.
            clock_ns: The time.
            turn: The model's turns of its device; None if it takes none.
            instances: The instances that run its batches.
        """
        self.queue = RowQueue()
        self.times = ServiceTimes(cap.sizes.buckets)
        self.turn = None if turn is None else TurnTaking(turn)
        self.reporter = None if cap.policy.target_ms is None else QueueReporter(instances, self.turn)
        self.plans_lone_rows = bool(self.reporter or cap.policy.max_delay_ms)
        self._cap, self._clock_ns = cap, clock_ns

    def plan(self) -> tuple[BatchDecision, int | None]:
        """Decide what leaves now; returns its turn too, if it has one."""
        turn, number = self.turn, None
        if turn is not None and turn.needed:
            todo, number = turn.schedule(self.queue, self._clock_ns(), self._cap.policy, self.times)
        else:
            todo = schedule(self.queue, self._clock_ns(), self._cap.policy, self.times)
        if self.reporter is not None:
            self.reporter.report(self.queue, todo.batch, self._clock_ns(), self._cap.policy, self.times)
        return todo, number

    def end_turn(self, number: int, elapsed_ns: int) -> None:
        """Give a turn back, without a proposal for the next one."""
        assert self.turn is not None, "it has one"
        self.turn.end(number, elapsed_ns)

    def end_turn_and_propose(self, number: int, elapsed_ns: int) -> None:
        """Give a turn back; the waiting rows compete with those of other models for the next one."""
        assert self.turn is not None, "it has one"
        self.turn.end(number, elapsed_ns, self.queue, self._clock_ns(), self._cap.policy, self.times)
