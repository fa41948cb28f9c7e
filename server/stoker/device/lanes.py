"""The device's side of an arena: a lane to a frontend."""

from __future__ import annotations

import select
import socket
import threading
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from stoker.arena import Arena, Outcome, push_numbers
from stoker.system.forks import CHILDREN, OWN

_READ_BYTES: Final = 1 << 14


class SecondConsumer(RuntimeError):
    """This process must not run the rows of an arena, because another one does: callers would get mixed answers."""

    def __init__(self, consumer: int) -> None:
        super().__init__(f"the rows belong to process {consumer}, not to process {OWN[0]}")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Lane:
    """The device's side of one arena: a frontend's rows and the doorbell to it.

    One thread at a time receives; any thread may hand rows back, also those of a lane that was closed meanwhile.

    Raises:
        SecondConsumer: Another process runs the rows of this arena.
    """

    arena: Arena
    doorbell: socket.socket
    unread: bytes = b""
    unsent: bytes = b""
    has_urgencies: memoryview = field(init=False)
    """Whether the frontend writes caller and urgency of its rows."""
    _consumer: int = field(init=False)
    _poller: select.epoll | None = field(default=None, init=False)
    # The number of a closed descriptor may be reused for another file, so nothing may be sent during or after the
    # close.
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.has_urgencies = self.arena.words("has_urgencies")
        word = self.arena.words("consumer")
        # It is written once: what it is now it remains.
        word[0] = self._consumer = word[0] or OWN[0]
        self.check_consumer()
        CHILDREN.cut_off(self)

    def check_consumer(self) -> None:
        """Check that the rows are this process's to run, before anything is written to them.

        Raises:
            SecondConsumer: They are not: it is a fork of the process whose they are.
        """
        if self._consumer != OWN[0]:
            raise SecondConsumer(self._consumer)

    def descriptors(self) -> list[int]:
        """The doorbell, while it is open."""
        number = self.doorbell.fileno()
        return [] if number < 0 else [number]

    def open(self, poller: select.epoll) -> int:
        """Let `poller` watch the doorbell; returns its file descriptor."""
        self.doorbell.setblocking(False)
        self._poller = poller
        poller.register(self.doorbell, select.EPOLLIN)
        return self.doorbell.fileno()

    def close(self) -> None:
        """Stop watching, and close the doorbell."""
        with self._lock:
            if self._poller is not None:
                self._poller.unregister(self.doorbell)
                self._poller = None
            self.doorbell.close()
            self.unsent = b""

    def receive(self) -> np.ndarray | None:
        """The row numbers that have arrived, `uint32[rows]`; None when the frontend has gone."""
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

    def hand_back(self, numbers: np.ndarray, outcome: Outcome, now_ns: int) -> None:
        """Hand rows back without running them."""
        self.check_consumer()
        self.arena.done[numbers] = (outcome, now_ns, now_ns, 0)
        self.send(numbers)

    def send(self, numbers: np.ndarray) -> None:
        """Send row numbers back; those for which the socket has no room are sent when it is writable again."""
        data = numbers.tobytes()
        with self._lock:
            if self.unsent:
                self.unsent += data
                return
            self.unsent = push_numbers(self.doorbell, data)
            if self.unsent and self._poller is not None:
                self._poller.modify(self.doorbell, select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """Send what is waiting: the doorbell is writable."""
        with self._lock:
            self.unsent = push_numbers(self.doorbell, self.unsent)
            if not self.unsent and self._poller is not None:
                self._poller.modify(self.doorbell, select.EPOLLIN)
