"""One attempt at one server, and what its failure says of the server."""

from __future__ import annotations

import httpx

from stoker_client.answers import Reply, error_of
from stoker_client.errors import ConnectionFailed, StokerClientError, TimedOut, UnexpectedAnswer
from stoker_client.steps import Flow, Send

__all__ = ["sent", "was_lost", "was_refused"]


def sent(send: Send, server: str, limit_s: float) -> Flow[Reply | StokerClientError]:
    """Send once; failures come back as values with their causes.

    Args:
        send: The request.
        server: How messages call the server.
        limit_s: What the caller allowed.
    """
    try:
        reply = yield send
    except httpx.ConnectTimeout as error:
        return _caused(ConnectionFailed(f"cannot reach {server}: no connection in time"), error)
    except (TimeoutError, httpx.TimeoutException) as error:
        return _caused(TimedOut(f"{server} gave no answer within {limit_s:g} s"), error)
    except httpx.ConnectError as error:
        return _caused(ConnectionFailed(f"cannot reach {server}: {error}"), error)
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        return _caused(ConnectionFailed(f"the connection to {server} was lost: {error}"), error)
    except httpx.RequestError as error:
        return _caused(UnexpectedAnswer(f"the exchange with {server} failed: {error}"), error)
    assert reply is not None, "a Send is answered with a Reply"
    return error_of(reply) or reply


def was_lost(failure: StokerClientError) -> bool:
    """Whether a connection stood and was then closed, as opposed to one that could not be made."""
    return isinstance(
        failure.__cause__, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError | httpx.CloseError
    )


def was_refused(failure: StokerClientError) -> bool:
    """Whether a server cannot be reached, or takes nothing now, so that another one is to be asked."""
    return failure.retried and not was_lost(failure)


def _caused(error: StokerClientError, cause: BaseException) -> StokerClientError:
    error.__cause__ = cause
    return error
