"""A server as an ASGI application for a user's Ray Serve graph: starts the server and forwards requests to it."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx

from stoker_cluster.ray.server_process import ServerProcess

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_LOOPBACK: Final = "127.0.0.1"
_READY_WITHIN_S: Final = 600.0
# Hop-by-hop headers (RFC 9110, section 7.6.1), and headers that the HTTP client sets itself.
_OF_A_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host"}
)


def app(model: str | Path, *options: str) -> ServerApp:
    """Make the application of a model, for `ray.serve.ingress`.

    Args:
        *options: Further arguments of `stoker serve`, such as `--no-auth`.
    """
    return ServerApp((str(Path(model).absolute()), *options))


class ServerApp:
    """The application; its server is started at lifespan startup or the first request, and drained at shutdown."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        """Configure the server.

        Args:
            arguments: Arguments of `stoker serve`, without host, port and workspace.
        """
        self._arguments = arguments
        self.server: ServerProcess | None = None
        self._client: httpx.AsyncClient | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._starting: anyio.Lock | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerApp, (self._arguments,)

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Handle one ASGI scope."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._hand_on(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _live(self, receive: _Receive, send: _Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._running()
                except Exception as error:  # noqa: BLE001  # told to whoever starts it
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def aclose(self) -> None:
        """Drain the server."""
        server, client, scratch = self.server, self._client, self._scratch
        self.server = self._client = self._scratch = None
        if server is not None:
            await anyio.to_thread.run_sync(server.drain)
        if client is not None:
            await client.aclose()
        if scratch is not None:
            scratch.cleanup()

    async def _running(self) -> httpx.AsyncClient:
        """A client of the server, which is started if it does not run."""
        self._starting = self._starting or anyio.Lock()
        async with self._starting:
            if self._client is None or self.server is None or self.server.process.poll() is not None:
                await self.aclose()
                self._scratch = tempfile.TemporaryDirectory(prefix="stoker-app-")
                folder = Path(self._scratch.name)
                arguments = (*self._arguments, "--workspace", str(folder / "workspace"))
                # Not on another thread: the server ends with the thread that started it.
                self.server = ServerProcess(arguments, _LOOPBACK, _free_port(), folder, {})
                try:
                    await anyio.to_thread.run_sync(self.server.wait_until_ready, _READY_WITHIN_S)
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await self.aclose()
                    raise
                self._client = httpx.AsyncClient(
                    base_url=self.server.base_uri, timeout=httpx.Timeout(None), trust_env=False
                )
            return self._client

    async def _hand_on(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        client = await self._running()
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        path = path.removeprefix(scope.get("root_path", "").encode()) or b"/"
        query: bytes = scope["query_string"]
        url = httpx.URL(client.base_url, raw_path=path + (b"?" + query if query else b""))
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _OF_A_CONNECTION]
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])
        content = _body(receive) if has_body else None
        request = client.build_request(scope["method"], url, headers=headers, content=content)
        answer = await client.send(request, stream=True)
        try:
            lines = [(name.lower(), value) for name, value in answer.headers.raw]
            kept = [line for line in lines if line[0] not in _OF_A_CONNECTION]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()


async def _body(receive: _Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((_LOOPBACK, 0))
        return int(taken.getsockname()[1])
