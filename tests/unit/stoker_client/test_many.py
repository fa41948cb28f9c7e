"""`score_many` and `score_batches`: order, bounds, errors, progress."""

from __future__ import annotations

import io
import json
import threading
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import numpy as np
import pytest
from tests.unit.stoker_client.scripted import URI, Caller, Kind, error, is_description

from stoker_client import AsyncClient, Client, InvalidInput, InvalidRows, UnexpectedAnswer
from stoker_client.flow import BINARY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 30


def double(request: httpx.Request) -> httpx.Response:
    """A model that answers each row with twice its sum."""
    return httpx.Response(200, json=[2 * sum(row) for row in json.loads(request.content)["data"]])


def rows_of(request: httpx.Request) -> list[list[float]]:
    return json.loads(request.content)["data"]  # type: ignore[no-any-return]


def many(kind: Kind, respond: Callable[[httpx.Request], httpx.Response] = double) -> Caller:
    return Caller(kind, iter(lambda: respond, None))


@pytest.mark.parametrize("concurrency", [1, 3, 50])
@pytest.mark.parametrize("batch_rows", [1, 4, 10, 11])
def test_many_rows_are_answered_as_one_request_would(kind: Kind, batch_rows: int, concurrency: int) -> None:
    """The answers come in the order of the rows, for every way of cutting them."""
    rows = np.arange(20).reshape(10, 2)
    caller = many(kind)
    answer = caller.call("score_many", rows, batch_rows=batch_rows, concurrency=concurrency)
    np.testing.assert_array_equal(answer, 2 * rows.sum(axis=1))
    assert len(caller.requests) == -(-10 // batch_rows)


@pytest.mark.parametrize("rows", [[[1, 2], [3, 4], [5, 6]], ((1, 2), (3, 4), (5, 6))])
def test_lists_of_rows_are_cut_too(kind: Kind, rows: Any) -> None:
    """Rows need not be an array."""
    np.testing.assert_array_equal(many(kind).call("score_many", rows, batch_rows=2), [6, 14, 22])


def test_no_rows_need_no_request(kind: Kind) -> None:
    """Nothing to score gives an empty array."""
    caller = many(kind)
    assert len(caller.call("score_many", np.empty((0, 784)))) == 0
    assert caller.requests == []


def test_batches_are_answered_one_by_one(kind: Kind) -> None:
    """Each batch of the caller's is one request and one answer, in order, of any size."""
    answers = many(kind).call("score_batches", [np.ones((size, 3)) for size in (2, 1, 4)])
    assert [answer.tolist() for answer in answers] == [[6, 6], [6], [6, 6, 6, 6]]


def test_batches_are_drawn_as_requests_end(kind: Kind) -> None:
    """A generator is not run ahead of: with one request in flight, one batch is out."""
    drawn = 0
    seen: list[int] = []

    def batches() -> Iterator[list[list[int]]]:
        nonlocal drawn
        for number in range(5):
            drawn += 1
            yield [[number]]

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(drawn)
        return double(request)

    many(kind, respond).call("score_batches", batches(), concurrency=1)
    assert seen == [1, 2, 3, 4, 5]


def test_threads_keep_concurrency_requests_in_flight() -> None:
    """Three requests at a time have to meet at a barrier, and a fourth never joins them."""
    meeting = threading.Barrier(3)
    lock = threading.Lock()
    in_flight, most = 0, 0

    def respond(request: httpx.Request) -> httpx.Response:
        nonlocal in_flight, most
        if is_description(request):
            return error(404, "not_found")
        with lock:
            in_flight += 1
            most = max(most, in_flight)
        meeting.wait(WAIT_S)
        with lock:
            in_flight -= 1
        return double(request)

    with Client(URI, transport=httpx.MockTransport(respond)) as client:
        answer = client.score_many(np.arange(9).reshape(9, 1), batch_rows=1, concurrency=3)
    np.testing.assert_array_equal(answer, 2 * np.arange(9))
    assert most == 3


@pytest.mark.anyio
async def test_tasks_keep_concurrency_requests_in_flight() -> None:
    """The asynchronous client fills its three places too, and no more, and keeps the order."""
    in_flight, most = 0, 0
    full = anyio.Event()

    async def respond(request: httpx.Request) -> httpx.Response:
        nonlocal in_flight, most
        if is_description(request):
            return error(404, "not_found")
        in_flight += 1
        most = max(most, in_flight)
        if in_flight == 3:
            full.set()
        await full.wait()
        in_flight -= 1
        return double(request)

    async with AsyncClient(URI, transport=httpx.MockTransport(respond)) as client:
        answer = await client.score_many(np.arange(9).reshape(9, 1), batch_rows=1, concurrency=3)
    np.testing.assert_array_equal(answer, 2 * np.arange(9))
    assert most == 3


def test_answers_that_come_out_of_order_are_put_in_order() -> None:
    """The first batch is answered only after the second one, and still comes first."""
    second_done = threading.Event()

    def respond(request: httpx.Request) -> httpx.Response:
        if is_description(request):
            return error(404, "not_found")
        if rows_of(request) == [[0]]:
            assert second_done.wait(WAIT_S)
        else:
            second_done.set()
        return double(request)

    with Client(URI, transport=httpx.MockTransport(respond)) as client:
        assert client.score_many([[0], [1]], batch_rows=1, concurrency=2).tolist() == [0, 2]


def test_the_first_error_ends_the_call_and_names_the_rows(kind: Kind) -> None:
    """After a refused batch nothing more is sent, and the error says which rows it was about."""

    def respond(request: httpx.Request) -> httpx.Response:
        return error(422, "invalid_input") if [6] in rows_of(request) else double(request)

    caller = many(kind, respond)
    with pytest.raises(InvalidInput) as caught:
        caller.call("score_many", [[number] for number in range(20)], batch_rows=4, concurrency=1)
    assert caught.value.__notes__ == ["while rows 4 to 7 were scored"]
    assert len(caller.requests) == 2


def test_an_error_in_a_batch_names_the_batch(kind: Kind) -> None:
    """Batches of the caller's are named by their place in the order."""
    with pytest.raises(InvalidRows) as caught:
        many(kind).call("score_batches", [[[1.0]], [[float("nan")]]], concurrency=1)
    assert caught.value.__notes__ == ["while scoring batch 1"]


def test_an_error_ends_the_other_workers() -> None:
    """A batch that waits an hour for its next attempt is given up, and no further one is sent."""
    waiting = threading.Event()
    sent: list[list[list[float]]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        sent.append(rows_of(request))
        if rows_of(request) == [[0]]:
            waiting.set()
            return error(503, "overloaded", retry_after="3600")
        assert waiting.wait(WAIT_S)
        return error(422, "invalid_input")

    with Client(URI, timeout_s=10_000, transport=httpx.MockTransport(respond)) as client:
        with pytest.raises(InvalidInput):
            client.score_many([[number] for number in range(9)], batch_rows=1, concurrency=2)
        for thread in threading.enumerate():
            if thread.name.startswith("stoker-client"):
                thread.join(WAIT_S)
                assert not thread.is_alive()
    assert sorted(sent) == [[[0]], [[1]]]


@pytest.mark.parametrize("end", [KeyboardInterrupt(), ZeroDivisionError("a bug")])
def test_an_end_does_not_wait_for_requests_in_flight(end: BaseException) -> None:
    """Ctrl-C or a fault ends the call at once, however long the server takes over another batch."""
    waiting, ended, late = threading.Event(), threading.Event(), threading.Event()
    daemons: list[bool] = []

    def respond(request: httpx.Request) -> httpx.Response:
        if is_description(request):
            return error(404, "not_found")
        if rows_of(request) == [[0]]:
            daemons.append(threading.current_thread().daemon)
            waiting.set()
            if not ended.wait(WAIT_S):
                late.set()
            return double(request)
        assert waiting.wait(WAIT_S)
        raise end

    with Client(URI, transport=httpx.MockTransport(respond)) as client:
        with pytest.raises(type(end)):
            client.score_many([[0], [1]], batch_rows=1, concurrency=2)
        ended.set()
    assert not late.is_set()
    assert daemons == [True], "the interpreter would wait for the thread at its exit"


@pytest.mark.anyio
async def test_an_error_cancels_other_requests_in_flight() -> None:
    """The asynchronous client does not wait for requests whose answers nobody will see."""
    waiting = anyio.Event()

    async def respond(request: httpx.Request) -> httpx.Response:
        if rows_of(request) == [[0]]:
            waiting.set()
            await anyio.sleep_forever()
        await waiting.wait()
        return error(422, "invalid_input")

    async with AsyncClient(URI, transport=httpx.MockTransport(respond)) as client:
        with pytest.raises(InvalidInput) as caught:
            await client.score_many([[0], [1]], batch_rows=1, concurrency=2)
    assert caught.value.__notes__ == ["while scoring rows 1 to 1"]


def test_a_fault_in_the_callers_generator_is_the_callers(kind: Kind) -> None:
    """An exception of the generator of batches comes out unchanged."""

    def batches() -> Iterator[list[list[int]]]:
        yield [[1]]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        many(kind).call("score_batches", batches())


def test_a_model_that_does_not_answer_row_by_row_is_refused(kind: Kind) -> None:
    """Joining the means of batches would invent an answer."""
    caller = many(kind, lambda _: httpx.Response(200, json={"mean": 0.5}))
    with pytest.raises(UnexpectedAnswer, match="score_batches"):
        caller.call("score_many", [[1], [2]], batch_rows=1)
    assert caller.call("score_batches", [[[1]], [[2]]]) == [{"mean": 0.5}] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_rows": 0}, "batch_rows has to be 1 or more"),
        ({"concurrency": 0}, "concurrency has to be 1 or more"),
    ],
)
def test_bounds_are_checked(kind: Kind, arguments: dict[str, int], message: str) -> None:
    """Bounds below one are refused before anything is sent."""
    with pytest.raises(ValueError, match=message):
        many(kind).call("score_many", [[1]], **arguments)


@pytest.mark.parametrize("method", ["score", "score_many"])
@pytest.mark.parametrize("size", [2, BINARY_BYTES])
def test_masked_rows_are_not_sent(kind: Kind, method: str, size: int) -> None:
    """Values under a mask are refused, as JSON and as binary data."""
    caller = many(kind)
    rows: Any = np.ma.masked_equal(np.arange(2.0 * size).reshape(2, size), 1)
    with pytest.raises(
        InvalidRows, match="the rows are a masked array, and what lies under its mask would be"
    ):
        caller.call(method, rows)
    assert caller.requests == []


def test_rows_need_a_first_axis(kind: Kind) -> None:
    """A single number cannot be cut into batches."""
    with pytest.raises(InvalidRows, match="expected rows along the first axis"):
        many(kind).call("score_many", 5.0)


class Terminal(io.StringIO):
    """Standard error as a terminal has it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("method", ["score_many", "score_batches"])
def test_progress_is_shown_on_a_terminal(kind: Kind, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar counts to the end."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    caller = many(kind, lambda request: httpx.Response(200, json=[1] * len(rows_of(request))))
    caller.call(method, np.ones((3, 1, 2)), progress=True)
    assert "3/3" in terminal.getvalue()


@pytest.mark.parametrize(("screen", "progress"), [(io.StringIO, True), (Terminal, False)])
def test_progress_shows_on_terminals_where_it_is_turned_on(
    kind: Kind, screen: type[io.StringIO], progress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log file gets no bar, and a terminal gets one on request only."""
    stream = screen()
    monkeypatch.setattr("sys.stderr", stream)
    many(kind).call("score_many", np.ones((3, 2)), progress=progress)
    assert stream.getvalue() == ""
