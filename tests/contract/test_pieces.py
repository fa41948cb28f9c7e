"""Scripts whose `run` yields: each piece is sent when it is there, as a line of JSON or as a server-sent event."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.contract.in_process import InProcessServer, go_on_until, script
from tests.http.raw_http import Connection, request
from tests.patience import PATIENCE_S

from stoker.scripts import coroutines
from stoker_client import AsyncClient, Client, ModelFailed

EVENTS = ("Accept", "text/event-stream")
LIST = ("Accept", "application/json")


class Steps:
    """The steps of a script, which its test allows one by one."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.closed = threading.Event()


STEPS = Steps()


def count(raw_data: str) -> Iterator[dict[str, Any]]:
    """As many pieces as the body says; fails behind them if it says so."""
    wanted = json.loads(raw_data)
    try:
        for number in range(wanted["pieces"]):
            if wanted.get("waits"):
                assert STEPS.go.acquire(timeout=PATIENCE_S)
            yield {"piece": number, "text": "x\ny" * wanted.get("long", 1)}
        if wanted.get("fails"):
            raise ValueError("the end is missing")
    finally:
        STEPS.closed.set()


async def count_later(raw_data: str) -> AsyncIterator[int]:
    """The same numbers, from an asynchronous generator."""
    for number in range(int(raw_data)):
        yield number


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A script that yields."""
    with InProcessServer(script(count)) as running:
        yield running


def body(**wanted: Any) -> bytes:
    return json.dumps(wanted).encode()


def pieces(number: int) -> list[dict[str, Any]]:
    return [{"piece": index, "text": "x\ny"} for index in range(number)]


def test_pieces_are_lines_by_default(server: InProcessServer) -> None:
    """One JSON text a line; the ids of the request are in the head."""
    answer = server.ask("POST", "/score", [("x-ms-request-id", "one")], body(pieces=3))
    assert (answer.status, answer.header("content-type")) == (200, "application/x-ndjson")
    assert answer.header("x-ms-request-id") == "one"
    assert [json.loads(line) for line in answer.body.splitlines()] == pieces(3)


def test_accept_of_events_gets_events(server: InProcessServer) -> None:
    """As browsers and OpenAI's clients read them."""
    answer = server.ask("POST", "/score", [EVENTS], body(pieces=2))
    assert answer.header("content-type") == "text/event-stream"
    events = answer.body.decode().split("\n\n")
    assert [json.loads(event.removeprefix("data: ")) for event in events[:-1]] == pieces(2)
    assert events[-1] == ""


def test_caller_that_accepts_json_gets_one_list(server: InProcessServer) -> None:
    """Pieces are joined to one JSON answer, with its times."""
    answer = server.ask("POST", "/score", [LIST], body(pieces=2))
    assert (answer.status, answer.json()) == (200, pieces(2))
    assert "compute;dur=" in answer.header("server-timing")


def test_an_asynchronous_generator_is_sent_too() -> None:
    """`async def run` with `yield`."""
    with InProcessServer(script(count_later)) as running:
        assert running.ask(body=b"3").body == b"0\n1\n2\n"
        assert running.ask(headers=[LIST], body=b"3").json() == [0, 1, 2]


def test_each_piece_is_sent_at_once(server: InProcessServer) -> None:
    """The caller has the first before the second is made."""
    with server.connect() as connection:
        connection.send(request("POST", "/score", (), body(pieces=2, waits=True)))
        STEPS.go.release()
        head = connection.read_until(b'"piece": 0')
        assert b"200 OK" in head
        STEPS.go.release()
        connection.read_until(b"0\r\n\r\n")
    text = server.ask("GET", "/metrics").body.decode()
    (seen,) = [line for line in text.splitlines() if line.startswith("stoker_first_response_seconds_count")]
    assert float(seen.split()[-1]) >= 1


def test_failure_before_the_first_piece_is_an_ordinary_error(server: InProcessServer) -> None:
    """The answer has the status of the error, as nothing has been sent."""
    answer = server.ask("POST", "/score", [EVENTS], body(pieces=0, fails=True))
    assert (answer.status, answer.json()["code"]) == (500, "model_failed")
    answer = server.ask("POST", "/score", [EVENTS], b"no JSON")
    assert answer.status == 400


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*"])
def test_failure_after_pieces_is_the_last_piece(server: InProcessServer, accept: str) -> None:
    """The status has been sent, so the last piece is the error with its id in the log."""
    answer = server.ask("POST", "/score", [("Accept", accept)], body(pieces=1, fails=True))
    assert answer.status == 200
    last = answer.body.decode().rstrip("\n").splitlines()[-1]
    error = json.loads(last.removeprefix("data: "))
    error = error.get("error", error)
    assert (error["code"], len(error["error_id"])) == ("model_failed", 16)
    assert accept == "*/*" or b"event: error\n" in answer.body


def test_nothing_yielded_is_an_answer_without_pieces(server: InProcessServer) -> None:
    """An empty body, or an empty list."""
    assert server.ask(body=body(pieces=0)).body == b""
    assert server.ask(headers=[LIST], body=body(pieces=0)).json() == []


def test_the_generator_is_closed_when_its_caller_goes(server: InProcessServer) -> None:
    """One that awaits nothing hears of it with its next piece, and the next request finds the script free."""
    STEPS.closed.clear()
    with server.connect() as connection:
        connection.send(request("POST", "/score", (), body(pieces=10**6, waits=True)))
        STEPS.go.release()
        connection.read_until(b'"piece": 0')
    go_on_until(STEPS.closed, STEPS.go)
    assert len(server.ask(body=body(pieces=1)).body.splitlines()) == 1


@pytest.mark.parametrize("shared", [False, True], ids=["own loop", "shared loop"])
def test_asynchronous_generator_is_cancelled_at_its_await_when_its_caller_goes(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though there is never a further piece; the next request finds the script free."""
    loop = coroutines.SharedLoop() if shared else None
    monkeypatch.setattr(coroutines, "SHARED_LOOPS", [] if loop is None else [loop])
    ended = threading.Event()

    async def stand_still(raw_data: str) -> AsyncIterator[str]:
        yield "first"
        try:
            if raw_data == "wait":
                await asyncio.Event().wait()
        finally:
            ended.set()

    with InProcessServer(script(stand_still)) as running:
        with running.connect() as connection:
            connection.send(request("POST", "/score", (), b"wait"))
            connection.read_until(b'"first"\n')
            assert not ended.is_set()
        assert ended.wait(20)
        assert running.ask(body=b"go").body == b'"first"\n'
    if loop is not None:
        loop.close()


@pytest.mark.parametrize("further", [0, 1], ids=["the end", "a piece"])
def test_caller_that_closed_only_its_sending_half_gets_all_pieces(
    server: InProcessServer, further: int
) -> None:
    """A caller that closed only its sending half gets all further pieces."""
    with server.connect() as connection:
        connection.send(request("POST", "/score", (), body(pieces=1 + further, waits=True)))
        STEPS.go.release()
        connection.read_until(b'"piece": 0')
        connection.read_until(b"\r\n")
        connection.socket.shutdown(socket.SHUT_WR)
        # Where nothing is to be waited for, the end may come first.
        if further:
            assert connection.socket.recv(1) == b"0"
            STEPS.go.release()
            assert b'"piece": 1' in connection.read_until(b"}\n\r\n")
        assert connection.read_until(b"0\r\n\r\n").strip(b"0") == b"\r\n\r\n"


def test_pieces_before_a_further_request_stay_whole_when_no_more_is_sent(server: InProcessServer) -> None:
    """It is the answer that is being sent which gets the zero, not the one that waits behind it."""
    with server.connect() as connection:
        message = request("POST", "/score", (), body(pieces=2, waits=True))
        connection.send(message + message)
        STEPS.go.release()
        connection.read_until(b'"piece": 0')
        connection.read_until(b"\r\n")
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.socket.recv(1) == b"0"
        for _ in range(3):
            STEPS.go.release()
        assert b'"piece": 1' in connection.read_until(b"}\n\r\n")
        assert b" 200 OK" in connection.read_until(b'"piece": 0')
        assert b'"piece": 1' in connection.read_until(b"0\r\n\r\n")


def test_run_waits_for_a_caller_that_does_not_read(server: InProcessServer) -> None:
    """The sockets on the way bound the pieces: of 24 MB the last one is not made meanwhile."""
    STEPS.closed.clear()
    with Connection(server.port, receive_buffer=1 << 14) as connection:
        connection.send(request("POST", "/score", (), body(pieces=160, long=50_000)))
        connection.read_until(b'"piece": 0')
        assert not STEPS.closed.wait(0.2)
        received = bytearray()
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += connection.socket.recv(1 << 20)
    assert received.count(b'"piece": ') == 159
    assert STEPS.closed.wait(PATIENCE_S)


def test_client_gets_each_piece_at_once(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first before the second is made; when it is closed early, so is the generator."""
    monkeypatch.delenv("STOKER_KEY", raising=False)
    STEPS.closed.clear()
    with Client(f"http://127.0.0.1:{server.port}/score") as client:
        with client.stream({"pieces": 10**6, "waits": True}) as answer:
            STEPS.go.release()
            assert next(answer)["piece"] == 0
        go_on_until(STEPS.closed, STEPS.go)
        for events in (False, True):
            with client.stream({"pieces": 2, "fails": True}, events=events) as answer:
                assert [next(answer), next(answer)] == pieces(2)
                with pytest.raises(ModelFailed) as error:
                    next(answer)
            assert error.value.code == "model_failed"


def test_our_asynchronous_client_has_them_too(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `async for`."""
    monkeypatch.delenv("STOKER_KEY", raising=False)

    async def ask() -> list[Any]:
        async with AsyncClient(f"http://127.0.0.1:{server.port}/score") as client:
            return [piece async for piece in client.stream({"pieces": 2})]

    assert asyncio.run(ask()) == pieces(2)


GENERATE = "/v2/models/model/generate"
NAMES = {"model_name": "model", "model_version": "1"}


@pytest.mark.parametrize(
    "path", ["/v2/models/model/generate_stream", "/v2/models/model/versions/1/generate_stream"]
)
def test_pieces_are_events_of_triton_s_generate_extension(server: InProcessServer, path: str) -> None:
    """They have the model's name beside the piece's members, and errors as Triton writes them."""
    answer = server.ask("POST", path, (), body(pieces=2, fails=True))
    assert (answer.status, answer.header("content-type")) == (200, "text/event-stream")
    *events, error, rest = answer.body.decode().split("\n\n")
    assert [json.loads(event.removeprefix("data: ")) for event in events] == [
        NAMES | piece for piece in pieces(2)
    ]
    error_body = json.loads(error.removeprefix("data: "))
    assert ("unexpected error" in error_body["error"], error_body["code"], rest) == (True, "model_failed", "")


def test_generate_answers_with_the_only_piece(server: InProcessServer) -> None:
    """It is JSON; the error for another number of pieces says to stream."""
    answer = server.ask("POST", GENERATE, (), body(pieces=1))
    assert (answer.status, answer.json()) == (200, NAMES | pieces(1)[0])
    for number in (0, 2):
        answer = server.ask("POST", GENERATE, (), body(pieces=number))
        assert (answer.status, "exactly 1 response" in answer.json()["error"]) == (400, True)
    answer = server.ask("POST", GENERATE, (), body(pieces=0, fails=True))
    assert (answer.status, "unexpected error" in answer.json()["error"]) == (500, True)
    answer = server.ask("POST", GENERATE, (), b"no JSON")
    assert (answer.status, list(answer.json())) == (400, ["error", "code"])
    assert server.ask("GET", GENERATE).status == 405


def test_generated_pieces_that_are_no_objects_have_a_name() -> None:
    """`piece`, as the output of gRPC is called."""
    with InProcessServer(script(count_later)) as running:
        events = running.ask("POST", f"{GENERATE}_stream", (), b"1").body
        assert json.loads(events.removeprefix(b"data: ")) == NAMES | {"piece": 0}


class Meeting:
    """Where streams wait for each other."""

    def __init__(self, streams: int) -> None:
        self.streams, self.come = streams, 0
        self.everybody = asyncio.Event()
        self.loops: set[int] = set()

    async def wait(self) -> None:
        self.loops.add(id(asyncio.get_running_loop()))
        self.come += 1
        if self.come == self.streams:
            self.everybody.set()
        await asyncio.wait_for(self.everybody.wait(), PATIENCE_S)


def test_streams_of_an_asynchronous_generator_interleave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several instances has one, all on one loop: none could end before the others have begun."""
    loop = coroutines.SharedLoop()
    monkeypatch.setattr(coroutines, "SHARED_LOOPS", [loop])
    meeting = Meeting(3)

    async def meet(raw_data: str) -> AsyncIterator[str]:
        yield f"{raw_data} came"
        await meeting.wait()
        yield f"{raw_data} met"

    with InProcessServer(script(meet, forks=True), instances=3) as running, ExitStack() as callers:
        connections = {name: callers.enter_context(running.connect()) for name in "abc"}
        for name, connection in connections.items():
            connection.send(request("POST", "/score", (), name.encode()))
        for name, connection in connections.items():
            connection.read_until(f'"{name} met"\n'.encode())
    assert len(meeting.loops) == 1
    loop.close()


def test_streams_of_a_generator_have_a_thread_each() -> None:
    """Of several instances."""
    met = threading.Barrier(2)

    def meet(raw_data: str) -> Iterator[int]:
        yield 1
        met.wait(PATIENCE_S)
        yield 2

    with InProcessServer(script(meet, forks=True), instances=2) as running, ThreadPoolExecutor(2) as callers:
        answers = callers.map(lambda _: running.ask(body=b"").body, range(2))
        assert list(answers) == [b"1\n2\n"] * 2
