"""Long bodies, which a process beside the loop reads."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.http.raw_http import rows_body
from tests.puppets import Joined, PuppetRuntime, puppet_service

from stoker.errors import InvalidInput, StokerError
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES
from stoker.gateway.protocols.infer_dialect import InferDialect
from stoker.gateway.protocols.mlflow import _Invocations
from stoker.gateway.protocols.tfs import _VERBS
from stoker.gateway.scoring.body_reader import serve
from stoker.gateway.scoring.call import Dialect
from stoker.gateway.scoring.long_bodies import PORTION_BYTES, LongBodies, Reader
from stoker.gateway.scoring.service import Service

Answer = tuple[int, bytes]


def lasting(body: bytes, size_bytes: int = LARGE_BODY_BYTES + 1) -> bytes:
    """The same JSON, in so many bytes."""
    return body + b" " * (size_bytes - len(body))


def reader_on_a_thread() -> Reader:
    """What reads as the process does, and is cheaper to start."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)

    def run() -> None:
        with far, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            serve(far)

    thread = threading.Thread(target=run)
    thread.start()
    return Reader(near, thread.join)


async def asked(joined: Joined, service: Service, *requests: tuple[bytes, Dialect | None]) -> list[Answer]:
    """Score these at once; the device works whenever the loop turns."""
    answers: dict[int, Answer] = {}
    lines: dict[int, bytes] = {}

    def respond(number: int) -> Callable[[int, bytes, bytes], None]:
        def take(status: int, head: bytes, body: bytes) -> None:
            answers[number], lines[number] = (status, body), head

        return take

    for number, (body, dialect) in enumerate(requests):
        service.score(body, None, respond(number), time.monotonic_ns(), dialect=dialect)
    while len(answers) < len(requests):
        joined.turn_device()
        await asyncio.sleep(0.0005)
    assert all(b"retry-after: " in lines[number] for number, (status, _) in answers.items() if status == 503)
    return [answers[number] for number in range(len(requests))]


INFER = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": %b, "data": %b}], "id": "7"}'
BODIES: list[tuple[Dialect | None, bytes]] = [
    (None, rows_body([1, 2], [3, 4])),
    (None, b'{"data": []}'),
    (None, b'{"data": [[1, 2], [3]]}'),
    (None, b'{"data": [[1, "a"]]}'),
    (None, b'{"data": [[1, NaN]]}'),
    (None, b'{"data": [[1, 1e60]]}'),
    (None, b"[" * 200),
    (None, b"\xff"),
    (InferDialect(None), INFER % (b"[2, 2]", b"[1, 2, 3, 4]")),
    (InferDialect(None), INFER % (b"[0, 2]", b"[]")),
    (InferDialect(None), INFER % (b"[2, 3]", b"[1, 2, 3, 4]")),
    (_VERBS["predict"], b'{"instances": [[1, 2], [3, 4]]}'),
    (_VERBS["predict"], b'{"inputs": [[1, 2], [3, 4]]}'),
    (_VERBS["predict"], b'{"instances": [[1, 2], [3]]}'),
    (_VERBS["classify"], b'{"examples": [{"x": [1, 2]}]}'),
    (_Invocations(), b'{"inputs": [[1, 2], [3, 4]]}'),
    (_Invocations(), b'{"dataframe_split": {"columns": ["x"]}}'),
]


def test_the_reader_comes_to_the_verdict_of_the_loop() -> None:
    """Each body, whole or wrong, in each protocol, has the same answer on the loop and beside it, byte for byte."""
    long_bodies = LongBodies(start=reader_on_a_thread)
    requests: list[tuple[bytes, Dialect | None]] = [(lasting(body), dialect) for dialect, body in BODIES]
    answers: list[list[Answer]] = []
    for options in ({}, {"long_bodies": long_bodies}):
        service = puppet_service(timeout_ms=60_000, **options)
        with Joined(capacity=64) as joined:
            service.attach(joined.exchange)

            async def ask(joined: Joined = joined, service: Service = service) -> list[Answer]:
                try:
                    return await asked(joined, service, *requests)
                finally:
                    assert service.idle
                    long_bodies.close()

            answers.append(joined._loop.run_until_complete(ask()))
    assert answers[0] == answers[1]
    assert {status for status, _ in answers[0]} >= {200, 400}
    assert answers[0][0] == (200, b"[[2.0,4.0],[6.0,8.0]]")


def test_the_loop_turns_while_a_process_reads() -> None:
    """A body of some MiB does not stop the loop: it turns at least once for each portion, and answers others."""
    service = puppet_service(timeout_ms=60_000, long_bodies=(long_bodies := LongBodies()))
    portions = 4
    body = lasting(rows_body(*([number, 0] for number in range(8))), portions * PORTION_BYTES)
    turns = 0
    order: list[str] = []

    async def ask(joined: Joined) -> None:
        nonlocal turns
        service.score(body, None, lambda status, *_: order.append(f"long {status}"), time.monotonic_ns())
        await asyncio.sleep(0)
        service.score_soon(rows_body([1, 2]), None, lambda status, *_: order.append(f"short {status}"))
        while len(order) < 2:
            turns += 1
            joined.turn_device()
            await asyncio.sleep(0)
        long_bodies.close()

    with Joined() as joined:
        service.attach(joined.exchange)
        joined._loop.run_until_complete(ask(joined))
        joined._loop.run_until_complete(joined._loop.shutdown_default_executor())
    assert order == ["short 200", "long 200"]
    assert turns >= portions


def test_a_reader_that_ends_costs_the_request_that_it_read() -> None:
    """That one is answered with 503 and when to come again; the next one has another reader."""
    started: list[Reader] = []

    def start() -> Reader:
        if started:
            reader = reader_on_a_thread()
        else:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            near.setblocking(False)
            far.shutdown(socket.SHUT_WR)
            reader = Reader(near, far.close)
        started.append(reader)
        return reader

    service = puppet_service(timeout_ms=60_000, long_bodies=(long_bodies := LongBodies(start=start)))

    async def ask(joined: Joined) -> list[Answer]:
        try:
            body = lasting(rows_body([1, 2]))
            return await asked(joined, service, (body, None), (body, None))
        finally:
            long_bodies.close()

    with Joined() as joined:
        service.attach(joined.exchange)
        answers = joined._loop.run_until_complete(ask(joined))
    assert [status for status, _ in answers] == [503, 200]
    assert len(started) == 2


def test_what_nobody_waits_for_is_not_read() -> None:
    """A caller who goes, and one whose time is over, leave no body behind, before its turn or in it."""
    read: list[Any] = []

    class Puppet(LongBodies):
        def read(self, call: Any, body: bytes, head: Any, take: Any) -> None:
            read.append((call, take))

        def forget(self, call: Any) -> None:
            forgotten.append(call)

    forgotten: list[Any] = []
    statuses: list[int] = []
    service = puppet_service(long_bodies=Puppet())

    async def ask() -> None:
        body = lasting(rows_body([1, 2]))
        for _ in range(2):
            service.score(body, None, lambda status, *_: statuses.append(status), time.monotonic_ns())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        read[0][0].abandon()
        service.sweep(time.monotonic_ns())
        assert (forgotten, statuses) == ([read[0][0]], [])
        service.sweep(time.monotonic_ns() + 10**12)
        assert (forgotten, statuses) == ([call for call, _ in read], [504])
        for _, take in read:
            take(InvalidInput("found too late"))

    with Joined() as joined:
        service.attach(joined.exchange)
        joined._loop.run_until_complete(ask())
    assert statuses == [504]
    assert service.idle


def test_a_reader_that_is_not_needed_is_ended() -> None:
    """After the last long body it is given so much time, and then its end of the socket is closed."""
    ended = threading.Event()
    reader = reader_on_a_thread()
    long_bodies = LongBodies(idle_s=0, start=lambda: Reader(reader.socket, ended.set))
    service = puppet_service(timeout_ms=60_000, long_bodies=long_bodies)

    async def ask(joined: Joined) -> None:
        await asked(joined, service, (lasting(rows_body([1, 2])), None))
        await asyncio.to_thread(ended.wait)

    with Joined() as joined:
        service.attach(joined.exchange)
        joined._loop.run_until_complete(ask(joined))
    reader.end()


@pytest.mark.parametrize("fault", [StokerError("x"), RuntimeError("y")])
def test_what_is_wrong_with_the_reader_is_told(fault: Exception) -> None:
    """Whatever goes wrong between the loop and the reader, the request has an answer."""

    class Puppet(LongBodies):
        def read(self, call: Any, body: bytes, head: Any, take: Any) -> None:
            take(fault)

    service = puppet_service(long_bodies=Puppet())
    with Joined(PuppetRuntime()) as joined:
        service.attach(joined.exchange)
        (answer,) = joined._loop.run_until_complete(asked(joined, service, (lasting(b"{}"), None)))
    assert answer[0] == 500
