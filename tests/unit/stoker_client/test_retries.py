"""Failures of both clients: which are tried again, when, and how often."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from tests.unit.stoker_client.scripted import URI, Caller, Kind, error, ok

from stoker_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidInput,
    InvalidRows,
    ModelFailed,
    NotReady,
    Overloaded,
    StokerClientError,
    TimedOut,
    Unauthorized,
    UnexpectedAnswer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = np.zeros((1, 784), np.float32)


def test_retry_after_is_the_shortest_pause(kind: Kind) -> None:
    """After 503 the client waits the server's Retry-After and a little more at random, then succeeds."""
    caller = Caller(kind, [error(503, "overloaded", retry_after="2"), ok([7])])
    np.testing.assert_array_equal(caller.call("score", ROWS), [7])
    assert caller.pauses_s == pytest.approx([2 + 0.5 * 0.1])
    assert caller.requests[0].content == caller.requests[1].content


def test_pauses_double_up_to_a_bound(kind: Kind) -> None:
    """Without Retry-After the pauses double from 0.1 s to 5 s and vary by up to a half."""
    caller = Caller(kind, repeat(httpx.Response(429)), retries=9)
    with pytest.raises(Overloaded) as caught:
        caller.call("score", ROWS)
    assert caller.pauses_s == pytest.approx([0.75 * s for s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0)])
    assert len(caller.requests) == caught.value.attempts == 10
    assert "after 10 attempts" in str(caught.value)


@pytest.mark.parametrize(("jitter", "pause_s"), [(0.0, 0.05), (1.0, 0.1)])
def test_jitter_spreads_the_pauses(kind: Kind, jitter: float, pause_s: float) -> None:
    """The random part lies between half the pause and all of it."""
    caller = Caller(kind, [httpx.Response(503), ok()], jitter=lambda: jitter)
    caller.call("score", ROWS)
    assert caller.pauses_s == pytest.approx([pause_s])


def test_no_pause_goes_beyond_the_deadline(kind: Kind) -> None:
    """Where the next attempt would come too late, the error is raised at once instead of after the wait."""
    caller = Caller(kind, [error(503, "not_ready", retry_after="60")], timeout_s=60)
    with pytest.raises(NotReady) as caught:
        caller.call("score", ROWS)
    assert caught.value.retry_after_s == 60
    assert caller.pauses_s == []


def test_the_deadline_covers_all_attempts(kind: Kind) -> None:
    """Each attempt gets the rest of the time; the last error ends the call."""
    caller = Caller(
        kind, repeat(error(503, "overloaded", retry_after="10")), timeout_s=25, jitter=lambda: 0.0
    )
    with pytest.raises(Overloaded):
        caller.call("score", ROWS)
    assert caller.pauses_s == [10, 10]
    assert [request.extensions["timeout"]["read"] for request in caller.requests] == [25, 15, 5]


def test_connecting_has_a_limit_of_its_own(kind: Kind) -> None:
    """A host that swallows packets does not use up the whole time of the call."""
    caller = Caller(kind, [httpx.ConnectTimeout("timed out"), ok()])
    caller.call("score", ROWS)
    assert caller.requests[0].extensions["timeout"]["connect"] == 5


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, "unauthorized", Unauthorized),
        (422, "invalid_input", InvalidInput),
        (500, "model_failed", ModelFailed),
        (504, "deadline_exceeded", DeadlineExceeded),
    ],
)
def test_other_errors_are_not_tried_again(
    kind: Kind, status: int, code: str, expected: type[StokerClientError]
) -> None:
    """A wrong key or bad rows do not get better by repetition."""
    caller = Caller(kind, [error(status, code, retry_after="1")])
    with pytest.raises(expected, match=f"it is {code}"):
        caller.call("score", ROWS)
    assert len(caller.requests) == 1


def test_an_unreachable_server_is_tried_again(kind: Kind) -> None:
    """A refused connection is tried again after a pause: the server may just be starting."""
    caller = Caller(kind, [httpx.ConnectError("refused"), ok([3])])
    np.testing.assert_array_equal(caller.call("score", ROWS), [3])
    assert caller.pauses_s == pytest.approx([0.075])


def test_a_server_that_stays_unreachable_is_named(kind: Kind) -> None:
    """When all attempts fail, the error names the server and the reason."""
    caller = Caller(kind, repeat(httpx.ConnectError("[Errno 111] Connection refused")), retries=1)
    with pytest.raises(
        ConnectionFailed, match=r"http://127.0.0.1:8080: \[Errno 111\].*after 2 attempts"
    ) as caught:
        caller.call("score", ROWS)
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


@pytest.mark.parametrize(
    "loss",
    [httpx.RemoteProtocolError("disconnected"), httpx.ReadError("reset"), httpx.WriteError("broken pipe")],
)
def test_the_first_lost_connection_is_tried_again_at_once(kind: Kind, loss: Exception) -> None:
    """A kept-alive connection that closes just as it is used costs no pause; a second loss does."""
    caller = Caller(kind, [loss, loss, ok([5])])
    np.testing.assert_array_equal(caller.call("score", ROWS), [5])
    assert caller.pauses_s == pytest.approx([0.0, 0.15])


def test_a_loss_after_a_refusal_is_still_the_first(kind: Kind) -> None:
    """Only losses count as losses, not connections that could not be made."""
    caller = Caller(kind, [httpx.ConnectError("refused"), httpx.ReadError("reset"), ok()])
    caller.call("score", ROWS)
    assert caller.pauses_s == pytest.approx([0.075, 0.0])


def test_no_retries(kind: Kind) -> None:
    """With `retries=0` even a lost connection ends the call."""
    caller = Caller(kind, [httpx.ReadError("reset")], retries=0)
    with pytest.raises(ConnectionFailed, match="was lost: reset"):
        caller.call("score", ROWS)


@pytest.mark.parametrize(
    "timeout", [httpx.ReadTimeout("slow"), httpx.WriteTimeout("slow"), httpx.PoolTimeout("slow")]
)
def test_running_out_of_time_ends_the_call(kind: Kind, timeout: Exception) -> None:
    """A network operation may use all the time that is left, so its time-out is the call's."""
    caller = Caller(kind, [timeout], timeout_s=3)
    with pytest.raises(TimedOut, match="no answer within 3 s"):
        caller.call("score", ROWS)
    assert len(caller.requests) == 1


def test_a_slow_body_cannot_outlast_the_deadline() -> None:
    """A server that sends its answer in drops is left when the time is over, though each came in time."""
    taken: list[bytes] = []

    def drops() -> Iterator[bytes]:
        for drop in [b"["] * 100:
            caller.timeline.now_s += 4
            taken.append(drop)
            yield drop

    caller = Caller("sync", [lambda _: httpx.Response(200, content=drops())], timeout_s=10)
    with pytest.raises(TimedOut):
        caller.call("score", ROWS)
    assert len(taken) == 3


@pytest.mark.anyio
async def test_an_asynchronous_call_is_cancelled_at_its_deadline() -> None:
    """A server that never answers is left after `timeout_s`, in any state of its transport."""
    import anyio

    async def never(_: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    async with AsyncClient(URI, timeout_s=0.01, transport=httpx.MockTransport(never)) as client:
        with pytest.raises(TimedOut, match=r"within 0\.01 s"):
            await client.score(ROWS)


def test_a_broken_exchange_is_unexpected(kind: Kind) -> None:
    """An answer that httpx cannot decode is no reason to try again."""
    caller = Caller(kind, [httpx.DecodingError("bad gzip")])
    with pytest.raises(UnexpectedAnswer, match="bad gzip"):
        caller.call("score", ROWS)


def test_rows_without_json_form_are_refused_before_sending(kind: Kind) -> None:
    """A NaN never reaches the network."""
    caller = Caller(kind, [])
    with pytest.raises(InvalidRows, match=r"\[0\]\[1\] is nan"):
        caller.call("score", [[1.0, float("nan")]])
    assert caller.requests == []


def test_other_exceptions_pass_through(kind: Kind) -> None:
    """A fault that is not the network's is not disguised as one."""
    caller = Caller(kind, [ZeroDivisionError("a bug")])
    with pytest.raises(ZeroDivisionError):
        caller.call("score", ROWS)


@pytest.mark.parametrize("build", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0}, "timeout_s has to be above 0"),
        ({"timeout_s": float("nan")}, "timeout_s has to be above 0"),
        ({"retries": -1}, "retries has to be 0 or more"),
    ],
)
def test_limits_are_checked(build: Callable[..., object], options: dict[str, float], message: str) -> None:
    """Limits out of range are refused with their value."""
    with pytest.raises(ValueError, match=message):
        build(URI, **options)
