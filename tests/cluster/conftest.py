"""One control plane for all tests of a run, and a namespace for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import tools
from tests.cluster.control_plane import ControlPlane, running

from stoker.cluster.access import Cluster

NUMBERS = itertools.count(1)


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
    """What the API server has warned of."""
    return []


@pytest.fixture
def cluster(control_plane: ControlPlane, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster as Stoker's own code knows it, by the kubeconfig of an administrator."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return Cluster.connect("test", warn=warnings.append)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of its own for the test, which takes only pods of the profile restricted; it goes with the test."""
    name = f"test-{next(NUMBERS)}"
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    content = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    control_plane.create("/api/v1/namespaces", content)
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
