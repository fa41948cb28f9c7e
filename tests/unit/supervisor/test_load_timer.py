"""How long a device process may take to load its models: each of them has its own time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stoker.deployment import Deployment
from stoker.supervisor.load_timer import LoadTimer


@dataclass
class _Alarm:
    at_s: float
    ring: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class HandAlarms:
    """A clock that a test moves, with alarms that ring when it passes their time."""

    now_s: float = 100.0
    alarms: list[_Alarm] = field(default_factory=list)

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> _Alarm:
        self.alarms.append(_Alarm(self.now_s + delay_s, ring))
        return self.alarms[-1]

    def advance(self, elapsed_s: float) -> None:
        self.now_s += elapsed_s
        due = [alarm for alarm in self.alarms if alarm.at_s <= self.now_s and not alarm.cancelled]
        for alarm in due:
            self.alarms.remove(alarm)
            alarm.ring()


def model(name: str, load_timeout_s: float) -> Deployment:
    return Deployment(name, 1, "onnx", Path(name), Path(), 4, 64, load_timeout_s=load_timeout_s)


@pytest.fixture
def clock() -> HandAlarms:
    return HandAlarms()


def started(clock: HandAlarms) -> tuple[LoadTimer, list[str]]:
    """The timer of a process that loads `digits` (10 s) and then `letters` (30 s), and which of them were late."""
    late: list[str] = []
    models = [model("digits", 10), model("letters", 30)]
    return LoadTimer(models, lambda one: late.append(one.name), clock.call_later), late


def test_the_model_that_hangs_is_named(clock: HandAlarms) -> None:
    """The first one from the start of the process on, not a moment earlier, and once."""
    _, late = started(clock)
    clock.advance(9.99)
    assert late == []
    clock.advance(0.01)
    assert late == ["digits"]
    clock.advance(1000)
    assert late == ["digits"]


def test_each_model_has_its_own_time(clock: HandAlarms) -> None:
    """The time of the load before it neither adds to its own nor shortens it."""
    timer, late = started(clock)
    clock.advance(9)
    timer.next()
    clock.advance(29.5)
    assert late == []
    clock.advance(0.5)
    assert late == ["letters"]


def test_nobody_is_late_once_all_are_loaded_or_the_process_has_ended(clock: HandAlarms) -> None:
    """Stopping twice is no fault: a process that is ended also exits."""
    timer, late = started(clock)
    timer.next()
    timer.next()
    clock.advance(1000)
    ended, late_too = started(clock)
    ended.stop()
    ended.stop()
    clock.advance(1000)
    assert late == late_too == []


def test_a_long_load_gives_signs_of_life_at_growing_distances(
    clock: HandAlarms, caplog: pytest.LogCaptureFixture
) -> None:
    """By the name of the model that is being loaded; none of one that is loaded, or given up."""
    caplog.set_level(logging.INFO)
    timer, _ = started(clock)
    timer.next()
    for _ in range(100):
        clock.advance(1)
    ended = LoadTimer([model("slow", 600)], lambda _: None, clock.call_later)
    for _ in range(99):
        clock.advance(1)
    ended.stop()
    clock.advance(100)
    signs = [("letters", 10), ("letters", 20), ("slow", 10), ("slow", 20), ("slow", 40), ("slow", 80)]
    assert caplog.messages == [
        f"{name} version 1 has been loading for {elapsed_s} s" for name, elapsed_s in signs
    ]
