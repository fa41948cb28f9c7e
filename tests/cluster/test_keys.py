"""Keys that are replaced while pods run: it has happened once all of them take the new one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.background import serving
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour
from tests.cluster.plans import digits
from tests.cluster.readiness import await_ready

from stoker.cli import main
from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService

LATE_BY = 3


class Followers:
    """Pods that show the number of the keys that the Secret has, some looks late; all behind one address."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._path = f"/api/v1/namespaces/{namespace}/secrets/digits-keys"
        self._control_plane = control_plane
        self.follow = True
        self.shown = 0
        self.looks = 0

    def look(self) -> int:
        """The number of keys that one of them shows now."""
        data = self._control_plane.get(self._path)["data"]
        wanted = int(base64.b64decode(data["generation"]))
        self.looks += 1
        if self.follow and self.looks > LATE_BY:
            self.shown = wanted
        return self.shown


@pytest.fixture
def followers(control_plane: ControlPlane, namespace: str) -> Iterator[Followers]:
    """They are what each pod of the image is."""
    behind = Followers(control_plane, namespace)

    class Metrics(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = f"stoker_keys_generation {behind.look()}.0\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    server.daemon_threads = True
    with serving(server):
        control_plane.nodes.behaviours["stoker:1"] = Behaviour(
            address=("127.0.0.1", server.server_address[1])
        )
        yield behind
        del control_plane.nodes.behaviours["stoker:1"]


@pytest.fixture
def service(cluster: Cluster, namespace: str, followers: Followers) -> ClusterService:
    """Two pods that can score."""
    list(apply(cluster, digits(namespace, replicas=2)))
    found = ClusterService(cluster, namespace, "digits")
    await_ready(found)
    return found


def marks(service: ClusterService) -> set[Any]:
    """The annotations that make kubelets read the Secret at once."""
    return {pod["metadata"].get("annotations", {}).get("stoker.dev/keys-changed") for pod in service.pods()}


def test_a_key_is_replaced_when_all_pods_take_the_new_one(
    service: ClusterService, followers: Followers
) -> None:
    """Pods are marked, read through the API server, and waited for; the other key stays."""
    before = service.keys()
    assert marks(service) == {None}
    assert service.regenerate_key("primary", within_s=120.0) == {}
    assert followers.looks > LATE_BY
    assert followers.shown == 2
    assert len(marks(service)) == 1
    assert marks(service) != {None}
    after = service.keys()
    assert after.primary != before.primary
    assert after.secondary == before.secondary


def test_the_pods_that_do_not_follow_are_named(
    service: ClusterService, followers: Followers, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key is another one in the Secret, and two pods have not shown that they take it."""
    followers.follow = False
    unshown = service.regenerate_key("secondary", within_s=1.0)
    assert unshown == dict.fromkeys(service.ready_pods(), "it takes the keys of before")
    assert len(unshown) == 2
    followers.follow = True
    command, place = ["kubernetes", "keys", "digits"], ["--context", "test", "--namespace", namespace]
    new = ["primary", "--regenerate", "--key", "a-key-of-the-command-line"]
    assert main([*command, *new, *place]) == 0
    assert capsys.readouterr().out == "a-key-of-the-command-line\n"
    assert main([*command, *place]) == 0
    secondary = service.keys().secondary
    assert capsys.readouterr().out == f"primary    a-key-of-the-command-line\nsecondary  {secondary}\n"


def test_each_replacement_of_a_key_raises_the_number(service: ClusterService, cluster: Cluster) -> None:
    """A pod that shows a number therefore takes the keys that were written with it."""
    numbers = []
    for _ in range(2):
        service.regenerate_key("primary", within_s=120.0)
        data = cluster.get(f"/api/v1/namespaces/{service.namespace}/secrets/digits-keys")["data"]
        numbers.append(int(base64.b64decode(data["generation"])))
    assert numbers == [2, 3]
