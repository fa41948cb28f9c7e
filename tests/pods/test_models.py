"""Another version of a model comes on a shared volume, without another pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.readiness import await_ready
from tests.pods.load import Load
from tests.pods.node import Node
from tests.pods.plans import digits
from tests.pods.service import Record, eventually, place
from tests.tiny_models import write_doubler

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService

CLAIM = "weights"


def share(plane: ControlPlane, namespace: str, folder: Path) -> None:
    """Make a folder of this machine a volume of the namespace, with a claim."""
    spec: dict[str, Any] = {
        "capacity": {"storage": "1G"},
        "accessModes": ["ReadOnlyMany"],
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": namespace, "name": CLAIM},
        "storageClassName": "by-hand",
    }
    name = {"name": f"{namespace}-{CLAIM}"}
    plane.create(
        "/api/v1/persistentvolumes",
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": name, "spec": spec},
    )
    claim: dict[str, Any] = {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "by-hand",
        "resources": {"requests": {"storage": "1G"}},
    }
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    plane.create(
        claims,
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}, "spec": claim},
    )


def write_version(folder: Path, version: int, factor: float) -> None:
    """Write a version of the model at once, for pods of another user."""
    staged = folder / f".{version}"
    write_doubler(staged / "model.onnx", factor)
    staged.chmod(0o755)
    staged.rename(folder / "digits" / str(version))


def test_one_pod_on_its_gpu_takes_a_new_version_in_place(
    cluster: Cluster, plane: ControlPlane, machine: Node, namespace: str, record: Record
) -> None:
    """The server sees the version on the volume and switches, and no request is lost."""
    folder = machine.folder / "share"
    (folder / "digits").mkdir(parents=True)
    for one in (folder, folder / "digits"):
        one.chmod(0o755)
    write_version(folder, 1, 2)
    share(plane, namespace, folder)
    plan = {
        "serves": ({"path": "/models/digits", "name": "digits", "threads": 1},),
        "server": {"poll_s": 1.0},
        "models": f"pvc://{CLAIM}/",
    }
    list(apply(cluster, digits(namespace, **plan)))
    service = ClusterService(cluster, namespace, "digits")
    await_ready(service)
    before = [pod["metadata"]["uid"] for pod in service.pods()]
    with Load(place(cluster, namespace), factors=(2, 3)) as load:
        load.await_answers(500)
        written = len(load.answered)
        write_version(folder, 2, 3)
        eventually(lambda: load.answered[-1].factor == 3, "the new version answers", within_s=200)
        switched_s = load.answered[-1].sent_s
        load.await_answers(500)
    after_s = switched_s - load.answered[written].sent_s
    record("in place", load, f"new version after {after_s:.0f} s")
    record("in place, 2 s around the switch", load, since_s=switched_s - 1)
    assert load.ledger.broken() == []
    assert [pod["metadata"]["uid"] for pod in service.pods()] == before
    assert {one.factor for one in load.answered[-50:]} == {3}
