"""Models of a store, in a real API server."""

from __future__ import annotations

from tests.cluster.plans import digits
from tests.cluster.readiness import await_ready

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.objects.store import store


def test_another_address_changes_a_config_map_and_no_pod(
    cluster: Cluster, namespace: str, warnings: list[str]
) -> None:
    """The profile restricted takes the containers that fetch and follow; in place, the pods stay who they are."""
    first, second = (
        digits(namespace, models=f"http://stoker-store:8090/sha256:{digit * 64}", server={"poll_s": 2.0})
        for digit in "12"
    )
    assert {change.verb for change in apply(cluster, first)} == {"created"}
    service = ClusterService(cluster, namespace, "digits")
    await_ready(service)
    before = [pod["metadata"]["uid"] for pod in service.pods()]
    changed = [str(change.reference) for change in apply(cluster, second) if change.verb == "changed"]
    assert changed == ["ConfigMap digits-models"]
    assert [pod["metadata"]["uid"] for pod in service.pods()] == before
    assert warnings == []


def test_the_store_itself_is_taken(cluster: Cluster, namespace: str, warnings: list[str]) -> None:
    """A claim, a Service and a Deployment, without a warning."""
    assert [cluster.apply(content).is_new for content in store("stoker:1", namespace)] == [True] * 3
    assert warnings == []
