"""A scripted server behind httpx's mock transport, and time that passes only when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import anyio
import httpx

from stoker_client import AsyncClient, Client

URI = "http://127.0.0.1:8080/score"

Kind: TypeAlias = Literal["sync", "async"]
Event: TypeAlias = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


def ok(answer: object = None) -> httpx.Response:
    return httpx.Response(200, json=[7] if answer is None else answer)


def error(status: int, code: str, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"message": f"it is {code}", "code": code}, headers=names)


def is_description(request: httpx.Request) -> bool:
    """Whether a request is for the description of a model, or for the names of all."""
    return request.method == "GET" and "/v2/models" in request.url.path


@dataclass
class Timeline:
    """A clock and a sleep; `pauses_s` are the sleeps so far."""

    now_s: float = 1000.0
    pauses_s: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.pauses_s.append(duration_s)
        self.now_s += duration_s

    async def sleep_async(self, duration_s: float) -> None:
        self.sleep(duration_s)


class Caller:
    """Calls a fresh `Client` or `AsyncClient` that meets the scripted events, one a request.

    Args:
        describes: Whether the script has the server's descriptions of its models; else each request for one gets 404,
            and is not among `requests`.
    """

    def __init__(
        self,
        kind: Kind,
        script: Iterable[Event],
        uri: str | list[str] = URI,
        *,
        describes: bool = False,
        **options: Any,
    ) -> None:
        self.describes = describes
        self.kind = kind
        self.script = iter(script)
        self.uri = uri
        self.timeline = Timeline()
        self.requests: list[httpx.Request] = []
        self.options = {"jitter": lambda: 0.5, "clock": self.timeline.clock, **options}

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        transport = httpx.MockTransport(self.answer)
        if self.kind == "sync":
            options = {"sleep": self.timeline.sleep, "transport": transport, **self.options}
            with Client(self.uri, **options) as client:
                return getattr(client, method)(*arguments, **keywords)
        options = {"sleep": self.timeline.sleep_async, "transport": transport, **self.options}

        async def call_async() -> Any:
            async with AsyncClient(self.uri, **options) as client:
                return await getattr(client, method)(*arguments, **keywords)

        return anyio.run(call_async)

    @property
    def pauses_s(self) -> list[float]:
        return self.timeline.pauses_s

    def answer(self, request: httpx.Request) -> httpx.Response:
        if is_description(request) and not self.describes:
            return error(404, "not_found")
        self.requests.append(request)
        event = next(self.script)
        if isinstance(event, Exception):
            raise event
        if isinstance(event, httpx.Response):  # which may stand in the script more than once, so it is copied
            return httpx.Response(event.status_code, headers=event.headers, content=event.content)
        return event(request)
