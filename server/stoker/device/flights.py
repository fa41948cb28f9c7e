"""Batches in flight: begun on a device by one thread, and completed by another one."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue

from stoker.arena import Arena
from stoker.device.batch import Batch
from stoker.device.compute_stream import ComputeStream
from stoker.device.instance import Instance
from stoker.runtimes.base import BatchInFlight, PipelinedRuntime


@dataclass(slots=True, eq=False)
class Flight:
    """A batch in flight.

    Attributes:
        size: Its size with its padding.
        cap_rows: The most rows of a batch when it began.
        begun_ns: When it left the queue.
        running: The batch as the runtime knows it; None before it has begun.
    """

    batch: Batch
    size: int
    cap_rows: int
    begun_ns: int
    running: BatchInFlight | None = None


class Flights:
    """The batches of a model that are in flight, for the thread that begins them and the one that completes them.

    `changed` guards everything but `completions`.

    Attributes:
        changed: Notified when the first thread is to look again.
        completions: Batches that the second thread waits for, the oldest first; None ends that thread.
        stream: When the device will have computed them.
        unfinished: All of them, the oldest first.
        failed: Those that failed, with the reason; None for one that could not be begun.
        crash: The error that ended the second thread.
        has_news: Whether the first thread is to look again.
        wants_room: Whether the first thread waits for one of them to end.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.completions: SimpleQueue[Flight | None] = SimpleQueue()
        self.stream = ComputeStream()
        self.unfinished: deque[Flight] = deque()
        self.failed: deque[tuple[Flight, BaseException | None]] = deque()
        self.crash: BaseException | None = None
        self.has_news = self.wants_room = False

    def note_news(self) -> None:
        """Wake the first thread if it waits."""
        with self.changed:
            self.has_news = True
            self.changed.notify_all()

    def wait_for_news(self, wait_s: float | None) -> None:
        """Wait until there is news, at most for so long."""
        with self.changed:
            self.changed.wait_for(lambda: self.has_news, wait_s)

    def wait_until_landed(self) -> None:
        """Wait until no batch is in flight, or the second thread has crashed."""
        with self.changed:
            self.changed.wait_for(lambda: not self.unfinished or self.crash is not None)

    def note_crash(self, error: BaseException) -> None:
        """Record the error that ends the second thread."""
        with self.changed:
            self.crash = error

    def leave(self, flight: Flight, failure: BaseException | None, instance: Instance) -> bool:
        """Remove a batch that has ended, and wake the first thread if it waits for room.

        Args:
            flight: The batch.
            failure: Why it failed; None if it did not.
            instance: The instance that runs them; it runs none if none is left.

        Returns:
            Whether none is left.
        """
        with self.changed:
            self.unfinished.remove(flight)
            if failure is not None:
                self.failed.append((flight, failure))
            is_idle = not self.unfinished
            if self.wants_room or is_idle:
                self.has_news = True
                self.changed.notify_all()
            if is_idle:
                instance.run_began_ns = 0
        return is_idle

    def arenas(self) -> set[Arena]:
        """Return the arenas that batches in flight read."""
        with self.changed:
            return {
                flight.batch.lanes[block.lane].arena
                for flight in self.unfinished
                for block in flight.batch.blocks
            }


class AttachedArenas:
    """The arenas from which the device copies; one is detached when its frontend has gone and no batch reads it."""

    def __init__(self, runtime: PipelinedRuntime, flights: Flights) -> None:
        """Begin with none."""
        self._runtime, self._flights = runtime, flights
        self._attached: set[Arena] = set()
        self.leaving: set[Arena] = set()

    def update(self, present: set[Arena]) -> None:
        """Attach the arenas that are new among `present`, and detach those that are missing."""
        for arena in present - self._attached:
            self._runtime.attach(arena)
        self._attached |= present
        self.leaving = self._attached - present
        self.detach_unread()

    def detach_unread(self) -> None:
        """Detach the arenas of frontends that have gone, unless a batch in flight reads them."""
        read = self._flights.arenas()
        for arena in self.leaving - read:
            self._runtime.detach(arena)
            self._attached.discard(arena)
        self.leaving &= read
