"""The running servers that the HTTP tests share; each is started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.live_server import LiveServer, wait_until
from tests.tiny_models import (
    BATCHED_SCRIPT,
    BODY_SCRIPT,
    Gate,
    write_doubler,
    write_mlp,
    write_picky,
    write_script,
)

_DEPLOYMENT = """
frontends: 1
timeout_ms: 120000
max_batch_rows: 64
models:
  - path: models/doubler.onnx
  - path: models/doubler.onnx
    name: counted
  - path: models/picky.onnx
    name: fussy
    max_batch_rows: 16
  - path: models/repository
  - path: models/body/score.py
  - path: models/batched/score.py
    name: batched
    max_delay_ms: 1
"""


@dataclass(frozen=True)
class Served:
    """A running server with its scoring paths and the gates of its scripts."""

    server: LiveServer
    gates: dict[str, Gate]

    def path(self, service: str) -> str:
        """Scoring path of a service."""
        return f"/api/v1/service/{service}/score"


@pytest.fixture(scope="session")
def main_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server from a deployment file: ONNX files, a repository in Triton's layout, and both kinds of scripts."""
    scratch = tmp_path_factory.mktemp("main")
    models = scratch / "deployment" / "models"
    write_doubler(models / "doubler.onnx")
    write_picky(models / "picky.onnx")
    for folder in ("mlp/1", "mlp/2"):
        write_mlp(models / "repository" / folder / "model.onnx", seed=int(folder[-1]))
    write_doubler(models / "repository" / "twice" / "10" / "model.onnx")
    (models / "repository" / "twice" / "config.pbtxt").write_text('name: "twice"\nmax_batch_size: 8\n')
    write_script(models / "body", BODY_SCRIPT)
    write_script(models / "batched", BATCHED_SCRIPT)
    deployment = models.parent / "deployment.yaml"
    deployment.write_text(_DEPLOYMENT)
    with LiveServer(scratch, "--config", deployment) as server:
        yield Served(server, {name: Gate(models / name) for name in ("body", "batched")})


@pytest.fixture
def served(main_server: Served) -> Iterator[Served]:
    """The main server with closed gates; afterwards nothing of the test may be left in it."""
    for gate in main_server.gates.values():
        gate.reset()
    yield main_server
    for gate in main_server.gates.values():
        gate.open()
    wait_until(
        lambda: not any(rows_in_flight(main_server.server).values()), "the rows of the test are free again"
    )


@pytest.fixture
def port(served: Served) -> int:
    """Port of the main server."""
    return served.server.port


@pytest.fixture(scope="session")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server of a single entry script with narrow limits, keys in its workspace, and metrics behind them."""
    scratch = tmp_path_factory.mktemp("narrow")
    script = write_script(scratch / "batched", BATCHED_SCRIPT)
    limits = ["--frontends", "1", "--timeout-ms", "2000", "--max-body-mb", "0.25", "--metrics-auth"]
    limits.append("--trust-proxy-headers")
    with LiveServer(scratch, script, *limits, given_keys=False) as server:
        yield Served(server, {"batched": Gate(script.parent)})


def rows_in_flight(server: LiveServer) -> dict[str, float]:
    """Leased rows by service."""
    rows = {}
    for line in server.get("/metrics").body.decode().splitlines():
        if line.startswith("stoker_rows_in_flight{"):
            labels, value = line.removeprefix('stoker_rows_in_flight{model="').split('"} ')
            rows[labels.partition('"')[0]] = float(value)
    assert rows, "the gauge is there"
    return rows
