"""Versions of a running server: loaded, switched and unloaded under load, by its API and by what lies on the disk."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.http.raw_http import Answer, bearer, request
from tests.live_server import LiveServer, free_port, run_stoker, wait_until
from tests.patience import PROGRAM_S
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve
from tests.tiny_models import write_doubler, write_mlp, write_picky
from tritonclient.utils import InferenceServerException

PATH = "/api/v1/service/doubler/score"


def _post(server: LiveServer, path: str, body: bytes = b"", key: str | None = None) -> Answer:
    """POST with a key; what is loaded beside others gives way to whatever wants the cores."""
    with server.connect() as connection:
        connection.socket.settimeout(PROGRAM_S)
        return connection.ask(request("POST", path, [] if key is None else [bearer(key)], body))


def _states(server: LiveServer, name: str = "doubler") -> dict[str, str]:
    """The states of a model's versions."""
    entries = _post(server, "/v2/repository/index", key=server.key).json()
    return {
        entry["version"]: entry["state"] for entry in entries if entry["name"] == name and "state" in entry
    }


def _default(server: LiveServer) -> str:
    """Return the version that answers a request without a version."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    answer = _post(server, "/v2/models/doubler/infer", json.dumps({"inputs": [tensor]}).encode(), server.key)
    return str(answer.json()["model_version"])


def _labelled(server: LiveServer, label: str) -> list[str]:
    """The versions that a label means."""
    answer = server.get(f"/v1/models/doubler/labels/{label}").json()
    return [status["version"] for status in answer.get("model_version_status", ())]


class _Calls:
    """A caller by gRPC on a thread of its own, who calls again as soon as it has an answer.

    Attributes:
        answered: How many calls had the right answer.
        failure: What the first other one had instead.
    """

    def __init__(self, address: str, key: str) -> None:
        self.answered = 0
        self.failure: object = None
        self._address = address
        self._headers = {"authorization": f"Bearer {key}"}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        x = triton.InferInput("x", [1, 4], "FP32")
        with triton.InferenceServerClient(self._address) as client:
            while not self._ended.is_set() and self.failure is None:
                row = np.array([[self.answered, 1, 2, 3]], np.float32)
                x.set_data_from_numpy(row)
                try:
                    scores = client.infer("doubler", [x], headers=self._headers).as_numpy("y")
                except InferenceServerException as error:
                    self.failure = error
                else:
                    self.failure = None if np.array_equal(scores, 2 * row) else scores
                    self.answered += self.failure is None


def _decisions(server: LiveServer) -> list[tuple[str, str]]:
    """Return the decisions on versions of the model from its events."""
    question = request("GET", "/v2/repository/models/doubler/events", [bearer(server.key)], b"")
    with server.connect() as connection:
        events = connection.ask(question).json()
    return [(event["version"], event["event"]) for event in events if "parity" in event["event"]]


def _yields(pid: int) -> bool:
    """Whether a thread of a process has another priority than this one."""
    priorities = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Threads end meanwhile.
        with contextlib.suppress(ProcessLookupError):
            priorities.add(os.getpriority(os.PRIO_PROCESS, int(task.name)))
    return priorities != {os.getpriority(os.PRIO_PROCESS, 0)}


@pytest.mark.long
def test_versions_come_and_go_under_load(serve: Serve, tmp_path: Path) -> None:
    """No request fails while a version takes over, nor while one does not load or would answer otherwise."""
    repository = tmp_path / "repository"
    write_doubler(repository / "doubler" / "1" / "model.onnx")
    write_mlp(repository / "mlp" / "1" / "model.onnx", seed=1)
    grpc_port = free_port()
    server = serve(repository, "--frontends", "1", "--grpc-port", str(grpc_port), "--parity", "require")
    admin = run_stoker("keys", "show", "admin", "--workspace", server.workspace).stdout.strip()

    def ask(action: str, name: str = "doubler") -> Answer:
        return _post(server, f"/v2/repository/models/{name}/{action}", b"", admin)

    callers = Callers(server.port, scored(server.key, PATH), kept_alive=6, fresh=2, pause_s=0.02)
    with callers, _Calls(f"127.0.0.1:{grpc_port}", server.key) as calls:
        wait_until(lambda: callers.answered(100) and calls.answered, "the load runs")
        write_doubler(repository / "doubler" / "2" / "model.onnx")
        assert ask("load").status == 200
        assert _states(server) == {"1": "UNAVAILABLE", "2": "READY"}
        (repository / "doubler" / "3").mkdir()
        (repository / "doubler" / "3" / "model.onnx").write_bytes(b"no model")
        failed = ask("load")
        assert (failed.status, _states(server)["2"]) == (500, "READY")
        assert "failed to load 'doubler', version 3" in failed.json()["error"]
        write_doubler(repository / "doubler" / "4" / "model.onnx", by=3)
        other = ask("load")
        assert (other.status, _states(server)["2"]) == (500, "READY")
        assert "version 4: it does not answer as version 2" in other.json()["error"]
        assert _decisions(server) == [("2", "parity_passed"), ("4", "parity_failed")]
        (repository / "doubler" / "4" / "model.onnx").unlink()
        (repository / "doubler" / "4").rmdir()
        assert ask("unload", "mlp").status == 200
        assert ask("versions/1/load").status == 200
        left_out = dict.fromkeys(("3", "4"), "UNAVAILABLE")
        assert _states(server) == {"1": "READY", "2": "READY", **left_out}
        outcomes = callers.stop()

    assert [outcome for outcome in outcomes if not outcome.right] == []
    assert calls.failure is None
    assert server.metric("stoker_rows_total", model="doubler", version="1") >= 100
    wait_until(
        lambda: (
            sum(server.metric("stoker_rows_total", model="doubler", version=version) for version in "12")
            == len(outcomes) + calls.answered
        ),
        "all are counted, each for its version",
    )
    assert len(server.device_pids()) == 2, (
        "the process that both models began in is gone, each version has its own"
    )
    for pid in server.device_pids():
        # A process says that it has loaded before it stops yielding.
        wait_until(lambda pid=pid: not _yields(pid), "what has loaded yields to nobody")  # type: ignore[misc]
    assert server.score([1, 2, 3, 4], path="/api/v1/service/mlp/score").status == 404
    for arguments in (("models", "unload", "doubler:2"), ("models", "load", "mlp")):
        url = f"http://127.0.0.1:{server.port}"
        done = run_stoker(*arguments, "--uri", url, "--workspace", server.workspace)
        assert done.returncode == 0, done.stderr
    assert (_default(server), _states(server, "mlp")) == ("1", {"1": "READY"})


@pytest.mark.long
def test_registered_versions_and_labels_are_followed(serve: Serve, tmp_path: Path, doubler: Path) -> None:
    """A server that polls serves registered versions; labels move without a restart, for all protocols."""
    workspace, grpc_port = tmp_path / "workspace", free_port()

    def stoker(*arguments: str | Path) -> None:
        done = run_stoker(*arguments, "--workspace", workspace)
        assert done.returncode == 0, done.stderr

    stoker("models", "register", "doubler", doubler)
    ports = ("--frontends", "1", "--grpc-port", str(grpc_port))
    server = serve("--model", "doubler", *ports, "--poll-s", "0.2", workspace=workspace)
    with Callers(server.port, scored(server.key), kept_alive=2, pause_s=0.01) as callers:
        stoker("models", "register", "doubler", doubler)
        wait_until(lambda: _states(server) == {"1": "UNAVAILABLE", "2": "READY"}, "the new version is served")
        assert _default(server) == "2"
        stoker("models", "label", "doubler", "default=1", "canary=2")
        wait_until(lambda: _default(server) == "1", "the label is followed")
        assert _labelled(server, "canary") == ["2"]
        outcomes = callers.stop()
    assert [outcome for outcome in outcomes if not outcome.right] == []
    stoker("models", "register", "doubler", write_picky(tmp_path / "picky.onnx"))
    stoker("models", "label", "doubler", "canary=3")
    wait_until(lambda: _labelled(server, "canary") == ["3"], "the label has moved to a version that triples")
    for path, factor in (("", 2), ("/versions/1", 2), ("/versions/3", 3), ("/labels/canary", 3)):
        body = json.dumps({"instances": [[1, 2, 3, 4]]}).encode()
        answer = _post(server, f"/v1/models/doubler{path}:predict", body, server.key).json()
        assert answer == {"predictions": [[factor, 2 * factor, 3 * factor, 4 * factor]]}
    with triton.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        x = triton.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.float32))
        headers = {"authorization": f"Bearer {server.key}"}
        for version, factor in (("", 2), ("3", 3)):
            scores = client.infer("doubler", [x], model_version=version, headers=headers).as_numpy("y")
            assert scores.tolist() == [[factor, 2 * factor, 3 * factor, 4 * factor]]
    admin = run_stoker("keys", "show", "admin", "--workspace", workspace).stdout.strip()
    refused = _post(server, "/v2/repository/models/doubler/unload", b"", admin)
    assert (refused.status, "polling is enabled" in refused.json()["error"]) == (503, True)


ECHO = "def init(): ...\ndef run(raw_data): return raw_data\n"
HANGS = """
import pathlib
import threading

def init():
    pathlib.Path(__file__).with_name("reached").touch()
    threading.Event().wait()

def run(raw_data): ...
"""


# On a machine that does ten other things it is far from the start of a process to `init`.
HANGS_FOR_S = 40


@pytest.mark.interrupts
@pytest.mark.long
def test_hanging_load_of_a_script_costs_that_load_alone(serve: Serve, tmp_path: Path) -> None:
    """The caller learns the remedy, the process is gone, the log shows where it hung, and other models serve on."""
    repository = tmp_path / "repository"
    for path, text in (("echo/1", ECHO), ("echo/2", HANGS)):
        (repository / path).mkdir(parents=True)
        (repository / path / "score.py").write_text(text)
    write_doubler(repository / "doubler" / "1" / "model.onnx")
    echo = {"path": str(repository / "echo"), "versions": [1], "load_timeout_s": HANGS_FOR_S}
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(json.dumps({"models": [echo, {"path": str(repository / "doubler")}]}))
    server = serve("--config", deployment, "--frontends", "1")
    processes = server.device_pids()
    admin = run_stoker("keys", "show", "admin", "--workspace", server.workspace).stdout.strip()
    answers: list[Answer] = []
    hanging = threading.Thread(
        target=lambda: answers.append(_post(server, "/v2/repository/models/echo/versions/2/load", b"", admin))
    )
    hanging.start()
    wait_until(lambda: _states(server, "echo").get("2") == "LOADING", "the script is being loaded")
    write_doubler(repository / "doubler" / "2" / "model.onnx")
    assert _post(server, "/v2/repository/models/doubler/load", b"", admin).status == 200
    assert _states(server) == {"1": "UNAVAILABLE", "2": "READY"}
    hanging.join()
    (answer,) = answers
    assert (repository / "echo" / "2" / "reached").exists(), "the script hung before its time was up"
    complaint = f"echo version 2 was not loaded within {HANGS_FOR_S} s"
    assert (answer.status, answer.header("x-stoker-error-code")) == (500, "load_timeout")
    assert answer.json()["error"].startswith(f"failed to load 'echo', version 2: {complaint}")
    assert "raise load_timeout_s" in answer.json()["error"]
    assert 'score.py", line 7 in init' in server.output()
    assert _states(server, "echo") == {"1": "READY", "2": "UNAVAILABLE"}
    (entry,) = (
        one
        for one in _post(server, "/v2/repository/index", key=server.key).json()
        if one.get("reason", "").startswith(complaint)
    )
    assert entry["version"] == "2"
    (status,) = server.get("/v1/models/echo/versions/2").json()["model_version_status"]
    assert (status["state"], status["status"]["error_code"]) == ("END", "DEADLINE_EXCEEDED")
    assert status["status"]["error_message"].startswith(complaint)
    echoed = _post(server, "/api/v1/service/echo/score", b'"hello"', server.key)
    assert (echoed.status, echoed.json()) == (200, '"hello"')
    wait_until(lambda: len(server.device_pids()) == len(processes), "what hung is gone, the others are there")
