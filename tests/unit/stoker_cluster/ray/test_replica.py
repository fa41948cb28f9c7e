"""The actor of a replica: its server, its state, its end."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.own_time import give_own_time
from tests.patience import PATIENCE_S

from stoker.errors import LoadFailed
from stoker_cluster.ray import replica
from stoker_cluster.ray.replica import Replica, ServiceSpec

SPEC = ServiceSpec("digits", ("m.onnx",), 8080, environ={"STOKER_PRIMARY_KEY": "k"})


class PuppetServer:
    """A server that is ready, or fails to load, and ends when a test says so."""

    made: ClassVar[list[Any]] = []
    fails = False

    def __init__(self, arguments: Any, host: str, port: int, folder: Any, environ: Any) -> None:
        self.arguments, self.environ = arguments, environ
        self.base_uri = f"http://{host}:{port}"
        self.over = threading.Event()
        self.process = SimpleNamespace(wait=self.over.wait)
        self.made.append(self)

    def wait_until_ready(self, within_s: float) -> None:
        if self.fails:
            raise LoadFailed("no model")

    def drain(self) -> int:
        self.over.set()
        return 0

    def last_lines(self) -> str:
        return "line 1"


class ProcessEnd(BaseException):
    """The process would be gone."""


@pytest.fixture
def restarted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A puppet of Ray on the second of two nodes; its context says whether the actor was made again."""
    context = SimpleNamespace(
        was_current_actor_reconstructed=False,
        get_node_id=lambda: "b",
        get_accelerator_ids=lambda: {"GPU": ["3"]},
    )
    nodes = [
        {"NodeID": node, "NodeManagerAddress": f"10.0.0.{number}"} for number, node in enumerate("ab", 1)
    ]
    ray = SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: nodes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(replica, "ServerProcess", PuppetServer)
    monkeypatch.setattr(replica.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(PuppetServer, "made", [])
    return context


@pytest.mark.usefixtures("restarted")
def test_a_replica_is_a_server_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own port of the address by which the cluster knows the node; draining it ends no actor."""
    monkeypatch.setattr(replica, "_end", lambda: pytest.fail("the actor ended"))
    made = Replica(SPEC, 2)
    (server,) = PuppetServer.made
    assert server.arguments[:2] == ("m.onnx", "--workspace")
    assert server.environ == SPEC.environ
    status = made.status()
    assert status.uri == "http://10.0.0.2:8082/api/v1/service/digits/score"
    assert (status.node, status.gpus, status.restarted) == ("10.0.0.2", ("3",), False)
    assert made.spec() is SPEC
    assert made.drain() == 0


@pytest.mark.usefixtures("restarted")
def test_an_actor_ends_with_its_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that Ray makes both again; the end of the log goes to Ray's."""
    ended = threading.Event()
    monkeypatch.setattr(replica, "_end", ended.set)
    Replica(SPEC, 0)
    assert not ended.is_set()
    PuppetServer.made[0].over.set()
    assert ended.wait(PATIENCE_S)
    assert capsys.readouterr().err == "the server has ended: line 1\n"


def test_recreated_actor_tries_until_it_starts(
    restarted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first start fails with its reason; a later failure ends the process, so that Ray restarts it."""
    monkeypatch.setattr(PuppetServer, "fails", True)
    with pytest.raises(LoadFailed, match="no model"):
        Replica(SPEC, 0)

    def end() -> None:
        raise ProcessEnd

    pauses: list[float] = []
    monkeypatch.setattr(replica, "_end", end)
    give_own_time(monkeypatch, replica, sleep=pauses.append)
    restarted.was_current_actor_reconstructed = True
    with pytest.raises(ProcessEnd):
        Replica(SPEC, 0)
    assert pauses == [5.0]
