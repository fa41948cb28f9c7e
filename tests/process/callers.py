"""Callers that keep a server busy from a thread of their own while a test does things to its processes."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from tests.http.raw_http import Answer, AsyncConnection, rows_body, scoring
from tests.patience import PROGRAM_S

__all__ = ["Ask", "Callers", "Outcome", "Question", "scored"]


@dataclass(frozen=True, slots=True)
class Question:
    """A request and the only right answer to it.

    Attributes:
        message: The bytes to send.
        expected: The JSON of the right answer, or None where only the status matters.
        kind: What tells groups of requests apart in a tally.
    """

    message: bytes
    expected: object = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request and its outcome.

    Attributes:
        question: The request.
        answer: The answer, or None where the connection ended without one.
        sent_s, ended_s: When it was sent, and when the answer came or the connection ended; monotonic clock.
        error: Why there is no answer.
    """

    question: Question
    answer: Answer | None
    sent_s: float
    ended_s: float
    error: str = ""

    @property
    def status(self) -> int:
        """Status of the answer, 0 for none."""
        return 0 if self.answer is None else self.answer.status

    @property
    def right(self) -> bool:
        """Whether the answer is a 200 with exactly what was expected."""
        return self.answer is not None and self.status == 200 and self.answer.json() == self.question.expected


Ask = Callable[[int], Question]


def scored(key: str, path: str = "/score", *, factor: int = 2) -> Ask:
    """Questions to a model that multiplies rows of 4; each has a row of its own, so no answer fits another."""

    def ask(number: int) -> Question:
        row = [number % 100_003, number // 100_003, 1, 2]
        message = scoring(path, key, rows_body(row))
        return Question(message, [[float(factor * value) for value in row]])

    return ask


@dataclass
class Callers:
    """Closed loops of requests: each caller asks, waits for the answer, and asks again, until `stop`.

    A caller whose connection ends opens the next one; it stops for good when the port refuses it.

    Attributes:
        port: Where to ask.
        ask: Makes the nth question.
        kept_alive: How many callers keep their connection as long as the server does.
        fresh: How many callers open a connection for every request.
        pause_s: How long each of them waits before it asks again, to leave cores to what a test waits for.
        tls: What they speak TLS with; None speaks plain HTTP.
        outcomes: What has become of the requests so far; the callers append to it.
    """

    port: int
    ask: Ask
    kept_alive: int = 0
    fresh: int = 0
    pause_s: float = 0.0
    tls: ssl.SSLContext | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _stopping: bool = False

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="callers")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[Outcome]:
        """Let the callers finish what they have asked, and return all outcomes."""
        self._stopping = True
        return self.join()

    def join(self) -> list[Outcome]:
        """Wait until every caller has ended by itself, because the port is closed; returns all outcomes."""
        self._thread.join(PROGRAM_S)
        assert not self._thread.is_alive(), "callers are still waiting"
        return self.outcomes

    def answered(self, count: int, *, after_s: float = 0.0) -> bool:
        """Whether at least `count` requests that were sent after `after_s` have been answered rightly."""
        return sum(outcome.sent_s > after_s and outcome.right for outcome in list(self.outcomes)) >= count

    def tally(self) -> Counter[int]:
        """How many requests ended with which status; 0 stands for no answer."""
        return Counter(outcome.status for outcome in self.outcomes)

    async def _run(self) -> None:
        callers = [self._call(fresh=number < self.fresh) for number in range(self.fresh + self.kept_alive)]
        await asyncio.gather(*callers)

    async def _call(self, *, fresh: bool) -> None:
        connection: AsyncConnection | None = None
        while not self._stopping:
            question = self.ask(next(self._numbers))
            try:
                connection = connection or await AsyncConnection.open(self.port, tls=self.tls)
            except (ConnectionRefusedError, ConnectionResetError):
                # Reset while it connects: the port closed meanwhile. Nothing has been asked yet.
                return
            answer, error, sent_s = None, "", time.monotonic()
            try:
                answer = await connection.ask(question.message)
            except (OSError, TimeoutError) as problem:
                error = repr(problem)
            self.outcomes.append(Outcome(question, answer, sent_s, time.monotonic(), error))
            if fresh or answer is None or answer.closes:
                await connection.close()
                connection = None
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
        if connection is not None:
            await connection.close()
