"""The ASGI application: requests that go on to its server, and their answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.unit.stoker_client.puppet_server import PuppetServer, Request, answer

from stoker.errors import LoadFailed
from stoker_cluster.ray.app import ServerApp, app

module: Any = sys.modules["stoker_cluster.ray.app"]


class Stand:
    """Stands for the process of a server."""

    base_uri = ""
    fails = False
    drained = 0
    arguments: Any = None

    def __init__(self, arguments: Any, *_: object) -> None:
        type(self).arguments = arguments
        self.process = self

    def wait_until_ready(self, _: float) -> None:
        if self.fails:
            raise LoadFailed("no model")

    def poll(self) -> None:
        return None

    def drain(self) -> None:
        type(self).drained += 1


@pytest.fixture
def requests_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Request]]:
    """The requests that reach the server behind the application."""
    requests: list[Request] = []

    def behaviour(request: Request) -> bytes:
        requests.append(request)
        return answer([1], 201, x_said="so")

    monkeypatch.setattr(module, "ServerProcess", Stand)
    monkeypatch.setattr(Stand, "drained", 0)
    with PuppetServer(behaviour) as server:
        monkeypatch.setattr(Stand, "base_uri", server.origin)
        yield requests


@pytest.mark.anyio
async def test_a_request_is_handed_on(requests_behind: list[Request]) -> None:
    """Method, path below the prefix, query, heads and body; the answer comes back with its status and heads."""
    made = app("/m.onnx", "--no-auth")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(made, root_path="/m"), base_url="http://s/m"
    ) as client:
        given = await client.put("/score?a=%20b", content=b"body", headers={"x-own": "1", "te": "trailers"})
        assert (given.status_code, given.json(), given.headers["x-said"]) == (201, [1], "so")
        assert (await client.get("/")).status_code == 201
    (first, second) = requests_behind
    assert (first.method, first.path, first.body) == ("PUT", "/score?a=%20b", b"body")
    assert (first.headers["x-own"], "te" in first.headers) == ("1", False)
    assert (second.method, second.path) == ("GET", "/")
    assert Stand.arguments[:2] == ("/m.onnx", "--no-auth")
    await made.aclose()
    assert Stand.drained == 1


@pytest.mark.anyio
@pytest.mark.usefixtures("requests_behind")
async def test_the_lifespan_starts_and_drains_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not start fails the startup, with its reason; web sockets are refused."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def live(made: ServerApp, *types: str) -> None:
        messages = iter(types)

        async def receive() -> dict[str, Any]:
            return {"type": next(messages)}

        await made({"type": "lifespan"}, receive, send)
        await made({"type": "websocket"}, receive, send)

    await live(ServerApp(()), "lifespan.startup", "lifespan.shutdown")
    monkeypatch.setattr(Stand, "fails", True)
    await live(ServerApp(()), "lifespan.startup")
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
        "websocket.close",
        "lifespan.startup.failed",
        "websocket.close",
    ]
    assert sent[3]["message"] == "no model"
