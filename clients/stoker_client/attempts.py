"""One attempt at one server: the flow of its I/O, and what a failure means for further attempts."""

from __future__ import annotations

import httpx

from stoker_client.answers import Reply, error_of
from stoker_client.errors import (
    ConnectionFailed,
    StokerClientError,
    TimedOut,
    UnexpectedAnswer,
)
from stoker_client.steps import Flow, Read, Send

__all__ = ["read", "sent", "was_lost", "was_refused"]


def sent(send: Send, server: str, limit_s: float) -> Flow[Reply | StokerClientError]:
    """Send once; failures are returned with their causes, which call the server `server`."""
    try:
        reply = yield send
    except (TimeoutError, httpx.RequestError) as error:
        return _failure(error, server, limit_s)
    assert isinstance(reply, Reply), "a Send is answered with a Reply"
    return error_of(reply) or reply


def read(server: str, limit_s: float) -> Flow[bytes]:
    """Return more of the reply, none at its end.

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
    """Return whether a server is unreachable or refuses requests now, so that another one is asked."""
    return failure.retried and not was_lost(failure)
