"""One attempt: failures of httpx become errors of the client, which decide whether and where to try again."""

from __future__ import annotations

import httpx
import pytest

from stoker_client import ConnectionFailed, StokerClientError, TimedOut, UnexpectedAnswer
from stoker_client.answers import Reply
from stoker_client.attempts import sent, was_lost, was_refused
from stoker_client.steps import Send

SEND = Send("GET", httpx.URL("http://h/"), 2.0)


def attempt(outcome: Reply | Exception) -> Reply | StokerClientError:
    """Return the result of an attempt whose only step has this outcome."""
    flow = sent(SEND, "http://h", 2.0)
    assert next(flow) is SEND
    try:
        flow.throw(outcome) if isinstance(outcome, Exception) else flow.send(outcome)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("an attempt has one step")


@pytest.mark.parametrize(
    ("failure", "error", "message", "is_lost", "is_refused"),
    [
        (httpx.ConnectTimeout("slow"), ConnectionFailed, "no connection in time", False, True),
        (httpx.ConnectError("refused"), ConnectionFailed, "cannot reach http://h: refused", False, True),
        (httpx.ReadError("reset"), ConnectionFailed, "was lost: reset", True, False),
        (TimeoutError(), TimedOut, "no answer within 2 s", False, False),
        (httpx.TooManyRedirects("circle"), UnexpectedAnswer, "failed: circle", False, False),
    ],
)
def test_failure_becomes_an_error_with_its_cause(
    failure: Exception, error: type[StokerClientError], message: str, is_lost: bool, is_refused: bool
) -> None:
    """Only a server that was not reached is left for another one."""
    outcome = attempt(failure)
    assert isinstance(outcome, error)
    assert message in str(outcome)
    assert outcome.__cause__ is failure
    assert (was_lost(outcome), was_refused(outcome)) == (is_lost, is_refused)
