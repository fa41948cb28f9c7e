"""When queued rows are announced to the device: the loop and the doorbell are the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tests.puppets import HandClock

from stoker.arena import AWAKE_NS, LONE_ROWS
from stoker.gateway.rows.doorbell import RowAnnouncer
from stoker.gateway.rows.row_leases import RowLeases


class Announced:
    """An announcer whose loop keeps the calls, and whose doorbell keeps the numbers."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.leases = RowLeases(8)
        self.calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.rung: list[list[int]] = []
        self.announcer = RowAnnouncer(cast(Any, self), self.leases, self.clock, cast(Any, self))

    def ring(self, numbers: list[int]) -> None:
        self.rung.append(numbers)

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.calls.append((callback, arguments))

    def add_one(self) -> None:
        (number,) = self.leases.take(1)
        self.announcer.add_one(number, self.clock())

    def end_turn(self) -> None:
        calls, self.calls = self.calls, []
        for callback, arguments in calls:
            callback(*arguments)


def alone(announced: Announced) -> None:
    """Let rows be alone for so long that the next one is announced at once."""
    for _ in range(LONE_ROWS):
        announced.add_one()
        announced.end_turn()
        announced.leases.release([0])
    announced.rung.clear()


def test_row_announcer_rows_of_one_turn_are_announced_together() -> None:
    """Each turn sends one message for the rows of all requests."""
    announced = Announced()
    announced.add_one()
    announced.add_one()
    announced.announcer.add([6, 7])
    assert not announced.rung
    announced.end_turn()
    announced.end_turn()
    assert announced.rung == [[0, 1, 6, 7]]


def test_row_announcer_lone_row_is_announced_at_once() -> None:
    """After some rows without company nothing is gained by waiting for the end of the turn."""
    announced = Announced()
    alone(announced)
    announced.add_one()
    assert announced.rung == [[0]]
    assert not announced.calls


def test_row_announcer_fast_device_keeps_the_loop_awake_for_a_while() -> None:
    """The loop polls until the answer is late, or the row is back."""
    announced = Announced()
    alone(announced)
    announced.announcer.is_fast = True
    announced.add_one()
    announced.end_turn()
    assert len(announced.calls) == 1
    announced.clock.now_ns += AWAKE_NS
    announced.end_turn()
    assert not announced.calls


def test_row_announcer_closed_rings_no_more() -> None:
    """The socket of a lost device is closed: rows that were queued in the same turn stay where they are."""
    announced = Announced()
    announced.add_one()
    announced.announcer.close()
    announced.end_turn()
    assert not announced.rung
