"""Plans the batches of a model whose device computes one while the next one is copied to it."""

from __future__ import annotations

from typing import Any, Final

from stoker.device.batch_decisions import BatchDecision
from stoker.device.flights import Flights
from stoker.device.planner import Planner
from stoker.device.scheduler import schedule
from stoker.runtimes.base import PipelinedRuntime

_NOTHING: Final = BatchDecision([], [], "", None)


class PipelinedPlanner(Planner):
    """Plans the next batch just before the device has computed the last one.

    Attributes:
        rests: Whether the first thread is to wait for news instead of doorbells: no batch can begin yet.
        rested_ns: The moment for which it has waited so, if it has passed.
        due_ns: The moment at which the batch that was planned last was to be planned.
    """

    def __init__(self, flights: Flights, runtime: PipelinedRuntime, *arguments: Any) -> None:
        """Plan for the batches in flight; see `Planner` for the other arguments."""
        super().__init__(*arguments)
        self._flights, self._runtime = flights, runtime
        self.rests = False
        self.rested_ns: int | None = None
        self.due_ns: int | None = None

    def plan(self) -> tuple[BatchDecision, int | None]:
        """Decide what leaves now; returns its turn too, if it has one."""
        self.rests = False
        flights = self._flights
        turn, queue, policy = self.turn, self.queue, self._cap.policy
        shared = turn is not None and turn.needed
        if not queue.rows and not shared and self.reporter is None:
            return _NOTHING, None
        now_ns, most_rows, stream = self._clock_ns(), policy.max_batch_rows, flights.stream
        copy_ns = self._runtime.copy_ns(max(1, min(queue.rows, most_rows)))
        # Where rows take turns, one that comes later may displace others even from a full batch.
        rows = queue.rows if queue.shares is None else min(queue.rows, most_rows - 1)
        with flights.changed:
            flights.has_news = False
            flights.wants_room = bool(flights.failed) or len(flights.unfinished) >= self._runtime.depth
            self.times.ahead_rows = sum(flight.batch.rows for flight in flights.unfinished)
            look_ns = 0 if shared else stream.look_ns(now_ns, rows, most_rows, self._runtime.copy_ns)
            # A batch is in time if its rows are back in time, so the scheduler is asked for the moment at which the
            # device can begin to compute, and as much later as rows take to get back.
            begins_ns = now_ns + stream.planning_ns + copy_ns
            if not shared:
                begins_ns = max(begins_ns, stream.free_ns)
            begins_ns += stream.returning_ns
        todo, number = _NOTHING, None
        rested_ns, self.rested_ns = self.rested_ns, None
        if flights.wants_room or now_ns < look_ns:
            self.rests = bool(queue.rows) or shared
            if not flights.wants_room and queue.rows:
                todo = _NOTHING._replace(check_again_ns=look_ns)
        else:
            self.due_ns = rested_ns
            if turn is not None and shared:
                todo, number = turn.schedule(queue, begins_ns, policy, self.times)
            else:
                todo = schedule(queue, begins_ns, policy, self.times)
            if todo.check_again_ns is not None:
                todo = todo._replace(check_again_ns=todo.check_again_ns - (begins_ns - now_ns))
        if self.reporter is not None:
            self.reporter.report(queue, todo.batch, now_ns, policy, self.times, begins_ns)
        return todo, number
