"""The watch over connections on which nothing moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.gateway.listeners.idle_watch import IdleWatch


class Connection:
    """A connection without a socket; `ended` counts how it was ended."""

    def __init__(self, *, busy: bool = False, arriving: bool = False, unacknowledged_bytes: int = 0) -> None:
        self.busy, self.arriving, self.unacknowledged_bytes = busy, arriving, unacknowledged_bytes
        self.idle_sweeps = self.arrived_bytes = 0
        self.ended: list[str] = []
        self.flow = SimpleNamespace(read_paused=False)
        self.transport = SimpleNamespace(abort=lambda: self.ended.append("aborted"))

    def idle_limit_s(self, keep_alive_s: int) -> int:
        return keep_alive_s

    def time_out(self) -> None:
        self.ended.append("timed out")


def sweeps_until_end(connection: Any, unread_s: int = 75, each: Any = lambda: None) -> int:
    """Return after how many sweeps the connection is ended; at most 1000."""
    watch = IdleWatch()
    for sweep in range(1, 1001):
        each()
        watch.check(connection, unread_s)
        if connection.ended:
            return sweep
    return 1000


@pytest.mark.parametrize(
    ("connection", "sweeps", "end"),
    [
        (Connection(), 76, "timed out"),
        (Connection(arriving=True), 11, "timed out"),
        (Connection(unacknowledged_bytes=5), 76, "aborted"),
        (Connection(busy=True), 1000, None),
    ],
    ids=["idle", "arriving", "unread", "busy"],
)
def test_check_ends_a_connection_after_its_limit(
    connection: Connection, sweeps: int, end: str | None
) -> None:
    """A caller who reads nothing is cut off; a request under way has no limit here."""
    assert sweeps_until_end(connection) == sweeps
    assert connection.ended == ([] if end is None else [end])


def test_check_ends_a_body_that_drips() -> None:
    """Each sweep brings some bytes, but fewer than a KiB a second."""
    connection = Connection(arriving=True)

    def drip() -> None:
        connection.idle_sweeps = 0
        connection.arrived_bytes += 512

    assert 10 < sweeps_until_end(connection, each=drip) < 30


def test_check_spares_a_connection_with_a_reading_caller() -> None:
    """Fewer unread bytes than a second ago are progress."""
    connection = Connection(unacknowledged_bytes=10_000)

    def read() -> None:
        connection.unacknowledged_bytes -= 1

    assert sweeps_until_end(connection, unread_s=5, each=read) == 1000
