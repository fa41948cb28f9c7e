"""One attempt at one server, and what its failure says of the server."""

from __future__ import annotations

import httpx

from stoker_client.answers import Reply, error_of
from stoker_client.errors import (
    ConnectionFailed,
    Overloaded,
    StokerClientError,
    TimedOut,
    Unavailable,
    UnexpectedAnswer,
)
from stoker_client.steps import Flow, Read, Send

__all__ = ["read", "sent", "speaks_of_load", "was_lost", "was_overload", "was_refused"]


def sent(send: Send, server: str, limit_s: float) -> Flow[Reply | StokerClientError]:
    """Send once; failures come back as values with their causes.

    Args:
        send: The request.
        server: How messages call the server.
        limit_s: What the caller allowed.
    """
    try:
        reply = yield send
    except (TimeoutError, httpx.RequestError) as error:
        return _failure(error, server, limit_s)
    assert isinstance(reply, Reply), "a Send is answered with a Reply"
    return error_of(reply) or reply


def read(server: str, limit_s: float) -> Flow[bytes]:
    """Return more of the reply, none at its end.

    Args:
        server: How messages call the server.
        limit_s: Seconds within which some has to come.

    Raises:
        StokerClientError: None has come.
    """
    try:
        content = yield Read(limit_s)
    except (TimeoutError, httpx.RequestError) as error:
        raise _failure(error, server, limit_s) from error
    assert isinstance(content, bytes), "a Read is answered with bytes"
    return content


def _failure(error: Exception, server: str, limit_s: float) -> StokerClientError:
    match error:
        case httpx.ConnectTimeout():
            failure: StokerClientError = ConnectionFailed(f"cannot reach {server}: no connection in time")
        case TimeoutError() | httpx.TimeoutException():
            failure = TimedOut(f"{server} gave no answer within {limit_s:g} s")
        case httpx.ConnectError():
            failure = ConnectionFailed(f"cannot reach {server}: {error}")
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            failure = ConnectionFailed(f"the connection to {server} was lost: {error}")
        case _:
            failure = UnexpectedAnswer(f"the exchange with {server} failed: {error}")
    failure.__cause__ = error
    return failure


def was_lost(failure: StokerClientError) -> bool:
    """Whether a connection stood and was then closed, as opposed to one that could not be made."""
    return isinstance(
        failure.__cause__, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError | httpx.CloseError
    )


def was_refused(failure: StokerClientError) -> bool:
    """Whether a server cannot be reached, or takes nothing now, so that another one is to be asked."""
    return failure.retried and not was_lost(failure)


def was_overload(outcome: Reply | StokerClientError) -> bool:
    """Whether a server had no room: 429, 503 `overloaded`, and 503 of something in front of it that gives no code."""
    return isinstance(outcome, Overloaded) or type(outcome) is Unavailable


def speaks_of_load(outcome: Reply | StokerClientError) -> bool:
    """Whether a server took a request or had no room for it, as opposed to one that is away or loads its model."""
    if isinstance(outcome, Reply) or was_overload(outcome):
        return True
    return outcome.status is not None and not isinstance(outcome, Unavailable)
