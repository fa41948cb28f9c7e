"""Callers that keep their connections, send requests all the time, and check each answer.

They behave as a decent client: they use no connection again that has ended or whose answer says
`Connection: close`, and send no request twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from tests.chaos.callers import PoliteConnection
from tests.chaos.ledger import Ledger, Outcome, Verdict
from tests.http.raw_http import Answer, rows_body, scoring
from tests.pods.plans import KEY

__all__ = ["Answered", "Load", "ask"]

_PROTOCOL: Final = "azure"
_VERSION: Final = "azureml-model-deployment"
_WITHIN_S: Final = 60.0
_ANSWERS_WITHIN_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered.

    Attributes:
        sent_s, ended_s: When it was sent, and when its answer arrived; monotonic clock.
        factor: The factor of the model that answered.
        version: The version named by the router; empty without one.
    """

    sent_s: float
    ended_s: float
    factor: int
    version: str


@dataclass
class Load:
    """Callers; entering the context starts them, leaving it waits for their requests in flight.

    Attributes:
        place: Address and port that they connect to.
        path: The path that they post to.
        key: The key that they send.
        factors: Allowed factors of the model; another one is a wrong answer.
        callers: How many there are.
        pause_s: How long each waits between an answer and its next request.
        patience_s: A request without an answer for so long is lost.
        most: The most requests of all callers; no limit by default.
        comes_again: Whether a caller with a refused connection connects again; it has sent no request yet.
        ledger: The outcome of each request.
        answered: Those that were answered, in the order of their answers.
        refused_connections: How many connections were refused.
    """

    place: tuple[str, int]
    path: str = "/api/v1/service/digits/score"
    key: str = KEY
    factors: Collection[int] = (2,)
    callers: int = 16
    pause_s: float = 0.1
    patience_s: float = _WITHIN_S
    most: int | None = None
    comes_again: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    answered: list[Answered] = field(default_factory=list)
    refused_connections: int = 0

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._sent = 0
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._main, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.await_answers(self.callers)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        if kind is None:
            self.join()

    def join(self) -> None:
        """Wait until all are done; fails if a caller has failed."""
        self._thread.join(None if self.most and not self._stopping.is_set() else 2 * self.patience_s)
        assert not self._thread.is_alive(), "callers are still waiting"
        if self._failures:
            raise self._failures[0]
        assert self.ledger.open == 0, f"{self.ledger.open} requests have no verdict"

    def await_answers(self, count: int, within_s: float = _ANSWERS_WITHIN_S) -> None:
        """Wait until so many more requests have been answered."""
        goal, deadline_s = len(self.answered) + count, time.monotonic() + within_s
        while len(self.answered) < goal and self._thread.is_alive():
            assert time.monotonic() < deadline_s, f"{self.summary()}: {self.ledger.broken()[:3]}"
            time.sleep(0.02)

    def summary(self, since_s: float = 0.0) -> str:
        """Counts and times in a line, of requests sent since then."""
        times = sorted(one.ended_s - one.sent_s for one in self.answered if one.sent_s >= since_s)
        counts = Counter({str(verdict): self.ledger.count(verdict) for verdict in Verdict})
        longest = f", p99 {_at(times, 0.99):.0f} ms, longest {_at(times, 1):.0f} ms" if times else ""
        return ", ".join(f"{count} {name}" for name, count in counts.items()) + longest

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:  # noqa: BLE001  # it is raised by `join`
            self._failures.append(failure)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.callers):
                tasks.create_task(self._call())

    async def _call(self) -> None:
        connection: PoliteConnection | None = None
        while not self._stopping.is_set() and (self.most is None or self._sent < self.most):
            self._sent += 1
            connection = await self._ask(connection, self.ledger.ask(_PROTOCOL))
            await asyncio.sleep(self.pause_s)
        if connection is not None:
            await connection.close()

    async def _ask(self, connection: PoliteConnection | None, number: int) -> PoliteConnection | None:
        """Ask once; returns the connection if it can be used again."""
        row = [number % 100_003, number // 100_003, 1, 2]
        sent_s, port, first = time.monotonic(), 0, False
        try:
            if connection is not None and connection.ended:
                await connection.close()
                connection = None
            first = connection is None
            async with asyncio.timeout(self.patience_s):
                connection = connection or await self._connect()
                port, sent_s = connection.port, time.monotonic()
                answer = await connection.exchange(scoring(self.path, self.key, rows_body(row)))
            verdict, detail = self._judge(answer, row, sent_s)
        except (OSError, TimeoutError) as problem:
            verdict, detail = Verdict.LOST, repr(problem)
        outcome = Outcome(verdict, _PROTOCOL, detail, sent_s, time.monotonic(), port, first)
        self.ledger.settle(number, outcome)
        if connection is not None and (verdict is Verdict.LOST or answer.closes):
            await connection.close()
            return None
        return connection

    async def _connect(self) -> PoliteConnection:
        while True:
            try:
                connection = await PoliteConnection.open(self.place[1], self.place[0])
                connection.timeout_s = self.patience_s
                return connection
            except ConnectionRefusedError:
                self.refused_connections += 1
                if not self.comes_again:
                    raise
                await asyncio.sleep(self.pause_s)

    def _judge(self, answer: Answer, row: Sequence[int], sent_s: float) -> tuple[Verdict, str]:
        if answer.status in (429, 503):
            return Verdict.REFUSED, f"{answer.status} {answer.body[:200]!r}"
        factor = _factor(answer, row)
        if factor not in self.factors:
            return Verdict.WRONG, f"{answer.status} {answer.body[:200]!r}"
        version = answer.header(_VERSION) or ""
        self.answered.append(Answered(sent_s, time.monotonic(), factor, version))
        return Verdict.RIGHT, ""


def ask(place: tuple[str, int], message: bytes) -> Answer:
    """Ask once, on a connection of its own."""

    async def exchange() -> Answer:
        async with await PoliteConnection.open(place[1], place[0]) as connection:
            return await connection.exchange(message)

    return asyncio.run(exchange())


def _factor(answer: Answer, row: Sequence[int]) -> int:
    """The factor between the answer and its row; 0 if the answer is no multiple."""
    content: Any = None
    with contextlib.suppress(json.JSONDecodeError):
        content = answer.json()
    if answer.status != 200 or not (isinstance(content, list) and len(content) == 1 and len(content[0]) == 4):
        return 0
    factor = content[0][2]
    return int(factor) if content[0] == [factor * value for value in row] else 0


def _at(times: Sequence[float], share: float) -> float:
    """The time in ms that this share of sorted times, in seconds, does not exceed."""
    return 1000 * times[min(len(times) - 1, int(share * len(times)))]
