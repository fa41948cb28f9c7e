"""The app of a frontend without a server: its answers to the events of an ASGI server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message
from tests.puppets import metric_memory

from stoker.gateway.administration import AdminAccess, Administration
from stoker.gateway.gateway import Gateway
from stoker.gateway.listeners.app import create_app
from stoker.gateway.model_directory import ModelDirectory


async def ask(
    path: str,
    method: str = "GET",
    *received: Message,
    headers: Sequence[tuple[bytes, bytes]] = (),
    version: str = "1.1",
) -> list[Message]:
    """Return the messages that the app of a server without models sends for these received ones."""
    gateway = Gateway(
        ModelDirectory({}), metric_memory(), administration=Administration(lambda _: None, AdminAccess())
    )
    app = create_app(gateway)
    left, sent = list(received), []

    async def receive() -> Message:
        return left.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope_of(path, method, headers, version), receive, send)
    return sent


def scope_of(
    path: str, method: str, headers: Sequence[tuple[bytes, bytes]] = (), version: str = "1.1"
) -> dict[str, Any]:
    """The scope of a request."""
    return {
        "type": "http", "method": method, "path": path, "query_string": b"", "http_version": version,
        "headers": [(b"host", b"here"), *headers], "scheme": "http", "server": ("here", 80), "root_path": "",
    }  # fmt: skip


@pytest.mark.anyio
async def test_a_disconnect_in_the_body_of_an_admin_request_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is no fault of the server: nothing is raised, and the log has no traceback."""
    caplog.set_level(logging.INFO)
    part = {"type": "http.request", "body": b"{", "more_body": True}
    await ask("/v2/repository/models/m/load", "POST", part, {"type": "http.disconnect"})
    assert [(record.message, record.exc_info) for record in caplog.records] == [
        ("a caller disconnected during the body of POST /v2/repository/models/m/load", None)
    ]


@pytest.mark.anyio
async def test_a_request_that_is_cancelled_at_the_end_of_the_process_gets_503() -> None:
    """Nothing is raised, and an answer that has begun gets no second head."""
    app = create_app(
        Gateway(
            ModelDirectory({}), metric_memory(), administration=Administration(lambda _: None, AdminAccess())
        )
    )
    for begun in (False, True):
        sent: list[Message] = []
        waits = asyncio.Event()

        async def receive(waits: asyncio.Event = waits) -> Message:
            waits.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message, sent: list[Message] = sent, begun: bool = begun) -> None:
            if begun:
                raise RuntimeError(
                    "Expected ASGI message 'http.response.body', but got 'http.response.start'."
                )
            sent.append(message)

        answering = asyncio.ensure_future(
            app(scope_of("/v2/repository/models/m/load", "POST"), receive, send)
        )
        await waits.wait()
        answering.cancel()
        await answering
        answers = [(503, b'{"message": "The server is shutting down.", "code": "not_ready"}')]
        assert [(head["status"], body["body"]) for head, body in zip(sent[::2], sent[1::2], strict=True)] == (
            [] if begun else answers
        )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("//", 200),
        ("///swagger.json", 404),
        ("/v2/health/live", 200),
        ("//v2/health/live", 404),
        ("///v1/models/m", 404),
        ("//metrics", 404),
    ],
)
async def test_slashes_pass_no_rule_for_a_path(path: str, status: int) -> None:
    """Azure's paths may begin with several; `//v2/…` is not served where a proxy blocks `/v2/…`."""
    (start, body) = await ask(path, "GET", {"type": "http.request"})
    assert start["status"] == status
    unknown_service = b"No service is here" in body["body"]
    assert unknown_service is (path == "///swagger.json"), "it has found the route"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("codings", "version", "status"),
    [
        (["chunked"], "1.1", 404),
        ([" Chunked "], "1.1", 404),
        (["gzip, chunked"], "1.1", 501),
        (["gzip", "chunked"], "1.1", 501),
        (["chunked"], "1.0", 400),
        (["gzip, chunked"], "1.0", 400),
    ],
)
async def test_only_chunks_are_a_known_transfer_coding(codings: list[str], version: str, status: int) -> None:
    """A coding that would have to be undone first is not ignored, and HTTP/1.0 has none; the connection ends."""
    headers = [(b"transfer-encoding", coding.encode()) for coding in codings]
    start, _ = await ask("/nowhere", "POST", {"type": "http.request"}, headers=headers, version=version)
    assert start["status"] == status
    assert ((b"connection", b"close") in start["headers"]) is True
