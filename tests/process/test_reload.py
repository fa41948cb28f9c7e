"""`stoker reload` and SIGUSR2: a new server takes the place of the old one, and no request is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.live_server import PRIMARY, LiveServer, run_stoker, wait_until
from tests.patience import PROGRAM_S
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve
from tests.tiny_models import write_doubler

from stoker.models.labels import change_labels

pytestmark = pytest.mark.long


def _configured(folder: Path, model: Path, **settings: object) -> Path:
    """A deployment file with one model."""
    file = folder / "deployment.yaml"
    lines = [f"{name}: {value}" for name, value in settings.items()]
    file.write_text("\n".join([*lines, "models:", f"  - path: {model}", "    name: doubler"]))
    return file


def _reload(server: LiveServer) -> tuple[int, str]:
    done = run_stoker("reload", "--uri", f"http://127.0.0.1:{server.port}", "--workspace", server.workspace)
    return done.returncode, done.stdout + done.stderr


def test_a_reload_under_load_loses_no_request(serve: Serve, doubler: Path, tmp_path: Path) -> None:
    """A server with other settings, and one more by SIGUSR2, take over; SIGTERM to the first one ends the last."""
    config = _configured(tmp_path, doubler, frontends=1)
    server = serve("--config", config)
    first = set(server.pids())
    with Callers(server.port, scored(PRIMARY), kept_alive=12, fresh=6) as callers:
        wait_until(lambda: callers.answered(200), "the load runs")
        _configured(tmp_path, doubler, frontends=2)
        assert _reload(server) == (0, "The new server serves.\n")
        wait_until(lambda: not (first - {server.process.pid}) & set(server.pids()), "the old one has ended")
        assert len(server.frontend_pids()) == 2
        second = set(server.frontend_pids())

        _configured(tmp_path, doubler, frontends=1)
        server.signal(signal.SIGUSR2)
        wait_until(lambda: not second & set(server.pids()), "the second one has ended", timeout_s=PROGRAM_S)
        assert len(server.frontend_pids()) == 1
        count = len(callers.outcomes)
        wait_until(lambda: callers.answered(count + 200), "the third one serves")
        outcomes = callers.stop()
        server.signal(signal.SIGTERM)
        exit_code = server.wait()

    lost = [outcome for outcome in outcomes if not outcome.right]
    assert lost == [], f"{len(lost)} of {len(outcomes)} were lost: {lost[0]}"
    assert exit_code == 0
    assert server.pids() == []
    assert "Traceback" not in server.output()


def test_the_server_continues_if_its_successor_does_not_start(
    serve: Serve, doubler: Path, tmp_path: Path
) -> None:
    """The command tells why, and ends with 2; that holds for the successor of a successor too."""
    config = _configured(tmp_path, doubler, frontends=1)
    server = serve("--config", config)
    for _ in range(2):
        _configured(tmp_path, doubler, frontends=1, max_body_mb="much")
        code, output = _reload(server)
        assert code == 2
        assert "max_body_mb must be a number" in output
        assert "the old one goes on" in output
        assert server.score([1, 2, 3, 4]).json() == [[2, 4, 6, 8]]
        _configured(tmp_path, doubler, frontends=1)
        assert _reload(server)[0] == 0
    serving = server.device_pids()
    os.kill(server.process.pid, signal.SIGKILL)
    server.wait()
    wait_until(lambda: not set(serving) & set(server.pids()), "the last one has ended with its guardian")


def test_labels_keep_their_meaning_through_reloads(serve: Serve, tmp_path: Path) -> None:
    """A label that is ahead of its version means the old one in the successor and in its own, by SIGUSR2 too."""
    base = tmp_path / "models" / "doubler"
    for version in (1, 2):
        write_doubler(base / str(version) / "model.onnx")
    change_labels(base, {"stable": 1})
    server = serve("--config", _configured(tmp_path, base, frontends=1))
    change_labels(base, {"stable": 3})

    def meant() -> list[str]:
        status = server.get("/v1/models/doubler/labels/stable").json()
        return [version["version"] for version in status.get("model_version_status", [])]

    assert _reload(server)[0] == 0
    assert meant() == ["1"]
    before = set(server.frontend_pids())
    server.signal(signal.SIGUSR2)
    wait_until(lambda: not before & set(server.pids()), "the successor has ended", timeout_s=PROGRAM_S)
    assert meant() == ["1"]


def test_a_successor_needs_all_its_models(serve: Serve, doubler: Path, tmp_path: Path) -> None:
    """A model that cannot be loaded is left out at a start, and does not replace a server that serves it."""
    other = write_doubler(tmp_path / "other.onnx")
    config = _configured(tmp_path, doubler, frontends=1)
    config.write_text(config.read_text() + f"\n  - path: {other}\n    name: other\n")
    server = serve("--config", config)
    other.write_bytes(b"no model")
    code, output = _reload(server)
    assert code == 2
    assert "the old one goes on" in output
    assert server.score([1, 2, 3, 4], path="/api/v1/service/other/score").json() == [[2, 4, 6, 8]]


def test_a_guardian_ends_with_the_server_that_serves(serve: Serve, doubler: Path, tmp_path: Path) -> None:
    """The process that started the first server sees the end of its successor, with its exit code."""
    config = _configured(tmp_path, doubler, frontends=1)
    server = serve("--config", config)
    assert _reload(server)[0] == 0
    supervisors = set(server.pids()) - set(server.frontend_pids()) - set(server.device_pids())
    (successor,) = supervisors - {server.process.pid}
    os.kill(successor, signal.SIGKILL)
    assert server.wait() == 128 + signal.SIGKILL
    wait_until(lambda: server.pids() == [], "nothing is left")


def test_a_signal_right_after_a_reload_is_for_the_new_server(
    serve: Serve, doubler: Path, tmp_path: Path
) -> None:
    """The old one still drains: it is not asked a second time, and both end in order."""
    server = serve("--config", _configured(tmp_path, doubler, frontends=1, drain_grace_s=2))
    first = set(server.frontend_pids())
    assert _reload(server)[0] == 0
    assert first & set(server.pids())
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.pids() == []
    assert "second time" not in server.output()
