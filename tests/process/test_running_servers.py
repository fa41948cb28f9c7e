"""`stoker status` and `stop`, with real servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.live_server import run_stoker, wait_until
from tests.process.conftest import Serve

pytestmark = pytest.mark.long


def test_a_server_is_shown_and_stopped(serve: Serve, doubler: Path) -> None:
    """Its successor after a reload too: it has the same address, and the process that was started ends with it."""
    server = serve(doubler, "--frontends", "1", "--drain-grace-s", "0.2")
    here = ("--workspace", server.workspace)
    assert server.score([1, 2, 3, 4]).status == 200

    def shown() -> list[dict[str, object]]:
        done = run_stoker("status", *here, "--json")
        return list(json.loads(done.stdout)) if done.returncode == 0 else []

    (first,) = shown()
    assert (first["uri"], first["pid"]) == (f"http://127.0.0.1:{server.port}", server.process.pid)
    assert first["models"] == [{"name": "doubler", "version": "1", "state": "READY"}]
    rows = server.workspace.parent / "rows.json"
    rows.write_text("[[1, 2, 3, 4]]")
    scored = run_stoker(
        "score", "--data", str(rows), *here, env={"STOKER_PORT": "", "STOKER_KEY": server.key}
    )
    assert scored.stdout == "[2.0, 4.0, 6.0, 8.0]\n", scored.stderr

    assert run_stoker("reload", "--uri", str(first["uri"]), *here).returncode == 0
    (second,) = wait_until(lambda: found if len(found := shown()) == 1 else [], "the old server is gone")
    assert second["pid"] != first["pid"]
    stopped = run_stoker("stop", str(server.port), *here)
    assert stopped.stdout == f"{first['uri']} (process {second['pid']}) has stopped\n", stopped.stderr
    assert server.wait() == 0
    assert run_stoker("status", *here).returncode == 2
    assert run_stoker("stop", "--all", *here).returncode == 2
