"""The doorbells of all frontends on one poller, and the lanes behind them."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from stoker.device.device_turns import ModelTurn
from stoker.device.lanes import Lane
from stoker.system.forks import CHILDREN


class Doorbells:
    """Waits for the doorbells of all lanes; other threads add lanes, and wake the thread that waits.

    Attributes:
        lanes: The lanes by the descriptors of their doorbells. Replaced and never changed: a batch keeps the lanes
            of the moment when it left.
        poller: Watches the doorbells, the wake-ups and the turns.
        wake_fd: Readable after `wake`.
        turn_fd: Readable when the model was given a turn; None if it takes none.
        stopped: Whether the model is to stop serving.
        closed: Whether nothing is watched any more.
    """

    def __init__(self, turn: ModelTurn | None, on_wake: Callable[[], None] | None = None) -> None:
        """Watch the turns of a model, if it takes any.

        Args:
            turn: The model's turns.
            on_wake: Called at each wake-up, on the thread that wakes.
        """
        self.lanes: dict[int, Lane] = {}
        self.poller = select.epoll() if turn is None else turn.poller()
        self.turn_fd = None if turn is None else turn.wake_fd
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.poller.register(self.wake_fd, select.EPOLLIN)
        self.stopped = self.closed = False
        self._on_wake = on_wake
        self._lock = threading.Lock()
        self._arrived: list[Lane] = []

    def descriptors(self) -> list[int]:
        """Descriptors that it waits on; a child that waits on the same ones would take its parent's events."""
        if self.closed:
            return []
        own = [self.wake_fd, self.poller.fileno()]
        return own if self.turn_fd is None else [*own, self.turn_fd]

    def add(self, lane: Lane) -> None:
        """Have a lane admitted by the waiting thread; may be called on any thread."""
        CHILDREN.cut_off(self)
        with self._lock:
            self._arrived.append(lane)
            self._wake()

    def stop(self) -> None:
        """Mark it as stopped, and wake the waiting thread; may be called on any thread."""
        with self._lock:
            self.stopped = True
            self._wake()

    def wake(self) -> None:
        """Wake the waiting thread; may be called on any thread."""
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        if not self.closed:
            os.eventfd_write(self.wake_fd, 1)
        if self._on_wake is not None:
            self._on_wake()

    def admit(self) -> bool:
        """Watch the lanes that were added; returns whether there were any. To be called after a wake-up."""
        os.eventfd_read(self.wake_fd)
        with self._lock:
            arrived, self._arrived = self._arrived, []
        if arrived:
            self.lanes = self.lanes | {lane.open(self.poller): lane for lane in arrived}
        return bool(arrived)

    def drop(self, fd: int) -> None:
        """Close a lane, and watch it no longer."""
        self.lanes[fd].close()
        self.lanes = {key: lane for key, lane in self.lanes.items() if key != fd}

    def mark_closed(self) -> None:
        """Let wake-ups of other threads pass from now on without a descriptor."""
        with self._lock:
            self.closed = True

    def close(self) -> None:
        """Close the poller and the wake-ups; all lanes have been dropped."""
        self.poller.close()
        os.close(self.wake_fd)
