"""Another version of a model comes from a store, without another pod."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.control_plane import ControlPlane
from tests.cluster.readiness import await_ready
from tests.pods.load import Load
from tests.pods.node import Node
from tests.pods.plans import digits
from tests.pods.service import Record, eventually, place
from tests.pods.store import start_store
from tests.tiny_models import write_doubler

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.store_client import push


def test_one_pod_on_its_gpu_takes_a_new_version_in_place(
    cluster: Cluster, plane: ControlPlane, machine: Node, namespace: str, tmp_path: Path, record: Record
) -> None:
    """The kubelet brings the new address into the pod, the server switches, and no request is lost."""
    address = start_store(cluster, plane, namespace, machine.folder / "disk")
    write_doubler(tmp_path / "digits/1/model.onnx", 2)
    plan = {
        "serves": ({"path": "/models/digits", "name": "digits", "threads": 1},),
        "server": {"poll_s": 1.0},
    }
    first = push(["digits"], tmp_path, address, print)
    list(apply(cluster, digits(namespace, models=first, **plan)))
    service = ClusterService(cluster, namespace, "digits")
    await_ready(service)
    before = [pod["metadata"]["uid"] for pod in service.pods()]
    write_doubler(tmp_path / "digits/2/model.onnx", 3)
    with Load(place(cluster, namespace), factors=(2, 3)) as load:
        load.await_answers(500)
        applied = len(load.answered)
        list(apply(cluster, digits(namespace, models=push(["digits"], tmp_path, address, print), **plan)))
        eventually(lambda: load.answered[-1].factor == 3, "the new version answers", within_s=200)
        switched_s = load.answered[-1].asked_s
        load.await_answers(500)
    after_s = switched_s - load.answered[applied].asked_s
    record("in place", load, f"new version after {after_s:.0f} s")
    record("in place, 2 s around the switch", load, since_s=switched_s - 1)
    assert load.ledger.broken() == []
    assert [pod["metadata"]["uid"] for pod in service.pods()] == before
    assert {one.factor for one in load.answered[-50:]} == {3}
