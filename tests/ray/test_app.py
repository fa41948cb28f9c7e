"""`stoker_cluster.ray.app`: a whole server as an ASGI application."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.live_server import PRIMARY
from tests.tiny_models import write_doubler

from stoker_cluster.ray import app


@pytest.mark.anyio
async def test_requests_are_handed_on_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Path, query, heads, bodies and statuses go both ways below a prefix; the server ends with the lifespan."""
    monkeypatch.setenv("STOKER_PRIMARY_KEY", PRIMARY)
    made = pickle.loads(
        pickle.dumps(app(write_doubler(tmp_path / "doubler.onnx"), "--frontends=1", "--device=cpu"))
    )
    sent: list[dict[str, Any]] = []
    to_app, from_test = anyio.create_memory_object_stream[dict[str, Any]](2)

    async def keep(message: Any) -> None:
        sent.append(message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made, {"type": "lifespan"}, from_test.receive, keep)
        await to_app.send({"type": "lifespan.startup"})
        transport = httpx.ASGITransport(made, root_path="/models")
        async with httpx.AsyncClient(transport=transport, base_url="http://serve/models") as client:
            head = {"Authorization": f"Bearer {PRIMARY}", "x-ms-request-id": "from-the-test"}
            answer = await client.post("/score?a=1", json={"data": [[1, 2, 3, 4]]}, headers=head)
            assert (answer.status_code, answer.json()) == (200, [[2, 4, 6, 8]])
            assert answer.headers["x-ms-request-id"] == "from-the-test"
            assert (await client.post("/score", json={"data": [[1, 2, 3, 4]]})).status_code == 401
            assert (await client.get("/v2/health/ready")).status_code == 200
        assert made.server is not None
        process = made.server.process
        await to_app.send({"type": "lifespan.shutdown"})
    assert process.poll() == 0
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    to_app.close()
    from_test.close()
