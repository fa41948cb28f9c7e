"""Long bodies, which a thread or a process beside the loop reads."""

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
import pickle
import resource
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.http.raw_http import rows_body
from tests.puppets import ROWS, Joined, PuppetRuntime, puppet_service
from tests.unit.gateway.rows.test_quotas import Frontends

from stoker.errors import InvalidInput, StokerError
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES
from stoker.gateway.protocols.infer import InferDialect
from stoker.gateway.protocols.mlflow import _Invocations
from stoker.gateway.protocols.text_apis import _TextApi
from stoker.gateway.protocols.tfs import _VERBS
from stoker.gateway.protocols.torchserve import PREDICTIONS, Predictions
from stoker.gateway.rows.urgency import DEFAULT_URGENCY
from stoker.gateway.scoring import body_reader
from stoker.gateway.scoring.body_reader import read_long_body, serve
from stoker.gateway.scoring.call import Dialect
from stoker.gateway.scoring.long_bodies import PORTION_BYTES, LongBodies, Reader
from stoker.gateway.scoring.parcels import DecodeTask, Parcel, send_parcel
from stoker.gateway.scoring.service import Service
from stoker.keys.callers import CallerTerms
from stoker.system.fd_passing import memory_with
from stoker.tensors import Signature, TensorSpec
from stoker.wire import scoring
from stoker.wire.json_bodies import MAX_VALUES
from stoker.wire.packed import unpack
from stoker.wire.text_apis import decode_embeddings, decode_rerank, encode_answer
from stoker.wire.texts import text_tensors

Answer = tuple[int, bytes]


@pytest.fixture(autouse=True)
def _without_native_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, C++ reads plain rows on a thread; tests of threads put their own reader there."""
    monkeypatch.setattr(scoring, "float32_rows_into", None)


def lasting(body: bytes, size_bytes: int = LARGE_BODY_BYTES + 1) -> bytes:
    """The same JSON, in so many bytes."""
    return body + b" " * (size_bytes - len(body))


def reader_on_a_thread() -> Reader:
    """A reader that works as the process does and is cheaper to start."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)

    def run() -> None:
        with far, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            serve(far)

    thread = threading.Thread(target=run)
    thread.start()
    return Reader(near, thread.join)


async def score_all(
    joined: Joined, service: Service, *requests: tuple[bytes, Dialect | None]
) -> list[Answer]:
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


def score_and_close(service: Service, long_bodies: LongBodies, *bodies: bytes) -> list[Answer]:
    """Score these at once on a device of their own, and end the readers."""

    async def ask(joined: Joined) -> list[Answer]:
        try:
            return await score_all(joined, service, *((body, None) for body in bodies))
        finally:
            long_bodies.close()

    with Joined() as joined:
        service.attach(joined.exchange)
        return joined.loop.run_until_complete(ask(joined))


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
    (PREDICTIONS, b"[[1, 2], [3, 4]]"),
    (PREDICTIONS, b'{"data": [[1, 2], [3, 4]]}'),
    (PREDICTIONS, b'{"instances": [[1, 2], [3, 4]]}'),
    (PREDICTIONS, b"[[1, 2], [3]]"),
    (
        Predictions(b"multipart/form-data; boundary=b"),
        b"--b\r\nContent-Disposition: form-data; name=data\r\n\r\n[[1, 2]]\r\n--b--",
    ),
]


def test_memory_goes_back_when_no_body_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body's memory is kept while the next one waits, and goes back to the system when none does."""
    events: list[str] = []
    trimmed = threading.Event()

    def trim_heap() -> None:
        events.append("given back")
        trimmed.set()

    monkeypatch.setattr(body_reader, "_answer", lambda _, parcel: events.append(parcel.content))
    monkeypatch.setattr(body_reader, "trim_heap", trim_heap)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        for name in ("first", "second"):
            memory_fd = memory_with(name, [b"body"])
            send_parcel(near, memory_fd, 4, name)
            os.close(memory_fd)
        reader = threading.Thread(target=serve, args=(far, 0.0))
        reader.start()
        assert trimmed.wait(60)
        near.shutdown(socket.SHUT_WR)
        reader.join()
    assert events[:3] == ["first", "second", "given back"]


def test_reader_of_a_frontend_with_many_connections_reads_several_bodies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its socket has the number that it has in the frontend, which is above a thousand where so many are open."""
    number = 1024
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= number:
        pytest.skip("so many descriptors may not be open here")
    read: list[str] = []

    def answer(_: socket.socket, parcel: Parcel) -> None:
        os.close(parcel.memory_fd)
        read.append(parcel.content)

    monkeypatch.setattr(body_reader, "_answer", answer)
    near, low = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, low, socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, number)) as far:
        for name in ("first", "second"):
            memory_fd = memory_with(name, [b"body"])
            send_parcel(near, memory_fd, 4, name)
            os.close(memory_fd)
        near.shutdown(socket.SHUT_WR)
        serve(far, 0.0)
    assert read == ["first", "second"]


@pytest.mark.parametrize("native", [False, True])
def test_the_reader_decodes_as_the_loop_does(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each body, whole or wrong, in each protocol, has the same answer on the loop and beside it, byte for byte."""
    if native:
        rows = pytest.importorskip("stoker_native", reason="stoker-native is not installed").float32_rows_into
        monkeypatch.setattr(scoring, "float32_rows_into", rows)
    long_bodies = LongBodies(start=reader_on_a_thread)
    requests: list[tuple[bytes, Dialect | None]] = [(lasting(body), dialect) for dialect, body in BODIES]
    answers: list[list[Answer]] = []
    for options in ({}, {"long_bodies": long_bodies}):
        service = puppet_service(timeout_ms=60_000, **options)
        with Joined(capacity=64) as joined:
            service.attach(joined.exchange)

            async def ask(joined: Joined = joined, service: Service = service) -> list[Answer]:
                try:
                    return await score_all(joined, service, *requests)
                finally:
                    assert service.idle
                    long_bodies.close()

            answers.append(joined.loop.run_until_complete(ask()))
    assert answers[0] == answers[1]
    assert {status for status, _ in answers[0]} >= {200, 400}
    assert answers[0][0] == (200, b"[[2.0,4.0],[6.0,8.0]]")


def test_the_reader_decodes_several_inputs() -> None:
    """Each from where it lies in the memory that both share."""
    signature = Signature((*ROWS.inputs, TensorSpec("z", "int64", (1,))), ROWS.outputs)
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]},
        {"name": "z", "datatype": "INT64", "shape": [2, 1], "data": [10, 20]},
    ]
    long_bodies = LongBodies(start=reader_on_a_thread)
    service = puppet_service(timeout_ms=60_000, long_bodies=long_bodies)

    async def ask(joined: Joined) -> list[Answer]:
        try:
            body = lasting(json.dumps({"inputs": inputs}).encode())
            return await score_all(joined, service, (body, InferDialect(None)))
        finally:
            long_bodies.close()

    with Joined(PuppetRuntime(signature, lambda given: [given[0] + given[1].astype("f4")])) as joined:
        service.attach(joined.exchange)
        ((status, body),) = joined.loop.run_until_complete(ask(joined))
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == [11, 12, 23, 24]


@pytest.mark.parametrize(
    ("route", "body", "texts", "field"),
    [
        (0, b'{"input": ["a", "b"], "dimensions": 1}', [b"a", b"b"], "data"),
        (1, b'{"query": "q", "documents": ["a"], "return_documents": true}', [[b"q", b"a"]], "results"),
    ],
)
def test_the_reader_decodes_texts(route: int, body: bytes, texts: list[Any], field: str) -> None:
    """It hands back the texts, and how the answer is encoded; the rest of the request stays behind."""
    dialect = pickle.loads(pickle.dumps(_TextApi((decode_embeddings, decode_rerank)[route])))
    assert dialect.blocks_on_long(puppet_service(), body, None)
    signature = dataclasses.replace(ROWS, callers=text_tensors(()))
    task = DecodeTask("m", "1", signature, "null", dialect, None, b"7", 0, 0, None)
    found, (packed,) = read_long_body(task, body)
    assert (found.error, found.fault) == (None, "")
    assert unpack(bytes(packed))["text"].tolist() == texts
    encode = pickle.loads(pickle.dumps(found.write))
    answer = json.loads(encode_answer(encode, "m", {"y": np.ones((len(texts), 1))}, 3))
    assert len(answer[field]) == len(texts)
    assert answer["usage"]["total_tokens"] == 3


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
        joined.loop.run_until_complete(ask(joined))
        joined.loop.run_until_complete(joined.loop.shutdown_default_executor())
    assert order == ["short 200", "long 200"]
    assert turns >= portions


def no_process() -> Reader:
    raise AssertionError("no process is needed")


def test_rows_are_read_on_a_thread_while_the_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a reader needs no interpreter lock, the loop answers others while it reads, and starts no process."""
    answered = threading.Event()
    readers: list[threading.Thread] = []

    def read(body: bytes, _row: memoryview | None, width: int) -> bytes:
        assert width == 2
        if len(body) > LARGE_BODY_BYTES:
            readers.append(threading.current_thread())
            assert answered.wait(60), "the loop does not turn"
        return np.array([1, 2, 3, 4], np.float32).tobytes()

    monkeypatch.setattr(scoring, "float32_rows_into", read)
    service = puppet_service(timeout_ms=60_000, long_bodies=(long_bodies := LongBodies(start=no_process)))
    answers: list[tuple[str, int, bytes]] = []

    def take(name: str) -> Callable[[int, bytes, bytes], None]:
        def respond(status: int, _: bytes, body: bytes) -> None:
            answers.append((name, status, body))
            answered.set()

        return respond

    async def ask(joined: Joined) -> None:
        body = lasting(rows_body([1, 2], [3, 4]))
        service.score(body, None, take("long"), time.monotonic_ns())
        await asyncio.sleep(0)
        service.score_soon(rows_body([1, 2], [3, 4]), None, take("short"))
        while len(answers) < 2:
            joined.turn_device()
            await asyncio.sleep(0)
        assert service.idle
        long_bodies.close()

    with Joined() as joined:
        service.attach(joined.exchange)
        joined.loop.run_until_complete(ask(joined))
    expected = b"[[2.0,4.0],[6.0,8.0]]"
    assert answers == [("short", 200, expected), ("long", 200, expected)]
    assert readers
    assert threading.main_thread() not in readers


def test_process_reads_bodies_that_the_thread_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are bodies not provably rows of numbers, and very long ones."""
    tried: list[int] = []
    started: list[Reader] = []

    def read(body: bytes, row: memoryview | None, width: int) -> None:
        del row, width
        tried.append(len(body))

    def start() -> Reader:
        started.append(reader_on_a_thread())
        return started[-1]

    monkeypatch.setattr(scoring, "float32_rows_into", read)
    service = puppet_service(timeout_ms=60_000, long_bodies=(long_bodies := LongBodies(start=start)))
    rows = rows_body([1, 2], [3, 4])
    short, long = LARGE_BODY_BYTES + 1, MAX_VALUES + 1

    answers = score_and_close(service, long_bodies, lasting(rows, short), lasting(rows, long))
    assert answers == [(200, b"[[2.0,4.0],[6.0,8.0]]")] * 2
    assert len(started) == 1
    # Once for the frontend, and once in the process, whose decoder tries it too.
    assert tried == [short, short, long]


def test_rows_that_a_process_read_count_for_their_caller() -> None:
    """A limit stays with the frontend while another process reads the body."""
    service = puppet_service(
        timeout_ms=60_000, long_bodies=(long_bodies := LongBodies(start=reader_on_a_thread))
    )
    service.limits = msgspec.structs.replace(
        service.limits,
        urgency=DEFAULT_URGENCY._replace(quota=Frontends().of(CallerTerms("ads", 5, rows_per_s=1.5))),
    )
    body = lasting(rows_body([1, 2], [3, 4]))
    answers = score_and_close(service, long_bodies, body, body)
    assert [status for status, _ in answers] == [200, 429]


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

    body = lasting(rows_body([1, 2]))
    answers = score_and_close(service, long_bodies, body, body)
    assert [status for status, _ in answers] == [503, 200]
    assert len(started) == 2


def test_long_body_without_a_waiting_caller_is_not_read() -> None:
    """Bodies of callers that left or timed out are dropped, before their turn and in it."""
    read: list[Any] = []

    class Puppet(LongBodies):
        def read(self, call: Any, body: bytes, head: Any, take: Any, unlocked: Any = None) -> None:
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
        joined.loop.run_until_complete(ask())
    assert statuses == [504]
    assert service.idle


def test_body_read_for_another_model_is_not_run() -> None:
    """A pipeline's model may be replaced meanwhile by one with other inputs; the request is not run."""
    taken: list[Any] = []

    class Puppet(LongBodies):
        def read(self, call: Any, body: bytes, head: Any, take: Any, unlocked: Any = None) -> None:
            taken.append(take)

    narrow = Signature((TensorSpec("x", "float32", (1,)),), ROWS.outputs)
    service = puppet_service(timeout_ms=60_000, long_bodies=Puppet())
    statuses: list[int] = []
    heads: list[bytes] = []

    def respond(status: int, head: bytes, _: bytes) -> None:
        statuses.append(status)
        heads.append(head)

    async def ask(before: Joined, after: Joined) -> None:
        service.attach(before.exchange)
        call = service.call_type(service, None, respond, time.monotonic_ns())
        service.submit(call, lasting(rows_body([1], [2])), None)
        service.detach(before.exchange)
        service.attach(after.exchange)
        (take,) = taken
        take([np.ones((2, 1), np.float32)])
        for _ in range(10):
            after.turn_device()
            await asyncio.sleep(0)

    with Joined(PuppetRuntime(narrow)) as before, Joined() as after:
        after.loop.run_until_complete(ask(before, after))
        assert after.runtime.batches == []
    assert statuses == [503]
    assert b"retry-after: " in heads[0]
    assert service.idle


def test_a_reader_that_is_not_needed_is_ended() -> None:
    """After the last long body it is given so much time, and then its end of the socket is closed."""
    ended = threading.Event()
    reader = reader_on_a_thread()
    long_bodies = LongBodies(idle_s=0, start=lambda: Reader(reader.socket, ended.set))
    service = puppet_service(timeout_ms=60_000, long_bodies=long_bodies)

    async def ask(joined: Joined) -> None:
        await score_all(joined, service, (lasting(rows_body([1, 2])), None))
        await asyncio.to_thread(ended.wait)

    with Joined() as joined:
        service.attach(joined.exchange)
        joined.loop.run_until_complete(ask(joined))
    reader.end()


@pytest.mark.parametrize("fault", [StokerError("x"), RuntimeError("y")])
def test_failure_of_the_body_reader_is_answered(fault: Exception) -> None:
    """Any error between the loop and the reader ends in an answer."""

    class Puppet(LongBodies):
        def read(self, call: Any, body: bytes, head: Any, take: Any, unlocked: Any = None) -> None:
            take(fault)

    service = puppet_service(long_bodies=Puppet())
    with Joined(PuppetRuntime()) as joined:
        service.attach(joined.exchange)
        (answer,) = joined.loop.run_until_complete(score_all(joined, service, (lasting(b"{}"), None)))
    assert answer[0] == 500
