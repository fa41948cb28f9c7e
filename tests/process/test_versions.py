"""Versions of a running server: loaded, switched and unloaded under load, by its API and by what lies on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.http.raw_http import Answer, bearer, request
from tests.live_server import LiveServer, run_stoker, wait_until
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve
from tests.tiny_models import write_doubler, write_mlp

PATH = "/api/v1/service/doubler/score"


def _post(server: LiveServer, path: str, body: bytes = b"", key: str | None = None) -> Answer:
    """POST with a key."""
    with server.connect() as connection:
        return connection.ask(request("POST", path, [] if key is None else [bearer(key)], body))


def _states(server: LiveServer, name: str = "doubler") -> dict[str, str]:
    """The states of a model's versions."""
    entries = _post(server, "/v2/repository/index").json()
    return {
        entry["version"]: entry["state"] for entry in entries if entry["name"] == name and "state" in entry
    }


def _default(server: LiveServer) -> str:
    """Which version answers a request that names none."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    answer = _post(server, "/v2/models/doubler/infer", json.dumps({"inputs": [tensor]}).encode(), server.key)
    return str(answer.json()["model_version"])


def test_versions_come_and_go_under_load(serve: Serve, tmp_path: Path) -> None:
    """No request fails while a version takes over from another, nor while one does not load; others go on."""
    repository = tmp_path / "repository"
    write_doubler(repository / "doubler" / "1" / "model.onnx")
    write_mlp(repository / "mlp" / "1" / "model.onnx", seed=1)
    server = serve(repository, "--frontends", "1")
    admin = run_stoker("keys", "show", "admin", "--workspace", server.workspace).stdout.strip()

    def ask(action: str, name: str = "doubler") -> Answer:
        return _post(server, f"/v2/repository/models/{name}/{action}", b"", admin)

    with Callers(server.port, scored(server.key, PATH), kept_alive=6, fresh=2) as callers:
        wait_until(lambda: callers.answered(100), "the load runs")
        write_doubler(repository / "doubler" / "2" / "model.onnx")
        assert ask("load").status == 200
        assert _states(server) == {"1": "UNAVAILABLE", "2": "READY"}
        (repository / "doubler" / "3").mkdir()
        (repository / "doubler" / "3" / "model.onnx").write_bytes(b"no model")
        failed = ask("load")
        assert (failed.status, _states(server)["2"]) == (500, "READY")
        assert "failed to load 'doubler', version 3" in failed.json()["error"]
        assert ask("unload", "mlp").status == 200
        assert ask("versions/1/load").status == 200
        assert _states(server) == {"1": "READY", "2": "READY", "3": "UNAVAILABLE"}
        outcomes = callers.stop()

    assert [outcome for outcome in outcomes if not outcome.right] == []
    assert server.metric("stoker_rows_total", model="doubler", version="1") >= 100
    wait_until(
        lambda: (
            sum(server.metric("stoker_rows_total", model="doubler", version=version) for version in "12")
            == len(outcomes)
        ),
        "all are counted, each for its version",
    )
    assert len(server.device_pids()) == 2, (
        "the process that both models began in is gone, each version has its own"
    )
    for pid in server.device_pids():
        nices = {os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir(f"/proc/{pid}/task")}  # noqa: PTH208  # numbers, not paths
        assert nices == {os.getpriority(os.PRIO_PROCESS, 0)}, "what has loaded yields to nobody"
    assert server.score([1, 2, 3, 4], path="/api/v1/service/mlp/score").status == 404
    for arguments in (("models", "unload", "doubler:2"), ("models", "load", "mlp")):
        url = f"http://127.0.0.1:{server.port}"
        done = run_stoker(*arguments, "--url", url, "--workspace", server.workspace)
        assert done.returncode == 0, done.stderr
    assert (_default(server), _states(server, "mlp")) == ("1", {"1": "READY"})


def test_registered_versions_and_labels_are_followed(serve: Serve, tmp_path: Path, doubler: Path) -> None:
    """A server that polls serves what is registered while it runs; a label moves the default without a restart."""
    workspace = tmp_path / "workspace"

    def stoker(*arguments: str | Path) -> None:
        done = run_stoker(*arguments, "--workspace", workspace)
        assert done.returncode == 0, done.stderr

    stoker("models", "register", "doubler", doubler)
    server = serve("--model", "doubler", "--frontends", "1", "--poll-s", "0.2", workspace=workspace)
    with Callers(server.port, scored(server.key), kept_alive=2) as callers:
        stoker("models", "register", "doubler", doubler)
        wait_until(lambda: _states(server) == {"1": "UNAVAILABLE", "2": "READY"}, "the new version is served")
        assert _default(server) == "2"
        stoker("models", "label", "doubler", "default=1", "canary=2")
        wait_until(lambda: _default(server) == "1", "the label is followed")
        labels = server.get("/v1/models/doubler/labels/canary").json()["model_version_status"]
        assert [status["version"] for status in labels] == ["2"]
        outcomes = callers.stop()
    assert [outcome for outcome in outcomes if not outcome.right] == []
    admin = run_stoker("keys", "show", "admin", "--workspace", workspace).stdout.strip()
    refused = _post(server, "/v2/repository/models/doubler/unload", b"", admin)
    assert (refused.status, "polling is enabled" in refused.json()["error"]) == (503, True)
