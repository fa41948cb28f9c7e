"""Calls of `run` that last too long are interrupted, and end the process where that does not help."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.puppets import HandClock

from stoker.errors import ScoringTimeout
from stoker.scripts import call_watchdog
from stoker.scripts.call_watchdog import Watchdog
from stoker.system.processes import ExitCode

pytestmark = pytest.mark.interrupts


class Watched:
    """A watchdog whose clock is turned by hand, and a call on a thread of its own.

    Attributes:
        ends: How often the process would have ended.
        outcome: What the call gave, or raised.
    """

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.ends = 0
        self.watchdog = Watchdog(100, clock_ns=clock, end_process=self._end)
        self.outcome: Any = None
        self._threads: list[threading.Thread] = []

    def _end(self, code: ExitCode) -> None:
        assert code is ExitCode.STUCK
        self.ends += 1

    def call(self, function: Callable[[], Any]) -> threading.Thread:
        """Call `function` on a new thread, and return when it has begun."""
        begun = threading.Event()

        def watched() -> Any:
            begun.set()
            return function()

        def live() -> None:
            try:
                self.outcome = self.watchdog.guard(watched)
            except BaseException as error:  # noqa: BLE001
                self.outcome = error

        thread = threading.Thread(target=live)
        self._threads.append(thread)
        thread.start()
        assert begun.wait(PATIENCE_S)
        return thread

    def look_after_ms(self, elapsed_ms: float) -> None:
        """Let time pass, and the watchdog look."""
        self.clock.advance_ms(elapsed_ms)
        self.watchdog.check_calls()

    def join(self) -> None:
        """Wait for the calls to end."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A watchdog; after the test all its calls have ended."""
    state = Watched(HandClock())
    yield state
    state.join()


def spin(stop: threading.Event) -> str:
    """Run Python code until `stop` is set."""
    while not stop.is_set():
        pass
    return "stopped"


def test_a_call_that_returns_in_time_is_left_alone(watched: Watched) -> None:
    """The watchdog passes on its result and its exceptions."""
    assert watched.watchdog.guard(lambda: 3) == 3
    with pytest.raises(KeyError):
        watched.watchdog.guard(lambda: {}["k"])
    watched.look_after_ms(10_000)
    assert watched.ends == 0


def test_a_late_call_is_interrupted(watched: Watched) -> None:
    """Its error has the text of the Azure inference server, and a cause with the place of the interruption."""
    stop = threading.Event()
    watched.call(lambda: spin(stop))
    watched.look_after_ms(99)
    assert watched.outcome is None
    watched.look_after_ms(1)
    watched.join()
    assert isinstance(watched.outcome, ScoringTimeout)
    assert str(watched.outcome) == "Scoring timeout after 100 ms"
    cause = watched.outcome.__cause__
    assert cause is not None
    names = []
    frame = cause.__traceback__
    while frame is not None:
        names.append(frame.tb_frame.f_code.co_name)
        frame = frame.tb_next
    assert "spin" in names


def test_only_the_late_call_is_interrupted(watched: Watched) -> None:
    """Calls on other threads have their own time."""
    stop = threading.Event()
    early = Watched(watched.clock)
    early.watchdog = watched.watchdog
    watched.call(lambda: spin(stop))
    watched.clock.advance_ms(60)
    early.call(lambda: spin(stop))
    watched.look_after_ms(60)
    watched.join()
    stop.set()
    early.join()
    assert isinstance(watched.outcome, ScoringTimeout)
    assert early.outcome == "stopped"


def test_except_exception_does_not_swallow_the_interruption(watched: Watched) -> None:
    """A script that tries again and again is interrupted all the same."""

    def retry() -> None:
        while True:
            with contextlib.suppress(Exception):
                spin(threading.Event())

    watched.call(retry)
    watched.look_after_ms(100)
    watched.join()
    assert isinstance(watched.outcome, ScoringTimeout)


def test_a_call_that_ignores_the_interruption_ends_the_process(watched: Watched) -> None:
    """Native code and a bare `except` ignore interruptions; the supervisor starts another process."""
    release = threading.Event()
    watched.call(lambda: release.wait(PATIENCE_S))
    watched.look_after_ms(100)
    watched.look_after_ms(4999)
    assert watched.ends == 0
    watched.look_after_ms(1)
    assert watched.ends == 1
    release.set()


def test_a_call_that_is_interrupted_inside_the_check_raises_the_timeout(watched: Watched) -> None:
    """The interrupted thread may be the one that checks the calls."""

    def late() -> None:
        watched.look_after_ms(100)
        spin(threading.Event())

    with pytest.raises(ScoringTimeout):
        watched.watchdog.guard(late)


def test_an_interruption_that_arrives_too_late_is_taken_back(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a call returns while it is interrupted, the next work of its thread is not interrupted."""
    raised: list[tuple[int, type[BaseException] | None]] = []
    monkeypatch.setattr(
        call_watchdog, "_raise_in", lambda thread_id, error: raised.append((thread_id, error))
    )

    def just_in_time() -> str:
        watched.look_after_ms(100)
        return "done"

    assert watched.watchdog.guard(just_in_time) == "done"
    here = threading.get_ident()
    assert [thread_id for thread_id, _ in raised] == [here, here]
    assert raised[-1][1] is None
    watched.look_after_ms(100_000)
    assert watched.ends == 0
