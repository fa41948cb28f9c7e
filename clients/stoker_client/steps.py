"""The steps of a flow: what a call without I/O asks of whoever drives it.

A flow is a generator. It yields `Send` and is sent the `Reply` (or has the httpx exception, or TimeoutError,
thrown into it), yields `Pause` and is resumed after that time, yields `Renew` and is resumed with another credential
(or has the exception of whoever gives those thrown into it), and returns its result. `Client` and `AsyncClient` drive
the same flows; they only differ in how they wait.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import httpx

from stoker_client.answers import Reply
from stoker_client.tensors import JSON_LENGTH

__all__ = ["Flow", "Pause", "Renew", "Result", "Send", "Step"]

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
    """

    method: str
    url: httpx.URL
    timeout_s: float
    body: bytes | None = None
    bearer: str | None = field(default=None, repr=False)
    json_bytes: int | None = None

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Make the httpx request; no single network operation in it may outlast `timeout_s`."""
        headers = {}
        if self.json_bytes is not None:
            headers["Content-Type"] = "application/octet-stream"
            headers[JSON_LENGTH] = str(self.json_bytes)
        elif self.body is not None:
            headers["Content-Type"] = "application/json"
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


Step: TypeAlias = Send | Pause | Renew
Result = TypeVar("Result")
Flow: TypeAlias = Generator[Step, Reply | None, Result]
