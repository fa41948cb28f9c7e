"""deploy/compose on a single machine: podman-compose starts it, with the image of these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.http.raw_http import Connection, request, rows_body, scoring
from tests.image.conftest import opened
from tests.image.podman import ROOT, Podman
from tests.live_server import free_port, wait_until
from tests.patience import PROGRAM_S

FOLDER = ROOT / "deploy/compose"
# A distribution of its own, in an environment that uv keeps.
COMPOSE = (
    "tool",
    "run",
    "--quiet",
    "podman-compose@1.6.0",
    "--project-name",
    "stoker-test",
    "--in-pod",
    "false",
)
Compose = Callable[..., str]


@pytest.fixture
def settings(cpu_image: str, models: Path) -> dict[str, str]:
    """The environment variables that the files read."""
    (models / "deployment.yaml").write_text("models:\n  - {path: doubler.onnx, device: cpu}\n")
    return {
        "IMAGE": cpu_image,
        "MODELS": str(opened(models)),
        "LISTEN": f"127.0.0.1:{free_port()}",
    }


@pytest.fixture
def compose(podman: Podman, settings: Mapping[str, str]) -> Iterator[Compose]:
    """Calls podman-compose with those settings, and ends its containers."""

    def call(*arguments: str, files: tuple[str, ...] = ("compose.yaml",)) -> str:
        named = [f"--file={FOLDER / file}" for file in files]
        done = subprocess.run(
            [str(Path(sys.executable).parent / "uv"), *COMPOSE, *named, *arguments],
            env=podman.environ | settings | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=2 * PROGRAM_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield call
    call("down", "--volumes", "--timeout", "0")


def test_it_serves_with_keys_of_its_volume(
    compose: Compose, podman: Podman, settings: Mapping[str, str]
) -> None:
    """It scores with the key that it has made, ends with 0, and has the same key when it is started anew."""
    port = int(settings["LISTEN"].rpartition(":")[2])
    compose("up", "--detach")
    name = podman.ask("ps", "--filter=label=io.podman.compose.project=stoker-test", "--format={{.Names}}")
    _ready(port)
    key = _key(podman, name)

    assert _score(port, key) == [[2, 4, 6, 8]]
    host = json.loads(podman.ask("inspect", "--format={{json .HostConfig}}", name))
    assert host["ReadonlyRootfs"]
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    compose("stop")
    assert podman.ask("inspect", "--format={{.State.ExitCode}}", name) == "0"
    compose("start")
    _ready(port)
    assert _key(podman, name) == key
    assert _score(port, key) == [[2, 4, 6, 8]]


def test_second_file_requests_gpus(compose: Compose) -> None:
    """Both files together are one service with all GPUs of the machine."""
    config = compose("config", files=("compose.yaml", "compose.gpu.yaml"))
    assert "nvidia" in config
    assert "nvidia" not in compose("config")


def _ready(port: int) -> None:
    def ready() -> bool:
        try:
            with Connection(port) as connection:
                return connection.ask(request("GET", "/v2/health/ready")).status == 200
        except (OSError, AssertionError):
            return False

    wait_until(ready, "the service can score", timeout_s=PROGRAM_S, every_s=0.1)


def _key(podman: Podman, name: str) -> str:
    lines = podman.ask("exec", name, "stoker", "keys", "show").splitlines()
    return next(line.split()[1] for line in lines if line.startswith("primary"))


def _score(port: int, key: str) -> object:
    with Connection(port) as connection:
        return connection.ask(scoring("/score", key, rows_body([1, 2, 3, 4]))).json()
