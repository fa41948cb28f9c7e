"""A cluster whose node runs pods, one for all tests of a run, and a namespace for each."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.cluster import control_plane
from tests.cluster.control_plane import ControlPlane
from tests.cluster.namespaces import create_restricted
from tests.pods import images, node
from tests.pods.images import Layer
from tests.pods.load import Load
from tests.pods.node import Node
from tests.pods.service import Record
from tests.tiny_models import write_doubler

from stoker_cluster.access import Cluster


@pytest.fixture(scope="session")
def folder() -> Path:
    """The folder of the node. Skips outside of the namespaces that `make test-pods` makes for it."""
    if node.FOLDER not in os.environ:
        pytest.skip("a node is started in namespaces of its own, which make test-pods makes, as root")
    return Path(os.environ[node.FOLDER])


@pytest.fixture(scope="session")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane that pods reach too."""
    node.network(folder)
    place = folder / "control-plane"
    place.mkdir()
    with control_plane.running(place, address=node.ADDRESS) as plane:
        yield plane


@pytest.fixture(scope="session")
def layers(folder: Path) -> list[Layer]:
    """Python with its packages, and the server: what all images of Stoker begin with."""
    return [images.packages(), images.server(folder)]


@pytest.fixture(scope="session")
def archives(folder: Path, layers: list[Layer]) -> list[Path]:
    """The images: of the sandbox, and `stoker:FACTOR` with a model that multiplies by that, for 2 and 3."""
    contents = {}
    for factor in (2, 3):
        model = write_doubler(folder / f"models/{factor}.onnx", factor)
        layer = images.layer(folder / f"model-{factor}.tar", {Path("/models/digits.onnx"): model})
        contents[f"docker.io/library/stoker:{factor}"] = [*layers, layer]
    pause = {"stoker.test/pause:1": [images.sandbox(folder)]}
    return [
        images.write_archive(folder / "pause.image.tar", pause, ["/pause"]),
        images.write_archive(folder / "stoker.image.tar", contents, images.SERVE),
    ]


@pytest.fixture(scope="session")
def machine(plane: ControlPlane, folder: Path, archives: list[Path]) -> Iterator[Node]:
    """A node with eight GPUs that are names, and the images."""
    with node.running(plane, folder, archives) as running:
        yield running


@pytest.fixture
def record() -> Record:
    """Print the results; `-s` shows them."""

    def say(row: str, load: Load, *more: str, since_s: float = 0.0) -> None:
        print("\nseen:", "; ".join([row, load.summary(since_s), *more]))

    return say


@pytest.fixture
def warnings() -> list[str]:
    """The warnings of the API server."""
    return []


@pytest.fixture
def cluster(
    plane: ControlPlane, machine: Node, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """The cluster as Stoker's own code knows it, by the kubeconfig of an administrator."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    return Cluster.connect("test", warn=warnings.append)


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A namespace of its own for the test, which takes only pods of the profile restricted; it goes with the test."""
    name = create_restricted(plane)
    yield name
    _tell(plane, name)
    plane.api.delete(f"/apis/apps/v1/namespaces/{name}/deployments")
    plane.api.delete(f"/api/v1/namespaces/{name}")
    # Its GPUs are those of the next test, which need not wait for requests that nobody makes.
    pods = f"/api/v1/namespaces/{name}/pods"
    plane.eventually(f"{pods}?limit=1", lambda found: not found["items"] or _hurry(plane, pods), within_s=120)


def _hurry(plane: ControlPlane, pods: str) -> bool:
    plane.api.request("DELETE", pods, json={"gracePeriodSeconds": 1})
    time.sleep(0.5)
    return False


def _tell(plane: ControlPlane, namespace: str) -> None:
    """Print the logs of the pods, for a failed test."""
    for pod in plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]:
        name = pod["metadata"]["name"]
        restarts = [one["restartCount"] for one in pod["status"].get("containerStatuses", [])]
        query = {"container": pod["spec"]["containers"][0]["name"], "tailLines": "20"}
        print(f"\n--- {name}, started again {restarts} times")
        # A log that does not come in time is no failure of the test.
        with contextlib.suppress(httpx.HTTPError):
            print(plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}/log", params=query).text)
