"""The app of a frontend without a server: what it makes of what an ASGI server tells it."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
from starlette.types import Message

from stoker.gateway.administration import AdminAccess, Administration
from stoker.gateway.app import create_app
from stoker.gateway.gateway import Gateway
from stoker.metrics import MetricMemory


async def ask(path: str, method: str, *received: Message) -> list[Message]:
    """What the app of a server without models sends to a request of which this is received."""
    fd = MetricMemory.create()
    gateway = Gateway({}, MetricMemory(fd), administration=Administration(lambda _: None, AdminAccess()))
    app = create_app(gateway)
    os.close(fd)
    left, sent = list(received), []
    scope: dict[str, Any] = {
        "type": "http", "method": method, "path": path, "query_string": b"", "http_version": "1.1",
        "headers": [(b"host", b"here")], "scheme": "http", "server": ("here", 80), "root_path": "",
    }  # fmt: skip

    async def receive() -> Message:
        return left.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


@pytest.mark.anyio
async def test_a_caller_who_goes_away_in_the_body_of_an_admin_request_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is no fault of the server: nothing is raised, and the log has no traceback."""
    caplog.set_level(logging.INFO)
    part = {"type": "http.request", "body": b"{", "more_body": True}
    await ask("/v2/repository/models/m/load", "POST", part, {"type": "http.disconnect"})
    assert [(record.message, record.exc_info) for record in caplog.records] == [
        ("a caller went away in the body of POST /v2/repository/models/m/load", None)
    ]
