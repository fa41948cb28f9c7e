"""One control plane for all tests of a run, and a namespace for each."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.background import serving
from tests.cluster import tools
from tests.cluster.control_plane import ControlPlane, running
from tests.cluster.namespaces import create_restricted
from tests.cluster.nodes import Behaviour

from stoker_cluster.access import Cluster


class Echo(BaseHTTPRequestHandler):
    """Answers a body with itself, and says which key came with it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Key", self.headers["Authorization"])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def echo() -> Iterator[Behaviour]:
    """Pods that answer, each with the body that it was sent."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    with serving(server):
        yield Behaviour(address=("127.0.0.1", server.server_address[1]))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with eight simulated nodes `gpu-0` to `gpu-7`, each with one GPU and of type `Standard_NC6`.

    Skips where its binaries have not been built; `make test-cluster` builds them.
    """
    absent = tools.missing()
    if absent:
        pytest.skip(
            f"there is no {', '.join(absent)} in {tools.folder()}; make test-cluster builds them with Go"
        )
    folder: Path = tmp_path_factory.mktemp("control-plane")
    with running(folder) as plane:
        plane.nodes.add(8, prefix="gpu", labels={"node.kubernetes.io/instance-type": "Standard_NC6"})
        yield plane


@pytest.fixture
def warnings() -> list[str]:
    """The warnings of the API server."""
    return []


@pytest.fixture
def cluster(control_plane: ControlPlane, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster as Stoker's own code knows it, by the kubeconfig of an administrator."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return Cluster.connect("test", warn=warnings.append)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of its own for the test, which takes only pods of the profile restricted; it goes with the test."""
    name = create_restricted(control_plane)
    yield name
    control_plane.api.delete(f"/api/v1/namespaces/{name}")
    # Its GPUs are those of the next test; the namespace itself may take its time.
    pods = f"/api/v1/namespaces/{name}/pods"
    control_plane.eventually(
        f"{pods}?limit=1", lambda found: not found["items"] or _forget(control_plane, pods)
    )


def _forget(control_plane: ControlPlane, pods: str) -> bool:
    control_plane.api.delete(pods, params={"gracePeriodSeconds": 0})
    return False
