"""Work beside the event loop, and who leaves his there."""

import asyncio
import threading
from typing import Any

import pytest
from tests.puppets import metric_memory

from stoker.gateway.gateway import Gateway
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.listeners import app
from stoker.gateway.model_directory import ModelDirectory


def test_work_is_done_on_another_thread() -> None:
    """Its result or its error comes back to the loop."""
    assert asyncio.run(run_in_thread(threading.current_thread)) is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_in_thread(divmod, 1, 0))


def test_metrics_are_written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of dozens of models take a tenth of a second, in which the frontend serves others."""
    monkeypatch.setattr(app, "render", lambda *_: threading.current_thread().name.encode())
    made = app.create_app(Gateway(ModelDirectory({}), metric_memory()))
    sent: list[Any] = []
    scope = {
        "type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "headers": [(b"host", b"x")],
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(made(scope, receive, send))

    assert sent[0]["status"] == 200
    assert sent[1]["body"].startswith(b"side-work")
