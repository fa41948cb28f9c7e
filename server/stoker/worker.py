"""A model instance: the thread that turns rows of many frontends into batches.

Doorbells in, planner, runtime, doorbells out. The work per batch is vectorised; there is no Python object
for a request here.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker.arena import AWAKE_NS, LONE_ROWS, Arena, Outcome
from stoker.errors import InvalidInput, ScoringTimeout
from stoker.metrics import ModelMetrics
from stoker.planner import BatchPolicy, Lot, RowQueue, ServiceTimes, plan
from stoker.runtimes.base import RowFailure, Runtime
from stoker.tensors import check_batch

__all__ = ["Lane", "Worker"]

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 14
_FLUSH_S = 0.05
_REASON_BYTES = 1000
# numpy converts plain integers several times faster than members of an IntEnum.
_OK = int(Outcome.OK)


@dataclass(slots=True)
class Lane:
    """The device's side of one arena: a frontend's rows and the doorbell to it."""

    arena: Arena
    doorbell: socket.socket
    unread: bytes = b""
    unsent: bytes = b""

    def receive(self) -> np.ndarray | None:
        """Row numbers that have arrived, `uint32[rows]`; None when the frontend has gone."""
        try:
            data = self.doorbell.recv(_READ_BYTES)
        except BlockingIOError:
            return np.empty(0, np.uint32)
        except OSError:
            return None
        if not data:
            return None
        if self.unread or len(data) % 4:
            data = self.unread + data
            whole = len(data) - len(data) % 4
            data, self.unread = data[:whole], data[whole:]
        return np.frombuffer(data, np.uint32)

    def send(self, numbers: np.ndarray) -> bool:
        """Hand rows back; False if some numbers have to wait until the doorbell is writable."""
        data = numbers.tobytes()
        self.unsent = self.unsent + data if self.unsent else data
        return self.flush()

    def flush(self) -> bool:
        """Send what waits; True when nothing is left."""
        try:
            sent = self.doorbell.send(self.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The frontend has gone; the next read sees EOF and removes the lane.
            sent = len(self.unsent)
        self.unsent = self.unsent[sent:]
        return not self.unsent


@dataclass(slots=True)
class _Gather:
    """Buffers in which batches are gathered, one per fixed-size input."""

    buffers: list[np.ndarray | None] = field(default_factory=list)

    def prepare(self, runtime: Runtime, max_batch_rows: int) -> None:
        self.buffers = [
            None if spec.variable else np.zeros((max_batch_rows, *spec.shape), spec.dtype)
            for spec in runtime.signature.inputs
        ]

    def batch(self, lots: Sequence[tuple[Arena, np.ndarray]], rows: int) -> list[Any]:
        return [self._one(index, lots, rows) for index in range(len(self.buffers))]

    def _one(self, index: int, lots: Sequence[tuple[Arena, np.ndarray]], rows: int) -> Any:
        buffer = self.buffers[index]
        if buffer is None:
            return [
                arena.read_bytes("in", index, number)
                for arena, numbers in lots
                for number in numbers.tolist()
            ]
        if rows == 1:
            arena, numbers = lots[0]
            number = int(numbers[0])
            return arena.inputs[index][number : number + 1]
        start = 0
        for arena, numbers in lots:
            stop = start + len(numbers)
            # mode="clip" lets numpy write into `out` without a buffer of its own.
            arena.inputs[index].take(numbers, axis=0, out=buffer[start:stop], mode="clip")
            start = stop
        return buffer[:rows]


class Worker:
    """Serves one model instance on the thread that calls `serve`.

    Lanes are added and removed from other threads; everything else happens on the serving thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        policy: BatchPolicy,
        metrics: ModelMetrics,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._runtime = runtime
        self._policy = policy
        self._metrics = metrics
        self._clock_ns = clock_ns
        self._queue = RowQueue()
        self._times = ServiceTimes()
        self._lanes: dict[int, Lane] = {}
        self._new_lanes: list[Lane] = []
        self._lock = threading.Lock()
        self._poller = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.register(self._wake_fd, select.EPOLLIN)
        self._lone_rows = 0
        self._stopped = False
        # A caller whose deadline passes is told whether the script had begun.
        self._tells_start = runtime.signature.takes == "body"
        self._gather = _Gather()
        self._gather.prepare(runtime, policy.max_batch_rows)

    def add_lane(self, lane: Lane) -> None:
        """Serve a frontend's rows from now on; callable from any thread."""
        lane.doorbell.setblocking(False)
        with self._lock:
            self._new_lanes.append(lane)
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Let `serve` return, after a batch that is under way; callable from any thread."""
        self._stopped = True
        os.eventfd_write(self._wake_fd, 1)

    def serve(self) -> None:
        """Serve until `stop` is called; then no frontend can be served any more."""
        look_again_ns: int | None = None
        while not self._stopped:
            timeout_s = None if look_again_ns is None else max(0, look_again_ns - self._clock_ns()) / 1e9
            if timeout_s is None and self._metrics.notes:
                timeout_s = _FLUSH_S
            if look_again_ns is None and self._lone_rows >= LONE_ROWS:
                self._linger()
            look_again_ns = self.turn(timeout_s)
        self._metrics.flush_queued()
        for fd, lane in list(self._lanes.items()):
            self._drop(fd, lane)
        self._poller.close()
        os.close(self._wake_fd)

    def _linger(self) -> None:
        """After lone rows, look for the next one a little while before sleeping."""
        until_ns = self._clock_ns() + AWAKE_NS
        while self._clock_ns() < until_ns:
            if self._poller.poll(0):
                return
        self._lone_rows = 0

    def turn(self, timeout_s: float | None) -> int | None:
        """Wait for rows at most `timeout_s`, run at most one batch, and return when to look again.

        The result is 0 when rows are left that could leave at once.
        """
        events = self._poller.poll(timeout_s)
        if not events:
            self._metrics.flush_queued()
        if self._queue.rows:
            self._refresh_deadlines()
        for fd, event in events:
            self._on_event(fd, event)
        todo = plan(self._queue, self._clock_ns(), self._policy, self._times)
        for lot in todo.expired:
            self._hand_back(lot, Outcome.EXPIRED, self._clock_ns())
        if todo.batch:
            self._run_batch(todo.batch, todo.reason)
        self._metrics.set_queued_rows(self._queue.rows)
        return 0 if todo.batch and self._queue.rows else todo.look_again_ns

    def _refresh_deadlines(self) -> None:
        """See which of the rows that were left waiting have been given up meanwhile."""
        for lot in self._queue.lots:
            lot.deadline_ns[:] = self._lanes[lot.lane].arena.deadline_ns[lot.numbers]

    def _on_event(self, fd: int, event: int) -> None:
        if fd == self._wake_fd:
            os.eventfd_read(fd)
            with self._lock:
                arrived, self._new_lanes = self._new_lanes, []
            for lane in arrived:
                self._lanes[lane.doorbell.fileno()] = lane
                self._poller.register(lane.doorbell.fileno(), select.EPOLLIN)
            return
        lane = self._lanes[fd]
        if event & select.EPOLLHUP:
            # The frontend has gone: what it queued is not worth running.
            self._drop(fd, lane)
            return
        if event & select.EPOLLOUT and lane.flush():
            self._poller.modify(fd, select.EPOLLIN)
        if event & ~select.EPOLLOUT:
            self._receive(fd, lane)

    def _receive(self, fd: int, lane: Lane) -> None:
        numbers = lane.receive()
        if numbers is None:
            self._drop(fd, lane)
        elif len(numbers):
            try:
                queued = lane.arena.queued[numbers]
            except IndexError:
                logger.exception("a frontend rang for rows that its arena does not have; it is cut off")
                self._drop(fd, lane)
            else:
                self._queue.push(
                    fd, numbers, deadline_ns=queued[:, 0], enqueued_ns=queued[:, 1], position=queued[:, 2]
                )

    def _drop(self, fd: int, lane: Lane) -> None:
        self._queue.drop_lane(fd)
        self._poller.unregister(fd)
        lane.doorbell.close()
        del self._lanes[fd]

    def _run_batch(self, lots: list[Lot], reason: str) -> None:
        started_ns = self._clock_ns()
        rows = lots[0].rows if len(lots) == 1 else sum(lot.rows for lot in lots)
        self._run_rows(lots, rows, started_ns)
        elapsed_ns = self._clock_ns() - started_ns
        # Counted only now: the callers have their answers already.
        self._lone_rows = (
            self._lone_rows + 1 if rows == 1 and not self._queue.rows and elapsed_ns < AWAKE_NS else 0
        )
        self._times.learn(rows, elapsed_ns)
        self._metrics.observe_batch(rows, reason, elapsed_ns)
        for lot in lots:
            self._metrics.note_queued(started_ns - lot.enqueued_ns)

    def _run_rows(self, lots: list[Lot], rows: int, started_ns: int) -> None:
        """Run rows as one batch; if it fails, in halves, so that only the rows that fail alone are failed."""
        failure = self._try_rows(lots, rows, started_ns)
        if failure is None:
            return
        if isinstance(failure, ScoringTimeout):
            # In parts it would take as long, for callers whose time is over.
            logger.error("a batch of %d rows took too long", rows, exc_info=failure)
            for lot in lots:
                self._hand_back(lot, Outcome.EXPIRED, self._clock_ns())
            return
        if rows == 1:
            self._fail(lots[0], failure, started_ns)
            return
        for half in _halves(lots, rows):
            self._run_rows(half, sum(lot.rows for lot in half), started_ns)

    def _try_rows(self, lots: list[Lot], rows: int, started_ns: int) -> Exception | None:
        try:
            inputs = self._gather.batch([(self._lanes[lot.lane].arena, lot.numbers) for lot in lots], rows)
            if self._tells_start:
                for lot in lots:
                    self._lanes[lot.lane].arena.started_ns[lot.numbers] = started_ns
            outputs: Sequence[Any] = self._runtime.run(inputs)
            checked = [
                _check_texts(batch, rows) if spec.variable else check_batch(spec, batch, rows)
                for spec, batch in zip(self._runtime.signature.outputs, outputs, strict=True)
            ]
        except Exception as error:  # noqa: BLE001  # whatever the model raises is told to its caller
            return error
        if len(lots) == 1:
            self._scatter(lots[0], checked, started_ns)
            return None
        start = 0
        for lot in lots:
            stop = start + lot.rows
            self._scatter(lot, [batch[start:stop] for batch in checked], started_ns)
            start = stop
        return None

    def _scatter(self, lot: Lot, outputs: list[Any], started_ns: int) -> None:
        arena = self._lanes[lot.lane].arena
        arena.done[lot.numbers] = (_OK, started_ns, self._clock_ns(), 0)
        for index, (spec, batch) in enumerate(zip(self._runtime.signature.outputs, outputs, strict=True)):
            if spec.variable:
                self._scatter_texts(arena, index, lot.numbers.tolist(), batch)
            else:
                arena.outputs[index][lot.numbers] = batch
        self._send(lot)

    def _scatter_texts(
        self, arena: Arena, index: int, numbers: list[int], texts: Iterable[bytes | RowFailure]
    ) -> None:
        for number, text in zip(numbers, texts, strict=True):
            if isinstance(text, RowFailure):
                self._mark_row(arena, index, number, text.error)
            elif not arena.write_bytes("out", index, number, text):
                arena.outcome[number] = Outcome.TOO_LARGE

    def _mark_row(self, arena: Arena, index: int, number: int, error: BaseException) -> None:
        """Mark a row without an answer: its caller can mend what the model refuses, and is told."""
        if isinstance(error, InvalidInput):
            logger.info("a request was refused: %s", error)
            arena.write_bytes("out", index, number, str(error).encode()[:_REASON_BYTES])
            arena.outcome[number] = Outcome.REFUSED
        else:
            self._mark_failed(arena, number, error)

    def _fail(self, lot: Lot, error: BaseException, started_ns: int) -> None:
        arena = self._lanes[lot.lane].arena
        arena.done[lot.numbers] = (Outcome.FAILED, started_ns, self._clock_ns(), 0)
        self._mark_failed(arena, int(lot.numbers[0]), error)
        self._send(lot)

    def _mark_failed(self, arena: Arena, number: int, error: BaseException) -> None:
        error_id = secrets.randbits(63)
        logger.error("error id %016x: scoring failed", error_id, exc_info=error)
        arena.outcome[number] = Outcome.FAILED
        arena.error_id[number] = error_id

    def _hand_back(self, lot: Lot, outcome: Outcome, now_ns: int) -> None:
        self._lanes[lot.lane].arena.done[lot.numbers] = (outcome, now_ns, now_ns, 0)
        self._send(lot)

    def _send(self, lot: Lot) -> None:
        if not self._lanes[lot.lane].send(lot.numbers):
            self._poller.modify(lot.lane, select.EPOLLIN | select.EPOLLOUT)


def _check_texts(texts: Sequence[Any], rows: int) -> Sequence[Any]:
    if len(texts) != rows:
        raise ValueError(f"{len(texts)} answers came for a batch of {rows}")
    return texts


def _halves(lots: list[Lot], rows: int) -> tuple[list[Lot], list[Lot]]:
    first: list[Lot] = []
    second: list[Lot] = []
    room = rows // 2
    for lot in lots:
        size = lot.rows
        taken = min(room, size)
        room -= taken
        index = np.arange(size)
        if taken:
            first.append(lot.part(index < taken))
        if taken < size:
            second.append(lot.part(index >= taken))
    return first, second
