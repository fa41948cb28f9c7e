"""The steps of a flow: the I/O that a call without I/O asks its driver for.

A flow is a generator that yields steps and returns its result. `Send` is answered with the `Reply`; `Pause` is
resumed after its time; `Renew` is resumed with another credential. Instead, the driver may throw in the exception
that prevented the step: the httpx exception, TimeoutError, or the token provider's exception. A flow whose answer
comes in pieces sends with `accept`, then yields `Read` for further content, and `Piece` for each piece.

`Client` and `AsyncClient` drive the same flows; they only differ in how they wait.
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
        timeout_s: Seconds until the whole reply must be there.
        body: A JSON body, or None.
        json_bytes: How many bytes of the body are JSON, if binary tensors follow; else None.
        bearer: The key or token, or None.
        urgency: The urgency of a scoring request; None for other requests.
        accept: The accepted content type instead of JSON: a successful reply is empty then, and `Read` returns its
            content; None for JSON.
        more_headers: Further headers, name and value.
    """

    method: str
    url: httpx.URL
    timeout_s: float
    body: bytes | None = None
    bearer: str | None = field(default=None, repr=False)
    json_bytes: int | None = None
    urgency: Urgency | None = None
    accept: str | None = None
    more_headers: tuple[tuple[str, str], ...] = ()

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Make the httpx request; no single network operation in it may outlast `timeout_s`."""
        headers = {} if self.urgency is None else self.urgency.headers(self.timeout_s)
        headers.update(self.more_headers)
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
    """Replace the credential, unless another request has done so meanwhile.

    Attributes:
        stale: The credential to replace; None if there is none yet.
        timeout_s: Seconds left for it.
    """

    stale: str | None = field(repr=False)
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Read:
    """Read more of the reply to the last `Send`: some bytes, or none at its end.

    Attributes:
        timeout_s: Seconds until some content must arrive.
    """

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the answer, for the caller."""

    value: Json


Step: TypeAlias = Send | Pause | Renew | Read | Piece
Outcome: TypeAlias = Reply | bytes | None
"""The result of a step: a reply for `Send`, bytes for `Read`, nothing for others."""
Result = TypeVar("Result")
Flow: TypeAlias = Generator[Step, Outcome, Result]


def resumed(flow: Flow[Result], outcome: Outcome | Exception) -> Step:
    """Resume a flow with the result of its last step, or the exception that prevented it; return the next step."""
    return flow.throw(outcome) if isinstance(outcome, Exception) else flow.send(outcome)
