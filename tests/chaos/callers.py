"""Closed loops of callers: each asks, waits for what comes, settles it in the ledger, and asks again.

They do what a decent client does and no more: a connection that the server has ended is not used again, one whose
answer says `Connection: close` neither, and nothing that was sent is sent a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Self

import grpc
from tests.chaos.ledger import Ledger, Outcome, Verdict
from tests.chaos.questions import (
    GRPC_METHOD,
    HTTP_PROTOCOLS,
    ON_DEMAND,
    Question,
    grpc_request,
    judge_http,
    judge_message,
    rows_of,
)
from tests.chaos.server import RECOVERY_S
from tests.http.raw_http import Answer, AsyncConnection
from tests.live_server import PRIMARY
from tests.patience import PATIENCE_S
from tritonclient.grpc import service_pb2

__all__ = ["Callers", "PoliteConnection", "Surroundings"]

_GRPC_PATIENCE_S: Final = RECOVERY_S
"""A call waits for a connection within its own deadline, so it has to outlast a server that is started again."""

_THINK_S: Final = (0.0, 0.2)
_REFUSED_S: Final = (0.1, 0.4)
_GRPC_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 300),
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Callers of one kind: how they ask, how many, whether each request has a connection of its own, their pauses."""

    protocol: str
    count: int
    fresh: bool = False
    think_s: tuple[float, float] = _THINK_S


_KINDS: Final = (
    _Kind("azure", 3),
    _Kind("azure", 2, fresh=True),
    # Idle connections that wake up: at the end of a server those are the ones that race with it.
    _Kind("azure", 6, think_s=(0.2, 3.0)),
    _Kind("v2 json", 2),
    _Kind("v2 binary", 2),
    _Kind("label", 2),
    _Kind("script", 2),
    _Kind("pair", 3),
    _Kind("extra", 1, think_s=(0.0, 0.2)),
    _Kind(ON_DEMAND, 3),
)
_GRPC_CALLERS: Final = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts of the server that callers need.

    Attributes:
        port, grpc_port: Where it listens.
        label_means: The versions that the label may mean now; it changes.
        may_be_closed: Whether the port may refuse connections now.
        on_demand: Whether there are models that are loaded when they are asked for.
    """

    port: int
    grpc_port: int
    label_means: Collection[int]
    may_be_closed: Callable[[], bool]
    on_demand: bool = False


class Callers:
    """All callers, in a thread with a loop of its own; leaving its context waits for their requests in flight."""

    def __init__(self, ledger: Ledger, around: Surroundings, seed: int) -> None:
        self._ledger, self._around, self._seed = ledger, around, seed
        self._stopping = asyncio.Event()
        self._failures: list[BaseException] = []
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._main, name="callers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        elif self._thread.is_alive():
            # The test reports its own failure, not what happens to the callers after it.
            self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self) -> None:
        """Let the callers finish; fails if one of them has failed, or if a request was not settled."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(2 * _GRPC_PATIENCE_S)
        assert not self._thread.is_alive(), "callers are still waiting"
        if self._failures:
            raise self._failures[0]
        assert self._ledger.open == 0, f"{self._ledger.open} requests have no verdict"

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:  # noqa: BLE001  # it is raised by `stop`
            self._failures.append(failure)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        async with asyncio.TaskGroup() as tasks:
            number = 0
            for kind in (one for one in _KINDS if self._around.on_demand or one.protocol != ON_DEMAND):
                for _ in range(kind.count):
                    number += 1
                    tasks.create_task(self._call_http(kind, Random(f"{self._seed} {number}")))
            for number in range(_GRPC_CALLERS):
                tasks.create_task(self._call_grpc(Random(f"{self._seed} grpc {number}")))

    async def _call_http(self, kind: _Kind, random: Random) -> None:
        connection: PoliteConnection | None = None
        ask = HTTP_PROTOCOLS[kind.protocol]
        while not self._stopping.is_set():
            number = self._ledger.ask(kind.protocol)
            question = ask(number, random, self._around.label_means)
            connection, outcome = await self._ask(connection, question, kind.protocol)
            self._ledger.settle(number, outcome)
            if kind.fresh and connection is not None:
                await connection.close()
                connection = None
            await self._pause(random, _REFUSED_S if outcome.verdict is Verdict.REFUSED else kind.think_s)
        if connection is not None:
            await connection.close()

    async def _pause(self, random: Random, think_s: tuple[float, float]) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), random.uniform(*think_s))

    async def _ask(
        self, connection: PoliteConnection | None, question: Question, protocol: str
    ) -> tuple[PoliteConnection | None, Outcome]:
        """Ask once; returns the connection if it can be used again, and what became of the request."""
        sent_s = time.monotonic()
        port, first = 0, False
        try:
            if connection is not None and connection.is_closed:
                await connection.close()
                connection = None
            first = connection is None
            connection = connection or await self._connect()
            port, sent_s = connection.port, time.monotonic()
            answer = await connection.exchange(question.message)
            verdict, detail = judge_http(question, answer)
        except (OSError, TimeoutError) as problem:
            verdict, detail = Verdict.LOST, repr(problem)
        except (AssertionError, LookupError, ValueError) as problem:
            verdict, detail = Verdict.WRONG, f"not an answer: {problem!r}"
        outcome = Outcome(verdict, protocol, detail, sent_s, time.monotonic(), port, first)
        if connection is not None and (verdict in (Verdict.LOST, Verdict.WRONG) or answer.closes):
            await connection.close()
            connection = None
        return connection, outcome

    async def _connect(self) -> PoliteConnection:
        while True:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    return await PoliteConnection.open(self._around.port)
            except ConnectionRefusedError:
                # Nothing has been asked yet: while the server is known to be away, one comes again.
                if not self._around.may_be_closed() or self._stopping.is_set():
                    raise
                await asyncio.sleep(0.05)

    async def _call_grpc(self, random: Random) -> None:
        address = f"127.0.0.1:{self._around.grpc_port}"
        async with grpc.aio.insecure_channel(address, options=_GRPC_OPTIONS) as channel:
            infer = channel.unary_unary(
                GRPC_METHOD,
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            while not self._stopping.is_set():
                number = self._ledger.ask("grpc")
                rows, sent_s = rows_of(number, random), time.monotonic()
                try:
                    message = await infer(
                        grpc_request(number, rows),
                        metadata=(("authorization", f"Bearer {PRIMARY}"),),
                        timeout=_GRPC_PATIENCE_S,
                        # As with a connection over HTTP that is refused: it is not asked before there is one.
                        wait_for_ready=True,
                    )
                    detail = judge_message(number, rows, message)
                    verdict = Verdict.WRONG if detail else Verdict.RIGHT
                except grpc.aio.AioRpcError as error:
                    verdict, detail = _judge_error(error)
                self._ledger.settle(number, Outcome(verdict, "grpc", detail, sent_s, time.monotonic()))
                await self._pause(random, _REFUSED_S if verdict is Verdict.REFUSED else _THINK_S)


def _judge_error(error: grpc.aio.AioRpcError) -> tuple[Verdict, str]:
    """Judge a call that has failed: the server's own errors have Stoker's code in the trailing metadata."""
    trailing: dict[str, Any] = dict(error.trailing_metadata() or ())
    code = trailing.get("error-code")
    status = error.code()
    if code is None:
        return Verdict.LOST, f"{status.name}: {error.details()}"
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Verdict.LATE, code
    refused = status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
    if not refused or "retry-after" not in trailing:
        return Verdict.WRONG, f"{status.name} {trailing}: {error.details()}"
    return Verdict.REFUSED, code


class PoliteConnection(AsyncConnection):
    """One connection over HTTP/1.1, which notices what nobody has asked for."""

    @property
    def port(self) -> int:
        """The caller's own port."""
        return int(self._writer.get_extra_info("sockname")[1])

    @property
    def is_closed(self) -> bool:
        """Whether the server has ended it, by the kernel's state, which the loop may not have read yet."""
        if self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing():
            return True
        poll = select.poll()
        poll.register(self._writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    async def exchange(self, message: bytes) -> Answer:
        """Send a request and wait for its answer; a further answer fails the next request."""
        assert not self._buffer, f"more came than was asked for: {self._buffer[:100]!r}"
        return await self.ask(message)
