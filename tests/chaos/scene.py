"""The scene of an action: the server, the dice, and the ledger in which it says which failures it may cause."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.chaos.ledger import Allowance, Ledger, Outcome, Verdict
from tests.chaos.server import RECOVERY_S, ChaosServer
from tests.http.raw_http import Answer
from tests.live_server import wait_until

__all__ = ["ACTIONS", "ENDINGS", "Action", "Scene", "action", "ending"]


@dataclass
class Scene:
    """One round of an episode.

    Attributes:
        server: The server that is hurt.
        random: The only dice.
        hold_s: How long the round's faults last, at most.
        alone: Whether this is the round's only action, so that what it asks of the server has to succeed at once.
    """

    server: ChaosServer
    random: Random
    hold_s: float
    alone: bool
    _ledger: Ledger
    _action: str = ""
    _errands: list[tuple[threading.Thread, list[BaseException]]] = field(default_factory=list)

    def named(self, name: str) -> Scene:
        """Let what is allowed from now on be on this action's account."""
        self._action = name
        return self

    def choose_process(self, kind: str) -> int:
        """One of the processes of a kind; between its end and its successor there may be none for a while."""
        pids = wait_until(lambda: self.server.kinds()[kind], f"there is a {kind}", timeout_s=RECOVERY_S)
        return self.random.choice(pids)

    @staticmethod
    def signal(pid: int, number: signal.Signals) -> None:
        """Send a signal to a process; another action of the round may have ended it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def allow(
        self,
        verdict: Verdict,
        *codes: str,
        protocols: tuple[str, ...] = (),
        fits: Callable[[Outcome], bool] = lambda _: True,
        most: float = math.inf,
    ) -> Allowance:
        """Say what the action may cost, before it strikes.

        Args:
            verdict: Which verdict; it is allowed until the server is whole again.
            *codes: Refused with one of these codes; without any, with any code.
            protocols: Only to callers of these.
            fits: Only to these requests.
            most: Only so many.
        """

        def covered(outcome: Outcome) -> bool:
            has_code = not codes or outcome.detail in codes
            return has_code and (not protocols or outcome.protocol in protocols) and fits(outcome)

        return self._ledger.allow(Allowance(self._action, verdict, covered, most))

    def errand(self, run: Callable[[], None]) -> None:
        """Do something beside the round: it may have to wait for the end of other faults."""
        failures: list[BaseException] = []

        def main() -> None:
            try:
                run()
            except BaseException as failure:  # noqa: BLE001  # it is raised by `end_errands`
                failures.append(failure)

        thread = threading.Thread(target=main, name=f"errand of {self._action}")
        thread.start()
        self._errands.append((thread, failures))

    def end_errands(self) -> None:
        """Wait for all errands; raises their failures."""
        for thread, failures in self._errands:
            thread.join(2 * RECOVERY_S)
            assert not thread.is_alive(), f"{thread.name} does not end"
            if failures:
                raise failures[0]
        self._errands.clear()

    def administer(self, action: str) -> None:
        """Load or unload; where other faults are about, again until it succeeds."""
        undone = action.endswith("/unload")
        self.until_done(
            action,
            lambda: self.server.administer(action),
            lambda answer: undone and answer.status == 404 and b"is not loaded" in answer.body,
        )

    def until_done(
        self, name: str, ask: Callable[[], Answer], was_done: Callable[[Answer], bool] = lambda _: False
    ) -> None:
        """Ask for something; where other faults are about, again until it succeeds.

        Args:
            name: The name of the action, for messages.
            ask: Asks once.
            was_done: Whether an answer says that it had been done already: then an attempt did whose answer was lost.
        """
        until_s = time.monotonic() + RECOVERY_S
        tried = False
        while True:
            try:
                answer = ask()
                if answer.status == 200 or (tried and was_done(answer)):
                    return
                problem = f"{answer.status}: {answer.body!r}"
            except (OSError, AssertionError) as failure:
                problem = repr(failure)
            tried = True
            assert not self.alone, f"{name} failed though nothing else was done: {problem}"
            assert time.monotonic() < until_s, f"{name} does not succeed: {problem}"
            time.sleep(0.2)


Strike = Callable[[Scene], Iterator[None]]


@dataclass(frozen=True)
class Action:
    """One fault: what comes before its `yield` strikes, what comes after it mends.

    Attributes:
        name: How it is called in tables.
        promise: What the server promises when it happens; the first line of its docstring.
        strike: Makes the context in which it lasts.
        group: Of those of one group, a round has one.
    """

    name: str
    promise: str
    strike: Callable[[Scene], AbstractContextManager[None]]
    group: str


ACTIONS: Final[dict[str, Action]] = {}
"""The actions of a round, several at once."""
ENDINGS: Final[dict[str, Action]] = {}
"""How an episode's server ends under load, before it is started again."""


def action(function: Strike, *, group: str = "") -> Strike:
    """Make a generator function an action of rounds."""
    entry = _entry(function, group)
    ACTIONS[entry.name] = entry
    return function


def ending(function: Strike) -> Strike:
    """Make a generator function an end of a server."""
    entry = _entry(function, "")
    ENDINGS[entry.name] = entry
    return function


def _entry(function: Strike, group: str) -> Action:
    name = function.__name__.replace("_", " ")
    promise = (function.__doc__ or "").partition("\n")[0]
    assert promise, name
    return Action(name, promise, contextmanager(function), group or name)
