"""The steps of a flow: what a call without I/O asks of whoever drives it.

A flow is a generator. It yields `Send` and is sent the `Reply` (or has the httpx exception, or TimeoutError,
thrown into it), yields `Pause` and is resumed after that time, yields `Renew` and is resumed with another credential
(or has the exception of whoever gives those thrown into it), and returns its result. A flow whose answer comes piece
by piece sends with `accept`, then yields `Read` and is sent what has come (or has thrown in what was in the way), and
yields `Piece` for each one that its caller is to have. `Client` and `AsyncClient` drive the same flows; they only
differ in how they wait.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import httpx

from stoker_client.answers import Json, Reply
from stoker_client.tensors import JSON_LENGTH
from stoker_client.urgency import Urgency

__all__ = ["Flow", "Outcome", "Pause", "Piece", "Read", "Renew", "Result", "Send", "Step", "resumed"]

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Send:
    """Send this request now.

    Attributes:
        method: HTTP method.
        url: Absolute URL.
        timeout_s: Seconds within which the whole reply has to be there.
        body: A JSON body, or None for no body.
        json_bytes: How many bytes of the body are JSON, if binary tensors follow it; else None.
        bearer: The key or token, or None for none.
        urgency: What a request that scores says of its patience; None for one that does not score.
        accept: What is to come in the place of JSON: the reply is empty then where it is a success, and its content
            is for `Read`; None for JSON, all of it.
    """

    method: str
    url: httpx.URL
    timeout_s: float
    body: bytes | None = None
    bearer: str | None = field(default=None, repr=False)
    json_bytes: int | None = None
    urgency: Urgency | None = None
    accept: str | None = None

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Make the httpx request; no single network operation in it may outlast `timeout_s`."""
        headers = {} if self.urgency is None else self.urgency.headers(self.timeout_s)
        if self.json_bytes is not None:
            headers["Content-Type"] = "application/octet-stream"
            headers[JSON_LENGTH] = str(self.json_bytes)
        elif self.body is not None:
            headers["Content-Type"] = "application/json"
        if self.accept is not None:
            headers["Accept"] = self.accept
        if self.bearer is not None:
            headers["Authorization"] = f"Bearer {self.bearer}"
        return http.build_request(
            self.method,
            self.url,
            content=self.body,
            headers=headers,
            timeout=httpx.Timeout(self.timeout_s, connect=min(self.timeout_s, CONNECT_TIMEOUT_S)),
        )


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step.

    Attributes:
        duration_s: Seconds to wait.
    """

    duration_s: float


@dataclass(frozen=True, slots=True)
class Renew:
    """Have another credential, unless somebody else has had one meanwhile.

    Attributes:
        stale: The one that is to be replaced; None if there is none yet.
        timeout_s: Seconds that are left for it.
    """

    stale: str | None = field(repr=False)
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Read:
    """Read more of the reply to the last `Send`: some bytes, or none at its end.

    Attributes:
        timeout_s: Seconds within which some have to come.
    """

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    """Hand this to the caller before the next step.

    Attributes:
        value: It.
    """

    value: Json


Step: TypeAlias = Send | Pause | Renew | Read | Piece
Outcome: TypeAlias = Reply | bytes | None
"""What a step has given: a `Send` a reply, a `Read` bytes, others nothing."""
Result = TypeVar("Result")
Flow: TypeAlias = Generator[Step, Outcome, Result]


def resumed(flow: Flow[Result], outcome: Outcome | Exception) -> Step:
    """Go on with a flow, given what its last step has given, or what was in the way of it; return its next step.

    Raises:
        StopIteration: It has ended; the value is its result.
        Exception: It has failed.
    """
    return flow.throw(outcome) if isinstance(outcome, Exception) else flow.send(outcome)
