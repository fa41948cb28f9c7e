"""The threads of a model that form batches of the rows of many frontends, and run them.

Rows come in by doorbells, are planned, run, and go back by doorbells. Where a model has several instances, their
threads alternate (leader and followers): the leader waits for rows and plans; when it has a batch, it lets the next
thread lead, and runs the batch. So one batch is gathered and copied while another one is computed. While all
threads run batches nobody receives rows: they accumulate, and form the next batch.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.arena import AWAKE_NS, CALLER_BITS, LONE_ROWS, NORMAL_TIER, Outcome
from stoker.device.batch_sizes import BatchCap, BatchSizes, ServiceTimes
from stoker.device.batching import BatchDecision, BatchPolicy
from stoker.device.device_sharing import ModelTurn, TurnTaking
from stoker.device.instance import Instance, PackedInstance
from stoker.device.lanes import Batch, Lane
from stoker.device.loading import Canary
from stoker.device.queue_report import QueueReporter
from stoker.device.row_blocks import placed_of
from stoker.device.row_queue import RowQueue, callers_of, push_rows
from stoker.device.scheduler import schedule
from stoker.isolation.audit import AuditResult
from stoker.metrics.counters import ModelMetrics
from stoker.runtimes.base import Runtime
from stoker.system.forks import CHILDREN

if TYPE_CHECKING:
    from stoker.isolation.audit import AuditedRows
    from stoker.tensors import RowIsolation

logger = logging.getLogger(__name__)

_SHARE: Final = 0.001
_FIRST_AFTER_NS: Final = 1_000_000_000
_RUNS: Final = 2
"""An audit is expected to cost this many runs of the batch: its own run, and preparing its rows."""
_PAUSE_BATCHES: Final = 16
_LONG: Final = 1e15
_SEED: Final = 20260721


class AuditSchedule:
    """Decides for one model in one device process which batches are audited. One thread at a time may call it.

    Audits are limited by time: what they have taken, with the next one, is at most a thousandth of the time of all
    batches. So there may be fewer than the rate asks for.
    """

    def __init__(
        self,
        rate: float,
        *,
        share: float | None = _SHARE,
        first_after_ns: int = _FIRST_AFTER_NS,
    ) -> None:
        """Start without any audit time used.

        Args:
            rate: How many of all batches are audited, above 0 and at most 1.
            share: The share of the batches' time that audits may take; None for no limit.
            first_after_ns: Batches have to run for this long before the first audit.
        """
        self._most_gap = max(1, round(min(2 / rate, _LONG)) - 1)
        self._share = share
        self._first_after_ns = first_after_ns
        # Intervals vary, so that a periodic pattern of requests is not always missed.
        self._random = random.Random(_SEED)  # noqa: S311  # nobody has to be surprised by it
        self._computed_ns = 0
        self._audited_ns = 0
        self._under_way = False
        self._left = self._gap()

    def count(self, elapsed_ns: int) -> bool:
        """Count a batch that took `elapsed_ns`; returns whether a row of the next one is to be kept."""
        self._computed_ns += elapsed_ns
        self._left -= 1
        return self._left <= 0 and self._may(elapsed_ns)

    def begin(self, elapsed_ns: int) -> bool:
        """Whether a batch that took `elapsed_ns` may be audited; if so, `end` has to be called after the audit."""
        if self._left > 0 or not self._may(elapsed_ns):
            return False
        self._under_way = True
        return True

    def end(self, elapsed_ns: int) -> None:
        """Record that an audit took `elapsed_ns`."""
        self._under_way = False
        self._audited_ns += elapsed_ns
        self._left = self._gap()

    def postpone(self) -> None:
        """Skip some batches because rows wait: checking again after each batch would delay them too."""
        self._left = min(_PAUSE_BATCHES, self._most_gap)

    def _may(self, elapsed_ns: int) -> bool:
        if self._under_way or self._computed_ns < self._first_after_ns:
            return False
        expected_ns = self._audited_ns + _RUNS * elapsed_ns
        return self._share is None or expected_ns <= self._share * self._computed_ns

    def _gap(self) -> int:
        return self._random.randint(1, self._most_gap)


_WARN_EVERY_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """How one model is audited.

    Attributes:
        name: The model, for the log.
        isolation: Why its rows may share batches.
        schedule: Which batches are audited.
        on_isolation_changed: Called with the new finding when an audit has refuted it.
    """

    name: str
    isolation: RowIsolation
    schedule: AuditSchedule
    on_isolation_changed: Callable[[RowIsolation], None]


class Auditor:
    """Audits one model in one device process. `judge` and `audit` may be called by any of its threads at once."""

    def __init__(self, policy: AuditPolicy, cap: BatchCap, clock_ns: Callable[[], int]) -> None:
        """Start without results.

        Args:
            policy: How the model is audited.
            cap: Used to switch batching off.
        """
        self.schedule = policy.schedule
        self._policy = policy
        self.cap = cap
        self._clock_ns = clock_ns
        self._noise = 0.0
        self._quiet_until_ns = 0

    def audit(self, instance: Instance, taken: AuditedRows) -> AuditResult:
        """Run rows again. Whatever comes of it does not affect callers."""
        try:
            finding = instance.audit(taken, self._noise)
        except Exception:
            logger.exception("%s: a row could not be audited", self._policy.name)
            return AuditResult("skipped")
        self._noise = max(self._noise, finding.noise)
        return finding

    def judge(self, finding: AuditResult) -> None:
        """Act on a result: batching is switched off at once, unless the operator vouches for the model."""
        name = self._policy.name
        if finding.result == "skipped":
            logger.info("%s: a row could not be audited: %s", name, finding.reason)
        if finding.result != "failed":
            return
        told = (
            f"{name}: an answer depends on the rows beside it: {finding.reason}; "
            f"sha256 of the answer that was given: {finding.given}, of the other one: {finding.found}"
        )
        if self._policy.isolation.how == "said":
            self._warn(told)
            return
        if not self.cap.stop_batching():
            return
        logger.error("%s; from now on each row of it runs alone", told)
        self._policy.on_isolation_changed(
            dataclasses.replace(
                self._policy.isolation,
                batched=False,
                how="watched",
                reason=f"an audit of a running batch has failed: {finding.reason}",
                setting="batching: rows",
            )
        )

    def _warn(self, told: str) -> None:
        now_ns = self._clock_ns()
        if now_ns >= self._quiet_until_ns:
            self._quiet_until_ns = now_ns + _WARN_EVERY_NS
            logger.warning("%s; it is batched all the same, because batching is rows", told)


# Counts rows that were answered in time, by tier.


def count_answers(
    metrics: ModelMetrics,
    batch: Batch,
    policy: BatchPolicy,
    started_ns: int,
    elapsed_ns: int,
    expected_ns: int,
) -> None:
    """Count the rows of a batch, and the error of its predicted time.

    Args:
        metrics: The counters.
        batch: The batch that has run.
        started_ns: When it started.
        elapsed_ns: How long it took.
        expected_ns: The predicted time.
    """
    target_ns, ended_ns = round((policy.target_ms or 0) * 1e6), started_ns + elapsed_ns
    for block in batch.blocks:
        in_time = block.due_ns(target_ns) >= ended_ns
        if block.placed is None:
            metrics.count_answers(NORMAL_TIER, block.rows, int(np.count_nonzero(in_time)))
            continue
        tiers = placed_of(block) >> CALLER_BITS
        rows, in_time_rows = np.bincount(tiers).tolist(), np.bincount(tiers[in_time], minlength=3).tolist()
        for tier, count in enumerate(rows):
            if count:
                metrics.count_answers(tier, count, in_time_rows[tier])
    metrics.observe_expectation(expected_ns / max(1, elapsed_ns))


# Which batches of a model run concurrently: those of all instances, or a single one.


class Occupancy:
    """Counts running batches, and lets one run alone. All methods may be called on any thread.

    Attributes:
        several: Whether there are several instances; if not, all methods do nothing.
        running: How many batches run now; 0 where there is one instance.
    """

    def __init__(self) -> None:
        self.several = False
        self._changed = threading.Condition(threading.Lock())
        self.running = 0
        self._one_alone = False

    def enter(self) -> int:
        """Begin a batch; waits while another one runs alone. Returns how many are running."""
        if not self.several:
            return 1
        with self._changed:
            self._changed.wait_for(lambda: not self._one_alone)
            self.running += 1
            return self.running

    def leave(self) -> None:
        """End a batch."""
        if self.several:
            with self._changed:
                self.running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Continue a batch that has begun, while no other one runs."""
        if not self.several:
            yield
            return
        with self._changed:
            # Counted out before it waits for the others, one of which may want to run alone too.
            self.running -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._one_alone)
            self._one_alone = True
            self._changed.wait_for(lambda: not self.running)
            self.running += 1
        try:
            yield
        finally:
            with self._changed:
                self._one_alone = False
                self._changed.notify_all()


_FLUSH_S: Final = 0.05


class _CheckDevice:
    """The leader's task in place of a batch, when the canary is due."""


class Worker:
    """Serves one model with all threads that call `serve`, each for an instance of its own.

    Lock order: the leader's lock first, then a lane's or the one of the counters. The only thread of a single
    instance always leads, and takes the leader's lock only when it ends.

    Attributes:
        instances: All instances; each belongs to the thread that has added it. None is added after serving has
            begun.
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
        self._run_began = run_began
        self._turn = None if turn is None else TurnTaking(turn)
        self._metrics, self._clock_ns = metrics, clock_ns
        self._sizes = sizes or BatchSizes()
        self.cap = BatchCap(policy, self._sizes, metrics)
        self.auditor = None if audit is None else Auditor(audit, self.cap, clock_ns)
        self._canary = canary
        self._occupancy = Occupancy()
        self.instances: list[Instance] = []
        self.add_instance(runtime)
        # Used by the leader; the next one continues from this state.
        self._leader = threading.Lock()
        self.queue = RowQueue()
        self.times = ServiceTimes(self._sizes.buckets)
        self._reporter = None if policy.target_ms is None else QueueReporter(self.instances, self._turn)
        self._poller = select.epoll() if turn is None else turn.poller()
        # Replaced and never changed: a batch keeps the lanes of the moment when it left.
        self._lanes: dict[int, Lane] = {}
        self._check_again_ns: int | None = None
        self._lone_rows = self._left = 0
        # Used by all threads.
        self._counting = threading.Lock()
        self._active_ns = clock_ns()
        self._arriving = threading.Lock()
        self._new_lanes: list[Lane] = []
        self._stopped = self._closed = False
        self._wake_fd = self._watched_eventfd()

    def descriptors(self) -> list[int]:
        """Descriptors that it waits on; a child that waits on the same ones would take its parent's events."""
        if self._closed:
            return []
        own = [self._wake_fd, self._poller.fileno()]
        return own if self._turn is None else [*own, self._turn.wake_fd]

    def _watched_eventfd(self) -> int:
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.register(fd, select.EPOLLIN)
        return fd

    def add_instance(self, runtime: Runtime) -> Instance:
        """Make another instance, for the calling thread."""
        make = Instance if self._run_began is None else partial(PackedInstance, self._run_began)
        instance = make(runtime, self._sizes, self.cap, self._occupancy.alone, self._canary, self._clock_ns)
        self.instances.append(instance)
        self._occupancy.several = len(self.instances) > 1
        return instance

    def teach(self, times: Iterable[tuple[int, int]]) -> None:
        """Record times of batches that were run before it serves: rows and nanoseconds of each."""
        for rows, elapsed_ns in times:
            self.times.learn(rows, elapsed_ns)

    def add_lane(self, lane: Lane) -> None:
        """Serve a frontend's rows from now on; may be called on any thread."""
        CHILDREN.cut_off(self)
        with self._arriving:
            self._new_lanes.append(lane)
            self._wake()

    def stop_batching(self) -> None:
        """Run each row alone from the next batch on; may be called on any thread."""
        self.cap.stop_batching()

    def stop(self) -> None:
        """Make `serve` return after the batches in progress; may be called on any thread."""
        with self._arriving:
            self._stopped = True
            self._wake()

    def _wake(self) -> None:
        if not self._closed:
            os.eventfd_write(self._wake_fd, 1)

    def serve(self, instance: Instance | None = None) -> None:
        """Serve until `stop` is called; when all threads have returned, no frontend can be served any more.

        Args:
            instance: The instance of the calling thread; by default the first.
        """
        while not self._stopped:
            self.turn(instance=instance)
        with self._leader:
            self._left += 1
            if self._left == len(self.instances):
                self._close()

    def _close(self) -> None:
        self._metrics.flush_queued()
        with self._arriving:
            self._closed = True
        for fd in list(self._lanes):
            self._drop(fd)
        self._poller.close()
        if self._turn is not None:
            self._turn.leave()
        os.close(self._wake_fd)

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
        if self._turn is not None and self._turn.given:
            return 0
        if self._check_again_ns is not None:
            wait_s = max(0, self._check_again_ns - self._clock_ns()) / 1e9
        elif self._metrics.notes:
            wait_s = _FLUSH_S
        elif self._canary is not None:
            wait_s = max(0, self._active_ns + self._canary.idle_ns - self._clock_ns()) / 1e9
        else:
            return most_s
        return wait_s if most_s is None else min(wait_s, most_s)

    def _lead(self, most_s: float | None) -> Batch | _CheckDevice | None:
        """Wait for rows; returns what is to be done now."""
        if self._stopped:
            return None
        wait_s = self.wait_s(most_s)
        if most_s is None and self._lone_rows >= LONE_ROWS and self._check_again_ns is None:
            self._linger()
        events = self._poller.poll(wait_s)
        if not events:
            with self._counting:
                self._metrics.flush_queued()
        if self.queue.rows:
            self.queue.refresh(lambda lane, numbers: self._lanes[lane].arena.deadline_ns[numbers])
        for fd, event in events:
            self._on_event(fd, event)
        self.times.running = self._occupancy.running
        todo, number = self._schedule()
        for block in todo.expired:
            self._lanes[block.lane].hand_back(block.numbers, Outcome.EXPIRED, self._clock_ns())
        turn, left_rows = self._turn, self.queue.rows
        self._metrics.set_queued_rows(left_rows)
        blocks = todo.batch
        self._check_again_ns = 0 if blocks and left_rows else todo.check_again_ns
        if blocks:
            rows = blocks[0].rows if len(blocks) == 1 else sum(block.rows for block in blocks)
            if turn is None or number is None:
                return Batch(blocks, rows, self._lanes, todo.reason)
            return Batch(blocks, rows, self._lanes, todo.reason, number, turn.waited_ns)
        if turn is not None and number is not None:
            # The requests for which it asked have been cancelled.
            turn.end(number, 0)
        return None if events or left_rows else self._check_if_idle()

    def _schedule(self) -> tuple[BatchDecision, int | None]:
        """Decide what leaves now; returns its turn too, if it has one."""
        turn, number = self._turn, None
        if turn is not None and turn.needed:
            todo, number = turn.schedule(self.queue, self._clock_ns(), self.cap.policy, self.times)
        else:
            todo = schedule(self.queue, self._clock_ns(), self.cap.policy, self.times)
        if self._reporter is not None:
            self._reporter.report(self.queue, todo.batch, self._clock_ns(), self.cap.policy, self.times)
        return todo, number

    def _end_turn(self, number: int, elapsed_ns: int) -> None:
        """Give a turn back; the waiting rows compete with other models for the next one."""
        assert self._turn is not None, "it has one"
        if self._occupancy.several:
            # Another thread leads, and has offered the waiting rows.
            self._turn.end(number, elapsed_ns)
            return
        for fd, event in self._poller.poll(0):
            self._on_event(fd, event)
        self._turn.end(number, elapsed_ns, self.queue, self._clock_ns(), self.cap.policy, self.times)

    def _check_if_idle(self) -> _CheckDevice | None:
        """Return the canary's task if the canary is due."""
        now_ns = self._clock_ns()
        if self._canary is None or now_ns < self._active_ns + self._canary.idle_ns:
            return None
        # Otherwise the next leader would run it too.
        self._active_ns = now_ns
        return _CheckDevice()

    def _linger(self) -> None:
        """After single rows, poll for the next one for a short time instead of sleeping."""
        until_ns = self._clock_ns() + AWAKE_NS
        while self._clock_ns() < until_ns:
            if self._poller.poll(0):
                return
        self._lone_rows = 0

    def _on_event(self, fd: int, event: int) -> None:
        if self._turn is not None and fd == self._turn.wake_fd:
            # It is read when the turn is taken.
            return
        if fd == self._wake_fd:
            os.eventfd_read(fd)
            with self._arriving:
                arrived, self._new_lanes = self._new_lanes, []
            if arrived:
                self._lanes = self._lanes | {lane.open(self._poller): lane for lane in arrived}
                self._note_lanes()
            return
        lane = self._lanes[fd]
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
        if self._reporter is not None:
            self._reporter.set_pages(lane.arena.words("board") for lane in self._lanes.values())
        capacities = [lane.arena.capacity for lane in self._lanes.values()]
        self.queue.late_limit_rows = min(capacities, default=2) // 2

    def _receive(self, fd: int, lane: Lane) -> None:
        numbers = lane.receive()
        if numbers is None:
            self._drop(fd)
        elif len(numbers):
            try:
                queued = lane.arena.queued.take(numbers, axis=0)
            except IndexError:
                logger.exception("a frontend rang for rows that its arena does not have; it is cut off")
                self._drop(fd)
            else:
                self._take_in(fd, lane, numbers, queued)

    def _take_in(self, fd: int, lane: Lane, numbers: np.ndarray, queued: np.ndarray) -> None:
        push_rows(self.queue, fd, numbers, queued, self.cap.policy, told=bool(lane.told[0]))

    def _drop(self, fd: int) -> None:
        self.queue.drop_lane(fd)
        self._lanes[fd].close()
        self._lanes = {key: lane for key, lane in self._lanes.items() if key != fd}
        self._note_lanes()

    def _run(self, instance: Instance, batch: Batch) -> None:
        if self._turn is not None and self._turn.begun:
            batch.notify_turn()
        sharing = self._occupancy.enter()
        started_ns = self._clock_ns()
        instance.run(batch, started_ns)
        elapsed_ns = self._clock_ns() - started_ns
        self._occupancy.leave()
        if self._reporter is not None:
            self._reporter.ended()
        if batch.turn is not None:
            self._end_turn(batch.turn, elapsed_ns)
        # Counted only after the callers have their answers.
        with self._counting:
            self._count(instance, batch, started_ns, elapsed_ns, sharing)
        if instance.monitor.kept_rows is not None:
            self._audit(instance, elapsed_ns)
        if not self._occupancy.several:
            # No thread leads meanwhile.
            lone = batch.rows == 1 and not self.queue.rows and elapsed_ns < AWAKE_NS
            self._lone_rows = self._lone_rows + 1 if lone else 0

    def _count(
        self, instance: Instance, batch: Batch, started_ns: int, elapsed_ns: int, sharing: int
    ) -> None:
        self._active_ns = started_ns + elapsed_ns
        size = self._sizes.filled(batch.rows)
        if self._reporter is not None:
            expected_ns = self.times.expected_ns(size, sharing - 1)
            count_answers(self._metrics, batch, self.cap.policy, started_ns, elapsed_ns, expected_ns)
            self.times.learn(size, elapsed_ns, sharing - 1)
        elif self.queue.shares is not None or self._needs_times:
            self.times.learn(size, elapsed_ns, sharing - 1)
        else:
            self.times.learn_mean(size, elapsed_ns)
        # A batch that ran beside others had only a part of the device.
        self._metrics.learn_batch_time(size, elapsed_ns // sharing)
        self._metrics.observe_batch(batch.rows, batch.reason, elapsed_ns)
        self._metrics.count_busy(elapsed_ns // sharing, callers_of(batch.blocks))
        if batch.turn is not None:
            self._metrics.observe_turn_wait(batch.turn_wait_ns)
        for block in batch.blocks:
            self._metrics.note_queued(started_ns - block.enqueued_ns)
        if instance.padding_rows:
            self._metrics.count_padding(instance.padding_rows)
            instance.padding_rows = 0
        if instance.monitor.non_finite_rows:
            self._metrics.count_non_finite(instance.monitor.non_finite_rows)
            instance.monitor.non_finite_rows = 0
        if self.auditor is not None:
            # A row that runs alone has only padding beside it.
            instance.monitor.wants_rows = self.auditor.schedule.count(elapsed_ns) and not self.cap.separate

    def _audit(self, instance: Instance, elapsed_ns: int) -> None:
        """Audit the row that was kept of the last batch, unless rows wait for the device."""
        taken, instance.monitor.kept_rows = instance.monitor.kept_rows, None
        assert taken is not None, "the caller has looked"
        assert self.auditor is not None, "nothing is kept for nobody"
        schedule = self.auditor.schedule
        with self._counting:
            if self._stopped or self.queue.rows or self._poller.poll(0):
                schedule.postpone()
                return
            if not schedule.begin(elapsed_ns):
                return
        self._occupancy.enter()
        begun_ns = self._clock_ns()
        finding = self.auditor.audit(instance, taken)
        audited_ns = self._clock_ns() - begun_ns
        self._occupancy.leave()
        with self._counting:
            schedule.end(audited_ns)
            self._metrics.count_audit(finding.result)
        self.auditor.judge(finding)
