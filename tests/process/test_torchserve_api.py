"""TorchServe's API of a running server, asked by curl: models are scored, scaled, chosen and removed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.live_server import PRIMARY, LiveServer, free_port, run_stoker, wait_until
from tests.patience import PROGRAM_S
from tests.tiny_models import write_doubler

ADMIN = "the-admin-key-of-the-torchserve-tests"
CURL = shutil.which("curl")

pytestmark = [pytest.mark.long, pytest.mark.skipif(CURL is None, reason="there is no curl")]


class Managed(NamedTuple):
    """A server and its management port."""

    server: LiveServer
    port: int

    def manage(self, method: str, path: str, key: str = ADMIN) -> tuple[int, Any]:
        """Ask the management API."""
        return curl(f"http://127.0.0.1:{self.port}{path}", key, "-X", method)

    def predict(self, path: str, *options: str | Path, key: str = PRIMARY) -> tuple[int, Any]:
        """Ask for predictions."""
        return curl(f"http://127.0.0.1:{self.server.port}/predictions/{path}", key, *options)


def curl(url: str, key: str, *options: str | Path) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    keys = ["-H", f"Authorization: Bearer {key}"] if key else []
    command = [str(CURL), "-s", "-w", "\n%{http_code}", *keys, *map(str, options), url]
    output = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=True).stdout
    body, _, status = output.rpartition("\n")
    return int(status), json.loads(body)


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    """A store with a model in two versions, and one as a file."""
    scratch = tmp_path_factory.mktemp("torchserve")
    for version in ("1", "2"):
        write_doubler(scratch / "store" / "twice" / version / "model.onnx")
    write_doubler(scratch / "store" / "single" / "1" / "model.onnx")
    port = free_port()
    options = ["--management-port", str(port), "--frontends", "2", "--versions", "all"]
    with LiveServer(scratch, scratch / "store", *options, env={"STOKER_ADMIN_KEY": ADMIN}) as server:
        yield Managed(server, port)


def test_predictions(managed: Managed, tmp_path: Path) -> None:
    """A file put, a file in a form, JSON; a wrong model, a wrong version, no key, a body that is too long."""
    rows = tmp_path / "rows.json"
    rows.write_text("[[1, 2, 3, 4]]")
    doubled = (200, [[2.0, 4.0, 6.0, 8.0]])
    assert managed.predict("twice", "-T", rows) == doubled
    assert managed.predict("twice/1", "-F", f"data=@{rows}") == doubled
    assert managed.predict("twice/2.0", "-d", rows.read_text()) == doubled
    for path, key, kind in (
        ("nobody", PRIMARY, "ModelNotFoundException"),
        ("twice/3", PRIMARY, "ModelVersionNotFoundException"),
        ("twice", "", "InvalidKeyException"),
    ):
        status, error = managed.predict(path, "-T", rows, key=key)
        assert (status, error["type"]) == (error["code"], kind)
    rows.write_bytes(b" " * (101 << 20))
    status, error = managed.predict("twice", "-T", rows)
    assert (status, error["code"], error["type"]) == (413, 413, "BadRequestException")


def test_models_are_managed(managed: Managed) -> None:
    """Scaled, described, one version chosen and another one removed, unregistered and registered again."""
    server = managed.server
    status, listed = managed.manage("GET", "/models")
    assert (status, [model["modelName"] for model in listed["models"]]) == (200, ["single", "twice"])
    assert managed.manage("PUT", "/models/single?min_worker=2", key="")[0] == 401
    assert managed.manage("PUT", "/models/single?min_worker=2&synchronous=true")[0] == 200
    wait_until(lambda: server.metric("stoker_ready_replicas", model="single") == 2, "there are two replicas")

    def workers() -> list[str]:
        _, (described,) = managed.manage("GET", "/models/single")
        return [worker["status"] for worker in described["workers"]]

    # Either frontend may answer, and each hears of them in its own time.
    wait_until(lambda: workers() == ["READY", "READY"], "they are described")
    assert managed.manage("PUT", "/models/twice/1/set-default")[0] == 200
    wait_until(
        lambda: managed.manage("GET", "/models/twice")[1][0]["modelVersion"] == "1", "1 is the default"
    )
    status, error = managed.manage("DELETE", "/models/twice/1")
    assert (status, error["message"][:29]) == (400, "failed to unload 'twice' vers")
    assert managed.manage("DELETE", "/models/twice/2") == (200, {"status": 'Model "twice" unregistered'})
    wait_until(lambda: len(managed.manage("GET", "/models/twice/all")[1]) == 1, "one version is left")
    assert managed.manage("DELETE", "/models/single")[0] == 200
    wait_until(lambda: managed.predict("single", "-d", "[[1, 2, 3, 4]]")[0] == 404, "it is gone")
    status, answer = managed.manage("POST", "/models?url=single&initial_workers=1&batch_size=8")
    assert (status, answer["status"]) == (200, 'Model "single" Version: 1 registered with 1 initial workers')
    assert managed.predict("single", "-d", "[[1, 2, 3, 4]]")[0] == 200
    assert managed.manage("POST", "/models?url=missing.mar")[0] == 404
    assert curl(f"http://127.0.0.1:{server.port}/models", ADMIN)[0] == 404, "the other port has it not"


def test_a_successor_takes_the_port_over(managed: Managed) -> None:
    """After a reload both ports are served by the new server."""
    before = managed.server.frontend_pids()
    uri = f"http://127.0.0.1:{managed.server.port}"
    reloaded = run_stoker("reload", "--uri", uri, env={"STOKER_ADMIN_KEY": ADMIN})
    assert reloaded.returncode == 0, reloaded.stderr
    wait_until(lambda: not set(before) & set(managed.server.frontend_pids()), "the old frontends have ended")
    assert managed.manage("GET", "/models")[0] == 200
    assert managed.predict("twice", "-d", "[[1, 2, 3, 4]]")[0] == 200
