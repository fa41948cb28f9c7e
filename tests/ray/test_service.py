"""`stoker ray`: servers on a cluster of three nodes, through deaths and changes, without a lost request."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from tests.live_server import PRIMARY, free_port, wait_until
from tests.patience import PROGRAM_S
from tests.tiny_models import write_doubler

from stoker_client import Client
from stoker_cluster.haproxy import find_haproxy

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


class Service:
    """The commands of one cluster and service."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.environ = {**os.environ, "STOKER_PRIMARY_KEY": PRIMARY, "STOKER_WORKSPACE": str(folder)}

    def run(self, action: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        words = [
            sys.executable,
            "-m",
            "stoker.cli",
            "ray",
            action,
            *map(str, arguments),
            "--address",
            self.address,
        ]
        return subprocess.run(
            words, env=self.environ, capture_output=True, text=True, timeout=600, check=False
        )

    def done(self, action: str, *arguments: object) -> str:
        """Run a command that succeeds; returns its output."""
        done = self.run(action, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def standings(self) -> list[dict[str, Any]]:
        """How the replicas stand."""
        found: list[dict[str, Any]] = json.loads(self.done("status", "doubler", "--json"))
        return found

    def uris(self) -> list[str]:
        """Where they score."""
        return [each["uri"] for each in self.standings()]


@contextmanager
def load(uris: list[str]) -> Iterator[list[int]]:
    """Score without a pause from four threads; what fails is raised at the end. Yields a counter of answers."""
    answers, failures, over = [0], [], threading.Event()

    def ask(client: Client) -> None:
        while not over.is_set():
            try:
                assert client.score(ROWS).tolist() == (2 * ROWS).tolist()
                answers[0] += 1
            except Exception as error:  # noqa: BLE001  # raised again below
                failures.append(error)

    with Client(uris, PRIMARY) as client:
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield answers
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert failures == []


@contextmanager
def routed(ports: Iterable[int]) -> Iterator[str]:
    """A router before servers of this machine; yields where it scores."""
    find_haproxy()
    port, own = free_port(), free_port()
    servers = ",".join(f"127.0.0.1:{number}" for number in ports)
    command = [sys.executable, "-m", "stoker.cli", "router", "--servers", servers, "--port", str(port)]
    # Requests of a dead server are sent again, as the model only computes.
    command += ["--metrics-port", str(own), "--retry-on", "conn-failure,503,empty-response"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(port), "the router listens", timeout_s=PROGRAM_S)
            yield f"http://127.0.0.1:{port}/api/v1/service/doubler/score"
        finally:
            process.terminate()
            assert process.wait(PROGRAM_S) == 0


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_a_service_on_three_nodes(cluster: str, tmp_path: Path) -> None:
    """It comes up on both nodes with GPUs, loses nothing when an actor dies or servers are drained, and goes.

    Neither for callers who know all servers, nor for those who know the router before them.
    """
    service = Service(cluster, tmp_path / "workspace")
    model = write_doubler(tmp_path / "doubler.onnx")
    port = free_port()
    plan = ["--replicas", 3, "--num-gpus", 1, "--port", port, "--host", "127.0.0.1"]
    plan += ["--option=--frontends=1", "--option=--device=cpu"]
    printed = service.done("up", model, *plan)
    assert [line.split()[1] for line in printed.splitlines()] == ["ready"] * 3
    first = service.standings()
    assert [each["uri"] for each in first] == [
        f"http://127.0.0.1:{port + number}/api/v1/service/doubler/score" for number in range(3)
    ]
    assert all(len(each["gpus"]) == 1 for each in first)
    assert service.done("status") == "doubler\n"
    assert "there already" in service.run("up", model, *plan).stderr

    places = range(port, port + 4)
    with load(service.uris()) as answers, routed(places) as router, load([router]) as by_router:
        wait_until(lambda: min(answers[0], by_router[0]) > 20, "the load is there")
        os.kill(first[1]["pid"], signal.SIGKILL)
        wait_until(lambda: _is_back(service.standings()[1]), "Ray starts it again", timeout_s=240)
    second = service.standings()
    assert [each["uri"] for each in second] == [each["uri"] for each in first]
    assert second[1]["pid"] != first[1]["pid"]

    service.done("scale", "doubler", 4)
    with load(service.uris()) as answers, routed(places) as router, load([router]) as by_router:
        wait_until(lambda: min(answers[0], by_router[0]) > 20, "the load is there")
        service.done("scale", "doubler", 1)
        before, by_router_before = answers[0], by_router[0]
        wait_until(lambda: answers[0] > before, "the last one answers")
        wait_until(lambda: by_router[0] > by_router_before, "the router sends to it")
    print(f"{answers[0]} answers of servers, {by_router[0]} by the router")
    assert len(service.standings()) == 1
    assert service.done("down", "doubler") == "doubler has ended, with 1 server\n"
    gone = service.run("status", "doubler")
    assert (gone.returncode, "no service doubler" in gone.stderr) == (2, True)


def _is_back(standing: dict[str, Any]) -> bool:
    return bool(standing["state"] == "ready" and standing["restarted"])


def test_server_that_does_not_start_shows_its_log(cluster: str, tmp_path: Path) -> None:
    """The error has the end of its log; nothing of the service is left."""
    service = Service(cluster, tmp_path / "workspace")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    failed = service.run("up", tmp_path / "broken.onnx", "--host", "127.0.0.1", "--option=--device=cpu")
    assert failed.returncode == 3, failed.stderr
    assert "broken does not start: the server ended with exit code" in failed.stderr
    assert "broken.onnx" in failed.stderr
    assert service.done("status") == ""


def test_no_cluster_is_one_sentence(tmp_path: Path) -> None:
    """And exit code 2."""
    service = Service(f"127.0.0.1:{free_port()}", tmp_path)
    failed = service.run("status")
    assert failed.returncode == 2
    assert "no Ray cluster answers" in failed.stderr
