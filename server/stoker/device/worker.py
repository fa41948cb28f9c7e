"""The threads of a model that form batches of the rows of many frontends, and run them.

Rows come in by doorbells, are planned, run, and go back by doorbells. Where a model has several instances, their
threads alternate (leader and followers, decision 17): the leader waits for rows and plans; when it has a batch, it
lets the next thread lead, and runs the batch. So one batch is gathered and copied while another one is computed.
While all threads run batches nobody receives rows: they accumulate, and form the next batch.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import numpy as np

from stoker.arena import AWAKE_NS, LONE_ROWS, Outcome
from stoker.device.auditing import Auditor, AuditPolicy
from stoker.device.batch import Batch
from stoker.device.batch_cap import BatchCap
from stoker.device.batch_counter import BatchCounter
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes, ServiceTimes
from stoker.device.canary import Canary
from stoker.device.device_turns import ModelTurn
from stoker.device.doorbells import Doorbells
from stoker.device.instance import Instance, PackedInstance
from stoker.device.lanes import Lane
from stoker.device.occupancy import Occupancy
from stoker.device.planner import Planner
from stoker.device.row_blocks import RowBlock
from stoker.device.row_queue import RowQueue, push_rows
from stoker.metrics.counters import ModelMetrics
from stoker.runtimes.base import Runtime

logger = logging.getLogger(__name__)

_FLUSH_S: Final = 0.05


class _CheckDevice:
    """The leader's task in place of a batch, when the canary is due."""


class Worker:
    """Serves one model with all threads that call `serve`, each for an instance of its own.

    Lock order: the leader's lock first, then a lane's or the counter's. The only thread of a single
    instance always leads, and takes the leader's lock only when it ends.

    Attributes:
        cap: The largest size of a batch now, with the policy.
        auditor: Audits batches; None for a model that is not audited.
        instances: All instances; each belongs to the thread that has added it. None is added after serving has
            begun.
        doorbells: The doorbells of the frontends.
        planner: Decides which rows leave.
    """

    _needs_times = False
    """Whether times are learned in full also where rows have neither targets nor tiers."""

    def __init__(
        self,
        runtime: Runtime,
        policy: BatchPolicy,
        metrics: ModelMetrics,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        *,
        sizes: BatchSizes | None = None,
        canary: Canary | None = None,
        audit: AuditPolicy | None = None,
        turn: ModelTurn | None = None,
        run_began: memoryview | None = None,
    ) -> None:
        """Make the first instance.

        Args:
            runtime: The runtime of the first instance.
            metrics: The counters, written here only.
            sizes: The allowed sizes of batches; None for any.
            canary: Checks whether the device still works; None for no checks.
            audit: How batches are audited; None for no audits.
            turn: Its participation in the turns of its device; None if it takes none.
            run_began: A shared word for `Instance.run_began_ns`; None where no other model is in the process.
        """
        self._clock_ns, self._metrics = clock_ns, metrics
        self.cap = BatchCap(policy, sizes or BatchSizes(), metrics)
        self.auditor = None if audit is None else Auditor(audit, self.cap, clock_ns)
        self._canary = canary
        self._occupancy = Occupancy()
        self._make_instance = partial(
            Instance if run_began is None else partial(PackedInstance, run_began),
            cap=self.cap,
            alone=self._occupancy.alone,
            canary=canary,
            clock_ns=clock_ns,
        )
        self.instances: list[Instance] = []
        self.add_instance(runtime)
        # The leader's; the next leader continues from this state.
        self._leader = threading.Lock()
        self.doorbells = Doorbells(turn, self._on_wake())
        self.planner = self._make_planner(turn)
        self._check_again_ns: int | None = None
        self._lone_rows = self._left = 0
        # All threads'.
        self._counter = BatchCounter(
            metrics,
            self.queue,
            self.times,
            self.cap,
            audits=None if audit is None else audit.schedule,
            always_learns=self._needs_times,
            now_ns=clock_ns(),
        )

    @property
    def queue(self) -> RowQueue:
        """The waiting rows."""
        return self.planner.queue

    @property
    def times(self) -> ServiceTimes:
        """The learned times of batches."""
        return self.planner.times

    def _make_planner(self, turn: ModelTurn | None) -> Planner:
        return Planner(self.cap, self._clock_ns, turn, self.instances)

    def _on_wake(self) -> Callable[[], None] | None:
        """Return what a wake-up calls, on the thread that wakes; to hold the worker would be a cycle."""
        return None

    def add_instance(self, runtime: Runtime) -> Instance:
        """Make another instance, for the calling thread."""
        instance = self._make_instance(runtime)
        self.instances.append(instance)
        self._occupancy.several = len(self.instances) > 1
        return instance

    def teach(self, times: Iterable[tuple[int, int]]) -> None:
        """Record times of batches that were run before it serves: rows and nanoseconds of each."""
        for rows, elapsed_ns in times:
            self.times.learn(rows, elapsed_ns)

    def add_lane(self, lane: Lane) -> None:
        """Serve a frontend's rows from now on; may be called on any thread."""
        self.doorbells.add(lane)

    def stop_batching(self) -> None:
        """Run each row alone from the next batch on; may be called on any thread."""
        self.cap.stop_batching()

    def stop(self) -> None:
        """Make `serve` return after the batches in progress; may be called on any thread."""
        self.doorbells.stop()

    def serve(self, instance: Instance | None = None) -> None:
        """Serve until `stop` is called; when all threads have returned, no frontend can be served any more.

        Args:
            instance: The instance of the calling thread; by default the first.
        """
        while not self.doorbells.stopped:
            self.turn(instance=instance)
        with self._leader:
            self._left += 1
            if self._left == len(self.instances):
                self.close()

    def close(self) -> None:
        """Leave the turns, and watch no doorbell any more; `serve` does it, and a load that fails after all."""
        self._counter.flush()
        self.doorbells.mark_closed()
        for fd in list(self.doorbells.lanes):
            self._drop(fd)
        if self.planner.turn is not None:
            self.planner.turn.leave()
        self.doorbells.close()

    def turn(self, most_s: float | None = None, instance: Instance | None = None) -> int | None:
        """Lead until rows have come, then run at most one batch.

        Args:
            most_s: How long to wait for rows, for tests; None for no limit.
            instance: The instance that runs the batch; by default the first.

        Returns:
            When to look again, for tests; 0 if rows are left that could leave at once.
        """
        instance = instance or self.instances[0]
        if self._occupancy.several:
            with self._leader:
                todo = self._lead(most_s)
        else:
            todo = self._lead(most_s)
        if isinstance(todo, Batch):
            self._run(instance, todo)
        elif todo is not None:
            instance.check_device()
        return self._check_again_ns

    def wait_s(self, most_s: float | None) -> float | None:
        """How long the leader may sleep if no row arrives."""
        turn = self.planner.turn
        if turn is not None and turn.given:
            return 0
        if self._check_again_ns is not None:
            wait_s = max(0, self._check_again_ns - self._clock_ns()) / 1e9
        elif self._metrics.notes:
            wait_s = _FLUSH_S
        elif self._canary is not None:
            wait_s = max(0, self._counter.active_ns + self._canary.idle_ns - self._clock_ns()) / 1e9
        else:
            return most_s
        return wait_s if most_s is None else min(wait_s, most_s)

    def _lead(self, most_s: float | None) -> Batch | _CheckDevice | None:
        """Wait for rows; returns what is to be done now."""
        doorbells, planner = self.doorbells, self.planner
        if doorbells.stopped:
            return None
        events: list[tuple[int, int]] = []
        if most_s is None and self._lone_rows >= LONE_ROWS and self._check_again_ns is None:
            events = self._linger()
            if len(events) == 1 and (lone := self._take_lone(*events[0])) is not None:
                return lone
        if not events:
            events = doorbells.poller.poll(self.wait_s(most_s))
        if not events:
            self._counter.flush()
        queue = planner.queue
        if queue.rows:
            queue.refresh(lambda lane, numbers: doorbells.lanes[lane].arena.deadline_ns[numbers])
        for fd, event in events:
            self._on_event(fd, event)
        planner.times.running = self._occupancy.running
        todo, number = planner.plan()
        for block in todo.expired:
            doorbells.lanes[block.lane].hand_back(block.numbers, Outcome.EXPIRED, self._clock_ns())
        turn, left_rows = planner.turn, queue.rows
        self._metrics.set_queued_rows(left_rows)
        blocks = todo.batch
        self._check_again_ns = 0 if blocks and left_rows else todo.check_again_ns
        if blocks:
            rows = blocks[0].rows if len(blocks) == 1 else sum(block.rows for block in blocks)
            if turn is None or number is None:
                return Batch(blocks, rows, doorbells.lanes, todo.reason)
            return Batch(blocks, rows, doorbells.lanes, todo.reason, number, turn.waited_ns)
        if turn is not None and number is not None:
            # The requests for which it asked have been cancelled.
            turn.end(number, 0)
        return None if events or left_rows else self._check_if_idle()

    def _end_turn(self, number: int, elapsed_ns: int) -> None:
        """Give a turn back."""
        if self._occupancy.several:
            # Another thread leads, and has offered the waiting rows.
            self.planner.end_turn(number, elapsed_ns)
            return
        for fd, event in self.doorbells.poller.poll(0):
            self._on_event(fd, event)
        self.planner.end_turn_and_propose(number, elapsed_ns)

    def _check_if_idle(self) -> _CheckDevice | None:
        """Return the canary's task if the canary is due."""
        now_ns = self._clock_ns()
        if self._canary is None or now_ns < self._counter.active_ns + self._canary.idle_ns:
            return None
        # Otherwise the next leader would run it too.
        self._counter.active_ns = now_ns
        return _CheckDevice()

    def _linger(self) -> list[tuple[int, int]]:
        """After single rows, poll for the next one for a short time instead of sleeping; returns the events."""
        until_ns = self._clock_ns() + AWAKE_NS
        while self._clock_ns() < until_ns:
            if events := self.doorbells.poller.poll(0):
                return events
        self._lone_rows = 0
        return []

    def _take_lone(self, fd: int, event: int) -> Batch | None:
        """Take the only row that has come past the queue and the planner, where they have nothing to decide."""
        queue, turn, lanes = self.queue, self.planner.turn, self.doorbells.lanes
        lane = lanes.get(fd)
        if self.planner.plans_lone_rows or queue.rows or queue.shares is not None:
            return None
        if turn is not None and turn.needed:
            return None
        if lane is None or event != select.EPOLLIN or lane.has_urgencies[0]:
            return None
        numbers = lane.receive()
        if numbers is None:
            return None
        if len(numbers) == 1 and numbers[0] < lane.arena.capacity:
            queued = lane.arena.queued.take(numbers, axis=0)
            deadline_ns, enqueued_ns, position = queued[:, 0], queued[:, 1], queued[:, 2]
            if deadline_ns[0] > self._clock_ns():
                self._begin_lone(lane, numbers)
                block = RowBlock(fd, numbers, position, enqueued_ns, deadline_ns, queue.virtual_time)
                return Batch([block], 1, lanes, "idle")
        self._accept(fd, lane, numbers)
        return None

    def _begin_lone(self, lane: Lane, numbers: np.ndarray) -> None:
        """Begin to compute a lone row before it is described by a batch, where the device allows it."""

    def _on_event(self, fd: int, event: int) -> None:
        doorbells = self.doorbells
        if fd == doorbells.turn_fd:
            # It is read when the turn is taken.
            return
        if fd == doorbells.wake_fd:
            if doorbells.admit():
                self._note_lanes()
            return
        lane = doorbells.lanes[fd]
        if event & select.EPOLLHUP:
            # The frontend has gone: its rows are not worth running.
            self._drop(fd)
            return
        if event & select.EPOLLOUT:
            lane.flush()
        if event & ~select.EPOLLOUT:
            self._receive(fd, lane)

    def _note_lanes(self) -> None:
        """Limit late rows to half of the smallest arena, so that new rows find room."""
        lanes = self.doorbells.lanes.values()
        if self.planner.reporter is not None:
            self.planner.reporter.set_pages(lane.arena.words("board") for lane in lanes)
        capacities = [lane.arena.capacity for lane in lanes]
        self.queue.late_limit_rows = min(capacities, default=2) // 2

    def _receive(self, fd: int, lane: Lane) -> None:
        numbers = lane.receive()
        if numbers is None:
            self._drop(fd)
        elif len(numbers):
            self._accept(fd, lane, numbers)

    def _accept(self, fd: int, lane: Lane, numbers: np.ndarray) -> None:
        try:
            queued = lane.arena.queued.take(numbers, axis=0)
        except IndexError:
            logger.exception("a frontend rang for rows that its arena does not have; it is cut off")
            self._drop(fd)
        else:
            self._take_in(fd, lane, numbers, queued)

    def _take_in(self, fd: int, lane: Lane, numbers: np.ndarray, queued: np.ndarray) -> None:
        push_rows(self.queue, fd, numbers, queued, self.cap.policy, has_urgencies=bool(lane.has_urgencies[0]))

    def _drop(self, fd: int) -> None:
        self.queue.drop_lane(fd)
        self.doorbells.drop(fd)
        self._note_lanes()

    def _run(self, instance: Instance, batch: Batch) -> None:
        planner = self.planner
        if planner.turn is not None and planner.turn.begun:
            batch.notify_turn()
        several = self._occupancy.several
        sharing = self._occupancy.enter() if several else 1
        started_ns = self._clock_ns()
        instance.run(batch, started_ns)
        elapsed_ns = self._clock_ns() - started_ns
        if several:
            self._occupancy.leave()
        if planner.reporter is not None:
            planner.reporter.note_end()
        if batch.turn is not None:
            self._end_turn(batch.turn, elapsed_ns)
        # Counted only after the callers have their answers.
        with self._counter.lock:
            self._counter.count(instance, batch, started_ns, elapsed_ns, sharing)
        if instance.monitor.kept_rows is not None:
            self._audit(instance, elapsed_ns)
        if not several:
            # No thread leads meanwhile.
            lone = batch.rows == 1 and not planner.queue.rows and elapsed_ns < AWAKE_NS
            self._lone_rows = self._lone_rows + 1 if lone else 0

    def _audit(self, instance: Instance, elapsed_ns: int) -> None:
        """Audit the row that was kept of the last batch, unless rows wait for the device."""
        kept_rows, instance.monitor.kept_rows = instance.monitor.kept_rows, None
        assert kept_rows is not None, "a row was kept"
        assert self.auditor is not None, "rows are kept for audits only"
        schedule = self.auditor.schedule
        with self._counter.lock:
            if self.doorbells.stopped or self.queue.rows or self.doorbells.poller.poll(0):
                schedule.postpone()
                return
            if not schedule.begin(elapsed_ns):
                return
        self._occupancy.enter()
        begun_ns = self._clock_ns()
        finding = self.auditor.audit(instance, kept_rows)
        audited_ns = self._clock_ns() - begun_ns
        self._occupancy.leave()
        with self._counter.lock:
            schedule.end(audited_ns)
            self._metrics.count_audit(finding.result)
        self.auditor.judge(finding)
